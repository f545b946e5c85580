package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/installed"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// loadPolicy loads dir, or the built-in set if dir is empty.
func loadPolicy(dir string) (*policy.Set, error) {
	if dir == "" {
		return policy.Default(), nil
	}
	return policy.Load(dir)
}

func operand(inv *command.Invocation) string {
	if len(inv.Operands) == 0 {
		return ""
	}
	return inv.Operands[0]
}

func (a *app) policyCheck(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(operand(inv))
	if err != nil {
		return nil, err
	}
	policies := set.Policies()
	tests := len(set.RunTests())
	var b strings.Builder
	fmt.Fprintf(&b, "policy set %s: %d policies, %d tests passed\n", set.Digest(), len(policies), tests)
	for _, p := range policies {
		fmt.Fprintf(&b, "  %-6s %s (%s:%d)\n", p.Effect, front.Escape(p.ID), front.Escape(p.File), p.Line)
	}
	lists, about := front.Document{}, front.Document{}
	for _, l := range set.Hosts() {
		var rules []string
		for _, r := range l.Rules {
			rules = append(rules, r.String())
		}
		lists[l.Name] = rules
		about[l.Name] = front.Document{"version": l.Version, "digest": l.Digest()}
		fmt.Fprintf(&b, "  hosts  @%s: %s\n", l.Name, strings.Join(rules, ", "))
		fmt.Fprintf(&b, "         %s%s\n", listVersion(l), l.Digest())
	}
	return &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "policies": policies, "hosts": lists, "host_lists": about, "tests": tests}}, nil
}

func listVersion(l egress.List) string {
	if l.Version == 0 {
		return ""
	}
	return fmt.Sprintf("version %d, ", l.Version)
}

func (a *app) policyTest(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(operand(inv))
	switch {
	case errors.Is(err, policy.ErrTests):
		return &front.Report{Text: "FAIL " + front.Escape(err.Error()) + "\n", Fields: front.Document{"failure": front.ErrorFields(err)}, Exit: front.Findings}, nil
	case err != nil:
		return nil, err
	}
	results := set.RunTests()
	var b strings.Builder
	for _, r := range results {
		// Load refuses a set with a failing test, so each of these has passed.
		fmt.Fprintf(&b, "ok   %s: %s: %s\n", front.Escape(r.File), front.Escape(r.Name), front.Escape(r.Got))
	}
	fmt.Fprintf(&b, "%d tests passed\n", len(results))
	return &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "tests": results}}, nil
}

func (a *app) policyExplain(ctx context.Context, inv *command.Invocation) (*front.Report, error) {
	p, stdin, err := a.proposal(inv)
	if err != nil {
		return nil, err
	}
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return nil, err
	}
	cfg := kernel.Config{StateDir: state, PolicyDir: command.Value(inv, "policy", "")}
	if cfg.CellPath, err = a.cell(); err != nil {
		cfg.CellPath = "" // then no certificate is about it, and nothing else asks
	}
	switch {
	case inv.Has("tool"):
		if p, cfg.Tools, err = a.toolCall(inv, p); err != nil {
			return nil, err
		}
	case len(inv.Operands) == 0:
		return nil, fault.New(fault.Usage, "bad_command", "policy explain", errors.New("want CMD, or --tool NAME")).WithHint("see palyra help policy explain")
	}
	x, set, err := kernel.Explain(ctx, cfg, *p, stdin)
	if err != nil {
		return nil, err
	}
	d := &x.Decision
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s\n%s", d.Effect, d.Reason, determining(d, set, x.Fix))
	fmt.Fprintf(&b, "  %-10s %s %s\n", "program is", x.Kind, front.Escape(x.Family))
	b.WriteString("policies, asked without approval:\n")
	for _, t := range x.Traces {
		b.WriteString(traceText(&t))
	}
	r := &front.Report{Text: b.String(), Fields: front.Document{"decision": decisionFields(d, x.Fix), "explanation": x}}
	r.Exit = decided(d.Effect)
	return r, nil
}

// toolCall is the proposal of a tool's call, and the table that it is made by.
// It goes through the same path as a call of palyrad: the table says what runs.
func (a *app) toolCall(inv *command.Invocation, flags *kernel.Proposal) (*kernel.Proposal, kernel.Tools, error) {
	const op = "explain call of a tool"
	if inv.Has("env") || inv.Has("network") {
		return nil, nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the tool says what runs: --env and --network are a command's"))
	}
	if len(inv.Operands) > 1 {
		return nil, nil, fault.New(fault.Usage, "bad_command", op, errors.New("want one JSON object behind --"))
	}
	input := []byte("{}")
	if len(inv.Operands) == 1 {
		input = []byte(inv.Operands[0])
	}
	exe, err := a.executable()
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	cfg := tool.Config{}
	if cfg.Program, err = installed.Find(exe, "palyra-tool"); err != nil {
		return nil, nil, err
	}
	if cfg.Fetch, err = installed.Find(exe, "palyra-fetch"); err != nil && command.Value(inv, "tool", "") == toolproto.Fetch {
		return nil, nil, err
	}
	var named struct {
		Workspace string `json:"workspace"`
	}
	if flags.WorkspaceOwnPath || len(flags.Mounts)+len(flags.Caches) > 0 {
		return nil, nil, fault.New(fault.Usage, "bad_command", op, errors.New("a tool sees its workspace alone, at /workspace"))
	}
	if flags.WorkspaceStaged {
		return nil, nil, fault.New(fault.Usage, "bad_command", op, errors.New("no tool works in a staged workspace"))
	}
	if json.Unmarshal(input, &named) == nil && flags.Workspace != "" {
		// The table decodes it strictly.
		cfg.Workspaces = map[string]tool.Workspace{named.Workspace: {Path: flags.Workspace, ReadOnly: flags.WorkspaceReadOnly}}
	}
	return &kernel.Proposal{Tool: command.Value(inv, "tool", ""), Input: input, TierFloor: flags.TierFloor}, tool.New(cfg), nil
}

// traceText returns one policy's part in a decision, with the condition that stopped it.
func traceText(t *policy.Trace) string {
	said := "matches"
	switch {
	case t.Matched:
	case !t.Principal:
		said = "is about another principal"
	case !t.Resource:
		said = "is about another resource"
	default:
		said = "does not match"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "  %-6s %s (%s:%d) %s\n", t.Effect, front.Escape(t.ID), front.Escape(t.File), t.Line, said)
	if n := len(t.Conditions); n > 0 && !t.Matched {
		c := t.Conditions[n-1]
		text := strings.Join(strings.Fields(c.Text), " ")
		if len(text) > 160 {
			text = text[:160] + "..."
		}
		fmt.Fprintf(&b, "         %s %s is %s\n", c.Clause, front.Escape(text), front.Escape(c.Result))
	}
	return b.String()
}

// decided returns the exit status of an effect.
func decided(e policy.Effect) int {
	switch e {
	case policy.Allow:
		return 0
	case policy.NeedsApproval:
		return front.Exit(fault.New(fault.NotApproved, "", "", nil))
	}
	return front.Exit(fault.New(fault.Denied, "", "", nil))
}
