package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
)

// opener shows an address to a desktop's user in the browser of their choice.
const opener = "/usr/bin/xdg-open"

// consoleOpen prints the console's address with a code. On a desktop the process becomes the
// program that opens it.
func (a *app) consoleOpen(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	c, err := hub.OpenConsole.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	// An address that other machines reach isn't put into arguments, which all users may read: at the
	// door only this machine's connections have a user.
	u, err := url.Parse(c.URL)
	if err != nil || u.Hostname() != "localhost" || inv.Has("json") || inv.Has("print") || a.getenv("DISPLAY") == "" && a.getenv("WAYLAND_DISPLAY") == "" {
		return text(front.Document{"console": c}, "%s\n", c.URL), nil
	}
	if _, err := fmt.Fprintln(a.stdout, c.URL); err != nil {
		return nil, err
	}
	if err := become(opener, c.URL); !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", opener, err)
	}
	return &result{streamed: true}, nil
}
