//go:build !linux

package selfconfine

import (
	"syscall"

	"palyra/internal/fault"
)

// Apply fails: the controls are Linux's.
func Apply(Config) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "confine this process", nil)
}

// LeaveRoot fails likewise.
func LeaveRoot(syscall.Signal) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "give up root", nil)
}

// Report says that nothing is in force.
func Report() Controls {
	return Controls{Controls: []Control{{Name: "platform", Detail: "this platform has none of the controls"}}}
}
