package mcp

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"sync"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/internal/canon"
)

// What a client may send.
const (
	maxLine  = 4 << 20 // bytes of a message; palyrad takes a body of 1 MiB by default
	maxDepth = 64      // of a message's JSON
	maxOpen  = 64      // requests that have no answer yet
)

// codeBusy is the code of JSON-RPC's range for servers that says maxOpen is reached.
const codeBusy = -32000

var busy = fmt.Sprintf("%d requests wait for their answers: try again after one", maxOpen)

// conn is a client on two streams, one JSON-RPC message a line. A line that is none is
// answered and costs nothing else: the next one is read. The SDK's own transport ends there.
type conn struct {
	lines  chan line
	closed chan struct{}
	over   chan struct{} // closed when the client has hung up, or with closed
	once   sync.Once
	ending sync.Once
	// asked sees the client's requests, answered has its answers to ours. Set before the first Read,
	// or nil.
	asked    func(*jsonrpc.Request)
	answered func(message []byte)

	mu   sync.Mutex
	w    io.Writer           // guarded by mu
	open map[jsonrpc.ID]bool // guarded by mu; requests that have no answer yet
}

var _ sdk.Transport = (*conn)(nil)
var _ sdk.Connection = (*conn)(nil)

// line is what was read up to a line feed.
type line struct {
	text []byte
	long bool // more than maxLine; the text was dropped
	err  error
}

func newConn(r io.Reader, w io.Writer) *conn {
	c := &conn{lines: make(chan line), closed: make(chan struct{}), over: make(chan struct{}), w: w, open: map[jsonrpc.ID]bool{}}
	// The goroutine lasts until r ends: a read of standard input can't be interrupted.
	go c.read(bufio.NewReaderSize(r, 64<<10))
	return c
}

func (c *conn) read(r *bufio.Reader) {
	defer c.end()
	for {
		l := nextLine(r)
		if l.err != nil {
			c.end() // no one may come for the line
		}
		select {
		case c.lines <- l:
		case <-c.closed:
			return
		}
		if l.err != nil {
			return
		}
	}
}

// nextLine reads a line and keeps no more than maxLine bytes of it.
func nextLine(r *bufio.Reader) (l line) {
	for {
		part, err := r.ReadSlice('\n')
		if !l.long && len(l.text)+len(part) > maxLine {
			l.text, l.long = nil, true
		}
		if !l.long {
			l.text = append(l.text, part...)
		}
		switch {
		case err == nil:
			return l
		case !errors.Is(err, bufio.ErrBufferFull):
			return line{err: err}
		}
	}
}

// Connect implements sdk.Transport.
func (c *conn) Connect(context.Context) (sdk.Connection, error) { return c, nil }

// SessionID implements sdk.Connection: there is one session.
func (c *conn) SessionID() string { return "" }

// Close implements sdk.Connection.
func (c *conn) Close() error {
	c.once.Do(func() { close(c.closed) })
	c.end()
	return nil
}

func (c *conn) end() { c.ending.Do(func() { close(c.over) }) }

// Read implements sdk.Connection.
func (c *conn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		var l line
		select {
		case l = <-c.lines:
		case <-c.closed:
			return nil, io.EOF
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if l.err != nil {
			return nil, l.err
		}
		if !l.long && len(bytes.TrimSpace(l.text)) == 0 {
			continue
		}
		req, no := c.accept(l)
		if no != nil {
			if err := c.send(no, nil); err != nil {
				return nil, err
			}
			continue
		}
		if req != nil {
			return req, nil
		}
	}
}

// Write implements sdk.Connection.
func (c *conn) Write(_ context.Context, msg jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(msg)
	if err != nil {
		return err
	}
	r, _ := msg.(*jsonrpc.Response)
	return c.send(b, r)
}

// send writes a message. answer is the response that it is, if it answers a request.
func (c *conn) send(b []byte, answer *jsonrpc.Response) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if answer != nil {
		delete(c.open, answer.ID)
	}
	_, err := c.w.Write(append(b, '\n'))
	return err
}

// accept makes a request of a line, or says no. Both are nil for an answer of the client's, which
// answered has then.
func (c *conn) accept(l line) (req *jsonrpc.Request, no []byte) {
	if l.long {
		return nil, refusal(nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("a message of more than %d bytes", maxLine))
	}
	req, raw, bad := readMessage(l.text)
	if bad != nil {
		return nil, bad.answer()
	}
	if req == nil && c.answered != nil {
		c.answered(l.text)
	}
	if req != nil && c.asked != nil {
		c.asked(req)
	}
	if req == nil || !req.IsCall() {
		return req, nil
	}
	id := req.ID
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.open[id]:
		return nil, refusal(nil, jsonrpc.CodeInvalidRequest, fmt.Sprintf("the id %s is in use", raw))
	case len(c.open) >= maxOpen:
		return nil, refusal(raw, codeBusy, busy)
	}
	c.open[id] = true
	return req, nil
}

// notMessage is why something is no request.
type notMessage struct {
	id   json.RawMessage // nil: it isn't known
	code int64           // of JSON-RPC
	why  string
}

// Error implements error.
func (n *notMessage) Error() string { return n.why }

func (n *notMessage) answer() []byte { return refusal(n.id, n.code, n.why) }

// readMessage reads a message: a request with its id as it was written, or why it is none. Both
// are nil for an answer of the client's.
func readMessage(text []byte) (req *jsonrpc.Request, raw json.RawMessage, no *notMessage) {
	var whole json.RawMessage
	if err := canon.Decode(text, &whole, canon.Limits{Bytes: maxLine, Depth: maxDepth}); err != nil {
		return nil, nil, &notMessage{nil, jsonrpc.CodeParseError, err.Error()}
	}
	invalid := func(id json.RawMessage, why string) (*jsonrpc.Request, json.RawMessage, *notMessage) {
		return nil, nil, &notMessage{id, jsonrpc.CodeInvalidRequest, why}
	}
	var m map[string]json.RawMessage
	switch err := json.Unmarshal(whole, &m); {
	case bytes.TrimSpace(whole)[0] == '[':
		return invalid(nil, "batches are not taken: send one message a line")
	case err != nil:
		return invalid(nil, "a message is a JSON object")
	}
	raw, asks := m["id"]
	id, err := idOf(raw)
	if asks && err != nil {
		return invalid(nil, err.Error())
	}
	if string(m["jsonrpc"]) != `"2.0"` {
		return invalid(raw, `want "jsonrpc": "2.0"`)
	}
	if m["method"] == nil {
		if asks && (m["result"] != nil || m["error"] != nil) {
			return nil, nil, nil
		}
		return invalid(raw, "no method")
	}
	req = &jsonrpc.Request{ID: id, Params: m["params"]}
	if json.Unmarshal(m["method"], &req.Method) != nil || string(m["method"]) == "null" {
		return invalid(raw, "a method is a string")
	}
	if p := req.Params; p != nil && p[0] != '{' {
		return invalid(raw, "params are an object")
	}
	return req, raw, nil
}

var wholeNumber = regexp.MustCompile(`^-?[0-9]{1,15}$`) // that a double holds

// idOf reads the id of a request. Fractions and numbers that a double rounds would come
// back as others.
func idOf(raw json.RawMessage) (jsonrpc.ID, error) {
	var v any
	if len(raw) > 256 || json.Unmarshal(raw, &v) != nil {
		return jsonrpc.ID{}, errors.New("an id is a string of at most 254 bytes or a whole number")
	}
	switch v.(type) {
	case string:
	case float64:
		if !wholeNumber.Match(raw) {
			return jsonrpc.ID{}, errors.New("an id is a whole number of at most 15 digits, or a string")
		}
	default:
		return jsonrpc.ID{}, errors.New("an id is a string or a whole number")
	}
	return jsonrpc.MakeID(v)
}

// refusal is the answer to what is no request. A nil id becomes null, as JSON-RPC has it.
func refusal(id json.RawMessage, code int64, why string) []byte {
	if id == nil {
		id = json.RawMessage("null")
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "error": &jsonrpc.Error{Code: code, Message: why}})
	if err != nil {
		panic("mcp: internal error: a refusal that is no JSON") // id was read, the rest is ours
	}
	return b
}
