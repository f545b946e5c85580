//go:build !linux

package landlock

import (
	"os"

	"palyra/internal/fault"
)

// ABI returns fault.Unsupported: Landlock is part of Linux.
func ABI() (int, error) {
	return 0, fault.New(fault.Unsupported, "landlock_unsupported", "read landlock ABI", nil)
}

// Build returns fault.Unsupported: Landlock is part of Linux.
func Build(Ruleset) (*os.File, error) {
	return nil, fault.New(fault.Unsupported, "landlock_unsupported", "build landlock ruleset", nil)
}
