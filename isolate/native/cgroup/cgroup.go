// Package cgroup limits a cell with cgroup v2, where a subtree is
// delegated to this process.
//
//	tree, err := cgroup.Find("/proc")    // palyra; the reason in err is evidence: cgroup.State(err)
//	err = tree.Prepare()                 // once, at start
//	nest, err := tree.Nest()             // per palyra-cell, which is born in nest.Dir()
//	tree, err := cgroup.Inherit("/proc") // palyra-cell
//	leaf, err := tree.New(name, limits)  // per cell, which is born in leaf.Dir()
//	leaf.Peak(); leaf.Events(); leaf.Remove()
//	nest.Remove()                        // palyra, when palyra-cell is gone: kills what is left
//
// A group with processes cannot hand controllers to its children (cgroups(7),
// "no internal processes"), so the delegated one must become empty:
//
//	delegated/palyra-main               palyra, moved by Prepare or started there
//	delegated/cell-RANDOM/palyra-cell   a palyra-cell
//	delegated/cell-RANDOM/NAME          a cell
//
// palyra moves nobody but itself. If others are in the delegated group, such as
// the shell that started it, there is no cgroup and evidence says why.
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

	"palyra/internal/fault"
)

// controllers are those that a cell needs.
var controllers = []string{"cpu", "memory", "pids"}

// The groups that are not cells.
const (
	main = "palyra-main"
	own  = "palyra-cell"
)

// Tree is a subtree in which groups can be made. It is immutable after Find.
type Tree struct {
	dir          string
	root         *os.Root         // dir, opened by Inherit for as long as the process lives: its threads move to where no path leads to it
	testOnlyMade func(dir string) // a directory was made; the kernel would fill it
}

// Limits bound one leaf. Zero in any field is an error, never "unlimited". Swap
// is always 0: memory that can be swapped is not bounded.
type Limits struct {
	Memory   int64 // bytes, memory.max
	PIDs     int64 // processes and threads, pids.max
	MilliCPU int64 // thousandths of a CPU, cpu.max
}

func unavailable(err error) error {
	return fault.New(fault.Refused, "cgroup_unavailable", "find delegated cgroup", err).
		WithHint("run palyra as a systemd service or scope with Delegate=cpu memory pids, alone or with DelegateSubgroup=" + main)
}

// Find locates the cgroup v2 group that was delegated to this process and checks
// that it has the controllers a cell needs. It changes nothing. proc is where a
// proc file system is mounted.
func Find(proc string) (*Tree, error) {
	dir, err := self(proc)
	if err != nil {
		return nil, unavailable(err)
	}
	if filepath.Base(dir) == main {
		dir = filepath.Dir(dir)
	}
	lacks, err := missing(dir, "cgroup.controllers")
	if err != nil {
		return nil, unavailable(fmt.Errorf("cgroup v2 without a list of controllers: %w", reason(err)))
	}
	if len(lacks) > 0 {
		return nil, unavailable(fmt.Errorf("cgroup v2 controllers %s are not delegated", strings.Join(lacks, ", ")))
	}
	return &Tree{dir: dir}, nil
}

// Inherit finds the subtree of a [Nest] that this process was born in. Where
// there is none it says why there is none.
func Inherit(proc string) (*Tree, error) {
	dir, err := self(proc)
	if err != nil {
		return nil, unavailable(err)
	}
	if filepath.Base(dir) == own {
		root, err := os.OpenRoot(filepath.Dir(dir))
		if err != nil {
			return nil, unavailable(reason(err))
		}
		return &Tree{dir: filepath.Dir(dir), root: root}, nil
	}
	t, err := Find(proc)
	if err != nil {
		return nil, err
	}
	if err := t.check(2); err != nil { // palyra and this process
		return nil, unavailable(err)
	}
	return nil, unavailable(errors.New("palyra made no group for palyra-cell"))
}

// self is the directory of this process's group.
func self(proc string) (string, error) {
	group, err := os.ReadFile(filepath.Join(proc, "self/cgroup"))
	if err != nil {
		return "", err
	}
	mounts, err := os.ReadFile(filepath.Join(proc, "self/mountinfo"))
	if err != nil {
		return "", err
	}
	return locate(group, mounts)
}

// missing returns the controllers that a list lacks.
func missing(dir, file string) (lacks []string, err error) {
	has, err := words(dir, file)
	for _, c := range controllers {
		if !slices.Contains(has, c) {
			lacks = append(lacks, c)
		}
	}
	return lacks, err
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

// Prepare hands the controllers to the groups that New and Nest will make. If
// this process is in the way it moves to a group of its own, once: this is the
// one migration that there is, and it is not on the path of a call.
func (t *Tree) Prepare() error {
	err := t.check(1)
	if err == nil {
		err = t.enable()
	}
	if err != nil {
		return unavailable(reason(err))
	}
	return nil
}

// check finds out whether the controllers are, or can be, enabled: at most ours
// processes are in the group, and we may move processes from and to it.
func (t *Tree) check(ours int) error {
	lacks, err := missing(t.dir, "cgroup.subtree_control")
	if err != nil {
		return reason(err)
	}
	in, err := words(t.dir, "cgroup.procs")
	if err != nil {
		return reason(err)
	}
	if len(lacks) > 0 && len(in) > ours {
		return errCrowded
	}
	for _, name := range []string{"cgroup.procs", "cgroup.subtree_control"} {
		f, err := os.OpenFile(filepath.Join(t.dir, name), os.O_WRONLY, 0)
		if err != nil {
			return reason(err)
		}
		f.Close()
	}
	return nil
}

var errCrowded = errors.New("other processes are in the delegated cgroup")

// enable hands the controllers on, unless that was done already.
func (t *Tree) enable() error {
	lacks, err := missing(t.dir, "cgroup.subtree_control")
	if err != nil || len(lacks) == 0 {
		return err
	}
	in, err := words(t.dir, "cgroup.procs")
	if err != nil {
		return err
	}
	if len(in) == 0 {
		return write(t.dir, "cgroup.subtree_control", everything())
	}
	if !slices.Equal(in, []string{strconv.Itoa(os.Getpid())}) {
		return errCrowded
	}
	if err := t.mkdir(main); err != nil {
		return err
	}
	inner := filepath.Join(t.dir, main)
	if err = write(inner, "cgroup.procs", "0"); err == nil { // 0 is the writer, with all its threads
		if err = write(t.dir, "cgroup.subtree_control", everything()); err != nil {
			err = errors.Join(err, write(t.dir, "cgroup.procs", "0"))
		}
	}
	if err != nil {
		os.Remove(inner)
	}
	return err
}

func everything() string { return "+" + strings.Join(controllers, " +") }

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

func read(dir, name string) (string, error) { return content(os.Open(filepath.Join(dir, name))) }

func content(f *os.File, err error) (string, error) {
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
	return stored(f, err, value)
}

func stored(f *os.File, err error, value string) error {
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
