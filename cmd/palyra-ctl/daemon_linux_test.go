package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"unicode/utf8"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub/gateway"
	"palyra/hub/local"
	"palyra/hub/store"
	"palyra/internal/sample"
	"palyra/kernel"
	"palyra/transport/httpapi"
)

// office serves the real hub, without anything that could run a call, on a unix
// socket, and returns what runs a command line against it. This user is its owner.
func office(t *testing.T) func(args ...string) (status int, stdout, stderr string) {
	t.Helper()
	base := t.TempDir()
	k, err := kernel.Open(t.Context(), kernel.Config{StateDir: filepath.Join(base, "state")})
	if err != nil {
		t.Fatal(err)
	}
	st, err := store.Open(filepath.Join(base, "store"), store.Options{})
	if err != nil {
		t.Fatal(errors.Join(err, k.Close()))
	}
	h, err := local.Open(t.Context(), local.Config{Kernel: k, Store: st, Gateway: gateway.New(gateway.Config{Store: st})})
	if err != nil {
		t.Fatal(errors.Join(err, st.Close(), k.Close()))
	}
	s, err := httpapi.New(httpapi.Config{Hub: h, Limits: httpapi.Limits{Rate: -1}})
	if err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(base, "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, httpapi.Listener{Listener: l}) }()
	t.Cleanup(func() {
		cancel()
		if err := errors.Join(<-served, h.Close(ctx), st.Close(), k.Close()); err != nil {
			t.Error(err)
		}
	})
	return func(args ...string) (int, string, string) {
		t.Helper()
		var out, errs bytes.Buffer
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, terminal: filepath.Join(base, "no-tty"), dial: connect.Dial,
			getenv: func(name string) string { return map[string]string{"PALYRA_SOCKET": socket}[name] }}
		return a.run(t.Context(), args), out.String(), errs.String()
	}
}

// TestMembers: a role is given, changed and taken without a version, which is then
// the one that there is; with one, only if that is still it.
func TestMembers(t *testing.T) {
	palyra := office(t)
	version := func() string {
		t.Helper()
		_, stdout, stderr := palyra("members", "ls")
		m := regexp.MustCompile(`(?m)^uid:1234 +\S+ +(\d+) `).FindStringSubmatch(stdout)
		if m == nil {
			t.Fatalf("uid:1234 is no member: %s%s", stdout, stderr)
		}
		return m[1]
	}
	expect := func(status int, want string, args ...string) {
		t.Helper()
		if got, stdout, stderr := palyra(append([]string{"members"}, args...)...); got != status || !strings.Contains(stdout+stderr, want) {
			t.Errorf("palyra members %q: status %d, want %d with %q; %s%s", args, got, status, want, stdout, stderr)
		}
	}
	const outdated = "hint: look at what it is now"
	expect(0, "uid:1234 operator", "set", "uid:1234", "operator")
	first := version()
	expect(0, "uid:1234 admin", "set", "uid:1234", "admin")
	second := version()
	expect(75, outdated, "set", "--version", first, "uid:1234", "operator")
	expect(0, "uid:1234 operator", "set", "--version", second, "uid:1234", "operator")
	expect(75, outdated, "rm", "--version", second, "uid:1234")
	expect(0, "uid:1234 has no role", "rm", "uid:1234")
	expect(1, "hint: palyra members ls", "rm", "uid:1234")
	expect(75, outdated, "set", "--version", second, "uid:1234", "operator")
	expect(0, "uid:1234 operator", "set", "uid:1234", "operator")
}

// doubled is a part of the first line of an error that it has twice.
func doubled(stderr string) string {
	line, _, _ := strings.Cut(stderr, "\n")
	seen := map[string]bool{}
	for _, part := range strings.Split(line, ": ") {
		if part = strings.TrimSpace(part); seen[part] {
			return part
		}
		seen[part] = true
	}
	return ""
}

// TestNothingTwice: no error names its program, operation or reason twice.
func TestNothingTwice(t *testing.T) {
	palyra := office(t)
	for _, args := range [][]string{
		{"stauts"}, {"--nothing"}, {"status", "--nothing"}, {"call", "bash"}, {"call", "palyra.echo", `{"txt":"x"}`}, {"call", "fs.read_file", `{"workspace":"none","path":"x"}`},
		{"token", "create", "--scope", "no.such", "--ttl", "1h", "x"}, {"token", "create", "--scope", "run.start", "--ttl", "400d", "x"}, {"token", "create", "--principal", "uid:7", "--scope", "run.start", "--ttl", "1h", "x"},
		{"members", "set", "uid:1", "king"}, {"members", "rm", "uid:77"}, {"members", "set", "nobody in particular", "owner"}, {"policy", "why", "00000000"}, {"policy", "reload", "x"},
		{"attest", "get", "77"}, {"runs", "start", "--session", "ses_0", "/dev/null"}, {"journal", "ls", "--from", "x"},
	} {
		status, _, stderr := palyra(args...)
		if status == 0 || doubled(stderr) != "" || !strings.HasPrefix(stderr, "palyra: ") {
			t.Errorf("palyra %q: status %d, twice %q: %s", args, status, doubled(stderr), stderr)
		}
		line, _, _ := strings.Cut(stderr, "\n")
		if words := strings.Fields(line); len(words) > 2 && strings.Contains(words[2], "_") && words[2] == words[len(words)-1] {
			t.Errorf("palyra %q says %q twice: %s", args, words[2], stderr)
		}
	}
}

// TestBadIDs gives every command that takes operands ids of nothing and of the
// wrong kind, and files that are none: one error, a hint, and a status that the
// command documents.
func TestBadIDs(t *testing.T) {
	palyra := office(t)
	t.Chdir(t.TempDir())
	if err := errors.Join(os.WriteFile("empty", nil, 0o644), os.Mkdir("policy", 0o755), syscall.Mkfifo("policy/p.cedar", 0o600)); err != nil {
		t.Fatal(err)
	}
	need := map[string][]string{"runs start": {"--session", "ses_0"}, "token create": {"--scope", "run.start", "--ttl", "1h"}, "token rotate": {"--ttl", "1h"},
		"backup create":     {"--recipient", "nobody"},
		"approvals approve": {"--capsule", strings.Repeat("00", 32)}}
	few := sample.Of(3, 1)
	for i, c := range programs.Table(programs.Client).Commands {
		switch c.Name {
		case "sessions new", "token create", "mcp add": // take any name
			continue
		}
		var codes []string
		for _, e := range c.Exits {
			codes = append(codes, e.Code)
		}
		var lines [][]string
		for j, id := range []string{"missing", "empty", "policy", "ses_00000000000000000000000000", "run_", "999999999", "/dev/null", "x\x1b[2J", "\xff", "uid:99999", ""} {
			if (i+j)%few != 0 {
				continue
			}
			operands := []string{id, "sha256:" + strings.Repeat("0", 64)}
			if c.Min > 0 {
				lines = append(lines, append(append(strings.Fields(c.Name), need[c.Name]...), operands[:c.Min]...))
			}
			for _, f := range c.Flags {
				if f.Arg != "" && f.Name != "after" && f.Name != "comment" && f.Name != "key" && c.Min == 0 {
					lines = append(lines, append(strings.Fields(c.Name), "--"+f.Name, id))
				}
			}
		}
		for _, args := range lines {
			status, _, stderr := palyra(args...)
			if twice := doubled(stderr); twice != "" {
				t.Errorf("palyra %q says %q twice: %s", args, twice, stderr)
			}
			switch {
			case strings.Join(args, " ") == "journal ls --from 999999999": // nothing, from there on
			case status == 0:
				t.Errorf("palyra %q: status 0; %s", args, stderr)
			case !strings.HasPrefix(stderr, "palyra: ") || !strings.Contains(stderr, "\nhint: ") || strings.Contains(stderr, "\x1b") || !utf8.ValidString(stderr):
				t.Errorf("palyra %q: status %d, %q", args, status, stderr)
			case !strings.Contains(" "+strings.Join(codes, " ")+" ", fmt.Sprintf(" %d ", status)):
				t.Errorf("palyra %q: status %d, documented are %q; %q", args, status, codes, stderr)
			}
		}
	}
}
