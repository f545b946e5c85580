//go:build !linux

package egress

import (
	"context"
	"net"

	"palyra/internal/fault"
)

// Serve fails: the namespaces are Linux's.
func Serve(context.Context, *net.UnixConn, Config) error {
	return fault.New(fault.Unsupported, "platform_unsupported", "serve egress", nil)
}
