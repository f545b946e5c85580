//go:build !linux

package kernel

import (
	"errors"
	"os"
)

// errEnded is no error: no call has a terminal on this platform.
var errEnded = errors.New("the terminal has ended")

func setSize(*os.File, [2]uint16) error { return errors.ErrUnsupported }
