// Package gateway runs foreign servers of the Model Context Protocol (MCP) in cells, and has their
// tools called through the gate.
//
//	g := gateway.New(gateway.Config{Store: st, Tools: table, Workspaces: w})
//	k, err := kernel.Open(ctx, kernel.Config{Tools: g, …})
//	g.Begin(start, wait)                    // how runs are made; palyra/hub/local does it
//	e, err := run.Open(ctx, run.Config{Gate: k, Servers: g, …})
//
// # How a tool is called
//
// A server is a row of the store: a command, the settings of its cell, and the tools that a person
// accepted, each with the digest of its definition (its pin). The tool mcp.call names server, tool
// and arguments. Its first call in a session starts the server: a run of one call of mcp.serve,
// which is decided, approved, journaled and confined as any other, and goes on until the session
// ends, the server was idle, or its time is over. The call itself is an exchange of the kernel's:
// decided with server, tool and arguments in context.mcp, and recorded with the call that answered.
//
// # Contract
//
// Before each call the server lists its tools again. A tool whose definition isn't the accepted
// one isn't called: fault.Refused "tool_changed". Callers are shown the accepted definitions alone.
//
// Messages, lists, queues and time are bounded. A server that dies, hangs, floods, or sends what
// isn't the protocol is ended, and its callers are told so by name: server_died,
// server_protocol, timeout. What it asks its client for (sampling, roots, elicitation) is
// refused. Its resources and prompts are asked for as its tools are called (methods.go). Its
// standard error is the bounded output of its run.
//
// # What it does not protect against
//
// A server that lies: its answers, and hints such as readOnlyHint, are its own words. What it can
// do is what its cell lets it do, for every caller of the session alike.
package gateway

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/tool"
)

// Config says what to make a Gateway of.
type Config struct {
	Store *store.Store
	// Tools is the table of all other tools.
	Tools kernel.Tools
	// Workspaces are the folders that servers can see.
	Workspaces map[string]tool.Workspace
	// Fetch is the absolute path of palyra-fetch. Default: none, and no server is reached over HTTP.
	Fetch string
	// Version is told to servers.
	Version string
	// Idle is how long a server that isn't asked goes on. Default: 15 minutes.
	Idle time.Duration
}

// Start starts the run of a server's own call, for the caller of an exchange with it.
type Start func(ctx context.Context, a run.Attaching, input []byte) (runID string, err error)

// Wait returns when a run has ended, with its step.
type Wait func(ctx context.Context, runID string) (hub.StepResult, error)

// Gateway has the servers. It is safe for concurrent use.
type Gateway struct {
	cfg   Config
	start Start
	wait  Wait

	mu      sync.Mutex
	running map[place]*serving  // guarded by mu
	byID    map[string]*serving // guarded by mu; those whose own call may begin, or has
}

// place is where a server answers: a session has one of each.
type place struct{ session, server string }

var (
	_ kernel.Tools = (*Gateway)(nil)
	_ run.Servers  = (*Gateway)(nil)
)

// New returns a Gateway. It starts nothing before Begin.
func New(cfg Config) *Gateway {
	if cfg.Idle <= 0 {
		cfg.Idle = 15 * time.Minute
	}
	return &Gateway{cfg: cfg, running: map[place]*serving{}, byID: map[string]*serving{}}
}

// Begin says how runs are made. Call it once, before the first call.
func (g *Gateway) Begin(start Start, wait Wait) { g.start, g.wait = start, wait }

// callInput is the input of mcp.call, serveInput that of mcp.serve.
type callInput struct {
	Server    string          `json:"server"`
	Tool      string          `json:"tool"`
	Arguments json.RawMessage `json:"arguments,omitempty"`
}

type serveInput struct {
	Server string `json:"server"`
	ID     string `json:"id"` // of who waits for it
}

func decode(input []byte, v any) error {
	return canon.Decode(input, v, canon.Limits{Bytes: 1 << 20, Depth: maxDepth})
}

// Expand implements kernel.Tools.
func (g *Gateway) Expand(ctx context.Context, who policy.Entity, name string, input []byte) (*kernel.Expansion, error) {
	switch name {
	case hub.ToolMCPServe:
		var in serveInput
		if err := decode(input, &in); err != nil {
			return nil, err
		}
		row, err := g.row(ctx, in.Server)
		if err != nil {
			return nil, err
		}
		x, err := g.program(row)
		if err == nil {
			x.Streams = true
		}
		return x, err
	case hub.ToolMCPCall:
		var in callInput
		if err := decode(input, &in); err != nil {
			return nil, err
		}
		if in.Arguments == nil || string(in.Arguments) == "null" {
			in.Arguments = json.RawMessage("{}")
		}
		row, err := g.row(ctx, in.Server)
		if err != nil {
			return nil, err
		}
		t, err := accepted(row, in.Tool)
		if err == nil {
			err = checkParameters(in.Tool, in.Arguments)
		}
		if err != nil {
			return nil, err
		}
		x, err := g.program(row)
		if err != nil {
			return nil, err
		}
		if x.Stdin, err = canon.Marshal(kernel.Question{Server: in.Server, Tool: in.Tool, Pin: t.Pin, Arguments: in.Arguments}); err != nil {
			return nil, err
		}
		s, err := spec(row)
		if err != nil {
			return nil, err
		}
		x.Exchanges, x.StdinMost = true, int64(len(x.Stdin))
		x.Limits.Wall, x.Limits.Output = time.Minute, maxLine
		if s.TimeoutMS > 0 {
			x.Limits.Wall = time.Duration(s.TimeoutMS) * time.Millisecond
		}
		return x, nil
	}
	return g.cfg.Tools.Expand(ctx, who, name, input)
}

// program describes a server's program, for its own call and for those that it answers.
func (g *Gateway) program(row *store.Server) (*kernel.Expansion, error) {
	s, err := spec(row)
	if err != nil {
		return nil, err
	}
	x := &kernel.Expansion{Argv: s.Argv, Env: s.Env, Mounts: s.Mounts, EgressHosts: s.EgressHosts, EgressInspect: s.EgressInspect, EgressSecrets: s.EgressSecrets, TierFloor: tier.C,
		Limits: isolate.Limits{Wall: time.Hour, CPU: time.Hour, Memory: s.Memory, PIDs: s.PIDs, Output: 256 << 20}}
	if s.URL != "" {
		if x.Argv, err = g.remote(row.Name, &s); err != nil {
			return nil, err
		}
		x.LeaveOperands = true
	}
	if s.LifeMS > 0 {
		x.Limits.Wall = time.Duration(s.LifeMS) * time.Millisecond
	}
	if s.Network != policy.NetworkFresh {
		x.Network = s.Network
	}
	if s.Workspace != "" {
		w, ok := g.cfg.Workspaces[s.Workspace]
		if !ok {
			return nil, fault.New(fault.Usage, "not_found", fmt.Sprintf("start server %q", row.Name), errors.New("the operator declared no workspace of this name"))
		}
		x.Workspace, x.WorkspaceName, x.WorkspaceReadOnly, x.WorkspaceStaged = w.Path, s.Workspace, s.ReadOnly || w.ReadOnly && !w.Staged, w.Staged && !s.ReadOnly
	}
	return x, nil
}

// row returns a server.
func (g *Gateway) row(ctx context.Context, name string) (*store.Server, error) {
	return store.View(ctx, g.cfg.Store, func(tx *store.Tx) (*store.Server, error) { return tx.Server(name) })
}

// accepted returns a tool that may be called, or a method.
func accepted(row *store.Server, name string) (*hub.ServerTool, error) {
	op := fmt.Sprintf("find tool %.80q of server %q", name, row.Name)
	if row.AcceptedBy == "" {
		return nil, fault.New(fault.Usage, "server_not_accepted", op, errors.New("nobody has accepted its tools")).
			WithHint("an administrator looks at them and does: palyra mcp accept " + row.Name)
	}
	if m := methodOf(name); m != nil {
		return m, nil
	}
	list, err := toolsOf(row.Accepted)
	if err != nil {
		return nil, err
	}
	t := find(list, name)
	if t == nil {
		return nil, fault.New(fault.Usage, "not_found", op, errors.New("it's none of those that were accepted"))
	}
	return t, nil
}

// Attach implements run.Servers.
func (g *Gateway) Attach(ctx context.Context, a run.Attaching) (context.Context, *run.Attached, error) {
	switch a.Tool {
	case hub.ToolMCPServe:
		var in serveInput
		if err := decode(a.Input, &in); err != nil {
			return ctx, nil, err
		}
		g.mu.Lock()
		s := g.byID[in.ID]
		g.mu.Unlock()
		if s == nil || s.server != in.Server || s.user != a.Caller.User {
			return ctx, nil, fault.New(fault.Refused, "server_died", "start server", errors.New("nobody waits for this call")).
				WithHint("palyrad starts servers itself, for the first call of a tool: mcp.call")
		}
		ctx, err := s.claim(ctx)
		if err != nil {
			return ctx, nil, err
		}
		return ctx, &run.Attached{Stdin: s.in, Stdout: s, Observe: s.observe, Over: func(o *kernel.Outcome, err error) { s.fail(s.ended(o, err)) }}, nil
	case hub.ToolMCPCall:
		var in callInput
		if err := decode(a.Input, &in); err != nil {
			return ctx, nil, err
		}
		row, err := g.row(ctx, in.Server)
		if err != nil {
			return ctx, nil, err
		}
		if _, err := accepted(row, in.Tool); err != nil {
			return ctx, nil, err
		}
		s, err := g.up(ctx, a, in.Server)
		if err != nil {
			return ctx, nil, refused(err)
		}
		s.use(1, g.cfg.Idle)
		return ctx, &run.Attached{Exchange: exchanger{g, s}, Over: func(*kernel.Outcome, error) { s.use(-1, g.cfg.Idle) }}, nil
	}
	return ctx, nil, nil
}

// up returns the session's server, started if it isn't.
func (g *Gateway) up(ctx context.Context, a run.Attaching, server string) (*serving, error) {
	g.mu.Lock()
	at := place{a.Session, server}
	s := g.running[at]
	mine := s == nil || s.over()
	if mine {
		s = newServing(server, a.Session, a.Caller.User, rand.Text())
		g.running[at], g.byID[s.id] = s, s
	}
	s.waiters++
	g.mu.Unlock()
	defer g.leave(ctx, s)
	if !mine {
		select {
		case <-s.ready:
			return s, nil
		default:
		}
	}
	// The run gives its place away meanwhile, or those that wait for servers could leave none
	// for these.
	resume := a.Pause()
	defer resume()
	if mine {
		// The start is that of all who wait for it, and lasts while one does.
		go func() {
			if err := g.open(context.WithoutCancel(ctx), a, s); err != nil {
				s.fail(err)
			}
		}()
	}
	begun := s.begun
	for {
		select {
		case <-s.ready:
			return s, nil
		case <-s.gone:
			return nil, s.died()
		case <-ctx.Done():
			return nil, canceled(ctx, s)
		case <-begun:
			a.Starting(server, *s.run.Load())
			begun = nil
		}
	}
}

// leave ends a caller's wait for a server. One that isn't ready goes with the last of them.
func (g *Gateway) leave(ctx context.Context, s *serving) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if s.waiters--; s.waiters > 0 || ctx.Err() == nil {
		return
	}
	select {
	case <-s.ready:
	default:
		s.fail(canceled(ctx, s)) // held, so that no one begins to wait for it
	}
}

func canceled(ctx context.Context, s *serving) error {
	return fault.New(fault.Canceled, "canceled", fmt.Sprintf("start server %q", s.server), context.Cause(ctx))
}

// open starts a server and makes the connection.
func (g *Gateway) open(ctx context.Context, a run.Attaching, s *serving) error {
	input, err := canon.Marshal(serveInput{s.server, s.id})
	id := ""
	if err == nil {
		id, err = g.start(ctx, a, input)
	}
	if err != nil {
		g.forget(s)
		return err
	}
	s.run.Store(&id)
	close(s.begun)
	// It ends with the run.
	go func() {
		step, err := g.wait(context.Background(), id)
		g.forget(s)
		s.fail(s.notBegun(step, err))
	}()
	select {
	case <-s.attached:
	case <-s.gone:
		return s.died()
	}
	if err := s.begin(ctx, g.cfg.Version); err != nil {
		return err
	}
	s.use(0, g.cfg.Idle) // its caller may have gone
	return nil
}

func (g *Gateway) forget(s *serving) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.byID, s.id)
	if at := (place{s.session, s.server}); g.running[at] == s {
		delete(g.running, at)
	}
}

// End ends the servers of a session.
func (g *Gateway) End(session string) {
	g.end(func(s *serving) bool { return s.session == session }, "its session has ended")
}

// EndServer ends a server in every session.
func (g *Gateway) EndServer(name, why string) {
	g.end(func(s *serving) bool { return s.server == name }, why)
}

func (g *Gateway) end(which func(*serving) bool, why string) {
	g.mu.Lock()
	var chosen []*serving
	for _, s := range g.byID {
		if which(s) {
			chosen = append(chosen, s)
		}
	}
	g.mu.Unlock()
	for _, s := range chosen {
		s.mu.Lock()
		s.dismissLocked(s.fault(fault.Unavailable, "server_died", "%s", why))
		s.mu.Unlock()
	}
}

// List starts a server for a caller, and returns the tools that it lists.
func (g *Gateway) List(ctx context.Context, a run.Attaching, server string) ([]hub.ServerTool, error) {
	a.Session, a.Pause = "list "+rand.Text(), func() func() { return func() {} }
	a.Starting = func(string, string) {}
	defer g.End(a.Session)
	s, err := g.up(ctx, a, server)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tools, nil
}

// refused makes an error of a question that wasn't sent one of the kinds that say so.
func refused(err error) error {
	e := fault.New(fault.Refused, fault.ReasonOf(err), "ask server", err)
	if h := fault.HintOf(err); h != "" {
		return e.WithHint(h)
	}
	return e
}

// exchanger asks one server.
type exchanger struct {
	g *Gateway
	s *serving
}

var _ kernel.Exchanger = exchanger{}

// Exchange implements kernel.Exchanger.
func (x exchanger) Exchange(ctx context.Context, program canon.Digest, q kernel.Question, most int64) (answer []byte, failed bool, by evidence.Exchange, err error) {
	s := x.s
	s.mu.Lock()
	by.CallID, by.Intent = s.call, s.intent
	same := s.program == program
	s.mu.Unlock()
	if !same {
		err := fault.New(fault.Refused, "server_died", fmt.Sprintf("ask server %q", s.server), errors.New("its program or the settings of its cell aren't those with which it was started")).
			WithHint("make the call again: the server was ended, and starts as it is now")
		s.fail(err)
		return nil, false, by, err
	}
	// A person may have taken hours for the answer.
	row, err := x.g.row(ctx, q.Server)
	if err != nil {
		return nil, false, by, refused(err)
	}
	if t, err := accepted(row, q.Tool); err != nil {
		return nil, false, by, refused(err)
	} else if t.Pin != q.Pin {
		return nil, false, by, changed(s.server, q.Tool, fmt.Errorf("%s was accepted since, the call is of %s", t.Pin, q.Pin))
	}
	method, params := "tools/call", any(map[string]any{"name": q.Tool, "arguments": q.Arguments})
	if methodOf(q.Tool) != nil {
		method, params = q.Tool, q.Arguments
	} else if err := s.unchanged(ctx, q); err != nil {
		return nil, false, by, err
	}
	r, sent, err := s.request(ctx, method, params)
	switch {
	case err != nil && !sent:
		return nil, false, by, refused(err)
	case err != nil:
		return nil, false, by, err
	}
	s.heard()
	switch {
	case r.Error != nil:
		answer, failed = wrap("error", r.Error), true
	default:
		var result map[string]json.RawMessage // a struct would take "IsError", too
		if !isObject(r.Result) || json.Unmarshal(r.Result, &result) != nil {
			err := s.wrong("its result is no object of the protocol")
			s.fail(err)
			return nil, false, by, err
		}
		answer, failed = wrap("result", r.Result), string(result["isError"]) == "true"
	}
	if int64(len(answer)) > most {
		return nil, false, by, s.wrong("its answer has %d bytes, limit %d", len(answer), most)
	}
	return answer, failed, by, nil
}

// unchanged has the server list its tools, and says whether the one that is called is what was
// decided about.
func (s *serving) unchanged(ctx context.Context, q kernel.Question) error {
	list, err := s.list(ctx)
	if err != nil {
		return refused(err)
	}
	switch t := find(list, q.Tool); {
	case t == nil:
		return changed(s.server, q.Tool, errors.New("the server no longer lists it"))
	case t.Pin != q.Pin:
		return changed(s.server, q.Tool, fmt.Errorf("its definition is %s, %s was accepted", t.Pin, q.Pin))
	}
	return nil
}

func wrap(name string, b json.RawMessage) []byte {
	return []byte(`{"` + name + `":` + strings.TrimSpace(string(b)) + "}")
}

// use counts an exchange, and sets the time at which a server is idle.
func (s *serving) use(n int, idle time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.users += n
	if s.err != nil {
		return
	}
	switch {
	case s.users > 0 && s.idle != nil:
		s.idle.Stop()
	case s.users == 0 && s.idle == nil:
		s.idle = time.AfterFunc(idle, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if s.users == 0 {
				s.dismissLocked(s.fault(fault.Unavailable, "server_died", "it was ended because nobody asked it"))
			}
		})
	case s.users == 0:
		s.idle.Reset(idle)
	}
}

// ended says how a server's own call ended.
func (s *serving) ended(o *kernel.Outcome, err error) error {
	if o == nil {
		if err == nil {
			err = errors.New("its call has no outcome")
		}
		return s.fault(fault.Unavailable, "server_died", "it wasn't started: %w", err)
	}
	switch o.Outcome {
	case receipt.Denied, receipt.NotApproved, receipt.Refused:
		return s.fault(fault.Refused, o.Error.Reason, "its start: %s: %s", o.Outcome, o.Error.Text)
	}
	how := o.Outcome
	if o.Outcome == receipt.Executed {
		how = fmt.Sprintf("it ended with status %d", o.Exit)
	} else if o.Error != nil {
		how += ": " + o.Error.Text
	}
	return s.fault(fault.Unavailable, "server_died", "%s", how)
}

// notBegun says why a run has ended, where its call didn't.
func (s *serving) notBegun(step hub.StepResult, err error) error {
	if err == nil && step.Error != "" {
		err = errors.New(step.Error)
	}
	if err == nil {
		err = errors.New("its run has ended")
	}
	return s.fault(fault.Unavailable, "server_died", "%w", err)
}
