package planted

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"palyra/crypt/receipt"
	"palyra/internal/toolproto"
)

// site is a workspace for a test. What is made before begin is not the call's.
type site struct {
	t   testing.TB
	dir string
}

func newSite(t testing.TB) *site {
	s := &site{t, t.TempDir()}
	t.Cleanup(func() { // folders of mode 0 could not be removed
		filepath.WalkDir(s.dir, func(p string, d os.DirEntry, err error) error {
			if d != nil && d.IsDir() {
				os.Chmod(p, 0o700)
			}
			return nil
		})
	})
	return s
}

func (s *site) at(name string) string { return filepath.Join(s.dir, name) }

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// file makes a file and the folders above it.
func (s *site) file(names ...string) {
	s.t.Helper()
	for _, name := range names {
		s.must(os.MkdirAll(filepath.Dir(s.at(name)), 0o755))
		s.must(os.WriteFile(s.at(name), []byte("x"), 0o644))
	}
}

// begin begins a look when every stamp of what is there is past.
func (s *site) begin() *Look {
	s.t.Helper()
	dir, err := os.OpenFile(s.dir, unix.O_PATH|unix.O_DIRECTORY, 0)
	s.must(err)
	s.t.Cleanup(func() { dir.Close() })
	s.tick()
	return Begin(dir)
}

// tick waits until the clock of files has moved on.
func (s *site) tick() {
	s.t.Helper()
	out, err := os.MkdirTemp(filepath.Dir(s.dir), "tick") // beside it, on the same file system
	s.must(err)
	var st unix.Statx_t
	s.must(unix.Statx(unix.AT_FDCWD, out, 0, wanted, &st))
	for end := time.Now().Add(time.Minute); now().stamp-tick <= nano(st.Ctime); {
		if time.Now().After(end) {
			s.t.Fatal("the clock of files stands still")
		}
	}
}

// lines are findings in short: "kind path", sorted by path.
func lines(p *receipt.Planted) []string {
	out := []string{}
	for _, f := range p.Found {
		l := f.Kind + " " + f.Path
		if f.Target != "" {
			l += " -> " + f.Target
		}
		if f.Moved {
			l += " moved"
		}
		out = append(out, l)
	}
	return out
}

func (s *site) want(p *receipt.Planted, incomplete string, want ...string) {
	s.t.Helper()
	if got := lines(p); !slices.Equal(got, append([]string{}, want...)) {
		s.t.Errorf("found\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
	var why []string
	for _, u := range p.Incomplete {
		why = append(why, fmt.Sprintf("%s %d", u.Why, u.Folders))
	}
	if got := strings.Join(why, ", "); got != incomplete {
		s.t.Errorf("incomplete %q, want %q", got, incomplete)
	}
	n := make(map[string]int64)
	for _, f := range p.Found {
		n[f.Kind]++
	}
	for _, k := range p.Kinds {
		if n[k.Kind] > k.Count {
			s.t.Errorf("%d findings of kind %s, counted %d", n[k.Kind], k.Kind, k.Count)
		}
	}
}

func TestFindsEachKind(t *testing.T) {
	s := newSite(t)
	s.file("old", ".envrc", ".git/config", ".git/hooks/pre-commit", "sub/deep/plain", "linked")
	s.must(os.Symlink("/etc/passwd", s.at("oldlink")))
	s.must(unix.Mkfifo(s.at("oldfifo"), 0o644))
	s.must(os.Link(s.at("linked"), s.at("linked2")))
	l := s.begin()
	s.file("new", "sub/deep/new", ".vscode/tasks.json", ".mcp.json", ".github/workflows/ci.yml", ".npmrc", "sub/.gdbinit")
	s.must(os.WriteFile(s.at(".git/hooks/post-merge"), []byte("#!/bin/sh\n"), 0o755))
	s.file(".git/hooks/pre-push.sample")
	s.must(os.Symlink("/etc/passwd", s.at("out")))
	s.must(os.Symlink("../../..", s.at("sub/deep/up")))
	s.must(os.Symlink("../..", s.at("sub/deep/top")))
	s.must(os.Symlink("loop", s.at("loop")))
	s.must(os.Symlink(".", s.at("sub/here")))
	s.must(os.Symlink(strings.Repeat("/x", 600), s.at("far")))
	s.must(unix.Mkfifo(s.at("fifo"), 0o600))
	s.must(unix.Mknod(s.at("socket"), unix.S_IFSOCK|0o600, 0))
	s.must(os.Chmod(s.at("old"), 0o755|os.ModeSetuid))
	s.must(os.Mkdir(s.at("shared"), 0o755))
	s.must(os.Chmod(s.at("shared"), 0o755|os.ModeSetgid))
	s.must(os.Mkdir(s.at("shared/below"), 0o755)) // gets the bit by itself
	s.must(os.Link(s.at("sub/deep/plain"), s.at("other")))
	want := []string{
		"git .git2/config",
		"hook .git/hooks/post-merge",
		"ci .github/workflows/ci.yml",
		"agent .mcp.json",
		"package .npmrc",
		"editor .vscode/tasks.json",
		"symlink far",
		"fifo fifo",
		"set_id old",
		"hard_link other",
		"symlink out -> /etc/passwd",
		"set_id shared",
		"socket socket",
		"tool sub/.gdbinit",
		"hard_link sub/deep/plain",
		"symlink sub/deep/up -> ../../..",
	}[1:]
	if os.Geteuid() == 0 {
		if err := unix.Mknod(s.at("device"), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err == nil {
			want = append(want, "device device")
		}
		if err := unix.Mknod(s.at("block"), unix.S_IFBLK|0o600, int(unix.Mkdev(7, 0))); err == nil {
			want = append(want, "device block")
		}
	}
	path := func(l string) string { return strings.Fields(l)[1] }
	slices.SortFunc(want, func(a, b string) int { return strings.Compare(path(a), path(b)) })
	p := l.End(true, Limits{})
	s.want(p, "", want...)
	if p.Looked < 30 {
		t.Errorf("looked at %d", p.Looked)
	}
	modes := map[string]string{"fifo": "010600", "old": "104755", "socket": "140600", "out": "120777", "device": "020600", "block": "060600",
		"shared": "042755", ".git/hooks/post-merge": "100755"}
	for _, f := range p.Found {
		if m, ok := modes[f.Path]; ok && f.Mode != m {
			t.Errorf("%s: mode %s, want %s", f.Path, f.Mode, m)
		}
	}
	if q := s.begin().End(true, Limits{}); len(q.Found) != 0 || q.Looked < 30 {
		t.Errorf("a call that changes nothing: %v of %d", lines(q), q.Looked)
	}
	if q := l.End(false, Limits{}); len(q.Incomplete) != 1 || q.Incomplete[0].Why != alive {
		t.Errorf("with a process left: %v", q.Incomplete)
	}
}

// What a program can do to a file without its content: each moves ctime.
func TestFindsEachChange(t *testing.T) {
	for name, change := range map[string]func(s *site) error{
		"write":    func(s *site) error { return os.WriteFile(s.at(".envrc"), []byte("y"), 0o644) },
		"truncate": func(s *site) error { return os.Truncate(s.at(".envrc"), 0) },
		"chmod":    func(s *site) error { return os.Chmod(s.at(".envrc"), 0o755) },
		"link":     func(s *site) error { return os.Link(s.at("plain"), s.at("sub/.envrc")) },
		"rename":   func(s *site) error { return os.Rename(s.at("plain"), s.at(".envrc")) },
		"exchange": func(s *site) error {
			return unix.Renameat2(unix.AT_FDCWD, s.at("plain"), unix.AT_FDCWD, s.at(".envrc"), unix.RENAME_EXCHANGE)
		},
		"times set back": func(s *site) error {
			if err := os.WriteFile(s.at(".envrc"), []byte("y"), 0o644); err != nil {
				return err
			}
			return os.Chtimes(s.at(".envrc"), time.Unix(1, 0), time.Unix(1, 0))
		},
		"symlink": func(s *site) error {
			if err := os.Remove(s.at(".envrc")); err != nil {
				return err
			}
			return os.Symlink("plain", s.at(".envrc"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			s.file(".envrc", "plain", "sub/x")
			l := s.begin()
			s.must(change(s))
			p := l.End(true, Limits{})
			if !slices.ContainsFunc(p.Found, func(f receipt.Finding) bool {
				return f.Kind == toolproto.PlaceShell && strings.HasSuffix(f.Path, ".envrc") && !f.Moved
			}) {
				t.Errorf("found %v", lines(p))
			}
		})
	}
}

// Files that a moved folder takes along are not touched.
func TestFindsMoved(t *testing.T) {
	s := newSite(t)
	s.file("innocent/pre-commit", "innocent/x.sample", ".git/HEAD", "conf/settings.json", "bare/config", "bare/HEAD", "bare/objects/x", "bare/refs/x",
		"deep/a/x", ".claude/settings.json", "whole/hooks/pre-push", "nested/.git/config")
	s.tick()
	l := s.begin()
	s.must(os.Rename(s.at("innocent"), s.at(".git/hooks")))
	s.must(os.Rename(s.at("conf"), s.at(".vscode")))
	s.must(os.Rename(s.at("bare"), s.at("deep/bare")))
	s.must(os.Rename(s.at("deep/a"), s.at(".claude/a")))
	s.must(os.Mkdir(s.at("sub"), 0o755))
	s.must(os.Rename(s.at("whole"), s.at("sub/.git")))
	s.file(".git/index", "nested/.git/index") // as a commit does it
	s.want(l.End(true, Limits{}), "",
		"agent .claude/a/x moved",
		"hook .git/hooks/pre-commit moved",
		"editor .vscode/settings.json moved",
		"git deep/bare/config moved",
		"hook sub/.git/hooks/pre-push moved")
}

// A repository made in two calls is found by the second, which need not touch what runs.
func TestFindsCompleted(t *testing.T) {
	for last, how := range map[string]func(s *site){
		"HEAD":      func(s *site) { s.file("x/HEAD") },
		"objects":   func(s *site) { s.must(os.Mkdir(s.at("x/objects"), 0o755)) },
		"refs":      func(s *site) { s.must(os.Rename(s.at("y"), s.at("x/refs"))) },
		"commondir": func(s *site) { s.file("x/commondir") },
	} {
		s := newSite(t)
		s.file("x/config", "x/hooks/pre-commit", "x/hooks/y.sample", "y/z")
		for _, part := range []string{"HEAD", "objects/a", "refs/a"} {
			if name, _, _ := strings.Cut(part, "/"); name != last && (last != "commondir" || name == "HEAD") {
				s.file("x/" + part)
			}
		}
		l := s.begin()
		s.want(l.End(true, Limits{}), "")
		how(s)
		want := []string{"git x/config moved", "hook x/hooks/pre-commit moved"}
		if last == "commondir" {
			want = []string{"git x/commondir", "git x/config moved", "hook x/hooks/pre-commit moved"}
		}
		s.want(l.End(true, Limits{}), "", want...)
	}
}

// git runs the hooks of the folder that a commondir names, which needs no HEAD.
func TestFindsSplit(t *testing.T) {
	s := newSite(t)
	s.file("g/HEAD", "g/commondir", "c/objects/a", "c/refs/a", "c/hooks/x.sample")
	l := s.begin()
	s.file("c/hooks/reference-transaction", "c/config")
	s.want(l.End(true, Limits{}), "", "git c/config", "hook c/hooks/reference-transaction")
}

// Work as it is done every day is not listed.
func TestLeavesWorkAlone(t *testing.T) {
	s := newSite(t)
	s.file(".git/HEAD", ".git/config", ".git/hooks/pre-commit", ".git/objects/ab/c", ".vscode/tasks.json", "src/a.go", "src/.envrc", "old/x",
		"bare/HEAD", "bare/config", "bare/hooks/update", "bare/objects/ab/c", "bare/refs/heads/x")
	l := s.begin()
	s.file("bare/objects/ab/d", "bare/refs/heads/x", "bare/refs/tags/y") // as a push does it
	s.file("src/a.go", "src/b.go", "new.go", ".git/index", ".git/objects/ab/d", ".git/logs/HEAD", "Makefile", "package.json")
	s.must(os.Rename(s.at("old"), s.at("renamed")))
	s.must(os.Symlink("a.go", s.at("src/link")))
	s.must(os.Remove(s.at(".git/objects/ab/c")))
	s.want(l.End(true, Limits{}), "")
}

func TestNames(t *testing.T) {
	s := newSite(t)
	l := s.begin()
	for _, n := range []string{"new\nline", "esc\x1b[2J", "bad\xff\xfeutf8", "back\\slash", "bidi\u202e", strings.Repeat("n", 255)} {
		s.must(unix.Mkfifo(s.at(n), 0o600))
	}
	s.must(os.Symlink("/\x1b]0;x\a\n", s.at("link")))
	p := l.End(true, Limits{})
	s.want(p, "",
		`fifo back\x5cslash`, `fifo bad\xff\xfeutf8`, `fifo bidi\xe2\x80\xae`, `fifo esc\x1b[2J`,
		`symlink link -> /\x1b]0;x\x07\x0a`, `fifo new\x0aline`, "fifo "+strings.Repeat("n", 255))
	for _, f := range p.Found {
		if name, err := toolproto.Unescape(f.Path); err != nil {
			t.Errorf("%q: %v", f.Path, err)
		} else if _, err := os.Lstat(s.at(name)); err != nil {
			t.Errorf("%q is no longer its name: %v", f.Path, err)
		}
	}
}

func TestBounds(t *testing.T) {
	s := newSite(t)
	l := s.begin()
	for i := range 300 {
		s.must(os.WriteFile(s.at(fmt.Sprintf("f%03d", i)), nil, 0o644))
		s.must(unix.Mkfifo(s.at(fmt.Sprintf("p%03d", i)), 0o644))
	}
	s.file(".git/hooks/pre-commit", "z/.envrc", ".claude/a", ".npmrc")

	p := l.End(true, Limits{PerKind: 3})
	s.want(p, "", "agent .claude/a", "hook .git/hooks/pre-commit", "package .npmrc", "fifo p000", "fifo p001", "fifo p002", "shell z/.envrc")
	if k := p.Kinds[slices.IndexFunc(p.Kinds, func(k receipt.KindCount) bool { return k.Kind == FIFO })]; k.Count != 300 {
		t.Errorf("counted %d FIFOs", k.Count)
	}

	// However many files there are, the rules' names at the top are found.
	p = l.End(true, Limits{Entries: 100})
	got := lines(p)
	for _, want := range []string{"agent .claude/a", "hook .git/hooks/pre-commit", "package .npmrc"} {
		if !slices.Contains(got, want) {
			t.Errorf("no %s among %d findings", want, len(got))
		}
	}
	if len(p.Incomplete) != 1 || p.Incomplete[0].Why != overEntries || p.Incomplete[0].Folders < 1 {
		t.Errorf("incomplete: %v", p.Incomplete)
	}
	p = l.End(true, Limits{Time: 1})
	if len(p.Incomplete) != 1 || p.Incomplete[0].Why != overTime {
		t.Errorf("incomplete: %v", p.Incomplete)
	}
}

// With the bounds that calls have, more files than that hide no hook, and the look
// says that it did not see them all.
func TestFlood(t *testing.T) {
	s := newSite(t)
	l := s.begin()
	s.file(".git/hooks/pre-commit")
	for i := range 21_000 {
		fd, err := unix.Open(s.at(fmt.Sprintf("f%d", i)), unix.O_CREAT|unix.O_WRONLY|unix.O_CLOEXEC, 0o644)
		s.must(err)
		unix.Close(fd)
	}
	p := l.End(true, Limits{Time: time.Hour})
	if got := lines(p); !slices.Equal(got, []string{"hook .git/hooks/pre-commit"}) {
		t.Errorf("found %v", got)
	}
	if len(p.Incomplete) != 1 || p.Incomplete[0].Why != overEntries || p.Looked < 20_000 || p.Looked > 20_100 {
		t.Errorf("looked at %d, incomplete %v", p.Looked, p.Incomplete)
	}
}

func TestDeep(t *testing.T) {
	s := newSite(t)
	l := s.begin()
	fd, err := unix.Open(s.dir, unix.O_RDONLY|unix.O_DIRECTORY, 0)
	s.must(err)
	// Deeper than a path can say, and than there may be folders.
	name := strings.Repeat("d", 200)
	for range 120 {
		s.must(unix.Mkdirat(fd, name, 0o755))
		s.must(unix.Mkfifoat(fd, "fifo", 0o600))
		next, err := unix.Openat(fd, name, unix.O_RDONLY|unix.O_DIRECTORY, 0)
		s.must(err)
		unix.Close(fd)
		fd = next
	}
	unix.Close(fd)
	p := l.End(true, Limits{PerKind: 1000})
	if n := len(p.Found); n < 2 || len(p.Kinds) != 1 || p.Kinds[0].Count != 21 {
		t.Errorf("%d findings, %v", n, p.Kinds)
	}
	if len(p.Incomplete) != 1 || p.Incomplete[0] != (receipt.Unlooked{Why: overDepth, Folders: 1}) {
		t.Errorf("incomplete: %v", p.Incomplete)
	}
	if p = l.End(true, Limits{Depth: 5}); p.Kinds[0].Count != 5 || p.Incomplete[0].Why != overDepth {
		t.Errorf("5 deep: %v, %v", p.Kinds, p.Incomplete)
	}
}

func TestUnreadable(t *testing.T) {
	s := newSite(t)
	s.file("shut/x")
	s.must(os.Chmod(s.at("shut"), 0))
	l := s.begin()
	s.must(os.Mkdir(s.at("dark"), 0))
	s.want(asNobody(l), "unreadable 2", "unreadable dark")
	s.must(os.Chmod(s.dir, 0))
	s.want(asNobody(l), "unreadable 1")
	s.must(os.Chmod(s.dir, 0o755))
}

// asNobody ends a look with the rights of nobody where we are root, who may look
// everywhere.
func asNobody(l *Look) *receipt.Planted {
	got := make(chan *receipt.Planted)
	go func() {
		runtime.LockOSThread() // for good: the thread goes with the goroutine
		if os.Geteuid() == 0 {
			unix.SetfsuidRetUid(65534) // takes the capabilities to pass modes over, too
		}
		got <- l.End(true, Limits{})
	}()
	return <-got
}

// A folder is replaced by a link between the look at its name and the look into
// it: the link is not followed, whatever it leads to.
func TestReplacedMeanwhile(t *testing.T) {
	outside := t.TempDir()
	if err := unix.Mkfifo(outside+"/fifo", 0o600); err != nil {
		t.Fatal(err)
	}
	for name, with := range map[string]func(path string) error{
		"link":   func(p string) error { return os.Symlink(outside, p) },
		"fifo":   func(p string) error { return unix.Mkfifo(p, 0o600) },
		"file":   func(p string) error { return os.WriteFile(p, nil, 0o600) },
		"loop":   func(p string) error { return os.Symlink(p, p) },
		"nobody": func(string) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			l := s.begin()
			s.file("a/b/c/x", "a/z/.envrc")
			l.testOnlyOpened = func(path string) {
				if path == "a/b" {
					s.tick()
					s.must(os.Rename(s.at("a/b"), s.at("a/gone")))
					s.must(with(s.at("a/b")))
				}
			}
			s.tick()
			s.want(l.End(true, Limits{}), "changing 2", "shell a/z/.envrc") // a changed, and a/b cannot be opened
		})
	}
}

// Another call moves what this one planted from a folder that the look has not come to into
// one that it has left: the look says that it may have missed something.
func TestMovedMeanwhile(t *testing.T) {
	for name, c := range map[string]struct {
		at   string // is about to be read
		from string // is moved
		want string // what is found
	}{
		"before its folder is read": {"z", "z/d", "changing 1"},
		"with its folder":           {"z", "z", "changing 2"},
		"from the top":              {"k", "z", "changing 2"},
		"when its folder was read":  {"z/b", "z/d", "changing 2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			l := s.begin()
			s.file("a/x", "k/x", "z/b/x", "z/d/.envrc")
			s.tick()
			l.testOnlyOpened = func(path string) {
				if path == c.at {
					s.tick()
					s.must(os.Rename(s.at(c.from), s.at("a/new")))
				}
			}
			s.want(l.End(true, Limits{}), c.want)
		})
	}
}

// What the program changed right before the look is no reason to say that it is
// incomplete, whatever clock the file system stamps by.
func TestChangedRightBefore(t *testing.T) {
	for _, ordered := range []bool{true, false} {
		s := newSite(t)
		s.file("sub/x")
		for i := range 50 {
			l := s.begin()
			l.ordered = l.ordered && ordered
			s.file(fmt.Sprintf("sub/%d", i), ".envrc")
			s.want(l.End(true, Limits{Time: time.Hour}), "", "shell .envrc")
		}
	}
}

// Somebody replaces folders by links and back all the time.
func TestReplacedAllTheTime(t *testing.T) {
	outside := t.TempDir()
	if err := unix.Mkfifo(outside+"/fifo-of-others", 0o600); err != nil {
		t.Fatal(err)
	}
	s := newSite(t)
	l := s.begin()
	s.file("d/x", "keep/x")
	s.must(os.Symlink(outside, s.at("l")))
	done, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			default:
				unix.Renameat2(unix.AT_FDCWD, s.at("d"), unix.AT_FDCWD, s.at("l"), unix.RENAME_EXCHANGE)
			}
		}
	}()
	for range 300 {
		for _, line := range lines(l.End(true, Limits{})) {
			if strings.Contains(line, "fifo-of-others") {
				t.Errorf("followed: %s", line)
			}
		}
	}
	close(done)
	<-stopped
}

// A clock that is set back does not hide what was changed.
func TestClockSetBack(t *testing.T) {
	l := &Look{begun: moment{stamp: 100e9, boot: 50e9}}
	for _, c := range []struct {
		name  string
		ended moment
		want  int64
	}{
		{"runs on", moment{110e9, 60e9}, 100e9},
		{"set forward", moment{500e9, 60e9}, 100e9},
		{"set back by 30 s", moment{80e9, 60e9}, 70e9},
		{"read between ticks", moment{110e9 - 4e6, 60e9}, 100e9},
	} {
		if got := l.since(c.ended); got != c.want-tick {
			t.Errorf("%s: %d, want %d", c.name, got, c.want-tick)
		}
	}
	w := &walk{since: 100e9 - tick}
	for _, c := range []struct {
		t    unix.StatxTimestamp
		want bool
	}{
		{unix.StatxTimestamp{Sec: 100}, true},
		{unix.StatxTimestamp{Sec: 101, Nsec: 5}, true},
		{unix.StatxTimestamp{Sec: 99}, true}, // of a file system that keeps every other second
		{unix.StatxTimestamp{Sec: 97}, false},
		{unix.StatxTimestamp{Sec: 99, Nsec: 1}, false},
		{unix.StatxTimestamp{Sec: 99, Nsec: 999_999_900}, true}, // tenths of microseconds
	} {
		if got := w.changed(c.t); got != c.want {
			t.Errorf("%v: %t", c.t, got)
		}
	}
}
