// Package cgroup limits and kills a cell with cgroup v2, where a subtree is
// delegated to this process.
//
//	tree, err := cgroup.Find("/proc")    // the reason in err is evidence: cgroup.State(err)
//	err = tree.Prepare()                 // once, at start
//	leaf, err := tree.New(name, limits)
//	// clone3 with CLONE_INTO_CGROUP and leaf.Dir(): born in it, never moved
//	leaf.Kill(); leaf.Peak(); leaf.Events(); leaf.Remove()
//
// Version 1 is not used at all: it has no kill, and moving a task into a group
// costs an RCU grace period. On a host without delegation [Find] says exactly
// what is missing, and limits are those of the process (rlimits).
//
// # What it does not protect against
//
// A cgroup accounts for memory, it does not hide anything. Who can write to the
// delegated subtree can undo the limits; a cell must not see it.
//
// The package only reads and writes files beneath the cgroup mount. Its tests
// run on a directory that imitates one: what the kernel does with the values
// has to be tested on a host with delegation.
package cgroup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"palyra/internal/fault"
)

// controllers are those that a cell needs.
var controllers = []string{"cpu", "memory", "pids"}

// own is the group that palyra-cell moves itself to, once, because a group with
// processes cannot hand controllers to its children (cgroups(7), "no internal
// processes").
const own = "palyra-cell"

// Tree is the delegated subtree of this process. It is immutable after Find.
type Tree struct {
	dir          string
	testOnlyMade func(dir string) // a directory was made; the kernel would fill it
}

// Limits bound one leaf. Zero in any field is an error, never "unlimited". Swap
// is always 0: memory that can be swapped is not bounded.
type Limits struct {
	Memory   int64 // bytes, memory.max
	PIDs     int64 // processes and threads, pids.max
	MilliCPU int64 // thousandths of a CPU, cpu.max
}

// Find locates the cgroup v2 group of this process and checks that it has the
// controllers a cell needs. proc is where a proc file system is mounted.
func Find(proc string) (*Tree, error) {
	unavailable := func(err error) error {
		return fault.New(fault.Refused, "cgroup_unavailable", "find delegated cgroup", err).
			WithHint("run palyra as a systemd service or scope with Delegate=cpu memory pids")
	}
	self, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return nil, unavailable(err)
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return nil, unavailable(err)
	}
	dir, err := locate(self, mounts)
	if err != nil {
		return nil, unavailable(err)
	}
	has, err := words(dir, "cgroup.controllers")
	if err != nil {
		return nil, unavailable(fmt.Errorf("cgroup v2 without a list of controllers: %w", reason(err)))
	}
	var missing []string
	for _, c := range controllers {
		if !slices.Contains(has, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return nil, unavailable(fmt.Errorf("cgroup v2 controllers %s are not delegated", strings.Join(missing, ", ")))
	}
	return &Tree{dir: dir}, nil
}

// locate finds the directory of the group that /proc/self/cgroup names, among
// the mounts of /proc/self/mountinfo.
func locate(self, mounts []byte) (string, error) {
	group := ""
	for line := range strings.Lines(string(self)) {
		if g, ok := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::"); ok {
			group = g
		}
	}
	if !strings.HasPrefix(group, "/") {
		return "", errors.New("no cgroup v2 group")
	}
	for line := range strings.Lines(string(mounts)) {
		left, right, ok := strings.Cut(line, " - ")
		f := strings.Split(left, " ")
		if !ok || len(f) < 5 || !strings.HasPrefix(right, "cgroup2 ") {
			continue
		}
		root, point := f[3], f[4]
		if strings.ContainsRune(root+point, '\\') || !strings.HasPrefix(point, "/") {
			continue // an escaped name: nobody mounts cgroups there
		}
		rest, ok := strings.CutPrefix(group, strings.TrimSuffix(root, "/"))
		if ok && (rest == "" || rest[0] == '/') && !slices.Contains(strings.Split(rest, "/"), "..") {
			return filepath.Join(point, rest), nil
		}
	}
	return "", errors.New("cgroup v2 is not mounted")
}

// State is what evidence says: "enforced", or "unavailable: " and why.
func State(err error) string {
	if err == nil {
		return "enforced"
	}
	if e, ok := errors.AsType[*fault.Error](err); ok && e.Err != nil {
		err = e.Err
	}
	return "unavailable: " + err.Error()
}

// Prepare hands the controllers to the groups that New will make. If this
// process is in the way it moves to a group of its own, once: this is the one
// migration that there is, and it is not on the path of a call.
func (t *Tree) Prepare() error {
	want := "+" + strings.Join(controllers, " +")
	err := write(t.dir, "cgroup.subtree_control", want)
	if errors.Is(err, syscall.EBUSY) {
		if err = t.mkdir(own); err == nil {
			err = write(filepath.Join(t.dir, own), "cgroup.procs", strconv.Itoa(os.Getpid()))
		}
		if err == nil {
			err = write(t.dir, "cgroup.subtree_control", want)
		}
	}
	if err != nil {
		return fault.New(fault.Refused, "cgroup_unavailable", "delegate cgroup controllers", reason(err)).
			WithHint("start palyra in a group with no other process (systemd: DelegateSubgroup=)")
	}
	return nil
}

func (t *Tree) mkdir(name string) error {
	dir := filepath.Join(t.dir, name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if t.testOnlyMade != nil {
		t.testOnlyMade(dir)
	}
	return nil
}

// reason drops the path from an error: evidence must not name places of the host.
func reason(err error) error {
	if p, ok := errors.AsType[*fs.PathError](err); ok {
		return fmt.Errorf("%s %s: %w", p.Op, filepath.Base(p.Path), p.Err)
	}
	return err
}

func read(dir, name string) (string, error) {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 1<<16))
	return strings.TrimSpace(string(b)), err
}

func words(dir, name string) ([]string, error) {
	s, err := read(dir, name)
	return strings.Fields(s), err
}

// write never creates: a control file that is not there is a missing control.
func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
