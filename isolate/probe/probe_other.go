//go:build !linux

package probe

import (
	"context"
	"errors"

	"palyra/internal/fault"
)

// Run returns fault.Unsupported: the controls are those of Linux.
func Run(context.Context, string) (*Report, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "probe host", errors.New("only Linux is probed"))
}

// Main returns 1: there is nothing to probe.
func Main([]string) int { return 1 }
