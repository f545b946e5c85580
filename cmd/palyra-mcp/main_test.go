package main

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub"
	"palyra/transport/api/apitest"
)

// TestTable: every command that palyra hands to palyra-mcp has a function, and
// every function is in the table.
func TestTable(t *testing.T) {
	seen := map[string]bool{}
	for _, c := range programs.Table(programs.Agents).Commands {
		seen[c.Name] = true
		if commands[c.Name] == nil {
			t.Errorf("%s has no function", c.Name)
		}
	}
	for name := range commands {
		if !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

// try runs palyra-mcp in this process, against a palyrad in memory.
func try(t *testing.T, exe, stdin string, args ...string) (status int, protocol, stdout, stderr string) {
	t.Helper()
	var p, out, errs strings.Builder
	a := &app{stdin: strings.NewReader(stdin), protocol: &p, stdout: &out, stderr: &errs, getenv: func(string) string { return "" },
		executable: func() (string, error) { return exe, nil },
		dial: func(to connect.Target) (hub.Hub, error) {
			if to.Socket == "/nothing" {
				return connect.Dial(to)
			}
			return apitest.NewHub(), nil
		}}
	status = a.run(t.Context(), args)
	return status, p.String(), out.String(), errs.String()
}

// TestPrint: the entry starts palyra with the same flags, wherever the agent stands.
func TestPrint(t *testing.T) {
	root := t.TempDir()
	for _, name := range []string{"bin/palyra", "libexec/palyra/palyra-mcp", "build/palyra", "build/palyra-mcp", "alone/palyra-mcp"} {
		p := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, nil, 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	t.Chdir(root)
	for exe, want := range map[string]string{"libexec/palyra/palyra-mcp": filepath.Join(root, "bin/palyra"), "build/palyra-mcp": filepath.Join(root, "build/palyra"), "alone/palyra-mcp": "palyra"} {
		status, protocol, stdout, stderr := try(t, filepath.Join(root, exe), "", "mcp", "serve", "--print", "--socket", "p.sock", "--workspace", "src", "--patience", "90s")
		var got struct {
			MCPServers map[string]struct {
				Command string
				Args    []string
			}
		}
		if err := json.Unmarshal([]byte(stdout), &got); err != nil || status != 0 || protocol != "" {
			t.Fatalf("status %d, %v, %q, %s", status, err, protocol, stderr)
		}
		e := got.MCPServers["palyra"]
		if s := strings.Join(e.Args, " "); e.Command != want || s != "mcp serve --socket "+filepath.Join(root, "p.sock")+" --workspace src --patience 1m30s" {
			t.Errorf("%s: %q %q", exe, e.Command, s)
		}
	}
}

// TestStreams: the protocol alone is on standard output.
func TestStreams(t *testing.T) {
	status, protocol, stdout, stderr := try(t, "palyra-mcp", "no JSON\n", "mcp", "serve")
	if status != 0 || !strings.HasPrefix(protocol, `{"error":{"code":-32700`) || stdout+stderr != "" {
		t.Errorf("status %d, %q, %q, %q", status, protocol, stdout, stderr)
	}
	if status, protocol, _, stderr := try(t, "palyra-mcp", "", "mcp", "serve", "--url", "http://127.0.0.1:1"); status != 2 || protocol != "" || !strings.Contains(stderr, "--token-file") {
		t.Errorf("without a token: status %d, %q, %q", status, protocol, stderr)
	}
}

func TestExport(t *testing.T) {
	status, _, stdout, stderr := try(t, "palyra-mcp", "", "tools", "export", "--format", "anthropic")
	if status != 0 || !strings.Contains(stdout, `"name": "test_echo"`) || !json.Valid([]byte(stdout)) {
		t.Errorf("status %d, %s%s", status, stdout, stderr)
	}
	for want, args := range map[string][]string{"--format is required": {}, "no format": {"--format", "xml"}, "is palyrad running": {"--format", "mcp", "--socket", "/nothing"}} {
		if status, _, _, stderr := try(t, "palyra-mcp", "", append([]string{"tools", "export"}, args...)...); status == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%q: status %d, %s", args, status, stderr)
		}
	}
}
