package durable

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestSlot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "slot")
	open := func(want string) *Slot {
		t.Helper()
		s, got, err := OpenSlot(path, []byte("first"))
		if err != nil || string(got) != want {
			t.Fatalf("got %q, %v, want %q", got, err, want)
		}
		t.Cleanup(func() { s.Close() })
		return s
	}
	s := open("first")
	for _, text := range []string{strings.Repeat("x", SlotSize), "second"} {
		if err := s.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		open(text)
	}
	if err := s.Write(make([]byte, SlotSize+1)); err == nil {
		t.Error("it took more than a sector")
	}
	if fi, err := os.Stat(path); err != nil || fi.Size() != slotBlock || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi, err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	open("short")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	open("")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := OpenSlot(path, nil); err == nil {
		t.Error("it followed a link")
	}
}
