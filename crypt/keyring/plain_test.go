package keyring

import (
	"os"
	"path/filepath"
	"testing"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// TestPlain: keys lie plain under a name alone, which sealing takes away, and another process's
// first use isn't told twice.
func TestPlain(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	word := func() Acknowledgement {
		t.Helper()
		a, err := Acknowledged(dir)
		if err != nil {
			t.Fatal(err)
		}
		if a == nil {
			return Acknowledgement{}
		}
		return *a
	}
	r, err := OpenOptions(dir, Options{By: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	if a := word(); !r.FirstPlain() || a.By != "ann" || a.How != FirstUse || a.Time == "" {
		t.Errorf("made: first %v, %+v", r.FirstPlain(), a)
	}
	if r, err = OpenOptions(dir, Options{By: "bob"}); err != nil || r.FirstPlain() || word().By != "ann" {
		t.Errorf("opened again: %v, first %v, %+v", err, r.FirstPlain(), word())
	}

	unlock, to := owner(t, "owner")
	if err := r.Seal(dir, []*seal.PublicKey{to}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if a := word(); a != (Acknowledgement{}) {
		t.Errorf("sealed, and still %+v", a)
	}
	if r, err = OpenOptions(dir, Options{By: "bob", Unlock: unlock}); err != nil || r.FirstPlain() || word() != (Acknowledgement{}) {
		t.Fatalf("sealed keys opened: %v, first %v, %+v", err, r.FirstPlain(), word())
	}
	if err := Acknowledge(dir, "cid"); err != nil {
		t.Fatal(err)
	}
	if err := r.Seal(dir, nil, func(string) {}); err != nil {
		t.Fatal(err)
	}
	if r, err = OpenOptions(dir, Options{By: "bob"}); err != nil || r.FirstPlain() || word().By != "cid" || word().How != Asked {
		t.Errorf("asked for: %v, first %v, %+v", err, r.FirstPlain(), word())
	}

	// A directory of before has plain keys and no word, so its next use is the first.
	path := filepath.Join(dir, keysDir, plainFile)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if r, err = OpenOptions(dir, Options{By: "bob"}); err != nil || !r.FirstPlain() || word().By != "bob" {
		t.Errorf("without a word: %v, first %v, %+v", err, r.FirstPlain(), word())
	}
	for _, bad := range []string{"", "{}", `{"by":"","how":"asked","time":"","version":1}`, `{"by":"ann","how":"whim","time":"","version":1}`} {
		if err := os.WriteFile(path, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if a, err := Acknowledged(dir); fault.ReasonOf(err) != "key_corrupt" || a != nil {
			t.Errorf("%q: %+v, %v", bad, a, err)
		}
	}
}
