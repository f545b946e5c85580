package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"palyra/cmd/internal/fronttest"
	"palyra/cmd/internal/local"
)

// TestBadInput gives each of palyra's own commands each bad input in each place
// that takes a file, a folder or an id.
func TestBadInput(t *testing.T) {
	dir, bad := fronttest.BadInputs(t)
	t.Chdir(dir)
	alone := filepath.Join(dir, "broken") // a palyra with nothing beside it: no call is made
	const here = fronttest.Here
	var lines [][]string
	add := func(words ...string) { lines = append(lines, words) }
	for _, c := range local.Table().Commands {
		if c.Program == "" {
			lines = append(lines, fronttest.Lines(&c)...)
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
			args := fronttest.Fill(line, in)
			a, _, stderr := newApp(t, map[string]string{"HOME": filepath.Join(dir, "home")})
			a.executable = func() (string, error) { return alone, nil }
			if works(args) {
				continue
			}
			fronttest.Complained(t, a.table, args, a.run(t.Context(), args), stderr.String())
		}
	}
}

// works reports whether there is nothing wrong with a line of TestBadInput.
func works(args []string) bool {
	switch line := strings.Join(args, " "); args[0] {
	case "vault": // init makes file and folder
		return (args[1] == "init" || args[1] == "identity") && !slices.Contains(args, "--passphrase") &&
			!slices.Contains([]string{"", "-", "fifo", "empty", "empty/below", "broken", "loop", "/dev/null", "folder/file", "open"}, args[len(args)-1])
	case "policy":
		if last := args[len(args)-1]; args[1] == "init" { // makes the directory
			return !slices.Contains([]string{"", "fifo", "empty", "empty/below", "broken", "loop", "/dev/null", "missing/below", "open", "folder/file"}, last)
		}
		// A word without a dot is the name of a host.
		if at := slices.Index(args, "--egress"); at >= 0 && args[at+1] != "" && strings.Trim(args[at+1], "abcdefghijklmnopqrstuvwxyz") == "" {
			return true
		}
		// It names a program, where xdg-utils is installed.
		if args[1] == "explain" && line == "policy explain -- open" {
			return true
		}
		// A pipe with a diff is good input, and has a writer.
		return strings.Contains(line, "--diff fifo") ||
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
		{"help", 75}, {"--help", 75}, {"help exec", 75}, {"exec --help", 125}, {"journal verify -h", 75}, {"journal -h", 75}, {"version", 75}, {"--version", 75},
		{"version --json", 75}, {"policy check", 75},
		{"policy test", 75}, {"policy explain -- true", 75},
		{"attest show missing --json", 1}, {"policy check missing --json", 1},
	} {
		a, _, stderr := newApp(t, map[string]string{"HOME": dir})
		a.stdout = fullDisk{}
		args := strings.Fields(tt.args)
		status := a.run(t.Context(), args)
		if status != tt.want || !strings.Contains(stderr.String(), "palyra: write standard output: ") {
			t.Errorf("palyra %s: status %d, want %d; %q", tt.args, status, tt.want, stderr)
		}
		fronttest.Complained(t, a.table, args, status, stderr.String())
	}
}
