//go:build !linux

package main

import (
	"errors"

	"palyra/internal/fault"
)

// lab measures nothing here: cells exist on Linux only.
type lab struct {
	programs []string
	absent   []absent
	tools    map[string]string
	inForce  string
}

func newLab(options, string) (*lab, error) {
	return nil, fault.New(fault.Unsupported, "bench", "measure", errors.New("cells exist on Linux only"))
}

func (*lab) close() {}

func (*lab) set(string, string) (*set, error) {
	return nil, fault.New(fault.Unsupported, "bench", "measure", nil)
}
