package digests

import (
	"io"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/kernel/internal/pin"
)

// sealOf has c seal name, as a call does, and returns what the call gets.
func sealOf(t *testing.T, c *Cache, name string) (d Digest, content string, inode uint64) {
	t.Helper()
	h, err := pin.At(nil, name, pin.Anywhere)
	must(t, err)
	defer h.Close()
	f, err := h.Open()
	must(t, err)
	defer f.Close()
	s, d, err := c.Seal(t.Context(), "test", f, h.Stat, 0o555)
	must(t, err)
	t.Cleanup(func() { s.File.Close() }) // held: no other gets the inode's number
	must(t, s.Verify())
	b, err := io.ReadAll(s.File)
	must(t, err)
	if d.Sum != canon.Sum(b) || s.Digest != d.Sum || d.Size != int64(len(b)) || s.Size != d.Size || d.Hashed.IsZero() {
		t.Errorf("%d bytes of digest %s: %+v, %+v", len(b), canon.Sum(b), d, s)
	}
	fi, err := s.File.Stat()
	must(t, err)
	return d, string(b), fi.Sys().(*syscall.Stat_t).Ino
}

// TestSealKept: a program is read for its first two calls, and for the one after each
// change. Every call gets a file of its own.
func TestSealKept(t *testing.T) {
	name := folder(t) + "/tool"
	must(t, os.WriteFile(name, []byte("one"), 0o755))
	c := New("", "")
	c.TestOnlyNow = func() time.Time { return time.Now().Add(time.Hour) }
	files := make(map[uint64]bool)
	want := func(when, content string, cached bool) {
		t.Helper()
		d, got, inode := sealOf(t, c, name)
		if d.Cached != cached || got != content || files[inode] {
			t.Errorf("%s: %q, cached %v, a file that another call has %v; want %q, %v", when, got, d.Cached, files[inode], content, cached)
		}
		files[inode] = true
	}
	want("first", "one", false)
	if p, _ := c.seen(c.programs[0].key); p.copy != nil {
		t.Error("a copy is kept of what was called once")
	}
	want("second", "one", false)
	want("third", "one", true)
	want("fourth", "one", true)
	for _, change := range []struct {
		name, content string
		do            func() error
	}{
		{"rewritten", "two", func() error { return os.WriteFile(name, []byte("two"), 0o755) }},
		{"replaced", "six", func() error {
			must(t, os.WriteFile(name+".new", []byte("six"), 0o755))
			return os.Rename(name+".new", name)
		}},
		{"its times set back", "ten", func() error {
			must(t, os.WriteFile(name, []byte("ten"), 0o755))
			return os.Chtimes(name, time.Unix(1e9, 0), time.Unix(1e9, 0))
		}},
	} {
		settle(t, name)
		must(t, change.do())
		want(change.name, change.content, false)
		want(change.name+", again", change.content, false)
		want(change.name+", then", change.content, true)
	}
}

// TestSealNotKept: a copy is kept only of what would show that it changes, if it is small.
func TestSealNotKept(t *testing.T) {
	later := func() time.Time { return time.Now().Add(time.Hour) }
	for _, x := range []struct {
		name string
		size int
		now  func() time.Time
		open int // how another has the file open; -1: not
	}{
		{"just changed", 3, nil, -1},
		{"open for writing", 3, later, os.O_RDWR},
		{"large", copySize + 1, later, -1},
	} {
		name := folder(t) + "/tool"
		must(t, os.WriteFile(name, []byte(strings.Repeat("x", x.size)), 0o755))
		if x.open >= 0 {
			f, err := os.OpenFile(name, x.open, 0)
			must(t, err)
			defer f.Close()
		}
		c := New("", "")
		c.TestOnlyNow = x.now
		for i := range 4 {
			if d, _, _ := sealOf(t, c, name); d.Cached {
				t.Errorf("%s: call %d got a copy of a copy", x.name, i)
			}
		}
	}
	var none *Cache
	name := folder(t) + "/tool"
	must(t, os.WriteFile(name, []byte("one"), 0o755))
	for range 3 {
		if d, _, _ := sealOf(t, none, name); d.Cached {
			t.Error("no cache remembered")
		}
	}
}

// TestSealBounded: the copies used longest ago go.
func TestSealBounded(t *testing.T) {
	dir, c := folder(t), New("", "")
	c.TestOnlyNow = func() time.Time { return time.Now().Add(time.Hour) }
	names := strings.Split("abcde", "")
	for _, n := range names {
		must(t, os.WriteFile(dir+"/"+n, []byte(n), 0o755))
		for range 2 {
			sealOf(t, c, dir+"/"+n)
		}
	}
	if len(c.programs) != maxCopies {
		t.Errorf("%d are kept, want %d", len(c.programs), maxCopies)
	}
	for i, n := range names[len(names)-maxCopies:] {
		if d, got, _ := sealOf(t, c, dir+"/"+n); !d.Cached || got != n {
			t.Errorf("%d: %q, cached %v", i, got, d.Cached)
		}
	}
	if d, _, _ := sealOf(t, c, dir+"/a"); d.Cached {
		t.Error("the oldest is kept")
	}
}
