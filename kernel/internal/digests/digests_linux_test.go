package digests

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/internal/canon"
	"palyra/kernel/internal/pin"
)

// folder is a folder on a file system that keeps times.
func folder(t testing.TB) string {
	t.Helper()
	for _, in := range []string{os.TempDir(), "/var/tmp", "."} {
		dir, err := os.MkdirTemp(in, "digests-test-")
		if err != nil {
			continue
		}
		dir, _ = filepath.Abs(dir)
		t.Cleanup(func() { os.RemoveAll(dir) })
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		keeps := pin.KeepsTimes(f)
		f.Close()
		if keeps {
			return dir
		}
	}
	t.Skip("host control missing: a file system that keeps times")
	return ""
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// settle returns when a change of name would show: the file system's clock has
// moved on from its last one.
func settle(t testing.TB, name string) {
	t.Helper()
	last := statOf(t, name).CtimeNS
	for tick := name + ".tick"; ; {
		must(t, os.WriteFile(tick, nil, 0o600))
		now := statOf(t, tick).CtimeNS
		must(t, os.Remove(tick))
		if now > last {
			return
		}
	}
}

func statOf(t testing.TB, name string) pin.Stat {
	t.Helper()
	h, err := pin.At(nil, name, pin.Anywhere)
	must(t, err)
	defer h.Close()
	return h.Stat
}

// of asks c for the digest of name, as a call does.
func of(t testing.TB, c *Cache, name string) Digest {
	t.Helper()
	h, err := pin.At(nil, name, pin.Anywhere)
	must(t, err)
	defer h.Close()
	f, err := h.Open()
	must(t, err)
	defer f.Close()
	d, err := c.Of(context.Background(), f, h.Stat, 1<<30)
	must(t, err)
	must(t, pin.Changed(f, h.Stat))
	return d
}

// aged is a Cache to which every file is old.
func aged(path, boot string) *Cache {
	c := New(path, boot)
	c.TestOnlyNow = func() time.Time { return time.Now().Add(time.Hour) }
	return c
}

func mtime(t testing.TB, name string) time.Time {
	t.Helper()
	fi, err := os.Stat(name)
	must(t, err)
	return fi.ModTime()
}

// overwrite changes a file in place.
func overwrite(t testing.TB, name, content string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	must(t, err)
	_, err = f.WriteString(content)
	must(t, err)
	must(t, f.Close())
}

// mapped writes through a shared mapping that was there before, read from.
func mapped(t testing.TB, name, content string) {
	t.Helper()
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	must(t, err)
	defer f.Close()
	m, err := syscall.Mmap(int(f.Fd()), 0, len(content), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	runtime.KeepAlive(m[0])
	copy(m, content)
	must(t, syscall.Munmap(m))
}

// TestSwapped changes a remembered file in each way there is. Each time it is
// read again, and was not before.
func TestSwapped(t *testing.T) {
	const old, other = "#!/bin/first", "#!/bin/other"
	for _, c := range []struct {
		name string
		swap func(t *testing.T, file, beside string)
		want string
	}{
		{"written in place, same size", func(t *testing.T, file, _ string) { overwrite(t, file, other) }, other},
		{"written in place, mtime restored", func(t *testing.T, file, _ string) {
			was := mtime(t, file)
			overwrite(t, file, other)
			must(t, os.Chtimes(file, was, was))
			if !mtime(t, file).Equal(was) {
				t.Error("mtime was not restored")
			}
		}, other},
		{"written through a mapping", func(t *testing.T, file, _ string) { mapped(t, file, other) }, other},
		{"written through a mapping, mtime restored", func(t *testing.T, file, _ string) {
			was := mtime(t, file)
			mapped(t, file, other)
			must(t, os.Chtimes(file, was, was))
		}, other},
		{"cut and written again", func(t *testing.T, file, _ string) { must(t, os.WriteFile(file, []byte(other), 0)) }, other},
		{"longer", func(t *testing.T, file, _ string) { overwrite(t, file, other+"x") }, other + "x"},
		{"cut", func(t *testing.T, file, _ string) { must(t, os.Truncate(file, 3)) }, old[:3]},
		{"renamed over", func(t *testing.T, file, beside string) { must(t, os.Rename(beside, file)) }, other},
		{"renamed over, mtime the same", func(t *testing.T, file, beside string) {
			was := mtime(t, file)
			must(t, os.Chtimes(beside, was, was))
			must(t, os.Rename(beside, file))
		}, other},
		{"exchanged by hard links", func(t *testing.T, file, beside string) {
			must(t, os.Remove(file))
			must(t, os.Link(beside, file))
		}, other},
		{"made anew in its place", func(t *testing.T, file, _ string) {
			must(t, os.Remove(file))
			must(t, os.WriteFile(file, []byte(other), 0o755))
		}, other},
		{"link to another", func(t *testing.T, file, beside string) {
			must(t, os.Remove(file))
			must(t, os.Symlink(beside, file))
		}, other},
		// Nothing of the content changed, but it might have: these miss as well.
		{"mode", func(t *testing.T, file, _ string) { must(t, os.Chmod(file, 0o700)) }, old},
		{"one more name", func(t *testing.T, file, _ string) { must(t, os.Link(file, file+"2")) }, old},
		{"owner", func(t *testing.T, file, _ string) {
			if os.Geteuid() != 0 {
				t.Skip("needs root")
			}
			must(t, os.Chown(file, 1234, 1234))
		}, old},
		{"moved to where it is", func(t *testing.T, file, _ string) {
			must(t, os.Rename(file, file+"2"))
			must(t, os.Rename(file+"2", file))
		}, old},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := folder(t)
			file, beside := dir+"/file", dir+"/beside"
			must(t, os.WriteFile(file, []byte(old), 0o755))
			must(t, os.WriteFile(beside, []byte(other), 0o755))
			settle(t, beside)
			cache := aged("", "")
			if d := of(t, cache, file); d.Cached || d.Sum != canon.Sum([]byte(old)) || d.Size != int64(len(old)) {
				t.Fatalf("first: %+v", d)
			}
			if d := of(t, cache, file); !d.Cached || d.Sum != canon.Sum([]byte(old)) {
				t.Fatalf("second: %+v", d)
			}
			c.swap(t, file, beside)
			if d := of(t, cache, file); d.Cached || d.Sum != canon.Sum([]byte(c.want)) || d.Size != int64(len(c.want)) {
				t.Errorf("after: %+v", d)
			}
		})
	}
}

// TestNotOldEnough: what changed a moment ago is never remembered.
func TestNotOldEnough(t *testing.T) {
	dir := folder(t)
	file := dir + "/file"
	must(t, os.WriteFile(file, []byte("x"), 0o755))
	settle(t, file)
	c := New("", "") // with the real clock: it was made just now
	for range 3 {
		if d := of(t, c, file); d.Cached {
			t.Fatal("remembered a file that was made just now")
		}
	}
	if len(c.entries) != 0 {
		t.Errorf("%d entries", len(c.entries))
	}
	changed := time.Unix(0, statOf(t, file).CtimeNS)
	for _, k := range []struct {
		name string
		now  time.Time
		want bool
	}{
		{"two seconds", changed.Add(settled), false},
		{"longer", changed.Add(settled + 1), true},
		{"the clock was set back", changed.Add(-time.Hour), false},
	} {
		c := New("", "")
		c.TestOnlyNow = func() time.Time { return k.now }
		of(t, c, file)
		if d := of(t, c, file); d.Cached != k.want {
			t.Errorf("%s: cached %v", k.name, d.Cached)
		}
	}
	// An old inode with a young content, as utimes can say, and the other way round.
	soon := time.Now().Add(2 * time.Hour)
	must(t, os.Chtimes(file, soon, soon))
	c = aged("", "")
	of(t, c, file)
	if d := of(t, c, file); d.Cached {
		t.Error("remembered a file of the future")
	}
	must(t, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)))
	c = New("", "")
	of(t, c, file)
	if d := of(t, c, file); d.Cached {
		t.Error("an old mtime hides that the file changed just now")
	}
}

// TestOpenForWriting: whoever has a file open can write it without a trace, once
// it is mapped and dirty.
func TestOpenForWriting(t *testing.T) {
	dir := folder(t)
	file := dir + "/file"
	must(t, os.WriteFile(file, []byte("first"), 0o755))
	w, err := os.OpenFile(file, os.O_RDWR, 0)
	must(t, err)
	defer w.Close()
	m, err := syscall.Mmap(int(w.Fd()), 0, 5, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	must(t, err)
	copy(m, "dirty")
	w.Close() // the mapping is enough
	settle(t, file)
	c := aged("", "")
	was := statOf(t, file)
	if d := of(t, c, file); d.Cached || d.Sum != canon.Sum([]byte("dirty")) {
		t.Errorf("%+v", d)
	}
	copy(m, "again")
	if d := of(t, c, file); d.Cached || d.Sum != canon.Sum([]byte("again")) {
		t.Errorf("written without a trace (times equal: %v): %+v", statOf(t, file).Same(was), d)
	}
	must(t, syscall.Munmap(m))
	settle(t, file)
	of(t, c, file)
	if d := of(t, c, file); !d.Cached {
		t.Error("not remembered, though nobody has it open any more")
	}
}

// TestVerity: the word of a file system that does fs-verity itself counts more
// than that somebody might write, which the kernel then forbids; here nothing is
// protected, and the word is ours. conformance/lab makes a file that is.
func TestVerity(t *testing.T) {
	file := folder(t) + "/file"
	must(t, os.WriteFile(file, []byte("x"), 0o755))
	w, err := os.OpenFile(file, os.O_WRONLY, 0)
	must(t, err)
	defer w.Close()
	settle(t, file)
	var fs syscall.Statfs_t
	must(t, syscall.Statfs(file, &fs))
	knows := map[int64]bool{0xef53: true, 0x9123683e: true, 0xf2f52010: true}[int64(fs.Type)] // ext4, Btrfs, F2FS
	for _, k := range []struct {
		verity bool
		now    func() time.Time
		want   bool
	}{
		{false, nil, false},
		{true, nil, knows},
		{true, time.Now, false}, // a moment ago another file may have had its inode
	} {
		c := aged("", "")
		if k.now != nil {
			c.TestOnlyNow = k.now
		}
		ask := func() Digest {
			h, err := pin.At(nil, file, pin.Anywhere)
			must(t, err)
			defer h.Close()
			f, err := h.Open()
			must(t, err)
			defer f.Close()
			h.Stat.Verity = k.verity
			d, err := c.Of(context.Background(), f, h.Stat, 1<<30)
			must(t, err)
			return d
		}
		if d := ask(); d.Cached {
			t.Errorf("%+v: cached at once", k)
		}
		if d := ask(); d.Cached != k.want || d.Verity != k.want {
			t.Errorf("verity %v: %+v, want cached %v", k.verity, d, k.want)
		}
	}
	if statOf(t, file).Verity {
		t.Error("a file that was just written says that it cannot be")
	}
}

// TestForeignFile: whoever may not ask for writers waits until none can hide.
func TestForeignFile(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("needs an unprivileged user")
	}
	h, err := pin.At(nil, "/bin/true", pin.Anywhere)
	must(t, err)
	defer h.Close()
	changed := time.Unix(0, max(h.Stat.CtimeNS, h.Stat.MtimeNS))
	for age, want := range map[time.Duration]bool{settled + 1: false, writtenBack: false, writtenBack + 1: true} {
		c := New("", "")
		c.TestOnlyNow = func() time.Time { return changed.Add(age) }
		of(t, c, "/bin/true")
		if d := of(t, c, "/bin/true"); d.Cached != want {
			t.Errorf("age %v: cached %v", age, d.Cached)
		}
	}
}

// TestTmpfs: its files change without a trace, so they are never remembered.
func TestTmpfs(t *testing.T) {
	dir, err := os.MkdirTemp("/dev/shm", "digests-test-")
	if err != nil {
		t.Skip("host control missing: tmpfs at /dev/shm")
	}
	defer os.RemoveAll(dir)
	file := dir + "/file"
	must(t, os.WriteFile(file, []byte("first"), 0o755))
	settle(t, file)
	c := aged("", "")
	of(t, c, file)
	was := statOf(t, file)
	mapped(t, file, "other")
	if statOf(t, file).Same(was) {
		t.Log("written through a mapping, and no time moved")
	}
	if d := of(t, c, file); d.Cached || d.Sum != canon.Sum([]byte("other")) {
		t.Errorf("%+v", d)
	}
	if d := of(t, c, file); d.Cached || len(c.entries) != 0 {
		t.Error("remembered a file on tmpfs")
	}
}

// TestOneReads: calls that come at the same time wait for one of them.
func TestOneReads(t *testing.T) {
	dir := folder(t)
	file := dir + "/file"
	content := bytes.Repeat([]byte("palyra"), 8<<20/6)
	must(t, os.WriteFile(file, content, 0o755))
	settle(t, file)
	c := aged("", "")
	got := make([]Digest, 16)
	var wg sync.WaitGroup
	for i := range got {
		wg.Go(func() { got[i] = of(t, c, file) })
	}
	wg.Wait()
	read, want := 0, canon.Sum(content)
	for _, d := range got {
		if d.Sum != want {
			t.Errorf("%+v", d)
		}
		if !d.Cached {
			read++
		}
	}
	if read != 1 {
		t.Errorf("%d of %d read the file", read, len(got))
	}
}

// TestChangedWhileRead: what was read while it changed is not remembered, and
// who waited for it reads for itself.
func TestChangedWhileRead(t *testing.T) {
	dir := folder(t)
	file := dir + "/file"
	must(t, os.WriteFile(file, []byte("first"), 0o755))
	settle(t, file)
	h, err := pin.At(nil, file, pin.Anywhere)
	must(t, err)
	defer h.Close()
	f, err := h.Open()
	must(t, err)
	defer f.Close()
	overwrite(t, file, "other") // after the lookup, before the digest
	c := aged("", "")
	if _, err := c.Of(context.Background(), f, h.Stat, 100); err == nil {
		t.Error("no error")
	}
	if len(c.entries) != 0 || len(c.flights) != 0 {
		t.Errorf("%d entries, %d flights", len(c.entries), len(c.flights))
	}
}

// TestBounded: the entries are, and the one used longest ago goes.
func TestBounded(t *testing.T) {
	c := New("", "")
	first := key{Ino: 1}
	c.rememberLocked(first, Digest{})
	for i := range uint64(3 * maxEntries) {
		c.rememberLocked(key{Ino: 100 + i}, Digest{})
		if _, ok := c.foundLocked(first); !ok {
			t.Fatal("the one that is used went")
		}
	}
	if len(c.entries) != maxEntries {
		t.Errorf("%d entries", len(c.entries))
	}
}

func TestTooLarge(t *testing.T) {
	file := folder(t) + "/file"
	must(t, os.WriteFile(file, []byte(strings.Repeat("x", 100)), 0o755))
	h, err := pin.At(nil, file, pin.Anywhere)
	must(t, err)
	defer h.Close()
	f, err := h.Open()
	must(t, err)
	defer f.Close()
	c := aged("", "")
	if _, err := c.Of(context.Background(), f, h.Stat, 100); err != nil {
		t.Error(err)
	}
	if _, err := c.Of(context.Background(), f, h.Stat, 99); err == nil {
		t.Error("a remembered file passes a limit that it is over")
	}
}

// BenchmarkOf: the digest of a file as large as an interpreter, and of one as
// small as a tool.
func BenchmarkOf(b *testing.B) {
	for name, size := range map[string]int{"90MB": 90 << 20, "35KB": 35 << 10} {
		file := folder(b) + "/file"
		must(b, os.WriteFile(file, make([]byte, size), 0o755))
		for kind, c := range map[string]*Cache{"hashed": nil, "cached": aged("", "")} {
			b.Run(name+"/"+kind, func(b *testing.B) {
				of(b, c, file)
				b.ReportAllocs()
				for b.Loop() {
					of(b, c, file)
				}
			})
		}
	}
}
