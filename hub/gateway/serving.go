package gateway

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel"
)

// The bounds of what a server may say.
const (
	maxLine        = 4 << 20 // bytes of a message
	maxDepth       = 64
	maxUnasked     = 4096     // messages that answer nothing, since the last answer to a call
	maxNoise       = 16 << 20 // bytes of them
	maxQueued      = 64       // our messages that it hasn't read
	maxQueuedBytes = 2 << 20  // bytes of them, or one message
	maxOpen        = 64       // our requests that it hasn't answered
)

// handshake bounds the time from a server's start to its list of tools.
const handshake = time.Minute

// versions are those of the protocol in which a server is spoken with, the newest first.
var versions = []string{"2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"}

// serving is a server that runs, or is about to. Write, which the gate calls with its standard
// output, takes messages apart; there is no goroutine for them.
type serving struct {
	server, session, id string
	user                string                 // on whose behalf it was started
	run                 atomic.Pointer[string] // of its own call; nil before there is one
	waiters             int                    // guarded by Gateway.mu; callers in Gateway.up

	begun    chan struct{} // closed when run is set
	attached chan struct{} // closed when its own call's intent is on record
	ready    chan struct{} // closed when its tools are known
	gone     chan struct{} // closed when it can be asked nothing more
	in       *inlet

	mu      sync.Mutex
	cancel  context.CancelCauseFunc // guarded by mu; of its own call
	claimed bool                    // guarded by mu; its own call has begun
	err     error                   // guarded by mu; why it's gone
	call    string                  // guarded by mu; its own call,
	intent  uint64                  // guarded by mu; that call's intent,
	program canon.Digest            // guarded by mu; and what its capsule says of the program
	tools   []hub.ServerTool        // guarded by mu; as it listed them last

	part    []byte // guarded by mu; of a line
	next    int64  // guarded by mu; the id of the next request
	waiting map[int64]chan reply
	left    map[int64]bool // guarded by mu, as waiting is; requests whose callers have gone
	unasked int            // guarded by mu; see maxUnasked
	noise   int            // guarded by mu
	users   int            // guarded by mu; exchanges under way
	idle    *time.Timer    // guarded by mu; ends it when it wasn't asked for long
}

// reply is the answer to a request: one of the two.
type reply struct {
	Result json.RawMessage
	Error  json.RawMessage
}

func newServing(server, session, user, id string) *serving {
	return &serving{server: server, session: session, user: user, id: id, begun: make(chan struct{}), attached: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{}),
		in: newInlet(), waiting: map[int64]chan reply{}, left: map[int64]bool{}, next: 1}
}

// claim makes a call the server's own, once.
func (s *serving) claim(ctx context.Context) (context.Context, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed || s.err != nil {
		return ctx, fault.New(fault.Refused, "server_died", "start server", errors.New("nobody waits for this call"))
	}
	s.claimed = true
	ctx, s.cancel = context.WithCancelCause(ctx)
	return ctx, nil
}

// observe learns what the gate says of the server's own call.
func (s *serving) observe(e kernel.Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch e.Step {
	case kernel.StepSealed:
		s.call, s.program = e.CallID, e.Program
	case kernel.StepIntent:
		s.intent = *e.LogIndex
		close(s.attached)
	}
}

// fail ends the server with the reason that its callers are told. Only the first one counts.
func (s *serving) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failLocked(err)
}

func (s *serving) failLocked(err error) {
	if s.err != nil {
		return
	}
	s.err = err
	close(s.gone)
	s.in.close()
	if s.idle != nil {
		s.idle.Stop()
	}
	if s.cancel != nil {
		s.cancel(err)
	}
}

// farewell is how long a server that did nothing wrong has to end when its input does, as the
// protocol wants it: one that is reached over HTTP ends its session meanwhile.
const farewell = 3 * time.Second

// dismissLocked is failLocked for such a server.
func (s *serving) dismissLocked(err error) {
	end := s.cancel
	s.cancel = nil
	s.failLocked(err)
	if end != nil {
		time.AfterFunc(farewell, func() { end(err) }) // no more than a cancel of what may be over
	}
}

// died says why the server can't be asked.
func (s *serving) died() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *serving) over() bool {
	select {
	case <-s.gone:
		return true
	default:
		return false
	}
}

func (s *serving) fault(kind fault.Kind, reason, format string, args ...any) error {
	err := fault.New(kind, reason, fmt.Sprintf("ask server %q", s.server), fmt.Errorf(format, args...))
	if run := s.run.Load(); run != nil {
		return err.WithHint("palyra runs output " + *run + " has what it wrote to standard error")
	}
	return err
}

func (s *serving) wrong(format string, args ...any) error {
	return s.fault(fault.Unavailable, "server_protocol", format, args...)
}

// Write implements io.Writer for the server's standard output.
func (s *serving) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(b)
	for len(b) > 0 && s.err == nil {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if len(s.part)+len(line) > maxLine {
			s.failLocked(s.wrong("it sent a message of more than %d bytes", maxLine))
			break
		}
		s.part = append(s.part, line...)
		if !whole {
			break
		}
		text := s.part
		s.part, b = nil, rest
		if len(bytes.TrimSpace(text)) == 0 {
			continue
		}
		if err := s.takeLocked(text); err != nil {
			s.failLocked(err)
		}
	}
	if s.err != nil {
		return 0, s.err
	}
	return n, nil
}

// takeLocked takes a message of the server's.
func (s *serving) takeLocked(text []byte) error {
	var whole json.RawMessage
	if err := canon.Decode(text, &whole, canon.Limits{Bytes: maxLine, Depth: maxDepth}); err != nil {
		return s.wrong("it sent what is no message: %v", err)
	}
	var m map[string]json.RawMessage
	if json.Unmarshal(whole, &m) != nil || string(m["jsonrpc"]) != `"2.0"` {
		return s.wrong("it sent what is no message of JSON-RPC 2.0")
	}
	if m["method"] == nil {
		return s.answerLocked(m)
	}
	if s.unasked++; s.unasked > maxUnasked {
		return s.fault(fault.Unavailable, "server_protocol", "it sent more than %d messages that answer nothing", maxUnasked)
	}
	if s.noise += len(text); s.noise > maxNoise {
		return s.fault(fault.Unavailable, "server_protocol", "it sent more than %d bytes that answer nothing", maxNoise)
	}
	if m["id"] == nil {
		return nil // a notification
	}
	var method string
	if json.Unmarshal(m["method"], &method) != nil || len(m["id"]) > 256 {
		return s.wrong("it sent a request without a method, or with a long id")
	}
	out := map[string]any{"jsonrpc": "2.0", "id": m["id"]}
	if method == "ping" {
		out["result"] = map[string]any{}
	} else {
		out["error"] = map[string]any{"code": -32601, "message": refusal(method)}
	}
	b, err := json.Marshal(out)
	if err != nil {
		return s.wrong("it sent an id that is none")
	}
	if !s.in.put(0, b) {
		return s.fault(fault.Unavailable, "server_protocol", "it asks and reads no answers")
	}
	return nil
}

// refusal is what a server is told that asks for something of its client's.
func refusal(method string) string {
	what, _, _ := strings.Cut(method, "/")
	switch what {
	case "sampling", "roots", "elicitation":
		return what + " is refused: Palyra's gateway passes calls of tools alone"
	}
	return "not served: Palyra's gateway passes calls of tools alone"
}

func (s *serving) answerLocked(m map[string]json.RawMessage) error {
	var id int64
	if json.Unmarshal(m["id"], &id) != nil || string(m["id"]) == "null" {
		return s.wrong("it answered %.80q, which nobody asked", m["id"])
	}
	if (m["result"] == nil) == (m["error"] == nil) {
		return s.wrong("its answer %d is neither a result nor an error", id)
	}
	if s.left[id] { // its caller has gone
		delete(s.left, id)
		return nil
	}
	to := s.waiting[id]
	if to == nil {
		return s.wrong("it answered %d, which nobody asked or which it answered before", id)
	}
	delete(s.waiting, id)
	to <- reply{m["result"], m["error"]} // it has room
	return nil
}

// heard counts what the server says besides answers anew. An answer to a question of the gateway's
// own is no reason: how many of these there are is the server's choice.
func (s *serving) heard() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unasked, s.noise = 0, 0
}

// request asks the server, and says whether the question may have reached it.
func (s *serving) request(ctx context.Context, method string, params any) (r reply, sent bool, err error) {
	s.mu.Lock()
	id, to := s.next, make(chan reply, 1)
	switch {
	case s.err != nil:
		err = s.err
	case len(s.waiting)+len(s.left) >= maxOpen:
		err = s.fault(fault.Unavailable, "too_many", "it has %d questions that it hasn't answered", maxOpen)
	default:
		s.next++
		s.waiting[id] = to
	}
	s.mu.Unlock()
	if err != nil {
		return r, false, err
	}
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": id, "method": method, "params": params})
	if err == nil {
		err = s.in.send(ctx, id, b)
	}
	if err != nil {
		s.forget(id, false)
		return r, false, s.gaveUp(ctx, method)
	}
	select {
	case r = <-to:
		return r, true, nil
	case <-s.gone:
		select {
		case r = <-to:
			return r, true, nil
		default:
		}
		return r, !s.in.withdraw(id), s.died()
	case <-ctx.Done():
		sent = !s.in.withdraw(id)
		s.forget(id, sent)
		return r, sent, s.gaveUp(ctx, method)
	}
}

// forget ends the wait for an answer, which may come if the question was sent.
func (s *serving) forget(id int64, sent bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.waiting[id] == nil {
		return
	}
	delete(s.waiting, id)
	if !sent || s.err != nil {
		return
	}
	s.left[id] = true
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "method": "notifications/cancelled", "params": map[string]any{"requestId": id}})
	if err == nil {
		s.in.put(0, b) // without room the server reads nothing anyhow
	}
}

// gaveUp is the error of a question whose caller waits no longer. A server that lets the time
// pass is ended: it hangs.
func (s *serving) gaveUp(ctx context.Context, method string) error {
	if err := s.died(); err != nil {
		return err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err := s.fault(fault.Timeout, "timeout", "it didn't answer %s in time, and was ended", method)
		s.fail(err)
		return err
	}
	return fault.New(fault.Canceled, "canceled", fmt.Sprintf("ask server %q", s.server), context.Cause(ctx))
}

// begin makes the connection and lists the tools.
func (s *serving) begin(ctx context.Context, version string) error {
	ctx, cancel := context.WithTimeout(ctx, handshake)
	defer cancel()
	r, _, err := s.request(ctx, "initialize", map[string]any{"protocolVersion": versions[1], "capabilities": map[string]any{},
		"clientInfo": map[string]any{"name": "palyra", "version": version}})
	if err != nil {
		return err
	}
	var hello struct {
		ProtocolVersion string `json:"protocolVersion"`
	}
	if r.Error != nil {
		err := s.wrong("it refuses to begin: %s", said(r.Error))
		s.fail(err)
		return err
	}
	if json.Unmarshal(r.Result, &hello) != nil || !slices.Contains(versions, hello.ProtocolVersion) {
		err := s.wrong("it speaks none of the versions %s: %.200s", strings.Join(versions, ", "), text(r))
		s.fail(err)
		return err
	}
	if err := s.in.send(ctx, 0, []byte(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)); err != nil {
		return s.gaveUp(ctx, "initialize")
	}
	if _, err := s.list(ctx); err != nil {
		return err
	}
	close(s.ready)
	return nil
}

// list asks for the tools.
func (s *serving) list(ctx context.Context) (list []hub.ServerTool, err error) {
	cursor, total := "", 0
	for page := 0; ; page++ {
		params := map[string]any{}
		if cursor != "" {
			params["cursor"] = cursor
		}
		r, _, err := s.request(ctx, "tools/list", params)
		if err != nil {
			return nil, err
		}
		var got struct {
			Tools      []json.RawMessage `json:"tools"`
			NextCursor string            `json:"nextCursor"`
		}
		if total += len(r.Result); total > maxLine {
			err = s.wrong("its list of tools has more than %d bytes", maxLine)
		} else if r.Error != nil || json.Unmarshal(r.Result, &got) != nil {
			err = s.wrong("it lists no tools: %.200s", text(r))
		} else if list, err = add(list, got.Tools); err != nil {
			err = s.wrong("its list of tools: %w", err)
		} else if got.NextCursor != "" && page >= maxPages {
			err = s.wrong("its list of tools has more than %d pages", maxPages)
		}
		if err != nil {
			s.fail(err)
			return nil, err
		}
		if cursor = got.NextCursor; cursor == "" {
			break
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tools = list
	return list, nil
}

// said quotes what an error of JSON-RPC says.
func said(b json.RawMessage) string {
	var e struct {
		Message string `json:"message"`
	}
	if json.Unmarshal(b, &e) != nil || e.Message == "" {
		return fmt.Sprintf("%.400q", b)
	}
	return fmt.Sprintf("%.400q", e.Message)
}

// text quotes a reply for an error.
func text(r reply) string {
	b := r.Result
	if r.Error != nil {
		b = r.Error
	}
	return fmt.Sprintf("%.200q", b)
}

// inlet is a server's standard input: messages that wait to be read.
type inlet struct {
	room   chan struct{} // has an element when there may be room
	some   chan struct{} // has one when a message was put in
	closed chan struct{}
	once   sync.Once
	rest   []byte // owned by the reader

	mu    sync.Mutex
	queue []message // guarded by mu
	bytes int       // guarded by mu; in queue
}

// message is a line for a server. id is that of a request, 0 for others.
type message struct {
	id   int64
	line []byte
}

var _ io.Reader = (*inlet)(nil)

func newInlet() *inlet {
	return &inlet{room: make(chan struct{}, 1), some: make(chan struct{}, 1), closed: make(chan struct{})}
}

func (i *inlet) close() { i.once.Do(func() { close(i.closed) }) }

// Read implements io.Reader.
func (i *inlet) Read(p []byte) (int, error) {
	for len(i.rest) == 0 {
		if i.rest = i.take(); i.rest != nil {
			break
		}
		select {
		case <-i.some:
		case <-i.closed:
			return 0, io.EOF
		}
	}
	n := copy(p, i.rest)
	i.rest = i.rest[n:]
	return n, nil
}

// wake puts an element into a channel that has room for one.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take takes the first message out; nil: there is none.
func (i *inlet) take() []byte {
	i.mu.Lock()
	defer i.mu.Unlock()
	if len(i.queue) == 0 {
		return nil
	}
	return i.dropLocked(0)
}

func (i *inlet) dropLocked(at int) []byte {
	line := i.queue[at].line
	i.queue, i.bytes = slices.Delete(i.queue, at, at+1), i.bytes-len(line)
	wake(i.room)
	return line
}

// withdraw takes a request out, and reports whether it was still there.
func (i *inlet) withdraw(id int64) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	at := slices.IndexFunc(i.queue, func(m message) bool { return m.id == id })
	if at < 0 {
		return false
	}
	i.dropLocked(at)
	return true
}

// put puts a message in, and reports whether there was room, or nothing else.
func (i *inlet) put(id int64, b []byte) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	b = append(b, '\n')
	if n := len(i.queue); n >= maxQueued || n > 0 && i.bytes+len(b) > maxQueuedBytes {
		return false
	}
	i.queue, i.bytes = append(i.queue, message{id, b}), i.bytes+len(b)
	wake(i.some)
	if i.bytes < maxQueuedBytes {
		wake(i.room) // one more may wait
	}
	return true
}

// send puts a message in, and waits for room.
func (i *inlet) send(ctx context.Context, id int64, b []byte) error {
	for {
		select {
		case <-i.closed:
			return io.ErrClosedPipe
		default:
		}
		if i.put(id, b) {
			return nil
		}
		select {
		case <-i.room:
		case <-i.closed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
