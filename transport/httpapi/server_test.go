package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/transport/api"
	"palyra/transport/api/apitest"
	"palyra/transport/mcp"
)

// rig is a server over the in-memory hub, on a unix socket and on TCP. It checks its
// answers to send against the OpenAPI document.
type rig struct {
	*Server
	t       *testing.T
	hub     *apitest.Hub
	log     *syncBuffer
	socket  string
	tcp     string // address
	checker *apitest.Checker
	unix    *http.Client
	web     *http.Client
	stop    func()
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// checker makes the one that all rigs share.
var checker = sync.OnceValues(func() (*apitest.Checker, error) {
	doc, err := api.Document(Operations())
	if err != nil {
		return nil, err
	}
	return apitest.NewChecker(doc)
})

func newRig(t *testing.T, change ...func(*Config)) *rig {
	t.Helper()
	r := &rig{t: t, hub: apitest.NewHub(), log: new(syncBuffer)}
	cfg := Config{Hub: r.hub, MCP: mcp.NewHandler("test"), Log: slog.New(slog.NewTextHandler(r.log, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Limits: Limits{Rate: -1, Drain: 300 * time.Millisecond}}
	for _, c := range change {
		c(&cfg)
	}
	var err error
	if r.Server, err = New(cfg); err != nil {
		t.Fatal(err)
	}
	if r.checker, err = checker(); err != nil {
		t.Fatal(err)
	}
	r.socket = filepath.Join(t.TempDir(), "s")
	ul, err := net.Listen("unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.tcp = tl.Addr().String()
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- r.Serve(ctx, Listener{Listener: ul}, Listener{Listener: tl}) }()
	r.unix = &http.Client{Transport: &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		return net.Dial("unix", r.socket)
	}}}
	r.web = &http.Client{Transport: &http.Transport{}}
	r.stop = sync.OnceFunc(func() {
		r.unix.CloseIdleConnections()
		r.web.CloseIdleConnections()
		cancel()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("Serve: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Serve does not end")
		}
	})
	t.Cleanup(r.stop)
	return r
}

// eventually returns when ok does. It is for what no event tells.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for !ok() {
		select {
		case <-late:
			t.Fatalf("not within a minute: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// answer is a response that was read whole.
type answer struct {
	status int
	header http.Header
	body   []byte
	closed bool // the connection
}

// into decodes the body.
func (a answer) into(t *testing.T, v any) {
	t.Helper()
	if err := json.Unmarshal(a.body, v); err != nil {
		t.Fatalf("body %.200q: %v", a.body, err)
	}
}

func (a answer) problem(t *testing.T) api.Problem {
	t.Helper()
	var p api.Problem
	a.into(t, &p)
	return p
}

// send sends a request over the unix socket, with headers as "Name: value".
func (r *rig) send(method, path, body string, headers ...string) answer {
	r.t.Helper()
	return r.do(r.unix, "http://palyra", method, path, body, headers)
}

// sendTCP sends a request over TCP.
func (r *rig) sendTCP(method, path, body string, headers ...string) answer {
	r.t.Helper()
	return r.do(r.web, "http://"+r.tcp, method, path, body, headers)
}

func (r *rig) do(c *http.Client, base, method, path, body string, headers []string) answer {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var in io.Reader
	if body != "" {
		in = strings.NewReader(body)
	}
	req, err := http.NewRequestWithContext(ctx, method, base+path, in)
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		switch {
		case name == "Host":
			req.Host = value
		case value == "":
			req.Header.Del(name)
		default:
			req.Header.Add(name, value)
		}
	}
	resp, err := c.Do(req)
	if err != nil {
		r.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Fatalf("%s %s: read body: %v", method, path, err)
	}
	for name, want := range map[string]string{"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"} {
		if got := resp.Header.Get(name); got != want {
			r.t.Errorf("%s %s: %s: %q, want %q", method, path, name, got, want)
		}
	}
	if method != http.MethodHead {
		if err := r.checker.Response(method, req.URL.Path, resp.StatusCode, resp.Header.Get("Content-Type"), b); err != nil {
			r.t.Errorf("live traffic: %v\n%s", err, b)
		}
	}
	if resp.StatusCode < 300 && method != http.MethodHead {
		if err := r.checker.Request(method, req.URL.Path, []byte(body)); err != nil {
			r.t.Errorf("live traffic: accepted request: %v\n%s", err, body)
		}
	}
	return answer{resp.StatusCode, resp.Header, b, resp.Close}
}

// want fails unless the answer has this status.
func (r *rig) want(a answer, status int) answer {
	r.t.Helper()
	if a.status != status {
		r.t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	return a
}

// refused fails unless the answer is a problem of this status and reason.
func (r *rig) refused(a answer, status int, reason string) api.Problem {
	r.t.Helper()
	if got := a.header.Get("Content-Type"); got != api.MediaProblem {
		r.t.Errorf("content type %q of %d, want a problem: %.200s", got, a.status, a.body)
		return api.Problem{}
	}
	p := a.problem(r.t)
	if a.status != status || p.Status != status || p.Reason != reason {
		r.t.Errorf("status %d, %d in the problem, reason %q; want %d %q: %s", a.status, p.Status, p.Reason, status, reason, a.body)
	}
	if !strings.HasPrefix(p.Instance, "urn:palyra:request:") {
		r.t.Errorf("instance %q names no request", p.Instance)
	}
	return p
}

// key returns headers with an Idempotency-Key that was not used before.
func (r *rig) key() string { return "Idempotency-Key: " + newID() }

// session makes a session.
func (r *rig) session() (id, etag string) {
	r.t.Helper()
	a := r.want(r.send(post, "/api/v1/sessions", `{"title":"x"}`, r.key()), 201)
	var s struct{ ID string }
	a.into(r.t, &s)
	return s.ID, a.header.Get("ETag")
}

// run starts a run with one step.
func (r *rig) run(tool string) string {
	r.t.Helper()
	id, _ := r.session()
	a := r.want(r.send(post, "/api/v1/runs", fmt.Sprintf(`{"session":%q,"steps":[{"tool":%q}]}`, id, tool), r.key()), 201)
	var run struct{ ID string }
	a.into(r.t, &run)
	return run.ID
}

// readAll reads everything, or gives up after a time.
func readAll(r io.ReadCloser, limit time.Duration) ([]byte, error) {
	stop := time.AfterFunc(limit, func() { r.Close() })
	defer stop.Stop()
	return io.ReadAll(r)
}

// TestRefusalsInTheLog: requests that are not well-formed are no errors of ours, also
// where their status begins with 5; and of those that are, each principal has its own
// lines, so that one hides no other's.
func TestRefusalsInTheLog(t *testing.T) {
	r := newRig(t)
	id, _ := r.session()
	for range 50 {
		resp := r.raw("unix", "GET /api/v1/runs/run_"+strings.Repeat("0", 32)+"/tape HTTP/1.0\r\nHost: a\r\n\r\n")
		if resp.StatusCode != 505 {
			t.Fatal(resp.StatusCode)
		}
	}
	if text := r.log.String(); strings.Contains(text, "level=ERROR") || strings.Contains(text, "level=WARN") {
		t.Errorf("%.400s", text)
	}
	bug := fmt.Sprintf(`{"session":%q,"steps":[{"tool":%q}]}`, id, apitest.ToolBug)
	for range 2 * noiseBurst {
		r.want(r.send(post, "/api/v1/runs", bug, r.key()), 500)
	}
	r.want(r.sendTCP(post, "/api/v1/runs", bug, "Authorization: Bearer "+apitest.OwnerToken, r.key()), 500)
	var mine, hers int
	for line := range strings.Lines(r.log.String()) {
		switch {
		case !strings.Contains(line, "level=ERROR"):
		case strings.Contains(line, "caller=alice"):
			hers++
		default:
			mine++
		}
	}
	if mine < noiseBurst || mine > noiseBurst+5 || hers != 1 {
		t.Errorf("%d lines of one, %d of the other", mine, hers)
	}
}
