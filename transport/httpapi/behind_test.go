package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api/apitest"
	"palyra/transport/behind"
	"palyra/transport/mcp"
)

// agent is a client of /mcp.
type agent struct {
	*rig
	web    bool
	query  string
	header map[string]string
	id     int
}

// reply is what a message was answered with.
type reply struct {
	status int
	header http.Header
	media  string
	text   string    // the body
	all    []message // of a body with messages
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Error  *struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Result struct {
		ProtocolVersion   string   `json:"protocolVersion"`
		SupportedVersions []string `json:"supportedVersions"`
		Tools             []struct {
			Name string `json:"name"`
		} `json:"tools"`
		IsError    bool       `json:"isError"`
		Structured mcp.Answer `json:"structuredContent"`
	} `json:"result"`
	Params struct {
		Message string `json:"message"`
	} `json:"params"`
}

const accept = "application/json, text/event-stream"

// agent returns a client: at the socket, or over TCP with a token.
func (r *rig) agent(token string) *agent {
	a := &agent{rig: r, header: map[string]string{"Accept": accept, "Content-Type": "application/json"}}
	if token != "" {
		a.web, a.header["Authorization"] = true, "Bearer "+token
	}
	return a
}

// begin sends a request, whose answer the caller reads.
func (a *agent) begin(ctx context.Context, method, body string) (*http.Response, error) {
	c, base := a.unix, "http://palyra"
	if a.web {
		c, base = a.rig.web, "http://"+a.tcp
	}
	req, err := http.NewRequestWithContext(ctx, method, base+"/mcp"+a.query, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	for k, v := range a.header {
		if v != "" {
			req.Header.Set(k, v)
		}
	}
	if h := a.header["Host"]; h != "" {
		req.Host = h
	}
	return c.Do(req)
}

func readReply(resp *http.Response) (reply, error) {
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	p := reply{status: resp.StatusCode, header: resp.Header, text: string(b)}
	p.media, _, _ = strings.Cut(resp.Header.Get("Content-Type"), ";")
	texts := [][]byte{}
	switch p.media {
	case hub.MediaSSE:
		for line := range bytes.Lines(b) {
			if data, ok := bytes.CutPrefix(line, []byte("data: ")); ok {
				texts = append(texts, data)
			}
		}
	case hub.MediaJSON:
		texts = append(texts, b)
	}
	for _, t := range texts {
		var m message
		if err := json.Unmarshal(t, &m); err != nil {
			return p, fmt.Errorf("%s: %w", t, err)
		}
		p.all = append(p.all, m)
	}
	return p, err
}

func (a *agent) send(method, body string) reply {
	a.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	resp, err := a.begin(ctx, method, body)
	if err != nil {
		a.t.Fatal(err)
	}
	p, err := readReply(resp)
	if err != nil {
		a.t.Fatal(err)
	}
	if got := p.header.Get("Cache-Control"); got != "no-store" {
		a.t.Errorf("Cache-Control %q", got)
	}
	return p
}

// last returns the answer to a request.
func (a *agent) last(p reply) message {
	a.t.Helper()
	if len(p.all) == 0 {
		a.t.Fatalf("no message: %d %.300s", p.status, p.text)
	}
	return p.all[len(p.all)-1]
}

// line makes a request.
func (a *agent) line(method, in string) string {
	a.id++
	return fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, a.id, method, in)
}

func params(name, more string) string { return fmt.Sprintf(`{"name":%q,"arguments":{}%s}`, name, more) }

// start makes a call of a tool, whose answer comes later; none if the client hangs up.
func (a *agent) start(ctx context.Context, in string) (id int, over <-chan reply) {
	line, done, c := a.line("tools/call", in), make(chan reply, 1), *a
	c.header = maps.Clone(a.header)
	go func() {
		resp, err := c.begin(ctx, post, line)
		if err != nil {
			done <- reply{}
			return
		}
		p, err := readReply(resp)
		if err != nil {
			p = reply{}
		}
		done <- p
	}()
	return a.id, done
}

func (a *agent) hello() string {
	return a.line("initialize", `{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}`)
}

// ready has the client shake hands.
func (a *agent) ready() *agent {
	a.t.Helper()
	p := a.send(post, a.hello())
	if m := a.last(p); p.status != 200 || m.Error != nil || m.Result.ProtocolVersion != "2025-11-25" || p.header.Get("Mcp-Session-Id") == "" {
		a.t.Fatalf("initialize: %d %s", p.status, p.text)
	}
	a.header["Mcp-Session-Id"], a.header["Mcp-Protocol-Version"] = p.header.Get("Mcp-Session-Id"), "2025-11-25"
	if p := a.send(post, `{"jsonrpc":"2.0","method":"notifications/initialized"}`); p.status != 202 {
		a.t.Fatalf("initialized: %d %s", p.status, p.text)
	}
	return a
}

// sessionless has the client speak the version without a handshake.
func (a *agent) sessionless() *agent {
	a.header["Mcp-Protocol-Version"] = "2026-07-28"
	return a
}

// ask sends a request of the version without a handshake.
func (a *agent) ask(ctx context.Context, method, name, in string) (*http.Response, error) {
	a.header["Mcp-Method"], a.header["Mcp-Name"] = method, name
	meta := metaOf("2026-07-28")
	if in = strings.TrimSuffix(in, "}"); in != "{" {
		in += ","
	}
	return a.begin(ctx, post, a.line(method, in+meta+"}"))
}

func metaOf(version string) string {
	return `"_meta":{"io.modelcontextprotocol/protocolVersion":"` + version +
		`","io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
}

func (a *agent) told(method, name, in string) reply {
	a.t.Helper()
	resp, err := a.ask(context.Background(), method, name, in)
	if err != nil {
		a.t.Fatal(err)
	}
	p, err := readReply(resp)
	if err != nil {
		a.t.Fatal(err)
	}
	return p
}

// waitingHub is a hub whose calls of ToolWait say when they have begun.
type waitingHub struct {
	*apitest.Hub
	began chan hub.Run
}

// waiting has the rig's hub have ToolWait among its tools. Each call of it is told.
func (r *rig) waiting() *waitingHub {
	h := &waitingHub{r.hub, make(chan hub.Run, 100)}
	none := json.RawMessage(`{"type":"object"}`)
	h.Table[hub.ListTools.Operation] = hub.ListTools.By(func(context.Context, hub.Caller, hub.ToolQuery) (hub.ToolList, error) {
		return hub.ToolList{Items: []hub.Tool{{Name: apitest.ToolEcho, InputSchema: none}, {Name: apitest.ToolWait, InputSchema: none}}}, nil
	})
	h.Table[hub.Call.Operation] = hub.Call.By(h.call)
	return h
}

func (h *waitingHub) call(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Run, error) {
	run, err := hub.StartRun.Do(ctx, h.Hub, c, hub.NewRun{Session: n.Session, Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}})
	if err != nil {
		return run, err
	}
	if n.Tool == apitest.ToolWait {
		h.began <- run
	}
	if err := h.over(ctx, run.ID); err != nil {
		_, _ = hub.CancelRun.Do(context.WithoutCancel(ctx), h.Hub, c, run.ID)
		return hub.Run{}, fault.New(fault.Canceled, "canceled", "call", ctx.Err())
	}
	return hub.GetRun.Do(ctx, h.Hub, c, run.ID)
}

// over waits for the end of a run.
func (h *waitingHub) over(ctx context.Context, run string) error {
	t, err := hub.ReadTape.Do(ctx, h.Hub, hub.Caller{}, hub.TapeQuery{Run: run})
	for err == nil {
		_, err = t.Next(ctx)
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// ends waits for the end of a run, which is to be as told.
func (h *waitingHub) ends(t *testing.T, run hub.Run, want string) {
	t.Helper()
	if err := h.over(t.Context(), run.ID); err != nil {
		t.Fatal(err)
	}
	if v, err := hub.GetRun.Do(t.Context(), h.Hub, hub.Caller{}, run.ID); err != nil || v.State != want {
		t.Errorf("run is %s, %v; want %s", v.State, err, want)
	}
}

// noticed tells when a request has been served, as it may not with its answer.
type noticed struct {
	behind.Protocol
	done chan struct{}
}

// Serve implements behind.Protocol.
func (n *noticed) Serve(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	defer func() { n.done <- struct{}{} }()
	return n.Protocol.Serve(w, r, v)
}

// TestMCP: a session from handshake to end, and the version without one.
func TestMCP(t *testing.T) {
	r := newRig(t)
	for _, a := range []*agent{r.agent(""), r.agent(apitest.OwnerToken), r.agent(apitest.WeakToken)} {
		a.ready()
		m := a.last(a.send(post, a.line("tools/list", `{}`)))
		names := []string{}
		for _, x := range m.Result.Tools {
			names = append(names, x.Name)
		}
		if fmt.Sprint(names) != "[test_echo call_wait]" {
			t.Errorf("tools %v", names)
		}
		p := a.send(post, a.line("tools/call", params("test_echo", "")))
		if m = a.last(p); p.status != 200 || m.Result.Structured.Outcome != "executed" || m.Result.Structured.Stdout != "hi\n" || m.Result.IsError {
			t.Errorf("call: %d %s", p.status, p.text)
		}
		if p := a.send(http.MethodDelete, ""); p.status != 204 {
			t.Errorf("end: %d %s", p.status, p.text)
		}
		if p := a.send(post, a.line("tools/list", `{}`)); p.status != 404 || !strings.Contains(p.text, "no_such_session") {
			t.Errorf("after the end: %d %s", p.status, p.text)
		}
	}
	a := r.agent("").sessionless()
	if p := a.told("server/discover", "", `{}`); p.status != 200 || len(a.last(p).Result.SupportedVersions) == 0 || p.header.Get("Mcp-Session-Id") != "" {
		t.Errorf("discover: %d %s", p.status, p.text)
	}
	if p := a.told("tools/call", "test_echo", params("test_echo", "")); a.last(p).Result.Structured.Outcome != "executed" {
		t.Errorf("call without a session: %d %s", p.status, p.text)
	}
	for _, method := range []string{"subscriptions/listen", "prompts/list", "resources/list", "resources/templates/list", "completion/complete"} {
		if p := a.told(method, "", `{"notifications":{}}`); a.last(p).Error == nil || a.last(p).Error.Code != -32601 {
			t.Errorf("%s: %d %s", method, p.status, p.text)
		}
	}
}

// TestMCPWorkspace: the address may name the workspace of calls that name none, and no other
// parameter.
func TestMCPWorkspace(t *testing.T) {
	r := newRig(t)
	r.hub.Table[hub.ListTools.Operation] = hub.ListTools.By(func(context.Context, hub.Caller, hub.ToolQuery) (hub.ToolList, error) {
		return hub.ToolList{Items: []hub.Tool{{Name: apitest.ToolEcho,
			InputSchema: json.RawMessage(`{"type":"object","properties":{"workspace":{"type":"string"}},"required":["workspace"]}`)}}}, nil
	})
	input := func(run string) string {
		v, err := hub.GetRun.Do(t.Context(), r.hub, hub.Caller{}, run)
		if err != nil {
			t.Fatal(err)
		}
		return string(v.Steps[0].Input)
	}
	a, b, c := r.agent(""), r.agent("").sessionless(), r.agent("").sessionless()
	a.query, b.query = "?workspace=src", "?workspace=other"
	a.ready()
	if s := a.last(a.send(post, a.line("tools/call", params("test_echo", "")))).Result.Structured; input(s.Run) != `{"workspace":"src"}` {
		t.Errorf("of a session: %s", input(s.Run))
	}
	if s := b.last(b.told("tools/call", "test_echo", params("test_echo", ""))).Result.Structured; input(s.Run) != `{"workspace":"other"}` {
		t.Errorf("without a session: %s", input(s.Run))
	}
	if s := c.last(c.told("tools/call", "test_echo", params("test_echo", ""))).Result.Structured; input(s.Run) != `{}` {
		t.Errorf("of another address: %s", input(s.Run))
	}
	a.query = "?user=uid:0"
	if p := a.send(post, a.line("ping", "{}")); p.status != 400 || !strings.Contains(p.text, "unknown parameter") {
		t.Errorf("another parameter: %d %s", p.status, p.text)
	}
}

// TestMCPOff: a daemon without the surface says so.
func TestMCPOff(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MCP = nil })
	r.refused(r.send(post, "/mcp", `{"jsonrpc":"2.0","id":1,"method":"ping"}`, "Accept: "+accept), 403, "feature_off")
	r.refused(r.send(http.MethodDelete, "/mcp", ""), 403, "feature_off")
}

// TestMCPRefused: what isn't a request of a caller's own gets a name, and nothing follows.
func TestMCPRefused(t *testing.T) {
	r := newRig(t)
	ping := `{"jsonrpc":"2.0","id":1,"method":"ping"}`
	mine, coming := r.agent("").ready(), r.agent("").sessionless()
	coming.header["Mcp-Method"] = "tools/list"
	for _, x := range []struct {
		name   string
		agent  *agent
		change [2]string
		method string
		body   string
		status int
		has    string
	}{
		{"no credential", r.agent("palyra_wrong"), [2]string{}, post, ping, 401, "unauthenticated"},
		{"a name instead", r.agent("palyra_wrong"), [2]string{"X-Forwarded-User", "uid:0"}, post, ping, 401, "unauthenticated"},
		{"another host", r.agent(apitest.OwnerToken), [2]string{"Host", "evil.example"}, post, ping, 421, "invalid_input"},
		{"another page", r.agent(apitest.OwnerToken), [2]string{"Origin", "http://evil.example"}, post, ping, 403, "permission_denied"},
		{"no session", r.agent(""), [2]string{}, post, ping, 400, "invalid_input"},
		{"a session that isn't", r.agent(""), [2]string{"Mcp-Session-Id", "AAAA"}, post, ping, 404, "no_such_session"},
		{"another's session", r.agent(apitest.OwnerToken), [2]string{"Mcp-Session-Id", mine.header["Mcp-Session-Id"]}, post, ping, 404, "no_such_session"},
		{"to end another's", r.agent(apitest.OwnerToken), [2]string{"Mcp-Session-Id", mine.header["Mcp-Session-Id"]}, http.MethodDelete, "", 404, "no_such_session"},
		{"to listen", mine, [2]string{}, get, "", 405, "invalid_input"},
		{"a text", mine, [2]string{}, post, `hello`, 400, "json_"},
		{"half", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,`, 400, "json_syntax"},
		{"a batch", mine, [2]string{}, post, `[` + ping + `]`, 400, "invalid_input"},
		{"twice", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}`, 400, "json_syntax"},
		{"another member", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"method":"ping","who":"uid:0"}`, 400, "invalid_input"},
		{"deep", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"method":"ping","params":` + strings.Repeat(`{"a":`, 40) + "1" + strings.Repeat("}", 41), 400, "json_syntax"},
		{"huge", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + strings.Repeat("x", 1<<20) + `"}}`, 413, "json_too_large"},
		{"no version", mine, [2]string{}, post, `{"id":1,"method":"ping"}`, 400, "invalid_input"},
		{"another version", mine, [2]string{}, post, `{"jsonrpc":"1.0","id":1,"method":"ping"}`, 400, "invalid_input"},
		{"no method", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1}`, 400, "invalid_input"},
		{"an id that is none", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, 400, "invalid_input"},
		{"an answer", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"result":{"action":"accept"}}`, 202, ""},
		{"an old protocol", mine, [2]string{"Mcp-Protocol-Version", "2019-01-01"}, post, ping, 400, "Unsupported protocol version"},
		{"a protocol to come", coming, [2]string{"Mcp-Protocol-Version", "2031-01-01"}, post,
			coming.line("tools/list", "{"+metaOf("2031-01-01")+"}"), 400, "2025-11-25"},
		{"versions that differ", coming, [2]string{}, post,
			coming.line("tools/list", "{"+metaOf("2025-11-25")+"}"), 400, "does not match"},
		{"no method of ours", mine, [2]string{}, post, `{"jsonrpc":"2.0","id":1,"method":"tools/steal"}`, 400, "tools/steal"},
		{"JSON alone", mine, [2]string{"Accept", "application/json"}, post, ping, 406, "invalid_input"},
		{"no JSON", mine, [2]string{"Content-Type", "text/plain"}, post, ping, 415, "invalid_input"},
	} {
		old := x.agent.header[x.change[0]]
		x.agent.header[x.change[0]] = x.change[1]
		if x.change[0] == "" {
			delete(x.agent.header, "")
		}
		p := x.agent.send(x.method, x.body)
		if x.change[0] != "" {
			x.agent.header[x.change[0]] = old
		}
		if p.status != x.status || !strings.Contains(p.text, x.has) {
			t.Errorf("%s: %d %.300s; want %d %s", x.name, p.status, p.text, x.status, x.has)
		}
	}
	if m := mine.last(mine.send(post, mine.line("tools/call", params("test_echo", "")))); m.Result.Structured.Outcome != "executed" {
		t.Errorf("after all of these: %+v", m)
	}
}

// TestMCPPending: a client that hangs up ends nothing of a session, and the same call takes
// up what goes on; without a session it ends the call.
func TestMCPPending(t *testing.T) {
	n := &noticed{mcp.NewHandler("test"), make(chan struct{}, 100)}
	r := newRig(t, func(c *Config) { c.MCP = n })
	h := r.waiting()
	a := r.agent(apitest.WeakToken).ready()
	<-n.done
	<-n.done
	ctx, hangUp := context.WithCancel(t.Context())
	_, over := a.start(ctx, params("test_wait", `,"_meta":{"progressToken":"p"}`))
	run := <-h.began
	hangUp()
	if p := <-over; p.text != "" {
		t.Errorf("a client that hung up had the answer %s", p.text)
	}
	<-n.done
	h.Finish(run.ID)
	m := a.last(a.send(post, a.line("tools/call", params("test_wait", ""))))
	if s := m.Result.Structured; s.Outcome != "executed" || s.Run != run.ID {
		t.Errorf("taken up: %+v", m)
	}
	if got := r.streams.count(); got > 2 {
		t.Errorf("%d places are held after the answer", got)
	}
	<-n.done

	b := r.agent(apitest.WeakToken).sessionless()
	ctx, hangUp = context.WithCancel(t.Context())
	go func() {
		if resp, err := b.ask(ctx, "tools/call", "test_wait", params("test_wait", "")); err == nil {
			resp.Body.Close()
		}
	}()
	run = <-h.began
	hangUp()
	h.ends(t, run, hub.RunCancelled)
	<-n.done
}

// TestMCPCancel: a notification ends the request that it names, and no other client's.
func TestMCPCancel(t *testing.T) {
	r := newRig(t)
	h := r.waiting()
	a, b := r.agent("").ready(), r.agent("").ready()
	id, first := a.start(t.Context(), params("test_wait", ""))
	run := <-h.began
	_, second := b.start(t.Context(), params("test_wait", ""))
	other := <-h.began
	if p := a.send(post, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"ping"}`, id)); p.status != 400 || !strings.Contains(p.text, "is in use") {
		t.Errorf("an id twice: %d %s", p.status, p.text)
	}
	if p := a.send(post, fmt.Sprintf(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%d}}`, id)); p.status != 202 {
		t.Errorf("cancel: %d %s", p.status, p.text)
	}
	if m := a.last(<-first); m.Error == nil {
		t.Errorf("cancelled: %+v", m)
	}
	h.ends(t, run, hub.RunCancelled)
	if v, err := hub.GetRun.Do(t.Context(), h, hub.Caller{}, other.ID); err != nil || v.State != hub.RunInProgress {
		t.Errorf("the other client's: %s, %v", v.State, err)
	}
	if p := b.send(http.MethodDelete, ""); p.status != 204 {
		t.Errorf("end: %d", p.status)
	}
	if m := b.last(<-second); m.Result.Structured.Outcome != "cancelled" {
		t.Errorf("with its session: %+v", m)
	}
	h.ends(t, other, hub.RunCancelled)
	if n := r.streams.count(); n > 1 {
		t.Errorf("%d places are held", n)
	}
}

// TestMCPRevoked: with a token end its sessions and calls, within a second or so.
func TestMCPRevoked(t *testing.T) {
	var gone atomic.Bool
	r := newRig(t, func(c *Config) {
		c.Check = func(c hub.Caller) error {
			if gone.Load() && c.User == "bob" {
				return fault.New(fault.Denied, "unauthenticated", "check", nil)
			}
			return nil
		}
	})
	h := r.waiting()
	a, b := r.agent(apitest.WeakToken).ready(), r.agent(apitest.OwnerToken).ready()
	_, over := a.start(t.Context(), params("test_wait", `,"_meta":{"progressToken":"p"}`))
	run := <-h.began
	h.Revoke(apitest.WeakToken)
	gone.Store(true)
	if p := a.send(post, a.line("tools/list", "{}")); p.status != 401 {
		t.Errorf("a revoked token: %d %s", p.status, p.text)
	}
	if m := a.last(<-over); m.Result.Structured.Outcome != "cancelled" {
		t.Errorf("the call of a revoked token: %+v", m)
	}
	h.ends(t, run, hub.RunCancelled)
	if p := b.send(post, b.line("tools/list", "{}")); p.status != 200 {
		t.Errorf("another token's session: %d %s", p.status, p.text)
	}
}

// TestMCPFlood: what clients hold is counted, and the principal's own gives way.
func TestMCPFlood(t *testing.T) {
	const most = 24
	r := newRig(t, func(c *Config) { c.Limits.Streams, c.Limits.StreamsPerCaller = 64, most })
	h := r.waiting()
	a, first := r.agent(apitest.WeakToken), r.agent(apitest.WeakToken).ready()
	for range 60 {
		a.ready()
	}
	if n := r.streams.count(); n > most {
		t.Errorf("%d places for one principal", n)
	}
	if p := first.send(post, first.line("tools/list", "{}")); p.status != 404 {
		t.Errorf("the session that was unused for longest: %d %s", p.status, p.text)
	}
	if p := a.send(post, a.line("tools/list", "{}")); p.status != 200 {
		t.Errorf("the last session: %d %s", p.status, p.text)
	}
	if p := r.agent("").ready().send(http.MethodDelete, ""); p.status != 204 {
		t.Errorf("another principal's: %d", p.status)
	}
	// Sessions with calls don't give way.
	begun := 0
	for {
		b := r.agent(apitest.WeakToken)
		p := b.send(post, b.hello())
		if p.status == 429 && strings.Contains(p.text, "too_many") {
			break
		}
		b.header["Mcp-Session-Id"], b.header["Mcp-Protocol-Version"] = p.header.Get("Mcp-Session-Id"), "2025-11-25"
		_, over := b.start(t.Context(), params("test_wait", `,"_meta":{"progressToken":"p"}`))
		select {
		case <-h.began:
			begun++
			continue
		case p := <-over:
			if !strings.Contains(p.text, "too_many") {
				t.Fatalf("answered %d %s", p.status, p.text)
			}
		}
		break
	}
	if n := r.streams.count(); n > most || begun < 3 {
		t.Errorf("%d calls, %d places for one principal", begun, n)
	}
}

// TestMCPRequests: one session has a bounded number of requests without an answer.
func TestMCPRequests(t *testing.T) {
	r := newRig(t)
	h := r.waiting()
	a := r.agent("").ready()
	const most = 64
	first := make(chan reply, most+1)
	for i := range most + 1 {
		_, over := a.start(t.Context(), fmt.Sprintf(`{"name":"test_wait","arguments":{"n":%d},"_meta":{"progressToken":"p"}}`, i))
		go func() { first <- <-over }()
	}
	if p := <-first; p.status != 429 || p.header.Get("Retry-After") == "" {
		t.Fatalf("one too many: %d %s", p.status, p.text)
	}
	for range 8 { // as many as there are sessions of palyrad
		<-h.began
	}
	if p := a.send(http.MethodDelete, ""); p.status != 204 {
		t.Errorf("end: %d %s", p.status, p.text)
	}
	if n := r.streams.count(); n > 0 {
		t.Errorf("%d places are held", n)
	}
}

// TestMCPTellsNoMore: what a token without policy.read is not told elsewhere it isn't told here.
func TestMCPTellsNoMore(t *testing.T) {
	r := newRig(t)
	table := r.hub.Table
	list := hub.ListTools.By(func(context.Context, hub.Caller, hub.ToolQuery) (hub.ToolList, error) {
		return hub.ToolList{Items: []hub.Tool{{Name: apitest.ToolDeny, InputSchema: json.RawMessage(`{"type":"object"}`)},
			{Name: apitest.ToolBug, InputSchema: json.RawMessage(`{"type":"object"}`)}}}, nil
	})
	table[hub.ListTools.Operation] = list
	for _, x := range []struct{ token, has, lacks string }{
		{apitest.OwnerToken, "policy_denied", "never"},
		{apitest.WeakToken, "00112233445566778899aabbccddeeff", "policy_denied"},
	} {
		a := r.agent(x.token).ready()
		p := a.send(post, a.line("tools/call", params("test_deny", "")))
		if !strings.Contains(p.text, x.has) || strings.Contains(p.text, x.lacks) || !a.last(p).Result.IsError {
			t.Errorf("denial: %s", p.text)
		}
		if p := a.send(post, a.line("tools/call", params("test_bug", ""))); strings.Contains(p.text, apitest.Secret) || !a.last(p).Result.IsError {
			t.Errorf("an error from inside: %s", p.text)
		}
	}
}
