package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/authz/approval"
	"palyra/cmd/internal/front"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// rows formats "name value" lines. Values are foreign: they are escaped.
type rows struct{ b strings.Builder }

func (r *rows) add(name, format string, args ...any) {
	fmt.Fprintf(&r.b, "  %-10s %s\n", name, front.Escape(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", `\n`)))
}

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

// statement is what a receipt or an entry says: of a call, or of an
// administrative act. One of the two is nil.
type statement struct {
	call *receipt.Statement
	act  *receipt.ActStatement
}

// document is the statement as it was signed.
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

// describe writes what a statement says: first how it ended, then what was
// asked, who allowed it, and what was seen to be in force.
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
	r.add("program", "%s %s (%s)", p.Capsule.Executable.Path, p.Capsule.Executable.Digest, p.Capsule.Executable.Pinned)
	if f := p.Capsule.Script; f != nil {
		r.add("script", "%s %s (%s)", f.Path, f.Digest, f.Pinned)
	}
	for _, f := range p.Capsule.Operands {
		r.add("file", "%s %s", f.Path, f.Digest)
	}
	if w := p.Capsule.Workspace; w != nil {
		mode := "writable"
		if w.ReadOnly {
			mode = "read-only"
		}
		r.add("workspace", "%s, %s", w.Source, mode)
	}
	if p.Capsule.Stdin.Mode != "none" {
		r.add("stdin", "%s %s", p.Capsule.Stdin.Mode, p.Capsule.Stdin.Digest)
	}
	if p.Capsule.Network != "" {
		r.add("network", "%s", p.Capsule.Network)
	}
	r.add("capsule", "%s", p.Capsule.Digest)
	r.add("asked by", "%s, %s", p.Principal, p.Time)
	if p.RunID != "" {
		r.add("run", "%s", p.RunID)
	}
	r.add("decision", "%s (%s) by %s", p.Decision.Effect, p.Decision.Reason, orNone(p.Decision.Policies))
	for _, e := range p.Decision.Errors {
		r.add("", "%s", e)
	}
	r.add("policy set", "%s", p.Decision.PolicySet)
	if a := p.Approval; a != nil {
		who := a.Answer
		if a.Approver != "" {
			who += " by " + a.Approver + " on " + a.Surface
		}
		r.add("approval", "%s, %s", who, a.Answered)
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

// plantedRows lists what a call left in wait in its workspace.
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
		line := fmt.Sprintf("%s %s, mode %s", f.Kind, f.Path, f.Mode)
		if f.Target != "" {
			line += ", to " + f.Target
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

// plantedText is the same in one line: how many of each kind, and the first one.
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

// ending is the outcome in words.
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

// evidenceRows names what was in force, each group with how we know it.
func evidenceRows(r *rows, ev *evidence.Evidence) {
	r.add("ran in", "%s, tier %s, on %s %s", ev.Executor, ev.Tier, ev.Host.Release, ev.Host.Machine)
	group := func(b evidence.Basis, name, format string, args ...any) {
		if b != evidence.Absent {
			r.add(name, format+" (%s)", append(args, b)...)
		}
	}
	group(ev.Namespaces.Basis, "namespaces", "%s", orNone(ev.Namespaces.Fresh))
	group(ev.Process.Basis, "process", "no_new_privs %d, capabilities %s, host uid %d", ev.Process.NoNewPrivs, ev.Process.CapEff, ev.Process.HostUID)
	group(ev.Seccomp.Basis, "seccomp", "%d instructions, %s", ev.Seccomp.Instructions, ev.Seccomp.Program)
	group(ev.Landlock.Basis, "landlock", "ABI %d, %d rules", ev.Landlock.ABI, len(ev.Landlock.Rules))
	group(ev.Cgroup.Basis, "cgroup", "%s", ev.Cgroup.State)
	group(ev.Usage.Basis, "used", "%.3f s, %d KiB", float64(ev.Usage.WallNS)/1e9, ev.Usage.MaxRSS>>10)
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

// readEvidence returns nil where there is none, or none that we understand: it
// is shown, nothing depends on it.
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
