package digests

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"palyra/internal/canon"
)

// large makes a file that is worth saving the digest of.
func large(t testing.TB, name string, fill byte) {
	t.Helper()
	must(t, os.WriteFile(name, bytes.Repeat([]byte{fill}, leastSaved), 0o755))
}

func TestSaved(t *testing.T) {
	dir, state := folder(t), t.TempDir()
	file, saved := dir+"/file", state+"/digests"
	large(t, file, 1)
	must(t, os.WriteFile(dir+"/small", []byte("x"), 0o755))
	settle(t, file)
	c := aged(saved, "boot")
	of(t, c, dir+"/small")
	must(t, c.Save())
	if _, err := os.Stat(saved); err == nil {
		t.Error("a small file was saved")
	}
	first := of(t, c, file)
	must(t, os.WriteFile(state+"/.digests.palyra-tmp-X", nil, 0o600)) // of one that was killed
	other := state + "/.certificate.json.palyra-tmp-X"                // of one at work on another file
	must(t, os.WriteFile(other, nil, 0o600))
	must(t, c.Save())
	must(t, c.Sweep())
	must(t, os.Remove(other))
	fi, err := os.Stat(saved)
	must(t, err)
	if fi.Mode() != 0o600 || fi.Size() != int64(headerSize+recordSize+32) {
		t.Errorf("mode %v, %d bytes", fi.Mode(), fi.Size())
	}
	if left, _ := filepath.Glob(state + "/.*"); len(left) != 0 {
		t.Errorf("left: %q", left)
	}

	c = aged(saved, "boot")
	d := of(t, c, file)
	if !d.Cached || d.Sum != first.Sum || d.Size != first.Size || !d.Hashed.Equal(first.Hashed) {
		t.Errorf("got %+v, want %+v", d, first)
	}
	must(t, os.Remove(saved))
	must(t, c.Save())
	if _, err := os.Stat(saved); err == nil {
		t.Error("saved, though nothing was new")
	}
	for _, boot := range []string{"other", ""} {
		must(t, os.WriteFile(saved, encode("boot", c.recordsLocked()), 0o600))
		if d := of(t, aged(saved, boot), file); d.Cached {
			t.Errorf("used what was saved under another boot id, %q", boot)
		}
	}
	// Changed while nobody looked.
	overwrite(t, file, "other")
	if d := of(t, aged(saved, "boot"), file); d.Cached || d.Sum == first.Sum {
		t.Errorf("changed: %+v", d)
	}
}

// TestSavedIsBounded keeps those that were used last.
func TestSavedIsBounded(t *testing.T) {
	saved := t.TempDir() + "/digests"
	c := New(saved, "boot")
	for i := range uint64(2 * maxSaved) {
		c.rememberLocked(key{Ino: i, Size: leastSaved}, Digest{Size: leastSaved, Hashed: time.Unix(0, int64(i))})
	}
	c.unsaved = true
	must(t, c.Save())
	rs := New(saved, "boot").load()
	if len(rs) != maxSaved || rs[0].Ino != maxSaved || rs[maxSaved-1].Ino != 2*maxSaved-1 {
		t.Errorf("%d records", len(rs))
	}
}

// TestDamaged: whatever lies in the file's place, the digest is right and the
// file is made again where it can be.
func TestDamaged(t *testing.T) {
	dir := folder(t)
	file := dir + "/file"
	large(t, file, 2)
	settle(t, file)
	c := aged(filepath.Join(t.TempDir(), "digests"), "boot")
	want := of(t, c, file).Sum
	good := encode("boot", c.recordsLocked())
	if rs, err := decode("boot", good); err != nil || len(rs) != 1 || rs[0].Sum != want {
		t.Fatalf("good: %v, %v", rs, err)
	}
	cases := map[string]func(saved string) error{
		"none":  func(string) error { return nil },
		"empty": func(s string) error { return os.WriteFile(s, nil, 0o600) },
		"zeros": func(s string) error { return os.WriteFile(s, make([]byte, len(good)), 0o600) },
		"more":  func(s string) error { return os.WriteFile(s, append(slices.Clone(good), 0), 0o600) },
		"huge":  func(s string) error { return os.WriteFile(s, make([]byte, 10*maxFile), 0o600) },
		"readable by others": func(s string) error {
			must(t, os.WriteFile(s, good, 0o600))
			return os.Chmod(s, 0o644)
		},
		"link": func(s string) error {
			must(t, os.WriteFile(s+"2", good, 0o600))
			return os.Symlink(s+"2", s)
		},
		"FIFO": func(s string) error { return syscall.Mkfifo(s, 0o600) },
	}
	for i := range good {
		if i%7 == 0 || i < 4 {
			cases[fmt.Sprintf("bit %d of byte %d", i%8, i)] = func(s string) error {
				b := slices.Clone(good)
				b[i] ^= 1 << (i % 8)
				return os.WriteFile(s, b, 0o600)
			}
			cases[fmt.Sprintf("cut at %d", i)] = func(s string) error { return os.WriteFile(s, good[:i], 0o600) }
		}
	}
	for name, spoil := range cases {
		saved := filepath.Join(t.TempDir(), "digests")
		must(t, spoil(saved))
		c := aged(saved, "boot")
		if d := of(t, c, file); d.Cached || d.Sum != want {
			t.Errorf("%s: %+v", name, d)
		}
		must(t, c.Save())
		if d := of(t, aged(saved, "boot"), file); !d.Cached || d.Sum != want {
			t.Errorf("%s: not made again: %+v", name, d)
		}
	}
	// A folder in its place cannot be replaced. That is an error and no more.
	saved := filepath.Join(t.TempDir(), "digests")
	must(t, os.Mkdir(saved, 0o700))
	c = aged(saved, "boot")
	if d := of(t, c, file); d.Cached || d.Sum != want {
		t.Errorf("folder: %+v", d)
	}
	if c.Save() == nil {
		t.Error("saved over a folder")
	}
}

func FuzzSaved(f *testing.F) {
	one := record{key{1, 2, 3, leastSaved, 5, 6, 7}, Digest{Sum: canon.Sum([]byte("x")), Size: leastSaved, Hashed: time.Unix(0, 8)}}
	f.Add(encode("boot", nil))
	f.Add(encode("boot", []record{one}))
	f.Add(encode("other", []record{one, one}))
	f.Fuzz(func(t *testing.T, b []byte) {
		// The sum is no secret: with it right, the rest is reached.
		if len(b) >= 32 {
			sum := canon.Sum(b[:len(b)-32])
			copy(b[len(b)-32:], sum[:])
		}
		rs, err := decode("boot", b)
		if err == nil && !bytes.Equal(encode("boot", rs), b) {
			t.Errorf("another spelling of %d records", len(rs))
		}
	})
}
