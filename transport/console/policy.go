package console

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
)

// still shows a page that the script doesn't fetch again: one that answers a form, or that costs
// more than a second's look is worth.
func (t *turn) still(page, title string, data any) error {
	st, err := hub.GetStatus.Do(t.next(), t.v.Hub, t.v.Caller, hub.None{})
	if err != nil {
		return err
	}
	return t.c.show(t.w, nil, 200, page, view{Title: title, At: t.words[0], Caller: t.v.Caller, Status: st, Here: t.r.URL.RequestURI(), Data: data})
}

// decided is a decision about a call, as the journal has it.
type decided struct {
	hub.JournalEntry
	ID, Effect, Reason string
	Policies           []string
	Argv               []string
}

// decisions returns those among the newest entries of the journal, newest first, each once.
func (t *turn) decisions() (out []decided, err error) {
	j, err := may(t, hub.GetJournal, hub.None{})
	if err != nil || j == nil || j.Size == 0 {
		return nil, err
	}
	const many = 50
	from := j.Size - min(j.Size, many)
	p, err := may(t, hub.ListJournalEntries, hub.JournalQuery{From: from, Limit: many})
	if err != nil || p == nil {
		return nil, err
	}
	seen := make(map[string]bool)
	for _, e := range slices.Backward(p.Items) {
		var s struct {
			Predicate struct {
				Capsule  struct{ Argv []string }
				Decision struct {
					ID, Effect, Reason string
					Policies           []string
				}
			}
		}
		if e.Act != "" || len(e.Statement) == 0 || json.Unmarshal(e.Statement, &s) != nil {
			continue
		}
		d := &s.Predicate.Decision
		if d.ID != "" && !seen[d.ID] {
			seen[d.ID] = true
			out = append(out, decided{e, d.ID, d.Effect, d.Reason, d.Policies, s.Predicate.Capsule.Argv})
		}
	}
	return out, nil
}

func (t *turn) policy() error {
	p, err := ask(t, hub.GetPolicy, hub.None{})
	if err != nil {
		return err
	}
	sets, err := ask(t, hub.ListPolicySets, hub.None{})
	if err != nil {
		return err
	}
	ds, err := t.decisions()
	if err != nil {
		return err
	}
	return t.show("policy", "Policy", struct {
		hub.PolicyInfo
		Sets      []hub.KeptPolicySet
		Decisions []decided
	}{p, sets.Items, ds})
}

// maxText bounds the text of a file that a page shows, in bytes.
const maxText = 256 << 10

// text is a file of a policy set.
type text struct {
	Name, Text string
	Cut        bool
}

func (t *turn) policySet() error {
	s, err := ask(t, hub.GetPolicySet, t.words[2])
	if err != nil {
		return err
	}
	left := maxText
	var files []text
	for _, name := range slices.Sorted(maps.Keys(s.Files)) {
		all := s.Files[name]
		f := text{name, all[:min(len(all), left)], len(all) > left}
		left -= len(f.Text)
		files = append(files, f)
	}
	return t.still("policyset", "Policy set", struct {
		hub.KeptPolicySet
		Texts []text
	}{s, files})
}

// findDecision leads to the decision whose id, or its beginning, a form has.
func (t *turn) findDecision() error {
	d, err := ask(t, hub.GetDecision, strings.TrimSpace(t.r.URL.Query().Get("id")))
	if err != nil {
		return err
	}
	return see(t.w, t.r, root+"policy/decisions/"+d.DecisionID)
}

func (t *turn) decision() error {
	d, err := ask(t, hub.GetDecision, t.words[2])
	if err != nil {
		return err
	}
	return t.still("decision", "Decision", struct {
		hub.DecisionReport
		Change bool // the fix is one that can be tried
	}{d, strings.HasPrefix(d.Fix, "--- ")})
}

func (t *turn) reload() error {
	if _, err := ask(t, hub.Reload, hub.None{}); err != nil {
		return err
	}
	return t.see("policy", "reloaded")
}

func (t *turn) testPolicy() error {
	r, err := ask(t, hub.TestPolicy, hub.PolicyTestRequest{})
	if err != nil {
		return err
	}
	return t.still("policytest", "Policy tests", r)
}

// tried is a change to the set in force, and what it would have done.
type tried struct {
	File, Text string
	Fix        string // the decision whose change it is
	Diff       *hub.PolicyDiff
	Broken     bool // the set with the change doesn't load
}

// tryForm shows a file of the set in force, to be changed.
func (t *turn) tryForm() error {
	p, err := ask(t, hub.GetPolicy, hub.None{})
	if err != nil {
		return err
	}
	s, err := ask(t, hub.GetPolicySet, p.Digest)
	if err != nil {
		return err
	}
	name := t.r.URL.Query().Get("file")
	return t.still("policytry", "Try a change", tried{File: name, Text: s.Files[name]})
}

// tryChange decides recent calls again by the set in force with one file changed, or with the
// change that a decision offers. Nothing is written.
func (t *turn) tryChange() error {
	f := t.v.Form
	v := tried{File: f.Get("file"), Text: strings.ReplaceAll(f.Get("text"), "\r\n", "\n"), Fix: f.Get("fix")}
	q := hub.PolicyDiffQuery{Fix: v.Fix, Last: 1000}
	if v.Fix == "" {
		p, err := ask(t, hub.GetPolicy, hub.None{})
		if err != nil {
			return err
		}
		s, err := ask(t, hub.GetPolicySet, p.Digest)
		if err != nil {
			return err
		}
		if q.Diff, err = replacing(v.File, s.Files[v.File], v.Text); err != nil {
			return err
		}
	}
	d, err := ask(t, hub.DiffPolicy, q)
	switch v.Broken = fault.KindOf(err) == fault.BadState; {
	case err == nil:
		v.Diff = &d
	case !v.Broken:
		return err
	}
	return t.still("policytry", "Try a change", v)
}

// replacing returns the unified diff that puts one text of a file in place of another; "" is that
// of no file.
func replacing(name, old, now string) (string, error) {
	if name == "" || strings.ContainsAny(name, "/\n\r\t\x00") {
		return "", fault.New(fault.Usage, "invalid_input", "try change", errors.New("want the name of a file, without a folder"))
	}
	if now != "" && !strings.HasSuffix(now, "\n") {
		now += "\n"
	}
	if old == now {
		return "", fault.New(fault.Usage, "invalid_input", "try change", errors.New("the text is that of the set in force"))
	}
	from, to := "a/"+name, "b/"+name
	if old == "" {
		from = "/dev/null"
	}
	if now == "" {
		to = "/dev/null"
	}
	var b strings.Builder
	part := func(mark byte, text string) {
		for line := range strings.Lines(text) {
			b.WriteByte(mark)
			b.WriteString(line)
			if !strings.HasSuffix(line, "\n") {
				b.WriteString("\n\\ No newline at end of file\n")
			}
		}
	}
	span := func(text string) string {
		n := len(slices.Collect(strings.Lines(text)))
		return fmt.Sprintf("%d,%d", min(n, 1), n)
	}
	fmt.Fprintf(&b, "--- %s\n+++ %s\n@@ -%s +%s @@\n", from, to, span(old), span(now))
	part('-', old)
	part('+', now)
	return b.String(), nil
}
