package main

import (
	"context"
	"sync"

	"palyra/cmd/internal/installed"
	"palyra/isolate/egress/client"
)

// broker starts the palyra-egress that is installed beside this palyra, once a call with hosts is
// about to need it.
type broker struct {
	executable func() (string, error)

	once    sync.Once
	process *client.Process
	err     error
}

var _ client.Broker = (*broker)(nil)

// Ready starts palyra-egress. The kernel asks before a person is asked.
func (b *broker) Ready(context.Context) error {
	b.once.Do(func() {
		exe, err := b.executable()
		if err == nil {
			exe, err = installed.Find(exe, "palyra-egress")
		}
		if err == nil {
			b.process, err = client.Start(exe)
		}
		b.err = err
	})
	return b.err
}

// Open implements client.Broker.
func (b *broker) Open(ctx context.Context, o *client.Order) (*client.Session, error) {
	if err := b.Ready(ctx); err != nil {
		return nil, err
	}
	return b.process.Open(ctx, o)
}

// Close ends palyra-egress, if it was started.
func (b *broker) Close() error {
	if b.process == nil {
		return nil
	}
	return b.process.Close()
}
