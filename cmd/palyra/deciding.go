package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/cmd/internal/local"
	"palyra/cmd/internal/programs"
	socket "palyra/hub/place"
	"palyra/internal/fault"
	"palyra/isolate/stage"
)

// maxConfig bounds what palyra-ctl prints of a configuration.
const maxConfig = 4 << 20

// deciding returns the policy directory for a call that works on a layer, "" for the built-in set.
// Apply and undo have no flag to ask for palyrad's policies: a workspace of the user's palyrad has
// them, as palyra exec there does. The socket decides and not an answer, see handsOver.
func (a *app) deciding(ctx context.Context, inv *command.Invocation, state, layer string) (string, error) {
	name := inv.Command.Name
	at := socket.OwnSocket(a.getenv)
	if name != local.ChangesApply && name != local.ChangesUndo || inv.Has("no-daemon") || inv.Has("state") || inv.Has("policy") || at == "" {
		return command.Value(inv, "policy", ""), nil
	}
	info, err := stage.Describe(state, layer)
	if err != nil {
		return "", err
	}
	dir, known, err := a.policiesAt(ctx, at, info.Source.Path)
	if err != nil {
		return "", err
	}
	if known {
		from := "its policy directory " + dir
		if dir == "" {
			from = "the built-in policies"
		}
		fmt.Fprintf(a.stderr, "palyra: as for the palyrad at %s, %s decides this; --no-daemon has the built-in ones do it\n", front.Escape(at), front.Escape(from))
	}
	return dir, nil
}

// policiesAt asks palyrad for its policy directory, and whether a folder is a workspace of its own.
// palyra-ctl asks, since palyra has no network.
func (a *app) policiesAt(ctx context.Context, at, workspace string) (dir string, known bool, err error) {
	op := "ask palyrad whose policies decide"
	exe, err := a.executable()
	if err == nil {
		exe, err = installed.Find(exe, programs.Client)
	}
	if err != nil {
		return "", false, fault.New(fault.Refused, "helper_unusable", op, err)
	}
	var out, said bytes.Buffer
	cmd := exec.CommandContext(ctx, exe, "config", "show", "--socket", at, "--json")
	cmd.Stdout, cmd.Stderr = &bounded{&out, maxConfig}, &bounded{&said, 4096}
	if err := cmd.Run(); err != nil {
		if line, _, _ := strings.Cut(said.String(), "\n"); line != "" {
			err = errors.New(strings.TrimPrefix(line, "palyra: "))
		}
		return "", false, fault.New(fault.Unavailable, "daemon_unreachable", op, err).
			WithHint("start it (palyra setup palyrad), or --no-daemon has the built-in policies decide, --policy DIR those there")
	}
	var doc struct {
		Settings []struct {
			Key   string
			Value any
		}
	}
	if err := json.Unmarshal(out.Bytes(), &doc); err != nil {
		return "", false, fault.New(fault.Internal, "internal", op, err)
	}
	mine, err := os.Stat(workspace)
	if err != nil {
		return "", false, fault.New(fault.Usage, "workspace_unusable", op, err)
	}
	for _, s := range doc.Settings {
		value, _ := s.Value.(string)
		switch {
		case s.Key == "policy.dir":
			dir = value
		case strings.HasPrefix(s.Key, "workspaces.") && strings.HasSuffix(s.Key, ".path"):
			if fi, err := os.Stat(value); err == nil && os.SameFile(fi, mine) {
				known = true
			}
		}
	}
	if !known {
		return "", false, nil
	}
	return dir, true, nil
}

// bounded takes so many bytes, and no more.
type bounded struct {
	w    io.Writer
	left int
}

// Write implements io.Writer.
func (b *bounded) Write(p []byte) (int, error) {
	if len(p) > b.left {
		return 0, errors.New("too much")
	}
	b.left -= len(p)
	return b.w.Write(p)
}
