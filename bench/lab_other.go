//go:build !linux

package main

import "palyra/bench/selfbench"

// lab measures nothing on this platform: cells exist on Linux only.
type lab struct{ *selfbench.Lab }

func newLab(bin string) (*lab, error) {
	l, err := selfbench.New(bin)
	return &lab{l}, err
}

func (l *lab) set(name, program string) (*selfbench.Set, error) { return l.Set(name, program) }
