package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
)

func TestOpenRefuses(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	_, err := Open(dir, Options{})
	wants(t, err, fault.Busy, "locked")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"", dbFile, artifactDir} {
		path := filepath.Join(dir, name)
		fi, err := os.Stat(path)
		if err != nil || fi.Mode().Perm()&0o077 != 0 {
			t.Fatalf("%s: %v, %v", path, fi, err)
		}
		if err := os.Chmod(path, fi.Mode().Perm()|0o040); err != nil {
			t.Fatal(err)
		}
		_, err = Open(dir, Options{})
		wants(t, err, fault.BadState, "unsafe_file")
		if err := os.Chmod(path, fi.Mode().Perm()); err != nil {
			t.Fatal(err)
		}
	}
	_, err = Open("relative", Options{})
	wants(t, err, fault.BadState, "state_io")
	if err := os.WriteFile(filepath.Join(dir, dbFile), []byte(strings.Repeat("no database ", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = Open(dir, Options{})
	wants(t, err, fault.Integrity, "store_corrupt")
}

// TestFileModes: nothing of an open store can be read by others, whatever the umask.
func TestFileModes(t *testing.T) {
	s := newStore(t)
	newRun(t, s)
	if _, err := s.PutArtifact(context.Background(), "run_1", "text/plain", strings.NewReader("x")); err != nil {
		t.Fatal(err)
	}
	err := filepath.WalkDir(s.dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err == nil && fi.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %v", path, fi.Mode())
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestOpenCleans: what a crash left of uploads, sweeps and backups goes.
func TestOpenCleans(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "store")
	s := openStore(t, dir, Options{})
	fillStore(t, s)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	orphan := strings.Repeat("a", 62)
	for _, name := range []string{stagingDir + "/journal/wal", stagingDir + "/" + dbFile, artifactDir + "/.artifact.palyra-tmp-X", artifactDir + "/aa/" + orphan} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s = openStore(t, dir, Options{})
	check(t, s)
	for _, name := range []string{stagingDir, artifactDir + "/.artifact.palyra-tmp-X", artifactDir + "/aa/" + orphan} {
		if _, err := os.Lstat(filepath.Join(dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", name, err)
		}
	}
	// What is not ours is not removed, and not passed over.
	if err := os.WriteFile(filepath.Join(dir, artifactDir, "aa", "notes"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants(t, s.Check(context.Background()), fault.Integrity, "store_corrupt")
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	_, err := Open(dir, Options{})
	wants(t, err, fault.Integrity, "store_corrupt")
}
