package pin

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"

	"palyra/internal/canon"
)

func dir(t *testing.T) (string, *Handle) {
	t.Helper()
	d := t.TempDir()
	h, err := Dir(d)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.Close() })
	return d, h
}

func write(t *testing.T, name, content string, perm fs.FileMode) {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), perm); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, perm); err != nil {
		t.Fatal(err)
	}
}

func TestAt(t *testing.T) {
	d, h := dir(t)
	os.Mkdir(d+"/sub", 0o755)
	write(t, d+"/file", "x", 0o644)
	os.Symlink("file", d+"/in")
	os.Symlink("/etc/passwd", d+"/out")
	os.Symlink("../../../../../../etc/passwd", d+"/up")
	os.Symlink("sub", d+"/sublink")
	os.Symlink("loop", d+"/loop")
	write(t, d+"/sub/deep", "y", 0o644)
	for _, c := range []struct {
		name           string
		plain, beneath error
	}{
		{"file", nil, nil},
		{"sub/deep", nil, nil},
		{"sub/../file", nil, nil},
		{".", nil, nil},
		{"in", syscall.ELOOP, nil},
		{"sublink/deep", syscall.ELOOP, nil},
		{"out", syscall.ELOOP, syscall.EXDEV},
		{"up", syscall.ELOOP, syscall.EXDEV},
		{"loop", syscall.ELOOP, syscall.ELOOP},
		{"../x", syscall.EXDEV, syscall.EXDEV},
		{"/etc/passwd", syscall.EXDEV, syscall.EXDEV},
		{"none", syscall.ENOENT, syscall.ENOENT},
		{"file/x", syscall.ENOTDIR, syscall.ENOTDIR},
		{"", syscall.ENOENT, syscall.ENOENT},
	} {
		for how, want := range map[How]error{Plain: c.plain, Beneath: c.beneath} {
			got, err := At(h, c.name, how)
			if !errors.Is(err, want) || (err == nil) != (want == nil) {
				t.Errorf("At(%q, %d): got %v, want %v", c.name, how, err, want)
			}
			got.Close()
		}
	}
	if got, err := At(nil, d+"/out", Anywhere); err != nil || got.Path != "/etc/passwd" {
		t.Errorf("Anywhere: %v, %v", got, err)
	}
	if _, err := At(nil, "/proc/self/exe", Anywhere); !errors.Is(err, syscall.ELOOP) {
		t.Errorf("magic link: %v", err)
	}
	if _, err := Dir(d + "/sublink"); !errors.Is(err, syscall.ENOTDIR) && !errors.Is(err, syscall.ELOOP) {
		t.Errorf("Dir of a link: %v", err)
	}
}

// TestOpenIsTheSameFile swaps the name after the lookup.
func TestOpenIsTheSameFile(t *testing.T) {
	d, h := dir(t)
	write(t, d+"/file", "first", 0o644)
	f, err := At(h, "file", Plain)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write(t, d+"/other", "second", 0o644)
	if err := os.Rename(d+"/other", d+"/file"); err != nil {
		t.Fatal(err)
	}
	o, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if sum, n, err := Digest(t.Context(), o, 100); err != nil || n != 5 || sum != canon.Sum([]byte("first")) {
		t.Errorf("got %v, %d, %v", sum, n, err)
	}
}

// TestOpenDoesNotBlock: nothing but regular files is opened, so that a FIFO
// without a writer cannot hang us.
func TestOpenDoesNotBlock(t *testing.T) {
	d, h := dir(t)
	if err := syscall.Mkfifo(d+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := At(h, "fifo", Plain)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if f.Stat.Mode.Type() != fs.ModeNamedPipe {
		t.Errorf("mode %v", f.Stat.Mode)
	}
	if _, err := f.Open(); !errors.Is(err, ErrNotRegular) {
		t.Errorf("Open: %v", err)
	}
	null, err := At(nil, "/dev/null", Anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := null.Open(); !errors.Is(err, ErrNotRegular) {
		t.Errorf("device: %v", err)
	}
}

func TestChanged(t *testing.T) {
	d, h := dir(t)
	write(t, d+"/file", "first", 0o644)
	f, err := At(h, "file", Plain)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o, err := f.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer o.Close()
	if err := Changed(o, f.Stat); err != nil {
		t.Errorf("untouched: %v", err)
	}
	if err := os.Chmod(d+"/file", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Changed(o, f.Stat); !errors.Is(err, ErrChanged) {
		t.Errorf("after chmod: %v", err)
	}
}

// TestPathLength: a path is told whole, however long.
func TestPathLength(t *testing.T) {
	d, _ := dir(t)
	for n := range 6 {
		d += "/" + strings.Repeat("x", 40+n*7)
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
		for _, pad := range []int{255 - len(d) - 1, 256 - len(d) - 1, 257 - len(d) - 1, 200} {
			if pad < 1 || pad > 255 {
				continue
			}
			name := d + "/" + strings.Repeat("f", pad)
			write(t, name, "x", 0o644)
			h, err := At(nil, name, Anywhere)
			if err != nil {
				t.Fatal(err)
			}
			if want, err := filepath.EvalSymlinks(name); err != nil || h.Path != want {
				t.Errorf("%d bytes: at %q, want %q, %v", len(name), h.Path, want, err)
			}
			h.Close()
		}
	}
}

func TestSystem(t *testing.T) {
	for _, c := range []struct {
		name string
		want bool
	}{
		{"/bin/true", true}, // by way of the link from /bin
		{"/usr/bin/true", true},
		{"/etc/passwd", true},
		{"/usr/bin", false}, // a folder is no file
	} {
		h, err := At(nil, c.name, Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.System(); got != c.want {
			t.Errorf("System(%s) = %v, at %s", c.name, got, h.Path)
		}
		h.Close()
	}
	// /tmp is sticky and everybody's: root's own files there do not count.
	d, h := dir(t)
	write(t, d+"/file", "x", 0o755)
	f, err := At(h, "file", Plain)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if strings.HasPrefix(f.Path, "/tmp/") && f.System() {
		t.Errorf("System(%s) = true", f.Path)
	}
	if os.Geteuid() != 0 {
		return
	}
	// A place of root's own, and each way in which it can be spoilt.
	base, err := os.MkdirTemp("/", "pin-test-")
	if err != nil {
		t.Skip("needs root and a writable /: ", err)
	}
	defer os.RemoveAll(base)
	os.Chmod(base, 0o755)
	os.Mkdir(base+"/sub", 0o755)
	file := base + "/sub/file"
	write(t, file, "x", 0o755)
	for _, c := range []struct {
		name  string
		spoil func() error
		want  bool
	}{
		{"clean", func() error { return nil }, true},
		{"group can write", func() error { return os.Chmod(file, 0o775) }, false},
		{"others can write", func() error { return os.Chmod(file, 0o757) }, false},
		{"mended", func() error { return os.Chmod(file, 0o755) }, true},
		{"owner", func() error { return os.Chown(file, 1234, 0) }, false},
		{"owner mended", func() error { return os.Chown(file, 0, 0) }, true},
		{"folder of group", func() error { return os.Chmod(base+"/sub", 0o775) }, false},
		{"sticky folder", func() error { return os.Chmod(base+"/sub", 0o777|fs.ModeSticky) }, false},
		{"folder mended", func() error { return os.Chmod(base+"/sub", 0o755) }, true},
		{"folder's owner", func() error { return os.Chown(base, 1234, 0) }, false},
		{"all mended", func() error { return os.Chown(base, 0, 0) }, true},
		{"setuid is only a mode", func() error { return os.Chmod(file, 0o755|fs.ModeSetuid) }, true},
	} {
		if err := c.spoil(); err != nil {
			t.Fatal(err)
		}
		h, err := At(nil, file, Anywhere)
		if err != nil {
			t.Fatal(err)
		}
		if got := h.System(); got != c.want {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		h.Close()
	}
	// Replaced between lookup and question: the name leads to another file.
	old, err := At(nil, file, Anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer old.Close()
	write(t, base+"/new", "y", 0o755)
	os.Rename(base+"/new", file)
	if old.System() {
		t.Error("a file that is no longer at its path is still trusted")
	}
	// Links on the way, to the very same file.
	h, err = At(nil, file, Anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, name := range []string{base + "/sub", file} {
		if err := errors.Join(os.Rename(name, name+".moved"), os.Symlink(name+".moved", name)); err != nil {
			t.Fatal(err)
		}
		if h.System() {
			t.Errorf("trusted though %s is a link", name)
		}
		if err := errors.Join(os.Remove(name), os.Rename(name+".moved", name)); err != nil {
			t.Fatal(err)
		}
		if !h.System() {
			t.Errorf("not trusted again without the link %s", name)
		}
	}
}

// TestSealSizes: what is sealed is what was read, whatever its length.
func TestSealSizes(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, 8192, 65536, 65537, 69632, 69633, 300000} {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7 >> 3)
		}
		for what, r := range map[string]io.Reader{"whole": bytes.NewReader(data), "halves": iotest.HalfReader(bytes.NewReader(data)),
			"end with data": iotest.DataErrReader(bytes.NewReader(data))} {
			s, err := Seal(t.Context(), "test", r, 300000, 0o444)
			if err != nil {
				t.Fatal(err)
			}
			got, err := io.ReadAll(s.File)
			if err != nil || !bytes.Equal(got, data) || s.Size != int64(n) || s.Digest != canon.Sum(data) {
				t.Errorf("%d bytes, %s: %d bytes, size %d, %v", n, what, len(got), s.Size, err)
			}
			s.File.Close()
		}
		if n > 0 {
			if _, err := Seal(t.Context(), "test", bytes.NewReader(data), int64(n-1), 0o444); !errors.Is(err, ErrTooLarge) {
				t.Errorf("%d bytes with a limit of one less: %v", n, err)
			}
		}
	}
	broken := errors.New("broken")
	if _, err := Seal(t.Context(), "test", iotest.ErrReader(broken), 10, 0o444); !errors.Is(err, broken) {
		t.Errorf("a reader that fails: %v", err)
	}
}

func TestSeal(t *testing.T) {
	for _, perm := range []fs.FileMode{0o555, 0o444} {
		s, err := Seal(t.Context(), "test", strings.NewReader("content"), 7, perm)
		if err != nil {
			t.Fatal(err)
		}
		defer s.File.Close()
		checkSealed(t, s, perm)
		own, err := s.Copy("test", perm)
		if err != nil {
			t.Fatal(err)
		}
		defer own.File.Close()
		checkSealed(t, own, perm)
		if a, err := stat(s.File); err != nil {
			t.Error(err)
		} else if b, err := stat(own.File); err != nil || a.SameFile(b) {
			t.Errorf("the copy is the file itself: %v", err)
		}
	}
	if _, err := Seal(t.Context(), "test", strings.NewReader("content"), 6, 0o444); !errors.Is(err, ErrTooLarge) {
		t.Errorf("over the limit: %v", err)
	}
	s, err := Seal(t.Context(), "test", strings.NewReader(""), 0, 0o444)
	if err != nil || s.Size != 0 || s.Verify() != nil {
		t.Errorf("empty: %v, %v", s, err)
	}
	s.File.Close()
}

// checkSealed: s holds "content", and no one can change that.
func checkSealed(t *testing.T, s *Sealed, perm fs.FileMode) {
	t.Helper()
	if s.Size != 7 || s.Digest != canon.Sum([]byte("content")) {
		t.Errorf("got %d, %v", s.Size, s.Digest)
	}
	if err := s.Verify(); err != nil {
		t.Errorf("Verify: %v", err)
	}
	// Neither this descriptor nor a new one writes, and nobody gets the seals off.
	if _, err := s.File.Write([]byte("x")); err == nil {
		t.Error("write on the descriptor passed")
	}
	if w, err := os.OpenFile(procFD(int(s.File.Fd())), os.O_RDWR, 0); err == nil {
		if _, err := w.Write([]byte("x")); !errors.Is(err, syscall.EPERM) {
			t.Errorf("write on a new descriptor: %v", err)
		}
		if err := w.Truncate(0); !errors.Is(err, syscall.EPERM) {
			t.Errorf("truncate: %v", err)
		}
		if _, err := syscall.Mmap(int(w.Fd()), 0, 7, syscall.PROT_WRITE, syscall.MAP_SHARED); err == nil {
			t.Error("writable mapping passed")
		}
		w.Close()
	}
	st, err := s.File.Stat()
	if err != nil || st.Mode().Perm() != perm {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
}

// TestVerifyRefuses is the positive control: a file without seals is no copy.
func TestVerifyRefuses(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	write(t, name, "content", 0o600)
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &Sealed{File: f, Size: 7, Digest: canon.Sum([]byte("content"))}
	if s.Verify() == nil {
		t.Error("Verify of an ordinary file passed")
	}
	m, err := Seal(t.Context(), "test", strings.NewReader("content"), 7, 0o444)
	if err != nil {
		t.Fatal(err)
	}
	defer m.File.Close()
	m.Digest[0]++
	if m.Verify() == nil {
		t.Error("Verify with another digest passed")
	}
}

// TestStatIdentity: two files at two times in one place differ in every field
// that tells them apart, and a changed one in its ctime.
func TestStatIdentity(t *testing.T) {
	d, h := dir(t)
	write(t, d+"/a", "x", 0o644)
	write(t, d+"/b", "x", 0o644)
	look := func(name string) Stat {
		t.Helper()
		f, err := At(h, name, Plain)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		return f.Stat
	}
	a, b := look("a"), look("b")
	var st syscall.Stat_t
	if err := syscall.Stat(d+"/a", &st); err != nil {
		t.Fatal(err)
	}
	if a.Dev != st.Dev || a.Ino != st.Ino || a.MtimeNS != st.Mtim.Nano() || a.CtimeNS != st.Ctim.Nano() || a.Size != 1 {
		t.Errorf("statx says %+v, stat %+v", a, st)
	}
	if a.Ino == b.Ino || a.Dev != b.Dev || a.Mount != b.Mount || a.Mount == 0 {
		t.Errorf("%+v, %+v", a, b)
	}
	proc, err := At(nil, "/proc/self/status", Anywhere)
	if err != nil {
		t.Fatal(err)
	}
	defer proc.Close()
	if proc.Stat.Mount == a.Mount || KeepsTimes(proc.File()) {
		t.Errorf("/proc: %+v", proc.Stat)
	}
	if a.BirthNS != 0 && (a.BirthNS > a.CtimeNS || a.BirthNS > b.BirthNS) {
		t.Errorf("born %d, changed %d, the next born %d", a.BirthNS, a.CtimeNS, b.BirthNS)
	}
}

func TestWritersOf(t *testing.T) {
	d, _ := dir(t)
	write(t, d+"/file", "x", 0o644)
	r, err := os.Open(d + "/file")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if got := WritersOf(r); got != WritersNone {
		t.Errorf("nobody: %d", got)
	}
	w, err := os.OpenFile(d+"/file", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if got := WritersOf(r); got != WritersSome {
		t.Errorf("open: %d", got)
	}
	w.Close()
	if got := WritersOf(r); got != WritersNone {
		t.Errorf("closed: %d", got)
	}
	// The lease was given back: nobody waits for us.
	if w, err = os.OpenFile(d+"/file", os.O_WRONLY|syscall.O_NONBLOCK, 0); err != nil {
		t.Errorf("open after the question: %v", err)
	}
	w.Close()
	if os.Geteuid() != 0 {
		f, err := os.Open("/bin/true")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if got := WritersOf(f); got != WritersUnknown {
			t.Errorf("root's file, asked by a user: %d", got)
		}
	}
}
