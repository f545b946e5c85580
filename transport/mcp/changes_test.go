package mcp

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/transport/api/apitest"
)

// offers has the daemon list tools of servers, "NAME__TOOL", each with this description.
func (d *daemon) offers(revision, description string, names ...string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.revision, d.merged = revision, nil
	for _, name := range names {
		server, tool, _ := strings.Cut(name, "__")
		b, err := canon.Marshal(map[string]any{"name": tool, "description": description, "inputSchema": map[string]any{"type": "object"}})
		if err != nil {
			panic(err)
		}
		d.merged = append(d.merged, hub.Tool{Name: name, Server: server, Definition: b, InputSchema: json.RawMessage(`{"type":"object"}`)})
	}
}

// theirs is the daemon's list without its own tools, or the answer that it's the same.
func (d *daemon) theirs(q hub.ToolQuery) (l hub.ToolList, same bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	l = hub.ToolList{Items: []hub.Tool{}, Revision: d.revision}
	if q.Known == l.Revision && l.Revision != "" {
		return l, true
	}
	l.Items = append(l.Items, d.merged...)
	return l, false
}

// listed asks for the tools, and returns the names of servers'.
func (c *client) listed() (names []string) {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":"list","method":"tools/list"}`)
	for _, tool := range c.next().Result.Tools {
		if name := tool["name"].(string); strings.Contains(name, "__") {
			names = append(names, name)
		}
	}
	return names
}

// TestMerged: tools of servers stand beside palyrad's, a call of one is a call of mcp.call in a
// session that all of them share, and its answer is the server's.
func TestMerged(t *testing.T) {
	d := newDaemon()
	d.offers("1", "Reads.", "files__read", "files__a__b", "other__read")
	d.outcome = func(st *hub.StepResult) {
		if st.Tool == hub.ToolMCPCall {
			st.Stdout.Text = `{"result":{"content":[{"type":"text","text":"its own"}],"structuredContent":{"n":1}}}`
			st.Stdout.Size = int64(len(st.Stdout.Text))
		}
	}
	c := connect(t, Config{Hub: d, Workspace: "src"}).ready()
	if got := strings.Join(c.listed(), " "); got != "files__read files__a__b other__read" {
		t.Errorf("listed %s", got)
	}
	for i, call := range []struct{ name, server, tool string }{{"files__read", "files", "read"}, {"files__a__b", "files", "a__b"}, {"other__read", "other", "read"}} {
		c.tool(i, call.name, `{"path":"x"}`, "")
		m := c.next()
		if m.Error != nil || m.Result.IsError || len(m.Result.Content) != 1 || m.Result.Content[0].Text != "its own" {
			t.Errorf("%s: %+v", call.name, m)
		}
		got := d.called()[i]
		if want := fmt.Sprintf(`{"arguments":{"path":"x"},"server":%q,"tool":%q}`, call.server, call.tool); got.Tool != hub.ToolMCPCall || string(got.Input) != want || !got.Parallel || got.Session != d.called()[0].Session {
			t.Errorf("%s became %s %s in %s", call.name, got.Tool, got.Input, got.Session)
		}
	}
	// palyrad's own have sessions of their own.
	c.tool(5, "exec", `{"command":"true"}`, "")
	if m := c.next(); m.Result.Structured.Outcome != "executed" || d.called()[3].Session == d.called()[0].Session || d.called()[3].Parallel {
		t.Errorf("%+v, %+v", m, d.called()[3])
	}
	for i, name := range []string{"read", "files__none", "none__read", "mcp_call", "files__"} {
		c.tool(10+i, name, "{}", "")
		if m := c.next(); m.Error == nil || m.Error.Code != -32602 {
			t.Errorf("%s: %+v", name, m)
		}
	}
	if n := len(d.called()); n != 4 {
		t.Errorf("%d calls", n)
	}
	// Models' interfaces call palyrad's own names.
	for _, format := range []string{FormatOpenAI, FormatAnthropic, FormatMCP} {
		if b, err := Export(t.Context(), d, format); err != nil || strings.Contains(string(b), "files__read") != (format == FormatMCP) {
			t.Errorf("%s: %v, %s", format, err, b)
		}
	}
	c.hangUp()
	if len(d.sessions) != 0 {
		t.Errorf("sessions %v are left", d.sessions)
	}
}

// TestMergedPending: a call of a server's tool that waits says so in text, and call_wait fetches it.
func TestMergedPending(t *testing.T) {
	d := newDaemon()
	d.offers("1", "Reads.", "files__read")
	d.outcome = func(st *hub.StepResult) {
		st.Stdout.Text = `{"result":{"content":[{"type":"text","text":"late"}]}}`
		st.Stdout.Size = int64(len(st.Stdout.Text))
	}
	c := connect(t, Config{Hub: d, Patience: time.Millisecond}).ready()
	c.tool(1, "files__read", `{"a":"hold"}`, "")
	m := c.next()
	if !m.Result.IsError || m.Result.Structured.Outcome != "" || !strings.HasPrefix(m.Result.Content[0].Text, "pending") {
		t.Fatalf("%+v", m)
	}
	_, wait, _ := strings.Cut(m.Result.Content[0].Text, "wait ")
	wait, _, _ = strings.Cut(wait, "\n")
	close(d.free)
	for i := 2; ; i++ {
		c.tool(i, "call_wait", fmt.Sprintf(`{"id":%q}`, wait), "")
		if m = c.next(); !strings.HasPrefix(m.Result.Content[0].Text, "pending") {
			break
		}
	}
	if m.Result.IsError || m.Result.Content[0].Text != "late" || len(d.called()) != 1 {
		t.Errorf("%+v, %d calls", m, len(d.called()))
	}
}

// TestListChanged: a client is told once that servers have come, gone or changed, not that nothing
// did, and a tool that was refused as changed is gone until there is another list.
func TestListChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.offers("1", "Reads.", "files__read")
		c := connect(t, Config{Hub: d}).ready()
		defer c.hangUp()
		told := func() {
			t.Helper()
			if m := c.next(); m.Method != "notifications/tools/list_changed" {
				t.Fatalf("%+v", m)
			}
		}
		if got := c.listed(); len(got) != 1 {
			t.Fatalf("%q", got)
		}
		// A flood of revisions with the same tools.
		for i := range 100 {
			d.offers(fmt.Sprint("flood ", i), "Reads.", "files__read")
			<-time.After(lookForTools)
		}
		d.offers("2", "Reads.", "files__read", "more__write")
		told()
		if got := strings.Join(c.listed(), " "); got != "files__read more__write" {
			t.Errorf("a server has come: %s", got)
		}
		d.offers("3", "Reads it.", "files__read", "more__write")
		told()
		d.offers("4", "Reads it.", "files__read")
		told()
		if got := strings.Join(c.listed(), " "); got != "files__read" {
			t.Errorf("a server has gone: %s", got)
		}
		d.outcome = func(st *hub.StepResult) {
			st.Outcome, st.Reason, st.Denial = "refused", "tool_changed", &hub.Denial{Layer: hub.LayerIsolation, Reason: "tool_changed"}
		}
		c.tool(1, "files__read", "{}", "")
		m := c.next()
		if m.Method == "notifications/tools/list_changed" {
			m = c.next()
		} else {
			defer told()
		}
		if !m.Result.IsError || !strings.Contains(m.Result.Content[0].Text, "tool_changed") {
			t.Errorf("%+v", m)
		}
	})
	// Apart, since both orders of the notification are right.
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t.Context(), Config{Hub: newDaemon()})
		defer s.close()
		d := s.cfg.Hub.(*daemon)
		d.offers("1", "Reads.", "files__read")
		at, err := s.known(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.drop(at.theirs["files__read"])
		has := func(want bool, when string) {
			t.Helper()
			now, err := s.refresh(t.Context())
			if _, ok := now.theirs["files__read"]; err != nil || ok != want {
				t.Errorf("%s: %v, %v", when, ok, err)
			}
		}
		has(false, "asked again")
		d.offers("2", "Reads.", "files__read")
		has(true, "another list")
	})
}

// TestListChangedSessionless: from version 2026-07-28 on, a client that listens is told.
func TestListChangedSessionless(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := newDaemon()
		d.offers("1", "Reads.", "files__read")
		c := connect(t, Config{Hub: d})
		defer c.hangUp()
		meta := `"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
		c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{` + meta + `}}`)
		if m := c.next(); m.Error != nil {
			t.Fatalf("%+v", m)
		}
		c.send(`{"jsonrpc":"2.0","id":2,"method":"subscriptions/listen","params":{"notifications":{"toolsListChanged":true},` + meta + `}}`)
		if m := c.next(); m.Method != "notifications/subscriptions/acknowledged" {
			t.Fatalf("%+v", m)
		}
		d.offers("2", "Reads.", "files__write")
		if m := c.next(); m.Method != "notifications/tools/list_changed" {
			t.Errorf("%+v", m)
		}
	})
}

// TestServerStarting: a call that waits for a server to start is told what its start waits for, with
// the id of the question, until the server has started.
func TestServerStarting(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d}).ready()
	start, err := hub.StartRun.Do(t.Context(), d, hub.Caller{}, hub.NewRun{Steps: []hub.Step{{Tool: apitest.ToolWait, Input: []byte("{}")}}})
	if err != nil {
		t.Fatal(err)
	}
	c.tool(1, "test_wait", `{}`, `,"_meta":{"progressToken":"p"}`)
	run := ""
	for run == "" || run == start.ID {
		run = d.running(t)
	}
	a := d.Ask(start.ID)
	said := func(want string) {
		t.Helper()
		if m := c.next(); m.Method != "notifications/progress" || !strings.Contains(string(m.Params), want) {
			t.Fatalf("%s %s, want %s", m.Method, m.Params, want)
		}
	}
	d.Emit(run, hub.EventServerStarting, hub.ServerStarting{Server: "files", Run: start.ID})
	said(`server \"files\", which starts as ` + start.ID)
	d.Emit(start.ID, hub.EventApprovalRequested, a)
	said("start waits for a person's answer (palyra approvals show " + a.ID + ", then approve or deny)")
	d.Emit(start.ID, hub.EventApprovalResolved, hub.ApprovalResolved{})
	said("start a person has answered")
	d.Emit(run, hub.EventStepDecided, hub.StepDecided{})
	said("is under way")
	own := d.Ask(run)
	d.Emit(run, hub.EventApprovalRequested, own)
	said("waits for a person's answer (palyra approvals show " + own.ID)
	d.Finish(run)
	if m := c.next(); m.Result.Structured.Outcome != "executed" {
		t.Errorf("%+v", m)
	}
}
