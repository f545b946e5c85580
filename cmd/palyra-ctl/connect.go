package main

import (
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/connect"
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
