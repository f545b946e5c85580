package inspect

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"

	rule "palyra/call/egress"
	"palyra/isolate/evidence"
)

// exchange is one request with its answer.
type exchange struct {
	l    *link
	at   int // its record
	used []string

	heads int64 // what its heads take; guarded by l.mu

	most rule.Bounds // of its body and its answer's
	over atomic.Bool // its body is longer

	header http.Header // as they go out, with values
	query  string
	hasUse bool // the host has a use: its answers are cleaned

	sent     *sending // the body, nil without one
	socket   *socket  // what followed a 101, nil without one
	received int64
	status   int
	refused  bool
}

type exchangeKey struct{}

func exchangeOf(r *http.Request) *exchange { return r.Context().Value(exchangeKey{}).(*exchange) }

// ServeHTTP serves one request.
func (l *link) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.begin() {
		panic(http.ErrAbortHandler)
	}
	defer l.work.Done()
	path := r.URL.EscapedPath()
	x := &exchange{l: l}
	x.at = l.g.begin(evidence.Request{Host: l.to.Host, Port: uint32(l.to.Port), Method: r.Method, Path: path})
	defer x.noted()
	defer x.release()
	if !l.hold(x, r.Header, r.Trailer) {
		r.Header, r.Trailer = nil, nil // what waits for the program to read the answer mustn't hold them
		l.g.cfg.Denied(l.to.Host, l.to.Port, evidence.DenyRequest)
		x.refused = true
		x.say(w, http.StatusRequestHeaderFieldsTooLarge, "the heads of the requests under way in this connection have too many fields, or are too long")
		return
	}
	leave, err := l.enter(r.Context())
	defer leave()
	if err != nil {
		l.g.cfg.Denied(l.to.Host, l.to.Port, evidence.DenyOverload)
		x.refused = true
		x.say(w, http.StatusServiceUnavailable, "palyra-egress has no room for another request in this connection")
		return
	}
	var left http.Header
	var leftQuery string
	x.header, x.query, left, leftQuery, x.used = l.g.values.put(r, l.to.Host, l.to.Port, path)
	if name, where := l.g.watch.inHead(r, left, leftQuery); name != "" {
		l.leak(name, where)
		panic(http.ErrAbortHandler)
	}
	if status, why := l.judge(r, path); status != 0 {
		x.used = nil
		l.g.cfg.Denied(l.to.Host, l.to.Port, evidence.DenyRequest)
		x.refused = true
		x.say(w, status, why)
		return
	}
	x.most = l.g.cfg.Inspection.Bodies(l.to.Host, l.to.Port, r.Method, path)
	if x.most.Body > 0 && r.ContentLength > x.most.Body {
		x.tooLong()
		x.used, x.refused = nil, true
		x.say(w, http.StatusRequestEntityTooLarge, x.tooLongSays())
		return
	}
	x.hasUse = slices.ContainsFunc(l.g.cfg.Inspection.Uses, func(u rule.Use) bool { return u.Names(l.to.Host, l.to.Port) })
	defer func() {
		if x.socket != nil { // the connection was taken from net/http
			l.close()
		}
	}()
	l.proxy.ServeHTTP(&answering{ResponseWriter: w, x: x}, r.WithContext(context.WithValue(r.Context(), exchangeKey{}, x)))
}

// judge says why a request is refused; status 0: it isn't.
func (l *link) judge(r *http.Request, path string) (status int, why string) {
	switch {
	case r.Method == http.MethodConnect:
		return http.StatusNotImplemented, "CONNECT isn't taken on an inspected connection"
	case len(r.Header["Upgrade"]) > 0 && !l.socketAsked(r, path):
		return http.StatusNotImplemented, "no rule of the call lets this request become a WebSocket, and there are no other upgrades on an inspected connection"
	case r.URL.Host != "" || !strings.HasPrefix(r.RequestURI, "/"):
		return http.StatusBadRequest, "the target of a request is a path"
	case !l.host(r.Host):
		return http.StatusMisdirectedRequest, fmt.Sprintf("this connection is for %s", l.authority())
	}
	if key := l.overrides(r.Header); key != "" {
		return http.StatusForbidden, fmt.Sprintf("%s says another method or path to some hosts, and the call's rules for %s name them", key, l.authority())
	}
	if l.g.cfg.Inspection.Passes(l.to.Host, l.to.Port, r.Method, path) {
		return 0, ""
	}
	why = fmt.Sprintf("no rule of the call has %.64q requests for this path of %s", r.Method, l.authority())
	if _, err := rule.Path(path); err != nil {
		why += ", and one with a path has none like this: " + err.Error()
	}
	return http.StatusForbidden, why
}

// Headers from which frameworks take a request's method and path, in place of its line's.
var (
	methodHeaders = []string{"X-Http-Method", "X-Http-Method-Override", "X-Method-Override"}
	pathHeaders   = []string{"X-Original-Url", "X-Override-Url", "X-Rewrite-Url"}
)

// overrides returns the name of a header that says something else than what rules about the host
// name, "" if there is none. Some hosts read an underscore as a hyphen (RFC 3875 §4.1.18).
func (l *link) overrides(h http.Header) string {
	methods, paths := l.g.cfg.Inspection.Narrow(l.to.Host, l.to.Port)
	for key := range h {
		plain := http.CanonicalHeaderKey(strings.ReplaceAll(key, "_", "-"))
		if methods && slices.Contains(methodHeaders, plain) || paths && slices.Contains(pathHeaders, plain) {
			return plain
		}
	}
	return ""
}

// socketAsked reports whether a request may become a WebSocket (RFC 6455 §4.1). Other protocols,
// such as h2c, would carry requests that no rule sees.
func (l *link) socketAsked(r *http.Request, path string) bool {
	texts := r.Header["Upgrade"]
	return r.ProtoMajor == 1 && r.Method == http.MethodGet && r.ContentLength == 0 && len(r.TransferEncoding) == 0 &&
		len(texts) == 1 && strings.EqualFold(texts[0], "websocket") && l.g.cfg.Inspection.Sockets(l.to.Host, l.to.Port, r.Method, path)
}

// inHead returns the name of a placeholder in a request's head, and where it is. left and query are
// without those in their places.
func (w *Watch) inHead(r *http.Request, left http.Header, query string) (name, where string) {
	if w == nil {
		return "", ""
	}
	for _, look := range []struct {
		where string
		texts []string
	}{
		{evidence.LeakHost, []string{r.Host, r.URL.Host}},
		{evidence.LeakMethod, []string{r.Method}},
		{evidence.LeakPath, []string{r.URL.EscapedPath(), r.URL.Path, r.URL.Opaque}},
		{evidence.LeakQuery, []string{query, unescaped(query)}},
	} {
		for _, text := range look.texts {
			if name = w.In([]byte(text)); name == "" && look.where == evidence.LeakHost {
				name = w.InName(text)
			}
			if name != "" {
				return name, look.where
			}
		}
	}
	for key, texts := range left {
		if name = w.InName(key); name != "" {
			return name, evidence.LeakHeader
		}
		for _, text := range texts {
			if name = w.In([]byte(text)); name != "" {
				return name, evidence.LeakHeader
			}
		}
	}
	for key := range r.Trailer {
		if name = w.InName(key); name != "" {
			return name, evidence.LeakHeader
		}
	}
	return "", ""
}

// unescaped returns a query without its escapes, as far as it has none that are malformed.
func unescaped(query string) string {
	parts := strings.Split(query, "&")
	for i, p := range parts {
		if u, err := url.QueryUnescape(p); err == nil {
			parts[i] = u
		}
	}
	return strings.Join(parts, "&")
}

// say answers in the host's place.
func (x *exchange) say(w http.ResponseWriter, status int, why string) {
	h := w.Header()
	clear(h)
	h.Set("Server", "palyra")
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("X-Content-Type-Options", "nosniff")
	x.status = status
	w.WriteHeader(status)
	n, _ := fmt.Fprintf(w, "palyra: %s\n", why)
	x.received += int64(n)
}

// release gives back what hold counted.
func (x *exchange) release() {
	x.l.mu.Lock()
	defer x.l.mu.Unlock()
	x.l.heads -= x.heads
}

// noted ends the record.
func (x *exchange) noted() {
	x.l.g.note(x.at, func(r *evidence.Request) {
		r.Status, r.Received, r.Uses, r.Refused = uint32(x.status), x.received, x.used, x.refused
		if x.sent != nil {
			r.Sent = x.sent.n.Load()
		}
		if x.socket != nil {
			r.Sent, r.Received = x.socket.sent.Load(), x.socket.received.Load()
		}
	})
}

// forwarded are headers that ReverseProxy takes away. They're the program's to send.
var forwarded = []string{"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto"}

// rewrite makes the request to the host.
func (l *link) rewrite(p *httputil.ProxyRequest) {
	x := exchangeOf(p.In)
	for key := range p.Out.Header {
		if texts, ok := x.header[key]; ok && key != "Te" && key != "Connection" && key != "Upgrade" { // of which "trailers" and an upgrade are left
			p.Out.Header[key] = texts
		}
	}
	for _, key := range forwarded {
		if texts, ok := x.header[key]; ok {
			p.Out.Header[key] = texts
		}
	}
	if x.hasUse {
		p.Out.Header.Set("Accept-Encoding", "identity")
		p.Out.Header.Del("Sec-Websocket-Extensions") // such as compression, which would hide values
		p.Out.Header.Del("Range")
		p.Out.Header.Del("If-Range")
	}
	p.Out.URL.Scheme, p.Out.URL.Host, p.Out.URL.RawQuery, p.Out.Host = "https", l.authority(), x.query, l.authority()
	if p.Out.Body != nil && p.Out.Body != http.NoBody {
		x.sent = &sending{ReadCloser: p.Out.Body, l: l, x: x, stream: l.g.watch.Stream(), in: p.In, out: p.Out}
		p.Out.Body = x.sent
	}
}

// tooLong notes that the request's body goes beyond its rule's bound.
func (x *exchange) tooLong() {
	x.over.Store(true)
	x.l.limited(rule.Bounds{Body: x.most.Body})
}

func (x *exchange) tooLongSays() string {
	return fmt.Sprintf("the body is longer than the call's rule for %s lets it be:%s", x.l.authority(), rule.Bounds{Body: x.most.Body})
}

// answerTooLong notes that the answer's body does.
func (x *exchange) answerTooLong() error {
	x.l.limited(rule.Bounds{Answer: x.most.Answer})
	return errAnswer
}

func (l *link) limited(one rule.Bounds) {
	l.g.cfg.Limited(l.to.Host, l.to.Port, one.Split()[0].Text)
}

var (
	errBody   = errors.New("the body is longer than its rule lets it be")
	errAnswer = errors.New("the answer is longer than the call's rule for the host lets it be")
)

// answered is the body of an answer as the host sends it, up to its rule's bound.
type answered struct {
	io.ReadCloser
	x    *exchange
	left int64
}

func (a *answered) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if int64(n) > a.left {
		return int(a.left), a.x.answerTooLong()
	}
	a.left -= int64(n)
	return n, err
}

var errHeads = errors.New("the heads of the host's answers have too many fields, or are too long")

var errEncoded = errors.New("the answer is encoded, so that values of secrets can't be taken out of it")

// answer makes what the program gets of what the host sent.
func (l *link) answer(res *http.Response) error {
	x := exchangeOf(res.Request)
	if res.StatusCode == http.StatusSwitchingProtocols {
		return l.switches(x, res)
	}
	res.Header.Del("Alt-Svc") // other ways, which the program doesn't have
	if len(res.Trailer) > 0 {
		res.Header.Del("Content-Length") // HTTP/1.1 has one or the other
	}
	if !l.hold(x, res.Header, res.Trailer) {
		return errHeads
	}
	bodyless := res.Request.Method == http.MethodHead || res.StatusCode == http.StatusNoContent || res.StatusCode == http.StatusNotModified || res.ContentLength == 0
	if most := x.most.Answer; most > 0 && !bodyless {
		if res.ContentLength > most {
			return x.answerTooLong()
		}
		res.Body = &answered{res.Body, x, most}
	}
	tail := &trailing{ReadCloser: res.Body, x: x, res: res}
	res.Body = tail
	v := l.g.values
	if v == nil || !x.hasUse {
		return nil
	}
	for _, text := range res.Header.Values("Content-Encoding") {
		if text != "" && !strings.EqualFold(text, "identity") && !bodyless {
			return errEncoded
		}
	}
	v.cleanHeader(res.Header)
	v.cleanHeader(res.Trailer) // which has names by now
	if !bodyless {
		res.Header.Del("Content-Length") // a placeholder is longer or shorter than its value
		res.ContentLength = -1
		tail.ReadCloser = newCleaner(tail.ReadCloser, v)
	}
	return nil
}

// trailing is a body, which may be empty, behind which trailers come.
type trailing struct {
	io.ReadCloser
	x       *exchange
	res     *http.Response
	passing bool
}

// pass tells the target that the body begins or ends to pass.
func (t *trailing) pass(on bool) {
	if l := t.x.l; l.to.Passing != nil && !l.h2 && t.passing != on {
		t.passing = on
		l.to.Passing(on)
	}
}

// Close ends the body. It may come before its end.
func (t *trailing) Close() error {
	t.pass(false)
	return t.ReadCloser.Close()
}

func (t *trailing) Read(b []byte) (int, error) {
	t.pass(true)
	n, err := t.ReadCloser.Read(b)
	if err == nil {
		return n, nil
	}
	t.pass(false)
	if t.x.hasUse {
		t.x.l.g.values.cleanHeader(t.res.Trailer)
	}
	if !t.x.l.hold(t.x, t.res.Trailer) {
		t.res.Trailer, err = nil, errHeads
	}
	return n, err
}

// failed answers a request that got no answer.
func (l *link) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := exchangeOf(r)
	if l.ctx.Err() != nil || r.Context().Err() != nil || errors.Is(err, errLeak) {
		panic(http.ErrAbortHandler)
	}
	if x.over.Load() {
		x.say(w, http.StatusRequestEntityTooLarge, x.tooLongSays())
		return
	}
	why := "the host broke off"
	var not *unreached
	switch {
	case errors.Is(err, errAnswer):
		why = errAnswer.Error()
	case errors.As(err, &not):
		why, x.refused, x.used = not.Error(), true, nil
	case errors.Is(err, errEncoded):
		why = errEncoded.Error()
	case errors.Is(err, errHeads):
		why = errHeads.Error()
	}
	x.say(w, http.StatusBadGateway, why)
}

// answering is the answer to the program.
type answering struct {
	http.ResponseWriter
	x *exchange
}

// mostInterim is what an interim head takes at most that is passed on. Others wait for no program,
// and aren't counted.
const mostInterim = 64 << 10

// WriteHeader passes on the head, interim ones as well.
func (a *answering) WriteHeader(status int) {
	if status < http.StatusOK && weight(a.Header()) > mostInterim {
		return
	}
	if a.x.hasUse {
		a.x.l.g.values.cleanHeader(a.Header())
	}
	a.x.status = status
	a.ResponseWriter.WriteHeader(status)
}

func (a *answering) Write(b []byte) (int, error) {
	n, err := a.ResponseWriter.Write(b)
	a.x.received += int64(n)
	return n, err
}

// Unwrap is for http.ResponseController.
func (a *answering) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// sending is the body of a request on its way.
type sending struct {
	io.ReadCloser
	l       *link
	x       *exchange
	stream  *Stream
	in, out *http.Request
	n       atomic.Int64 // bytes
}

func (s *sending) Read(b []byte) (int, error) {
	n, err := s.ReadCloser.Read(b)
	if name := s.stream.Next(b[:n]); name != "" {
		s.l.leak(name, evidence.LeakBody)
		return 0, errLeak
	}
	if most := s.x.most.Body; most > 0 && s.n.Load()+int64(n) > most {
		s.x.tooLong()
		return 0, errBody
	}
	s.n.Add(int64(n))
	if errors.Is(err, io.EOF) {
		for key, texts := range s.in.Trailer {
			for _, text := range append(slices.Clone(texts), key) {
				if name := s.l.g.watch.In([]byte(text)); name != "" {
					s.l.leak(name, evidence.LeakHeader)
					return 0, errLeak
				}
			}
			if s.out.Trailer != nil {
				s.out.Trailer[key] = texts
			}
		}
	}
	return n, err
}
