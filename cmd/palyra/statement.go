package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/authz/approval"
	"palyra/cmd/internal/front"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// rows formats "name value" lines. Values are foreign: they are escaped.
type rows struct{ b strings.Builder }

func (r *rows) add(name, format string, args ...any) {
	fmt.Fprintf(&r.b, "  %-10s %s\n", name, front.Escape(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", `\n`)))
}

// path writes one path, or another foreign text, so that it ends where it ends.
func path(s string) string { return `"` + approval.Escape(s) + `"` }

// spelled writes a path that the record has in its own spelling, \xHH for what isn't
// printable.
func spelled(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\x22`) + `"` }

// quoted writes arguments so that they can be told apart.
func quoted(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = approval.Escape(a)
		if words[i] != a || a == "" || strings.ContainsAny(a, " '\"\\$&;|<>()*?[]#~`") {
			words[i] = `"` + words[i] + `"`
		}
	}
	return strings.Join(words, " ")
}

// statement is the content of a receipt or an entry, about a call or an administrative act.
// One of the two is nil.
type statement struct {
	call *receipt.Statement
	act  *receipt.ActStatement
}

// document returns the statement as it was signed.
func (s *statement) document() any {
	if s.act != nil {
		return s.act
	}
	return s.call
}

func (s *statement) describe() string {
	if s.act == nil {
		return describe(s.call)
	}
	a := &s.act.Predicate
	var r rows
	r.add("act", "%s", a.Act)
	r.add("done by", "%s, %s", a.Principal, a.Time)
	if a.Subject != "" {
		r.add("to", "%s", a.Subject)
	}
	for _, name := range sortedKeys(a.Detail) {
		r.add("detail", "%s: %s", name, a.Detail[name])
	}
	return r.b.String()
}

// describe prints a statement: first the outcome, then the request, those who allowed it,
// and the controls that were seen in force.
func describe(s *receipt.Statement) string {
	p := &s.Predicate
	ev := readEvidence(p.Evidence)
	var r rows
	r.add("outcome", "%s", ending(s, ev))
	if p.Error != nil {
		r.add("error", "%s: %s", p.Error.Kind, p.Error.Reason)
	}
	if p.Tool != kernel.ToolRun {
		r.add("tool", "%s", p.Tool)
	}
	r.add("command", "%s", quoted(p.Capsule.Argv))
	if q := p.Question; q != nil && len(q.LineArgs) > 0 {
		r.add("besides", "%s, from #! lines", quoted(q.LineArgs))
	}
	file := func(name string, f *receipt.File) {
		if f != nil {
			r.add(name, "%s %s (%s)", path(f.Path), f.Digest, f.Pinned)
		}
	}
	file("program", &p.Capsule.Executable)
	file("loader", p.Capsule.Loader)
	file("script", p.Capsule.Script)
	if ev != nil && len(ev.Scripts) > 1 {
		// Show the readers of the script; the call itself names the first.
		for _, x := range ev.Scripts[1:] {
			r.add("read by", "%s %s (%s)", path(x.Path), x.Digest, x.Pinned)
		}
	}
	for i := range p.Capsule.Operands {
		file("file", &p.Capsule.Operands[i])
	}
	if q := p.Question; q != nil && len(q.Unpinned) > 0 {
		r.add("NOT HELD", "named, and free to change meanwhile: %s", strings.Join(q.Unpinned, ", "))
	}
	r.add("in", "%s", path(p.Capsule.Cwd))
	if w := p.Capsule.Workspace; w != nil {
		mode := "writable"
		if w.ReadOnly {
			mode = "read-only"
		}
		if w.Staged {
			mode += ", staged: what was written is in a layer"
		}
		if w.OwnPath {
			mode += ", at its own path"
		}
		r.add("workspace", "%s, %s", path(w.Source), mode)
		if w.Layer != "" {
			r.add("", "layer %s", w.Layer)
		}
	}
	if len(p.Capsule.Caches) > 0 {
		r.add("caches", "%s, shared with other calls in the workspace", quoted(p.Capsule.Caches))
	}
	if d := p.Capsule.Declared; d != nil {
		what := "mounts and caches"
		if slices.Contains(p.Capsule.Caches, "tmp") {
			what += " other than /tmp"
		}
		r.add("declared", "%s, by the operator for the workspace %s", what, quoted([]string{d.Workspace}))
		if !d.Env.IsZero() {
			r.add("", "variables %s", d.Env)
		}
	}
	for _, s := range p.Capsule.Secrets {
		r.add("secret", "%s version %d, which the program could read as %s; record %s", path(s.Ref), s.Version, path(s.Name), s.Record)
	}
	for _, m := range p.Capsule.Mounts {
		r.add("mount", "%s, read-only, of user %d and group %d", path(m.Source), m.UID, m.GID)
	}
	if p.Capsule.Stdin.Mode != "none" {
		r.add("stdin", "%s %s", p.Capsule.Stdin.Mode, p.Capsule.Stdin.Digest)
	}
	if t := p.Capsule.TTY; t != nil {
		r.add("terminal", "of its own, %d rows of %d columns, %s", t.Rows, t.Columns, t.Term)
	}
	environmentRows(&r, p)
	if q := p.Question; q != nil && q.MCP != nil {
		r.add("asks", "tool %s of the MCP server %s, which ran already", path(q.MCP.Tool), path(q.MCP.Server))
		for _, a := range q.MCP.Arguments {
			r.add("argument", "%s", path(a))
		}
	}
	if p.Capsule.Background {
		r.add("background", "no caller waited for its end")
	}
	if p.Capsule.Network != "" {
		r.add("network", "%s", p.Capsule.Network)
	}
	if len(p.Capsule.EgressHosts) > 0 {
		r.add("hosts", "%s", quoted(p.Capsule.EgressHosts))
	}
	if len(p.Capsule.EgressInspect) > 0 {
		r.add("requests", "%s", quoted(p.Capsule.EgressInspect))
	}
	for _, s := range p.Capsule.EgressSecrets {
		r.add("uses", "%s, version %d, which the program couldn't read; record %s", path(s.Use), s.Version, s.Record)
	}
	if len(p.Capsule.Capabilities) > 0 {
		r.add("may", "%s", strings.Join(p.Capsule.Capabilities, ", "))
	}
	if p.Capsule.Sensitive {
		r.add("sensitive", "as the tool's table says")
	}
	r.add("limits", "%s", limitsText(isolate.Limits(p.Capsule.Limits)))
	r.add("tier", "%s or stronger", p.Capsule.TierFloor)
	r.add("capsule", "%s", p.Capsule.Digest)
	r.add("call", "%s", p.CallID)
	r.add("asked by", "%s, %s", p.Principal, p.Time)
	if q := p.Question; q != nil {
		who := "roles " + orNone(q.Roles)
		for _, x := range []struct{ what, is string }{{"device", q.Device}, {"channel", q.Channel}, {"certificate", q.Certificate}} {
			if x.is != "" {
				who += ", " + x.what + " " + path(x.is)
			}
		}
		r.add("", "%s", who)
	}
	if p.SessionID != "" {
		r.add("session", "%s", p.SessionID)
	}
	if p.RunID != "" {
		r.add("run", "%s", p.RunID)
	}
	r.add("decision", "%s (%s) by %s", p.Decision.Effect, p.Decision.Reason, orNone(p.Decision.Policies))
	r.add("", "%s", p.Decision.ID)
	for _, e := range p.Decision.Errors {
		r.add("", "%s", e)
	}
	r.add("policy set", "%s", p.Decision.PolicySet)
	if a := p.Approval; a != nil {
		approvalRows(&r, a)
	}
	for _, sub := range s.Subject {
		if sub.Name != receipt.SubjectCapsule {
			r.add(sub.Name, "sha256:%s", sub.Digest.SHA256)
		}
	}
	if ev != nil {
		evidenceRows(&r, ev)
	}
	if p.Planted != nil {
		plantedRows(&r, p.Planted)
	}
	return r.b.String()
}

// environmentRows names the variables, and those that policy was told of.
func environmentRows(r *rows, p *receipt.Predicate) {
	if len(p.Capsule.EnvNames) > 0 {
		r.add("variables", "%s", quoted(p.Capsule.EnvNames))
	}
	if q := p.Question; q != nil {
		if len(q.EnvOverridden) > 0 {
			r.add("", "with another value than every call's: %s", quoted(q.EnvOverridden))
		}
		if len(q.EnvCode) > 0 {
			r.add("", "that led to code which is not the system's: %s", quoted(q.EnvCode))
		}
	}
}

// approvalRows say who said yes, to what, and whether a person looked at this call:
// a standing grant says yes to calls that no person sees.
func approvalRows(r *rows, a *receipt.Approval) {
	who := a.Answer
	switch {
	case len(a.Approvers) > 0:
		who += " by " + strings.Join(a.Approvers, ", ") + " on " + a.Surface
	case a.Approver != "":
		who += " by " + a.Approver + " on " + a.Surface
	}
	if a.Scope != "" {
		who += ", scope " + a.Scope
	}
	r.add("approval", "%s, asked %s, answered %s", who, a.Requested, a.Answered)
	if a.ID != "" {
		r.add("", "%s", a.ID)
	}
	if a.Grant != "" {
		r.add("", "made or rests on the standing grant %s: no person may have looked at this call", a.Grant)
	}
	if !a.Pattern.IsZero() {
		r.add("", "of any call of the pattern %s", a.Pattern)
	}
}

// plantedRows lists the files that a call left in wait in its workspace.
func plantedRows(r *rows, p *receipt.Planted) {
	if len(p.Kinds) == 0 {
		r.add("planted", "nothing among %d entries of the workspace", p.Looked)
	}
	rest := make(map[string]int64)
	for _, k := range p.Kinds {
		rest[k.Kind] = k.Count
	}
	for _, f := range p.Found {
		rest[f.Kind]--
		line := fmt.Sprintf("%s %s, mode %s", f.Kind, spelled(f.Path), f.Mode)
		if f.Target != "" {
			line += ", to " + spelled(f.Target)
		}
		if f.Moved {
			line += ", moved here"
		}
		r.add("planted", "%s", line)
	}
	for _, k := range p.Kinds {
		if n := rest[k.Kind]; n > 0 {
			r.add("planted", "%s: %d more", k.Kind, n)
		}
	}
	for _, u := range p.Incomplete {
		r.add("unlooked", "%d folders: %s", u.Folders, u.Why)
	}
	if !p.TimesKept {
		r.add("unlooked", "changes that the file system does not stamp")
	}
}

// plantedText returns the same in one line: the number of each kind, and the first one.
func plantedText(p *receipt.Planted) string {
	parts := make([]string, len(p.Kinds))
	for i, k := range p.Kinds {
		parts[i] = fmt.Sprintf("%d %s", k.Count, k.Kind)
		if j := slices.IndexFunc(p.Found, func(f receipt.Finding) bool { return f.Kind == k.Kind }); j >= 0 {
			parts[i] += " (" + p.Found[j].Path + ")"
		}
	}
	return strings.Join(parts, ", ")
}

// ending returns the outcome in words.
func ending(s *receipt.Statement, ev *evidence.Evidence) string {
	o := s.Predicate.Outcome
	switch {
	case s.IsIntent():
		return "intent: this was about to happen"
	case o == receipt.OutcomeUnknown:
		return o + ", it may have run"
	case ev == nil:
		return o
	case ev.Exit.LimitHit != "":
		return fmt.Sprintf("%s, limit %s", o, ev.Exit.LimitHit)
	case ev.Exit.Signal != 0:
		return fmt.Sprintf("%s, signal %d", o, ev.Exit.Signal)
	case o == receipt.Executed:
		return fmt.Sprintf("%s, exit status %d", o, ev.Exit.Code)
	}
	return o
}

// evidenceRows names the controls in force, each group with its basis.
func evidenceRows(r *rows, ev *evidence.Evidence) {
	r.add("ran in", "%s, tier %s, on %s %s", ev.Executor, ev.Tier, ev.Host.Release, ev.Host.Machine)
	for _, l := range ev.Lines() {
		r.add(l.Group, "%s", l.Text)
	}
	switch ev.Network.Mode {
	case evidence.NetworkEgress:
		r.add("network", "TCP to its hosts, and UDP to the resolver for them; none other (QUIC) left the cell")
	case evidence.NetworkHost:
		r.add("network", "THE HOST'S: nothing enforced, nothing counted")
	case evidence.NetworkPreflight:
		r.add("network", "THE HOST'S: names checked before the start only, nothing counted")
	}
	for _, c := range ev.Egress.Connections {
		line := fmt.Sprintf("%s port %d", path(c.Host), c.Port)
		if c.Address != "" {
			line += " at " + path(c.Address)
		}
		line += fmt.Sprintf(", %s, %d bytes sent, %d received", c.Outcome, c.Sent, c.Received)
		if c.TLS != "" || c.ServerName != "" {
			line += fmt.Sprintf(", %s for %s", cmp.Or(c.TLS, "TLS"), path(c.ServerName))
		}
		r.add("connected", "%s", line)
	}
	for _, d := range ev.Egress.Denied {
		r.add("denied", "%s, EgressDenied %d times", path(d.String()), d.Times)
	}
	if ev.Output.Cut > 0 {
		r.add("output", "%d bytes beyond the limit were dropped", ev.Output.Cut)
	}
	if !ev.Exit.TreeDead {
		r.add("tree", "a process of the run may have been left")
	}
	for _, d := range ev.Degraded {
		r.add("degraded", "%s", d)
	}
}

func orNone(ss []string) string {
	if len(ss) == 0 {
		return "none"
	}
	return strings.Join(ss, ", ")
}

// readEvidence returns nil if there is no evidence that we understand: it is only shown,
// and nothing depends on it.
func readEvidence(raw json.RawMessage) *evidence.Evidence {
	var ev *evidence.Evidence
	if json.Unmarshal(raw, &ev) != nil {
		return nil
	}
	return ev
}

// unverified reads the statement out of a receipt and believes none of it.
func unverified(bundle []byte) (*statement, error) {
	var b struct {
		Envelope *receipt.Envelope `json:"dsseEnvelope"`
	}
	bad := func(err error) error {
		return fault.New(fault.Integrity, "receipt_syntax", "read receipt", err)
	}
	if err := json.Unmarshal(bundle, &b); err != nil {
		return nil, bad(err)
	}
	if b.Envelope == nil || len(b.Envelope.Payload) == 0 {
		return nil, bad(errors.New("no dsseEnvelope with a payload: not a receipt"))
	}
	return statementIn(b.Envelope.Payload)
}

func statementIn(payload []byte) (*statement, error) {
	var head struct {
		PredicateType string `json:"predicateType"`
	}
	s := statement{call: new(receipt.Statement)}
	into := any(s.call)
	if json.Unmarshal(payload, &head) == nil && head.PredicateType == receipt.ActType {
		s = statement{act: new(receipt.ActStatement)}
		into = s.act
	}
	if err := json.NewDecoder(bytes.NewReader(payload)).Decode(into); err != nil {
		return nil, fault.New(fault.Integrity, "receipt_syntax", "read statement", err)
	}
	return &s, nil
}
