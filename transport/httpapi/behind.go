package httpapi

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/behind"
)

// mcpMessage is a message of JSON-RPC.
type mcpMessage struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id,omitempty"` // a text or a whole number; missing from notifications
	Method  string          `json:"method,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   json.RawMessage `json:"error,omitempty"`
}

// mcpInput is a message, and what the client's calls have in common.
type mcpInput struct {
	Workspace string     `json:"workspace" in:"query" doc:"the workspace of calls that name none"`
	Message   mcpMessage `json:"message" in:"body"`
}

// mcpServerInput is mcpInput for the tools of one server.
type mcpServerInput struct {
	Server    string     `json:"server" in:"path"`
	Workspace string     `json:"workspace" in:"query" doc:"the workspace of calls that name none"`
	Message   mcpMessage `json:"message" in:"body"`
}

// mcpOperations are the requests of the Model Context Protocol's Streamable HTTP.
var mcpOperations = []*hub.Operation{
	{ID: "mcp", Tag: "mcp", Method: post, Path: "/mcp", Root: true, Permission: "run.start", Status: http.StatusOK, Also: []int{http.StatusAccepted},
		Summary: "Send a message of the Model Context Protocol", Doc: "Streamable HTTP, as docs/formats/mcp.md has it. Headers and errors of the protocol are its own.",
		In: api.Type[mcpInput](), Media: []string{hub.MediaJSON, hub.MediaSSE}},
	{ID: "mcpEnd", Tag: "mcp", Method: http.MethodDelete, Path: "/mcp", Root: true, Permission: "run.start", Status: http.StatusNoContent,
		Summary: "End the session of the Model Context Protocol that Mcp-Session-Id names", Ends: true},
	{ID: "mcpServer", Tag: "mcp", Method: post, Path: "/mcp/{server}", Root: true, Permission: "run.start", Status: http.StatusOK, Also: []int{http.StatusAccepted},
		Summary: "Send a message of the Model Context Protocol for one MCP server", Doc: "As at /mcp, with the accepted tools of the server under their own names.",
		In: api.Type[mcpServerInput](), Media: []string{hub.MediaJSON, hub.MediaSSE}},
	{ID: "mcpServerEnd", Tag: "mcp", Method: http.MethodDelete, Path: "/mcp/{server}", Root: true, Permission: "run.start", Status: http.StatusNoContent,
		Summary: "End such a session", Ends: true, In: api.Type[string]()},
}

// speak has the protocol answer. A request that it doesn't answer is a problem as any other.
func speak(x *exchange) error {
	p := x.s.cfg.MCP
	if p == nil {
		return featureOff(x, "mcp")
	}
	if x.raw != nil {
		for _, media := range []string{hub.MediaJSON, hub.MediaSSE} {
			if _, err := accepts(x.r.Header, media); err != nil {
				return answered(406, "choose media type", errors.New("want Accept: application/json, text/event-stream"))
			}
		}
	}
	return p.Serve(x.timed(), x.r, x.visitor())
}

// timed is the writer for an answer of a protocol's.
func (x *exchange) timed() http.ResponseWriter {
	return &timed{ResponseWriter: x.w, limit: x.s.lim.Write, connection: x.w.Header().Get("Connection")}
}

// visitor is the request for a protocol.
func (x *exchange) visitor() *behind.Visitor {
	s, caller, payer := x.s, x.caller, x.payer()
	return &behind.Visitor{
		Caller: caller, Body: x.raw, Workspace: x.query.Get("workspace"), Server: x.r.PathValue("server"), Hub: inner{s, caller, x.rt.ID},
		May: func() error {
			if s.cfg.Check == nil {
				return nil
			}
			c := caller
			c.Policies = "" // other policies are no reason to end a session
			return s.cfg.Check(c)
		},
		Hold: func(bytes int64) (func(), error) {
			h, err := s.streams.reserve(payer, bytes)
			if err != nil {
				return nil, err
			}
			return h.Release, nil
		},
	}
}

// featureOff refuses a surface that the configuration turns off.
func featureOff(x *exchange, name string) error {
	hint := "whoever configures this daemon can set features." + name + " = true"
	err := fault.New(fault.Denied, "feature_off", x.rt.Verb(), &hub.DenialError{Denial: hub.Denial{
		DecisionID: idOf(x.r), Layer: hub.LayerAccess, Reason: "feature_off", Policies: []string{"feature:" + name}, Fix: hint}}).WithHint(hint)
	if x.s.cfg.Denied != nil {
		x.s.cfg.Denied(x.caller, *hub.DenialOf(err))
	}
	return err
}

// inner is the hub as one caller has it over this server, for a protocol behind it: with the
// same permissions, and no more in answers and errors than in those of the other routes.
type inner struct {
	s      *Server
	caller hub.Caller
	route  string
}

// Do implements hub.Hub.
func (h inner) Do(ctx context.Context, _ hub.Caller, op *hub.Operation, in any) (any, error) {
	id := newID()
	p := op.Permission
	var out any
	err := error(nil)
	if p == hub.Authenticated || h.caller.Scopes == nil || holds(h.caller.Scopes, p) {
		out, err = h.s.cfg.Hub.Do(ctx, h.caller, op, in)
	} else {
		err = denied(p, id)
		if h.s.cfg.Denied != nil {
			h.s.cfg.Denied(h.caller, *hub.DenialOf(err))
		}
	}
	if err != nil {
		if ctx.Err() == nil {
			h.s.note(ctx, id, h.route+" "+op.ID, h.caller.User, 0, err)
		}
		told := api.ProblemOf(err, id, h.caller.ReadsPolicy)
		return nil, told.Err(op.Verb())
	}
	if h.caller.ReadsPolicy {
		return out, nil
	}
	switch v := out.(type) {
	case hub.Run:
		return redactRun(v), nil
	case hub.Tape:
		return reducedTape{v}, nil
	}
	return out, nil
}

// reducedTape is a tape for a caller who may not read policy.
type reducedTape struct{ hub.Tape }

// Next implements hub.Tape.
func (t reducedTape) Next(ctx context.Context) (hub.Event, error) {
	ev, err := t.Tape.Next(ctx)
	if err == nil {
		if data, ok := redactEvent(ev); ok {
			ev.Data = data
		}
	}
	return ev, err
}

// timed is the writer of an answer that comes in pieces: for each the client has its time.
// It keeps the headers that are this server's to set.
type timed struct {
	http.ResponseWriter
	limit      time.Duration
	connection string // "": as usual
	begun      bool
}

// WriteHeader implements http.ResponseWriter.
func (w *timed) WriteHeader(status int) {
	w.begun = true
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Del("Connection")
	if w.connection != "" {
		h.Set("Connection", w.connection)
	}
	w.late()
	w.ResponseWriter.WriteHeader(status)
}

// Write implements http.ResponseWriter.
func (w *timed) Write(b []byte) (int, error) {
	if !w.begun {
		w.WriteHeader(http.StatusOK)
	}
	w.late()
	return w.ResponseWriter.Write(b)
}

func (w *timed) late() {
	_ = http.NewResponseController(w.ResponseWriter).SetWriteDeadline(time.Now().Add(w.limit))
}

// Unwrap is for http.ResponseController.
func (w *timed) Unwrap() http.ResponseWriter { return w.ResponseWriter }
