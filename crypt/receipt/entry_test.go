package receipt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"strings"
	"testing"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
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
		leaf, err := canon.Marshal(recordOf(keyring.PAEDigest(env.PayloadType, env.Payload), env.Signatures[0].Sig, k.SPKI()))
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
		p, err := w.j.Prove(pos.Index)
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
	p, err := w.j.Prove(0) // the intent
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
	if p, err = w.j.Prove(pos.Index); err != nil {
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
	if _, err := SignEntry(w.ring.Attestation(), long); fault.ReasonOf(err) != "statement_size" {
		t.Errorf("too long: %v", err)
	}
}

// FuzzPrint compares what is printed piece by piece with what canon prints of
// the types that say what it is.
func FuzzPrint(f *testing.F) {
	w := newWorld(f)
	f.Add([]byte(nil), []byte(nil), []byte(nil), "", uint64(0), uint64(1))
	f.Add([]byte("payload"), []byte("sig"), []byte("hashes"), "origin\n3\nroot\n\n\u2014 origin sig\n", uint64(2), uint64(3))
	f.Add([]byte{0xff}, []byte{0}, bytes.Repeat([]byte("h"), 700), "\"\\\x00\u2028\U0001F600", uint64(1<<63-1), uint64(1<<62))
	f.Fuzz(func(t *testing.T, payload, sig, hashes []byte, note string, index, size uint64) {
		env := Envelope{Payload: payload, PayloadType: keyring.StatementType, Signatures: []Signature{{Sig: sig}}}
		content, err := canon.Marshal(env)
		if err != nil || !bytes.Equal(env.Encode(), content) {
			t.Fatalf("envelope %s, want %s, %v", env.Encode(), content, err)
		}
		digest, spki := sha256.Sum256(payload), w.t.spki
		leaf, err := encodeLeaf(digest, sig, spki)
		if want, werr := canon.Marshal(recordOf(digest, sig, spki)); err != nil || werr != nil || !bytes.Equal(leaf, want) {
			t.Fatalf("leaf %s, %v, want %s, %v", leaf, err, want, werr)
		}
		p := journal.Proof{Index: index, Size: size, Root: sha256.Sum256(sig), Checkpoint: []byte(note)}
		for len(hashes) > 0 {
			p.Hashes = append(p.Hashes, sha256.Sum256(hashes))
			hashes = hashes[min(len(hashes), 20):]
		}
		got, err := (&Entry{leaf: leaf, content: content}).bundle(&p, w.t)
		want, werr := encodeBundle(&env, p, leaf, w.t)
		if (err == nil) != (werr == nil) || !bytes.Equal(got, want) {
			t.Fatalf("bundle %s, %v, want %s, %v", got, err, want, werr)
		}
	})
}
