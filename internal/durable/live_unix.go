//go:build unix && !linux

package durable

import (
	"errors"
	"fmt"

	"palyra/internal/fault"
)

// errLive is the answer where the kernel has no locks that belong to a description.
var errLive = errors.New("open file description locks are a feature of Linux")

// Mark refuses: not on this platform.
func (l *Live) Mark(string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("mark work in %q", l.path), errLive)
}

// Unmark does nothing.
func (l *Live) Unmark(string) {}

// Marked refuses: not on this platform.
func (l *Live) Marked([]string) (map[string]bool, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", fmt.Sprintf("look for work in %q", l.path), errLive)
}
