package main

import (
	"errors"
	"fmt"
	"path/filepath"
)

// sandbox turns an attempt into the command line of a sandbox.
type sandbox interface {
	command(s *stage, o *options, argv []string) ([]string, error)
}

var (
	_ sandbox = palyra{}
	_ sandbox = bwrap{}
)

// palyra is the sandbox under test.
type palyra struct {
	binary string
	cell   string // palyra-cell, for warm
	gate   string // the launcher whose calls are an MCP server's
	warm   string // the launcher with a pool and sessions, which can also approve
}

func (p palyra) command(s *stage, o *options, argv []string) ([]string, error) {
	binary := p.binary
	if o.binary != "" {
		binary = o.binary
	}
	c := []string{binary, "exec"}
	switch s.mode {
	case modeWarm:
		c = []string{p.warm, "--cell", p.cell}
	case modeVoid:
		c = append(c, "--network", "void")
	case modeLoop:
		c = append(c, "--network", "loopback")
	case modeEgress:
		c = append(c, "--egress", egressHost)
	case modePreflight:
		c = append(c, "--network", "preflight", "--egress", preflightHost)
	}
	if o.reaches() {
		return p.reaching(s, o, argv), nil
	}
	if o.session != "" {
		c = []string{p.warm, "--cell", p.cell, "--in", o.session}
		if o.beside != nil {
			c = append(c, "--session")
		}
	}
	if s.mode == modeSession && o.session == "" || o.beside != nil {
		beside := o.beside
		if beside == nil {
			beside = s.sitter().words
		}
		if o.session == "" {
			c = []string{p.warm, "--cell", p.cell, "--session"}
		}
		if o.apart {
			c = append(c, "--apart")
		}
		for _, w := range append([]string{s.b.attack}, beside...) {
			c = append(c, "--beside", w)
		}
	}
	if o.asked {
		c = []string{p.warm, "--cell", p.cell, "--asked"}
		switch s.mode {
		case modeVoid:
			c = append(c, "--network", "void")
		case modeLoop:
			c = append(c, "--network", "loopback")
		}
	}
	return p.granting(s, o, c, argv), nil
}

// reaches reports whether the call, or the one beside it, may reach hosts.
func (o *options) reaches() bool { return len(o.egress)+len(o.others) > 0 }

// reaching is the command line of a call with hosts, or beside one: of a session in mode session,
// else of palyra exec. Beside another the call is one of the same session. If it has no hosts
// itself it's in the session's network.
func (p palyra) reaching(s *stage, o *options, argv []string) []string {
	c := []string{p.binary, "exec"}
	switch {
	case s.mode == modeGateway:
		c = []string{p.gate, "--palyra", p.binary}
	case s.mode == modeSession || o.beside != nil:
		c = []string{p.warm, "--cell", p.cell, "--in", "one"}
	}
	switch {
	case o.beside != nil && len(o.egress) == 0:
		c = append(c, "--session")
	case o.beside != nil && len(o.others) == 0:
		c = append(c, "--beside-session")
	}
	for _, r := range o.egress {
		c = append(c, "--egress", r)
	}
	for _, r := range o.inspect {
		c = append(c, "--inspect", r)
	}
	for _, u := range o.uses {
		c = append(c, "--egress-secret", u)
	}
	for _, r := range o.others {
		c = append(c, "--beside-egress", r)
	}
	if o.beside != nil {
		for _, w := range append([]string{s.b.attack}, o.beside...) {
			c = append(c, "--beside", w)
		}
	}
	return p.granting(s, o, c, argv)
}

// granting adds what is granted, and the command.
func (p palyra) granting(s *stage, o *options, c, argv []string) []string {
	policy := s.user.policy
	if o.policy != "" {
		policy = o.policy
	}
	c = append(c, "--tier", s.tier, "--state", s.user.state, "--policy", policy, "--timeout", o.timeout.String())
	if o.tty || s.mode == modeTTY {
		c = append(c, "--tty")
	}
	if o.workspace != "" {
		w := o.workspace
		switch {
		case o.readOnly:
			w += ":ro"
		case o.layer != "" || s.mode == modeStaged:
			w += ":staged"
		}
		c = append(c, "--workspace", w)
	}
	if o.layer != "" {
		c = append(c, "--layer", o.layer)
	}
	for _, name := range o.caches {
		c = append(c, "--cache", name)
	}
	for _, m := range o.mounts {
		c = append(c, "--mount", m)
	}
	for _, e := range o.env {
		c = append(c, "--env", e)
	}
	for _, f := range []struct{ name, value string }{{"--cpu", o.cpu}, {"--memory", o.memory}, {"--pids", o.pids},
		{"--max-output", o.maxOutput}, {"--max-file", o.maxFile}, {"--receipt", o.receipt}} {
		if f.value != "" {
			c = append(c, f.name, f.value)
		}
	}
	return append(append(c, "--"), argv...)
}

// bwrap is bubblewrap as agents commonly run it: the whole host read-only, one
// directory writable, three namespaces. It shows that the battery can find
// something: the attack table says which cases it leaves open.
type bwrap struct{}

func (bwrap) command(s *stage, o *options, argv []string) ([]string, error) {
	if o.binary != "" || o.asked || o.reaches() || s.tier != "c" {
		return nil, errors.New("bwrap has no such configuration")
	}
	c := []string{"timeout", "-s", "KILL", fmt.Sprint(o.timeout.Seconds()), "bwrap", "--ro-bind", "/", "/", "--dev", "/dev", "--proc", "/proc",
		"--unshare-user", "--unshare-pid", "--unshare-net"}
	if o.workspace != "" {
		c = append(c, "--bind", o.workspace, o.workspace, "--chdir", o.workspace)
	} else {
		own := filepath.Join(s.dir, "private")
		if err := s.mkdir(own, 0o755); err != nil {
			return nil, err
		}
		c = append(c, "--bind", own, own, "--chdir", own)
	}
	for _, e := range o.env {
		name, value := cut(e)
		c = append(c, "--setenv", name, value)
	}
	return append(append(c, "--"), argv...), nil
}
