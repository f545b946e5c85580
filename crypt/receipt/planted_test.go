package receipt

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// planting is a predicate of a call with a workspace, and what was found there.
func planting() (Predicate, *Planted) {
	p := predicate()
	p.Capsule.Workspace = &Workspace{Source: "/srv/w"}
	return p, &Planted{Looked: 7, Incomplete: []Unlooked{{"depth", 1}, {"entries", 2}}, TimesKept: true,
		Kinds: []KindCount{{"fifo", 3}, {"hook", 2}, {"symlink", 1}},
		Found: []Finding{
			{Path: `.git/hooks/pre\x0acommit`, Kind: "hook", Mode: "100755", Moved: true},
			{Path: `.git/hooks/x`, Kind: "fifo", Mode: "010644"},
			{Path: `.git/hooks/x`, Kind: "hook", Mode: "010644"},
			{Path: "out-grüße", Kind: "symlink", Mode: "120777", Target: `/etc/\x1b[2J`},
		}}
}

func TestPlanted(t *testing.T) {
	w := newWorld(t)
	p, found := planting()
	i := w.intent(t, p)
	p.Planted = found
	at, e := w.log(t, result(p, Executed, i))
	v, err := Verify(w.receipt(t, at, e), w.t)
	if err != nil {
		t.Fatal(err)
	}
	if got := v.Statement.Predicate.Planted; got == nil || len(got.Found) != 4 || got.Found[0].Path != `.git/hooks/pre\x0acommit` || !got.Found[0].Moved {
		t.Errorf("verified %+v", got)
	}
	// That nothing was found is said, too.
	p.Planted = &Planted{TimesKept: true}
	if _, err := Sign(w.ring.Attestation(), result(p, TimedOut, i)); err != nil {
		t.Error(err)
	}
	p.Planted = found.Counts()
	if _, err := Sign(w.ring.Attestation(), result(p, Executed, i)); err != nil || len(found.Found) != 4 {
		t.Errorf("without the list: %v", err)
	}
}

func TestPlantedRefused(t *testing.T) {
	w := newWorld(t)
	for name, spoil := range map[string]func(*Predicate, *Planted){
		"without a workspace":     func(p *Predicate, _ *Planted) { p.Capsule.Workspace = nil },
		"in one to read":          func(p *Predicate, _ *Planted) { p.Capsule.Workspace.ReadOnly = true },
		"before anything ran":     func(p *Predicate, _ *Planted) { p.Intent, p.Outcome = nil, Refused },
		"by an intent":            func(p *Predicate, _ *Planted) { p.Outcome = "" },
		"looked at less than 0":   func(_ *Predicate, x *Planted) { x.Looked = -1 },
		"kinds out of order":      func(_ *Predicate, x *Planted) { x.Kinds[0], x.Kinds[1] = x.Kinds[1], x.Kinds[0] },
		"a kind twice":            func(_ *Predicate, x *Planted) { x.Kinds[0] = x.Kinds[1] },
		"a kind of nothing":       func(_ *Predicate, x *Planted) { x.Kinds[0].Count = 0 },
		"a kind that is no word":  func(_ *Predicate, x *Planted) { x.Kinds[0].Kind = "a b" },
		"fewer than are listed":   func(_ *Predicate, x *Planted) { x.Kinds[1].Count = 1 },
		"a kind that is not held": func(_ *Predicate, x *Planted) { x.Kinds = x.Kinds[1:] },
		"found out of order":      func(_ *Predicate, x *Planted) { x.Found[0], x.Found[1] = x.Found[1], x.Found[0] },
		"found twice":             func(_ *Predicate, x *Planted) { x.Found[1] = x.Found[2] },
		"no path":                 func(_ *Predicate, x *Planted) { x.Found[0].Path = "" },
		"a control character":     func(_ *Predicate, x *Planted) { x.Found[3].Path += "\x1b" },
		"one in a target":         func(_ *Predicate, x *Planted) { x.Found[3].Target += "\u009b" },
		"a path without end":      func(_ *Predicate, x *Planted) { x.Found[3].Path += strings.Repeat("x", maxFindingText) },
		"no mode":                 func(_ *Predicate, x *Planted) { x.Found[0].Mode = "" },
		"a mode in decimal":       func(_ *Predicate, x *Planted) { x.Found[0].Mode = "100855" },
		"incomplete of nothing":   func(_ *Predicate, x *Planted) { x.Incomplete[0].Folders = 0 },
		"incomplete twice":        func(_ *Predicate, x *Planted) { x.Incomplete[1] = x.Incomplete[0] },
		"incomplete for no word":  func(_ *Predicate, x *Planted) { x.Incomplete[0].Why = "" },
	} {
		p, x := planting()
		i := uint64(1)
		p.Outcome, p.Intent, p.Planted = Executed, &i, x
		p.Evidence = json.RawMessage(`{}`)
		if name == "by an intent" {
			p.Intent, p.Evidence = nil, nil
		}
		spoil(&p, x)
		if _, err := Sign(w.ring.Attestation(), NewStatement(p, canon.Digest{}, canon.Digest{})); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
	// And from others: null is no list, and what is not there is not null.
	p, x := planting()
	x.Found, x.Kinds = nil, nil
	i := w.intent(t, p)
	p.Planted = x
	payload, err := canon.Marshal(result(p, Executed, i))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range [][2]string{{`"found":[]`, `"found":null`}, {`"kinds":[]`, `"kinds":null`}, {`"looked":7`, `"looked":7.5`}, {`"looked":7`, `"looked":-7`}} {
		spoiled := bytes.Replace(payload, []byte(c[0]), []byte(c[1]), 1)
		if bytes.Equal(spoiled, payload) {
			t.Fatalf("no %s in %s", c[0], payload)
		}
		e, err := seal(w.ring.Attestation(), spoiled)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(w.receipt(t, w.append(t, e), e), w.t); fault.ReasonOf(err) != "receipt_statement" {
			t.Errorf("%s: %v", c[1], err)
		}
	}
}
