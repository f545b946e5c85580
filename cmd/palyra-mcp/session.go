package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"palyra/hub"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// callIn makes a call in palyrad's session for the lines of one name (shell.layer), so that each
// finds in the layer what the last one wrote; each without a name has a session of its own. The
// session's id lies beside the links. palyrad ends the session when it was unused for long.
func (a *app) callIn(ctx context.Context, s *shell, h hub.Hub, c hub.NewCall) (hub.Run, error) {
	if s.layer == "" {
		return hub.Call.Do(ctx, h, hub.Caller{}, c)
	}
	c.Parallel = true
	for tries := 0; ; tries++ {
		id, err := a.sessionOf(ctx, s, h, c.Session)
		if fault.KindOf(err) == fault.Denied { // a token need not have the right to sessions
			c.Session = ""
			return hub.Call.Do(ctx, h, hub.Caller{}, c)
		}
		if err != nil {
			return hub.Run{}, err
		}
		c.Session = id
		r, err := hub.Call.Do(ctx, h, hub.Caller{}, c)
		if tries > 2 || !errors.Is(err, fault.ErrNoSession) {
			return r, err
		}
	}
}

// sessionOf returns the kept session. If that is lost, or there is none, it makes one.
func (a *app) sessionOf(ctx context.Context, s *shell, h hub.Hub, lost string) (string, error) {
	dir, err := a.folder()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, s.layer+".session")
	kept := func() (string, error) {
		b, err := durable.ReadPrivate(path, 256)
		if errors.Is(err, fs.ErrNotExist) {
			return "", nil
		}
		if id := string(b); err == nil && ident.Check(ident.Session, id) == nil && id != lost {
			now := time.Now() // it isn't a day old
			return id, os.Chtimes(path, now, now)
		}
		return "", err
	}
	if id, err := kept(); id != "" || err != nil {
		return id, err
	}
	done, err := a.turn(ctx, s)
	if err != nil {
		return "", err
	}
	defer done()
	if id, err := kept(); id != "" || err != nil { // another line was faster
		return id, err
	}
	n, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, hub.NewSession{Title: "palyra " + s.layer})
	if err != nil {
		return "", err
	}
	if err := durable.WriteFile(path, []byte(n.ID), 0o600); err != nil {
		return "", fault.New(fault.Unavailable, "io_error", fmt.Sprintf("keep the session of %q", s.layer), err)
	}
	return n.ID, nil
}
