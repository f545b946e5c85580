package oracle

import (
	"testing"
	"time"

	fnote "github.com/transparency-dev/formats/note"
	"golang.org/x/mod/sumdb/note"

	"palyra/crypt/journal"
	"palyra/crypt/witness"
)

// TestCosignature compares cosignatures with transparency-dev's, both ways.
func TestCosignature(t *testing.T) {
	h := newHouse(t)
	if _, err := h.j.Append(t.Context(), journal.Entry{Leaf: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	checkpoint, err := h.j.Checkpoint(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	k, err := witness.NewKey(witness.Name(h.ring.Log().Origin(), "laptop"))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Unix(1679315147, 0)
	ours, err := k.Cosign(checkpoint, at)
	if err != nil {
		t.Fatal(err)
	}
	theirs, err := fnote.NewVerifierForCosignatureV1(k.Public().VKey())
	if err != nil {
		t.Fatal(err)
	}
	n, err := note.Open(ours, note.VerifierList(h.verifier(t), theirs))
	if err != nil || len(n.Sigs) != 2 || len(n.UnverifiedSigs) != 0 {
		t.Fatalf("ours under theirs: %+v, %v", n, err)
	}
	if got, err := fnote.CoSigV1Timestamp(n.Sigs[1]); err != nil || !got.Equal(at) {
		t.Errorf("its time: %v, %v", got, err)
	}
	skey := string(k.Encode())
	signer, err := fnote.NewSignerForCosignatureV1(skey[:len(skey)-1])
	if err != nil {
		t.Fatal(err)
	}
	m, err := note.Open(checkpoint, note.VerifierList(h.verifier(t)))
	if err != nil {
		t.Fatal(err)
	}
	both, err := note.Sign(m, signer)
	if err != nil {
		t.Fatal(err)
	}
	c, err := k.Public().Open(both, witness.Keys{{VKey: h.ring.Log().VKey()}})
	if err != nil || c.Size != 1 || time.Since(c.Time) > time.Hour {
		t.Errorf("theirs under ours: %+v, %v", c, err)
	}
}
