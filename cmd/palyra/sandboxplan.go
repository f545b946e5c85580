package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/kernel"
	"palyra/kernel/account"
)

func (a *app) sandboxExplain(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	p, stdin, err := a.proposal(inv)
	if err != nil {
		return nil, err
	}
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	helper, err := a.cell()
	if err != nil {
		return nil, err
	}
	c, err := kernel.Confine(ctx, kernel.Config{StateDir: state, PolicyDir: command.Value(inv, "policy", ""), CellPath: helper}, *p, stdin)
	if err != nil {
		return nil, err
	}
	if c.Plan == nil {
		return nil, fault.New(fault.Internal, "internal", "explain confinement", errors.New("the runner has no plan"))
	}
	tape := &c.Plan.Tape
	if command.Value(inv, "warm", false) {
		if tape = c.Plan.Warm; tape == nil {
			return nil, fault.New(fault.Usage, "bad_command", "explain confinement", errors.New("no cell waits for calls like this one")).
				WithHint("cells wait for calls at tier C in a private workspace, of programs below /usr and of sealed ones")
		}
	}
	return &front.Report{Text: confinementText(c, tape), Fields: front.Document{"decision": decisionFields(&c.Decision, c.Fix), "plan": c.Plan}}, nil
}

// confinementText returns a plan for people.
func confinementText(c *kernel.Confinement, tape *cell.PlanTape) string {
	p := c.Plan
	var b strings.Builder
	line := func(name, format string, v ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", name, front.Escape(fmt.Sprintf(format, v...)))
	}
	line("policy", "%s: %s", c.Decision.Effect, c.Decision.Reason)
	line("tier", "%s (%s)", p.Tier, p.Executor)
	line("network", "%s", networkText(p))
	line("namespaces", "%s", account.OrNone(p.Namespaces))
	line("limits", "%s", account.LimitsText(p.Limits))
	if p.Cgroup.State != "" {
		line("cgroup", "%s", p.Cgroup.State)
	}
	for _, d := range p.Degraded {
		line("degraded", "%s", d)
	}
	if len(p.Template) > 0 {
		fmt.Fprintf(&b, "mounts of the template, before the steps:\n")
	}
	for _, m := range p.Template {
		fmt.Fprintf(&b, "  %s\n", front.Escape(m))
	}
	fmt.Fprintf(&b, "steps %s:\n", tape.Digest)
	for _, s := range tape.Steps {
		fmt.Fprintf(&b, "  %3d %s%s\n        %s%s\n", s.Number, strings.Repeat("  ", s.Depth), front.Escape(s.Call), strings.Repeat("  ", s.Depth), front.Escape(s.Why))
	}
	l := &p.Landlock
	fmt.Fprintf(&b, "landlock ABI %d, files %#x, network %#x, scopes %#x:\n", l.ABI, l.HandledFS, l.HandledNet, l.Scoped)
	for _, r := range l.Rules {
		fmt.Fprintf(&b, "  %s\n", front.Escape(r))
	}
	f := &p.Seccomp
	fmt.Fprintf(&b, "system calls %s, policy %s, %d instructions:\n", f.Name, f.Policy, f.Instructions)
	for _, r := range f.Rules {
		fmt.Fprintf(&b, "  %s: %s\n        %s\n", strings.Join(r.Calls, " "), strings.Join(r.Does, "; "), r.Why)
	}
	fmt.Fprintf(&b, "  any other: %s; a number that is no system call: %s\n", f.Default, f.Unknown)
	return b.String()
}

func networkText(p *cell.Plan) string {
	switch p.Network {
	case "":
		return "the host's, where the filter lets the program make no socket"
	case isolate.NetworkVoid:
		return "void: shared and empty; the filter lets the program make no socket"
	case isolate.NetworkLoopback:
		return "loopback: of this call alone, with a loopback interface that is up, and no other"
	case isolate.NetworkSession:
		return "session: of the running calls of one session, with a loopback interface that is up, and no other"
	case isolate.NetworkHost:
		return "host: THE HOST'S, and nothing is enforced: no sandbox of the network"
	case isolate.NetworkPreflight:
		return "preflight: THE HOST'S; the call's hosts are looked up before it begins, and then only ports of TCP are enforced"
	case isolate.NetworkEgress:
		return "egress: of this call alone, with a loopback interface that is up, and no other; palyra-egress stands for the hosts that it may reach"
	}
	return p.Network + ": of this call alone, with a loopback interface that is down"
}
