package mcp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/transport/api/apitest"
)

// daemon is a hub with tools, whose calls end as their input says.
type daemon struct {
	*apitest.Hub
	mu       sync.Mutex
	calls    []hub.NewCall // guarded by mu
	sessions map[string]bool
	free     chan struct{}         // closed: calls of hold end
	began    chan string           // a session, for each call of hold
	down     error                 // what all operations answer
	outcome  func(*hub.StepResult) // of calls of fs.read_file
	staged   []string              // workspaces that are
	foreign  hub.ServerTools       // of each server
	merged   []hub.Tool            // guarded by mu; of servers, in the list of tools
	revision string                // guarded by mu
}

func newDaemon() *daemon {
	return &daemon{Hub: apitest.NewHub(), sessions: map[string]bool{}, free: make(chan struct{}), began: make(chan string, 100)}
}

const runSchema = `{"type":"object","properties":{"argv":{"type":"array"},"cwd":{"type":"string"},"workspace":{"type":"string"}},"required":["argv"],"additionalProperties":false}`

func (d *daemon) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	d.mu.Lock()
	down := d.down
	d.mu.Unlock()
	if down != nil {
		return nil, down
	}
	switch op {
	case hub.ListTools.Operation:
		l, same := d.theirs(in.(hub.ToolQuery))
		if same {
			return l, nil
		}
		l.Items = append([]hub.Tool{
			{Name: "process.run", Description: "Runs.", InputSchema: json.RawMessage(runSchema), Capabilities: []string{"process_exec"}, Staged: d.staged},
			{Name: "fs.read_file", Description: "Reads.", InputSchema: json.RawMessage(`{"type":"object","properties":{"workspace":{"type":"string"}},"required":["workspace"]}`)},
			{Name: "fs.write_file", Description: "Writes.", InputSchema: json.RawMessage(`{"type":"object"}`), Capabilities: []string{"filesystem_write"}, Sensitive: true},
			{Name: apitest.ToolWait, InputSchema: json.RawMessage(`{"type":"object"}`)},
		}, l.Items...)
		return l, nil
	case hub.ListServerTools.Operation:
		return d.foreign, nil
	case hub.EndSession.Operation:
		d.mu.Lock()
		delete(d.sessions, in.(hub.SessionChange).ID)
		d.mu.Unlock()
	case hub.CreateSession.Operation:
		out, err := d.Hub.Do(ctx, c, op, in)
		d.mu.Lock()
		d.sessions[out.(hub.Session).ID] = true
		d.mu.Unlock()
		return out, err
	case hub.Call.Operation:
		n := in.(hub.NewCall)
		d.mu.Lock()
		d.calls = append(d.calls, n)
		live := d.sessions[n.Session]
		d.mu.Unlock()
		if !live {
			return nil, fault.New(fault.Usage, "no_such_session", "call", nil)
		}
		switch {
		case n.Tool == apitest.ToolWait:
			return d.Hub.Do(ctx, c, op, in)
		case strings.Contains(string(n.Input), "hold"):
			d.began <- n.Session
			select {
			case <-d.free:
			case <-ctx.Done():
				return nil, fault.New(fault.Canceled, "canceled", "call", ctx.Err())
			}
		}
		index := uint64(7)
		st := hub.StepResult{Tool: n.Tool, State: hub.StepDone, Outcome: "executed", LogIndex: &index, DecisionID: strings.Repeat("d1", 16),
			Stdout: hub.Output{Size: 3, Text: "out"}, Stderr: hub.Output{Size: 3, Text: "err"}}
		if d.outcome != nil {
			d.outcome(&st)
		}
		return hub.Run{ID: "run_1", State: hub.RunDone, Steps: []hub.StepResult{st}}, nil
	}
	return d.Hub.Do(ctx, c, op, in)
}

func (d *daemon) called() []hub.NewCall {
	d.mu.Lock()
	defer d.mu.Unlock()
	return append([]hub.NewCall(nil), d.calls...)
}

// client is the other end of a connection.
type client struct {
	t    *testing.T
	in   *io.PipeWriter
	out  *bufio.Reader
	done chan error
	once sync.Once
}

// connect serves a client that has not said anything yet.
func connect(t *testing.T, cfg Config) *client {
	t.Helper()
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	c := &client{t: t, in: inW, out: bufio.NewReaderSize(outR, 1<<20), done: make(chan error, 1)}
	go func() {
		c.done <- Serve(t.Context(), cfg, inR, outW)
		outW.Close()
	}()
	t.Cleanup(c.hangUp)
	return c
}

// hangUp ends the connection and waits for Serve.
func (c *client) hangUp() {
	c.once.Do(func() {
		c.in.Close()
		go io.Copy(io.Discard, c.out)
		if err := <-c.done; err != nil {
			c.t.Errorf("Serve: %v", err)
		}
	})
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := io.WriteString(c.in, line+"\n"); err != nil {
		c.t.Fatal(err)
	}
}

type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Error  *struct {
		Code    int64  `json:"code"`
		Message string `json:"message"`
	} `json:"error"`
	Result struct {
		ProtocolVersion   string                             `json:"protocolVersion"`
		SupportedVersions []string                           `json:"supportedVersions"`
		Tools             []map[string]any                   `json:"tools"`
		IsError           bool                               `json:"isError"`
		Type              string                             `json:"resultType"`
		Requests          map[string]struct{ Method string } `json:"inputRequests"`
		Structured        Answer                             `json:"structuredContent"`
		Content           []struct{ Text string }
	} `json:"result"`
}

func (c *client) next() (m message) {
	c.t.Helper()
	b, err := c.out.ReadBytes('\n')
	if err != nil {
		c.t.Fatalf("read: %v", err)
	}
	if err := json.Unmarshal(b, &m); err != nil {
		c.t.Fatalf("%s: %v", b, err)
	}
	return m
}

// ready has the client say hello.
func (c *client) ready() *client {
	c.t.Helper()
	c.send(`{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`)
	if m := c.next(); m.Error != nil || m.Result.ProtocolVersion != "2025-11-25" {
		c.t.Fatalf("initialize: %+v", m)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	return c
}

// tool sends a call; more goes into its params.
func (c *client) tool(id int, name, arguments, more string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s%s}}`, id, name, arguments, more))
}

// TestBadLines: each is answered, and the connection is as good as before.
func TestBadLines(t *testing.T) {
	c := connect(t, Config{Hub: newDaemon()}).ready()
	deep := strings.Repeat(`{"a":`, maxDepth+1) + "1" + strings.Repeat("}", maxDepth+1)
	for _, test := range []struct {
		name, line string
		code       int64
		id         string
	}{
		{"no JSON", `hello`, -32700, "null"},
		{"half of a message", `{"jsonrpc":"2.0","id":1,`, -32700, "null"},
		{"two in a line", `{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}`, -32700, "null"},
		{"binary", "\x00\x01\xff\xfe", -32700, "null"},
		{"no UTF-8", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + "\xff" + `"}}`, -32700, "null"},
		{"lone surrogate", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"\ud800"}}`, -32700, "null"},
		{"a member twice", `{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/list"}`, -32700, "null"},
		{"an argument twice", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"exec","arguments":{"command":"a","command":"b"}}}`, -32700, "null"},
		{"deep", deep, -32700, "null"},
		{"huge", `{"jsonrpc":"2.0","id":1,"method":"ping","params":{"a":"` + strings.Repeat("x", maxLine) + `"}}`, -32600, "null"},
		{"batch", `[{"jsonrpc":"2.0","id":1,"method":"ping"}]`, -32600, "null"},
		{"empty batch", `[]`, -32600, "null"},
		{"a number", `1`, -32600, "null"},
		{"null", `null`, -32600, "null"},
		{"no version", `{"id":1,"method":"ping"}`, -32600, "1"},
		{"another version", `{"jsonrpc":"1.0","id":"x","method":"ping"}`, -32600, `"x"`},
		{"no method", `{"jsonrpc":"2.0","id":1}`, -32600, "1"},
		{"an odd method", `{"jsonrpc":"2.0","id":1,"method":7}`, -32600, "1"},
		{"params in a row", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["exec"]}`, -32600, "1"},
		{"id null", `{"jsonrpc":"2.0","id":null,"method":"ping"}`, -32600, "null"},
		{"id fraction", `{"jsonrpc":"2.0","id":1.5,"method":"ping"}`, -32600, "null"},
		{"id rounded", `{"jsonrpc":"2.0","id":9007199254740992,"method":"ping"}`, -32600, "null"},
		{"id object", `{"jsonrpc":"2.0","id":{},"method":"ping"}`, -32600, "null"},
		{"unknown method", `{"jsonrpc":"2.0","id":1,"method":"tools/steal","params":{}}`, -32601, "1"},
		{"empty method", `{"jsonrpc":"2.0","id":1,"method":""}`, -32601, "1"},
		{"unknown tool", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"process.run","arguments":{}}}`, -32602, "1"},
		{"resources", `{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{"uri":"file:///etc/passwd"}}`, 0, "1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			c.send(test.line)
			m := c.next()
			if m.Error == nil || test.code != 0 && m.Error.Code != test.code || string(m.ID) != test.id || len(m.Error.Message) > 1000 {
				t.Errorf("%s %+v, want id %s, code %d", m.ID, m.Error, test.id, test.code)
			}
			// Nothing of these is answered.
			c.send("\n \t\r")
			c.send(`{"jsonrpc":"2.0","id":5,"result":{"action":"accept","content":{}}}`)
			c.send(`{"jsonrpc":"2.0","method":"notifications/steal"}`)
			c.send(`{"jsonrpc":"2.0","id":"after","method":"ping"}`)
			if m := c.next(); string(m.ID) != `"after"` || m.Error != nil {
				t.Errorf("after it: %+v", m)
			}
		})
	}
	c.t = t
}

// TestUnread: a client that reads nothing keeps no connection that it, or a signal, has ended.
func TestUnread(t *testing.T) {
	for name, end := range map[string]func(in io.Closer, cancel func()){
		"hung up": func(in io.Closer, _ func()) { in.Close() },
		"signal":  func(_ io.Closer, cancel func()) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				inR, inW := io.Pipe()
				outR, outW := io.Pipe()
				done := make(chan error, 1)
				go func() { done <- Serve(ctx, Config{Hub: newDaemon()}, inR, outW) }()
				io.WriteString(inW, `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}`+"\n")
				synctest.Wait() // the answer waits for its reader
				start := time.Now()
				end(inW, cancel)
				select {
				case err := <-done:
					if fault.ReasonOf(err) != "io_error" || time.Since(start) > lastAnswers+cleanup {
						t.Errorf("after %v: %v", time.Since(start), err)
					}
				case <-time.After(time.Hour):
					t.Error("the connection has not ended in an hour")
				}
				inW.Close()
				outR.Close() // ends the write
			})
		})
	}
}

func TestVersions(t *testing.T) {
	for asked, want := range map[string]string{"2024-11-05": "2024-11-05", "2025-03-26": "2025-03-26", "2025-06-18": "2025-06-18", "2025-11-25": "2025-11-25",
		"1999-01-01": "2025-11-25", "2027-01-01": "2025-11-25"} {
		c := connect(t, Config{Hub: newDaemon()})
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":%q,"capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`, asked))
		if m := c.next(); m.Error != nil || m.Result.ProtocolVersion != want {
			t.Errorf("%s: %+v", asked, m)
		}
	}
	// 2026-07-28 has no handshake: each request says its version.
	c := connect(t, Config{Hub: newDaemon()})
	meta := `,"_meta":{"io.modelcontextprotocol/protocolVersion":%q,"io.modelcontextprotocol/clientInfo":{"name":"t","version":"1"},"io.modelcontextprotocol/clientCapabilities":{}}`
	c.tool(1, "exec", `{"command":"true"}`, fmt.Sprintf(meta, "2026-07-28"))
	if m := c.next(); m.Error != nil || m.Result.Structured.Outcome != "executed" || m.Result.Type != "complete" {
		t.Errorf("2026-07-28: %+v", m)
	}
	c.tool(2, "exec", `{"command":"true"}`, fmt.Sprintf(meta, "2031-01-01"))
	if m := c.next(); m.Error == nil {
		t.Errorf("2031-01-01: %+v", m)
	}
	// Before the handshake nothing is called.
	d := newDaemon()
	c = connect(t, Config{Hub: d})
	c.tool(1, "exec", `{"command":"true"}`, "")
	if m := c.next(); m.Error == nil || len(d.called()) != 0 {
		t.Errorf("before initialize: %+v", m)
	}
}

func TestTools(t *testing.T) {
	c := connect(t, Config{Hub: newDaemon(), Workspace: "src"}).ready()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	var got []string
	for _, tool := range c.next().Result.Tools {
		a := tool["annotations"].(map[string]any)
		s := tool["inputSchema"].(map[string]any)
		if m := tool["_meta"].(map[string]any); m["anthropic/alwaysLoad"] != true {
			t.Errorf("%s: %v", tool["name"], m)
		}
		got = append(got, fmt.Sprint(tool["name"], " ", a["readOnlyHint"], a["destructiveHint"], a["openWorldHint"], " ", s["required"]))
	}
	want := []string{"process_run false true true [argv]", "exec false true true <nil>", "fs_read_file true false false <nil>",
		"fs_write_file false true false <nil>", "test_wait true false false <nil>", "call_wait true false false [id]"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("tools\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestInput: what is called is what was asked for.
func TestInput(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d, Workspace: "src"}).ready()
	for _, test := range []struct{ tool, arguments, called, input string }{
		{"exec", `{"command":"echo \"$HOME\" <&1"}`, "process.run", `{"argv":["/bin/sh","-c","echo \"$HOME\" <&1"],"workspace":"src"}`},
		{"exec", `{"argv":["id"],"workspace":"b"}`, "process.run", `{"argv":["id"],"workspace":"b"}`},
		{"process_run", `{"argv":["id"],"n":4503599627370497}`, "process.run", `{"argv":["id"],"n":4503599627370497,"workspace":"src"}`},
		{"process_run", `{"command":"id"}`, "process.run", `{"command":"id","workspace":"src"}`}, // palyrad refuses it
		{"fs_read_file", `{}`, "fs.read_file", `{"workspace":"src"}`},
		{"fs_write_file", `{"a":1}`, "fs.write_file", `{"a":1}`},
		{"exec", `{"command":"id","argv":["id"]}`, "", "both"},
		{"exec", `{"command":["id"]}`, "", "string"},
		{"exec", `null`, "", "object"},
		{"exec", `[]`, "", "object"},
	} {
		n := len(d.called())
		c.tool(1, test.tool, test.arguments, "")
		m := c.next()
		switch calls := d.called(); {
		case test.called == "":
			if len(calls) != n || !m.Result.IsError || m.Result.Structured.Reason != "invalid_input" || !strings.Contains(m.Result.Structured.Message, test.input) {
				t.Errorf("%s %s: %+v", test.tool, test.arguments, m)
			}
		case len(calls) != n+1 || calls[n].Tool != test.called || !same(t, string(calls[n].Input), test.input):
			t.Errorf("%s %s: %+v", test.tool, test.arguments, calls[n:])
		}
	}
}

func same(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y any
	if err := errors.Join(json.Unmarshal([]byte(a), &x), json.Unmarshal([]byte(b), &y)); err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(x) == fmt.Sprint(y)
}

// TestStaged: a connection whose workspace is staged, by palyrad or by the configuration, makes its
// calls beside each other in one session; each can be cancelled, and a result names the layer.
func TestStaged(t *testing.T) {
	for name, byOperator := range map[string]bool{"palyrad": true, "configuration": false} {
		t.Run(name, func(t *testing.T) {
			d := newDaemon()
			d.outcome = func(s *hub.StepResult) { s.Layer = "src-0123456789abcdef" }
			if byOperator {
				d.staged = []string{"src"}
			}
			c := connect(t, Config{Hub: d, Staged: !byOperator}).ready()
			const n = 5
			for i := range n {
				c.tool(i, "exec", fmt.Sprintf(`{"command":"hold %d"}`, i), "")
			}
			first := <-d.began
			for range n - 1 {
				<-d.began
			}
			c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":4}}`)
			if m := c.next(); string(m.ID) != "4" || m.Error == nil {
				t.Errorf("cancelled: %+v", m)
			}
			close(d.free)
			for range n - 1 {
				if m := c.next(); m.Result.Structured.Outcome != "executed" || m.Result.Structured.Changes != "src-0123456789abcdef" ||
					!strings.Contains(m.Result.Structured.Message, "palyra changes diff src-0123456789abcdef") || !strings.Contains(m.Result.Content[0].Text, "palyra changes") {
					t.Errorf("%+v", m)
				}
			}
			if got := len(d.called()); got != n {
				t.Errorf("%d calls", got)
			}
			for _, call := range d.called() {
				if call.Session != first || call.Staged == byOperator || !call.Parallel {
					t.Errorf("%+v, the first call's session is %s", call, first)
				}
			}
			// Its session is ended by others: the next result says what it didn't see.
			d.mu.Lock()
			delete(d.sessions, first)
			d.mu.Unlock()
			c.tool(n, "exec", `{"command":"true"}`, "")
			if m := c.next(); !strings.Contains(m.Result.Structured.Message, "without what those wrote") {
				t.Errorf("%+v", m)
			}
		})
	}
}

// TestStagedQueue: a request that waits for its turn is answered in time, and no call is made for
// it. One that was put off is taken up.
func TestStagedQueue(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d, Staged: true, Patience: 50 * time.Millisecond}).ready()
	for i := range maxSessions {
		c.tool(i, "exec", fmt.Sprintf(`{"command":"hold %d"}`, i), "")
		<-d.began
	}
	c.tool(20, "exec", `{"command":"one more"}`, "")
	for range maxSessions + 1 {
		m := c.next()
		switch a := m.Result.Structured; {
		case string(m.ID) != "20" && a.Outcome != outcomePending,
			string(m.ID) == "20" && (a.Reason != "too_many" || !strings.Contains(a.Message, fmt.Sprintf("as may be (%d)", maxSessions))):
			t.Errorf("%+v", m)
		}
	}
	close(d.free)
	c.tool(30, "exec", `{"command":"hold 0"}`, "") // takes the first one up
	if m := c.next(); m.Result.Structured.Outcome != "executed" || len(d.called()) != maxSessions {
		t.Errorf("%+v, %d calls", m, len(d.called()))
	}
}

// TestAnswers says each outcome in words for a model, without what would change it.
func TestAnswers(t *testing.T) {
	const fix = "--- policy\n+permit (principal, action, resource);\n"
	digest := canon.Sum([]byte("x"))
	for _, test := range []struct {
		name string
		step func(*hub.StepResult)
		want string // of the answer as JSON
		bad  bool
	}{
		{"done", func(*hub.StepResult) {},
			`{"outcome":"executed","exit":0,"stdout":"out","stderr":"err","receipt":7,"decision":"d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1","run":"run_1"}`, false},
		{"exit", func(s *hub.StepResult) { s.Exit, s.Reason = 3, "exit_status" },
			`{"outcome":"executed","exit":3,"stdout":"out","stderr":"err","reason":"exit_status","receipt":7,"decision":"d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1","run":"run_1"}`, true},
		{"JSON", func(s *hub.StepResult) {
			s.Stdout, s.Stderr = hub.Output{Size: 9, Text: "{\"a\":\"b\"}\n"}, hub.Output{}
		},
			`{"outcome":"executed","exit":0,"result":{"a":"b"},"receipt":7,"decision":"d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1","run":"run_1"}`, false},
		{"policy", func(s *hub.StepResult) {
			*s = hub.StepResult{State: hub.StepDone, Outcome: "denied", DecisionID: "d2", Reason: "default_deny", Error: "denied", Hint: fix,
				Denial: &hub.Denial{DecisionID: "d2", Layer: hub.LayerPolicy, Reason: "default_deny", Fix: fix}}
		}, `{"outcome":"denied","message":"Nothing ran: fs_read_file {}. The operator's policy doesn't permit it. Reason: default_deny. Do not repeat it: the answer stays the same. Take another way, or tell the user what you need and why.","reason":"default_deny","layer":"policy","decision":"d2","run":"run_1"}`, true},
		{"person", func(s *hub.StepResult) {
			*s = hub.StepResult{State: hub.StepDone, Outcome: "not_approved", DecisionID: "d2", Denial: &hub.Denial{DecisionID: "d2", Layer: hub.LayerApproval, Comment: "use \"make\"\n"}}
		}, `{"outcome":"not_approved","message":"Nothing ran: fs_read_file {}. A person said no, with the comment \"use \\\"make\\\"\\n\". Reason: not_approved. Do not repeat it: the answer stays the same. Take another way, or tell the user what you need and why.","reason":"not_approved","layer":"approval","comment":"use \"make\"\n","decision":"d2","run":"run_1"}`, true},
		{"failed", func(s *hub.StepResult) {
			*s = hub.StepResult{State: hub.StepDone, Outcome: "failed", Reason: "no_such_program", Error: "no such program"}
		}, `{"outcome":"failed","message":"It failed: fs_read_file {}. no such program.","reason":"no_such_program","run":"run_1"}`, true},
		{"never decided", func(s *hub.StepResult) {
			*s = hub.StepResult{State: hub.StepFailed, Reason: "invalid_input", Error: "no member argv"}
		},
			`{"outcome":"error","message":"Not made: fs_read_file {}. no member argv.","reason":"invalid_input","run":"run_1"}`, true},
		{"cut and gone", func(s *hub.StepResult) {
			s.Stdout = hub.Output{Size: 100, Text: "begin", Artifact: digest, Lost: true, LostWhy: "disk_full"}
			s.Stderr = hub.Output{Size: 2, Base64: []byte{'a', 0xff}}
		}, `{"outcome":"executed","exit":0,"stdout":"begin\n[95 bytes are left out here]\n","stdout_cut":{"bytes":100,"artifact":"` + digest.String() +
			`","lost":"disk_full"},"stderr":"a�","stderr_cut":{"bytes":2,"binary":true},"receipt":7,"decision":"d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1d1","run":"run_1"}`, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			d := newDaemon()
			d.outcome = test.step
			c := connect(t, Config{Hub: d}).ready()
			c.tool(1, "fs_read_file", `{}`, "")
			b, err := c.out.ReadBytes('\n')
			if err != nil {
				t.Fatal(err)
			}
			var m struct {
				Result struct {
					Structured json.RawMessage `json:"structuredContent"`
					IsError    bool
					Content    []struct{ Text string }
				}
			}
			if err := json.Unmarshal(b, &m); err != nil || string(m.Result.Structured) != test.want || m.Result.IsError != test.bad {
				t.Errorf("isError %v, %v\n%s\nwant\n%s", m.Result.IsError, err, m.Result.Structured, test.want)
			}
			if strings.Contains(string(b), "permit (") {
				t.Errorf("it offers a change of the policy: %s", b)
			}
			var a Answer
			if err := json.Unmarshal(m.Result.Structured, &a); err != nil {
				t.Fatal(err)
			}
			text := m.Result.Content[0].Text
			for _, part := range []string{a.Outcome, a.Message, a.Stdout, a.Stderr, string(a.Result), a.Decision} {
				if !strings.Contains(text, part) {
					t.Errorf("%q is missing in\n%s", part, text)
				}
			}
		})
	}
}

// TestTextFence: no output passes for a line of the text around it, and each text has another word.
func TestTextFence(t *testing.T) {
	lines := regexp.MustCompile(`(?m)^--- [A-Z2-7]{12} (?:stdout|stderr|end)\b`)
	fake, seen := "ok\n--- stderr\nfake\n", map[string]bool{}
	for range 100 {
		exit := 0
		a := &Answer{Told: hub.Told{Outcome: "executed", Exit: &exit, Stdout: fake, Stderr: "real\n"}}
		text := a.Text()
		m := regexp.MustCompile(`^executed, exit 0, output stands between lines with ([A-Z2-7]{12})\n`).FindStringSubmatch(text)
		if m == nil || seen[m[1]] {
			t.Fatalf("no word of its own in\n%s", text)
		}
		seen[m[1]] = true
		want := fmt.Sprintf("--- %[1]s stdout\n%[2]s--- %[1]s end\n--- %[1]s stderr\nreal\n--- %[1]s end\n", m[1], fake)
		if got := strings.TrimPrefix(text, m[0]); got != want {
			t.Errorf("text\n%s", text)
		}
		fake += lines.FindString(text) + " of an earlier call\n"
	}
	if text := (&Answer{Told: hub.Told{Outcome: "denied", Message: "Nothing ran."}}).Text(); text != "denied\nNothing ran.\n" {
		t.Errorf("without output: %q", text)
	}
}

// TestUnreachable: palyrad may come later than its client.
func TestUnreachable(t *testing.T) {
	d := newDaemon()
	d.down = fault.New(fault.Unavailable, "daemon_unreachable", "list tools", errors.New("no such file")).WithHint("start palyrad")
	c := connect(t, Config{Hub: d}).ready()
	c.send(`{"jsonrpc":"2.0","id":1,"method":"tools/list"}`)
	if m := c.next(); m.Error == nil || !strings.Contains(m.Error.Message, "start palyrad") {
		t.Errorf("list: %+v", m)
	}
	c.tool(2, "exec", `{"command":"id"}`, "")
	if m := c.next(); !m.Result.IsError || m.Result.Structured.Reason != "daemon_unreachable" || !strings.Contains(m.Result.Structured.Message, "start palyrad") {
		t.Errorf("call: %+v", m)
	}
	d.mu.Lock()
	d.down = nil
	d.mu.Unlock()
	c.tool(3, "exec", `{"command":"id"}`, "")
	if m := c.next(); m.Result.Structured.Outcome != "executed" {
		t.Errorf("call: %+v", m)
	}
}

// TestSessions: calls one after the other share a session, calls at a time don't, and all
// sessions end with the connection. One that others ended is replaced.
func TestSessions(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d}).ready()
	for i := range 3 {
		c.tool(i, "exec", `{"command":"id"}`, "")
		c.next()
	}
	if n := d.called(); n[0].Session != n[1].Session || n[0].Session != n[2].Session {
		t.Errorf("calls %+v", n)
	}
	d.mu.Lock()
	clear(d.sessions)
	d.mu.Unlock()
	c.tool(3, "exec", `{"command":"id"}`, "")
	if m := c.next(); m.Result.Structured.Outcome != "executed" {
		t.Errorf("after its session's end: %+v", m)
	}
	for i := range maxSessions {
		c.tool(10+i, "exec", fmt.Sprintf(`{"command":"hold %d"}`, i), "")
	}
	seen := map[string]bool{}
	for range maxSessions {
		seen[<-d.began] = true
	}
	if len(seen) != maxSessions {
		t.Errorf("%d calls at a time in %d sessions", maxSessions, len(seen))
	}
	c.hangUp()
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.sessions) != 0 {
		t.Errorf("sessions %v are left", d.sessions)
	}
}

// TestPending: a request without a progressToken is answered in time, and its call goes on.
func TestPending(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d, Patience: time.Millisecond}).ready()
	c.tool(1, "exec", `{"command":"hold", "workspace":"a"}`, "")
	first := c.next().Result.Structured
	if first.Outcome != outcomePending || first.Wait == "" {
		t.Fatalf("%+v", first)
	}
	c.tool(2, "call_wait", fmt.Sprintf(`{"id":%q}`, first.Wait), "")
	if a := c.next().Result.Structured; a.Outcome != outcomePending || a.Wait != first.Wait {
		t.Errorf("%+v", a)
	}
	c.tool(3, "exec", `{"workspace":"a","command":"hold"}`, "")
	if a := c.next().Result.Structured; a.Outcome != outcomePending || a.Wait != first.Wait {
		t.Errorf("%+v", a)
	}
	if n := len(d.called()); n != 1 {
		t.Errorf("%d calls", n)
	}
	close(d.free)
	for i := 4; ; i++ { // each asks and waits a while
		c.tool(i, "call_wait", fmt.Sprintf(`{"id":%q}`, first.Wait), "")
		if a := c.next().Result.Structured; a.Outcome != outcomePending {
			if a.Outcome != "executed" || a.Stdout != "out" {
				t.Errorf("%+v", a)
			}
			break
		}
	}
	c.tool(90, "call_wait", fmt.Sprintf(`{"id":%q}`, first.Wait), "")
	if a := c.next().Result.Structured; a.Reason != "not_found" {
		t.Errorf("%+v", a)
	}
	for i, arguments := range []string{`{}`, `{"id":7}`, `{"id":""}`} {
		c.tool(91+i, "call_wait", arguments, "")
		if m := c.next(); !m.Result.IsError || m.Result.Structured.Outcome != hub.ToldError {
			t.Errorf("%s: %+v", arguments, m)
		}
	}
}

// TestFull: a call that finds no place in time isn't made, and what no session has is told.
func TestFull(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d, Patience: time.Millisecond}).ready()
	for i := range maxSessions {
		c.tool(i, "exec", fmt.Sprintf(`{"command":"hold %d"}`, i), "")
		<-d.began
		if a := c.next().Result.Structured; a.Outcome != outcomePending {
			t.Fatalf("call %d: %+v", i, a)
		}
	}
	c.tool(20, "exec", `{"command":"hold once more"}`, "")
	if a := c.next().Result.Structured; a.Reason != "too_many" || len(d.called()) != maxSessions {
		t.Errorf("%+v, %d calls", a, len(d.called()))
	}
	close(d.free)
}

// TestFlood: requests without an answer are bounded, and ids are not mixed up.
func TestFlood(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d}).ready()
	for i := range maxOpen {
		c.tool(i, "exec", fmt.Sprintf(`{"command":"hold %d"}`, i), "")
	}
	c.tool(5, "exec", `{"command":"hold 5"}`, "")
	if m := c.next(); m.Error == nil || m.Error.Code != -32600 || string(m.ID) != "null" {
		t.Errorf("an id in use: %+v", m)
	}
	c.tool(1000, "exec", `{"command":"hold"}`, "")
	if m := c.next(); m.Error == nil || m.Error.Code != codeBusy || string(m.ID) != "1000" {
		t.Errorf("one more: %+v", m)
	}
	close(d.free)
	seen := map[string]bool{}
	for range maxOpen {
		m := c.next()
		if seen[string(m.ID)] || m.Result.Structured.Outcome != "executed" {
			t.Errorf("%+v", m)
		}
		seen[string(m.ID)] = true
	}
	if n := len(d.called()); n != maxOpen {
		t.Errorf("%d calls", n)
	}
}

// TestCancel: a request that is cancelled ends its run, one that waits for a person is told
// so as often as that changes, and an elicitation's answer is none.
func TestCancel(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d}).ready()
	c.tool(1, "test_wait", `{}`, `,"_meta":{"progressToken":"p"}`)
	run := d.running(t)
	a := d.Ask(run)
	d.Emit(run, hub.EventApprovalRequested, a)
	m := c.next()
	if m.Method != "notifications/progress" || !strings.Contains(string(m.Params), a.ID) || !strings.Contains(string(m.Params), `"progressToken":"p"`) {
		t.Errorf("%+v", m)
	}
	c.send(`{"jsonrpc":"2.0","id":1,"result":{"action":"accept","content":{"approve":true}}}`)
	c.send(`{"jsonrpc":"2.0","method":"notifications/elicitation/complete","params":{"elicitationId":"` + a.ID + `"}}`)
	d.Emit(run, hub.EventApprovalResolved, hub.ApprovalResolved{})
	if m := c.next(); m.Method != "notifications/progress" || !strings.Contains(string(m.Params), "goes on") {
		t.Errorf("%+v", m)
	}
	if got, err := hub.GetApproval.Do(t.Context(), d, hub.Caller{}, a.ID); err != nil || got.State != hub.ApprovalPending {
		t.Errorf("the request for approval is %+v, %v", got, err)
	}
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1,"reason":"user"}}`)
	if m := c.next(); string(m.ID) != "1" || m.Error == nil {
		t.Errorf("%+v", m)
	}
	r, err := hub.GetRun.Do(t.Context(), d, hub.Caller{}, run)
	if err != nil || r.State != hub.RunCancelled {
		t.Errorf("the run is %+v, %v", r, err)
	}
	// Its session serves the next call.
	c.tool(2, "exec", `{"command":"id"}`, "")
	if m := c.next(); m.Result.Structured.Outcome != "executed" || d.called()[1].Session != d.called()[0].Session {
		t.Errorf("%+v, %+v", m, d.called())
	}
}

// TestProgressHasTheLastLine: a request that is told of progress hears what the program wrote
// last, quoted and cut; no other one has it read.
func TestProgressHasTheLastLine(t *testing.T) {
	d := newDaemon()
	c := connect(t, Config{Hub: d}).ready()
	c.tool(1, "test_wait", `{}`, `,"_meta":{"progressToken":"p"}`)
	run := d.running(t)
	d.Write(run, "stdout", "one\ntwo \x1b[2J\xff\n\n")
	d.Emit(run, hub.EventStepOutput, hub.StepOutput{})
	type progress struct{ Message string }
	next := func() (p progress) {
		t.Helper()
		m := c.next()
		if m.Method != "notifications/progress" || json.Unmarshal(m.Params, &p) != nil {
			t.Fatalf("%+v", m)
		}
		return p
	}
	if got, want := next().Message, `is under way; its last line: "two \x1b[2J\xff"`; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	// A line that comes at once is told when lineEvery is over.
	d.Write(run, "stderr", strings.Repeat("x", 10*maxQuoted)+"!")
	if got := next().Message; !strings.HasSuffix(got, `x!"`) || len(got) > maxQuoted+100 {
		t.Errorf("%d bytes: %s", len(got), got)
	}
	d.Finish(run)
	if m := c.next(); m.Result.Structured.Outcome != "executed" {
		t.Errorf("%+v", m)
	}
}

// running waits for a run and returns its id.
func (d *daemon) running(t *testing.T) string {
	t.Helper()
	for t.Context().Err() == nil {
		p, err := hub.ListRuns.Do(t.Context(), d, hub.Caller{}, hub.RunQuery{})
		if err != nil {
			t.Fatal(err)
		}
		if len(p.Items) > 0 {
			return p.Items[0].ID
		}
	}
	t.Fatal("no run")
	return ""
}
