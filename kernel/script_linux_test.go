package kernel

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

func TestScripts(t *testing.T) {
	dir := t.TempDir()
	sh, err := filepath.EvalSymlinks("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	local := put(t, dir+"/interp", trueBinary(t), 0o755)
	script := func(name, first string) string { return put(t, dir+"/"+name, "#!"+first+"\nexit 0\n", 0o755) }
	x := "x"
	plain := script("plain", "/bin/sh")
	for _, c := range []struct {
		file, reason string
		exec         string
		argv         []string
		arg          *string
	}{
		{plain, "", sh, []string{"/bin/sh", "/dev/fd/3", "a"}, nil},
		{script("arg", " /bin/sh\tx "), "", sh, []string{"/bin/sh", "x", "/dev/fd/3", "a"}, &x},
		{script("local", local), "", local, []string{local, "/dev/fd/3", "a"}, nil},
		{script("missing", "/none"), "program_not_executable: read first line of script", "", nil, nil},
		{script("relative", "bin/sh"), "program_not_executable: not an absolute path", "", nil, nil},
		{script("nothing", "  "), "program_not_executable: no interpreter named", "", nil, nil},
		{script("return", "/bin/sh\r"), "program_not_executable: read first line of script", "", nil, nil},
		{script("long", "/"+strings.Repeat("x", 300)), "program_not_executable: longer than 256 bytes", "", nil, nil},
		{script("notexec", put(t, dir+"/plainfile", "x", 0o644)), "program_not_executable", "", nil, nil},
		{script("data", put(t, dir+"/datafile", "x", 0o755)), "program_not_executable: neither an ELF binary nor a script", "", nil, nil},
		{script("dir", dir), "program_not_executable: is a directory", "", nil, nil},
		{script("self", dir+"/self"), "program_not_executable: interprets another script", "", nil, nil},
		{script("nested", plain), "program_not_executable: interprets another script", "", nil, nil},
		{script("utf8", "/bin/sh \xff"), "invalid_input: not UTF-8", "", nil, nil},
	} {
		s, err := sealIn(t, proposal(c.file, "a"), nil)
		if !says(err, c.reason) {
			t.Errorf("%s: got %v", c.file, err)
		}
		if err != nil {
			continue
		}
		if got := s.capsule.Scripts; len(got) != 1 || got[0].Path != c.file || got[0].Pinned != capsule.PinnedSealed ||
			(got[0].Argument == nil) != (c.arg == nil) || c.arg != nil && *got[0].Argument != *c.arg {
			t.Errorf("%s: scripts %+v", c.file, got)
		}
		if s.capsule.Executable.Path != c.exec || !slices.Equal(s.program.argv, c.argv) {
			t.Errorf("%s: %s %q", c.file, s.capsule.Executable.Path, s.program.argv)
		}
		if spec := s.spec(); spec.Script == nil || spec.Exec.Path != c.exec || s.files(nil, nil, nil).Script == nil {
			t.Errorf("%s: spec %+v", c.file, spec)
		}
		if !slices.Equal(s.capsule.Argv, []string{c.file, "a"}) {
			t.Errorf("%s: the capsule's argv was rewritten: %q", c.file, s.capsule.Argv)
		}
	}
	s := mustSeal(t, proposal(plain))
	put(t, plain, "#!/usr/bin/env evil\n", 0o755)
	if got := contentOf(t, s.program.script.File); !strings.HasPrefix(got, "#!/bin/sh\n") {
		t.Errorf("script changed with its file: %q", got)
	}
}

// TestSystemScripts: scripts of the system are passed by path, and may interpret each other up
// to a depth.
func TestSystemScripts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/", "kernel-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	put(t, dir+"/0", "#!/bin/sh 0\n", 0o755)
	for i := range 5 {
		n := string(rune('1' + i))
		put(t, dir+"/"+n, "#!"+dir+"/"+string(rune('0'+i))+" "+n+"\n", 0o755)
	}
	put(t, dir+"/loop", "#!"+dir+"/loop\n", 0o755)
	s := mustSeal(t, proposal(dir+"/1", "a"))
	want := []string{"/bin/sh", "0", dir + "/0", "1", dir + "/1", "a"}
	if !slices.Equal(s.program.argv, want) || len(s.capsule.Scripts) != 2 || s.program.script != nil {
		t.Errorf("got %q, scripts %+v", s.program.argv, s.capsule.Scripts)
	}
	// Every link of the chain is on the card, held, checked again, and in the receipt.
	card := approval.Card(cardOf(s, policy.Decision{}, policy.Default(), "", 0))
	for _, want := range []string{
		fmt.Sprintf("  script      %q %s\n", dir+"/1", s.capsule.Scripts[0].Digest), fmt.Sprintf("  read by     %q %s\n", dir+"/0", s.capsule.Scripts[1].Digest),
		fmt.Sprintf("  called      \"/bin/sh\" \"0\" %q \"1\" %q\n", dir+"/0", dir+"/1"),
	} {
		if !strings.Contains(card, want) {
			t.Errorf("no %q in\n%s", want, card)
		}
	}
	var e evidence.Evidence
	s.program.hashed(&e)
	if len(e.Scripts) != 2 || len(s.program.held) != 3 { // with the loader
		t.Errorf("the receipt has %+v, %d files are checked again", e.Scripts, len(s.program.held))
	}
	for i, x := range e.Scripts {
		if f := s.capsule.Scripts[i]; x.Path != f.Path || x.Digest != f.Digest || x.Pinned != capsule.PinnedSystem || s.program.held[i].digest.Sum != f.Digest {
			t.Errorf("the receipt has %+v", x)
		}
	}
	// The kernel builds the same.
	put(t, dir+"/0", "#!"+link(t)+" 0\n", 0o755)
	if got := kernelArgv(t, dir+"/1", "a"); !slices.Equal(got[1:], want[1:]) {
		t.Errorf("the kernel passes %q, we %q", got, want)
	}
	put(t, dir+"/0", "#!/bin/sh 0\n", 0o755)
	if s := mustSeal(t, proposal(dir+"/3")); len(s.capsule.Scripts) != 4 {
		t.Errorf("four deep: %d", len(s.capsule.Scripts))
	}
	for _, f := range []string{dir + "/4", dir + "/5", dir + "/loop"} {
		if _, err := sealIn(t, proposal(f), nil); !says(err, "program_not_executable: more than 4 scripts") {
			t.Errorf("%s: %v", f, err)
		}
	}
	// Changed between sealing and running.
	s = mustSeal(t, proposal(dir+"/0"))
	if err := s.recheck(); err != nil {
		t.Errorf("untouched: %v", err)
	}
	put(t, dir+"/0", "#!/bin/sh 9\n", 0o755)
	if err := s.recheck(); fault.ReasonOf(err) != "changed" || fault.KindOf(err) != fault.Refused {
		t.Errorf("rewritten: %v", err)
	}
}

// TestNameOfProgram: the proposer chooses the name that a program is called by, and some
// programs act on it. Policy and approver see a name that isn't the file's own.
func TestNameOfProgram(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/usr/bin/cat", dir+"/sh"); err != nil {
		t.Fatal(err)
	}
	script := put(t, dir+"/script", "#!"+dir+"/sh -x\n", 0o755)
	for _, c := range []struct {
		argv0  string
		called []string
		row    string
	}{
		{"cat", []string{"cat"}, ""},
		{"/usr/bin/cat", []string{"/usr/bin/cat"}, ""},
		{dir + "/sh", []string{dir + "/sh"}, fmt.Sprintf("  called      %q\n", dir+"/sh")},
		{script, []string{dir + "/sh", "-x", "/dev/fd/3"}, fmt.Sprintf("  called      %q \"-x\" \"/dev/fd/3\"\n", dir+"/sh")},
	} {
		s := mustSeal(t, proposal(c.argv0, "a", "b"))
		if r := question(&Caller{Principal: localUser()}, s, proposal("true")); r.Context.Argv0 != c.argv0 {
			t.Errorf("policy sees %q, called %q", r.Context.Argv0, c.argv0)
		}
		q := cardOf(s, policy.Decision{}, policy.Default(), "", 0)
		if sh := strings.HasSuffix(c.argv0, "/sh"); sh != (q.Call.Kind == "shell") {
			t.Errorf("%s is of the kind %s", c.argv0, q.Call.Kind)
		}
		if q.Call.Executable != "/usr/bin/cat" || !slices.Equal(q.Call.Called, c.called) {
			t.Errorf("%s: %s called %q", c.argv0, q.Call.Executable, q.Call.Called)
		}
		if card := approval.Card(q); !strings.Contains(card, c.row) || strings.Contains(card, "  called ") != (c.row != "") {
			t.Errorf("%s: no %q in\n%s", c.argv0, c.row, card)
		}
	}
}

// link returns a short path, free of blanks, to a program that waits.
func link(t *testing.T) string {
	t.Helper()
	name := t.TempDir() + "/i"
	if err := os.Symlink("/usr/bin/yes", name); err != nil {
		t.Fatal(err)
	}
	return name
}

// kernelArgv runs a script whose interpreter is link. It returns the arguments that link got
// from the host's kernel, nil if the script didn't run.
func kernelArgv(t *testing.T, script string, args ...string) []string {
	t.Helper()
	r, w, err := os.Pipe() // full after some writes, which makes it wait
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := exec.Command(script, args...)
	c.Stdout = w
	err = c.Start()
	w.Close()
	if err != nil {
		return nil
	}
	// Start returns in the middle of the execve. The arguments are in place once the program
	// has written something.
	if _, err := r.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c.Process.Pid))
	c.Process.Kill()
	c.Wait()
	if err != nil || len(b) == 0 {
		t.Fatalf("cmdline: %q, %v", b, err)
	}
	return strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
}

// TestShebangAgainstTheKernel compares our reading of odd first lines with the kernel's.
func TestShebangAgainstTheKernel(t *testing.T) {
	interp, dir := link(t), t.TempDir()
	script := dir + "/script"
	lines := []string{
		"#!I\n", "#!I", "#! I\n", "#!\tI \t\n", "#!I a\n", "#!I a", "#!I ", "#!I a b\n", "#!I  a  b  \n", "#!I a\x00b\n", "#!I\x00\n",
		"#!\n", "#!", "#! \n", "#!I\r\n", "#!I a\r\n", "#!\x00I\n", "#!I\n\x00", " #!I\n", "#! \x00", "#!I\x00 a\n", "#!I \x00a\n",
		"#!" + strings.Repeat(" ", 252-len(interp)) + "I\n", "#!" + strings.Repeat(" ", 253-len(interp)) + "I\n",
		"#!" + strings.Repeat(" ", 254-len(interp)) + "I\n", "#!" + strings.Repeat(" ", 253) + "\n", "#!" + strings.Repeat(" ", 300) + "I\n",
		"#!I " + strings.Repeat("a", 251-len(interp)) + "\n", "#!I " + strings.Repeat("a", 252-len(interp)) + "\n", "#!I " + strings.Repeat("a", 300) + "\n",
	}
	r := rand.New(rand.NewPCG(1, 2))
	parts := []string{"I", " ", "\t", "a", "\n", "\x00", "\r", " ", "I", strings.Repeat("b", 100), strings.Repeat(" ", 120)}
	for range sample.Of(100, 400) {
		l := "#!"
		for range r.IntN(7) {
			l += parts[r.IntN(len(parts))]
		}
		lines = append(lines, l)
	}
	var ran int
	for _, l := range lines {
		l = strings.ReplaceAll(l, "I", interp)
		put(t, script, l, 0o755)
		got := kernelArgv(t, script, "z")
		var want []string
		buf := make([]byte, shebangBytes)
		copy(buf, l)
		if name, arg, err := parseShebang(buf); err == nil && name == interp {
			want = append(want, interp)
			if arg != nil {
				want = append(want, *arg)
			}
			want = append(want, script, "z")
			ran++
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q: the kernel passes %q, we read %q", l, got, want)
		}
	}
	if ran < 20 {
		t.Errorf("only %d of %d lines name the interpreter", ran, len(lines))
	}
}

// TestProgramTurnsIntoScript: a file that is a binary when it's checked and a script when it's
// copied must not run with an unchecked interpreter.
func TestProgramTurnsIntoScript(t *testing.T) {
	prog := put(t, t.TempDir()+"/prog", trueBinary(t), 0o755)
	f, err := os.OpenFile(prog, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	elf, script := make([]byte, 20), []byte("#!/bin/sh\n#.........")
	if _, err := f.ReadAt(elf, 0); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			f.WriteAt([][]byte{elf, script}[i%2], 0)
		}
	}()
	seen := make(map[string]int)
	for range sample.Of(250, 1000) { // of 1000 some 180 are refused in between, 330 find a script
		s, err := seal(t.Context(), proposal(prog), nil, "", nil)
		if err != nil {
			seen[fault.ReasonOf(err)]++
			continue
		}
		head := contentOf(t, s.program.exec.file)[:2]
		seen[fmt.Sprintf("%d scripts, %q", len(s.capsule.Scripts), head)]++
		if head == "#!" {
			t.Fatal("a script passed for a binary")
		}
		s.close()
	}
	close(stop)
	<-done
	if seen["program_not_executable"] == 0 || len(seen) < 3 {
		t.Errorf("the race never happened: %v", seen)
	}
}

func FuzzShebang(f *testing.F) {
	f.Add([]byte("#!/bin/sh -e\n"))
	f.Add([]byte("#! \t/bin/sh\x00 a"))
	f.Add([]byte("#!" + strings.Repeat(" ", 253) + "x"))
	f.Fuzz(func(t *testing.T, in []byte) {
		buf := make([]byte, shebangBytes)
		copy(buf, in)
		name, arg, err := parseShebang(buf)
		if err != nil {
			return
		}
		if name == "" || strings.ContainsAny(name, " \t\n\x00") || arg != nil && strings.ContainsAny(*arg, "\n\x00") {
			t.Errorf("%q: %q %v", in, name, arg)
		}
	})
}

// TestLineArguments: a file that a script's #! line names is held or listed as if the call
// named it, and policy sees the line's argument. The record gives it back.
func TestLineArguments(t *testing.T) {
	ws := t.TempDir()
	put(t, ws+"/lib", "reviewed\n", 0o644)
	os.Symlink("lib", ws+"/link")
	os.Mkdir(ws+"/sub", 0o755)
	for line, want := range map[string]string{
		"lib":        "lib held",
		"--file=lib": "lib held",
		"link":       "/workspace/link symlink",
		"none":       "/workspace/none absent",
		"sub":        "/workspace/sub directory",
		"-u":         "",
		"--":         "",
	} {
		put(t, ws+"/run", "#!/bin/cat "+line+"\n", 0o755)
		for _, leave := range []bool{false, true} { // a tool leaves alone only its own arguments
			p := proposal("./run")
			p.Workspace, p.tool = ws, &Expansion{LeaveOperands: leave}
			s := mustSeal(t, p)
			got := ""
			for _, o := range s.operands {
				got += o.rel + " held"
			}
			for _, u := range s.capsule.Unpinned {
				got += u.Path + " " + u.Kind
			}
			if got != want {
				t.Errorf("%q: got %q, want %q", line, got, want)
			}
			if q := question(&Caller{}, s, p).Context; !slices.Equal(q.LineArgs, []string{line}) || len(q.Args) != 0 {
				t.Errorf("%q: policy sees %q, %q", line, q.LineArgs, q.Args)
			}
		}
	}

	// The interpreter reads the approved bytes.
	policies := t.TempDir()
	put(t, policies+"/all.cedar", "@id(\"all\") permit (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.approved };\n"+
		"@id(\"no_c\") @untested(\"here\") forbid (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.args.contains(\"-c\") };\n", 0o644)
	os.Chmod(policies, 0o755)
	put(t, ws+"/run", "#!/bin/cat lib\n", 0o755)
	h := openHouse(t, Config{PolicyDir: policies, Approver: answer{yes: true, while: func(approval.Request) {
		put(t, ws+"/lib", "other\n", 0o644)
	}}})
	var out bytes.Buffer
	p := proposal("./run")
	p.Workspace = ws
	if o := h.call(p, IO{Stdout: &out}); o.Outcome != receipt.Executed || !strings.HasPrefix(out.String(), "reviewed\n") {
		t.Errorf("%s, %q, %+v", o.Outcome, out.String(), o.Error)
	}
	put(t, ws+"/run", "#!/bin/cat -c\n", 0o755)
	if o := h.call(p, IO{}); o.Outcome != receipt.Denied || !slices.Equal(o.Decision.Policies, []string{"no_c"}) {
		t.Errorf("%s by %q", o.Outcome, o.Decision.Policies)
	}
}

// TestProgramReadsItself: a program of the workspace that opens the file by which it was called
// reads the approved bytes. If nothing can cover the file, or a link leads there, the name is
// listed.
func TestProgramReadsItself(t *testing.T) {
	ws := t.TempDir()
	os.Mkdir(ws+"/sub", 0o755)
	os.Symlink("../tool", ws+"/sub/link")
	shell := contentAt(t, "/bin/sh")
	put(t, ws+"/tool", shell+"approved", 0o755)
	put(t, ws+"/big", "", 0o644)
	if err := os.Truncate(ws+"/big", maxSealed); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		argv     []string
		cwd      string
		tier     tier.Tier
		held     string
		unpinned []capsule.Unpinned
	}{
		{[]string{"./tool"}, "", tier.C, "tool", nil},
		{[]string{"../tool"}, view + "/sub", tier.C, "tool", nil},
		{[]string{ws + "/tool"}, "", tier.C, "tool", nil},
		{[]string{"./tool", "tool"}, "", tier.C, "tool", nil},
		{[]string{"./link"}, view + "/sub", tier.C, "tool", []capsule.Unpinned{{Path: view + "/sub/./link", Kind: capsule.KindProgram}}},
		{[]string{"./tool", "big"}, "", tier.C, "big", []capsule.Unpinned{{Path: view + "/tool", Kind: capsule.KindProgram}}},
		{[]string{"./tool"}, "", tier.B, "", []capsule.Unpinned{{Path: ws + "/tool", Kind: capsule.KindProgram}}},
		{[]string{"/bin/sh"}, "", tier.C, "", nil},
	} {
		p := proposal(c.argv...)
		p.Workspace, p.Cwd, p.TierFloor = ws, c.cwd, c.tier
		s := mustSeal(t, p)
		var held []string
		for _, o := range s.operands {
			held = append(held, o.rel)
		}
		if strings.Join(held, " ") != c.held || !slices.Equal(s.capsule.Unpinned, c.unpinned) {
			t.Errorf("%q: holds %q, lists %+v", c.argv, held, s.capsule.Unpinned)
		}
		if err := s.holdOperands(); err != nil {
			t.Errorf("%q: nobody can be asked: %v", c.argv, err)
		}
		card := approval.Card(cardOf(s, policy.Decision{}, policy.Default(), "", 0))
		for _, u := range c.unpinned {
			if want := fmt.Sprintf("NOT HELD    %q", u.Path); !strings.Contains(card, want) {
				t.Errorf("no %s in\n%s", want, card)
			}
		}
		if q := question(&Caller{}, s, p); slices.Contains(q.Context.Unpinned, capsule.KindProgram) != (c.unpinned != nil) {
			t.Errorf("%q: policy sees %q", c.argv, q.Context.Unpinned)
		}
	}

	h := openHouse(t, Config{Approver: answer{yes: true, while: func(approval.Request) {
		put(t, ws+"/new", shell+"replaced", 0o755)
		os.Rename(ws+"/new", ws+"/tool")
	}}})
	var out, errs bytes.Buffer
	p := proposal("./tool", "-c", `tail -c8 "$0"`) // a shell's $0 is its own argv[0]
	p.Workspace = ws
	if o := h.call(p, IO{Stdout: &out, Stderr: &errs}); o.Outcome != receipt.Executed || out.String() != "approved" {
		t.Errorf("%s, %q, %q, %+v", o.Outcome, out.String(), errs.String(), o.Error)
	}
}
