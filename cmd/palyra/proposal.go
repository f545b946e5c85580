package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"palyra/cmd/internal/command"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// sealedStdin is how much standard input is read in full, so that it is part of
// what is decided and approved. It is the kernel's own limit.
const sealedStdin = 1 << 20

// proposal turns flags into what is asked for. Nothing is decided here: a flag
// that was not given is left zero and has the kernel's default.
func (a *app) proposal(inv *command.Invocation) (*kernel.Proposal, io.Reader, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, nil, fault.New(fault.Usage, "no_cwd", "find current directory", err)
	}
	p := &kernel.Proposal{
		Tool: kernel.ToolRun, Argv: inv.Operands, Env: command.All[string](inv, "env"), Dir: dir,
		TierFloor: command.Value(inv, "tier", tier.C), Network: command.Value(inv, "network", isolate.NetworkFresh),
		Limits: isolate.Limits{
			Wall:     command.Value(inv, "timeout", time.Duration(0)),
			CPU:      command.Value(inv, "cpu", time.Duration(0)),
			Memory:   command.Value(inv, "memory", int64(0)),
			PIDs:     command.Value(inv, "pids", int64(0)),
			Output:   command.Value(inv, "max-output", int64(0)),
			FileSize: command.Value(inv, "max-file", int64(0)),
		},
	}
	if w, ok := command.Value(inv, "workspace", workspace{}), inv.Has("workspace"); ok {
		if p.Workspace, err = filepath.Abs(w.dir); err != nil {
			return nil, nil, fault.New(fault.Usage, "bad_workspace", fmt.Sprintf("workspace %q", w.dir), err)
		}
		p.WorkspaceReadOnly = w.readOnly
	}
	if !inv.Has("stdin") {
		return p, nil, nil
	}
	mode, stdin, err := stdinMode(a.stdin)
	p.Stdin = mode
	return p, stdin, err
}

// stdinMode reads standard input ahead. What ends within sealedStdin is sealed;
// what is longer, and what comes from a terminal or another device, is declared
// a stream: decided without having been seen, and policy is told so.
func stdinMode(r io.Reader) (kernel.StdinMode, io.Reader, error) {
	if f, ok := r.(*os.File); ok {
		fi, err := f.Stat()
		if err != nil {
			return "", nil, fault.New(fault.Usage, "stdin_unreadable", "stat standard input", err)
		}
		null, _ := os.Stat(os.DevNull)
		if fi.Mode()&os.ModeDevice != 0 && !os.SameFile(fi, null) {
			return kernel.StdinStream, r, nil
		}
	}
	ahead, err := io.ReadAll(io.LimitReader(r, sealedStdin+1))
	if err != nil {
		return "", nil, fault.New(fault.Usage, "stdin_unreadable", "read standard input", err)
	}
	if len(ahead) > sealedStdin {
		return kernel.StdinStream, io.MultiReader(bytes.NewReader(ahead), r), nil
	}
	return kernel.StdinSealed, bytes.NewReader(ahead), nil
}
