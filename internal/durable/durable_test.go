//go:build unix

package durable

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// TestMain holds a lock in another process when the environment asks.
func TestMain(m *testing.M) {
	if path := os.Getenv("PALYRA_TEST_LOCK"); path != "" {
		if _, err := Lock(path); err != nil {
			os.Exit(3)
		}
		_, _ = os.Stdout.WriteString("locked\n")
		_, _ = os.Stdin.Read(make([]byte, 1)) // until the parent goes or kills us
		os.Exit(0)
	}
	os.Exit(m.Run())
}

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	old := syscall.Umask(0o077)
	defer syscall.Umask(old)
	for _, w := range []struct {
		data string
		perm os.FileMode
	}{{"one", 0o600}, {"two", 0o644}, {"", 0o600}} {
		var steps []string
		if err := WriteFileSteps(path, []byte(w.data), w.perm, func(s string) { steps = append(steps, s) }); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || string(b) != w.data {
			t.Errorf("read %q, %v; want %q", b, err, w.data)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != w.perm {
			t.Errorf("mode %v, want %o", fi.Mode(), w.perm)
		}
		if want := []string{"created", "written", "synced", "renamed", "durable"}; !slices.Equal(steps, want) {
			t.Errorf("steps %v, want %v", steps, want)
		}
	}
	only(t, dir, "f")
}

func only(t *testing.T, dir string, want ...string) {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range es {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s holds %q, want %q", dir, got, want)
	}
}

// TestWriteFileFails leaves the old file and nothing else.
func TestWriteFileFails(t *testing.T) {
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "f"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "f"), []byte("x"), 0o600); err == nil {
		t.Error("replaced a directory")
	} else if strings.Contains(err.Error(), tempMark) {
		t.Errorf("the error names the temporary file: %v", err)
	}
	only(t, dir, "f")
	if err := WriteFile(filepath.Join(dir, "state_missing", "f"), []byte("x"), 0o600); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("in a missing directory: %v", err)
	}
}

func TestRemoveTemps(t *testing.T) {
	dir := t.TempDir()
	for _, n := range []string{".f" + tempMark + "ABC", ".hidden", "kept" + tempMark, "kept"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := RemoveTemps(dir); err != nil {
		t.Fatal(err)
	}
	only(t, dir, ".hidden", "kept", "kept"+tempMark)
}

func TestMkdirAll(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	for range 2 {
		if err := MkdirAll0700(dir); err != nil {
			t.Fatal(err)
		}
	}
	if err := CheckPrivate(dir); err != nil {
		t.Error(err)
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := MkdirAll0700(file); err == nil {
		t.Error("a file passes for a directory")
	}
	if err := MkdirAll0700(filepath.Join(file, "x")); err == nil {
		t.Error("made a directory in a file")
	}
}

func TestPrivate(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	make1 := func(mode os.FileMode) func() error {
		return func() error {
			if err := os.WriteFile(path, []byte("x"), mode); err != nil {
				return err
			}
			return os.Chmod(path, mode)
		}
	}
	for _, c := range []struct {
		name   string
		do     func() error
		reason string
	}{
		{"state_missing", func() error { return nil }, "state_missing"},
		{"good", make1(0o600), ""},
		{"read-only", make1(0o400), ""},
		{"group", make1(0o640), "unsafe_file"},
		{"others", make1(0o601), "unsafe_file"},
		{"link", func() error { return os.Symlink("/etc/passwd", path) }, "bad_file"},
		{"dangling link", func() error { return os.Symlink("nowhere", path) }, "bad_file"},
		{"FIFO", func() error { return syscall.Mkfifo(path, 0o600) }, "bad_file"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer os.Remove(path)
			if err := c.do(); err != nil {
				t.Fatal(err)
			}
			if err := CheckPrivate(path); fault.ReasonOf(err) != c.reason {
				t.Errorf("check: %v, want %q", err, c.reason)
			}
			if _, err := ReadPrivate(path, 10); fault.ReasonOf(err) != c.reason || err != nil && fault.KindOf(err) != fault.BadState {
				t.Errorf("read: %v, want %q", err, c.reason)
			}
		})
	}
	if err := os.WriteFile(path, []byte("12345678901"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ReadPrivate(path, 10); fault.ReasonOf(err) != "too_large" {
		t.Errorf("11 bytes with a limit of 10: %v", err)
	}
	if b, err := ReadRegular(path, 11); err != nil || len(b) != 11 {
		t.Errorf("11 bytes with a limit of 11: %q, %v", b, err)
	}
}

// TestCheckOwn: the mode of a directory that was meant as the place of the state
// is to be changed; where another was named by mistake, the name is.
func TestCheckOwn(t *testing.T) {
	base := t.TempDir()
	dir := func(name string, mode os.FileMode, files ...string) string {
		t.Helper()
		d := filepath.Join(base, name)
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			if err := os.WriteFile(filepath.Join(d, f), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
		return d
	}
	const mode, other = "chmod 0700", "a directory of its own"
	cases := []struct{ path, hint string }{
		{dir("new", 0o755), mode},
		{dir("used", 0o755, "keys", "x"), mode},
		{dir("used sticky", 0o777|os.ModeSticky, "keys"), mode},
		{dir("home", 0o755, "x"), other},
		{dir("tmp", 0o777|os.ModeSticky), other},
		{"/", other}, {"/dev", other},
		{dir("sound", 0o700), ""}, {dir("sound home", 0o700, "x"), ""},
	}
	if os.Geteuid() == 0 {
		for _, name := range []string{"theirs", "their state"} {
			d := dir(name, 0o700, strings.Fields(map[string]string{"their state": "keys"}[name])...)
			if err := os.Chown(d, 1234, 1234); err != nil {
				t.Fatal(err)
			}
			cases = append(cases, struct{ path, hint string }{d, map[string]string{"theirs": other, "their state": "run as the owner"}[name]})
		}
	}
	for _, c := range cases {
		err := CheckOwn(c.path, "keys")
		if got := fault.HintOf(err); (c.hint == "") != (err == nil) || !strings.Contains(got, c.hint) || (err != nil && fault.KindOf(err) != fault.BadState) {
			t.Errorf("%q: %v, hint %q, want %q", c.path, err, got, c.hint)
		}
	}
	if err := CheckOwn(filepath.Join(base, "state_missing"), "keys"); fault.ReasonOf(err) != "state_missing" {
		t.Errorf("a missing one: %v", err)
	}
}

// TestLock: exclusive between and within processes, gone with its process.
func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "PALYRA_TEST_LOCK="+path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := out.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); fault.KindOf(err) != fault.Busy || fault.HintOf(err) == "" {
		t.Errorf("lock that another process holds: %v, want busy", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	l, err := Lock(path)
	if err != nil {
		t.Fatalf("lock of a dead process: %v", err)
	}
	if _, err := Lock(path); fault.KindOf(err) != fault.Busy {
		t.Errorf("second lock in one process: %v, want busy", err)
	}
	if err := l.Unlock(); err != nil {
		t.Fatal(err)
	}
	if l, err = Lock(path); err != nil {
		t.Fatal(err)
	}
	// A lock on a name that was removed locks nothing; the next one works.
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	l2, err := Lock(path)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = l.Unlock(), l2.Unlock()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("elsewhere", path); err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(path); fault.ReasonOf(err) != "bad_file" {
		t.Errorf("lock through a link: %v", err)
	}
}

func TestFault(t *testing.T) {
	for _, c := range []struct {
		err    error
		kind   fault.Kind
		reason string
	}{
		{&os.PathError{Op: "write", Err: syscall.ENOSPC}, fault.Unavailable, "disk_full"},
		{syscall.EDQUOT, fault.Unavailable, "disk_full"},
		{syscall.EMFILE, fault.Unavailable, "resource_exhausted"},
		{syscall.EIO, fault.Unavailable, "io_error"},
		{syscall.EFBIG, fault.Unavailable, "too_large"},
		{syscall.EROFS, fault.BadState, "read_only"},
		{syscall.EACCES, fault.BadState, "permission_denied"},
		{syscall.ENOENT, fault.BadState, "state_missing"},
		{errors.New("else"), fault.BadState, "state_io"},
		{fault.New(fault.Integrity, "x", "y", syscall.ENOSPC), fault.Integrity, "x"},
	} {
		got := Fault("op", c.err)
		if fault.KindOf(got) != c.kind || fault.ReasonOf(got) != c.reason {
			t.Errorf("%v: %v (%s), want %s", c.err, got, fault.ReasonOf(got), c.reason)
		}
	}
	if Fault("op", nil) != nil {
		t.Error("no error is an error")
	}
}

// TestStage: a staged file is in no one's way until it is committed, and leaves nothing
// behind if it never is.
func TestStage(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	if err := WriteFile(path, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := func() (out []string) {
		es, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range es {
			out = append(out, e.Name())
		}
		return out
	}
	holds := func(want string) {
		t.Helper()
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%q, %v; want %q", b, err, want)
		}
	}
	var steps []string
	stage := func() *Staged {
		t.Helper()
		s, err := Stage(path, content([]byte("new")), 0o640, func(s string) { steps = append(steps, s) })
		if err != nil {
			t.Fatal(err)
		}
		holds("old")
		if n := names(); len(n) != 2 || !IsTemp(n[0]) {
			t.Errorf("staged: %q", n)
		}
		return s
	}

	s := stage()
	s.Discard()
	s.Discard()
	(*Staged)(nil).Discard()
	if n := names(); len(n) != 1 {
		t.Errorf("discarded: %q", n)
	}
	holds("old")

	s, steps = stage(), nil
	if _, err := s.File.WriteAt([]byte("er"), 3); err != nil {
		t.Fatal(err)
	}
	if placed, err := s.Commit(); !placed || err != nil {
		t.Fatal(placed, err)
	}
	holds("newer")
	if s.Discard(); len(names()) != 1 || !slices.Equal(steps, []string{"renamed", "durable"}) {
		t.Errorf("committed: %q, steps %q", names(), steps)
	}
	holds("newer")

	s = func() *Staged { s, _ := Stage(path, content(nil), 0o600, func(string) {}); return s }()
	if err := os.Remove(s.File.Name()); err != nil { // another process swept it away
		t.Fatal(err)
	}
	if placed, err := s.Commit(); placed || err == nil {
		t.Errorf("a file that is gone: %v, %v", placed, err)
	}
	s.Discard()
	holds("newer")
}

func TestWriteIn(t *testing.T) {
	at := t.TempDir()
	held := filepath.Join(at, "held")
	if err := os.MkdirAll(filepath.Join(held, "folder", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(held)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	outside := filepath.Join(at, "outside")
	for _, err := range []error{os.WriteFile(outside, []byte("stays"), 0o644), os.Symlink(outside, filepath.Join(held, "link")),
		os.WriteFile(filepath.Join(held, "file"), []byte("was longer"), 0o600)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"new", "file", "link"} {
		if err := WriteIn(root, name, []byte("now"), 0o640); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Lstat(filepath.Join(held, name))
		if err != nil || fi.Mode() != 0o640 || fi.Size() != 3 {
			t.Errorf("%s: %v, %v", name, fi, err)
		}
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "stays" {
		t.Errorf("what the link led to: %q, %v", b, err)
	}
	for _, name := range []string{"folder", "../outside", "link/x"} {
		if err := WriteIn(root, name, []byte("now"), 0o640); err == nil {
			t.Errorf("%s: written", name)
		}
	}
	es, err := os.ReadDir(held)
	if err != nil || len(es) != 4 {
		t.Errorf("left: %v, %v", es, err)
	}
}
