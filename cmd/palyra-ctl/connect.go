package main

import (
	"io"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/paired"
	"palyra/hub"
)

// connect finds the daemon by the flags, the environment and the usual places.
func (a *app) connect(inv *command.Invocation) (hub.Hub, error) {
	t, err := connect.Find(inv, a.getenv)
	if err != nil {
		return nil, err
	}
	return a.dial(t)
}

// dial makes the client of palyrad, or of the hub that this device was paired with.
func dial(stderr io.Writer) func(connect.Target) (hub.Hub, error) {
	return func(t connect.Target) (hub.Hub, error) {
		if t.Device == "" {
			return connect.Dial(t)
		}
		h, err := paired.Dial(paired.Config{Dir: t.Device, URL: t.URL, Warn: func(err error) { front.Complain(stderr, "palyra", err) }})
		if err != nil {
			return nil, err
		}
		return h, nil
	}
}
