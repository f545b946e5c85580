//go:build !linux

package terminal

import (
	"context"
	"os"
)

const noctty = 0

// stream is a standard stream that may be a terminal: every device is taken for
// one. There are no locks here.
type stream struct{}

func streamOf(f *os.File) *stream {
	if st, err := f.Stat(); err == nil && st.Mode()&os.ModeCharDevice != 0 {
		return &stream{}
	}
	return nil
}

func (*stream) enter(context.Context) (func(), error) { return func() {}, nil }

type hold struct{}

func (*hold) close() {}

func take(context.Context, *os.File) (*hold, error) { return nil, nil }

func size(*os.File) (rows, columns int) { return 0, 0 }

func discard(*os.File) {}
