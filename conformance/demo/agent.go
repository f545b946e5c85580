package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"palyra/conformance/pty"
	"palyra/conformance/scene"
)

// served is the step of an agent: it finds a failing test in a git repository and mends it,
// over MCP, in a layer over the repository. A person is asked once, about all that would change.
// Then palyrad's own agent works there, and remembers.
// Where a kernel has no such layers the agent writes to the repository itself, and the question
// is about a file that would run by itself.
func served(ctx context.Context, d *demo) {
	staged := d.quiet(ctx, d.palyra, "exec", "--workspace", filepath.Join(d.dir, "policy")+":staged", "--", "true")
	if staged.status != 0 {
		fmt.Fprintf(d.out, "     staging the project is NOT shown: %s\n", lastLines(staged.stderr, 2))
		if os.Getenv("CI") != "" {
			d.expect(false, "CI's kernel stages workspaces")
		}
	}
	p, err := newShop(ctx, d, staged.status == 0)
	if err == nil {
		defer p.notify.Close()
		err = p.start(ctx)
	}
	if err != nil {
		d.expect(false, "palyrad starts with the preset for coding: %v", err)
		return
	}
	defer p.kill()
	token, err := p.mint(ctx)
	if err != nil {
		d.expect(false, "the owner mints a token: %v", err)
		return
	}
	a, err := p.agentOverMCP(ctx, token)
	if err != nil {
		d.expect(false, "palyra mcp serve answers: %v", err)
		return
	}
	defer a.close()
	a.mend(ctx)
	if staged.status == 0 {
		a.apply(ctx)
		p.planned(ctx)
	} else {
		a.hook(ctx)
	}
}

// newShop prepares a palyrad with the preset for coding and a project whose test fails.
func newShop(ctx context.Context, d *demo, staged bool) (*daemon, error) {
	etc, src := filepath.Join(d.dir, "shop"), filepath.Join(d.dir, "app")
	p := &daemon{demo: d, dir: filepath.Join(d.dir, "shopstate"), config: filepath.Join(etc, "palyrad.toml"), socket: filepath.Join(d.dir, "s.sock"), identity: filepath.Join(etc, "vault.key")}
	if err := errors.Join(os.Mkdir(etc, 0o755), os.MkdirAll(filepath.Join(src, ".git", "hooks"), 0o755)); err != nil {
		return nil, err
	}
	for name, text := range scene.Project(scene.Broken) {
		if err := os.WriteFile(filepath.Join(src, name), []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	policies := filepath.Join(etc, "policy")
	r := d.run(ctx, "$", d.dir, d.palyra, "policy", "init", "--preset", "coding", policies)
	if r.status != 0 {
		return nil, errors.New(r.stderr)
	}
	text := fmt.Sprintf("profile = \"local\"\nlisten.socket = %q\nlisten.http = \"off\"\nstate.dir = %q\npolicy.dir = %q\nworkspaces.app.path = %q\nworkspaces.app.read_only = false\nworkspaces.app.staged = %t\nvault.identity = %q\nagent.model = \"shop\"\n", p.socket, p.dir, policies, src, staged, p.identity)
	for name, turns := range scene.Models() {
		file := filepath.Join(etc, name+".json")
		if err := os.WriteFile(file, []byte(turns), 0o644); err != nil {
			return nil, err
		}
		text += fmt.Sprintf("models.%[1]s.provider = \"scripted\"\nmodels.%[1]s.script = %[2]q\n", name, file)
	}
	if r := d.quiet(ctx, d.palyra, "vault", "init", "--state", p.dir, "--key", p.identity); r.status != 0 {
		return nil, errors.New(r.stderr)
	}
	if err := os.WriteFile(p.config, []byte(text), 0o600); err != nil {
		return nil, err
	}
	var err error
	p.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(d.dir, "m.sock"), Net: "unixgram"})
	return p, err
}

// mint returns the file of a token that may call and read its own, and not answer.
func (p *daemon) mint(ctx context.Context) (string, error) {
	file := filepath.Join(p.demo.dir, "shop", "agent.token")
	argv := []string{p.palyra, "token", "create", "--socket", p.socket, "--ttl", "1h", "--scope", "run.start", "--scope", "session.read",
		"--scope", "session.write", "--scope", "artifact.read", "agent"}
	fmt.Fprintf(p.out, "     # %s > shop/agent.token\n", p.spell(argv))
	r := p.quiet(ctx, argv...)
	if r.status != 0 {
		return "", errors.New(r.stderr)
	}
	return file, os.WriteFile(file, []byte(r.stdout), 0o600)
}

// scripted is an agent that speaks MCP and thinks nothing: its thoughts are mend's.
type scripted struct {
	*daemon
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines *bufio.Scanner
	id    int
}

// agentOverMCP starts palyra mcp serve as agents do, and shakes hands.
func (p *daemon) agentOverMCP(ctx context.Context, token string) (*scripted, error) {
	argv := []string{p.palyra, "mcp", "serve", "--socket", p.socket, "--token-file", token, "--workspace", "app"}
	fmt.Fprintf(p.out, "     agent $ %s\n", p.spell(argv))
	a := &scripted{daemon: p, cmd: p.command(ctx, p.demo.dir, argv...)}
	out, err := a.cmd.StdoutPipe()
	if err == nil {
		a.in, err = a.cmd.StdinPipe()
	}
	if err == nil {
		err = a.cmd.Start()
	}
	if err != nil {
		return nil, err
	}
	a.lines = bufio.NewScanner(out)
	a.lines.Buffer(nil, 4<<20)
	var hello struct{ ServerInfo struct{ Name string } }
	err = a.ask("initialize", map[string]any{"protocolVersion": "2025-11-25", "capabilities": map[string]any{},
		"clientInfo": map[string]string{"name": "demo", "version": "1"}}, &hello)
	if err == nil {
		_, err = io.WriteString(a.in, `{"jsonrpc":"2.0","method":"notifications/initialized"}`+"\n")
	}
	if err != nil {
		a.close()
	}
	return a, err
}

// close ends the connection, and palyra mcp serve with it.
func (a *scripted) close() {
	a.in.Close()
	a.cmd.Wait() // its end is what is waited for, and ctx bounds it
}

func (a *scripted) send(method string, params any) (int, error) {
	a.id++
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": a.id, "method": method, "params": params})
	if err == nil {
		_, err = a.in.Write(append(b, '\n'))
	}
	return a.id, err
}

// answer reads the answer to a request. Notifications are passed over.
func (a *scripted) answer(id int, out any) error {
	for a.lines.Scan() {
		var m struct {
			ID     int
			Result json.RawMessage
			Error  *struct{ Message string }
		}
		switch err := json.Unmarshal(a.lines.Bytes(), &m); {
		case err != nil:
			return err
		case m.ID != id:
		case m.Error != nil:
			return errors.New(m.Error.Message)
		default:
			return json.Unmarshal(m.Result, out)
		}
	}
	return errors.Join(io.ErrUnexpectedEOF, a.lines.Err())
}

func (a *scripted) ask(method string, params, out any) error {
	id, err := a.send(method, params)
	if err != nil {
		return err
	}
	return a.answer(id, out)
}

// answered is what the model sees of a call.
type answered struct {
	StructuredContent struct {
		Outcome, Stdout, Reason, Comment, Message, Changes string

		Exit    *int
		Receipt uint64
	}
}

func (a *scripted) asks(tool string, arguments any) {
	b, _ := json.Marshal(arguments) // maps of strings
	fmt.Fprintf(a.out, "     agent > %s %s\n", tool, b)
}

// calls is one call and what the model sees of it.
func (a *scripted) calls(tool string, arguments any) (r answered) {
	a.asks(tool, arguments)
	if err := a.ask("tools/call", map[string]any{"name": tool, "arguments": arguments}, &r); err != nil {
		a.expect(false, "%s is answered: %v", tool, err)
	}
	return r
}

// keep takes the receipt of a call to those that are verified at the end.
func (a *scripted) keep(ctx context.Context, name string, r answered, outcome string) {
	file := a.receipt(name)
	got := a.quiet(ctx, a.palyra, "attest", "get", "--socket", a.socket, "--out", file, fmt.Sprint(r.StructuredContent.Receipt))
	if got.status != 0 {
		a.expect(false, "its receipt is entry %d of the journal: %s", r.StructuredContent.Receipt, got.stderr)
		return
	}
	a.receipts = append(a.receipts, receipt{file: file, outcome: outcome, trust: filepath.Join(a.daemon.dir, "trust")})
}

// mend is the agent's day: look, mend, look again.
func (a *scripted) mend(ctx context.Context) {
	test := map[string]string{"command": "sh ./test.sh"}
	r := a.calls("exec", test)
	s := r.StructuredContent
	a.expect(s.Outcome == "executed" && s.Exit != nil && *s.Exit == 1 && strings.Contains(s.Stdout, "total is 1, want 6"),
		"a shell runs in its cell unasked, and the test fails: %s", strings.TrimSpace(s.Stdout))
	r = a.calls("fs_apply_patch", map[string]string{"patch": "--- a/total.sh\n+++ b/total.sh\n@@ -3,3 +3,3 @@\n n=0\n-while read -r x; do n=$((n + x)); break; done\n+while read -r x; do n=$((n + x)); done\n echo $n\n"})
	a.expect(r.StructuredContent.Outcome == "executed", "the file is mended unasked: %s", r.StructuredContent.Outcome)
	a.keep(ctx, "agent-patch", r, "executed")
	r = a.calls("exec", test)
	s = r.StructuredContent
	a.expect(s.Outcome == "executed" && s.Exit != nil && *s.Exit == 0 && strings.Contains(s.Stdout, "PASS"), "the test passes: %s", strings.TrimSpace(s.Stdout))
	a.keep(ctx, "agent-test", r, "executed")
}

// apply has the agent write what a build service would run, and a person say yes to all of it.
func (a *scripted) apply(ctx context.Context) {
	r := a.calls("exec", map[string]string{"command": "mkdir -p .github/workflows && echo 'on: push' > .github/workflows/test.yml"})
	src := filepath.Join(a.demo.dir, "app")
	now := a.run(ctx, "control: outside $", src, "sh", "./test.sh")
	a.demo.show(now.stdout)
	layer := r.StructuredContent.Changes
	_, missing := os.Lstat(filepath.Join(src, ".github"))
	a.expect(layer != "" && now.status == 1 && errors.Is(missing, os.ErrNotExist), "all of that is in layer %s, and the project is as it was", layer)
	file := a.receipt("agent-apply")
	argv := []string{a.palyra, "changes", "apply", "--state", a.daemon.dir, "--receipt", file, layer}
	fmt.Fprintf(a.out, "     # %s\n", a.spell(argv))
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	cmd := a.command(ctx, src, argv...)
	var stdout bytes.Buffer
	cmd.Stdout = &stdout
	term, err := pty.Start(cmd)
	if err != nil {
		a.expect(false, "a person is asked: %v", err)
		return
	}
	prompt, err := term.Expect(ctx, "denies: ")
	if err == nil {
		a.demo.show(strings.ReplaceAll(prompt, "\r", ""))
		fmt.Fprintf(a.out, "       (the person types %s)\n", codeIn(prompt))
		err = term.Type(codeIn(prompt) + "\n")
	}
	if err != nil {
		cmd.Process.Kill()
	}
	err = errors.Join(err, cmd.Wait())
	term.Close()
	a.demo.show(stdout.String())
	now = a.run(ctx, "control: outside $", src, "sh", "./test.sh")
	a.demo.show(now.stdout)
	a.expect(err == nil && strings.Contains(prompt, ".github/workflows/test.yml") && now.status == 0,
		"one question names what a build service would run; after the yes the project has the mended file%s", onFailure(err, strings.TrimPrefix(term.Shown(), prompt)))
	if err == nil {
		a.receipts = append(a.receipts, receipt{file: file, outcome: "executed", trust: filepath.Join(a.daemon.dir, "trust")})
	}
}

// hook has the agent write what git would run. A person says no, and why.
func (a *scripted) hook(ctx context.Context) {
	arguments := map[string]string{"path": ".git/hooks/pre-commit", "mode": "create", "content": "#!/bin/sh\nsh ./test.sh\n"}
	a.asks("fs_write_file", arguments)
	id, err := a.send("tools/call", map[string]any{"name": "fs_write_file", "arguments": arguments})
	var ask *request
	for err == nil && ask == nil && ctx.Err() == nil {
		ask = a.pending(ctx)
	}
	if ask == nil {
		a.expect(false, "a person is asked: %v", errors.Join(err, ctx.Err()))
		return
	}
	a.ctl(ctx, "#", "approvals", "deny", "--socket", a.socket, "--comment", "no hooks: CI runs the test", ask.ID)
	var r answered
	err = a.answer(id, &r)
	s := r.StructuredContent
	_, missing := os.Lstat(filepath.Join(a.demo.dir, "app", ".git", "hooks", "pre-commit"))
	a.expect(err == nil && s.Outcome == "not_approved" && s.Comment == "no hooks: CI runs the test" && errors.Is(missing, os.ErrNotExist),
		"a file that git would run is asked about; the no and its reason reach the agent, and nothing is written: %s, %q", s.Outcome, s.Comment)
	a.keep(ctx, "agent-hook", r, "not_approved")
}
