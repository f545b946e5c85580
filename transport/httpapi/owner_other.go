//go:build !linux

package httpapi

import (
	"errors"
	"net/netip"

	"palyra/internal/fault"
)

// owners is for Linux.
type owners struct{}

func openOwners() (*owners, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "open console", errors.New("this platform tells no owner of a connection"))
}

func (*owners) of(_, _ netip.AddrPort) (uint32, error) {
	return 0, fault.New(fault.Unsupported, "platform_unsupported", "find the owner of a connection", nil)
}
