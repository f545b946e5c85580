// Package client is a hub.Hub at the other end of a socket. The command line and our other
// programs speak to palyrad with it.
//
//	c, err := client.New(client.Config{Socket: "/run/palyra/palyrad.sock"})
//	run, err := hub.Call.Do(ctx, c, hub.Caller{}, hub.NewCall{Tool: "palyra.echo", Input: json.RawMessage(`{"text":"hi"}`)})
//	if d := hub.DenialOf(err); d != nil { … d.Fix … }
//
// # Contract
//
// Do ignores its hub.Caller: the socket or the token says who asks, and the daemon's Status
// tells who that is. Errors are those of the daemon, with kind, reason, hint and denial.
// The connection itself adds fault.Unavailable ("daemon_unreachable", "connection_lost"
// before an answer, "connection_lost" within one), fault.Denied ("permission_denied", and
// "unauthenticated" if palyrad refuses the certificate of Config.TLS),
// fault.Canceled, fault.Timeout, and fault.Integrity for an answer that isn't one.
//
// A request that makes something carries an Idempotency-Key, the caller's or a random one,
// so the client may send it again when a connection breaks. It doesn't repeat a Call
// without a key, which ends when ctx does. A tape that breaks off goes on after the last
// event that was read, until the run or ctx ends, or the daemon has not answered for
// Config.Patience.
//
// # What it does not protect against
//
// A daemon that lies, but for one of another user with Config.Own. crypt/receipt checks receipts
// and journal proofs; this package doesn't.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// Config says where the daemon is. One of Socket and URL is set.
type Config struct {
	// Socket is the path of the daemon's unix socket.
	Socket string
	// Own says that a process of this user or of root must listen there: another one gets no
	// request. It's refused where the platform doesn't tell.
	Own bool
	// URL is "https://host:port", or "http://" and a loopback address.
	URL string
	// Token is an API token. On a socket it is not needed.
	Token string
	// TLS says whom to trust. Default: the roots of the host.
	TLS *tls.Config
	// Silence is how long a tape may show no sign of life. Default: 1 min; the
	// daemon sends one every 15 s.
	Silence time.Duration
	// Patience is how long a tape looks for a daemon that doesn't answer any more. Default:
	// 10 s, in which palyrad.service is back.
	Patience time.Duration
}

// Client speaks to one daemon. It is safe for concurrent use.
type Client struct {
	http     *http.Client
	base     string // scheme and host
	token    string
	silence  time.Duration
	patience time.Duration
	where    string // for errors
	// certified says that a client certificate is the credential.
	certified bool

	reconnects atomic.Int64 // of tapes
}

var _ hub.Hub = (*Client)(nil)

// maxAnswer bounds an answer that the client reads whole, in bytes.
const maxAnswer = 64 << 20

// idleConns is how many connections are kept for the next requests.
const idleConns = 64

// New returns a Client. It does not connect yet.
func New(cfg Config) (*Client, error) {
	const op = "make client"
	t := &http.Transport{
		// No proxy from the environment: it would see the token.
		TLSClientConfig: cfg.TLS, TLSHandshakeTimeout: 10 * time.Second, DisableCompression: true,
		MaxIdleConns: idleConns, MaxIdleConnsPerHost: idleConns, IdleConnTimeout: time.Minute,
	}
	if t.TLSClientConfig == nil {
		t.TLSClientConfig = &tls.Config{MinVersion: tls.VersionTLS13}
	}
	c := &Client{certified: t.TLSClientConfig.GetClientCertificate != nil, token: cfg.Token, silence: cfg.Silence, patience: cfg.Patience}
	if c.silence <= 0 {
		c.silence = time.Minute
	}
	if c.patience <= 0 {
		c.patience = 10 * time.Second
	}
	switch {
	case (cfg.Socket == "") == (cfg.URL == ""):
		return nil, fault.New(fault.Usage, "bad_command", op, errors.New("want either a socket or a URL"))
	case cfg.Socket != "":
		c.base, c.where = "http://palyrad", cfg.Socket
		t.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			conn, err := dialSocket(ctx, cfg.Socket)
			if err == nil && cfg.Own {
				if err = listensForUs(conn); err != nil {
					conn.Close()
					return nil, err
				}
			}
			return conn, err
		}
	default:
		u, err := url.Parse(cfg.URL)
		if err != nil || u.Host == "" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Scheme != "http" && u.Scheme != "https" {
			return nil, fault.New(fault.Usage, "bad_command", op, fmt.Errorf("%.100q is not http:// or https:// and a host", cfg.URL))
		}
		if u.Scheme == "http" && !loopback(u.Hostname()) {
			return nil, fault.New(fault.Usage, "bad_command", op, errors.New("without TLS only a loopback address")).WithHint("use https://")
		}
		c.base, c.where = u.Scheme+"://"+u.Host, u.Host
	}
	c.http = &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return c, nil
}

// A line of connections that palyrad hasn't accepted yet can be full for a moment, since any
// local user may connect: connect(2) then says EAGAIN at once.
const (
	dialPatience = 10 * time.Second
	dialPause    = 2 * time.Millisecond
)

// dialSocket connects to a unix socket, again as long as its line is full.
func dialSocket(ctx context.Context, path string) (net.Conn, error) {
	late := time.Now().Add(dialPatience)
	for {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if !errors.Is(err, syscall.EAGAIN) || time.Now().After(late) {
			return c, err
		}
		pause := time.NewTimer(dialPause)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

// loopback reports whether a name stands for this host, whatever DNS says.
func loopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && a.IsLoopback()
}

// Close closes the connections that wait for requests.
func (c *Client) Close() error {
	c.http.CloseIdleConnections()
	return nil
}

// request describes a request.
type request struct {
	op     string // for errors: "start run"
	method string
	path   string // beneath hub.Prefix, escaped
	query  url.Values
	header http.Header
	in     any  // JSON body; nil: none
	again  bool // sending it twice is sending it once
}

func (r *request) set(name, value string) *request {
	if r.header == nil {
		r.header = make(http.Header)
	}
	r.header.Set(name, value)
	return r
}

// where adds a parameter; an empty one is left out.
func (r *request) where(name, value string) *request {
	if r.query == nil {
		r.query = make(url.Values)
	}
	if value != "" {
		r.query.Add(name, value)
	}
	return r
}

// keyed gives the request its key, or a random one.
func (r *request) keyed(key string) *request {
	if key == "" {
		key = rand.Text()
	}
	return r.set("Idempotency-Key", key)
}

// send sends a request and returns the response if it is a success. Its body is
// the caller's to close.
func (c *Client) send(ctx context.Context, r *request) (*http.Response, error) {
	var body io.Reader
	if r.in != nil {
		var b bytes.Buffer
		e := json.NewEncoder(&b)
		e.SetEscapeHTML(false) // a tool's input arrives as it was given
		if err := e.Encode(r.in); err != nil {
			return nil, fault.New(fault.Usage, "json_syntax", r.op, err)
		}
		body = bytes.NewReader(b.Bytes())
	}
	u := c.base + hub.Prefix + r.path
	if len(r.query) > 0 {
		u += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, u, body)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", r.op, err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if r.in != nil {
		req.Header.Set("Content-Type", hub.MediaJSON)
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	for n := 0; err != nil && n < attempts && closed(err) && (r.again || r.header.Get("Idempotency-Key") != "") && wait(ctx, n); n++ {
		if req.GetBody != nil {
			req.Body, _ = req.GetBody() // of a bytes.Reader: never fails
		}
		resp, err = c.http.Do(req)
	}
	if err != nil {
		if ctx.Err() == nil && closed(err) {
			return nil, fault.New(fault.Unavailable, "connection_lost", r.op, errors.New("palyrad closed the connection before it answered")).
				WithHint("its connections may all be in use, or it is ending: try again; systemctl stop palyrad, or SIGTERM, also ends every call")
		}
		return nil, c.lost(ctx, r.op, err)
	}
	if resp.StatusCode >= 200 && resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, problem(resp, r.op)
}

// attempts bounds how often a repeatable request is sent when its connection is closed
// before an answer.
const attempts = 4

// closed reports whether the daemon closed a connection that it had accepted.
func closed(err error) bool {
	if strings.HasSuffix(err.Error(), "http: server closed idle connection") {
		// net/http doesn't export this error.
		return true
	}
	return errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// wait waits before the next attempt, and reports whether to make one.
func wait(ctx context.Context, n int) bool {
	t := time.NewTimer(20 * time.Millisecond << n)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// problem turns an answer that is no success into an error.
func problem(resp *http.Response, op string) error {
	p := api.Problem{Status: resp.StatusCode, Detail: "answer " + resp.Status}
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if media, _, e := mime.ParseMediaType(resp.Header.Get("Content-Type")); err == nil && e == nil && media == api.MediaProblem {
		var q api.Problem
		if json.Unmarshal(b, &q) == nil && q.Status == resp.StatusCode {
			p = q
		}
	}
	return p.Err(op)
}

// lost returns the error of a connection that failed or broke.
func (c *Client) lost(ctx context.Context, op string, err error) error {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err // without the address, which may hold ids that say nothing here
	}
	judged, mine := errors.AsType[*fault.Error](err) // of Config.TLS
	switch {
	case mine && ctx.Err() == nil:
		return fault.New(judged.Kind, judged.Reason, op, err).WithHint(judged.Hint)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fault.New(fault.Timeout, "timeout", op, ctx.Err())
	case ctx.Err() != nil:
		return fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
	case errors.Is(err, fs.ErrPermission):
		return fault.New(fault.Denied, "permission_denied", op, err).WithHint("join the group that owns " + c.where + ", or use a token over HTTP")
	}
	e, ok := errors.AsType[*net.OpError](err)
	if ok && e.Op == "remote error" && c.certified { // a TLS alert
		// Without net/http's words, which depend on what saw it first.
		return fault.New(fault.Denied, "unauthenticated", op, fmt.Errorf("palyrad refused the device's certificate: %w", e)).
			WithHint("it may be revoked, or have ended: palyra devices show ID at the hub; a device that was revoked is paired again")
	}
	if ok && e.Op == "dial" {
		return fault.New(fault.Unavailable, "daemon_unreachable", op, err).WithHint("is palyrad running? systemctl status palyrad; palyra setup palyrad makes one of your own")
	}
	return fault.New(fault.Unavailable, "connection_lost", op, err).
		WithHint("palyrad may have ended, or this reader was too slow: what was asked for may have happened, so look before asking again")
}

// whole reads an answer to its end.
func (c *Client) whole(ctx context.Context, resp *http.Response, op string) ([]byte, error) {
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	switch {
	case err != nil:
		return nil, c.lost(ctx, op, err)
	case len(b) > maxAnswer:
		return nil, fault.New(fault.Integrity, "bad_answer", op, fmt.Errorf("more than %d bytes", maxAnswer))
	}
	return b, nil
}
