package local

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// badServer builds the server of hub/gateway/testdata.
var badServer = sync.OnceValues(func() (string, error) {
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "mcp-test-server")
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", path, "palyra/hub/gateway/testdata/server")
	cmd.Env, cmd.Stderr = append(os.Environ(), "CGO_ENABLED=0"), os.Stderr
	return path, cmd.Run()
})

// permitServers is a policy directory that lets operators start servers and call their tools.
func permitServers(t testing.TB) func(*Config, *kernel.Config) {
	dir := t.TempDir()
	err := os.WriteFile(dir+"/a.cedar", []byte(`@id("rest") permit (principal in Palyra::Role::"operator", action, resource) unless { resource == Palyra::Tool::"mcp.call" };
		@id("calls") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"mcp.call")
			unless { context.mcp.arguments.contains("secret=yes") };`), 0o644)
	if err == nil {
		err = os.Chmod(dir, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	return func(c *Config, k *kernel.Config) { c.PolicyDir, k.PolicyDir = dir, dir }
}

// serverHouse is a hub with the server "bad", accepted.
func serverHouse(t *testing.T) *house {
	h := newHouse(t, permitServers(t))
	h.addServer("bad", hub.ServerSpec{})
	h.accept("bad")
	return h
}

func (h *house) addServer(name string, s hub.ServerSpec) {
	h.t.Helper()
	program, err := badServer()
	if err != nil {
		h.t.Fatal(err)
	}
	s.Argv = append([]string{program}, s.Argv...)
	if _, err := hub.AddServer.Do(h.t.Context(), h, h.owner, hub.NewServer{Name: name, Spec: s}); err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) accept(name string) hub.Server {
	h.t.Helper()
	others := h.atWork()
	v, err := hub.InspectServer.Do(h.t.Context(), h, h.owner, name)
	if err != nil {
		h.t.Fatal(err)
	}
	for _, id := range h.atWork() {
		if !slices.Contains(others, id) {
			h.ended(h.owner, id) // the server that was looked at
		}
	}
	if v, err = hub.AcceptServer.Do(h.t.Context(), h, h.owner, hub.Acceptance{Name: name, AcceptanceBody: hub.AcceptanceBody{Digest: v.ListedDigest.String()}}); err != nil {
		h.t.Fatal(err)
	}
	return v
}

// ask calls a tool of a server, and returns the step.
func (h *house) ask(c hub.Caller, session, server, tool string, args obj) hub.StepResult {
	h.t.Helper()
	in, _ := json.Marshal(obj{"server": server, "tool": tool, "arguments": args})
	r, err := hub.Call.Do(h.t.Context(), h, c, hub.NewCall{Session: session, Tool: hub.ToolMCPCall, Input: in, Parallel: session != ""})
	if err != nil {
		h.t.Fatal(err)
	}
	return r.Steps[0]
}

// atWork returns the runs that are at work.
func (h *house) atWork() (ids []string) {
	h.t.Helper()
	p, err := hub.ListRuns.Do(h.t.Context(), h, h.owner, hub.RunQuery{States: []string{hub.RunInProgress}})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range p.Items {
		ids = append(ids, r.ID)
	}
	return ids
}

func (h *house) statement(index uint64) receipt.Statement {
	h.t.Helper()
	b, err := hub.GetReceipt.Do(h.t.Context(), h, h.owner, index)
	if err != nil {
		h.t.Fatal(err)
	}
	v, err := receipt.Verify(b, h.k.Trust())
	if err != nil {
		h.t.Fatal(err)
	}
	return v.Statement
}

// TestServers: a server is added, listed, accepted and called; each call is decided by its
// arguments and leaves a receipt that names the server's own call; a session has its own server.
func TestServers(t *testing.T) {
	h := serverHouse(t)
	ctx := t.Context()
	session := h.session(h.owner)
	st := h.ask(h.owner, session, "bad", "echo", obj{"path": "a", "n": 1})
	if st.Outcome != receipt.Executed || st.Exit != 0 || st.Stdout.Text != `{"result":{"content":[{"text":"{\"n\":1,\"path\":\"a\"}","type":"text"}],"isError":false}}` {
		t.Fatalf("%+v", st)
	}
	v := h.statement(*st.LogIndex)
	var e evidence.Evidence
	if err := json.Unmarshal(v.Predicate.Evidence, &e); err != nil || e.Exchange.Server != "bad" || e.Exchange.Tool != "echo" {
		t.Fatalf("%v, %+v", err, e.Exchange)
	}
	own := h.statement(e.Exchange.Intent)
	if p := own.Predicate; !own.IsIntent() || p.CallID != e.Exchange.CallID || p.Tool != hub.ToolMCPServe || p.Capsule.Executable != v.Predicate.Capsule.Executable {
		t.Errorf("the server's own call: %+v", p)
	}
	if q := v.Predicate.Question; q == nil || q.MCP == nil || strings.Join(q.MCP.Arguments, " ") != "n=1 path=a" {
		t.Errorf("%+v", q)
	}
	// One server for a session, another for the next one.
	if st := h.ask(h.owner, session, "bad", "count", nil); !strings.Contains(st.Stdout.Text, `"text":"2"`) {
		t.Errorf("in the same session: %s", st.Stdout.Text)
	}
	other := h.session(h.owner)
	if st := h.ask(h.owner, other, "bad", "count", nil); !strings.Contains(st.Stdout.Text, `"text":"1"`) {
		t.Errorf("in another session: %s", st.Stdout.Text)
	}
	if st := h.ask(h.owner, "", "bad", "count", nil); !strings.Contains(st.Stdout.Text, `"text":"1"`) {
		t.Errorf("in a session of its own: %s", st.Stdout.Text)
	}
	if st := h.ask(h.owner, session, "bad", "echo", obj{"secret": "yes"}); st.Outcome != receipt.Denied {
		t.Errorf("a forbidden argument: %+v", st)
	}
	for tool, want := range map[string]string{"fail": `"isError":true`, "sly": `"isError":true`, "error": `{"error":{"code":-32602`, "notify": "notified", "sampling": "sampling is refused", "roots": "roots is refused", "elicitation": "elicitation is refused"} {
		if st := h.ask(h.owner, session, "bad", tool, nil); !strings.Contains(st.Stdout.Text, want) || (st.Exit != 0) != (tool == "fail" || tool == "sly" || tool == "error") {
			t.Errorf("%s: %+v", tool, st)
		}
	}
	// The end of a session ends its server.
	servers := h.atWork()
	for len(servers) > 2 { // that of the session of its own ends with it
		servers = h.atWork()
	}
	if len(servers) != 2 {
		t.Errorf("%d servers, want those of two sessions", len(servers))
	}
	for _, id := range []string{session, other} {
		if _, err := hub.EndSession.Do(ctx, h, h.owner, hub.SessionChange{ID: id}); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range servers {
		h.ended(h.owner, id)
	}
	for _, c := range []struct{ server, tool, says string }{{"none", "echo", `look up server: "none"`}, {"bad", "none", "none of those that were accepted"}} {
		if st := h.ask(h.owner, "", c.server, c.tool, nil); st.Reason != "not_found" || !strings.Contains(st.Error, c.says) {
			t.Errorf("%+v: %+v", c, st)
		}
	}
	// Its own call is no tool for others.
	if st := h.call(h.owner, step(hub.ToolMCPServe, obj{"server": "bad", "id": "guess"})).Steps[0]; st.Reason != "server_died" || !strings.Contains(st.Error, "nobody waits for this call") {
		t.Errorf("%+v", st)
	}
	// Only who manages policy adds one.
	op := h.member(2001, access.Operator)
	if _, err := hub.AddServer.Do(ctx, h, op, hub.NewServer{Name: "x", Spec: hub.ServerSpec{Argv: []string{"/bin/cat"}}}); fault.KindOf(err) != fault.Denied {
		t.Errorf("an operator adds a server: %v", err)
	}
	if p, err := hub.ListServerTools.Do(ctx, h, op, "bad"); err != nil || len(p.Items) != 18 || string(p.Items[0].Definition) != `{"annotations":{"readOnlyHint":true},"description":"Gives its arguments back.","inputSchema":{"type":"object"},"name":"echo"}` {
		t.Errorf("%v, %d tools", err, len(p.Items))
	}
	if st := h.ask(op, "", "bad", "echo", nil); st.Outcome != receipt.Executed {
		t.Errorf("an operator's call: %+v", st)
	}
	if _, err := hub.RemoveServer.Do(ctx, h, h.owner, "bad"); err != nil {
		t.Fatal(err)
	}
	if st := h.ask(h.owner, "", "bad", "echo", nil); st.Reason != "not_found" {
		t.Errorf("removed: %+v", st)
	}
	if acts := strings.Join(h.acts("server."), ", "); acts != "server.add bad, server.accept bad, server.remove bad" {
		t.Errorf("acts: %s", acts)
	}
}

// TestBadServers: each thing that a server does wrong is an error with a name of its own, ends the
// server where it must, and the next call starts another one.
func TestBadServers(t *testing.T) {
	h := serverHouse(t)
	h.addServer("slow", hub.ServerSpec{TimeoutMS: 1500})
	h.accept("slow")
	session := h.session(h.owner)
	for _, c := range []struct{ server, tool, outcome, reason, says string }{
		{"bad", "die", receipt.OutcomeUnknown, "server_died", ""},
		{"bad", "flood", receipt.OutcomeUnknown, "server_protocol", "that answer nothing"},
		{"bad", "long", receipt.OutcomeUnknown, "server_protocol", ""},
		{"bad", "wrongid", receipt.OutcomeUnknown, "server_protocol", ""},
		{"bad", "garbage", receipt.OutcomeUnknown, "server_protocol", ""},
		{"slow", "hang", receipt.TimedOut, "timeout", "it didn't answer"},
	} {
		if st := h.ask(h.owner, session, c.server, c.tool, nil); st.Outcome != c.outcome || st.Reason != c.reason || st.Error == "" || !strings.Contains(st.Error, c.says) {
			t.Errorf("%s: %s, %s: %s (%s)", c.tool, st.Outcome, st.Reason, st.Error, st.Hint)
		}
		if st := h.ask(h.owner, session, c.server, "count", nil); !strings.Contains(st.Stdout.Text, `"text":"1"`) {
			t.Errorf("after %s: %+v", c.tool, st)
		}
	}
	// A second answer to one question ends the server, at the latest before the next question.
	h.ask(h.owner, session, "bad", "twice", nil)
	if st := h.ask(h.owner, session, "bad", "count", nil); st.Reason != "server_protocol" && !strings.Contains(st.Stdout.Text, `"text":"1"`) {
		t.Errorf("after two answers: %+v", st)
	}
	// What it lists now isn't what was accepted.
	for _, c := range []struct{ does, tool string }{{"change", "echo"}, {"vanish", "vanish"}} {
		session := h.session(h.owner)
		if st := h.ask(h.owner, session, "bad", c.does, nil); st.Outcome != receipt.Executed {
			t.Fatalf("%+v", st)
		}
		if st := h.ask(h.owner, session, "bad", c.tool, nil); st.Outcome != receipt.Refused || st.Reason != "tool_changed" || !strings.Contains(st.Hint, "palyra mcp accept bad") {
			t.Errorf("after %s: %+v", c.does, st)
		}
		if st := h.ask(h.owner, session, "bad", "notify", nil); st.Outcome != receipt.Executed {
			t.Errorf("a tool that is the same: %+v", st)
		}
	}
	// A caller who gives up is told that nothing is known, and the server goes on.
	ctx, cancel := context.WithCancel(t.Context())
	in := []byte(`{"server":"bad","tool":"hang","arguments":{}}`)
	done := make(chan hub.Run)
	session = h.session(h.owner)
	r, err := hub.StartRun.Do(ctx, h, h.owner, hub.NewRun{Session: session, Steps: []hub.Step{{Tool: hub.ToolMCPCall, Input: in}}, Parallel: true})
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- h.ended(h.owner, r.ID) }()
	h.until(h.owner, r.ID, hub.EventStepDecided)
	if _, err := hub.CancelRun.Do(t.Context(), h, h.owner, r.ID); err != nil {
		t.Fatal(err)
	}
	cancel()
	if st := (<-done).Steps[0]; st.Reason != "canceled" || st.Outcome != receipt.OutcomeUnknown && st.Outcome != receipt.Refused {
		t.Errorf("cancelled: %+v", st)
	}
	if st := h.ask(h.owner, session, "bad", "echo", nil); st.Outcome != receipt.Executed {
		t.Errorf("after a cancelled call: %+v", st)
	}
}

// TestBadStarts: a server that can't be listened to is no server, and says why.
func TestBadStarts(t *testing.T) {
	h := newHouse(t, permitServers(t))
	ctx := t.Context()
	for mode, want := range map[string]struct{ reason, text string }{
		"old": {"server_protocol", "none of the versions"}, "escape": {"server_protocol", "U+001B"}, "bidi": {"server_protocol", "U+202E"}, "name": {"server_protocol", `"x\x1b[2J"`},
		"double": {"server_protocol", "listed twice"}, "huge": {"server_protocol", "limit 65536"},
	} {
		h.addServer(mode, hub.ServerSpec{Argv: []string{mode}})
		if _, err := hub.InspectServer.Do(ctx, h, h.owner, mode); fault.ReasonOf(err) != want.reason || !strings.Contains(err.Error(), want.text) {
			t.Errorf("%s: %v", mode, err)
		}
		if st := h.ask(h.owner, "", mode, "echo", nil); st.Reason != "server_not_accepted" {
			t.Errorf("%s: %+v", mode, st)
		}
		if _, err := hub.AcceptServer.Do(ctx, h, h.owner, hub.Acceptance{Name: mode, AcceptanceBody: hub.AcceptanceBody{Digest: canon.Sum(nil).String()}}); fault.ReasonOf(err) != "tool_changed" {
			t.Errorf("%s accepted: %v", mode, err)
		}
	}
	if _, err := hub.AddServer.Do(ctx, h, h.owner, hub.NewServer{Name: "cat", Spec: hub.ServerSpec{Argv: []string{"/bin/false"}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.InspectServer.Do(ctx, h, h.owner, "cat"); fault.ReasonOf(err) != "server_died" || !strings.Contains(err.Error(), "status 1") {
		t.Errorf("/bin/false: %v", err)
	}
	for _, n := range []hub.NewServer{{Name: "A"}, {Name: "-a", Spec: hub.ServerSpec{Argv: []string{"x"}}}, {Name: "a"}, {Name: "a", Spec: hub.ServerSpec{Argv: []string{"./x"}}},
		{Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, Env: []string{"=x"}}}, {Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, Workspace: "none"}},
		{Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, Mounts: []string{"rel"}}}, {Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, Network: "host"}},
		{Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, EgressHosts: []string{"*"}}}, {Name: "a", Spec: hub.ServerSpec{Argv: []string{"x"}, EgressHosts: []string{"a.example"}, Network: "fresh"}}} {
		if _, err := hub.AddServer.Do(ctx, h, h.owner, n); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v", n, err)
		}
	}
	if _, err := hub.AddServer.Do(ctx, h, h.owner, hub.NewServer{Name: "cat", Spec: hub.ServerSpec{Argv: []string{"/bin/true"}}}); fault.KindOf(err) != fault.Busy {
		t.Errorf("twice: %v", err)
	}
}

// TestServerAsks: under the built-in policies a person is asked about the start and about each
// call, and a no to either runs nothing.
func TestServerAsks(t *testing.T) {
	created := make(chan struct{}, 16)
	h := newHouse(t, func(c *Config, _ *kernel.Config) {
		c.AllowSelf = true
		c.TestOnlyStep = func(name string) {
			if name == "run:created" {
				created <- struct{}{}
			}
		}
	})
	h.addServer("bad", hub.ServerSpec{})
	// begin waits for n new runs, and returns them, the newest first.
	begin := func(n int) []hub.Run {
		t.Helper()
		for range n {
			<-created
		}
		p, err := hub.ListRuns.Do(t.Context(), h, h.owner, hub.RunQuery{PageQuery: hub.PageQuery{Limit: n}})
		if err != nil || len(p.Items) != n {
			t.Fatal(err)
		}
		return p.Items
	}
	begun := func() string { return begin(1)[0].ID }
	say := func(run string, yes bool) hub.Approval {
		t.Helper()
		h.until(h.owner, run, hub.EventApprovalRequested)
		a := h.question(h.owner)
		if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: a.ID, Version: a.Version, Answer: hub.Answer{Approve: yes}}); err != nil {
			t.Fatal(err)
		}
		return a
	}
	inspected := make(chan error, 1)
	go func() {
		_, err := hub.InspectServer.Do(t.Context(), h, h.owner, "bad")
		inspected <- err
	}()
	say(begun(), false)
	if err := <-inspected; fault.ReasonOf(err) != "denied" && fault.ReasonOf(err) != "not_approved" {
		t.Fatalf("a no to the start: %v", err)
	}
	go func() {
		_, err := hub.InspectServer.Do(t.Context(), h, h.owner, "bad")
		inspected <- err
	}()
	say(begun(), true)
	if err := <-inspected; err != nil {
		t.Fatal(err)
	}
	v, err := hub.GetServer.Do(t.Context(), h, h.owner, "bad")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hub.AcceptServer.Do(t.Context(), h, h.owner, hub.Acceptance{Name: "bad", AcceptanceBody: hub.AcceptanceBody{Digest: v.ListedDigest.String()}}); err != nil {
		t.Fatal(err)
	}
	session := h.session(h.owner)
	steps := make(chan hub.StepResult, 1)
	go func() { steps <- h.ask(h.owner, session, "bad", "echo", obj{"path": "a"}) }()
	both := begin(2) // the call starts the server at once
	start, call := both[0].ID, both[1].ID
	if e := h.until(h.owner, call, hub.EventServerStarting); !strings.Contains(string(e.Data), `"server":"bad"`) || !strings.Contains(string(e.Data), start) {
		t.Errorf("the call waits for %s: %s", start, e.Data)
	}
	say(start, true)
	a := say(call, true)
	if m := a.Card.MCP; m == nil || m.Server != "bad" || m.Tool != "echo" || strings.Join(m.Arguments, "") != "path=a" || !strings.Contains(a.Text, "path=a") {
		t.Errorf("the card: %+v", m)
	}
	if st := <-steps; st.Outcome != receipt.Executed {
		t.Errorf("%+v", st)
	}
	go func() { steps <- h.ask(h.owner, session, "bad", "count", nil) }()
	say(begun(), false)
	if st := <-steps; st.Outcome != receipt.NotApproved {
		t.Errorf("%+v", st)
	}
	go func() { steps <- h.ask(h.owner, session, "bad", "count", nil) }()
	say(begun(), true)
	if st := <-steps; !strings.Contains(st.Stdout.Text, `"text":"2"`) {
		t.Errorf("the refused call reached the server: %s", st.Stdout.Text)
	}
}

// TestServerAcceptedSince: a call that was approved under an old list of tools isn't made under a
// new one, though the server still lists the old.
func TestServerAcceptedSince(t *testing.T) {
	h := newHouse(t, func(c *Config, _ *kernel.Config) { c.AllowSelf = true })
	h.addServer("bad", hub.ServerSpec{})
	yes := func(run string) {
		t.Helper()
		h.until(h.owner, run, hub.EventApprovalRequested)
		a := h.question(h.owner)
		if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: a.ID, Version: a.Version, Answer: hub.Answer{Approve: true}}); err != nil {
			t.Fatal(err)
		}
	}
	accept := func(change func(definition []byte) []byte) {
		t.Helper()
		if err := h.st.Update(t.Context(), func(tx *store.Tx) error {
			row, err := tx.Server("bad")
			if err != nil {
				return err
			}
			tool := change([]byte(`{"description":"Gives its arguments back.","inputSchema":{"type":"object"},"annotations":{"readOnlyHint":true},"name":"echo"}`))
			if tool, err = canon.Canonical(tool); err != nil {
				return err
			}
			row.Accepted, err = json.Marshal([]hub.ServerTool{{Name: "echo", Pin: canon.Sum(tool), Definition: tool}})
			row.Listed, row.AcceptedBy, row.AcceptedAt = row.Accepted, "uid:0", row.Added
			if err != nil {
				return err
			}
			return tx.UpdateServer(row, h.owner.User)
		}); err != nil {
			t.Fatal(err)
		}
	}
	same := func(b []byte) []byte { return b }
	accept(same)
	session := h.session(h.owner)
	start := func() string {
		t.Helper()
		r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: session, Parallel: true,
			Steps: []hub.Step{{Tool: hub.ToolMCPCall, Input: []byte(`{"server":"bad","tool":"echo","arguments":{}}`)}}})
		if err != nil {
			t.Fatal(err)
		}
		return r.ID
	}
	first := start()
	var server string
	for server == "" { // its start is a run of its own
		for _, id := range h.unended() {
			if id != first {
				server = id
			}
		}
	}
	yes(server)
	yes(first)
	if st := h.ended(h.owner, first).Steps[0]; st.Outcome != receipt.Executed {
		t.Fatalf("%+v", st)
	}
	second := start()
	h.until(h.owner, second, hub.EventApprovalRequested)
	accept(func(b []byte) []byte { return bytes.Replace(b, []byte("back"), []byte("away"), 1) })
	yes(second)
	if st := h.ended(h.owner, second).Steps[0]; st.Outcome != receipt.Refused || st.Reason != "tool_changed" {
		t.Errorf("%+v", st)
	}
}

// unended returns the runs that haven't ended.
func (h *house) unended() (ids []string) {
	h.t.Helper()
	p, err := hub.ListRuns.Do(h.t.Context(), h, h.owner, hub.RunQuery{States: []string{hub.RunInProgress, hub.RunWaitingApproval}})
	if err != nil {
		h.t.Fatal(err)
	}
	for _, r := range p.Items {
		ids = append(ids, r.ID)
	}
	return ids
}

// TestServersTakeNoTurn: servers that run leave the places of runs to the calls that ask them, and
// have places that are counted. palyrad's end waits for none of them, nor for their callers' sessions.
func TestServersTakeNoTurn(t *testing.T) {
	rules := permitServers(t)
	h := newHouse(t, func(c *Config, k *kernel.Config) {
		rules(c, k)
		c.Bounds.Active, c.Bounds.Share = 2, 2
		c.Background.Places = run.NewBackground(3, 3)
	})
	h.addServer("bad", hub.ServerSpec{})
	h.accept("bad")
	op := h.member(2001, access.Operator)
	var sessions []string
	for range 3 {
		s := h.session(op)
		sessions = append(sessions, s)
		if st := h.ask(op, s, "bad", "count", nil); st.Outcome != receipt.Executed {
			t.Fatalf("%+v", st)
		}
	}
	for _, s := range sessions {
		if st := h.ask(op, s, "bad", "count", nil); !strings.Contains(st.Stdout.Text, `"text":"2"`) {
			t.Errorf("%+v", st)
		}
	}
	if st := h.ask(op, h.session(op), "bad", "count", nil); st.Reason != "budget" || st.Hint == "" {
		t.Errorf("a fourth server: %+v", st)
	}
	servers := h.atWork()
	if len(servers) != 3 {
		t.Fatalf("%d servers", len(servers))
	}
	if err := h.Close(t.Context()); err != nil { // it has all the time in the world
		t.Fatal(err)
	}
	for _, id := range servers {
		r := h.read(h.owner, id)
		if s := r.Steps[0]; r.Reason != "interrupted" || s.Outcome != receipt.Killed || s.LogIndex == nil || h.verify(s) == nil {
			t.Errorf("%+v", r)
		}
	}
}

// TestServersLoseRights: a server ends when policies give its caller no right to begin runs.
func TestServersLoseRights(t *testing.T) {
	h := serverHouse(t)
	op := h.member(2001, access.Operator)
	if st := h.ask(op, h.session(op), "bad", "echo", nil); st.Outcome != receipt.Executed {
		t.Fatalf("%+v", st)
	}
	servers := h.atWork()
	for file, text := range map[string]string{
		"none.cedar": `@id("none") forbid (principal == Palyra::User::"uid:2001", action == Palyra::Action::"permission.use", resource == Palyra::Permission::"run.start");`,
		"none.test.json": `{"version":1,"tests":[{"name":"shows it","request":{"principal":{"type":"Palyra::User","id":"uid:2001","roles":["operator"]},
			"action":"permission.use","resource":{"type":"Palyra::Permission","id":"run.start"},"context":{}},"effect":"deny","policies":["none"]}]}`,
	} {
		if err := os.WriteFile(filepath.Join(h.cfg.PolicyDir, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	if len(servers) != 1 {
		t.Fatalf("%d servers", len(servers))
	}
	for _, id := range servers {
		h.ended(h.owner, id)
	}
}

// TestServersEndThoughCallerLeaves: who ends a session and doesn't wait for its runs ends its servers,
// too.
func TestServersEndThoughCallerLeaves(t *testing.T) {
	rules := permitServers(t)
	called, goOn := make(chan struct{}), make(chan struct{})
	var slow atomic.Bool
	h := newHouse(t, func(c *Config, k *kernel.Config) {
		rules(c, k)
		c.TestOnlyStep = func(name string) {
			if name == "run:called" && slow.CompareAndSwap(true, false) {
				close(called)
				<-goOn
			}
		}
	})
	h.addServer("bad", hub.ServerSpec{})
	h.accept("bad")
	session := h.session(h.owner)
	if st := h.ask(h.owner, session, "bad", "echo", nil); st.Outcome != receipt.Executed {
		t.Fatalf("%+v", st)
	}
	server := h.atWork()[0]
	slow.Store(true)
	r, err := hub.StartRun.Do(t.Context(), h, h.owner, hub.NewRun{Session: session, Parallel: true,
		Steps: []hub.Step{{Tool: hub.ToolMCPCall, Input: []byte(`{"server":"bad","tool":"echo","arguments":{}}`)}}})
	if err != nil {
		t.Fatal(err)
	}
	<-called
	ctx, leave := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		_, err := hub.EndSession.Do(ctx, h, h.owner, hub.SessionChange{ID: session})
		ended <- err
	}()
	for s, err := hub.GetSession.Do(t.Context(), h, h.owner, session); s.State != hub.SessionEnded; s, err = hub.GetSession.Do(t.Context(), h, h.owner, session) {
		if err != nil {
			t.Fatal(err)
		}
	}
	leave()
	if err := <-ended; fault.KindOf(err) != fault.Canceled {
		t.Errorf("the end of a session with a run: %v", err)
	}
	h.ended(h.owner, server)
	close(goOn)
	h.ended(h.owner, r.ID)
}
