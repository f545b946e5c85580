package receipt

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// TestEntry: an entry holds the same leaf and content, byte for byte, as the
// envelope of its statement, and gives the same receipt, which verifies.
func TestEntry(t *testing.T) {
	w := newWorld(t)
	k := w.ring.Attestation()
	for n := range 9 { // proofs of several lengths, from none
		s := NewStatement(predicate(), canon.Digest{}, canon.Digest{})
		if n%2 == 1 {
			s = result(predicate(), Executed, uint64(n))
		}
		e, err := SignEntry(k, s)
		if err != nil {
			t.Fatal(err)
		}
		env, err := Sign(k, s) // signatures are deterministic
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := Leaf(env, k)
		if err != nil || !bytes.Equal(e.Leaf(), leaf) {
			t.Fatalf("leaf %s, want %s, %v", e.Leaf(), leaf, err)
		}
		content, err := canon.Marshal(env)
		if err != nil || !bytes.Equal(e.Content(), content) {
			t.Fatalf("content %s, want %s, %v", e.Content(), content, err)
		}
		same, err := env.Entry(k)
		if err != nil || !bytes.Equal(same.Leaf(), leaf) || !bytes.Equal(same.Content(), content) {
			t.Fatalf("of an envelope: %s, %s, %v", same.Leaf(), same.Content(), err)
		}
		pos, err := w.j.Append(context.Background(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
		if err != nil {
			t.Fatal(err)
		}
		p, err := w.j.Prove(t.Context(), pos.Index)
		if err != nil {
			t.Fatal(err)
		}
		b, err := e.Bundle(p, w.t)
		if err != nil {
			t.Fatal(err)
		}
		if want := w.receipt(t, pos.Index, env); !bytes.Equal(b, want) {
			t.Fatalf("receipt %s, want %s", b, want)
		}
		if _, err := Verify(b, w.t); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEntryOfAnother: no receipt comes of a proof for another entry, nor under
// the trust in another key.
func TestEntryOfAnother(t *testing.T) {
	w, other := newWorld(t), newWorld(t)
	e, err := SignEntry(w.ring.Attestation(), result(predicate(), Executed, w.intent(t, predicate())))
	if err != nil {
		t.Fatal(err)
	}
	p, err := w.j.Prove(t.Context(), 0) // the intent
	if err != nil {
		t.Fatal(err)
	}
	if b, err := e.Bundle(p, w.t); fault.ReasonOf(err) != "receipt_inclusion" {
		t.Errorf("proof of another entry: %s, %v", b, err)
	}
	pos, err := w.j.Append(context.Background(), journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
	if err != nil {
		t.Fatal(err)
	}
	if p, err = w.j.Prove(t.Context(), pos.Index); err != nil {
		t.Fatal(err)
	}
	if b, err := e.Bundle(p, other.t); fault.ReasonOf(err) != "receipt_key" {
		t.Errorf("trust in another key: %s, %v", b, err)
	}
	if _, err := SignEntry(w.ring.Attestation(), Statement{}); err == nil {
		t.Error("an empty statement was signed")
	}
	long := result(predicate(), Executed, 0)
	long.Predicate.Evidence = json.RawMessage(`{"x":"` + strings.Repeat("x", maxPayload) + `"}`)
	if _, err := SignEntry(w.ring.Attestation(), long); fault.ReasonOf(err) != "too_large" {
		t.Errorf("too long: %v", err)
	}
}
