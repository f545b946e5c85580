//go:build !linux

package landlock

import (
	"errors"
	"os"

	"palyra/internal/fault"
)

// ABI returns fault.Unsupported: Landlock is part of Linux.
func ABI() (int, error) {
	return 0, fault.New(fault.Unsupported, "platform_unsupported", "read landlock ABI", errors.New("only Linux has Landlock"))
}

// Build returns fault.Unsupported: Landlock is part of Linux.
func Build(Ruleset) (*os.File, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "build landlock ruleset", errors.New("only Linux has Landlock"))
}
