package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palyra/cmd/internal/operator"
)

// badInputs are files of every kind that is not what a command wants, in a
// folder that becomes the working directory, and their names with some that mean
// nothing at all.
func badInputs(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	must(syscall.Mkfifo(at("fifo"), 0o600))
	must(os.WriteFile(at("empty"), nil, 0o644))
	must(os.WriteFile(at("broken"), []byte("\x00{not a policy, receipt or diff\n"), 0o755))
	must(os.Mkdir(at("folder"), 0o755))
	must(os.WriteFile(at("folder/stray.ceder"), []byte("x"), 0o644))
	must(os.Symlink("loop", at("loop")))
	must(os.Mkdir(at("open"), 0o777))
	must(os.Chmod(at("open"), 0o777|os.ModeSticky))
	return dir, []string{"missing", "missing/below", "fifo", "empty", "empty/below", "broken", "folder", "loop", "open", "/dev/null", "/", "", "-", "x\x1b[2J", "\xff"}
}

// complained checks what palyra says of a command line that cannot work: one line
// that begins with its name, a hint, no control character, and a status that the
// command documents.
func complained(t *testing.T, a *app, args []string, status int, stderr string) {
	t.Helper()
	if status == 0 {
		t.Errorf("palyra %q: status 0; %s", args, stderr)
		return
	}
	if !regexp.MustCompile(`(?m)^palyra: .`).MatchString(stderr) || !regexp.MustCompile(`(?m)^hint: .`).MatchString(stderr) {
		t.Errorf("palyra %q: status %d, no error or no hint: %q", args, status, stderr)
	}
	if strings.Trim(stderr, "\n\t") != strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r > '~' {
			return -1
		}
		return r
	}, strings.Trim(stderr, "\n\t")) {
		t.Errorf("palyra %q: control characters in %q", args, stderr)
	}
	exits := a.table.Exits
	if inv, _ := a.table.Parse(args); inv != nil {
		exits = inv.Command.Exits
	}
	var documented []string
	for _, e := range exits {
		documented = append(documented, e.Code)
	}
	if !slices.Contains(documented, strconv.Itoa(status)) {
		t.Errorf("palyra %q: status %d, documented are %q: %q", args, status, documented, stderr)
	}
}

// TestBadInput gives each of palyra's own commands each bad input in each place
// that takes a file, a folder or an id.
func TestBadInput(t *testing.T) {
	dir, bad := badInputs(t)
	t.Chdir(dir)
	alone := filepath.Join(dir, "broken") // a palyra with nothing beside it: no call is made
	const here = "\x00"                   // where the bad input goes
	var lines [][]string
	add := func(words ...string) { lines = append(lines, words) }
	for _, c := range table().Commands {
		if operator.Serves(c.Name) {
			continue
		}
		for _, f := range c.Flags {
			words := append(strings.Fields(c.Name), "--"+f.Name, here)
			switch {
			case f.Arg == "" || f.Name == "trust" && c.Name != "attest verify", f.Name == "state":
				continue
			case c.Rest:
				words = append(words, "--", "true")
			case c.Min > 0:
				words = append(words, "broken")
			}
			add(words...)
		}
		switch {
		case c.Rest:
			add(append(strings.Fields(c.Name), "--", here)...)
			add(append(strings.Fields(c.Name), "--", "./"+here)...)
		case c.Max != 0:
			add(append(strings.Fields(c.Name), here)...)
		}
	}
	for _, name := range []string{"journal show", "journal verify"} {
		add(append(strings.Fields(name), "--state", here)...)
	}
	for _, name := range []string{"attest verify", "policy why", "policy export", "policy diff"} {
		add(append(strings.Fields(name), "--state", here, "broken")...)
	}
	for _, name := range []string{"policy why", "policy export", "policy diff"} {
		add(append(strings.Fields(name), "--local", here)...)
		add(append(strings.Fields(name), "--policy", here, "--local", "00000000")...)
	}
	for _, f := range []string{"candidate", "diff", "fix"} {
		add("policy", "try", "--local", "--"+f, here)
	}
	for _, line := range lines {
		for _, in := range bad {
			args := slices.Clone(line)
			for i := range args {
				args[i] = strings.ReplaceAll(args[i], here, in)
			}
			a, _, stderr := newApp(t, map[string]string{"HOME": filepath.Join(dir, "home")})
			a.executable = func() (string, error) { return alone, nil }
			if works(args) {
				continue
			}
			complained(t, a, args, a.run(t.Context(), args), stderr.String())
		}
	}
}

// works reports whether there is nothing wrong with a line of TestBadInput.
func works(args []string) bool {
	switch line := strings.Join(args, " "); args[0] {
	case "man": // makes the folder
		last := args[len(args)-1]
		return last != "" && last != "fifo" && last != "empty" && last != "empty/below" && last != "broken" && last != "loop" && last != "/dev/null"
	case "policy":
		if last := args[len(args)-1]; args[1] == "init" { // makes the directory
			return !slices.Contains([]string{"", "fifo", "empty", "empty/below", "broken", "loop", "/dev/null", "missing/below", "open", "folder/file"}, last)
		}
		return strings.Contains(line, "--diff fifo") || // a pipe with a diff is one, and has a writer
			strings.Contains(line, "--workspace folder") || strings.Contains(line, "--workspace open")
	}
	return false
}

// fullDisk is an output that nothing can be written to.
type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// TestOutputLost: a result that cannot be written is an error, also where the
// command found something, and also of help.
func TestOutputLost(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "p.cedar"), []byte("@id(\"p\")\npermit(principal, action, resource);\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		args string
		want int
	}{
		{"help", 75}, {"--help", 75}, {"help exec", 75}, {"exec --help", 125}, {"journal verify -h", 75}, {"version", 75}, {"--version", 75},
		{"version --json", 75}, {"completion bash", 75}, {"policy check", 75}, {"policy lint " + dir, 75}, {"policy coverage " + dir, 75},
		{"policy mutate " + dir, 75}, {"policy test", 75}, {"man " + filepath.Join(dir, "man"), 75}, {"policy explain -- true", 75},
		{"attest show missing --json", 1}, {"policy check missing --json", 1},
	} {
		a, _, stderr := newApp(t, map[string]string{"HOME": dir})
		a.stdout = fullDisk{}
		args := strings.Fields(tt.args)
		status := a.run(t.Context(), args)
		if status != tt.want || !strings.Contains(stderr.String(), "palyra: write standard output: ") {
			t.Errorf("palyra %s: status %d, want %d; %q", tt.args, status, tt.want, stderr)
		}
		complained(t, a, args, status, stderr.String())
	}
}
