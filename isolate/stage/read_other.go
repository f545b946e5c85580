//go:build !linux

package stage

import (
	"context"
	"io"
	"os"
	"time"

	"palyra/internal/fault"
)

func unsupported(op string) error {
	return fault.New(fault.Unsupported, "platform_unsupported", op, nil)
}

// Read needs overlayfs, which is Linux's.
func Read(context.Context, *os.File, *os.File, time.Time, Limits) (*List, error) {
	return nil, unsupported("read the layer")
}

// Patch needs a list that Read made.
func (l *List) Patch(context.Context, io.Writer, *os.File, *os.File, string, bool) ([]Skipped, error) {
	return nil, unsupported("write patch")
}
