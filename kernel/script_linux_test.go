package kernel

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/fault"
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
		{script("missing", "/none"), "script_interpreter", "", nil, nil},
		{script("relative", "bin/sh"), "script_line", "", nil, nil},
		{script("nothing", "  "), "script_line", "", nil, nil},
		{script("return", "/bin/sh\r"), "script_interpreter", "", nil, nil},
		{script("long", "/"+strings.Repeat("x", 300)), "script_line", "", nil, nil},
		{script("notexec", put(t, dir+"/plainfile", "x", 0o644)), "program_not_executable", "", nil, nil},
		{script("data", put(t, dir+"/datafile", "x", 0o755)), "program_format", "", nil, nil},
		{script("dir", dir), "program_is_directory", "", nil, nil},
		{script("self", dir+"/self"), "script_interpreter_is_script", "", nil, nil},
		{script("nested", plain), "script_interpreter_is_script", "", nil, nil},
		{script("utf8", "/bin/sh \xff"), "not_utf8", "", nil, nil},
	} {
		s, err := sealIn(t, proposal(c.file, "a"), nil)
		if fault.ReasonOf(err) != c.reason {
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

// TestSystemScripts: scripts of the system are passed by path, and may
// interpret each other up to a depth.
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
		if _, err := sealIn(t, proposal(f), nil); fault.ReasonOf(err) != "script_too_deep" {
			t.Errorf("%s: %v", f, err)
		}
	}
	// Changed between sealing and running.
	s = mustSeal(t, proposal(dir+"/0"))
	if err := s.recheck(); err != nil {
		t.Errorf("untouched: %v", err)
	}
	put(t, dir+"/0", "#!/bin/sh 9\n", 0o755)
	if err := s.recheck(); fault.ReasonOf(err) != "executable_changed" || fault.KindOf(err) != fault.Refused {
		t.Errorf("rewritten: %v", err)
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

// kernelArgv runs a script whose interpreter is link and returns the arguments
// that it got from the host's kernel; nil if it did not run.
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
	// Start returns in the middle of the execve; arguments are in place once the
	// program has said something.
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

// TestShebangAgainstTheKernel writes odd first lines and compares what we read
// in them with what the kernel does.
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
	n := 400
	if testing.Short() {
		n = 50
	}
	for range n {
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

// TestProgramTurnsIntoScript: a file that is a binary when it is looked at and a
// script when it is copied must not run with an interpreter that nobody saw.
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
	for range 3000 {
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
	if seen["program_format"]+seen["script_line"] == 0 || len(seen) < 3 {
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
