package vault

import (
	"bytes"
	"testing"
	"time"

	"palyra/internal/fault"
)

// TestOwnKey: the program's own key stays the same through rotations and restarts, and no list or
// reference shows it.
func TestOwnKey(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	if _, err := v.OwnKey(t.Context(), "memory", false); fault.KindOf(err) != fault.NotFound {
		t.Fatalf("before it's made: %v", err)
	}
	own := func(v *Vault, create bool) []byte {
		t.Helper()
		k, err := v.OwnKey(t.Context(), "memory", create)
		if err != nil {
			t.Fatal(err)
		}
		defer k.Wipe()
		return bytes.Clone(k.Bytes())
	}
	first := own(v, true)
	if !bytes.Equal(own(v, true), first) || len(first) != 32 {
		t.Error("it's another one the second time")
	}
	if _, err := v.Set(t.Context(), ref(t, "vault://global/a"), []byte("value"), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := v.RotateKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := v.RotateValues(t.Context()); err != nil {
		t.Fatal(err)
	}
	again := h.open(t)
	if !bytes.Equal(own(again, false), first) {
		t.Error("a rotation lost it")
	}
	if list, err := again.List(t.Context()); err != nil || len(list) != 1 {
		t.Errorf("%d secrets, %v", len(list), err)
	}
	for _, s := range []string{"vault://own/memory", "vault:///memory", "memory"} {
		if _, err := ParseRef(s); err == nil {
			t.Errorf("%q is a reference", s)
		}
	}
	if n, err := again.Check(t.Context()); err != nil || n != 1 {
		t.Errorf("%d versions, %v", n, err)
	}
}
