package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
)

type lab struct {
	*selfbench.Lab
	bin string // folder of palyra and palyra-cell, absolute
}

func newLab(bin string) (*lab, error) {
	bin, err := filepath.Abs(bin)
	if err != nil {
		return nil, err
	}
	l, err := selfbench.New(filepath.Join(bin, "palyra-cell"))
	if err != nil {
		return nil, err
	}
	return &lab{l, bin}, nil
}

func (l *lab) set(name, program string) (*selfbench.Set, error) {
	if name != setOneShot {
		return l.Set(name, program)
	}
	if program == programNoop {
		return nil, nil // one program is enough: one-shots differ by milliseconds
	}
	s := &selfbench.Set{Paths: l.oneShots(program)}
	if len(s.Paths) < 2 {
		return nil, fmt.Errorf("measure %s: nothing beside the floor", name)
	}
	return s, nil
}

func (l *lab) oneShots(program string) []measure.Path {
	paths := []measure.Path{l.Spawner(pathFloor, func() []string { return []string{l.Host(program)} })}
	add := func(p measure.Path, ok bool) {
		if ok {
			paths = append(paths, p)
		}
	}
	add(l.Bwrap(program))
	state := filepath.Join(l.Dir(), "one-shot")
	for _, x := range []struct{ name, tier string }{{pathExecC, "c"}, {pathExecB, "b"}} {
		add(l.Tried(x.name, program, func() []string {
			return []string{filepath.Join(l.bin, "palyra"), "exec", "--tier", x.tier, "--state", state, "--", program}
		}))
	}
	add(l.Peer(pathFirejail, program, func(bin string) []string {
		return []string{bin, "--quiet", "--noprofile", "--net=none", "--private", "--private-dev", "--caps.drop=all",
			"--nonewprivs", "--seccomp", "--nogroups", "--ipc-namespace", "--", program}
	}))
	oci, err := bundle(l.Dir(), program)
	if err != nil {
		l.Miss(pathCrun+", "+pathRunc, program, errors.New("no bundle: "+err.Error()))
		return paths
	}
	var n atomic.Int64
	id := func() string { return fmt.Sprintf("palyra-bench-%d-%d", os.Getpid(), n.Add(1)) }
	root := filepath.Join(l.Dir(), "oci-state")
	add(l.Peer(pathCrun, program, func(bin string) []string {
		return []string{bin, "--root", root, "--cgroup-manager=disabled", "run", "--bundle", oci, id()}
	}))
	add(l.Peer(pathRunc, program, func(bin string) []string {
		return []string{bin, "--root", root, "run", "--bundle", oci, id()}
	}))
	return paths
}
