package vault

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// storeBy stores a value for each reference, all or none, as by.
func storeBy(t *testing.T, v *Vault, by Storer, refs ...string) error {
	t.Helper()
	var values []NewValue
	for _, r := range refs {
		values = append(values, NewValue{Ref: ref(t, r), Value: []byte("value"), By: by})
	}
	ds, err := v.DraftAll(t.Context(), values)
	if err != nil {
		return err
	}
	var want []canon.Digest
	for _, d := range ds {
		want = append(want, d.Digest())
	}
	return v.StoreAll(t.Context(), ds, want)
}

// TestStorer: one principal fills neither the vault nor another's places, also not with secrets that
// it removes or that another one removed, and numbers of versions never come again.
func TestStorer(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	ann, bob := Storer{Name: "ann", Most: 3}, Storer{Name: "bob", Most: 3}
	stores := func(by Storer, refs ...string) {
		t.Helper()
		if err := storeBy(t, v, by, refs...); err != nil {
			t.Fatal(err)
		}
	}
	last := func(r string) uint64 {
		t.Helper()
		i, _, err := v.Find(t.Context(), ref(t, r), 0)
		if err != nil {
			t.Fatal(err)
		}
		return i.Version
	}
	remove := func(r string) {
		t.Helper()
		if err := v.Remove(t.Context(), ref(t, r)); err != nil {
			t.Fatal(err)
		}
	}
	const a, b, c, d = "vault://global/a", "vault://global/b", "vault://global/c", "vault://global/d"
	stores(ann, a, b)
	refused(t, storeBy(t, v, ann, c, d), fault.Unavailable, "quota") // all or none
	stores(ann, c)
	refused(t, storeBy(t, v, ann, d), fault.Unavailable, "quota")
	stores(ann, a, b, c) // new versions of one's own are free
	stores(bob, a)       // and of another's, which stay hers
	stores(bob, d)
	refused(t, storeBy(t, h.open(t), ann, "vault://global/e"), fault.Unavailable, "quota") // another handle counts the same
	stores(Storer{Name: "owner"}, "vault://global/owner")

	// What is removed gives its place back, and its numbers stay behind.
	n := last(a)
	remove(a)
	stores(ann, "vault://global/f")
	if got := last("vault://global/f"); got <= n {
		t.Errorf("version %d in the place of one with %d versions", got, n)
	}
	stores(bob, a)
	if got := last(a); got <= n {
		t.Errorf("version %d of %s, which had %d", got, a, n)
	}
	// A removed secret that another principal stores again is that one's.
	remove(b)
	refused(t, storeBy(t, v, Storer{Name: "bob", Most: 2}, b), fault.Unavailable, "quota")
	stores(bob, b)
	refused(t, storeBy(t, v, bob, "vault://global/g"), fault.Unavailable, "quota")
	if _, err := v.Check(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := h.open(t).Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestStorerSpare: members leave a part of all places to owners, and removed secrets don't hold any.
func TestStorerSpare(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	member, owner := Storer{Name: "ann", Spare: 10}, Storer{Name: "owner"}
	var refs []string
	for i := range MaxSecrets - 10 {
		refs = append(refs, fmt.Sprintf("vault://global/k%d", i))
	}
	if err := storeBy(t, v, member, refs...); err != nil {
		t.Fatal(err)
	}
	refused(t, storeBy(t, v, member, "vault://global/more"), fault.Unavailable, "quota")
	refs = nil
	for i := range 10 {
		refs = append(refs, fmt.Sprintf("vault://global/o%d", i))
	}
	if err := storeBy(t, v, owner, refs...); err != nil {
		t.Fatal(err)
	}
	refused(t, storeBy(t, v, owner, "vault://global/more"), fault.Refused, "too_large")
	if err := v.Remove(t.Context(), ref(t, "vault://global/k1")); err != nil {
		t.Fatal(err)
	}
	if err := storeBy(t, v, owner, "vault://global/more"); err != nil {
		t.Errorf("in the place of one that was removed: %v", err)
	}
}

// TestOldHead: a head of the first version opens, and the next change writes the second.
func TestOldHead(t *testing.T) {
	h := newHouse(t)
	v := h.create(t)
	set(t, v, "vault://global/a", "value of a")
	old := *v.head
	old.Version, old.Previous = oldVersion, v.raw
	old.Epoch++
	text, err := canon.Marshal(v.idx) // without makers it's what the first version wrote
	if err != nil || strings.Contains(string(text), `"by"`) || strings.Contains(string(text), `"floor"`) {
		t.Fatalf("%s, %v", text, err)
	}
	c, err := old.context()
	if err != nil {
		t.Fatal(err)
	}
	if old.Index, err = seal.Seal(v.kek, c, text); err != nil {
		t.Fatal(err)
	}
	b, err := canon.Marshal(old)
	if err != nil {
		t.Fatal(err)
	}
	if err := durable.WriteFile(filepath.Join(h.dir, headFile), b, 0o600); err != nil {
		t.Fatal(err)
	}
	o := h.open(t)
	if wants(t, o, "vault://global/a", 1, "value of a"); o.head.Version != oldVersion {
		t.Errorf("version %d", o.head.Version)
	}
	if err := storeBy(t, o, Storer{Name: "ann", Most: 1}, "vault://global/b"); err != nil {
		t.Fatal(err)
	}
	if refused(t, storeBy(t, o, Storer{Name: "ann", Most: 1}, "vault://global/c"), fault.Unavailable, "quota"); o.head.Version != headVersion {
		t.Errorf("version %d after a change", o.head.Version)
	}
	wants(t, h.open(t), "vault://global/a", 1, "value of a")
	old.Version = headVersion + 1
	if b, err = canon.Marshal(old); err == nil {
		err = durable.WriteFile(filepath.Join(h.dir, headFile), b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = Open(t.Context(), h.dir, h.log, h.id)
	refused(t, err, fault.Integrity, "store_corrupt")
}
