package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	witnesses "palyra/crypt/witness/audit"
	"palyra/internal/fault"
	"palyra/kernel/account"
)

// journalDir returns the place of a state directory's journal. Reading it needs no key and
// takes no lock, so an auditor can read a copy.
func (a *app) journalDir(inv *command.Invocation) (string, error) {
	state, err := stateDir(command.Value(inv, "state", ""), a.getenv)
	if err != nil {
		return "", err
	}
	return filepath.Join(state, "journal"), nil
}

func (a *app) journalVerify(inv *command.Invocation) (*front.Report, error) {
	dir, err := a.journalDir(inv)
	if err != nil {
		return nil, err
	}
	t, err := a.trust(inv)
	if err != nil {
		return nil, err
	}
	audit, err := receipt.Audit(dir, t)
	if err != nil {
		return nil, err
	}
	var r account.Rows
	j := audit.Journal
	r.Add("journal", "%s, %d entries, root sha256:%x", j.Origin, j.Size, j.Root)
	r.Add("intents", "%d", audit.Intents)
	r.Add("results", "%d", audit.Results)
	for _, o := range sortedKeys(audit.Outcomes) {
		r.Add("", "%d %s", audit.Outcomes[o], o)
	}
	if audit.Acts > 0 {
		r.Add("acts", "%d", audit.Acts)
	}
	for _, l := range []struct {
		name string
		keys []receipt.KeyTerm
	}{{"key", audit.Keys}, {"log key", audit.LogKeys}} {
		for i, k := range l.keys {
			switch {
			case i == 0:
			case k.Trusted:
				r.Add(l.name, "%s from entry %d on", k.Hint, k.From)
			default:
				r.Add(l.name, "%s from entry %d on, introduced by the journal: the trust directory is older", k.Hint, k.From)
			}
		}
	}
	for _, n := range j.Notes {
		r.Add("note", "%s", n)
	}
	findings := len(audit.Orphans) + audit.Outcomes[receipt.OutcomeUnknown]
	for _, o := range audit.Orphans {
		r.Add("finding", "intent %d (call %s) has no result: it runs now, or its outcome is unknown", o.Index, o.CallID)
	}
	if n := audit.Outcomes[receipt.OutcomeUnknown]; n > 0 {
		r.Add("finding", "%d calls were interrupted; their outcome is recorded as unknown", n)
	}
	fields := front.Document{"sound": true, "audit": audit, "root": fmt.Sprintf("sha256:%x", j.Root)}
	if inv.Has("witnesses") {
		ws, err := witnesses.Read(filepath.Dir(dir), t)
		if err != nil {
			return nil, err
		}
		findings += witnessRows(&r, ws)
		fields["witnesses"] = ws
	}
	fields["findings"] = findings
	rep := &front.Report{Text: "sound\n" + r.String(), Fields: fields}
	if findings > 0 {
		rep.Exit = front.Findings
	}
	return rep, nil
}

// witnessRows says who saw what of the journal and when, and returns how many count for nothing.
func witnessRows(r *account.Rows, ws []witnesses.Witness) (findings int) {
	for _, w := range ws {
		since := ""
		if w.Ended != nil {
			since = fmt.Sprintf("; not a witness since entry %d", *w.Ended)
		}
		if w.Problem != "" {
			findings++
			r.Add("finding", "witness %s doesn't count: %s%s", w.Device, w.Problem, since)
			continue
		}
		r.Add("witness", "%s saw %d entries on %s; named by entry %d%s", w.Device, w.Size, w.Time.Format(time.RFC3339), w.Registered, since)
	}
	if len(ws) == 0 {
		r.Add("witness", "none")
	}
	return findings
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

func (a *app) journalShow(inv *command.Invocation) (*front.Report, error) {
	index, one, err := parseIndex(operand(inv))
	if err != nil {
		return nil, err
	}
	dir, err := a.journalDir(inv)
	if err != nil {
		return nil, err
	}
	r, err := journal.OpenReader(dir)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if one {
		return showEntry(r, index)
	}
	t := front.NewTable("INDEX", "TIME", "KIND", "OUTCOME", "COMMAND")
	entries := []front.Document{}
	for rec, err := range r.Entries(0, r.Size()) {
		if err != nil {
			return nil, err
		}
		fields, err := summarise(t, &rec)
		if err != nil {
			return nil, err
		}
		entries = append(entries, fields)
	}
	return &front.Report{Text: t.Text(a.width(inv)), Fields: front.Document{"size": r.Size(), "entries": entries}}, nil
}

// parseIndex reads an optional entry number.
func parseIndex(s string) (uint64, bool, error) {
	if s == "" {
		return 0, false, nil
	}
	n, err := strconv.ParseUint(s, 10, 63)
	if err != nil {
		return 0, false, fault.New(fault.Usage, "invalid_input", "journal show", fmt.Errorf("index %q: want a whole number from 0", s)).
			WithHint("palyra journal show lists the entries")
	}
	return n, true, nil
}

func showEntry(r *journal.Reader, index uint64) (*front.Report, error) {
	if index >= r.Size() {
		return nil, fault.New(fault.NotFound, "not_found", fmt.Sprintf("show entry %d", index), fmt.Errorf("the journal has %d entries", r.Size())).
			WithHint("palyra journal show lists them")
	}
	for rec, err := range r.Entries(index, index+1) {
		if err != nil {
			return nil, err
		}
		s, err := statementOf(&rec)
		if err != nil {
			return nil, err
		}
		return &front.Report{
			Text:   fmt.Sprintf("entry %d, not verified (palyra journal verify does that)\n%s", index, s.Rows().String()),
			Fields: front.Document{"index": index, "statement": s.Document()},
		}, nil
	}
	return nil, fault.New(fault.Internal, "internal", fmt.Sprintf("show entry %d", index), errors.New("the journal gave none"))
}

// statementOf reads the statement in an entry's content.
func statementOf(rec *journal.Record) (*account.Statement, error) {
	e, err := receipt.ParseEnvelope(rec.Content)
	if err != nil {
		return nil, fault.New(fault.Integrity, fault.ReasonOf(err), fmt.Sprintf("read entry %d", rec.Index), err)
	}
	return account.Parse(e.Payload)
}

// summarise adds an entry to t, as one row.
func summarise(t *front.Table, rec *journal.Record) (front.Document, error) {
	s, err := statementOf(rec)
	if err != nil {
		return nil, err
	}
	if s.Act != nil {
		a := &s.Act.Predicate
		t.Row(rec.Index, a.Time, "act", a.Act, a.Subject)
		return front.Document{"index": rec.Index, "kind": "act", "act": a.Act, "time": a.Time,
			"principal": a.Principal, "subject": a.Subject}, nil
	}
	p := &s.Call.Predicate
	kind, outcome := "result", p.Outcome
	if s.Call.IsIntent() {
		kind, outcome = "intent", ""
	}
	t.Row(rec.Index, p.Time, kind, outcome, account.Quoted(p.Capsule.Argv))
	return front.Document{"index": rec.Index, "kind": kind, "outcome": outcome, "time": p.Time,
		"call_id": p.CallID, "capsule": p.Capsule.Digest, "argv": p.Capsule.Argv}, nil
}
