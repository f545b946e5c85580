package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/hub"
	"palyra/internal/fault"
)

func (a *app) mcpAdd(ctx context.Context, inv *command.Invocation) (*result, error) {
	n := hub.NewServer{Name: inv.Operands[0], Spec: hub.ServerSpec{Env: command.All[string](inv, "env"), Headers: command.All[string](inv, "header"),
		Workspace: command.Value(inv, "workspace", ""), ReadOnly: inv.Has("read-only"), Mounts: command.All[string](inv, "mount"), Network: command.Value(inv, "network", ""),
		EgressHosts: command.All[string](inv, "egress"), EgressInspect: command.All[string](inv, "inspect"), EgressSecrets: command.All[string](inv, "egress-secret"),
		Memory: command.Value(inv, "memory", int64(0)), PIDs: command.Value(inv, "pids", int64(0)),
		TimeoutMS: command.Value(inv, "timeout", time.Duration(0)).Milliseconds(), LifeMS: command.Value(inv, "life", time.Duration(0)).Milliseconds()}}
	if err := serverProgram(&n.Spec, inv.Operands[1:], command.Value(inv, "transport", "")); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.AddServer.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"server": s}, "added %s; its tools are shown by: palyra mcp accept %s\n", cell(s.Name), cell(s.Name)), nil
}

// serverProgram tells a server's URL from its command. The transport is the one that other clients
// want named; it says nothing that the words don't.
func serverProgram(s *hub.ServerSpec, words []string, transport string) error {
	const op = "add server"
	bad := func(text, hint string) error {
		return fault.New(fault.Usage, "invalid_input", op, errors.New(text)).WithHint(hint)
	}
	scheme, _, isURL := strings.Cut(words[0], "://")
	isURL = isURL && (strings.EqualFold(scheme, "http") || strings.EqualFold(scheme, "https"))
	switch {
	case transport == "sse":
		return bad("the transport of 2024-11-05, HTTP with SSE, isn't served", "most servers have Streamable HTTP by now, often at /mcp: --transport http")
	case isURL && transport == "stdio", !isURL && transport == "http":
		return bad(fmt.Sprintf("%.80q doesn't go with the transport %s", words[0], transport), "a server over HTTP is named by its URL, another by its command behind --")
	case isURL && len(words) > 1:
		return bad("arguments behind a URL", "a server over HTTP takes --header and --egress-secret")
	case isURL:
		s.URL = words[0]
	default:
		s.Argv = words
	}
	return nil
}

// runs is what a server is, in a line.
func runs(s *hub.ServerSpec) string {
	if s.URL != "" {
		return s.URL
	}
	return strings.Join(s.Argv, " ")
}

func (a *app) mcpLs(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListServers.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	t := front.NewTable("SERVER", "STATE", "TOOLS", "ACCEPTED BY", "COMMAND").Keep(0)
	for _, s := range p.Items {
		t.Row(s.Name, s.State, s.ToolCount, front.Principal(s.AcceptedBy), runs(&s.Spec))
	}
	return text(front.Document{"servers": p.Items}, "%s", a.table(inv, t)), nil
}

func (a *app) mcpShow(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	s, err := hub.GetServer.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(shownServer(&s))
	for _, t := range s.Tools {
		b.WriteString(shownTool(t, ""))
	}
	return text(front.Document{"server": s}, "%s", b.String()), nil
}

// shownServer prints what a server is, which its digest covers, and who added it.
func shownServer(s *hub.Server) string {
	var b strings.Builder
	row := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-10s %s\n", name, cell(fmt.Sprintf(format, args...)))
	}
	row("server", "%s, %s", s.Name, s.State)
	if s.Spec.URL != "" {
		row("url", "%s", s.Spec.URL)
	} else {
		row("command", "%s", runs(&s.Spec))
	}
	for _, h := range s.Spec.Headers {
		row("header", "%s", h)
	}
	if s.Spec.Workspace != "" {
		how := ""
		if s.Spec.ReadOnly {
			how = ", read-only"
		}
		row("workspace", "%s%s", s.Spec.Workspace, how)
	}
	for _, m := range s.Spec.Mounts {
		row("mount", "%s", m)
	}
	for _, h := range s.Spec.EgressHosts {
		row("reaches", "%s", h)
	}
	for _, i := range s.Spec.EgressInspect {
		row("requests", "%s", i)
	}
	for _, u := range s.Spec.EgressSecrets {
		row("secret", "%s", u)
	}
	for _, e := range s.Spec.Env {
		row("env", "%s", e)
	}
	row("added", "%s by %s", stamp(s.Added), s.AddedBy)
	if s.Accepted != nil {
		row("accepted", "%s by %s", stamp(*s.Accepted), s.AcceptedBy)
	}
	return b.String()
}

// shownTool prints all of a tool that is pinned, and that a client shows its model. It is foreign
// text.
func shownTool(t hub.ServerTool, how string) string {
	var d map[string]json.RawMessage
	if json.Unmarshal(t.Definition, &d) != nil {
		d = map[string]json.RawMessage{"definition": t.Definition}
	}
	delete(d, "name")
	if how != "" {
		how += " "
	}
	var b strings.Builder
	fmt.Fprintf(&b, "\n%s%s %s\n", how, cell(t.Name), cell(t.Pin.String()))
	if t.LeftOut != "" {
		b.WriteString("    LEFT OUT: no client is shown it, since " + cell(t.LeftOut) + "\n")
	}
	lines := func(text string) {
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				b.WriteString("    " + cell(line) + "\n")
			}
		}
	}
	for _, member := range []string{"title", "description"} {
		var text string
		if json.Unmarshal(d[member], &text) == nil {
			lines(text)
			delete(d, member)
		}
	}
	for _, member := range slices.Sorted(maps.Keys(d)) {
		var text bytes.Buffer
		if json.Indent(&text, d[member], "", "  ") != nil {
			text.Write(d[member])
		}
		lines(member + ": " + text.String())
	}
	return b.String()
}

// mcpAccept shows what would be accepted, or accepts what was shown.
func (a *app) mcpAccept(ctx context.Context, inv *command.Invocation) (*result, error) {
	name := inv.Operands[0]
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if d := command.Value(inv, "digest", ""); d != "" {
		s, err := hub.AcceptServer.Do(ctx, h, hub.Caller{}, hub.Acceptance{Name: name, AcceptanceBody: hub.AcceptanceBody{Digest: d}})
		if err != nil {
			return nil, err
		}
		return text(front.Document{"server": s}, "accepted %d tools of %s\n", s.ToolCount, cell(s.Name)), nil
	}
	// The answer comes when the server has listed its tools, and policy may have a person asked first.
	slow := time.AfterFunc(time.Second, func() {
		fmt.Fprintf(a.stderr, "palyra: starts %s, which a person may have to approve: palyra approvals watch --answer, in another terminal\n", cell(name))
	})
	s, err := hub.InspectServer.Do(ctx, h, hub.Caller{}, name)
	slow.Stop()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	b.WriteString(shownServer(&s))
	was := map[string]hub.ServerTool{}
	for _, t := range s.Tools {
		was[t.Name] = t
	}
	for _, t := range s.Listed {
		how := ""
		switch old, ok := was[t.Name]; {
		case len(s.Tools) > 0 && !ok:
			how = "NEW"
		case ok && old.Pin != t.Pin:
			how = "CHANGED"
		}
		delete(was, t.Name)
		b.WriteString(shownTool(t, how))
	}
	for _, t := range s.Tools {
		if _, gone := was[t.Name]; gone {
			fmt.Fprintf(&b, "\nGONE %s\n", cell(t.Name))
		}
	}
	if s.State == hub.ServerAccepted {
		fmt.Fprintf(&b, "\nThese are the tools that were accepted.\n")
	} else {
		fmt.Fprintf(&b, "\nTo accept these %d tools: palyra mcp accept %s --digest %s\n", len(s.Listed), cell(s.Name), s.ListedDigest)
	}
	return text(front.Document{"server": s}, "%s", b.String()), nil
}

func (a *app) mcpRm(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if _, err := hub.RemoveServer.Do(ctx, h, hub.Caller{}, inv.Operands[0]); err != nil {
		return nil, err
	}
	return text(front.Document{"removed": inv.Operands[0]}, "removed %s\n", cell(inv.Operands[0])), nil
}
