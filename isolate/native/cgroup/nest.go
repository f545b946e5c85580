package cgroup

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Nest is the subtree of one palyra-cell. Its owner is the process that starts
// palyra-cell, and outlives it: that one calls Remove.
type Nest struct {
	path string
	dir  *os.File
}

// Nest makes a subtree that hands the controllers on.
func (t *Tree) Nest() (*Nest, error) {
	name := "cell-" + strings.ToLower(rand.Text())
	if err := t.mkdir(name); err != nil {
		return nil, fmt.Errorf("make cgroup: %w", reason(err))
	}
	n := &Nest{path: filepath.Join(t.dir, name)}
	err := write(n.path, "cgroup.subtree_control", everything())
	if err == nil {
		err = (&Tree{dir: n.path, testOnlyMade: t.testOnlyMade}).mkdir(own)
	}
	if err == nil {
		n.dir, err = os.Open(filepath.Join(n.path, own))
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make cgroup: %w", reason(err)), n.Remove())
	}
	return n, nil
}

// Dir is the descriptor of the group that palyra-cell is to be born in
// (CLONE_INTO_CGROUP). It belongs to the Nest.
func (n *Nest) Dir() *os.File { return n.dir }

// Remove kills every process in the subtree and removes it.
func (n *Nest) Remove() error {
	if n.dir != nil {
		n.dir.Close()
		n.dir = nil
	}
	if err := write(n.path, "cgroup.kill", "1"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("kill cgroup: %w", reason(err))
	}
	groups, err := os.ReadDir(n.path)
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", reason(err))
	}
	for _, g := range groups {
		if g.IsDir() {
			if err := remove(filepath.Join(n.path, g.Name())); err != nil {
				return fmt.Errorf("remove cgroup: %w", reason(err))
			}
		}
	}
	if err := remove(n.path); err != nil {
		return fmt.Errorf("remove cgroup: %w", reason(err))
	}
	return nil
}

// patience bounds how long remove waits for the dead. Nobody waits for remove: it
// comes after the answer, or in what palyra-cell is given to end in.
const patience = 4 * time.Second

// remove removes a group. The kernel may count a process that was killed, or
// even reaped, as a member until it was scheduled for the last time.
func remove(path string) error { return patiently(func() error { return os.Remove(path) }) }

func patiently(remove func() error) error {
	for pause := time.Millisecond; ; pause *= 2 {
		err := remove()
		if !errors.Is(err, syscall.EBUSY) || pause > patience/2 {
			return err
		}
		time.Sleep(pause)
	}
}
