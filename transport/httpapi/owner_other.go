//go:build !linux

package httpapi

import (
	"errors"
	"net/netip"
	"os"

	"palyra/internal/fault"
)

// Owners is for Linux.
type Owners struct{}

// OpenOwners is for Linux.
func OpenOwners(...*os.File) (*Owners, error) {
	return nil, fault.New(fault.Unsupported, "platform_unsupported", "open console", errors.New("this platform tells no owner of a connection"))
}

func (*Owners) of(_, _ netip.AddrPort) (uint32, error) {
	return 0, fault.New(fault.Unsupported, "platform_unsupported", "find the owner of a connection", nil)
}

func (*Owners) foreign(_, _ netip.Addr) bool { return false }
