package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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

// TestFullDisk fills the disk: each change is whole or refused with the reason,
// reads go on, and so do changes when there is room again.
func TestFullDisk(t *testing.T) {
	dir := smallDisk(t, "2m")
	ballast := filepath.Join(dir, "ballast")
	if err := os.WriteFile(ballast, make([]byte, 512<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	s := openStore(t, filepath.Join(dir, "store"), Options{})
	ctx := context.Background()
	r := fillStore(t, s)
	payload := []byte(`"` + strings.Repeat("x", 8000) + `"`)
	last := uint64(2)
	for range 1000 {
		var e Event
		err := s.Update(ctx, func(tx *Tx) (err error) { e, err = tx.AppendEvent(r.ID, "k", payload); return err })
		if err != nil {
			wants(t, err, fault.Unavailable, "disk_full")
			if fault.HintOf(err) == "" {
				t.Error("no hint")
			}
			break
		}
		if last++; e.Seq != last {
			t.Fatalf("event %d, want %d", e.Seq, last)
		}
	}
	if last < 20 || last > 900 {
		t.Fatalf("%d events fit", last)
	}
	_, err := s.PutArtifact(ctx, r.ID, "text/plain", strings.NewReader(strings.Repeat("y", 1<<20)))
	wants(t, err, fault.Unavailable, "disk_full")
	// Reads work, and see what was acknowledged.
	if n := see(t, s, func(tx *Tx) (uint64, error) { return tx.LastEvent(r.ID) }); n != last {
		t.Errorf("last event %d, want %d", n, last)
	}
	see(t, s, func(tx *Tx) ([]Event, error) { return tx.Events(r.ID, 0, 1000) })
	if f, _, err := s.OpenArtifact(ctx, see(t, s, func(tx *Tx) (*Step, error) { return tx.Step(r.ID, 0) }).OutputDigest); err != nil {
		t.Error(err)
	} else {
		_ = f.Close() // only read from
	}
	check(t, s)
	if _, err := s.Stats(ctx); err != nil {
		t.Error(err)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	do(t, s, func(tx *Tx) error {
		e, err := tx.AppendEvent(r.ID, "k", payload)
		if e.Seq != last+1 {
			t.Errorf("after room was made: event %d, want %d", e.Seq, last+1)
		}
		return err
	})
	check(t, s)
}

// TestReadOnly: on a disk that cannot be written to a store does not open, and
// says why.
func TestReadOnly(t *testing.T) {
	dir := smallDisk(t, "2m")
	s := openStore(t, filepath.Join(dir, "store"), Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		t.Fatal(err)
	}
	_, err := Open(filepath.Join(dir, "store"), Options{})
	wants(t, err, fault.BadState, "read_only")
}

// TestFileLimit is a full disk for a plain user: the limit on file sizes.
func TestFileLimit(t *testing.T) {
	s := newStore(t)
	r := fillStore(t, s)
	fi, err := os.Stat(filepath.Join(s.dir, dbFile+"-wal"))
	if err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &old); err != nil {
		t.Fatal(err)
	}
	limit := old
	limit.Cur = uint64(fi.Size()) + 8192
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	payload := []byte(`"` + strings.Repeat("x", 100_000) + `"`)
	err = s.Update(context.Background(), func(tx *Tx) error { _, err := tx.AppendEvent(r.ID, "k", payload); return err })
	if rerr := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &old); rerr != nil {
		t.Fatal(rerr)
	}
	if fault.KindOf(err) != fault.Unavailable {
		t.Errorf("beyond the limit: %v (%v), want unavailable", err, fault.KindOf(err))
	}
	if n := see(t, s, func(tx *Tx) (uint64, error) { return tx.LastEvent(r.ID) }); n != 2 {
		t.Errorf("last event %d, want 2", n)
	}
	do(t, s, func(tx *Tx) error { _, err := tx.AppendEvent(r.ID, "k", payload); return err })
	check(t, s)
}

// TestOpenFiles: without descriptors a store does not open, and says why.
func TestOpenFiles(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	opened := 0
	for extra := 1; extra < 13; extra += 2 {
		fds, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		limit := old
		limit.Cur = uint64(len(fds) + extra)
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
			t.Fatal(err)
		}
		s, err := Open(dir, Options{})
		if rerr := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); rerr != nil {
			t.Fatal(rerr)
		}
		if err == nil {
			opened++
			check(t, s)
			err = s.Close()
		}
		if err != nil && fault.KindOf(err) != fault.Unavailable && fault.KindOf(err) != fault.BadState {
			t.Errorf("with %d descriptors: %v (%v)", extra, err, fault.KindOf(err))
		}
	}
	if opened == 6 {
		t.Error("it always opened: the limit did not count")
	}
	s = openStore(t, dir, Options{})
	check(t, s)
}
