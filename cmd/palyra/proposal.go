package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/programs"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel"
)

// sealedStdin bounds the standard input that palyra reads in full, so that it is part of
// the decision and the approval. It is the kernel's own limit.
const sealedStdin = 1 << 20

// proposal turns flags into a proposal. It decides nothing: a missing flag stays zero and
// gets the kernel's default.
func (a *app) proposal(inv *command.Invocation) (*kernel.Proposal, io.Reader, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, nil, fault.New(fault.Usage, "invalid_input", "find current directory", err)
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
			Disk:     command.Value(inv, "disk", int64(0)),
			Inodes:   command.Value(inv, "files", int64(0)),
		},
	}
	if w, ok := command.Value(inv, "workspace", programs.Workspace{}), inv.Has("workspace"); ok {
		if p.Workspace, err = filepath.Abs(w.Dir); err != nil {
			return nil, nil, fault.New(fault.Usage, "workspace_unusable", fmt.Sprintf("workspace %q", w.Dir), err)
		}
		p.WorkspaceReadOnly, p.WorkspaceStaged, p.WorkspaceOwnPath = w.ReadOnly, w.Staged, w.OwnPath
	}
	for _, m := range command.All[string](inv, "mount") {
		if m, err = filepath.Abs(m); err != nil {
			return nil, nil, fault.New(fault.Usage, "workspace_unusable", fmt.Sprintf("mount %q", m), err)
		}
		p.Mounts = append(p.Mounts, m)
	}
	p.Caches = command.All[string](inv, "cache")
	p.Secrets = command.All[string](inv, "secret")
	p.EgressHosts = command.All[string](inv, "egress")
	p.EgressInspect, p.EgressSecrets = command.All[string](inv, "inspect"), command.All[string](inv, "egress-secret")
	if len(p.EgressHosts)+len(p.EgressInspect)+len(p.EgressSecrets) > 0 && inv.Has("network") && p.Network == isolate.NetworkFresh {
		return nil, nil, fault.New(fault.Usage, "bad_command", "read flags", errors.New("in the network fresh nothing is reached, and --egress, --inspect and --egress-secret name hosts")).
			WithHint("leave --network out: a call with hosts has a network of its own, with 127.0.0.1 and ::1")
	}
	p.Layer = command.Value(inv, "layer", "")
	if inv.Has("tty") {
		p.TTY = a.tty()
	} else if !inv.Has("stdin") {
		return p, nil, nil
	}
	mode, stdin, err := stdinMode(a.stdin)
	p.Stdin = mode
	return p, stdin, err
}

// stdinMode reads standard input ahead. Input that ends within sealedStdin is sealed.
// Longer input, and input from a terminal or another device, is declared a stream: policy
// decides without having seen it, and is told so.
func stdinMode(r io.Reader) (kernel.StdinMode, io.Reader, error) {
	if f, ok := r.(*os.File); ok {
		fi, err := f.Stat()
		if err != nil {
			return "", nil, fault.New(fault.Usage, "bad_file", "stat standard input", err)
		}
		null, _ := os.Stat(os.DevNull)
		if fi.Mode()&os.ModeDevice != 0 && !os.SameFile(fi, null) {
			return kernel.StdinStream, r, nil
		}
	}
	ahead, err := io.ReadAll(io.LimitReader(r, sealedStdin+1))
	if err != nil {
		return "", nil, fault.New(fault.Usage, "bad_file", "read standard input", err)
	}
	if len(ahead) > sealedStdin {
		return kernel.StdinStream, io.MultiReader(bytes.NewReader(ahead), r), nil
	}
	return kernel.StdinSealed, bytes.NewReader(ahead), nil
}
