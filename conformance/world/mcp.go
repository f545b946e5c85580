package world

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
)

// mcp serves the Model Context Protocol over HTTP (Streamable HTTP), at /mcp/KIND and, for those
// with the token, at /private/mcp/KIND. It has one tool, say, which gives its argument text back;
// login says what the server got as Authorization. The kinds are ways to answer a call of a tool,
// or all:
//
//	plain    JSON
//	events   a stream, cut before the answer, which resuming gives
//	moved    307 to plain
//	away     307 to the same on other.example
//	login    401
//	forget   plain, in a session that is over after its first call
//	silent   nothing, ever
//	forever  a stream of comments without an end
//	flood    an event without an end
//	cut      a stream that ends before the answer, and can't be resumed
func (w *World) mcp(out http.ResponseWriter, r *http.Request) {
	kind := r.PathValue("kind")
	switch kind {
	case "moved":
		http.Redirect(out, r, "plain", http.StatusTemporaryRedirect)
		return
	case "away":
		http.Redirect(out, r, "https://other.example/mcp/plain", http.StatusTemporaryRedirect)
		return
	case "login":
		out.Header().Set("WWW-Authenticate", `Bearer resource_metadata="https://`+r.Host+`/.well-known/oauth-protected-resource"`)
		http.Error(out, "log in", http.StatusUnauthorized)
		return
	}
	session := r.Header.Get("Mcp-Session-Id")
	switch last := r.Header.Get("Last-Event-ID"); {
	case r.Method == http.MethodDelete:
		w.endSession(session)
		return
	case r.Method == http.MethodGet && last == "":
		http.Error(out, "no stream", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodGet:
		out.Header().Set("Content-Type", "text/event-stream")
		fmt.Fprintf(flushing{out}, "data: %s\n\n", w.resumed(last))
		return
	}
	var m struct {
		ID     json.RawMessage
		Method string
		Params struct {
			Name      string
			Arguments struct{ Text string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&m); err != nil {
		http.Error(out, "no JSON", http.StatusBadRequest)
		return
	}
	answer := func(result any) string {
		b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": m.ID, "result": result})
		if err != nil {
			panic("world: internal error: " + err.Error())
		}
		return string(b)
	}
	plain := func(text string) {
		out.Header().Set("Content-Type", "application/json")
		io.WriteString(out, text)
	}
	if m.Method != "initialize" && !w.inSession(session) {
		http.Error(out, "no such session", http.StatusNotFound)
		return
	}
	switch {
	case m.Method == "initialize":
		out.Header().Set("Mcp-Session-Id", w.newSession())
		plain(answer(map[string]any{"protocolVersion": "2025-06-18", "capabilities": map[string]any{"tools": map[string]any{}}, "serverInfo": map[string]string{"name": "world", "version": "1"}}))
	case m.ID == nil:
		out.WriteHeader(http.StatusAccepted)
	case m.Method == "tools/list":
		schema := map[string]any{"type": "object"}
		plain(answer(map[string]any{"tools": []any{map[string]any{"name": "say", "inputSchema": schema}, map[string]any{"name": "login", "inputSchema": schema}}}))
	case m.Method != "tools/call":
		plain(fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"error":{"code":-32601,"message":"no such method"}}`, m.ID))
	default:
		text := "you said " + m.Params.Arguments.Text
		if m.Params.Name == "login" {
			text = "you are " + r.Header.Get("Authorization")
		}
		said := answer(map[string]any{"content": []any{map[string]string{"type": "text", "text": text}}})
		w.called(out, r, kind, said, plain)
		if kind == "forget" {
			w.endSession(session)
		}
	}
}

// called answers a call of a tool, as its kind does.
func (w *World) called(out http.ResponseWriter, r *http.Request, kind, said string, plain func(string)) {
	events := func(text string) error {
		out.Header().Set("Content-Type", "text/event-stream")
		_, err := io.WriteString(flushing{out}, text)
		return err
	}
	switch kind {
	case "events":
		events("id: " + w.later(said) + "\nretry: 1\ndata:\n\n")
	case "silent":
		<-r.Context().Done()
	case "forever":
		for line := ": and then\n\n"; events(line) == nil; {
		}
	case "flood":
		for line := "data: " + strings.Repeat("and then ", 1000) + "\n"; events(line) == nil; {
		}
	case "cut":
		events("data: {\"jsonrpc\":\"2.0\",\"method\":\"notifications/message\",\"params\":{}}\n\n")
	default:
		plain(said)
	}
}

// sessions are those of the world's MCP servers, and what is to be said to who resumes.
type sessions struct {
	n     int
	open  map[string]bool
	later map[string]string
}

func (w *World) newSession() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sessions.open == nil {
		w.sessions.open, w.sessions.later = make(map[string]bool), make(map[string]string)
	}
	w.sessions.n++
	id := fmt.Sprintf("session-%d", w.sessions.n)
	w.sessions.open[id] = true
	return id
}

func (w *World) inSession(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sessions.open[id]
}

func (w *World) endSession(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.sessions.open, id)
}

// Sessions returns how many sessions of MCP are open.
func (w *World) Sessions() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sessions.open)
}

// later keeps what is said to who resumes from the event whose id it returns.
func (w *World) later(text string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sessions.n++
	id := fmt.Sprintf("event-%d", w.sessions.n)
	w.sessions.later[id] = text
	return id
}

func (w *World) resumed(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	defer delete(w.sessions.later, id)
	return w.sessions.later[id]
}
