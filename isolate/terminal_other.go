//go:build !linux

package isolate

import (
	"errors"
	"os"

	"palyra/internal/fault"
)

// TerminalLine returns an error: there are no terminals for calls on this platform.
func TerminalLine() (ours, theirs *os.File, err error) {
	return nil, nil, fault.New(fault.Unsupported, "platform_unsupported", "make a terminal", errors.New("only Linux"))
}

// TakeTerminal returns an error, as TerminalLine does.
func TakeTerminal(*os.File) (*os.File, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "make a terminal", errors.New("only Linux"))
}
