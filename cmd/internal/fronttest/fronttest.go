//go:build unix

// Package fronttest has the bad inputs that the tests of palyra, and of the programs that
// it becomes, give to every command: files and names of the wrong kind, and the words that
// a command must have for them.
package fronttest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"palyra/cmd/internal/command"
)

// BadInputs are files of every kind that is not what a command wants, in a
// folder that becomes the working directory, and their names with some that mean
// nothing at all.
func BadInputs(t testing.TB) (dir string, names []string) {
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

// Complained checks what a program says of a command line that cannot work: one line
// that begins with its name, a hint, no control character, and a status that the
// command documents.
func Complained(t testing.TB, table *command.Table, args []string, status int, stderr string) {
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
	exits := table.Exits
	if inv, _ := table.Parse(args); inv != nil && inv.Command != nil {
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

// Here is where a bad input goes in a line of Lines.
const Here = "\x00"

// Lines are command lines of one command, each with Here in one place that takes a
// file, a folder or an id.
func Lines(c *command.Command) (lines [][]string) {
	add := func(words ...string) { lines = append(lines, words) }
	for _, f := range c.Flags {
		words := append(strings.Fields(c.Name), "--"+f.Name, Here)
		switch {
		case f.Arg == "" || f.Name == "trust" && c.Name != "attest verify", f.Name == "state":
			continue
		case c.Rest:
			words = append(words, "--", "true")
		}
		for i := 0; i < c.Min && !c.Rest; i++ {
			words = append(words, "broken")
		}
		add(words...)
	}
	switch {
	case c.Rest:
		add(append(strings.Fields(c.Name), "--", Here)...)
		add(append(strings.Fields(c.Name), "--", "./"+Here)...)
	case c.Max != 0:
		words := append(strings.Fields(c.Name), Here)
		for i := 1; i < c.Min; i++ {
			words = append(words, "broken")
		}
		add(words...)
	}
	return lines
}

// Fill puts a bad input where Here is.
func Fill(line []string, bad string) []string {
	args := slices.Clone(line)
	for i := range args {
		args[i] = strings.ReplaceAll(args[i], Here, bad)
	}
	return args
}
