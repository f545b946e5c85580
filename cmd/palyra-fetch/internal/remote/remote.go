// Package remote is the program of an MCP server that is reached over HTTP: palyra-fetch, in the
// server's cell, takes the messages of palyrad's gateway on its standard input and puts them to the
// server (Streamable HTTP, protocol 2025-06-18 and 2025-11-25, and the older 2025-03-26).
//
//	palyra-fetch mcp.serve https://mcp.example/v1 header:x-team=blue secret:header:authorization=TOKEN
//
// Package way has the words behind the URL.
//
// # What holds where
//
// The cell's network leads to the server's hosts alone. This package follows a redirect only to
// where the server is (the same scheme, host and port, and the same method), keeps no cookie and
// knows no proxy. A message that a server may have got is never sent again, but for one case: 404
// in a session says that it's over (§ Session Management), so the message wasn't taken. Then a new
// session begins with the first one's initialize, and the message is sent in that. A
// request that net/http itself repeats never left.
//
// An answer that got lost (the stream ends and can't be resumed) ends the program: whether the
// server acted isn't known, and the gateway says so of all calls that wait. An HTTP error, or a
// server that isn't reached, is an error of JSON-RPC for that call alone.
//
// # Limits
//
// A message has maxMessage bytes, of either side, an answer's head 64 KiB, a stream of events lines
// and events of maxMessage bytes. At most maxOpen messages are on their way. The gateway bounds the
// rest: how long an answer takes, how much a server says unasked.
//
// It doesn't protect against what a server says. Events are handed on as they are, in one line; the
// gateway reads them as those of any server. There is no OAuth.
package remote

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"palyra/call/egress/target"
	"palyra/cmd/palyra-fetch/internal/way"
)

// Name is the first argument that makes palyra-fetch this program.
const Name = "mcp.serve"

// The bounds of what passes.
const (
	maxMessage = 4 << 20 // bytes; the gateway's own
	maxOpen    = 64      // messages that wait for an answer; the gateway's own
	maxSession = 1 << 10 // bytes of a session's or event's id
	maxHops    = 3       // redirects of one message
	maxTries   = 8       // of resuming a stream, without an event in between
)

// farewell bounds the end of a session at the end of the program.
const farewell = 2 * time.Second

// Main runs the program until its standard input ends and returns the exit status: 0, or 1 with the
// reason on stderr.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	r, err := newRelay(args, os.Getenv, stdout, stderr)
	if err == nil {
		err = r.run(context.Background(), stdin)
	}
	if err != nil {
		r.say("%v", err)
		return 1
	}
	return 0
}

// relay is a server's program. The fields above mu are immutable after newRelay.
type relay struct {
	at      target.Target
	headers http.Header // of each request
	client  *http.Client

	outMu  sync.Mutex
	out    io.Writer // guarded by outMu; a line is one message
	errMu  sync.Mutex
	errors io.Writer // guarded by errMu
	said   int       // guarded by errMu

	renewing sync.Mutex // held while a new session begins

	mu      sync.Mutex
	hello   *message           // guarded by mu, as what follows is; the initialize
	ready   *message           // the notifications/initialized
	session string             // "" for none
	epoch   int                // how many sessions there were
	version string             // of the protocol; "" before it's known
	open    map[string]*asking // by the id's text
}

// asking is a request that waits for its answer.
type asking struct {
	cancel context.CancelFunc
	gone   bool // guarded by relay.mu; its caller doesn't want the answer
}

// newRelay reads the arguments behind the program's name. The relay can speak even if they're
// wrong.
func newRelay(args []string, getenv func(string) string, out, errs io.Writer) (*relay, error) {
	r := &relay{out: out, errors: errs, open: make(map[string]*asking)}
	if len(args) < 2 || args[0] != Name {
		return r, errors.New("usage: palyra-fetch " + Name + " URL {header:NAME=VALUE | secret:PLACE=VARIABLE}")
	}
	w, err := way.Parse(args[1], args[2:], getenv)
	r.at, r.headers, r.client = w.At, w.Headers, w.Client(nil)
	return r, err
}

// say writes a line for whoever looks at the server's run. It's bounded, as the reason for a
// message may be a server's choice.
func (r *relay) say(format string, args ...any) {
	r.errMu.Lock()
	defer r.errMu.Unlock()
	if r.said++; r.said > 200 {
		return
	}
	text := strings.ToValidUTF8(fmt.Sprintf(format, args...), "\uFFFD")
	if r.at != (target.Target{}) {
		text = r.at.Rule().String() + ": " + text
	}
	if len(text) > 1024 {
		text = strings.ToValidUTF8(text[:1024], "")
	}
	fmt.Fprintf(r.errors, "palyra-fetch: %s\n", strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f {
			return ' '
		}
		return c
	}, text))
}

// message is a line of the gateway's.
type message struct {
	line   []byte
	id     string // the text of a request's; "" for another message
	method string
	about  string // the id that a notifications/cancelled is about
}

// read reads a message of JSON-RPC as far as this package looks at it. A struct would take "ID",
// too.
func read(line []byte) (m *message, err error) {
	var all, params map[string]json.RawMessage
	if err := json.Unmarshal(line, &all); err != nil || all == nil {
		return nil, errors.New("no message of JSON-RPC")
	}
	m = &message{line: line}
	if text, ok := all["method"]; ok {
		if json.Unmarshal(text, &m.method) != nil || m.method == "" {
			return nil, errors.New("a message with a method that is none")
		}
		m.id = string(all["id"])
	}
	if m.method == "notifications/cancelled" && json.Unmarshal(all["params"], &params) == nil {
		m.about = string(params["requestId"])
	}
	return m, nil
}

// answers reports whether data, of the server's, is the answer to the request id.
func answers(data []byte, id string) bool {
	var all map[string]json.RawMessage
	return json.Unmarshal(data, &all) == nil && all["method"] == nil && id != "" && string(all["id"]) == id
}

// run passes messages on until in ends, or something is lost.
func (r *relay) run(ctx context.Context, in io.Reader) error {
	ctx, cancel := context.WithCancelCause(ctx)
	lines := make(chan []byte)
	go func() { // until in ends, which it may not before the program does
		defer close(lines)
		s := bufio.NewScanner(in)
		s.Buffer(make([]byte, 0, 64<<10), maxMessage)
		for s.Scan() {
			select {
			case lines <- append([]byte{}, s.Bytes()...):
			case <-ctx.Done():
				return
			}
		}
		if err := s.Err(); err != nil {
			cancel(fmt.Errorf("read standard input: %w", err))
		}
	}()
	var all sync.WaitGroup
	slots := make(chan struct{}, maxOpen)
	begin := func(f func() error) {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		all.Go(func() {
			defer func() { <-slots }()
			if err := f(); err != nil {
				cancel(err)
			}
		})
	}
	over := false
	for !over {
		select {
		case <-ctx.Done():
			over = true
		case line, more := <-lines:
			if !more {
				over = true
				break
			}
			m, err := read(line)
			if err != nil {
				cancel(fmt.Errorf("read standard input: %w", err))
				break
			}
			switch {
			case m.method == "initialize" && m.id != "": // all else comes behind it
				r.mu.Lock()
				r.hello = m
				r.mu.Unlock()
				if err := r.ask(ctx, m); err != nil {
					cancel(err)
				}
			case m.method == "notifications/initialized": // so too
				r.mu.Lock()
				r.ready = m
				r.mu.Unlock()
				if err := r.tell(ctx, m); err != nil {
					cancel(err)
					break
				}
				all.Go(func() {
					if err := r.listen(ctx); err != nil {
						cancel(err)
					}
				})
			case m.id != "":
				begin(func() error { return r.ask(ctx, m) })
			default:
				begin(func() error { return r.tell(ctx, m) })
			}
		}
	}
	err := context.Cause(ctx)
	cancel(nil)
	all.Wait()
	r.leave()
	return err
}

// tell sends what has no answer. One that the server doesn't take is said and forgotten.
func (r *relay) tell(ctx context.Context, m *message) error {
	defer r.withdraw(m.about)
	res, _, err := r.postIn(ctx, m)
	if err != nil {
		if ctx.Err() == nil {
			r.say("%s: %v", kindOf(m), err)
		}
		return fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode/100 != 2 {
		r.say("%s: the server answered %d", kindOf(m), res.StatusCode)
	}
	return nil
}

func kindOf(m *message) string {
	if m.method == "" {
		return "an answer"
	}
	return m.method
}

// withdraw ends the wait for the answer to a request that was cancelled.
func (r *relay) withdraw(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.open[id]; a != nil {
		a.gone = true
		a.cancel()
	}
}

// ask sends a request and hands on what the server says until it has answered.
func (r *relay) ask(ctx context.Context, m *message) error {
	own, cancel := context.WithCancel(ctx)
	a := &asking{cancel: cancel}
	r.mu.Lock()
	r.open[m.id] = a
	r.mu.Unlock()
	err := r.answer(own, m)
	cancel()
	r.mu.Lock()
	delete(r.open, m.id)
	gone := a.gone
	r.mu.Unlock()
	switch {
	case err == nil || ctx.Err() != nil:
		return nil
	case gone:
		return r.refuse(m.id, -32800, "cancelled")
	}
	return err
}

// answer is ask's exchange with the server. An error is an answer that was lost.
func (r *relay) answer(ctx context.Context, m *message) error {
	res, sent, err := r.postIn(ctx, m)
	switch {
	case err != nil && fatal(err) != nil:
		return err
	case err != nil && !sent:
		return r.refuse(m.id, -32000, fmt.Sprintf("%s wasn't asked: %v", r.at.Rule(), err))
	case err != nil:
		return fmt.Errorf("%s: the answer was lost: %w", m.method, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return r.declined(m, res)
	}
	if m.method == "initialize" {
		if err := r.begin(res); err != nil {
			return err
		}
	}
	switch typ := mediaType(res); typ {
	case "application/json":
		data, err := io.ReadAll(io.LimitReader(res.Body, maxMessage+1))
		if err == nil && len(data) > maxMessage {
			err = fmt.Errorf("it has more than %d bytes", maxMessage)
		}
		if err != nil {
			return fmt.Errorf("%s: the answer was lost: %w", m.method, err)
		}
		if err = r.hand(m, data); err == nil && !answers(data, m.id) {
			err = fmt.Errorf("%s: the server answered with something else than an answer", m.method)
		}
		return err
	case "text/event-stream":
		return r.follow(ctx, m, res, r.hand)
	default:
		return fmt.Errorf("%s: the server answered with %.80q, neither JSON nor events", m.method, typ)
	}
}

// begin keeps what the answer to an initialize says of the session.
func (r *relay) begin(res *http.Response) error {
	id := res.Header.Get("Mcp-Session-Id")
	if !visible(id, '!') || len(id) > maxSession {
		return errors.New("initialize: the server named a session that no header can hold")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.session = id
	r.epoch++
	return nil
}

// visible reports whether all of s is ASCII from least to '~'.
func visible(s string, least byte) bool {
	for _, c := range []byte(s) {
		if c < least || c > '~' {
			return false
		}
	}
	return true
}

// hand hands data on. m is the request that it came for, nil for none.
func (r *relay) hand(m *message, data []byte) error {
	if m != nil && m.method == "initialize" && answers(data, m.id) {
		r.learn(data)
	}
	return r.write(data)
}

// learn keeps the version that the server chose. The gateway judges it.
func (r *relay) learn(data []byte) {
	var hello struct {
		Result struct {
			ProtocolVersion string `json:"protocolVersion"`
		} `json:"result"`
	}
	if json.Unmarshal(data, &hello) == nil && len(hello.Result.ProtocolVersion) <= 32 && visible(hello.Result.ProtocolVersion, '!') {
		r.mu.Lock()
		r.version = hello.Result.ProtocolVersion
		r.mu.Unlock()
	}
}

// write writes data as one line, and leaves text that isn't JSON as it is.
func (r *relay) write(data []byte) error {
	line := make([]byte, len(data), len(data)+1)
	for i, c := range data {
		if line[i] = c; c == '\n' || c == '\r' { // in JSON they're white space
			line[i] = ' '
		}
	}
	r.outMu.Lock()
	defer r.outMu.Unlock()
	_, err := r.out.Write(append(line, '\n'))
	return err
}

// refuse answers a request in the server's place.
func (r *relay) refuse(id string, code int, text string) error {
	b, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": json.RawMessage(id), "error": map[string]any{"code": code, "message": text}})
	if err != nil {
		return err
	}
	return r.write(b)
}
