package egress

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/conformance/seek"
	"palyra/conformance/world"
	"palyra/isolate/evidence"
)

// runInput is an input of process.run whose requests get the token.
func runInput(script string, more map[string]any) map[string]any {
	in := map[string]any{"argv": []string{"sh", "-c", script}, "workspace": "src", "egress_secrets": []string{registryUse}, "timeout_ms": 300_000}
	for name, v := range more {
		in[name] = v
	}
	return in
}

// overMCP begins a call of process.run as an agent makes it, through palyra mcp serve.
func (b *bench) overMCP(input map[string]any) running {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	c := b.command(ctx, palyra(), "mcp", "serve")
	in, err := c.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err == nil {
		err = c.Start()
	}
	if err != nil {
		b.t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 8<<20)
	send := func(m map[string]any) {
		m["jsonrpc"] = "2.0"
		if err := json.NewEncoder(in).Encode(m); err != nil {
			b.t.Fatal(err)
		}
	}
	send(map[string]any{"id": 1, "method": "initialize", "params": map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{}, "clientInfo": map[string]any{"name": "agent", "version": "1"}}})
	send(map[string]any{"method": "notifications/initialized"})
	send(map[string]any{"id": 2, "method": "tools/call", "params": map[string]any{"name": "process_run", "arguments": input}})
	return running{b.serves, func() *call {
		b.t.Helper()
		defer cancel()
		for lines.Scan() {
			var m struct {
				ID     int
				Result struct {
					StructuredContent struct {
						Outcome, Stdout, Stderr, Message, Wait string
						Exit                                   int
						Receipt                                *uint64
					}
				}
			}
			if json.Unmarshal(lines.Bytes(), &m) != nil || m.ID != 2 {
				continue
			}
			s := m.Result.StructuredContent
			if s.Wait != "" { // it isn't over yet
				send(map[string]any{"id": 2, "method": "tools/call", "params": map[string]any{"name": "call_wait", "arguments": map[string]any{"id": s.Wait}}})
				continue
			}
			r := &call{status: s.Exit, stdout: s.Stdout, stderr: s.Stderr + s.Message + lines.Text()}
			if s.Receipt == nil {
				b.t.Fatalf("no receipt: %s", lines.Text())
			}
			b.readAt(*s.Receipt, r)
			in.Close()
			if err := c.Wait(); err != nil {
				b.t.Errorf("palyra mcp serve: %v", err)
			}
			return r
		}
		b.t.Fatalf("the agent has no answer: %v", lines.Err())
		return nil
	}}
}

// readAt is read for an entry of palyrad's journal.
func (b *bench) readAt(index uint64, r *call) {
	b.t.Helper()
	receipt := b.write(fmt.Sprintf("receipt-%d.json", index), b.ctl("attest", "get", fmt.Sprint(index)))
	defer os.Remove(receipt)
	b.read(receipt, r)
}

// overHTTP begins the same call through the HTTP API.
func (b *bench) overHTTP(input map[string]any) running {
	b.t.Helper()
	in, err := json.Marshal(input)
	if err != nil {
		b.t.Fatal(err)
	}
	receipt := filepath.Join(b.t.TempDir(), "receipt.json")
	ctx, cancel := context.WithTimeout(b.t.Context(), 6*time.Minute)
	c := b.command(ctx, palyra(), "call", "--receipt", receipt, "process.run", string(in))
	var out, errs strings.Builder
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		b.t.Fatal(err)
	}
	return running{b.serves, func() *call {
		b.t.Helper()
		defer cancel()
		c.Wait() // its status is read
		r := &call{status: c.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
		b.read(receipt, r)
		return r
	}}
}

// TestAgent: an agent's program that uses a placeholder gets a package of the private registry, over
// MCP and over HTTP, and the token is nowhere: in no memory of a cell, no file that one shows or
// leaves, no output, and nothing that palyrad keeps. The same search finds it in each of these where
// the program has it. A placeholder that is printed ends the call.
func TestAgent(t *testing.T) {
	b := begun(t)
	ws := b.vaulted()
	clear := func() {
		for _, e := range []string{"clone", "headers.txt", "body.txt", "env.txt", "core"} {
			if err := os.RemoveAll(filepath.Join(ws, e)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, begin := range map[string]func(*bench, map[string]any) running{"mcp": (*bench).overMCP, "http": (*bench).overHTTP} {
		t.Run(name, func(t *testing.T) {
			b := b.in(t)
			clear()
			before := len(b.w.Requests())
			inside := b.lookAt(ws, func() running { return begin(b, runInput("export PUT_OUT=$TOKEN; "+rememberEverything, nil)) })
			for place, found := range inside {
				if len(found) > 0 {
					t.Errorf("%s: %q", place, found)
				}
			}
			if !slices.ContainsFunc(b.w.Requests()[before:], func(q world.Request) bool { return q.Status == 200 && has(q.Authorization, token) }) {
				t.Error("the token didn't arrive")
			}
			clear()
			r := begin(b, runInput(`echo "it is $TOKEN"; sleep 60`, nil)).wait()
			if r.outcome != "failed" || r.reason != "placeholder_leaked" || !slices.Contains(r.egress.Leaks, evidence.Leak{Name: "TOKEN", Where: evidence.LeakStdout}) || len(seek.For(token).In([]byte(r.stdout+r.stderr))) > 0 {
				t.Errorf("printed: %s", r)
			}
			if out := b.ctl("journal", "ls", "--json"); !strings.Contains(out, "secret.tripwire") {
				t.Errorf("the journal has no tripwire: %s", out)
			}
			r = begin(b, runInput(`curl -sS -d "$TOKEN" https://packages.example/sum; sleep 60`, nil)).wait()
			if r.outcome != "failed" || !slices.Contains(r.egress.Leaks, evidence.Leak{Name: "TOKEN", Host: "packages.example", Port: 443, Where: evidence.LeakBody}) {
				t.Errorf("in a body: %s", r)
			}
		})
	}
	// The control is another palyrad's, which has no vault: this one takes no call with the token in it.
	clear()
	other := &bench{t: t, w: b.w, home: t.TempDir()}
	other.write("policy/all.cedar", `@id("all") permit (principal, action, resource);`)
	other.daemon(workspaceSrc(ws))
	control := other.lookAt(ws, func() running {
		return other.overHTTP(map[string]any{"argv": []string{"sh", "-c", "export PUT_OUT=none; " + rememberEverything, token}, "workspace": "src", "env": []string{"TOKEN=" + token}, "egress_hosts": []string{"packages.example"}})
	})
	for place, found := range control {
		if len(found) == 0 {
			t.Errorf("the search doesn't find it in %s where it is", place)
		}
	}
}

// TestRunOfAgent: what palyra run makes of an agent, a staged project, a HOME that is kept and a key
// that stands in two places, reaches the model with the key, which the agent doesn't have. A
// placeholder in the project fails the run, one in HOME isn't looked at, and says in a later call
// where it's from.
func TestRunOfAgent(t *testing.T) {
	b := begun(t)
	b.registered()
	project := filepath.Join(t.TempDir(), "src")
	if err := os.Mkdir(project, 0o777); err != nil {
		t.Fatal(err)
	}
	const use = "KEY=vault://global/token header:%s packages.example form:sk-ant-api03-"
	run := func(script string) *call {
		return b.exec(nil, []string{"--workspace", project + ":staged", "--cache", "home", "--egress-secret", fmt.Sprintf(use, "authorization"), "--egress-secret", fmt.Sprintf(use, "x-api-key")}, "sh", "-c", script)
	}
	const ask = `curl -sS -H "x-api-key: $KEY" -H "Authorization: Bearer $KEY" https://packages.example/private/repo.git/HEAD; `
	r := run(ask + `echo "$KEY" >"$HOME/key"; echo changed >file`)
	if r.status != 0 || r.stdout != "ref: refs/heads/main\n" || len(r.egress.Leaks)+len(r.egress.Kept) != 0 || len(r.egress.Requests) != 1 || !slices.Equal(r.egress.Requests[0].Uses, []string{"KEY"}) {
		t.Fatal(r)
	}
	if _, err := os.Lstat(filepath.Join(project, "file")); err == nil {
		t.Error("the run wrote to the project")
	}
	r = run(ask + `cat "$HOME/key"; echo "$KEY" >note`)
	before := strings.TrimSpace(strings.TrimPrefix(r.stdout, "ref: refs/heads/main\n"))
	if r.outcome != "failed" || r.reason != "placeholder_leaked" || !slices.Equal(r.egress.Leaks, []evidence.Leak{{Name: "KEY", Where: evidence.LeakFile, Path: "note"}}) || !strings.HasPrefix(before, "sk-ant-api03-") {
		t.Fatal(r)
	}
	if r = run("printenv KEY"); r.reason != "placeholder_leaked" || strings.Contains(r.stdout, "sk-ant") {
		t.Error(r)
	}
	if r = b.exec(nil, nil, "echo", before); r.status != 125 || !strings.Contains(r.stderr, "the placeholder of KEY was seen in call") {
		t.Errorf("the first run's, later: %s", r)
	}
	works, _ := filepath.Glob(filepath.Join(b.home, "state", "palyra", "layers", "*", "work", "work"))
	for _, dir := range works {
		os.Chmod(dir, 0o700) // overlayfs gives its own folder no mode, and only root looks in all the same
	}
	if files := b.has(token); len(files) > 0 {
		t.Errorf("%q have the key", files)
	}
}
