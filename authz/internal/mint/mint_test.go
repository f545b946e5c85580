package mint

import (
	"bytes"
	"testing"
	"time"

	"palyra/internal/canon"
)

var (
	capsule = canon.Sum([]byte("capsule"))
	spec    = canon.Sum([]byte("spec"))
)

func minted(k Key) Grant { return Mint(k, capsule, spec, [16]byte{7}, time.Unix(1_700_000_000, 999)) }

func TestCheck(t *testing.T) {
	k := NewKey()
	if !k.Check(minted(k)) {
		t.Error("a minted grant does not check")
	}
	if k.Check(Grant{}) || (Key{}).Check(Grant{}) {
		t.Error("the zero grant checks")
	}
	if NewKey().Check(minted(k)) {
		t.Error("checks under another key")
	}
	if a, b := minted(k), minted(k); a.Body().Nonce == b.Body().Nonce {
		t.Error("two grants share a nonce")
	}
	if back := KeyFromBytes(k.Bytes()); !back.Check(minted(k)) {
		t.Error("the key does not survive its bytes")
	}
	if s := k.String(); bytes.Contains([]byte(s), []byte{k.k[0], k.k[1]}) || s != "grant key" {
		t.Errorf("the key prints as %q", s)
	}
}

// Every bit of the wire form counts.
func TestEveryBitCounts(t *testing.T) {
	k := NewKey()
	g := minted(k)
	wire, err := g.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	var back Grant
	if err := back.UnmarshalBinary(wire); err != nil || !k.Check(back) || back.Body() != g.Body() {
		t.Fatalf("round trip: %v", err)
	}
	for i := range len(wire) * 8 {
		flipped := bytes.Clone(wire)
		flipped[i/8] ^= 1 << (i % 8)
		var h Grant
		if err := h.UnmarshalBinary(flipped); err == nil && k.Check(h) {
			t.Fatalf("bit %d does not count", i)
		}
	}
}

func FuzzUnmarshalBinary(f *testing.F) {
	k := KeyFromBytes([32]byte{1})
	wire, _ := minted(k).MarshalBinary()
	f.Add(wire)
	f.Add(wire[:len(wire)-1])
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var g Grant
		if g.UnmarshalBinary(b) != nil {
			return
		}
		if again, err := g.MarshalBinary(); err != nil || !bytes.Equal(again, b) {
			t.Fatalf("%x reads as %x", b, again)
		}
		if NewKey().Check(g) {
			t.Fatal("forged")
		}
	})
}
