//go:build !linux

package client

import (
	"context"
	"net"

	"palyra/internal/fault"
)

func unsupported() error {
	return fault.New(fault.Unsupported, "platform_unsupported", "start palyra-egress", nil).
		WithHint("calls with a network of their own exist on Linux only")
}

// Process is a palyra-egress that this process started. There is none on this platform.
type Process struct{}

// Start fails.
func Start(string) (*Process, error) { return nil, unsupported() }

// Keep fails.
func Keep(string) (*Process, error) { return nil, unsupported() }

// Open fails.
func (*Process) Open(context.Context, *Order) (*Session, error) { return nil, unsupported() }

// Close does nothing.
func (*Process) Close() error { return nil }

// Listener is where a palyra-egress connects. There is none on this platform.
type Listener struct{}

// Listen accepts nothing and closes l.
func Listen(l *net.UnixListener) *Listener {
	l.Close()
	return &Listener{}
}

// Ready says that there is none.
func (*Listener) Ready(context.Context) error { return unsupported() }

// Open fails.
func (*Listener) Open(context.Context, *Order) (*Session, error) { return nil, unsupported() }

// Close does nothing.
func (*Listener) Close() error { return nil }

var (
	_ Broker = (*Process)(nil)
	_ Broker = (*Listener)(nil)
)
