package main

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing/fstest"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/capsule"
)

// permitAll is a policy that permits every call.
const permitAll = "@id(\"all\") permit (principal, action, resource);\n"

// cells adds the paths that run a Spec in a palyra-cell, and bwrap.
func (l *lab) cells(s *set) error {
	for _, x := range []struct {
		name string
		tier tier.Tier
	}{{pathCellC, tier.C}, {pathCellB, tier.B}} {
		p, err := l.cell(x.name, x.tier, s.program)
		switch {
		case fault.KindOf(err) == fault.Refused:
			l.miss(x.name, s.program, err)
		case err != nil:
			return err
		default:
			s.paths = append(s.paths, p)
		}
	}
	l.peer(s, pathBwrap, func(bin string) []string { return l.bwrap(bin, s.program) })
	return nil
}

// cell is a call of a running palyra-cell. What is measured begins with a minted
// grant and ends with the evidence of a program that was reaped; the decision and
// the mint are not in it, nor is a pipe: output goes to /dev/null.
func (l *lab) cell(name string, t tier.Tier, program string) (path, error) {
	set, err := policy.LoadFS(fstest.MapFS{"all.cedar": {Data: []byte(permitAll)}})
	if err != nil {
		return path{}, err
	}
	exe, err := os.Open(l.host(program))
	if err != nil {
		return path{}, err
	}
	sum := sha256.New()
	size, err := io.Copy(sum, exe)
	if err != nil {
		exe.Close()
		return path{}, err
	}
	spec := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(name + program)), Tier: t, Argv: []string{l.host(program)}, Env: environment(),
		Cwd: "/workspace", Exec: isolate.File{Path: l.host(program), Digest: canon.Digest(sum.Sum(nil)), Size: size, Pinned: capsule.PinnedSystem},
		Limits: kernel.DefaultLimits(), Stdin: capsule.StdinNone}
	digest, err := spec.Digest()
	if err != nil {
		exe.Close()
		return path{}, err
	}
	key := grant.NewKey()
	auth := authz.New(set, key)
	client, err := cell.Start(context.Background(), cell.Config{Path: filepath.Join(l.bin, "palyra-cell"), Tier: t, Key: key})
	if err != nil {
		exe.Close()
		return path{}, err
	}
	files := &isolate.Files{Exec: exe, Stdout: l.null, Stderr: l.null}
	once := func() (time.Duration, error) {
		d := auth.Decide(policy.Request{Principal: policy.LocalUser("bench"), Action: policy.ToolExecute, Resource: policy.Tool(kernel.ToolRun),
			Context: policy.Context{CapsuleDigest: spec.Capsule}})
		g, err := auth.Grant(d, nil, spec.Capsule, digest, time.Minute)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		res, err := client.Run(context.Background(), g, spec, files)
		took := time.Since(start)
		if err != nil {
			return 0, err
		}
		if err := ran(res, t); err != nil {
			return 0, err
		}
		if t == tier.C && l.inForce == "" {
			l.inForce = inForce(res.Evidence)
		}
		return took, nil
	}
	if _, err := once(); err != nil { // before others may run it at once
		client.Close()
		exe.Close()
		return path{}, err
	}
	return path{name: name, once: once, close: func() error { exe.Close(); return client.Close() }}, nil
}

// ran refuses to count what was not a run of a program under the tier's
// confinement: a fast refusal is no fast call.
func ran(r *isolate.Result, t tier.Tier) error {
	switch {
	case r == nil || r.Evidence == nil || r.Outcome != isolate.Exited || r.Evidence.Exit.Code != 0:
		return fmt.Errorf("run program: it did not exit with status 0: %+v", r)
	case t == tier.C && (r.Evidence.Process.Seccomp != 2 || r.Evidence.Landlock.ABI == 0 || len(r.Evidence.Namespaces.Fresh) < 5):
		return fmt.Errorf("run program: the evidence does not show a tier C cell: %s", inForce(r.Evidence))
	}
	return nil
}

// inForce says in a line what held the program, as its evidence has it.
func inForce(e *evidence.Evidence) string {
	s := fmt.Sprintf("fresh namespaces %s; %d seccomp filters, %d instructions; Landlock ABI %d; capabilities %s; cgroup %s",
		strings.Join(e.Namespaces.Fresh, " "), e.Process.Filters, e.Seccomp.Instructions, e.Landlock.ABI, e.Process.CapEff, e.Cgroup.State)
	if len(e.Degraded) > 0 {
		s += "; degraded: " + strings.Join(e.Degraded, ", ")
	}
	return s
}
