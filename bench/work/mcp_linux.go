package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"palyra/bench/measure"
)

// mcpName is the part with an agent's calls, each of which is decided, confined and recorded.
const (
	mcpName  = "mcp"
	atOnce   = 10
	mcpCalls = 20 // one after the other, for each counted round
)

const daemonConfig = `[state]
dir = %q

[listen]
socket = %q
http = "off"

[policy]
dir = %q

[pool]
cells = 4

[workspaces.src]
path = %q
staged = true
`

// agent is a client of palyra mcp serve.
type agent struct {
	in  io.Writer
	out *bufio.Reader
	id  int
}

// mcp measures exec of /bin/true from request to answer: with a waiting cell, in a staged
// workspace, ten at once; and fork and exec of the same beside it.
func (b *bench) mcp(ctx context.Context) (t measure.Table, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	dir, err := os.MkdirTemp(b.dir, "mcp-")
	if err != nil {
		return t, err
	}
	a, stop, err := b.agent(ctx, dir)
	if err != nil {
		return t, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	const exe = "/bin/true"
	warm := map[string]any{"argv": []string{exe}}
	staged := map[string]any{"argv": []string{exe}, "workspace": "src"}
	paths := []struct {
		name  string
		calls int // in one sample
		do    func() error
	}{
		{"fork+exec", 1, func() error { return exec.CommandContext(ctx, exe).Run() }},
		{"process_run, no workspace", 1, func() error { return a.call(1, warm) }},
		{"process_run, staged workspace", 1, func() error { return a.call(1, staged) }},
		{fmt.Sprintf("fork+exec, %d at once", atOnce), atOnce, func() error { return outside(ctx, exe) }},
		{fmt.Sprintf("process_run, staged workspace, %d at once", atOnce), atOnce, func() error { return a.call(atOnce, staged) }},
	}
	samples := make([][]time.Duration, len(paths))
	for round := range b.rounds*mcpCalls + 5 {
		for i := range paths {
			i = (i + round) % len(paths)
			if paths[i].calls > 1 && round%4 != 0 {
				continue
			}
			start := time.Now()
			if err := paths[i].do(); err != nil {
				return t, fmt.Errorf("%s: %w", paths[i].name, err)
			}
			if took := time.Since(start); round >= 5 {
				samples[i] = append(samples[i], took)
			}
		}
	}
	t = measure.Table{Title: "Calls of " + exe + " over MCP, from request to answer", Left: 1, Head: []string{"path", "samples", "p50 ms", "p99 ms", "ms for each call"}}
	for i, p := range paths {
		s := measure.Summarize(samples[i])
		t.Rows = append(t.Rows, []string{p.name, fmt.Sprint(s.N), fmt.Sprintf("%.2f", s.P50/1e3), fmt.Sprintf("%.2f", s.P99/1e3), fmt.Sprintf("%.2f", s.P50/1e3/float64(p.calls))})
	}
	return t, nil
}

// outside starts as many programs at once as the agent makes calls.
func outside(ctx context.Context, exe string) error {
	var all []*exec.Cmd
	var errs []error
	for range atOnce {
		c := exec.CommandContext(ctx, exe)
		if err := c.Start(); err != nil {
			errs = append(errs, err)
			break
		}
		all = append(all, c)
	}
	for _, c := range all {
		errs = append(errs, c.Wait())
	}
	return errors.Join(errs...)
}

// agent starts palyrad and, over its socket, palyra mcp serve.
func (b *bench) agent(ctx context.Context, dir string) (_ *agent, stop func() error, err error) {
	policies, work, socket := filepath.Join(dir, "policy"), filepath.Join(dir, "src"), filepath.Join(dir, "s")
	if err := os.Mkdir(work, 0o755); err != nil {
		return nil, nil, err
	}
	if out, err := exec.CommandContext(ctx, filepath.Join(b.bin, "palyra"), "policy", "init", "--preset", "coding", policies).CombinedOutput(); err != nil {
		return nil, nil, fmt.Errorf("palyra policy init: %w: %s", err, out)
	}
	config := filepath.Join(dir, "palyrad.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, daemonConfig, filepath.Join(dir, "state"), socket, policies, work), 0o600); err != nil {
		return nil, nil, err
	}
	log, err := os.Create(filepath.Join(dir, "palyrad.log"))
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	daemon := exec.CommandContext(ctx, filepath.Join(b.bin, "palyrad"), "serve", "--config", config)
	daemon.Stdout, daemon.Stderr = log, log
	daemon.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := daemon.Start(); err != nil {
		return nil, nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- daemon.Wait() }()
	end := func() error {
		if err := daemon.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		return <-ended
	}
	said := func() string {
		b, err := os.ReadFile(log.Name())
		if err != nil {
			return err.Error()
		}
		return string(tail(b))
	}
	for {
		_, err := os.Stat(socket)
		if err == nil {
			break
		}
		select {
		case err := <-ended:
			return nil, nil, fmt.Errorf("palyrad: %v: %s", err, said())
		case <-ctx.Done():
			return nil, nil, errors.Join(ctx.Err(), end())
		case <-time.After(10 * time.Millisecond):
		}
	}
	c := exec.CommandContext(ctx, filepath.Join(b.bin, "palyra"), "mcp", "serve", "--socket", socket)
	c.Stderr = os.Stderr
	in, err1 := c.StdinPipe()
	out, err2 := c.StdoutPipe()
	if err := errors.Join(err1, err2); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	if err := c.Start(); err != nil {
		return nil, nil, errors.Join(err, end())
	}
	stop = func() error {
		in.Close()
		return errors.Join(c.Wait(), end())
	}
	a := &agent{in: in, out: bufio.NewReader(out)}
	if err := a.hello(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("%w: %s", err, said()), stop())
	}
	return a, stop, nil
}

// message is a message of JSON-RPC, as far as it is looked at.
type message struct {
	Version string `json:"jsonrpc"`
	ID      int    `json:"id,omitempty"`
	Method  string `json:"method,omitempty"`
	Params  any    `json:"params,omitempty"`
	Result  *struct {
		IsError    bool `json:"isError"`
		Structured struct {
			Outcome string `json:"outcome"`
			Exit    int    `json:"exit"`
		} `json:"structuredContent"`
	} `json:"result,omitempty"`
	Error any `json:"error,omitempty"`
}

func (a *agent) send(m message) error {
	m.Version = "2.0"
	b, err := json.Marshal(m)
	if err == nil {
		_, err = a.in.Write(append(b, '\n'))
	}
	return err
}

// answer returns the next answer; what comes besides is dropped.
func (a *agent) answer() (m message, err error) {
	for {
		line, err := a.out.ReadBytes('\n')
		if err != nil {
			return m, err
		}
		m = message{}
		if err := json.Unmarshal(line, &m); err != nil {
			return m, fmt.Errorf("%w: %.200s", err, line)
		}
		if m.Method == "" {
			if m.Error != nil || m.Result == nil {
				return m, fmt.Errorf("answered %.300s", line)
			}
			return m, nil
		}
	}
}

func (a *agent) hello() error {
	a.id++
	err := a.send(message{ID: a.id, Method: "initialize", Params: map[string]any{"protocolVersion": "2025-06-18", "capabilities": struct{}{},
		"clientInfo": map[string]string{"name": "bench", "version": "1"}}})
	if err == nil {
		_, err = a.answer()
	}
	if err == nil {
		err = a.send(message{Method: "notifications/initialized"})
	}
	return err
}

// call makes n calls at once, and waits for all answers.
func (a *agent) call(n int, args map[string]any) error {
	for range n {
		a.id++
		if err := a.send(message{ID: a.id, Method: "tools/call", Params: map[string]any{"name": "process_run", "arguments": args}}); err != nil {
			return err
		}
	}
	for range n {
		m, err := a.answer()
		if err != nil {
			return err
		}
		if r := m.Result; r.IsError || r.Structured.Outcome != "executed" || r.Structured.Exit != 0 {
			return fmt.Errorf("a call ended %+v", *r)
		}
	}
	return nil
}
