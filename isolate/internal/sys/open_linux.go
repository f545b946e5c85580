package sys

import (
	"errors"

	"golang.org/x/sys/unix"
)

// unshaken opens again for as long as a signal interrupts it, as opening on a file
// system of the network or of FUSE may be: Go's scheduler sends signals, and not
// every such file system has the kernel restart the call.
func unshaken(open func() (int, error)) (fd int, err error) {
	for {
		if fd, err = open(); !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}
