//go:build linux

package script

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"palyra/conformance/pty"
	"palyra/internal/built"
	"palyra/internal/durable"
)

// bin names built binaries for a run by a user who cannot build them: all programs, and
// hostile.
var bin = flag.String("bin", "", "directory with the binaries to test; default: build them")

// tools is where the binaries are. Set by TestMain.
var tools string

func TestMain(m *testing.M) {
	flag.Parse()
	if *bin != "" {
		tools = *bin
		os.Exit(m.Run())
	}
	os.Exit(build(m))
}

func build(m *testing.M) int {
	dir, err := os.MkdirTemp("", "palyra-script-*")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	if err := built.Into(dir); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-o", dir+"/", "../demo/hostile")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "build hostile: %v\n%s", err, out)
		return 1
	}
	tools = dir
	return m.Run()
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                "testdata",
		RequireUniqueNames: true,
		Setup:              setup,
		Condition:          condition,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"palyra": succeeds, "status": status, "answer": answer, "session": session, "interrupt": interrupt, "nothingleft": nothingLeft, "mkfifo": mkfifo,
			"fill": fill, "flip": flipBit, "field": field, "daemon": daemon, "talk": talk,
		},
	})
}

func setup(env *testscript.Env) error {
	env.Setenv("PATH", tools+string(os.PathListSeparator)+env.Getenv("PATH"))
	env.Setenv("HOME", env.WorkDir)
	env.Setenv("STATE", filepath.Join(env.WorkDir, "xdg", "palyra"))
	env.Setenv("XDG_STATE_HOME", filepath.Join(env.WorkDir, "xdg"))
	env.Setenv("TOOLS", tools)
	examples, err := filepath.Abs("../../examples")
	if err != nil {
		return err
	}
	env.Setenv("EXAMPLES", examples)
	env.Setenv("HOSTILE", filepath.Join(tools, "hostile"))
	// Root needs no user namespace to have a mount namespace; others do.
	env.Setenv("UNSHARE", "-Urm")
	if os.Geteuid() == 0 {
		env.Setenv("UNSHARE", "-m")
	}
	env.Setenv("EVIL", "\x1b[2J\u202e")
	return nil
}

// condition answers [root], [userns] and [tmpfs]. The last two are tried, not
// guessed: a namespace is made in which the thing can be done.
func condition(cond string) (bool, error) {
	switch cond {
	case "root":
		return os.Geteuid() == 0, nil
	case "userns":
		return exec.Command("unshare", "-Ur", "true").Run() == nil, nil
	case "tmpfs":
		// -Urm works for root too where it works at all.
		return exec.Command("unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/mnt").Run() == nil, nil
	}
	return false, fmt.Errorf("unknown condition %q", cond)
}

// command is a program in the script's directory and environment.
func command(ts *testscript.TestScript, args []string) *exec.Cmd {
	path := args[0]
	if !strings.Contains(path, "/") {
		// As a shell would, but in the script's PATH.
		for _, dir := range filepath.SplitList(ts.Getenv("PATH")) {
			if fi, err := os.Stat(filepath.Join(dir, path)); err == nil && !fi.IsDir() {
				path = filepath.Join(dir, path)
				break
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	cmd := exec.CommandContext(ctx, path, args[1:]...)
	ts.Defer(cancel)
	// Each leads a session: what hangs is killed with all that it started.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	cmd.Dir = ts.MkAbs(".")
	for _, name := range []string{"PATH", "HOME", "XDG_STATE_HOME", "WORK", "TMPDIR", "PALYRA_NO_INPUT", "PALYRA_SOCKET"} {
		if v := ts.Getenv(name); v != "" {
			cmd.Env = append(cmd.Env, name+"="+v)
		}
	}
	return cmd
}

func code(err error) int {
	if err == nil {
		return 0
	}
	ee, ok := err.(*exec.ExitError)
	if !ok {
		return -1
	}
	if ws := ee.Sys().(syscall.WaitStatus); ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ee.ExitCode()
}

func status(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N CMD ARG...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	cmd := command(ts, args[1:])
	// Without a terminal: what asks for approval is denied.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	cmd.Stdout, cmd.Stderr = ts.Stdout(), ts.Stderr()
	err = cmd.Run()
	if got := code(err); got != want {
		ts.Fatalf("status %d (%v), want %d", got, err, want)
	}
}

// succeeds is palyra itself, which must end with status 0.
func succeeds(ts *testscript.TestScript, neg bool, args []string) {
	status(ts, neg, append([]string{"0", "palyra"}, args...))
}

// answer types a word at palyra's prompt.
func answer(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: answer WORD N CMD ARG...")
	}
	onTerminal(ts, args[1], args[2:], func(ctx context.Context, term *pty.Terminal) error {
		prompt, err := term.Expect(ctx, "denies: ")
		if err != nil {
			return err
		}
		switch word := args[0]; word {
		case "code":
			_, after, _ := strings.Cut(prompt, "Type ")
			code, _, _ := strings.Cut(after, " ")
			return term.Type(code + "\n")
		case "ctrl-c":
			return term.Type("\x03")
		default:
			return term.Type(word + "\n")
		}
	})
}

// session runs a program on a terminal without ever typing.
func session(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: session N CMD ARG...")
	}
	onTerminal(ts, args[0], args[1:], func(context.Context, *pty.Terminal) error { return nil })
}

// interrupt presses ctrl-C once the program has shown a text.
func interrupt(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: interrupt TEXT N CMD ARG...")
	}
	onTerminal(ts, args[1], args[2:], func(ctx context.Context, term *pty.Terminal) error {
		if _, err := term.Expect(ctx, args[0]); err != nil {
			return err
		}
		return term.Type("\x03")
	})
}

func onTerminal(ts *testscript.TestScript, want string, args []string, person func(context.Context, *pty.Terminal) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := command(ts, args)
	var out bytes.Buffer
	cmd.Stdout = &out
	term, err := pty.Start(cmd)
	ts.Check(err)
	perr := person(ctx, term)
	if perr != nil {
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	term.Close()
	io.Copy(ts.Stdout(), &out)
	io.WriteString(ts.Stderr(), strings.ReplaceAll(term.Shown(), "\r", ""))
	switch {
	case perr != nil:
		ts.Fatalf("on the terminal: %v", perr)
	case strconv.Itoa(code(err)) != want:
		ts.Fatalf("status %d, want %s", code(err), want)
	}
}

// field sets a variable to the first text that a member of a JSON document has, at any depth.
func field(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 3 {
		ts.Fatalf("usage: field FILE MEMBER VARIABLE")
	}
	m := regexp.MustCompile(`"` + regexp.QuoteMeta(args[1]) + `": "([^"]*)"`).FindStringSubmatch(ts.ReadFile(args[0]))
	if m == nil {
		ts.Fatalf("%s has no text %q", args[0], args[1])
	}
	ts.Setenv(args[2], m[1])
}

// nothingLeft looks from the host for what a failed call may have left: a
// process that names this script's directory, and temporary files.
func nothingLeft(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) > 0 {
		ts.Fatalf("usage: nothingleft")
	}
	work := ts.Getenv("WORK")
	lines, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, l := range lines {
		if b, err := os.ReadFile(l); err == nil && bytes.Contains(b, []byte(work)) {
			ts.Fatalf("left running: %s: %q", l, b)
		}
	}
	ts.Check(filepath.WalkDir(work, func(path string, _ os.DirEntry, err error) error {
		if err == nil && (durable.IsTemp(filepath.Base(path)) || strings.HasPrefix(filepath.Base(path), ".palyra-")) {
			return fmt.Errorf("left behind: %s", path)
		}
		return nil
	}))
}

func mkfifo(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: mkfifo FILE")
	}
	ts.Check(syscall.Mkfifo(ts.MkAbs(args[0]), 0o755))
}

// fill writes zeros to a file, to make a disk full or a file large.
func fill(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: fill FILE BYTES")
	}
	n, err := strconv.Atoi(args[1])
	ts.Check(err)
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), bytes.Repeat([]byte(" "), n), 0o644))
}

// flipBit flips one bit in the middle of a file, in place.
func flipBit(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: flip FILE")
	}
	path := ts.MkAbs(args[0])
	b, err := os.ReadFile(path)
	ts.Check(err)
	if len(b) == 0 {
		ts.Fatalf("%s is empty", path)
	}
	b[len(b)/2] ^= 1
	fi, err := os.Stat(path)
	ts.Check(err)
	ts.Check(os.WriteFile(path, b, fi.Mode().Perm()))
}
