//go:build !linux

package client

import (
	"errors"
	"net"

	"palyra/internal/fault"
)

// listensForUs refuses: palyrad is for Linux.
func listensForUs(net.Conn) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "look who listens", errors.New("this platform tells no peer credentials"))
}
