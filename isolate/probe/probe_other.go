//go:build !linux

package probe

import (
	"context"

	"palyra/internal/fault"
)

// Run returns fault.Unsupported: the controls are those of Linux.
func Run(context.Context, string) (*Report, error) {
	return nil, fault.New(fault.Unsupported, "probe_unsupported", "probe host", nil)
}

// Main returns 1: there is nothing to probe.
func Main([]string) int { return 1 }
