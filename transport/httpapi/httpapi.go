// Package httpapi serves a hub.Hub over HTTP/1.1: on a unix socket, where the
// kernel says who connects, and on TCP, where a bearer token does.
//
//	s, err := httpapi.New(httpapi.Config{Hub: h, Log: log})
//	err = s.Serve(ctx, httpapi.Listener{Listener: unix}, httpapi.Listener{Listener: tcp, Names: []string{"palyra.example:7142"}})
//
// One table ([Operations]) has each operation with its permission, input and output;
// routing, checks and docs/formats/openapi.json come from it. docs/formats/http.md
// describes the rest: identities, problems, idempotency keys, versions, pages and tapes.
//
// # Contract
//
// Nothing reaches the hub before the server has read the request whole, within its limits,
// and found it well-formed. It refuses unknown, repeated and misspelt members, query
// parameters that an operation doesn't have, and unexpected bodies. Every answer that isn't
// a success is an RFC 9457 problem with an id; internal details go to the log under that id
// and nowhere else.
//
// The host's kernel or a token that the hub knows says who asks; no other header does. The
// hub decides what the caller may do; the check here, of a token's scopes against the
// table, only comes first.
//
// The server cuts off a tape reader that stops reading after Limits.Write; it delays
// neither the run nor other readers. Waiting readers hold a connection and a few hundred
// bytes, and no goroutine.
//
// Serve returns when everything that it started has ended.
//
// # What it does not protect against
//
// A stolen token: it works for everyone who holds it. Users who may open the unix socket
// ask as themselves. On TCP without TLS, which is for loopback only, other users of the
// host can't read the traffic but can take the port before palyrad does.
package httpapi

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/behind"
)

// Hub is the hub that a server serves.
type Hub interface {
	hub.Hub
	// Authenticate says who is calling, by a credential. It returns fault.Denied
	// "unauthenticated" without a reason that would help to guess.
	Authenticate(ctx context.Context, c hub.Credential) (hub.Caller, error)
}

// Config says what a server serves.
type Config struct {
	// Hub answers. It is required.
	Hub Hub
	// Log gets internal errors, with the id that the caller was given. Default: discarded.
	Log *slog.Logger
	// Keys remembers answered requests. Default: as long as the process lives.
	Keys Keys
	// Ready returns nil if calls can be served; for /readyz. Default: always.
	Ready func(context.Context) error
	// Metrics adds other metrics to /metrics. Default: none.
	Metrics func(io.Writer)
	// Check returns nil if a caller that was let in may still follow tapes. The server
	// calls it twice a second for each reader, so it must be quick. Default: the server
	// looks at a reader when it changes tokens or members, and when the reader's time is
	// over.
	Check func(hub.Caller) error
	// Denied is called with the denials that this server makes by itself, so that callers
	// who may can ask about them by decision. Default: none.
	Denied func(hub.Caller, hub.Denial)
	// Role returns the role of a user of this machine, "" for none. The server calls it for
	// each connection to the unix socket, which then has a member's place from the
	// beginning, so it must be quick. Default: a connection is a guest's until its first
	// request is authenticated.
	Role func(uid uint32) string
	// MCP answers /mcp. Default: it is refused as feature_off.
	MCP behind.Protocol
	// OpenAI answers under /v1/. Default: it is refused as feature_off.
	OpenAI behind.Surface
	// Console shows pages to browsers. Default: there are none.
	Console behind.Pages
	// Owners says whose connections on loopback are. A console needs it.
	Owners *Owners
	// HealthOnly serves /livez, /readyz and /metrics, to every client, and nothing else.
	HealthOnly bool
	// Memory refuses members while the process holds too much, but not what ends work.
	// Default: never.
	Memory *budget.Mark
	Limits Limits
}

// Limits bound what clients can make the server hold or do. A zero field means
// its default.
type Limits struct {
	Body int64 // bytes of a request's body; 1 MiB
	// Bodies bounds the bytes of all bodies of requests under way. A principal gets at most
	// a fifth, and a fifth is for owners at the socket alone; 80 MiB or 10 bodies.
	Bodies int64
	Header int // bytes of a request's header, more than 4 KiB; 8 KiB
	Depth  int // nesting of JSON; 32

	// Rate is requests a second by one principal's tokens, and as many by it on the socket;
	// 100, negative: no bound.
	Rate  float64
	Burst int // such requests at once; twice Rate

	Conns          int // connections of members; 1024 and Streams
	ConnsPerCaller int // of one principal; half of Conns
	// Guests bounds unauthenticated connections to the unix socket, as many over TCP, and as
	// many to listeners for devices; 512.
	Guests        int
	GuestsPerPeer int // of one user or network; half of Guests
	// Files bounds the descriptors of all of these, and lowers their numbers. Default: no
	// bound.
	Files            int
	Streams          int // readers of tapes; 1024
	StreamsPerCaller int // of one principal, whatever credentials it uses; half of Streams

	HeaderTime time.Duration // for a request's header, and for a new connection to send it; 5 s
	BodyTime   time.Duration // for a request; 30 s
	Idle       time.Duration // a connection between requests; 2 min
	Write      time.Duration // for the client to take an answer, or the next piece of it; 10 s
	Heartbeat  time.Duration // between signs of life on a tape; 15 s
	StreamAge  time.Duration // of one reader, which then comes back with its credential; 1 h
	Drain      time.Duration // for requests under way when Serve is to end; 25 s
}

// headerSlop is what net/http takes beyond MaxHeaderBytes (Server.initialReadLimitSize).
const headerSlop = 4 << 10

func (l Limits) orDefaults() Limits {
	set := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	num := func(n *int, v int) {
		if *n <= 0 {
			*n = v
		}
	}
	if l.Body <= 0 {
		l.Body = 1 << 20
	}
	if l.Bodies <= 0 {
		l.Bodies = 80 << 20
	}
	l.Bodies = max(l.Bodies, 10*l.Body)
	num(&l.Header, 8<<10)
	l.Header = max(l.Header, headerSlop+1)
	num(&l.Depth, 32)
	if l.Rate == 0 {
		l.Rate = 100
	}
	num(&l.Burst, max(1, int(2*l.Rate)))
	num(&l.Streams, 1024)
	num(&l.Conns, 1024+l.Streams)
	num(&l.Guests, 512)
	if all := l.Conns + 3*l.Guests; l.Files > 0 && all > l.Files {
		l.Conns, l.Guests = l.Conns*l.Files/all, l.Guests*l.Files/all
	}
	l.Conns, l.Guests = max(l.Conns, 2), max(l.Guests, 2)
	num(&l.ConnsPerCaller, l.Conns/2)
	num(&l.GuestsPerPeer, l.Guests/2)
	l.ConnsPerCaller, l.GuestsPerPeer = min(l.ConnsPerCaller, l.Conns), min(l.GuestsPerPeer, l.Guests)
	num(&l.StreamsPerCaller, max(1, l.Streams/2))
	set(&l.HeaderTime, 5*time.Second)
	set(&l.BodyTime, 30*time.Second)
	set(&l.Idle, 2*time.Minute)
	set(&l.Write, 10*time.Second)
	set(&l.Heartbeat, 15*time.Second)
	set(&l.StreamAge, time.Hour)
	set(&l.Drain, 25*time.Second)
	return l
}

// Server is the HTTP side of a hub. It is an http.Handler; safe for concurrent use.
type Server struct {
	cfg     Config
	log     *slog.Logger
	lim     Limits
	mux     *http.ServeMux
	origin  *http.CrossOriginProtection
	routes  []route
	streams *streams
	metrics *metrics
	openapi func() ([]byte, error)

	rooms    *rooms
	bodies   *budget.Pool // bytes of bodies, from before they are read until the answer is written
	callers  *buckets     // requests, by principal
	failures *buckets     // failed authentications; see failureKey
	noise    *buckets     // lines of the log that any client can cause
}

var _ http.Handler = (*Server)(nil)

// New returns a Server. It starts nothing.
func New(cfg Config) (*Server, error) {
	if cfg.Hub == nil {
		return nil, fault.New(fault.Internal, "internal", "make HTTP server", errors.New("Config.Hub is nil"))
	}
	s := &Server{cfg: cfg, log: cfg.Log, lim: cfg.Limits.orDefaults(), mux: http.NewServeMux(), origin: http.NewCrossOriginProtection()}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	if s.cfg.Keys == nil {
		s.cfg.Keys = NewMemoryKeys()
	}
	if s.cfg.Ready == nil {
		s.cfg.Ready = func(context.Context) error { return nil }
	}
	s.rooms, s.callers = newRooms(s.lim), newBuckets(s.lim.Rate, s.lim.Burst)
	s.bodies = budget.New(budget.Limits{Name: "bodies", Total: s.lim.Bodies, Each: s.lim.Bodies / 5, Reserve: s.lim.Bodies / 5, Line: 512})
	s.failures, s.noise = newBuckets(failureRate, failureBurst), newBuckets(noiseRate, noiseBurst)
	if cfg.Console != nil && !cfg.HealthOnly {
		if cfg.Owners == nil {
			return nil, fault.New(fault.Internal, "internal", "make HTTP server", errors.New("a console without Config.Owners"))
		}
		s.routes = pages()
	}
	s.routes = append(s.routes, table()...)
	s.routes = append(s.routes, foreign()...)
	s.streams = newStreams(cfg.Hub, cfg.Check, s.lim, s.log)
	s.metrics = newMetrics(s.routes)
	s.openapi = sync.OnceValues(func() ([]byte, error) { return api.Document(Operations()) })
	s.register()
	return s, nil
}

// Pools returns the budgets that requests hold here, for metrics.
func (s *Server) Pools() []budget.Account {
	as := []budget.Account{s.bodies, s.streams.large}
	if s.cfg.Memory != nil {
		as = append(as, s.cfg.Memory)
	}
	return as
}

// Operations is the table of operations, without the routes of pages.
func Operations() []*hub.Operation {
	var ops []*hub.Operation
	for _, rt := range table() {
		ops = append(ops, rt.Operation)
	}
	return ops
}

// register routes by the table. It answers an unknown path, and a path without the method,
// with a problem.
func (s *Server) register() {
	allow := make(map[string][]string)
	for i := range s.routes {
		rt := &s.routes[i]
		if s.cfg.HealthOnly && !rt.health {
			continue
		}
		s.mux.Handle(rt.Method+" "+rt.Full(), s.handler(rt))
		allow[rt.Full()] = append(allow[rt.Full()], rt.Method)
		if rt.Method == http.MethodGet {
			allow[rt.Full()] = append(allow[rt.Full()], http.MethodHead)
		}
	}
	for p, methods := range allow {
		header := strings.Join(methods, ", ")
		s.mux.HandleFunc(p, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", header)
			s.refuse(w, r, s.lost(w, r), answered(405, "route request", fmt.Errorf("%s has %s", p, header)))
		})
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.refuse(w, r, s.lost(w, r), fault.New(fault.NotFound, "not_found", "route request", nil))
	})
}

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r = r.WithContext(context.WithValue(r.Context(), requestID{}, newID()))
	head := w.Header()
	head.Set("Cache-Control", "no-store")
	head.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	head.Set("Cross-Origin-Resource-Policy", "same-origin")
	head.Set("Referrer-Policy", "no-referrer")
	head.Set("X-Content-Type-Options", "nosniff")
	if r.TLS != nil {
		head.Set("Strict-Transport-Security", "max-age=63072000")
	}
	if c := connOf(r); c != nil {
		c.answers.Store(true)
		if s.rooms.guest(c) {
			head.Set("Connection", "close") // a guest has one request; see identify
		}
	}
	defer func() {
		switch v := recover(); v {
		case nil:
		case http.ErrAbortHandler:
			panic(v)
		default:
			// A bug in one request must not end the others: the kernel holds intents and
			// results, this server doesn't.
			s.log.Error("panic in a request", "request", idOf(r), "panic", fmt.Sprint(v), "stack", string(debug.Stack()))
			s.refuse(w, r, nil, errors.New("panic"))
		}
	}()
	if err := s.admit(r); err != nil {
		s.refuse(w, r, nil, err)
		return
	}
	s.mux.ServeHTTP(w, r)
}

// admit refuses requests that are for another server or from another site's page, and those
// that the mux would redirect.
func (s *Server) admit(r *http.Request) error {
	if err := checkHost(r); err != nil {
		return err
	}
	if err := s.origin.Check(r); err != nil {
		return fault.New(fault.Denied, "permission_denied", "check origin", err)
	}
	if r.Method == http.MethodConnect || r.URL.Path == "" || path.Clean(r.URL.Path) != r.URL.Path {
		return fault.New(fault.NotFound, "not_found", "route request", nil)
	}
	return nil
}

// handler puts a request through the checks of its route.
func (s *Server) handler(rt *route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, end := budget.Request(r.Context()) // what its answer holds, until it is written
		defer end()
		r = r.WithContext(ctx)
		done := s.metrics.begin(rt)
		rec := &recorder{ResponseWriter: w}
		defer func() { done(rec.status) }()
		x := &exchange{s: s, w: rec, r: r, rt: rt}
		err := s.authorize(x)
		if err == nil {
			err = x.read()
		}
		if err == nil {
			err = rt.serve(x)
		}
		if err != nil {
			s.refuse(rec, r, x, err)
		}
	})
}

// authorize finds the caller and checks its permission by the table, and whether there is
// memory for it. The hub checks the permission again.
func (s *Server) authorize(x *exchange) error {
	if x.rt.Permission == hub.Public || s.cfg.HealthOnly {
		return nil
	}
	if err := s.authenticate(x); err != nil {
		return err
	}
	if err := s.identify(x); err != nil {
		return err
	}
	p := x.rt.Permission
	may := p == hub.Authenticated || x.may(p)
	if wait, ok := s.callers.take(callerKey(x.caller, x.rt.Brake && may)); !ok {
		return tooMany(x, "limit caller", wait)
	}
	if !may {
		err := denied(p, idOf(x.r))
		if d := hub.DenialOf(err); d != nil && s.cfg.Denied != nil {
			s.cfg.Denied(x.caller, *d)
		}
		return err
	}
	if x.rt.Brake || x.rt.Ends {
		return nil
	}
	return s.cfg.Memory.Check(x.payer())
}

// recorder remembers the status of the answer.
type recorder struct {
	http.ResponseWriter
	status int
}

func (w *recorder) WriteHeader(status int) {
	if w.status == 0 {
		w.status = status
	}
	w.ResponseWriter.WriteHeader(status)
}

func (w *recorder) Write(b []byte) (int, error) {
	if w.status == 0 {
		w.status = http.StatusOK
	}
	return w.ResponseWriter.Write(b)
}

// Unwrap is for http.ResponseController.
func (w *recorder) Unwrap() http.ResponseWriter { return w.ResponseWriter }

type requestID struct{}

// newID returns the name of a request: 128 random bits in hexadecimal.
func newID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails; see crypto/rand.Read
	return hex.EncodeToString(b[:])
}

func idOf(r *http.Request) string {
	id, _ := r.Context().Value(requestID{}).(string)
	return id
}

func usage(reason, op string, err error) error { return fault.New(fault.Usage, reason, op, err) }

// answered is a refusal that its status tells from others.
func answered(status int, op string, err error) *fault.Error {
	return fault.New(fault.Usage, "invalid_input", op, api.WithStatus(status, err))
}
