package mcp

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// The headers of the protocol.
const (
	headerSession = "Mcp-Session-Id"
	headerVersion = "Mcp-Protocol-Version"
)

// sessionless is the first version in which each request stands for itself.
const sessionless = "2026-07-28"

// metaVersion is the member of _meta with a request's version, from sessionless on.
const metaVersion = "io.modelcontextprotocol/protocolVersion"

// What a client's seat costs and how long it lasts.
const (
	seatBytes   = 4 << 10  // of memory, without calls
	answerBytes = 64 << 10 // of a call's answer, until the client has it
	seatIdle    = time.Hour
	lookEvery   = 500 * time.Millisecond // as tapes are looked after
)

// Handler serves the tools over HTTP, behind the checks of palyra/transport/httpapi:
//
//	h := mcp.NewHandler(version)
//	s, err := httpapi.New(httpapi.Config{Hub: hub, MCP: h})
//
// What a connection is for Serve, a seat is here: that of a session, which a client opens
// with initialize and names in Mcp-Session-Id; or, for clients of sessionless versions, that
// of the credential, for each workspace and server that their address names. A seat belongs to the
// credential that opened it. It ends with the credential's rights, an hour after its last request,
// when its client says so, or, if nothing is under way in it, when the principal has no room for
// another one. Its calls end with it.
type Handler struct {
	sdk     *sdk.StreamableHTTPHandler
	version string // told to clients
	idle    time.Duration
	nudge   chan struct{}  // tells Begin's wait that there is a seat; never closed
	ended   sync.WaitGroup // seats that are being closed

	mu    sync.Mutex
	ctx   context.Context  // guarded by mu; of Begin, nil while it does not run
	seats map[string]*seat // guarded by mu; by Mcp-Session-Id, or owner
}

var _ behind.Protocol = (*Handler)(nil)

// seat is what a client holds.
type seat struct {
	*server
	key   string
	owner owner
	who   *latest
	leave func() // gives its place back

	visits sync.WaitGroup // of requests

	// Guarded by Handler.mu.
	requests map[jsonrpc.ID]context.CancelFunc // by id, of a session
	open     int
	used     time.Time
}

// owner is whose a seat is. Another token of the same principal is another owner.
type owner struct{ user, token, surface string }

func ownerOf(v *behind.Visitor) owner { return owner{v.Caller.User, v.Caller.Token, v.Caller.Surface} }

// latest asks as the caller of the latest request, with their present rights.
type latest struct {
	v atomic.Pointer[behind.Visitor]
}

// Do implements hub.Hub.
func (l *latest) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	return l.v.Load().Hub.Do(ctx, c, op, in)
}

// NewHandler returns a Handler. version is told to clients.
func NewHandler(version string) *Handler {
	h := &Handler{version: version, idle: seatIdle, nudge: make(chan struct{}, 1), seats: map[string]*seat{}}
	m := newSDK(version, false, nil)
	m.AddReceivingMiddleware(h.receive)
	// httpapi has checked host, origin and size. A stateless transport is the only one that
	// speaks the sessionless versions, and keeps nothing.
	h.sdk = sdk.NewStreamableHTTPHandler(func(r *http.Request) *sdk.Server {
		if own := h.own(r.Context()); own != nil {
			return own
		}
		return m
	},
		&sdk.StreamableHTTPOptions{Stateless: true, MaxRequestBodyBytes: -1, DisableLocalhostProtection: true})
	return h
}

// Begin implements behind.Protocol.
func (h *Handler) Begin(ctx context.Context) (wait func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ctx = ctx
	return func() { h.look(ctx) }
}

// look ends the seats whose time is over, until ctx is done, and then all.
func (h *Handler) look(ctx context.Context) {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	t.Stop() // there is no seat yet
	ticks := false
	for {
		select {
		case <-h.nudge:
			if !ticks {
				t.Reset(lookEvery)
			}
			ticks = true
		case now := <-t.C:
			lost := h.lost()
			if h.end(func(s *seat) bool { return lost[s] || s.open == 0 && now.Sub(s.used) > h.idle }) == 0 {
				t.Stop()
				ticks = false
				h.wake() // one may have come since
			}
		case <-ctx.Done():
			h.mu.Lock()
			h.ctx = nil // no seat comes any more
			h.mu.Unlock()
			h.end(func(*seat) bool { return true })
			h.ended.Wait()
			return
		}
	}
}

// lost returns the seats whose callers may ask no more. Requests don't wait for it.
func (h *Handler) lost() map[*seat]bool {
	h.mu.Lock()
	all := slices.Collect(maps.Values(h.seats))
	h.mu.Unlock()
	lost := map[*seat]bool{}
	for _, s := range all {
		if s.who.v.Load().May() != nil {
			lost[s] = true
		}
	}
	return lost
}

// wake has look go on if there is a seat.
func (h *Handler) wake() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.seats) == 0 {
		return
	}
	select {
	case h.nudge <- struct{}{}:
	default:
	}
}

// end ends the seats for which it is true, and returns how many are left.
func (h *Handler) end(which func(*seat) bool) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, s := range h.seats {
		if which(s) {
			h.endLocked(s)
		}
	}
	return len(h.seats)
}

// endLocked ends a seat. The returned channel is closed when its calls and requests have ended.
func (h *Handler) endLocked(s *seat) <-chan struct{} {
	delete(h.seats, s.key)
	over := make(chan struct{})
	h.ended.Go(func() {
		defer close(over)
		defer s.leave()
		s.close()
		s.visits.Wait()
	})
	return over
}

// take returns the seat of a key, or makes it.
func (h *Handler) take(key string, o owner, v *behind.Visitor) (*seat, error) {
	h.mu.Lock()
	s := h.seats[key]
	h.mu.Unlock()
	if s != nil {
		return s, nil
	}
	leave, err := h.room(v, seatBytes)
	if err != nil {
		return nil, err
	}
	return h.sit(key, o, v, leave)
}

// room takes room for bytes, for which unused seats of the principal give way.
func (h *Handler) room(v *behind.Visitor, bytes int64) (leave func(), err error) {
	for {
		leave, err := v.Hold(bytes)
		if err == nil {
			return leave, nil
		}
		over := h.giveWay(ownerOf(v))
		if over == nil {
			return nil, err
		}
		<-over
	}
}

func (h *Handler) sit(key string, o owner, v *behind.Visitor, leave func()) (*seat, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.seats[key]; s != nil { // another request was faster
		leave()
		return s, nil
	}
	if h.ctx == nil {
		leave()
		return nil, draining()
	}
	s := &seat{key: key, owner: o, who: new(latest), leave: leave, requests: map[jsonrpc.ID]context.CancelFunc{}, used: time.Now()}
	s.who.v.Store(v.Kept())
	s.server = newServer(h.ctx, Config{Hub: s.who, Workspace: v.Workspace, Server: v.Server})
	s.roots.each = strings.HasPrefix(key, "\x00")
	s.title, s.hold = "mcp", func(bytes int64) (func(), error) { return h.room(s.who.v.Load(), bytes) }
	h.seats[key] = s
	select {
	case h.nudge <- struct{}{}:
	default:
	}
	return s, nil
}

// giveWay ends the seat of a principal that was unused for longest, if nothing is under
// way in it, and returns what is closed then; nil: there is none. Tokens take nothing from
// their principal at the socket, which has an account of its own.
func (h *Handler) giveWay(o owner) <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	var oldest *seat
	for _, s := range h.seats {
		if s.owner.user == o.user && (s.owner.token == "") == (o.token == "") && s.open == 0 && !s.holds() && (oldest == nil || s.used.Before(oldest.used)) {
			oldest = s
		}
	}
	if oldest == nil {
		return nil
	}
	return h.endLocked(oldest)
}

func draining() error {
	return fault.New(fault.Unavailable, "not_ready", "serve MCP", errors.New("the server does not serve"))
}

// request is one on its way through the SDK.
type request struct {
	seat *seat
	ctx  context.Context // it is cancelled with this
	gone <-chan struct{} // the client has gone, which ends nothing; nil: it ends ctx
	bad  atomic.Bool     // it was answered with an error

	method string
	params json.RawMessage

	mu sync.Mutex
	w  http.ResponseWriter // guarded by mu; nil: it was answered
}

type requestKey struct{}

// say sends the client a request of ours, as an event before the answer to its own: the SDK has set
// the headers of a stream when a handler runs, and writes nothing before it has ended or tells of
// progress.
func (q *request) say(message []byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.w == nil || q.gone == nil {
		return errors.New("the client can't be asked")
	}
	if _, err := fmt.Fprintf(q.w, "event: message\ndata: %s\n\n", message); err != nil {
		return err
	}
	return http.NewResponseController(q.w).Flush()
}

// over says that no more can be written.
func (q *request) over() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.w = nil
}

// own returns an SDK's server for a request to a seat that offers more than tools, or that calls a
// tool with arguments that are said in headers, too: the SDK compares the two. nil for others.
func (h *Handler) own(ctx context.Context) (own *sdk.Server) {
	q, _ := ctx.Value(requestKey{}).(*request)
	if q == nil {
		return nil
	}
	if offered := q.seat.offered(ctx); offered != nil {
		own = newSDK(h.version, false, offered)
		own.AddReceivingMiddleware(h.receive)
	}
	var p struct {
		Name string `json:"name"`
	}
	if q.method != "tools/call" || json.Unmarshal(q.params, &p) != nil {
		return own
	}
	t, err := q.seat.known(ctx)
	if err != nil {
		return own
	}
	i := slices.IndexFunc(t.list, func(tool *sdk.Tool) bool { return tool.Name == p.Name })
	if i < 0 {
		return own
	}
	if schema, _ := t.list[i].InputSchema.(json.RawMessage); !bytes.Contains(schema, []byte("x-mcp-header")) {
		return own
	}
	defer func() {
		if recover() != nil { // the SDK panics on such members that the protocol doesn't have
			own = nil
		}
	}()
	own = newSDK(h.version, false, t.methods)
	own.AddReceivingMiddleware(h.receive)
	own.AddTool(t.list[i], nothing)
	return own
}

// Serve implements behind.Protocol.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	me := ownerOf(v)
	if r.Method == http.MethodDelete {
		return h.hangUp(w, r, v.Server, me)
	}
	req, raw, bad := readMessage(v.Body)
	switch {
	case bad != nil:
		return fault.New(fault.Usage, "invalid_input", "read message", bad)
	case req == nil: // an answer: of a session that was asked for its client's roots, or to nothing
		if s, err := h.find(r.Header.Get(headerSession), v.Server, me); err == nil {
			s.roots.answered(v.Body)
		}
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	alone := r.Header.Get(headerVersion) >= sessionless || versioned(req.Params)
	s, err := h.seatOf(r, req, me, alone, v)
	if err != nil {
		return err
	}
	s.roots.notice(req)
	if req.Method == "notifications/cancelled" && !alone {
		h.cancel(s, req.Params)
		w.WriteHeader(http.StatusAccepted)
		return nil
	}
	q, done, err := h.open(r, s, req, raw, alone, v)
	if err != nil {
		return err
	}
	defer done()
	b, err := jsonrpc.EncodeMessage(req)
	if err != nil {
		return fault.New(fault.Internal, "internal", "serve MCP", err)
	}
	opens := req.Method == methodInitialize && !alone
	if opens {
		w.Header().Set(headerSession, s.key)
	}
	r = r.WithContext(context.WithValue(r.Context(), requestKey{}, q))
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(b)), int64(len(b))
	rec := &status{ResponseWriter: w}
	q.mu.Lock()
	q.w = rec
	q.mu.Unlock()
	defer q.over()
	h.sdk.ServeHTTP(rec, r)
	if opens && (rec.code != http.StatusOK || q.bad.Load()) {
		h.end(func(x *seat) bool { return x == s })
	}
	return nil
}

const methodInitialize = "initialize"

// seatOf returns the seat that a request is for.
func (h *Handler) seatOf(r *http.Request, req *jsonrpc.Request, me owner, alone bool, v *behind.Visitor) (*seat, error) {
	switch id := r.Header.Get(headerSession); {
	case alone:
		return h.take(strings.Join([]string{"", me.user, me.token, me.surface, v.Workspace, v.Server}, "\x00"), me, v)
	case req.Method == methodInitialize:
		return h.take(rand.Text(), me, v)
	case id == "":
		return nil, fault.New(fault.Usage, "invalid_input", "find MCP session", fmt.Errorf("want %s, or %s %s", headerSession, headerVersion, sessionless)).
			WithHint("initialize gives the session; from version " + sessionless + " on there is none")
	default:
		return h.find(id, v.Server, me)
	}
}

// find returns the seat of a session. One of another credential's doesn't exist.
func (h *Handler) find(id, server string, me owner) (*seat, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if s := h.seats[id]; s != nil && s.owner == me && s.cfg.Server == server && id != "" && id[0] != 0 {
		return s, nil
	}
	return nil, noSession()
}

func noSession() error {
	return fault.New(fault.NotFound, "no_such_session", "find MCP session", errors.New("it has ended, or is another caller's")).WithHint("initialize again")
}

// hangUp ends a session, and answers when its calls have ended.
func (h *Handler) hangUp(w http.ResponseWriter, r *http.Request, server string, me owner) error {
	s, err := h.find(r.Header.Get(headerSession), server, me)
	if err != nil {
		return err
	}
	h.mu.Lock()
	var over <-chan struct{}
	if h.seats[s.key] == s {
		over = h.endLocked(s)
	}
	h.mu.Unlock()
	if over != nil {
		<-over
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// open counts a request, or says no. A request that isn't of a session is cancelled when its
// client goes; another one when it is told so.
func (h *Handler) open(r *http.Request, s *seat, req *jsonrpc.Request, raw json.RawMessage, alone bool, v *behind.Visitor) (q *request, done func(), err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	ctx := r.Context()
	q = &request{seat: s, method: req.Method, params: req.Params}
	if !alone {
		q.gone, ctx = ctx.Done(), context.WithoutCancel(ctx)
	}
	if h.seats[s.key] != s {
		return nil, nil, noSession()
	}
	if s.open >= maxOpen {
		return nil, nil, fault.New(fault.Unavailable, "too_many", "serve MCP", errors.New(busy))
	}
	call := req.IsCall() && !alone
	if call && s.requests[req.ID] != nil {
		return nil, nil, fault.New(fault.Usage, "invalid_input", "read message", fmt.Errorf("the id %s is in use", raw))
	}
	var cancel context.CancelFunc
	q.ctx, cancel = context.WithCancel(ctx)
	if call {
		s.requests[req.ID] = cancel
	}
	s.open++
	s.visits.Add(1)
	s.used = time.Now()
	s.who.v.Store(v.Kept())
	return q, func() {
		defer s.visits.Done()
		cancel()
		h.mu.Lock()
		defer h.mu.Unlock()
		if call {
			delete(s.requests, req.ID)
		}
		s.open--
		s.used = time.Now()
	}, nil
}

// cancel cancels the request that a notification names.
func (h *Handler) cancel(s *seat, params json.RawMessage) {
	var p struct {
		ID json.RawMessage `json:"requestId"`
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	id, err := idOf(p.ID)
	if err != nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if end := s.requests[id]; end != nil {
		end()
	}
}

// receive answers in the seat of the request.
func (h *Handler) receive(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, req sdk.Request) (sdk.Result, error) {
		q, _ := ctx.Value(requestKey{}).(*request)
		if q == nil {
			return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "no request"}
		}
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(q.ctx, cancel)()
		res, err := q.seat.receive(next)(ctx, method, req)
		if err != nil {
			q.bad.Store(true)
		}
		return res, err
	}
}

// goneOf returns what is closed when the client of a request has gone and the request is to
// be put off, nil for a request that ends then.
func goneOf(ctx context.Context) <-chan struct{} {
	if q, ok := ctx.Value(requestKey{}).(*request); ok {
		return q.gone
	}
	return nil
}

// versioned says that a request's parameters have a version.
func versioned(params json.RawMessage) bool {
	var p struct {
		Meta map[string]json.RawMessage `json:"_meta"`
	}
	return json.Unmarshal(params, &p) == nil && p.Meta[metaVersion] != nil
}

// status remembers the status of an answer.
type status struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (w *status) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
	w.ResponseWriter.WriteHeader(code)
}

// Write implements http.ResponseWriter.
func (w *status) Write(b []byte) (int, error) {
	if w.code == 0 {
		w.code = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *status) Unwrap() http.ResponseWriter { return w.ResponseWriter }
