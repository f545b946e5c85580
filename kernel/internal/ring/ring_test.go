//go:build unix

package ring

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"palyra/internal/fault"
)

func key(n int) Key { return sha256.Sum256([]byte(strconv.Itoa(n))) }

func add(t *testing.T, r *Ring, n int, text string) {
	t.Helper()
	if err := r.Add(t.Context(), key(n), []byte(text)); err != nil {
		t.Fatal(err)
	}
}

func find(t *testing.T, r *Ring, n int) string {
	t.Helper()
	k, b, err := r.Find(t.Context(), slices.Values([]Key{key(-1), key(n)}))
	if err != nil || (k == key(n)) != (b != nil) || (k == Key{}) != (b == nil) {
		t.Fatal(k, err)
	}
	return string(b)
}

// TestShared: what one Ring adds another finds, the newest of a key and the newest of all.
func TestShared(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	a, b := New(path), New(path)
	if got := find(t, b, 1); got != "" {
		t.Errorf("%q in no file", got)
	}
	if _, err := os.Lstat(path); err == nil {
		t.Error("a look makes the file")
	}
	add(t, a, 1, "one")
	if got := find(t, b, 1); got != "one" {
		t.Errorf("%q", got)
	}
	add(t, b, 1, "again")
	add(t, a, 2, "two")
	for _, r := range []*Ring{a, b, New(path)} {
		if one, two, none := find(t, r, 1), find(t, r, 2), find(t, r, 3); one != "again" || two != "two" || none != "" {
			t.Errorf("%q, %q, %q", one, two, none)
		}
	}
	for n := range Slots - 1 {
		add(t, a, 1000+n, strconv.Itoa(n))
	}
	for _, r := range []*Ring{a, b, New(path)} {
		if one, two, first, last := find(t, r, 1), find(t, r, 2), find(t, r, 1000), find(t, r, 1000+Slots-2); one != "" || two != "two" || first != "0" || last != strconv.Itoa(Slots-2) {
			t.Errorf("%q, %q, %q, %q", one, two, first, last)
		}
		if len(r.at) != Slots {
			t.Errorf("%d keys are known", len(r.at))
		}
	}
	add(t, b, 1, "the last")
	if one, two := find(t, a, 1), find(t, a, 2); one != "the last" || two != "" {
		t.Errorf("%q, %q", one, two)
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != (Slots+1)*slot || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := a.Add(t.Context(), key(9), make([]byte, MaxRecord)); err != nil || len(find(t, b, 9)) != MaxRecord {
		t.Errorf("the longest: %v", err)
	}
	if err := a.Add(t.Context(), key(9), make([]byte, MaxRecord+1)); fault.ReasonOf(err) != "too_large" {
		t.Errorf("a longer one: %v", err)
	}
}

// TestLost: a file that is gone, cut off or garbage has nothing, and takes records all the same.
func TestLost(t *testing.T) {
	for name, harm := range map[string]func(path string) error{
		"gone":    os.Remove,
		"empty":   func(path string) error { return os.Truncate(path, 0) },
		"garbage": func(path string) error { return os.WriteFile(path, bytes.Repeat([]byte("x"), 3000), 0o600) },
		"another": func(path string) error {
			other := New(path + ".new")
			if err := other.Add(t.Context(), key(7), []byte("seven")); err != nil {
				return err
			}
			return os.Rename(path+".new", path)
		},
	} {
		path := filepath.Join(t.TempDir(), "ring")
		r := New(path)
		add(t, r, 1, "one")
		add(t, r, 2, "two")
		if find(t, r, 1) != "one" {
			t.Fatal("it isn't there")
		}
		if err := harm(path); err != nil {
			t.Fatal(err)
		}
		if got := find(t, r, 1); got != "" {
			t.Errorf("%s: %q", name, got)
		}
		add(t, r, 3, "three")
		if one, three := find(t, New(path), 1), find(t, r, 3); one != "" || three != "three" {
			t.Errorf("%s: %q, %q", name, one, three)
		}
	}
	path := filepath.Join(t.TempDir(), "ring")
	r := New(path)
	add(t, r, 1, "one")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	binary.BigEndian.PutUint16(b[slot+sha256.Size:], 0xffff) // a length beyond the slot
	binary.BigEndian.PutUint64(b[len(magic)+16:], 1<<40)     // more records than there are
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := find(t, New(path), 1); len(got) > MaxRecord {
		t.Errorf("%d bytes", len(got))
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(path, link); err != nil {
		t.Fatal(err)
	}
	if _, _, err := New(link).Find(t.Context(), slices.Values([]Key{key(1)})); fault.ReasonOf(err) != "bad_file" {
		t.Errorf("a link in its place: %v", err)
	}
}

// TestBeside: Rings that add beside others lose none.
func TestBeside(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ring")
	var wg sync.WaitGroup
	for p := range 4 {
		wg.Go(func() {
			r := New(path)
			for n := range 50 {
				if err := r.Add(t.Context(), key(p*100+n), []byte{byte(p), byte(n)}); err != nil {
					t.Error(err)
				}
				if _, b, err := r.Find(t.Context(), slices.Values([]Key{key(p*100 + n)})); err != nil || !bytes.Equal(b, []byte{byte(p), byte(n)}) {
					t.Errorf("%x, %v", b, err)
				}
			}
		})
	}
	wg.Wait()
	r := New(path)
	for p := range 4 {
		for n := range 50 {
			if got := find(t, r, p*100+n); got != string([]byte{byte(p), byte(n)}) {
				t.Errorf("%d of %d: %x", n, p, got)
			}
		}
	}
}
