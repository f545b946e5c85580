// Package account says in words what a receipt states: rows of a name and a text, for a terminal
// and for pages.
//
//	s, err := account.Parse(verified.Payload)
//	for _, r := range s.Rows() { … }
//
// # Contract
//
// Each field of a statement has a row, but for those that only number or spell others. Texts are
// foreign and come out escaped, one line each: no row can look like two, or like another's. A row
// about what was seen in force has the basis that the evidence gives for it.
//
// # What it does not protect against
//
// It verifies nothing: palyra/crypt/receipt does.
package account

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// The parts of an account.
const (
	Ending   = "ending"   // what became of it
	Request  = "request"  // what was asked for, and in which bounds
	Decision = "decision" // who asked, who allowed it, and by what
	Controls = "controls" // what was seen in force
	Egress   = "egress"   // what it reached, and was denied
	Left     = "left"     // what it left
)

// Row is a line of an account.
type Row struct {
	Part  string
	Name  string // "" goes on with the row before
	Text  string // escaped
	Basis string // of what was seen; "" for what isn't evidence
}

// Rows is an account in the making. The zero value is empty.
type Rows struct {
	Part string // of the rows to come
	All  []Row
}

// Add adds a row.
func (r *Rows) Add(name, format string, args ...any) { r.addSeen("", name, format, args...) }

func (r *Rows) addSeen(basis, name, format string, args ...any) {
	text := approval.EscapeText(strings.ReplaceAll(fmt.Sprintf(format, args...), "\n", `\n`))
	r.All = append(r.All, Row{r.Part, name, text, basis})
}

// String formats the rows for a terminal.
func (r *Rows) String() string {
	var b strings.Builder
	for _, x := range r.All {
		if x.Basis != "" {
			x.Text += " (" + x.Basis + ")"
		}
		fmt.Fprintf(&b, "  %-10s %s\n", x.Name, x.Text)
	}
	return b.String()
}

// path writes one path, or another foreign text, so that it ends where it ends.
func path(s string) string { return `"` + approval.Escape(s) + `"` }

// spelled writes a path that the record has in its own spelling, \xHH for what isn't
// printable.
func spelled(s string) string { return `"` + strings.ReplaceAll(s, `"`, `\x22`) + `"` }

// Quoted writes arguments so that they can be told apart.
func Quoted(argv []string) string {
	words := make([]string, len(argv))
	for i, a := range argv {
		words[i] = approval.Escape(a)
		if words[i] != a || a == "" || strings.ContainsAny(a, " '\"\\$&;|<>()*?[]#~`") {
			words[i] = `"` + words[i] + `"`
		}
	}
	return strings.Join(words, " ")
}

// Statement is the content of a receipt or an entry, about a call or an administrative act. One of
// the two is nil.
type Statement struct {
	Call *receipt.Statement
	Act  *receipt.ActStatement
}

// Document returns the statement as it was signed.
func (s *Statement) Document() any {
	if s.Act != nil {
		return s.Act
	}
	return s.Call
}

// Rows returns the account of a statement.
func (s *Statement) Rows() *Rows {
	if s.Act == nil {
		return Of(s.Call)
	}
	a := &s.Act.Predicate
	r := &Rows{Part: Decision}
	r.Add("act", "%s", a.Act)
	r.Add("done by", "%s, %s", a.Principal, a.Time)
	if a.Subject != "" {
		r.Add("to", "%s", a.Subject)
	}
	for _, name := range slices.Sorted(maps.Keys(a.Detail)) {
		r.Add("detail", "%s: %s", name, a.Detail[name])
	}
	return r
}

// Of returns the account of a statement about a call: first the outcome, then the request, those
// who allowed it, and the controls that were seen in force.
func Of(s *receipt.Statement) *Rows {
	p := &s.Predicate
	ev := evidence.Decode(p.Evidence)
	r := &Rows{Part: Ending}
	r.Add("outcome", "%s", Outcome(s, ev))
	if p.Error != nil {
		r.Add("error", "%s: %s", p.Error.Kind, p.Error.Reason)
	}
	r.Part = Request
	if p.Tool != kernel.ToolRun {
		r.Add("tool", "%s", p.Tool)
	}
	r.Add("command", "%s", Quoted(p.Capsule.Argv))
	if q := p.Question; q != nil && len(q.LineArgs) > 0 {
		r.Add("besides", "%s, from #! lines", Quoted(q.LineArgs))
	}
	file := func(name string, f *receipt.File) {
		if f != nil {
			r.Add(name, "%s %s (%s)", path(f.Path), f.Digest, f.Pinned)
		}
	}
	file("program", &p.Capsule.Executable)
	file("loader", p.Capsule.Loader)
	file("script", p.Capsule.Script)
	if ev != nil && len(ev.Scripts) > 1 {
		// Show the readers of the script; the call itself names the first.
		for _, x := range ev.Scripts[1:] {
			r.Add("read by", "%s %s (%s)", path(x.Path), x.Digest, x.Pinned)
		}
	}
	for i := range p.Capsule.Operands {
		file("file", &p.Capsule.Operands[i])
	}
	if q := p.Question; q != nil && len(q.Unpinned) > 0 {
		r.Add("NOT HELD", "named, and free to change meanwhile: %s", strings.Join(q.Unpinned, ", "))
	}
	r.Add("in", "%s", path(p.Capsule.Cwd))
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
		r.Add("workspace", "%s, %s", path(w.Source), mode)
		if w.Layer != "" {
			r.Add("", "layer %s", w.Layer)
		}
	}
	if len(p.Capsule.Caches) > 0 {
		r.Add("caches", "%s, shared with other calls in the workspace", Quoted(p.Capsule.Caches))
	}
	if d := p.Capsule.Declared; d != nil {
		what := "mounts and caches"
		if slices.Contains(p.Capsule.Caches, "tmp") {
			what += " other than /tmp"
		}
		r.Add("declared", "%s, by the operator for the workspace %s", what, Quoted([]string{d.Workspace}))
		if !d.Env.IsZero() {
			r.Add("", "variables %s", d.Env)
		}
	}
	for _, s := range p.Capsule.Secrets {
		r.Add("secret", "%s version %d, which the program could read as %s; record %s", path(s.Ref), s.Version, path(s.Name), s.Record)
	}
	for _, m := range p.Capsule.Mounts {
		r.Add("mount", "%s, read-only, of user %d and group %d", path(m.Source), m.UID, m.GID)
	}
	if p.Capsule.Stdin.Mode != "none" {
		r.Add("stdin", "%s %s", p.Capsule.Stdin.Mode, p.Capsule.Stdin.Digest)
	}
	if t := p.Capsule.TTY; t != nil {
		r.Add("terminal", "of its own, %d rows of %d columns, %s", t.Rows, t.Columns, t.Term)
	}
	environmentRows(r, p)
	if q := p.Question; q != nil && q.MCP != nil {
		r.Add("asks", "tool %s of the MCP server %s, which ran already", path(q.MCP.Tool), path(q.MCP.Server))
		for _, a := range q.MCP.Arguments {
			r.Add("argument", "%s", path(a))
		}
	}
	if p.Capsule.Background {
		r.Add("background", "no caller waited for its end")
	}
	if p.Capsule.Network != "" {
		r.Add("network", "%s", p.Capsule.Network)
	}
	if len(p.Capsule.EgressHosts) > 0 {
		r.Add("hosts", "%s", Quoted(p.Capsule.EgressHosts))
	}
	if len(p.Capsule.EgressInspect) > 0 {
		r.Add("requests", "%s", Quoted(p.Capsule.EgressInspect))
	}
	for _, s := range p.Capsule.EgressSecrets {
		r.Add("uses", "%s, version %d, which the program couldn't read; record %s", path(s.Use), s.Version, s.Record)
	}
	if len(p.Capsule.Capabilities) > 0 {
		r.Add("may", "%s", strings.Join(p.Capsule.Capabilities, ", "))
	}
	if p.Capsule.Sensitive {
		r.Add("sensitive", "as the tool's table says")
	}
	r.Add("limits", "%s", LimitsText(isolate.Limits(p.Capsule.Limits)))
	r.Add("tier", "%s or stronger", p.Capsule.TierFloor)
	r.Part = Decision
	r.Add("capsule", "%s", p.Capsule.Digest)
	r.Add("call", "%s", p.CallID)
	r.Add("asked by", "%s, %s", p.Principal, p.Time)
	if q := p.Question; q != nil {
		who := "roles " + OrNone(q.Roles)
		for _, x := range []struct{ what, is string }{{"device", q.Device}, {"channel", q.Channel}, {"certificate", q.Certificate}} {
			if x.is != "" {
				who += ", " + x.what + " " + path(x.is)
			}
		}
		r.Add("", "%s", who)
		if len(q.Inputs) > 0 {
			r.Add("had read", "%s", OrNone(q.Inputs))
		}
		if len(q.Signals) > 0 {
			r.Add("signs of", "%s", OrNone(q.Signals))
		}
	}
	if p.SessionID != "" {
		r.Add("session", "%s", p.SessionID)
	}
	if p.RunID != "" {
		r.Add("run", "%s", p.RunID)
	}
	r.Add("decision", "%s (%s) by %s", p.Decision.Effect, p.Decision.Reason, OrNone(p.Decision.Policies))
	r.Add("", "%s", p.Decision.ID)
	for _, e := range p.Decision.Errors {
		r.Add("", "%s", e)
	}
	r.Add("policy set", "%s", p.Decision.PolicySet)
	if a := p.Approval; a != nil {
		r.Approval(a)
	}
	r.Part = Ending
	for _, sub := range s.Subject {
		if sub.Name != receipt.SubjectCapsule {
			r.Add(sub.Name, "sha256:%s", sub.Digest.SHA256)
		}
	}
	if ev != nil {
		evidenceRows(r, ev)
	}
	if p.Planted != nil {
		plantedRows(r, p.Planted)
	}
	return r
}

// environmentRows names the variables, and those that policy was told of.
func environmentRows(r *Rows, p *receipt.Predicate) {
	if len(p.Capsule.EnvNames) > 0 {
		r.Add("variables", "%s", Quoted(p.Capsule.EnvNames))
	}
	if q := p.Question; q != nil {
		if len(q.EnvOverridden) > 0 {
			r.Add("", "with another value than every call's: %s", Quoted(q.EnvOverridden))
		}
		if len(q.EnvCode) > 0 {
			r.Add("", "that led to code which is not the system's: %s", Quoted(q.EnvCode))
		}
	}
}

// Approval adds who said yes, to what, and whether a person looked at this call:
// a standing grant says yes to calls that no person sees.
func (r *Rows) Approval(a *receipt.Approval) {
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
	r.Add("approval", "%s, asked %s, answered %s", who, a.Requested, a.Answered)
	if a.ID != "" {
		r.Add("", "%s", a.ID)
	}
	if a.Grant != "" {
		r.Add("", "made or rests on the standing grant %s: no person may have looked at this call", a.Grant)
	}
	if !a.Pattern.IsZero() {
		r.Add("", "of any call of the pattern %s", a.Pattern)
	}
	for _, s := range a.Signed {
		r.Add("", "signed by %s with the passkey %s at %s", s.Statement.Approver, s.Passkey, s.Statement.Origin)
	}
}

// plantedRows lists the files that a call left in wait in its workspace.
func plantedRows(r *Rows, p *receipt.Planted) {
	r.Part = Left
	if len(p.Kinds) == 0 {
		r.Add("planted", "nothing among %d entries of the workspace", p.Looked)
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
		r.Add("planted", "%s", line)
	}
	for _, k := range p.Kinds {
		if n := rest[k.Kind]; n > 0 {
			r.Add("planted", "%s: %d more", k.Kind, n)
		}
	}
	for _, u := range p.Incomplete {
		r.Add("unlooked", "%d folders: %s", u.Folders, u.Why)
	}
	if !p.TimesKept {
		r.Add("unlooked", "changes that the file system does not stamp")
	}
}

// Outcome returns the outcome in words.
func Outcome(s *receipt.Statement, ev *evidence.Evidence) string {
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
func evidenceRows(r *Rows, ev *evidence.Evidence) {
	r.Part = Controls
	r.Add("ran in", "%s, tier %s, on %s %s", ev.Executor, ev.Tier, ev.Host.Release, ev.Host.Machine)
	for _, l := range ev.Lines() {
		r.addSeen(l.Basis, l.Group, "%s", l.Text)
	}
	switch ev.Network.Mode {
	case evidence.NetworkEgress:
		r.Add("network", "TCP to its hosts, and UDP to the resolver for them; none other (QUIC) left the cell")
	case evidence.NetworkHost:
		r.Add("network", "THE HOST'S: nothing enforced, nothing counted")
	case evidence.NetworkPreflight:
		r.Add("network", "THE HOST'S: names checked before the start only, nothing counted")
	}
	r.Part = Egress
	for _, c := range ev.Egress.Connections {
		line := fmt.Sprintf("%s port %d", path(c.Host), c.Port)
		if c.Address != "" {
			line += " at " + path(c.Address)
		}
		line += fmt.Sprintf(", %s, %d bytes sent, %d received", c.Outcome, c.Sent, c.Received)
		if c.TLS != "" || c.ServerName != "" {
			line += fmt.Sprintf(", %s for %s", cmp.Or(c.TLS, "TLS"), path(c.ServerName))
		}
		r.Add("connected", "%s", line)
	}
	for _, d := range ev.Egress.Denied {
		r.Add("denied", "%s, EgressDenied %d times", path(d.String()), d.Times)
	}
	r.Part = Controls
	if ev.Output.Cut > 0 {
		r.Add("output", "%d bytes beyond the limit were dropped", ev.Output.Cut)
	}
	if !ev.Exit.TreeDead {
		r.Add("tree", "a process of the run may have been left")
	}
	for _, d := range ev.Degraded {
		r.Add("degraded", "%s", d)
	}
}

// OrNone lists words.
func OrNone(ss []string) string {
	if len(ss) == 0 {
		return "none"
	}
	return strings.Join(ss, ", ")
}

// Unverified reads the statement out of a receipt and believes none of it.
func Unverified(bundle []byte) (*Statement, error) {
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
	return Parse(b.Envelope.Payload)
}

// Parse reads the statement in an envelope that was verified, or is believed.
func Parse(payload []byte) (*Statement, error) {
	var head struct {
		PredicateType string `json:"predicateType"`
	}
	s := Statement{Call: new(receipt.Statement)}
	into := any(s.Call)
	if json.Unmarshal(payload, &head) == nil && head.PredicateType == receipt.ActType {
		s = Statement{Act: new(receipt.ActStatement)}
		into = s.Act
	}
	if err := json.NewDecoder(bytes.NewReader(payload)).Decode(into); err != nil {
		return nil, fault.New(fault.Integrity, "receipt_syntax", "read statement", err)
	}
	return &s, nil
}

// LimitsText puts limits into words.
func LimitsText(l isolate.Limits) string {
	return fmt.Sprintf("wall %v, cpu %v, memory %d, processes %d, output %d, file %d, descriptors %d, private disk %d in %d files",
		l.Wall.Round(time.Millisecond), l.CPU, l.Memory, l.PIDs, l.Output, l.FileSize, l.OpenFiles, l.Disk, l.Inodes)
}
