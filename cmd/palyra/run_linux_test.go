package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/cmd/internal/agents"
	"palyra/cmd/internal/local"
)

// npmInstalled makes a folder with an agent as npm installs it, in which its script has its binary
// beside it, and puts it into PATH.
func npmInstalled(t *testing.T, name, script, native string) (binary string) {
	t.Helper()
	dir := t.TempDir()
	exe, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	for path, text := range map[string][]byte{script: []byte("#!/usr/bin/env node\n"), native: exe} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	bin := filepath.Join(dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(dir, script), filepath.Join(bin, name)); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	return filepath.Join(dir, native)
}

// TestRunIsExec: palyra run is a palyra exec that parses, with what the person gave after the preset,
// and with the agent's binary.
func TestRunIsExec(t *testing.T) {
	for _, x := range []struct {
		name, script, native string
		args                 []string
		want, not            []string
	}{
		{"claude", "lib/@anthropic-ai/claude-code/bin/claude.exe", "lib/@anthropic-ai/claude-code-linux-x64/claude", []string{"--", "claude", "-p", "x"},
			[]string{"--workspace .:staged", "--cache home", "PALYRA_MODEL_KEY=vault://global/anthropic header:x-api-key api.anthropic.com:443 form:sk-ant-api03-", "--env DISABLE_AUTOUPDATER=1"}, []string{"ANTHROPIC_BASE_URL", "--tty"}},
		{"codex", "lib/@openai/codex/bin/codex.js", "lib/@openai/codex/node_modules/@openai/codex-linux-x64/vendor/x/bin/codex", []string{"--model-host", "model.example:8443", "--api-key", "vault://global/mine", "--workspace", "src:ro", "--egress", "a.example", "--egress", "@npm", "--memory", "1GiB", "--", "codex"},
			[]string{"--workspace src:ro", "OPENAI_API_KEY=vault://global/mine header:authorization model.example:8443 form:sk-", `base_url="https://model.example:8443/v1"`, "--egress a.example --egress @npm", "--memory 1GiB"}, []string{".:staged", "8GiB"}},
		{"claude", "lib/@anthropic-ai/claude-code/bin/claude.exe", "lib/@anthropic-ai/claude-code/node_modules/@anthropic-ai/claude-code-linux-x64/claude", []string{"--model-host", "model.example", "--tty", "--", "claude"},
			[]string{"ANTHROPIC_BASE_URL=https://model.example", "--tty"}, []string{"api.anthropic.com"}},
	} {
		native := npmInstalled(t, x.name, x.script, x.native)
		a, _, _ := newApp(t, map[string]string{"PATH": os.Getenv("PATH")})
		inv, err := local.Table().Parse(append([]string{"run"}, x.args...))
		if err != nil {
			t.Fatal(err)
		}
		words, home, err := a.agentCall(inv)
		if err != nil {
			t.Fatal(err)
		}
		line := strings.Join(words, " ")
		for _, w := range append(x.want, "-- "+native+" ") {
			if !strings.Contains(line, w) {
				t.Errorf("%s lacks %q", line, w)
			}
		}
		for _, w := range x.not {
			if strings.Contains(line, w) {
				t.Errorf("%s has %q", line, w)
			}
		}
		if row, _ := agents.Find(x.name); len(home) != len(row.Files) {
			t.Errorf("files %q", home)
		}
		call, err := local.Table().Parse(words)
		if err != nil || call.Command.Name != "exec" || !slices.Equal(call.Operands[len(call.Operands)-len(inv.Operands)+1:], inv.Operands[1:]) {
			t.Errorf("%q: %v", words, err)
		}
	}
}

// TestRunRefuses: what can't be run is said by name, with a hint.
func TestRunRefuses(t *testing.T) {
	npmInstalled(t, "claude", "lib/claude.js", "elsewhere/claude")
	for _, x := range []struct{ args, want string }{
		{"run -- vim", "palyra exec --tty"},
		{"run -- codex", "npm install -g @openai/codex"},
		{"run -- claude", "name the agent's own binary"},
		{"run --model-host *.cdn.example -- claude", "one host's name"},
		{"run --api-key secret -- claude", "vault://SCOPE/KEY"},
		{"run --tier b -- claude", "unknown flag"},
		{"run claude", "--"},
	} {
		a, stdout, stderr := newApp(t, map[string]string{"PATH": os.Getenv("PATH")})
		if status := a.run(t.Context(), strings.Fields(x.args)); status < 125 || status > 127 || stdout.Len() > 0 || !strings.Contains(stderr.String(), x.want) {
			t.Errorf("%s: status %d, %s%s", x.args, status, stdout, stderr)
		}
	}
}
