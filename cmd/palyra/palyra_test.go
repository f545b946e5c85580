package main

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/cmd/internal/local"
	"palyra/internal/fault"
	"palyra/kernel"
)

// newApp returns an app on buffers. Its environment is what env holds.
func newApp(t *testing.T, env map[string]string) (a *app, stdout, stderr *bytes.Buffer) {
	t.Helper()
	stdout, stderr = new(bytes.Buffer), new(bytes.Buffer)
	return &app{
		stdin: strings.NewReader(""), stdout: stdout, stderr: stderr,
		getenv:     func(k string) string { return env[k] },
		executable: func() (string, error) { return filepath.Join(t.TempDir(), "palyra"), nil },
		terminal:   filepath.Join(t.TempDir(), "no-tty"), table: local.Table(), armed: func() {},
	}, stdout, stderr
}

// TestExitTable compares the statuses of palyra exec with those that fault
// documents beside each kind, so that neither can move alone. package front does
// so for the others.
func TestExitTable(t *testing.T) {
	src, err := os.ReadFile("../../internal/fault/fault.go")
	if err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^\t(\w+) +Kind = (\d+) +// .*; (\d+) / (\d+)$`)
	found := line.FindAllStringSubmatch(string(src), -1)
	if len(found) < 10 {
		t.Fatalf("fault documents %d kinds", len(found))
	}
	for _, m := range found {
		n, _ := strconv.Atoi(m[2])
		want, _ := strconv.Atoi(m[4])
		if got := execExit(fault.New(fault.Kind(n), "program_not_found", "x", kernel.ErrNoProgram)); got != want {
			t.Errorf("%s: %d, documented %d", m[1], got, want)
		}
	}
	if got := execExit(fault.New(fault.NotFound, "bad_file", "x", nil)); got != 125 {
		t.Errorf("a missing policy directory gives %d", got)
	}
	if got := execExit(errors.New("x")); got != 125 {
		t.Errorf("an unclassified error gives %d", got)
	}
}

// TestTable holds the table to itself: every command is dispatched, documented
// and shows examples that parse.
func TestTable(t *testing.T) {
	tab := local.Table()
	src, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	for i := range tab.Commands {
		c := &tab.Commands[i]
		if c.Program == "" && !strings.Contains(string(src), `case "`+c.Name+`":`) {
			t.Errorf("%s: not dispatched", c.Name)
		}
		if c.Short == "" || len(c.Exits) == 0 || len(c.Examples) == 0 {
			t.Errorf("%s: incomplete entry", c.Name)
		}
		for _, e := range c.Examples {
			words := strings.Fields(e.Line)
			inv, err := tab.Parse(words[1:])
			if words[0] != "palyra" || err != nil || inv.Command.Name != c.Name {
				t.Errorf("%s: example %q: %v", c.Name, e.Line, err)
			}
		}
		for _, l := range strings.Split(tab.Describe(c), "\n") {
			if len(l) > 90 || strings.ContainsRune(l, '\t') {
				t.Errorf("%s: help line of %d columns: %q", c.Name, len(l), l)
			}
		}
	}
}

// TestBecomes: palyra becomes the program that does a command, with the same words,
// and only the one that is installed beside it.
func TestBecomes(t *testing.T) {
	for program, args := range map[string][]string{
		"palyra-ctl":   {"runs", "ls", "--state", "done"},
		"palyra-admin": {"backup", "restore", "--identity", "key", "backup.age", "dir"},
		"palyra-dev":   {"bench", "--n", "5"},
		"palyra-mcp":   {"mcp", "serve", "--workspace", "src"},
		"palyra-setup": {"setup", "claude", "--dry-run"},
	} {
		dir := t.TempDir()
		a, _, stderr := newApp(t, nil)
		a.executable = func() (string, error) { return filepath.Join(dir, "palyra"), nil }
		var got []string
		a.become = func(path string, argv []string) error {
			got = append([]string{path}, argv...)
			return errors.New("not really")
		}
		if err := os.WriteFile(filepath.Join(dir, "palyra"), nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if status := a.run(t.Context(), args); status != 7 || !strings.Contains(stderr.String(), "hint: "+program+" is built") || got != nil {
			t.Errorf("without %s: status %d, %s", program, status, stderr)
		}
		path := filepath.Join(dir, program)
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		status := a.run(t.Context(), args)
		if want := append([]string{path, program}, args...); status != 7 || !slices.Equal(got, want) {
			t.Errorf("status %d, became %q, want %q", status, got, want)
		}
	}
}

// TestHelpStatesDefaults compares the defaults in the help with the kernel's.
func TestHelpStatesDefaults(t *testing.T) {
	tab := local.Table()
	d := kernel.DefaultLimits()
	for name, want := range map[string]any{"timeout": d.Wall, "cpu": d.CPU, "memory": d.Memory, "max-output": d.Output, "max-file": d.FileSize, "pids": d.PIDs, "disk": d.Disk, "files": d.Inodes} {
		for _, f := range tab.Find("exec").Flags {
			if f.Name != name {
				continue
			}
			m := regexp.MustCompile(`default (\w+)\)`).FindStringSubmatch(f.Help)
			if m == nil {
				t.Fatalf("--%s states no default", name)
			}
			if got, err := f.Parse(m[1]); err != nil || got != want {
				t.Errorf("--%s states %v (%v), the kernel has %v", name, got, err, want)
			}
		}
	}
}

func TestHelpEverywhere(t *testing.T) {
	for _, args := range [][]string{{"help"}, {"-h"}, {"--help"}, {"help", "exec"}, {"exec", "-h"}, {"exec", "--help"}, {"help", "attest"}, {"attest", "verify", "-h"}, {"attest", "-h"}, {"policy", "--help"}} {
		a, stdout, stderr := newApp(t, nil)
		if got := a.run(t.Context(), args); got != 0 || stdout.Len() == 0 || stderr.Len() != 0 {
			t.Errorf("%q: status %d, stderr %q", args, got, stderr)
		}
	}
	a, stdout, stderr := newApp(t, nil)
	if got := a.run(t.Context(), []string{"help", "fly"}); got != 2 || stdout.Len() != 0 || !strings.Contains(stderr.String(), "hint: ") {
		t.Errorf("help fly: status %d, stderr %q", got, stderr)
	}
}

func TestUsageStatus(t *testing.T) {
	for _, tt := range []struct {
		args string
		want int
	}{
		{"", 2}, {"fly", 2}, {"attest", 2}, {"attest verify", 2}, {"attest verify a b", 2}, {"version --jsonl", 2},
		{"exec", 125}, {"exec true", 125}, {"exec --", 125}, {"exec --yes -- true", 125}, {"exec --tier a -- true", 125}, {"exec --tier x -- true", 125},
		{"exec --tier b --tier c -- true", 125}, {"exec --memory 1.5G -- true", 125}, {"exec --timeout 5 -- true", 125},
		{"exec --timeout -1s -- true", 125}, {"exec --pids 0 -- true", 125}, {"exec --pids many -- true", 125},
		{"exec --cpu 1d -- true", 125}, {"exec --max-output 0 -- true", 125}, {"exec --max-file 99999999999T -- true", 125},
		{"exec --workspace :ro -- true", 125}, {"exec --workspace /tmp:rw -- true", 125}, {"exec --env FOO -- true", 125},
	} {
		a, stdout, stderr := newApp(t, nil)
		got := a.run(t.Context(), strings.Fields(tt.args))
		if got != tt.want || stdout.Len() != 0 || !strings.HasPrefix(stderr.String(), "palyra: ") || !strings.Contains(stderr.String(), "\nhint: ") {
			t.Errorf("palyra %s: status %d, want %d; stderr %q", tt.args, got, tt.want, stderr)
		}
	}
}

func TestVersion(t *testing.T) {
	a, stdout, _ := newApp(t, nil)
	if got := a.run(t.Context(), []string{"version", "--json"}); got != 0 {
		t.Fatalf("status %d", got)
	}
	for _, want := range []string{`"schema": "palyra.version/v1"`, `"version": "unknown"`, `"ok": true`} {
		if !strings.Contains(stdout.String(), want) {
			t.Errorf("no %s in %s", want, stdout)
		}
	}
}

func TestStateDir(t *testing.T) {
	for _, tt := range []struct{ flag, xdg, home, want string }{
		{"/s", "/x", "/h", "/s"},
		{"", "/x", "/h", "/x/palyra"},
		{"", "rel", "/h", "/h/.local/state/palyra"},
		{"", "", "/h", "/h/.local/state/palyra"},
		{"", "", "h", ""},
		{"", "", "", ""},
	} {
		got, err := stateDir(tt.flag, func(k string) string { return map[string]string{"XDG_STATE_HOME": tt.xdg, "HOME": tt.home}[k] })
		if got != tt.want || (tt.want == "" && fault.KindOf(err) != fault.BadState) {
			t.Errorf("%+v: %q, %v", tt, got, err)
		}
	}
}

func TestCellPath(t *testing.T) {
	dir := t.TempDir()
	write := func(path string, mode os.FileMode) {
		t.Helper()
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
		os.Chmod(path, mode) // past the umask
	}
	exe := filepath.Join(dir, "real/bin/palyra")
	write(exe, 0o755)
	link := filepath.Join(dir, "palyra")
	if err := os.Symlink(exe, link); err != nil {
		t.Fatal(err)
	}
	if _, err := cellPath(link); fault.ReasonOf(err) != "helper_unusable" || fault.KindOf(err) != fault.Refused || fault.HintOf(err) == "" {
		t.Errorf("nothing there: %v", err)
	}
	write(filepath.Join(dir, "palyra-cell"), 0o755) // beside the link: must not be taken
	write(filepath.Join(dir, "real/libexec/palyra/palyra-cell"), 0o755)
	if got, err := cellPath(link); err != nil || got != filepath.Join(dir, "real/libexec/palyra/palyra-cell") {
		t.Errorf("in libexec: %q, %v", got, err)
	}
	beside := filepath.Join(dir, "real/bin/palyra-cell")
	for _, mode := range []os.FileMode{0o644, 0o757} {
		write(beside, mode)
		if got, err := cellPath(link); fault.ReasonOf(err) != "helper_unusable" {
			t.Errorf("mode %o: %q, %v", mode, got, err)
		}
	}
	write(beside, 0o755)
	if got, err := cellPath(link); err != nil || got != beside {
		t.Errorf("beside: %q, %v", got, err)
	}
}

// TestTableForExec: what is left out for a call makes no difference to it.
func TestTableForExec(t *testing.T) {
	for _, args := range [][]string{
		{"exec", "--tier", "b", "--env", "A=b", "--", "id", "-u"},
		{"exec", "-h"},
		{"exec"},
		{"exec", "--tier", "a", "--", "id"},
		{"exec", "--no-such", "--", "id"},
		{"exec", "verify"},
	} {
		want, werr := local.Table().Parse(args)
		got, err := local.TableFor(args).Parse(args)
		if (err == nil) != (werr == nil) || err != nil && (err.Error() != werr.Error() || fault.HintOf(err) != fault.HintOf(werr)) {
			t.Errorf("%q: got %v, want %v", args, err, werr)
		}
		if got.Help != want.Help || !slices.Equal(got.Operands, want.Operands) || got.Has("env") != want.Has("env") ||
			local.TableFor(args).Describe(got.Command) != local.Table().Describe(want.Command) {
			t.Errorf("%q: got %+v, want %+v", args, got, want)
		}
	}
	for _, args := range [][]string{nil, {"help", "exec"}, {"help"}, {"execute"}, {"version"}} {
		if got, want := len(local.TableFor(args).Commands), len(local.Table().Commands); got != want {
			t.Errorf("%q: %d commands, want %d", args, got, want)
		}
	}
}

// TestGroups: the overview has every command, once.
func TestGroups(t *testing.T) {
	table := local.Table()
	in := map[string]int{}
	for _, g := range table.Groups {
		for _, n := range g.Nouns {
			in[n]++
		}
	}
	help := table.Help()
	for _, c := range table.Commands {
		noun, _, _ := strings.Cut(c.Name, " ")
		if in[noun] != 1 || strings.Count(help, "\n  "+c.Name+" ") != 1 {
			t.Errorf("%s is in %d groups of the overview", c.Name, in[noun])
		}
	}
}
