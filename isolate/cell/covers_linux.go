package cell

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"palyra/internal/fault"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native"
)

// covers watches the sealed copies that are mounted over workspace files. A
// mount vanishes when its mount point is unlinked or replaced, which somebody
// outside who may write to the workspace can do (kernel 3.18 and later): the
// program would then see their file. That cannot be prevented here, but it
// cannot be hidden either: a mount that is gone does not come back, and the
// cell's mount namespace is looked at again when the program has ended.
type covers struct {
	ns    *os.File // the cell's mount namespace
	paths []string // where the copies are mounted, "/workspace/in.txt"
}

// watch opens the mount namespace of a process that waits at the gate.
func (c *covers) watch(pid int, operands []native.Operand) error {
	if len(operands) == 0 {
		return nil
	}
	for _, o := range operands {
		c.paths = append(c.paths, native.WorkspaceDir+"/"+o.Path)
	}
	var err error
	c.ns, err = os.Open("/proc/" + strconv.Itoa(pid) + "/ns/mnt")
	return err
}

// check returns an Integrity fault if a copy is no longer where it was.
func (c *covers) check() error {
	if c.ns == nil {
		return nil
	}
	const op = "look for sealed operands after the run"
	table, err := mountsOf(c.ns)
	if err != nil {
		return fault.New(fault.Integrity, "operand_unwatched", op, err)
	}
	for _, path := range c.paths {
		if !table[path] {
			return fault.New(fault.Integrity, "operand_uncovered", op, fmt.Errorf("the copy over %q is gone: the file was replaced while the program ran", path)).
				WithHint("keep others from writing to the workspace while a call runs")
		}
	}
	return nil
}

func (c *covers) close() {
	if c.ns != nil {
		c.ns.Close()
	}
}

// mountsOf returns the mount points of a mount namespace. It enters it on a
// thread that is given up afterwards, and reads through our own /proc, which it
// opens before.
func mountsOf(ns *os.File) (map[string]bool, error) {
	type result struct {
		table map[string]bool
		err   error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends here
		table, err := func() (map[string]bool, error) {
			proc, err := os.OpenRoot("/proc")
			if err != nil {
				return nil, err
			}
			defer proc.Close()
			if err := sys.EnterMounts(ns); err != nil {
				return nil, err
			}
			self := strconv.Itoa(os.Getpid()) + "/task/" + strconv.Itoa(sys.ThreadID())
			b, err := proc.ReadFile(self + "/mountinfo")
			if err != nil {
				return nil, err
			}
			return mountPoints(string(b))
		}()
		done <- result{table, err}
	}()
	r := <-done
	return r.table, r.err
}

// mountPoints returns the fifth field of each line of proc_pid_mountinfo(5),
// with its octal escapes undone.
func mountPoints(table string) (map[string]bool, error) {
	out := make(map[string]bool)
	unescape := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(table) {
		f := strings.Fields(line)
		if len(f) < 6 {
			return nil, errors.New("mountinfo has a line of less than six fields")
		}
		out[unescape.Replace(f[4])] = true
	}
	return out, nil
}
