package receipt

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/internal/canon"
)

// logAct signs and appends an act.
func (w *world) logAct(t testing.TB, a Act) (uint64, *Envelope) {
	t.Helper()
	e, err := SignAct(w.ring.Attestation(), a)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := Leaf(e, w.ring.Attestation())
	if err != nil {
		t.Fatal(err)
	}
	pos, err := w.j.Append(context.Background(), journal.Entry{Leaf: leaf, Content: e.Encode()})
	if err != nil {
		t.Fatal(err)
	}
	return pos.Index, e
}

func act() Act {
	return Act{Version: ActVersion, Act: "policy.reload", Time: "2026-11-21T09:00:00.5Z", BootID: "b",
		Principal: `Palyra::User::"uid:1000"`, Subject: "policy", Detail: map[string]string{"set": "sha256:00", "from": "é\u202e"}}
}

// TestAct signs an act, verifies it as a stranger would and audits the journal.
func TestAct(t *testing.T) {
	w := newWorld(t)
	w.intent(t, predicate())
	i, e := w.logAct(t, act())
	v, err := Verify(w.receipt(t, i, e), w.t)
	if err != nil {
		t.Fatal(err)
	}
	if v.Act == nil || v.Act.Act != "policy.reload" || v.Act.Detail["from"] != "é\u202e" || v.Outcome != "" || v.Statement.Type != "" {
		t.Errorf("got %+v", v)
	}
	// The subject is what cosign compares a file with: the predicate's bytes.
	p, err := canon.Marshal(act())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(e.Payload, []byte(canon.Sum(p).Hex())) {
		t.Error("the digest of the predicate is not in the statement")
	}
	rep, err := Audit(w.journalDir(), w.t)
	if err != nil || rep.Acts != 1 || rep.Intents != 1 {
		t.Errorf("got %+v, %v", rep, err)
	}
	// A statement that claims to be later than it is.
	a := act()
	a.Seq = 17
	w.logAct(t, a)
	if _, err := Audit(w.journalDir(), w.t); err == nil || !strings.Contains(err.Error(), "seq 17") {
		t.Errorf("act from the future: got %v", err)
	}
}

func TestActRefused(t *testing.T) {
	w := newWorld(t)
	if _, err := SignAct(w.ring.Attestation(), act()); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(a *Act){
		"version":       func(a *Act) { a.Version = 2 },
		"no name":       func(a *Act) { a.Act = "" },
		"name":          func(a *Act) { a.Act = "Policy Reload" },
		"long name":     func(a *Act) { a.Act = strings.Repeat("x", maxActName+1) },
		"no principal":  func(a *Act) { a.Principal = "" },
		"time":          func(a *Act) { a.Time = "yesterday" },
		"detail's name": func(a *Act) { a.Detail["Grüße"] = "" },
		"long detail":   func(a *Act) { a.Detail["set"] = strings.Repeat("x", maxActText+1) },
		"long subject":  func(a *Act) { a.Subject = strings.Repeat("x", maxActText+1) },
		"not UTF-8":     func(a *Act) { a.Subject = "a\xff" },
	} {
		a := act()
		spoil(&a)
		if _, err := SignAct(w.ring.Attestation(), a); err == nil {
			t.Errorf("%s: signed", name)
		}
	}
}

// FuzzParsePayload holds that there is one spelling of each statement.
func FuzzParsePayload(f *testing.F) {
	w := newWorld(f)
	a, err := SignAct(w.ring.Attestation(), act())
	if err != nil {
		f.Fatal(err)
	}
	s, err := Sign(w.ring.Attestation(), NewStatement(predicate(), canon.Digest{}, canon.Digest{}))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(a.Payload)
	f.Add(s.Payload)
	f.Add(bytes.Replace(a.Payload, []byte(`"_type"`), []byte(`"predicateType":"x","_type"`), 1))
	f.Add(bytes.Replace(a.Payload, []byte(`"subject":"policy"`), []byte(`"subject":"police"`), 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, act, err := ParsePayload(b)
		var again []byte
		switch {
		case err != nil:
			return
		case (s == nil) == (act == nil):
			t.Fatal("want one of the two")
		case act != nil:
			e, err := SignAct(w.ring.Attestation(), *act)
			if err != nil {
				t.Fatal(err)
			}
			again = e.Payload
		default:
			again, err = canon.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.Equal(again, b) {
			t.Fatalf("read %s, wrote %s", b, again)
		}
	})
}
