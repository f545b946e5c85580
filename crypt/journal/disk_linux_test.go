package journal

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"palyra/crypt/keyring"
	"palyra/internal/fault"
)

// smallDisk mounts a tmpfs of this size and returns a private folder on it.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: mounts a tmpfs")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size="+size+",mode=0700"); err != nil {
		if err == syscall.EPERM {
			t.Skip("needs root with CAP_SYS_ADMIN: mounts a tmpfs")
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestFullDisk fills a disk with entries, and goes on when there is room again.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, "512k")
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &house{ring: ring, dir: filepath.Join(dir, "journal")}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 128<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	j := s.open(t, Options{})
	n := 0
	for ; ; n++ {
		_, err := j.Append(context.Background(), Entry{Leaf: leafN(n), Content: make([]byte, 3000)})
		if err == nil {
			continue
		}
		if fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != "disk_full" || fault.HintOf(err) == "" {
			t.Fatalf("append: %v (%s), want disk_full", err, fault.ReasonOf(err))
		}
		break
	}
	if n < 20 || n > 500 || j.Size() != uint64(n) {
		t.Fatalf("%d entries fit, size %d", n, j.Size())
	}
	for i := range n {
		p, err := j.Prove(t.Context(), uint64(i))
		if err != nil {
			t.Fatal(err)
		}
		verifyProof(t, ring.Log().VKey(), p, leafN(i))
	}
	if _, err := j.Content(uint64(n - 1)); err != nil {
		t.Error(err)
	}
	s.check(t)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	add(t, j, n, n+5)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := s.check(t); r.Size != uint64(n+5) {
		t.Errorf("size %d, want %d", r.Size, n+5)
	}
}

// TestFullDiskSeals fills the disk so that completing a tile fails: the log
// goes on in its write-ahead file and moves it later.
func TestFullDiskSeals(t *testing.T) {
	dir := smallDisk(t, "2m")
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &house{ring: ring, dir: filepath.Join(dir, "journal")}
	j := s.open(t, Options{})
	for i := range 260 {
		if _, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: bytes.Repeat([]byte{'x'}, 3000)}); err != nil {
			t.Fatal(err)
		}
	}
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 900<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := j.Publish(t.Context()); fault.KindOf(err) != fault.Unavailable {
		t.Fatalf("publish on a full disk: %v, want unavailable", err)
	}
	add(t, j, 260, 262)
	if err := j.Close(); fault.KindOf(err) != fault.Unavailable {
		t.Errorf("close on a full disk: %v, want unavailable", err)
	}
	s.check(t)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	j = s.open(t, Options{})
	add(t, j, 262, 263)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := s.check(t); r.Sealed != 256 || r.Size != 263 || r.Published != 263 {
		t.Errorf("after room was made: %+v", r)
	}
}

// TestReadOnly opens a log on a file system that cannot be written to.
func TestReadOnly(t *testing.T) {
	dir := smallDisk(t, "1m")
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	s := &house{ring: ring, dir: filepath.Join(dir, "journal")}
	j := s.open(t, Options{})
	add(t, j, 0, 3)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	if _, err := keyring.Open(dir); err != nil {
		t.Errorf("keys on a read-only disk: %v", err)
	}
	_, err = Open(s.dir, ring.Log(), Options{})
	if fault.KindOf(err) != fault.BadState || fault.ReasonOf(err) != "read_only" {
		t.Errorf("open: %v (%s), want read_only_filesystem", err, fault.ReasonOf(err))
	}
	s.check(t)
}
