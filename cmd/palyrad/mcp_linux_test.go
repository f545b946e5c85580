package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
)

// message sends a message to /mcp and returns the answer with its session.
func (r *running) message(session, body string) (int, string, string) {
	r.t.Helper()
	req, err := http.NewRequest("POST", "http://localhost/mcp", strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json, text/event-stream")
	if session != "" {
		req.Header.Set("Mcp-Session-Id", session)
	}
	resp, err := r.client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.StatusCode, string(b), resp.Header.Get("Mcp-Session-Id")
}

const hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"t","version":"1"}}}`

// TestMCP: a tool of an agent is a call as any other, in a confined palyrad too, and its
// sessions end with palyrad.
func TestMCP(t *testing.T) {
	p := newPlace(t, "")
	r := p.start()
	status, text, session := r.message("", hello)
	if status != 200 || session == "" || !strings.Contains(text, `"protocolVersion":"2025-11-25"`) {
		t.Fatalf("initialize: %d %s", status, text)
	}
	call := func(id int, name, arguments string) string {
		status, text, _ := r.message(session, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":%q,"arguments":%s}}`, id, name, arguments))
		if status != 200 {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		return text
	}
	if text := call(2, "palyra_echo", `{"text":"hi"}`); !strings.Contains(text, `"outcome":"executed"`) || !strings.Contains(text, `"receipt":`) {
		t.Errorf("a tool of the table: %s", text)
	}
	if text := call(3, "exec", `{"command":"echo there; exit 3"}`); !strings.Contains(text, `"outcome":`) || !strings.Contains(text, `"decision":`) {
		t.Errorf("a command: %s", text)
	}
	var open hub.Page[hub.Session]
	r.must(200, "GET", "/api/v1/sessions?state=open", "", &open)
	if len(open.Items) != 1 || open.Items[0].Title != "mcp" {
		t.Errorf("sessions %+v", open.Items)
	}
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	r = p.start()
	r.must(200, "GET", "/api/v1/sessions?state=open", "", &open)
	if len(open.Items) != 0 {
		t.Errorf("after the end: sessions %+v", open.Items)
	}
	if status, text, _ := r.message(session, hello); status != 200 {
		t.Errorf("initialize with a session of before: %d %s", status, text)
	}
	if status, text, _ := r.message(session, `{"jsonrpc":"2.0","id":2,"method":"tools/list"}`); status != 404 || !strings.Contains(text, "no_such_session") {
		t.Errorf("a session of before: %d %s", status, text)
	}
}

// TestMCPOff: a key of the configuration turns it off.
func TestMCPOff(t *testing.T) {
	r := newPlace(t, "[features]\nmcp = false\n").start()
	if status, text, _ := r.message("", hello); status != 403 || !strings.Contains(text, "feature_off") || !strings.Contains(text, "features.mcp = true") {
		t.Errorf("%d %s", status, text)
	}
}
