//go:build !linux

package main

import "palyra/kernel/selfbench"

// lab measures nothing here: cells exist on Linux only.
type lab struct{ *selfbench.Lab }

func newLab(bin string) (*lab, error) {
	l, err := selfbench.New(bin)
	return &lab{l}, err
}

func (l *lab) set(name, program string) (*selfbench.Set, error) { return l.Set(name, program) }
