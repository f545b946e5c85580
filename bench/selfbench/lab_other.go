//go:build !linux

package selfbench

import (
	"errors"

	"palyra/bench/measure"
	"palyra/internal/fault"
)

// Lab makes no paths on this platform: cells exist on Linux only.
type Lab struct {
	Absent []measure.Absent
	Tools  map[string]string

	dir string
}

// New returns fault.Unsupported.
func New(string) (*Lab, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "measure", errors.New("cells exist on Linux only"))
}

// Close does nothing.
func (*Lab) Close() error { return nil }

// Programs returns none.
func (*Lab) Programs() []string { return nil }

// InForce returns "".
func (*Lab) InForce() string { return "" }

// Set returns fault.Unsupported.
func (*Lab) Set(string, string) (*Set, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "measure", nil)
}

// Waiting returns fault.Unsupported.
func (*Lab) Waiting(string, int) (*Waiting, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "measure waiting cells", nil)
}

// Miss notes that a path is left out.
func (l *Lab) Miss(path, program string, why error) {
	l.Absent = append(l.Absent, measure.Absent{Path: path, Program: program, Why: why.Error()})
}
