//go:build !linux

package cell

import (
	"context"

	"palyra/authz/grant"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/probe"
)

// Client is a connection to a palyra-cell. There is none on this platform.
type Client struct{}

func unsupported() error {
	return fault.New(fault.Unsupported, "platform_unsupported", "start palyra-cell", nil).
		WithHint("confined execution exists on Linux only")
}

// Start fails.
func Start(context.Context, Config) (*Client, error) { return nil, unsupported() }

// Run fails.
func (*Client) Run(context.Context, grant.Grant, *isolate.Spec, *isolate.Files) (*isolate.Result, error) {
	return nil, unsupported()
}

// Explain fails.
func (*Client) Explain(context.Context, *isolate.Spec, *isolate.Files) (*Plan, error) {
	return nil, unsupported()
}

// Stats fails.
func (*Client) Stats(context.Context) (Stats, error) { return Stats{}, unsupported() }

// Expect fails.
func (*Client) Expect(context.Context, string, isolate.Limits) (Stats, error) {
	return Stats{}, unsupported()
}

// Past returns true: there is no palyra-cell.
func (*Client) Past(...string) bool { return true }

// Close does nothing.
func (*Client) Close() error { return nil }

// Died returns a channel that is never closed.
func (*Client) Died() <-chan struct{} { return nil }

// Starter starts palyra-cells. There is none on this platform.
type Starter struct{}

// NewStarter fails.
func NewStarter(string) (*Starter, error) { return nil, unsupported() }

// DialStarter fails.
func DialStarter(string) (*Starter, error) { return nil, unsupported() }

// Probe fails.
func (*Starter) Probe(context.Context) (*probe.Report, error) { return nil, unsupported() }

// Gone returns a channel that is never closed.
func (*Starter) Gone() <-chan struct{} { return nil }

// Close does nothing.
func (*Starter) Close() error { return nil }
