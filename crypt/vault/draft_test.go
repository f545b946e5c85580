package vault

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// TestDraft: what is stored is the record that was decided about, and no other; a draft that the
// vault went on from is refused.
func TestDraft(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	const key = "vault://global/a"
	draft := func(r, value string) *Draft {
		t.Helper()
		d, err := v.Draft(t.Context(), ref(t, r), []byte(value), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	refused := func(reason string, d *Draft, want canon.Digest) {
		t.Helper()
		epoch := v.Epoch()
		if err := v.Store(t.Context(), d, want); fault.ReasonOf(err) != reason {
			t.Errorf("%v, want %s", err, reason)
		}
		if _, err := v.Check(t.Context()); err != nil || v.Epoch() != epoch {
			t.Errorf("the vault is at epoch %d and was at %d: %v", v.Epoch(), epoch, err)
		}
	}
	a, same := draft(key, "approved"), draft(key, "approved")
	if a.Digest() == same.Digest() {
		t.Error("the same value has the same digest: it can be guessed")
	}
	if es, err := os.ReadDir(filepath.Join(h.dir, "records")); err != nil || len(es) > 0 || v.Epoch() != 1 {
		t.Errorf("drafts wrote %d records: %v", len(es), err)
	}
	// Another record, whole or its bytes alone, isn't the one that was decided about.
	b := draft(key, "exchanged")
	refused("invalid_input", b, a.Digest())
	forged := *a
	forged.record = b.record
	refused("invalid_input", &forged, a.Digest())
	forged = *a
	forged.x = b.x
	refused("invalid_input", &forged, a.Digest())

	if err := v.Store(t.Context(), a, a.Digest()); err != nil {
		t.Fatal(err)
	}
	wants(t, v, key, 0, "approved")
	if kept, err := os.ReadFile(v.record(&a.x)); err != nil || canon.Sum(kept) != a.Digest() || bytes.Contains(kept, []byte("approved")) {
		t.Errorf("the file isn't the record that was decided about: %v", err)
	}
	refused("changed", a, a.Digest()) // twice
	refused("changed", b, b.Digest()) // its number is taken

	// Other secrets don't matter; a new key and a removed name's count do.
	c := draft(key, "third")
	set(t, v, "vault://global/b", "another")
	if err := v.Store(t.Context(), c, c.Digest()); err != nil {
		t.Error(err)
	}
	c = draft(key, "of the old key")
	if err := v.RotateKey(t.Context()); err != nil {
		t.Fatal(err)
	}
	refused("changed", c, c.Digest())

	other := newHouse(t)
	w := other.create(t)
	if d, err := w.Draft(t.Context(), ref(t, "vault://global/new"), []byte("of another vault"), time.Time{}); err != nil {
		t.Error(err)
	} else {
		d.generation = v.head.Generation
		refused("changed", d, d.Digest())
	}
	if s, _, err := v.Get(t.Context(), ref(t, key), 0); err != nil || string(s.Bytes()) != "third" {
		t.Errorf("%v", err)
	} else {
		s.Wipe()
	}
}

// TestRecordGone: a record that was taken away is a damaged vault, and not a secret that isn't there.
func TestRecordGone(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	r := ref(t, "vault://global/a")
	set(t, v, "vault://global/a", "value")
	if err := os.Remove(v.record(&v.idx.Secrets[0].Versions[0])); err != nil {
		t.Fatal(err)
	}
	if _, _, err := v.Get(t.Context(), r, 0); fault.KindOf(err) != fault.Integrity {
		t.Errorf("get: %v", err)
	}
	if _, err := v.Check(t.Context()); fault.ReasonOf(err) != "store_corrupt" {
		t.Errorf("check: %v", err)
	}
}
