//go:build !linux

package terminal

import (
	"context"
	"errors"
	"os"

	"palyra/internal/fault"
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

// modes would be a terminal's. No Screen is made here.
type modes struct{}

func modesOf(*os.File) (modes, error) {
	return modes{}, fault.New(fault.Unsupported, "platform_unsupported", "draw on terminal", errors.New("only Linux")).WithHint(Elsewhere)
}

func setModes(*os.File, modes) error { return nil }

func single(m modes) modes { return m }

func through(m modes) modes { return m }

func sameTerminal(a, b *os.File) bool { return false }

func reopen(*os.File) (*os.File, error) { return nil, errors.ErrUnsupported }

var screenSignals = []os.Signal{}

func deed(os.Signal) int { return redraws }

func halt() {}

func foreground(*os.File) bool { return true }
