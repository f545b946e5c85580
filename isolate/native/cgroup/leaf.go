package cgroup

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Leaf is the group of one cell. Its owner calls Remove when no process is left.
// It is used by descriptor, from any thread.
type Leaf struct {
	name string
	tree *os.Root // where it is
	in   *os.Root // itself
	dir  *os.File // the same, for clone3
}

// Events counts what the limits did.
type Events struct {
	OOMKill int64 // processes killed because memory.max was reached
	PIDsMax int64 // forks refused because pids.max was reached
}

// open returns a descriptor of the tree that the caller closes.
func (t *Tree) open() (*os.Root, error) {
	if t.root != nil {
		return t.root.OpenRoot(".")
	}
	return os.OpenRoot(t.dir)
}

// New makes a leaf and sets its limits before anything can be in it.
func (t *Tree) New(name string, l Limits) (*Leaf, error) {
	if l.Memory <= 0 || l.PIDs <= 0 || l.MilliCPU <= 0 {
		return nil, fmt.Errorf("make cgroup %q: a limit is not set", name)
	}
	if name == "" || name == own || name != filepath.Base(name) || strings.HasPrefix(name, ".") || strings.HasPrefix(name, "cgroup.") {
		return nil, fmt.Errorf("make cgroup %q: not a name", name)
	}
	tree, err := t.open()
	if err != nil {
		return nil, fmt.Errorf("make cgroup %q: %w", name, reason(err))
	}
	// Mkdir fails if there is one: a group is never shared between cells.
	if err := tree.Mkdir(name, 0o755); err != nil {
		tree.Close()
		return nil, fmt.Errorf("make cgroup %q: %w", name, reason(err))
	}
	if t.testOnlyMade != nil {
		t.testOnlyMade(filepath.Join(t.dir, name))
	}
	leaf := &Leaf{name: name, tree: tree}
	if leaf.in, err = tree.OpenRoot(name); err != nil {
		return nil, errors.Join(fmt.Errorf("open cgroup %q: %w", name, reason(err)), leaf.Remove())
	}
	const period = 100_000 // µs, the kernel's default
	for _, v := range [][2]string{
		{"memory.max", strconv.FormatInt(l.Memory, 10)},
		{"memory.swap.max", "0"},
		{"memory.oom.group", "1"}, // a cell that lost one process is not the program that was approved
		{"pids.max", strconv.FormatInt(l.PIDs, 10)},
		{"cpu.max", fmt.Sprintf("%d %d", l.MilliCPU*period/1000, period)},
	} {
		err := leaf.write(v[0], v[1])
		if errors.Is(err, os.ErrNotExist) && v[0] == "memory.swap.max" {
			continue // a kernel without swap
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("limit cgroup %q: %w", name, reason(err)), leaf.Remove())
		}
	}
	if leaf.dir, err = leaf.in.Open("."); err != nil {
		return nil, errors.Join(fmt.Errorf("open cgroup %q: %w", name, reason(err)), leaf.Remove())
	}
	return leaf, nil
}

// Dir is the descriptor for clone3's CLONE_INTO_CGROUP. It belongs to the Leaf.
func (l *Leaf) Dir() *os.File { return l.dir }

func (l *Leaf) read(name string) (string, error) { return content(l.in.Open(name)) }

func (l *Leaf) write(name, value string) error {
	f, err := l.in.OpenFile(name, os.O_WRONLY, 0)
	return stored(f, err, value)
}

// Peak returns the most memory that the leaf used, in bytes (kernel 5.19).
func (l *Leaf) Peak() (int64, error) {
	s, err := l.read("memory.peak")
	if err != nil {
		return 0, reason(err)
	}
	return strconv.ParseInt(s, 10, 64)
}

// Times returns the processor time of all that ran in the leaf, whether or not anybody
// waited for it.
func (l *Leaf) Times() (user, system time.Duration, err error) {
	for name, to := range map[string]*time.Duration{"user_usec": &user, "system_usec": &system} {
		n, err := l.count("cpu.stat", name)
		if err != nil {
			return 0, 0, err
		}
		*to = time.Duration(n) * time.Microsecond
	}
	return user, system, nil
}

// Events returns what the limits did so far.
func (l *Leaf) Events() (e Events, err error) {
	if e.OOMKill, err = l.count("memory.events", "oom_kill"); err != nil {
		return Events{}, err
	}
	e.PIDsMax, err = l.count("pids.events", "max")
	return e, err
}

// count reads one value of a file with lines "name value".
func (l *Leaf) count(file, name string) (int64, error) {
	s, err := l.read(file)
	if err != nil {
		return 0, reason(err)
	}
	for line := range strings.Lines(s) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			return strconv.ParseInt(f[1], 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s: no %q", file, name)
}

// Values reads the limits back, for evidence.
func (l *Leaf) Values() (map[string]string, error) {
	out := make(map[string]string)
	for _, name := range []string{"memory.max", "memory.swap.max", "pids.max", "cpu.max"} {
		s, err := l.read(name)
		if errors.Is(err, os.ErrNotExist) && name == "memory.swap.max" {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read back limits: %w", reason(err))
		}
		out[name] = s
	}
	return out, nil
}

// Remove removes the leaf. It fails while a process is left in it.
func (l *Leaf) Remove() error {
	if l.dir != nil {
		l.dir.Close()
		l.dir = nil
	}
	if l.in != nil {
		l.in.Close()
		l.in = nil
	}
	err := patiently(func() error { return l.tree.Remove(l.name) })
	if err == nil {
		l.tree.Close()
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", reason(err))
	}
	return nil
}
