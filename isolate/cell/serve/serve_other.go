//go:build !linux

package serve

import (
	"palyra/internal/fault"
)

func unsupported() error {
	return fault.New(fault.Unsupported, "platform_unsupported", "serve palyra", nil).
		WithHint("confined execution exists on Linux only")
}

// Cell fails: palyra-cell exists on Linux only.
func Cell(int) error { return unsupported() }

// Starter fails: palyra-cell exists on Linux only.
func Starter(int) error { return unsupported() }
