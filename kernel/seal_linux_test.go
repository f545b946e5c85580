package kernel

import (
	"context"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/pin"
)

func proposal(argv ...string) *Proposal { return &Proposal{Tool: ToolRun, Argv: argv} }

func sealIn(t *testing.T, p *Proposal, stdin io.Reader) (*sealed, error) {
	t.Helper()
	s, err := seal(t.Context(), p, stdin, "", nil)
	if err == nil {
		t.Cleanup(s.close)
	}
	return s, err
}

func mustSeal(t *testing.T, p *Proposal) *sealed {
	t.Helper()
	s, err := sealIn(t, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func put(t *testing.T, name, content string, perm fs.FileMode) string {
	t.Helper()
	if err := os.WriteFile(name, []byte(content), perm); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(name, perm); err != nil {
		t.Fatal(err)
	}
	return name
}

func contentOf(t *testing.T, f *os.File) string {
	t.Helper()
	b, err := io.ReadAll(io.NewSectionReader(f, 0, 1<<30))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func trueBinary(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSealSystemProgram(t *testing.T) {
	a, b := mustSeal(t, proposal("true", "x")), mustSeal(t, proposal("true", "x"))
	if a.id != b.id {
		t.Error("the same call has two identities")
	}
	e := a.capsule.Executable
	if e.Pinned != capsule.PinnedSystem || e.Path != "/usr/bin/true" || e.Digest != canon.Sum([]byte(trueBinary(t))) {
		t.Errorf("got %+v", e)
	}
	if got := a.program.argv; !slices.Equal(got, []string{"true", "x"}) {
		t.Errorf("argv %q", got)
	}
	if err := a.recheck(); err != nil {
		t.Errorf("recheck: %v", err)
	}
	if c := mustSeal(t, proposal("true", "y")); c.id == a.id {
		t.Error("other arguments, same identity")
	}
	if c := mustSeal(t, proposal("/bin/true", "x")); c.id == a.id || c.capsule.Executable != e {
		t.Error("another argv[0] is another call of the same file")
	}
	spec := a.spec()
	if d, err := spec.Digest(); err != nil || d.IsZero() || spec.Capsule != a.id || spec.Tier != tier.C {
		t.Errorf("spec: %v, %v", spec, err)
	}
}

// TestSealCopies: the hashed bytes run, whatever happens to the file.
func TestSealCopies(t *testing.T) {
	dir, body := t.TempDir(), trueBinary(t)
	prog := put(t, dir+"/prog", body, 0o755)
	for name, tamper := range map[string]func() error{
		"rewritten in place": func() error { return os.WriteFile(prog, []byte("#!/bin/sh\necho evil\n"), 0o755) },
		"replaced":           func() error { return os.Rename(put(t, dir+"/new", "#!/bin/sh\n", 0o755), prog) },
		"removed":            func() error { return os.Remove(prog) },
		"truncated":          func() error { return os.Truncate(prog, 0) },
	} {
		os.Remove(prog)
		put(t, prog, body, 0o755)
		s := mustSeal(t, proposal(prog))
		if err := tamper(); err != nil {
			t.Fatal(err)
		}
		e := s.capsule.Executable
		if e.Pinned != capsule.PinnedSealed || e.Digest != canon.Sum([]byte(body)) || e.Path != prog {
			t.Errorf("%s: capsule says %+v", name, e)
		}
		if contentOf(t, s.program.exec.file) != body {
			t.Errorf("%s: the copy changed", name)
		}
		if err := (&pin.Sealed{File: s.program.exec.file, Digest: e.Digest, Size: e.Size}).Verify(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestProgramRefused(t *testing.T) {
	dir, body := t.TempDir(), trueBinary(t)
	elf := []byte(body)
	with := func(at int, b byte) string { c := slices.Clone(elf); c[at] = b; return string(c) }
	if err := syscall.Mkfifo(dir+"/fifo", 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	os.Symlink("loop", dir+"/loop")
	os.Symlink("/proc/self/exe", dir+"/magic")
	big := put(t, dir+"/big", body, 0o755)
	if err := os.Truncate(big, maxExecutable+1); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		kind   fault.Kind
		reason string
	}{
		{"no-such-program", fault.NotFound, "program_not_found"},
		{dir + "/none", fault.NotFound, "program_not_found"},
		{dir + "/none/none", fault.NotFound, "program_not_found"},
		{put(t, dir+"/plainfile", body, 0o755) + "/x", fault.NotFound, "program_not_found"},
		{"./relative", fault.NotFound, "program_not_found"},
		{strings.Repeat("x", 300), fault.NotFound, "program_not_found"},
		{"/" + strings.Repeat("x/", 4000), fault.NotFound, "program_not_found"},
		{dir, fault.NotExec, "program_not_executable: is a directory"},
		{"/", fault.NotExec, "program_not_executable: is a directory"},
		{dir + "/fifo", fault.NotExec, "program_not_executable: is a FIFO, socket or device"},
		{dir + "/sock", fault.NotExec, "program_not_executable: is a FIFO, socket or device"},
		{"/dev/null", fault.NotExec, "program_not_executable: is a FIFO, socket or device"},
		{"/dev/tty", fault.NotExec, "program_not_executable: is a FIFO, socket or device"},
		{dir + "/loop", fault.NotExec, "program_not_executable: too many links, or one of /proc"},
		{dir + "/magic", fault.NotExec, "program_not_executable: too many links, or one of /proc"},
		{"/proc/self/exe", fault.NotExec, "program_not_executable: too many links, or one of /proc"},
		{"/dev/fd/0", fault.NotExec, "program_not_executable: too many links, or one of /proc"},
		{put(t, dir+"/empty", "", 0o755), fault.NotExec, "program_not_executable: is empty"},
		{put(t, dir+"/noexec", body, 0o644), fault.NotExec, "program_not_executable: permission denied"},
		{big, fault.NotExec, "too_large: bytes, limit "},
		{put(t, dir+"/text", "echo hello\n", 0o755), fault.NotExec, "program_not_executable: neither an ELF binary nor a script"},
		{put(t, dir+"/short", "\x7fELF", 0o755), fault.NotExec, "program_not_executable: neither an ELF binary nor a script"},
		{put(t, dir+"/elf32", with(4, 1), 0o755), fault.NotExec, "program_not_executable: not a 64-bit little-endian binary"},
		{put(t, dir+"/bigendian", with(5, 2), 0o755), fault.NotExec, "program_not_executable: not a 64-bit little-endian binary"},
		{put(t, dir+"/riscv", with(18, 243), 0o755), fault.NotExec, "program_not_executable: built for machine 243"},
		{put(t, dir+"/object", with(16, 1), 0o755), fault.NotExec, "program_not_executable: ELF type 1"},
	} {
		_, err := sealIn(t, proposal(c.name), nil)
		if fault.KindOf(err) != c.kind || !says(err, c.reason) {
			t.Errorf("%q: got %v, %s (%v)", clip(c.name), fault.KindOf(err), fault.ReasonOf(err), err)
		}
	}
	if os.Geteuid() != 0 {
		for name, perm := range map[string]fs.FileMode{"unreadable": 0o111, "not executable": 0o400} {
			f := put(t, dir+"/"+name, body, perm)
			if _, err := sealIn(t, proposal(f), nil); !says(err, "program_not_executable: permission denied") {
				t.Errorf("mode %v: got %v", perm, err)
			}
		}
	}
}

// TestFIFODoesNotBlock: sealing a FIFO ends without a writer. A hang here is the failure.
func TestFIFODoesNotBlock(t *testing.T) {
	ws := t.TempDir()
	if err := syscall.Mkfifo(ws+"/fifo", 0o755); err != nil {
		t.Fatal(err)
	}
	p := proposal("cat", "fifo")
	p.Workspace = ws
	s := mustSeal(t, p)
	if want := []capsule.Unpinned{{Path: "/workspace/fifo", Kind: capsule.KindSpecial}}; !slices.Equal(s.capsule.Unpinned, want) {
		t.Errorf("got %v", s.capsule.Unpinned)
	}
	p.Argv = []string{"./fifo"}
	if _, err := sealIn(t, p, nil); !says(err, "program_not_executable: is a FIFO") {
		t.Errorf("got %v", err)
	}
}

func TestProgramInWorkspace(t *testing.T) {
	ws, body := t.TempDir(), trueBinary(t)
	os.Mkdir(ws+"/sub", 0o755)
	put(t, ws+"/prog", body, 0o755)
	put(t, ws+"/sub/prog", body, 0o755)
	os.Symlink("../prog", ws+"/sub/up")
	os.Symlink("/usr/bin/true", ws+"/out")
	for _, c := range []struct{ argv0, cwd, path, reason string }{
		{"./prog", "", "/workspace/prog", ""},
		{"sub/prog", "", "/workspace/sub/prog", ""},
		{"./prog", "/workspace/sub", "/workspace/sub/prog", ""},
		{"../prog", "/workspace/sub", "/workspace/prog", ""},
		{"./up", "/workspace/sub", "/workspace/prog", ""},
		{"/workspace/prog", "", "/workspace/prog", ""},
		{"/workspace//prog", "", "/workspace/prog", ""},
		{"/workspace/../workspace/prog", "", "/workspace/prog", ""},
		{"/usr/../workspace/prog", "", "/workspace/prog", ""},
		{ws + "/prog", "", "/workspace/prog", ""}, // by its name on the host
		{"/usr/bin/true", "", "/usr/bin/true", ""},
		{"./out", "", "", "outside_workspace: a link leads out"},
		{"../../usr/bin/true", "", "", "program_not_found"}, // no caller's directory
		{"./none", "", "", "program_not_found"},
		{"./prog", "/workspace/none", "", "invalid_input: no such file"},
		{"./prog", "/workspace/prog", "", "invalid_input: not a directory"},
		{"./prog", "/etc", "", "outside_workspace: spelled plainly"},
		{"./prog", "/workspace/../etc", "", "outside_workspace: spelled plainly"},
		{"./prog", "/workspacex", "", "outside_workspace: spelled plainly"},
		{"./prog", "sub", "", "outside_workspace: spelled plainly"},
	} {
		p := proposal(c.argv0)
		p.Workspace, p.Cwd = ws, c.cwd
		s, err := sealIn(t, p, nil)
		switch {
		case !says(err, c.reason):
			t.Errorf("%+v: got %v", c, err)
		case err == nil && s.capsule.Executable.Path != c.path:
			t.Errorf("%+v: got %s", c, s.capsule.Executable.Path)
		case err == nil && (s.capsule.Executable.Pinned == capsule.PinnedSealed) != (c.path != "/usr/bin/true"):
			t.Errorf("%+v: pinned %s", c, s.capsule.Executable.Pinned)
		}
	}
	p := proposal("./prog")
	p.Dir = ws
	if s := mustSeal(t, p); s.capsule.Executable.Path != ws+"/prog" {
		t.Errorf("caller's directory: %s", s.capsule.Executable.Path)
	}
	// At tier B the workspace is used in place.
	p = proposal("./prog", "prog")
	p.Workspace, p.TierFloor = ws, tier.B
	s := mustSeal(t, p)
	if s.capsule.Cwd != ws || s.capsule.Executable.Path != ws+"/prog" || s.capsule.Operands[0].Path != ws+"/prog" {
		t.Errorf("tier B: %+v", s.capsule)
	}
}

func TestEnvironment(t *testing.T) {
	env, err := environment([]string{"ZED=1", "HOME=/workspace", "EMPTY="}, nil, nil, nil)
	want := []string{"EMPTY=", "HOME=/workspace", "LANG=C.UTF-8", "PATH=" + searchPath, "TMPDIR=/tmp", "ZED=1"}
	if err != nil || !slices.Equal(env, want) {
		t.Errorf("got %q, %v", env, err)
	}
	t.Setenv("PALYRA_TEST_SECRET", "hunter2")
	if s := mustSeal(t, proposal("true")); strings.Contains(string(s.bytes), "hunter2") {
		t.Error("the caller's environment is in the capsule")
	}
	const badName = "invalid_input: a name is letters"
	for e, reason := range map[string]string{
		"A": "invalid_input: not of the form NAME=VALUE", "=x": badName, "1A=x": badName, "A B=x": badName, "A-B=x": badName, "Ä=x": badName,
		"LD_PRELOAD=/x": "invalid_input", "LD_LIBRARY_PATH=x": "invalid_input", "BASH_ENV=x": "invalid_input", "GIT_SSH_COMMAND=x": "invalid_input", "ZIP=-T -TT ./x": "invalid_input", "GROFF_BIN_PATH=.": "invalid_input",
		"PYTHONSTARTUP=x": "invalid_input", "PYTHONPATH=x": "invalid_input", "NODE_OPTIONS=x": "invalid_input", "PERL5OPT=x": "invalid_input",
		"RUBYOPT=x": "invalid_input", "JAVA_TOOL_OPTIONS=x": "invalid_input", "GLIBC_TUNABLES=x": "invalid_input", "IFS=x": "invalid_input",
		"BASH_FUNC_x%%=x": badName, "LD_X=": "invalid_input", "MAKEFILES=x": "invalid_input", "CONFIG_SITE=x": "invalid_input",
		"GOCACHEPROG=x": "invalid_input", "SYSTEMD_EDITOR=x": "invalid_input", "GH_PAGER=x": "invalid_input", "SSH_ASKPASS=x": "invalid_input", "XDG_CONFIG_HOME=/x": "invalid_input",
		"A=\x00": "invalid_input: a NUL byte", "A=\xff": "invalid_input: not UTF-8",
	} {
		p := proposal("true")
		p.Env = []string{e}
		if _, err := sealIn(t, p, nil); !says(err, reason) || fault.KindOf(err) != fault.Usage {
			t.Errorf("%q: got %v", e, err)
		}
	}
	if _, err := environment([]string{"CGO_ENABLED=0", "GOOS=linux", "MIX_ENV=test", "LESSCHARSET=utf-8", "QT_QPA_PLATFORM=offscreen", "EDITORS=x", "LC_ALL=C"}, nil, nil, nil); err != nil {
		t.Errorf("usual ones: %v", err)
	}
	if _, err := environment([]string{"A=1", "A=2"}, nil, nil, nil); !says(err, "invalid_input: set twice") {
		t.Errorf("repeated: %v", err)
	}
}

func TestArgumentsRefused(t *testing.T) {
	many := slices.Repeat([]string{strings.Repeat("x", 1000)}, 2100)
	for _, c := range []struct {
		reason string
		p      *Proposal
	}{
		{"not_found", &Proposal{Argv: []string{"true"}}},
		{"invalid_input: no program named", proposal()},
		{"invalid_input: no program named", proposal("")},
		{"invalid_input: a NUL byte", proposal("true", "a\x00b")},
		{"invalid_input: a NUL byte", proposal("tr\x00ue")},
		{"invalid_input: not UTF-8", proposal("true", "\xff")},
		{"too_large: a string of ", proposal("true", strings.Repeat("x", 128<<10))},
		{"too_large: arguments and environment", proposal(append([]string{"true"}, many...)...)},
		{"too_large: arguments and environment", proposal(append([]string{"true"}, make([]string, 300000)...)...)},
		{"invalid_input: stdin mode", &Proposal{Tool: ToolRun, Argv: []string{"true"}, Stdin: "x"}},
		{"invalid_input: tier a", &Proposal{Tool: ToolRun, Argv: []string{"true"}, TierFloor: tier.A}},
		{"invalid_input: check network: no session", &Proposal{Tool: ToolRun, Argv: []string{"true"}, Network: isolate.NetworkSession}},
		{"invalid_input: check caches: no session to share /tmp with", &Proposal{Tool: ToolRun, Argv: []string{"true"}, Workspace: t.TempDir(), Caches: []string{isolate.CacheTmp}}},
		{"invalid_input: check ids", &Proposal{Tool: ToolRun, Argv: []string{"true"}, RunID: strings.Repeat("x", 129)}},
		{"invalid_input: open workspace \"x\": the path is not absolute", &Proposal{Tool: ToolRun, Argv: []string{"true"}, Workspace: "x"}},
		{"invalid_input: open directory \"x\": the path is not absolute", &Proposal{Tool: ToolRun, Argv: []string{"true"}, Dir: "x"}},
	} {
		if _, err := sealIn(t, c.p, nil); !says(err, c.reason) || fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: got %v", c.reason, err)
		}
	}
	// The kernel accepts all that passes here.
	long := []string{strings.Repeat("x", 128<<10-1)}
	if mustSeal(t, proposal(append([]string{"true"}, long...)...)); exec.Command("/bin/true", long...).Run() != nil {
		t.Error("the kernel refuses the longest argument")
	}
	if exec.Command("/bin/true", long[0]+"x").Run() == nil {
		t.Error("the kernel takes a longer argument than we do")
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		set func(*Proposal)
		ok  bool
	}{
		{func(p *Proposal) {}, true},
		{func(p *Proposal) { p.Limits.PIDs = 1 }, true},
		{func(p *Proposal) { p.Limits.PIDs = -1 }, false},
		{func(p *Proposal) { p.Limits.Memory = 1 << 60 }, false},
		{func(p *Proposal) { p.Limits.Wall = -1 }, false},
		{func(p *Proposal) { p.Limits.Output = 1<<63 - 1 }, false},
	} {
		p := proposal("true")
		c.set(p)
		s, err := sealIn(t, p, nil)
		if c.ok != (err == nil) || !c.ok && !says(err, "invalid_input: check limit ") {
			t.Errorf("%+v: %v", p.Limits, err)
		}
		if err == nil && (s.capsule.Limits.Wall != DefaultLimits().Wall || s.capsule.Limits.PIDs == 0) {
			t.Errorf("%+v", s.capsule.Limits)
		}
	}
}

func TestStdin(t *testing.T) {
	p := proposal("cat")
	p.Stdin = StdinSealed
	for _, c := range []struct {
		n      int
		reason string
	}{{0, ""}, {1, ""}, {maxStdin, ""}, {maxStdin + 1, "too_large: standard input"}, {4 * maxStdin, "too_large: standard input"}} {
		in := strings.Repeat("x", c.n)
		s, err := sealIn(t, p, strings.NewReader(in))
		if !says(err, c.reason) {
			t.Errorf("%d bytes: %v", c.n, err)
		}
		if err != nil {
			if fault.HintOf(err) == "" {
				t.Error("no hint")
			}
			continue
		}
		if contentOf(t, s.stdin.File) != in || s.capsule.Stdin.Digest != canon.Sum([]byte(in)) || s.stdin.Verify() != nil {
			t.Errorf("%d bytes: not what was given", c.n)
		}
	}
	if s, err := sealIn(t, p, nil); err != nil || s.stdin.Size != 0 {
		t.Errorf("nil reader: %v", err)
	}
	if _, err := sealIn(t, p, failing{}); !says(err, "bad_file: standard input") {
		t.Errorf("failing reader: %v", err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	defer r.Close()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := seal(ctx, p, r, "", nil); fault.KindOf(err) != fault.Canceled {
		t.Errorf("canceled: %v", err)
	}
	// Not sealed: it isn't read before the run.
	p.Stdin = StdinStream
	if s, err := sealIn(t, p, r); err != nil || s.capsule.Stdin.Mode != "stream" || s.stdin != nil {
		t.Errorf("stream: %v", err)
	}
}

// says reports whether err has the reason, and the text, of want, which is "reason" or
// "reason: text". One reason stands for several failures.
func says(err error, want string) bool {
	reason, text, _ := strings.Cut(want, ": ")
	return fault.ReasonOf(err) == reason && (err == nil || strings.Contains(err.Error(), text))
}
