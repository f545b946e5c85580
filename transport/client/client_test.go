package client

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api/apitest"
	"palyra/transport/httpapi"
)

// nobody is the caller that tests give a client, which doesn't use it.
var nobody hub.Caller

// serve serves an in-memory hub on a unix socket and on TCP.
func serve(t *testing.T, lim httpapi.Limits) (h *apitest.Hub, socket, tcp string) {
	t.Helper()
	h = apitest.NewHub()
	socket, tcp = serveHub(t, h, lim)
	return h, socket, tcp
}

// serveHub is serve for any hub.
func serveHub(t *testing.T, h httpapi.Hub, lim httpapi.Limits) (socket, tcp string) {
	t.Helper()
	if lim.Rate == 0 {
		lim.Rate = -1
	}
	lim.Drain = time.Second
	s, err := httpapi.New(httpapi.Config{Hub: h, Limits: lim})
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(t.TempDir(), "s")
	ul, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	tl, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, httpapi.Listener{Listener: ul}, httpapi.Listener{Listener: tl}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return socket, tl.Addr().String()
}

func dial(t *testing.T, cfg Config) *Client {
	t.Helper()
	c, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%T: %v", v, err)
		}
		return v
	}
}

// TestEveryMethod: what goes in at one end comes out at the other.
func TestEveryMethod(t *testing.T) {
	h, socket, tcp := serve(t, httpapi.Limits{})
	for name, cfg := range map[string]Config{"socket": {Socket: socket}, "tcp": {URL: "http://" + tcp, Token: apitest.OwnerToken}} {
		t.Run(name, func(t *testing.T) {
			c, ctx := dial(t, cfg), t.Context()
			var remote hub.Hub = c
			s := must[hub.Session](t)(hub.CreateSession.Do(ctx, remote, nobody, hub.NewSession{Title: "a <b>"}))
			if s.Title != "a <b>" || s.Version != 1 {
				t.Errorf("session %+v", s)
			}
			if got := must[hub.Session](t)(hub.GetSession.Do(ctx, c, nobody, s.ID)); !reflect.DeepEqual(got, s) {
				t.Errorf("session %+v, want %+v", got, s)
			}
			p := must[hub.Page[hub.Session]](t)(hub.ListSessions.Do(ctx, c, nobody, hub.SessionQuery{PageQuery: hub.PageQuery{Limit: 1}, State: hub.SessionOpen}))
			if len(p.Items) != 1 || p.Items[0].ID != s.ID {
				t.Errorf("sessions %+v", p)
			}
			n := hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolEcho, Input: json.RawMessage(`{"a":"<>"}`)}}, IdempotencyKey: name}
			run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, n))
			if again := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, n)); again.ID != run.ID {
				t.Errorf("run %s and %s with one key", run.ID, again.ID)
			}
			if string(run.Steps[0].Input) != `{"a":"<>"}` {
				t.Errorf("input %s", run.Steps[0].Input)
			}
			must[hub.Run](t)(hub.GetRun.Do(ctx, c, nobody, run.ID))
			must[hub.Page[hub.Run]](t)(hub.ListRuns.Do(ctx, c, nobody, hub.RunQuery{Session: s.ID, States: []string{hub.RunDone, hub.RunFailed}}))
			wait := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
			if got := must[hub.Run](t)(hub.CancelRun.Do(ctx, c, nobody, wait.ID)); got.State != hub.RunCancelled {
				t.Errorf("state %q", got.State)
			}
			if got := must[hub.Run](t)(hub.Call.Do(ctx, c, nobody, hub.NewCall{Tool: apitest.ToolEcho})); got.State != hub.RunDone {
				t.Errorf("state %q", got.State)
			}
			a := h.Ask(run.ID)
			must[hub.Page[hub.Approval]](t)(hub.ListApprovals.Do(ctx, c, nobody, hub.ApprovalQuery{State: hub.ApprovalPending}))
			must[hub.Approval](t)(hub.GetApproval.Do(ctx, c, nobody, a.ID))
			if got := must[hub.Approval](t)(hub.ResolveApproval.Do(ctx, c, nobody, hub.Resolution{ID: a.ID, Version: 1, Answer: hub.Answer{Approve: true}})); got.State != hub.ApprovalApproved {
				t.Errorf("approval %q", got.State)
			}
			if _, err := hub.ResolveApproval.Do(ctx, c, nobody, hub.Resolution{ID: a.ID, Version: 1, Answer: hub.Answer{}}); fault.KindOf(err) != fault.Busy || fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("second answer: %v", err)
			}
			if got := must[hub.ToolList](t)(hub.ListTools.Do(ctx, c, nobody, hub.ToolQuery{})); len(got.Items) != 1 || got.Items[0].Name != apitest.ToolEcho {
				t.Errorf("tools %+v", got)
			}
			must[hub.Explanation](t)(hub.ExplainPolicy.Do(ctx, c, nobody, hub.NewCall{Tool: "x"}))
			if got := must[hub.PolicyReport](t)(hub.TestPolicy.Do(ctx, c, nobody, hub.PolicyTestRequest{Candidate: nil})); got.Tests != 1 {
				t.Errorf("tests of the set in force: %d", got.Tests)
			}
			if got := must[hub.PolicyReport](t)(hub.TestPolicy.Do(ctx, c, nobody, hub.PolicyTestRequest{Candidate: &hub.PolicySet{Files: map[string]string{"a": "b"}}})); got.Tests != 2 {
				t.Errorf("tests of a candidate: %d", got.Tests)
			}
			if got := must[hub.PolicyDiff](t)(hub.DiffPolicy.Do(ctx, c, nobody, hub.PolicyDiffQuery{Last: 7})); got.Replayed != 7 {
				t.Errorf("diff %+v", got)
			}
			must[hub.PolicyInfo](t)(hub.GetPolicy.Do(ctx, c, nobody, hub.None{}))
			if got := must[hub.DecisionReport](t)(hub.GetDecision.Do(ctx, c, nobody, "00112233")); got.Fix != "permit it" || got.Effect != "deny" {
				t.Errorf("decision %+v", got)
			}
			if b := must[[]byte](t)(hub.ExportDecision.Do(ctx, c, nobody, "00112233445566778899aabbccddeeff")); !bytes.Contains(b, []byte("version")) {
				t.Errorf("bundle %s", b)
			}
			if b := must[[]byte](t)(hub.GetReceipt.Do(ctx, c, nobody, 0)); !bytes.Contains(b, []byte("sigstore")) {
				t.Errorf("receipt %s", b)
			}
			must[hub.JournalStatus](t)(hub.GetJournal.Do(ctx, c, nobody, hub.None{}))
			if got := must[hub.Page[hub.JournalEntry]](t)(hub.ListJournalEntries.Do(ctx, c, nobody, hub.JournalQuery{From: 3, Limit: 5})); got.Items[0].Index != 3 {
				t.Errorf("entries %+v", got)
			}
			if got := must[hub.JournalProof](t)(hub.ProveJournalEntry.Do(ctx, c, nobody, 9)); got.Index != 9 || !bytes.Equal(got.Hashes[0], []byte{2}) {
				t.Errorf("proof %+v", got)
			}
			if got := must[hub.JournalConsistency](t)(hub.ProveJournalConsistency.Do(ctx, c, nobody, hub.JournalSince{Old: 4})); got.Old != 4 {
				t.Errorf("consistency %+v", got)
			}
			if b := must[[]byte](t)(hub.GetCheckpoint.Do(ctx, c, nobody, hub.None{})); !strings.HasPrefix(string(b), "test\n1\n") {
				t.Errorf("checkpoint %q", b)
			}
			if b := must[[]byte](t)(hub.GetTile.Do(ctx, c, nobody, "0/x001/234.p/9")); string(b) != "0/x001/234.p/9" {
				t.Errorf("tile %q", b)
			}
			tok := must[hub.TokenSecret](t)(hub.CreateToken.Do(ctx, c, nobody, hub.NewToken{Name: "n", Scopes: []string{"run.start"}, TTL: time.Hour}))
			if tok.Secret == "" || tok.Name != "n" {
				t.Errorf("token %+v", tok)
			}
			must[hub.Page[hub.Token]](t)(hub.ListTokens.Do(ctx, c, nobody, hub.TokenQuery{}))
			must[hub.TokenSecret](t)(hub.RotateToken.Do(ctx, c, nobody, hub.Rotation{ID: tok.ID, Version: 1, RotationRequest: hub.RotationRequest{Overlap: time.Minute}}))
			if got := must[hub.Token](t)(hub.RevokeToken.Do(ctx, c, nobody, hub.TokenChange{ID: tok.ID, Version: 0})); got.State != "revoked" {
				t.Errorf("token %+v", got)
			}
			m := must[hub.Member](t)(hub.PutMember.Do(ctx, c, nobody, hub.MemberPut{Principal: "a/b " + name, MemberChange: hub.MemberChange{Role: "operator"}}))
			up := hub.MemberPut{Principal: m.Principal, Version: m.Version, MemberChange: hub.MemberChange{Role: "admin"}}
			if m = must[hub.Member](t)(hub.PutMember.Do(ctx, c, nobody, up)); m.Version != 2 || m.Principal != "a/b "+name {
				t.Errorf("member %+v", m)
			}
			must[hub.Page[hub.Member]](t)(hub.ListMembers.Do(ctx, c, nobody, hub.None{}))
			if _, err := hub.RemoveMember.Do(ctx, c, nobody, hub.MemberRemoval{Principal: m.Principal, Version: 2}); err != nil {
				t.Error(err)
			}
			must[hub.Page[hub.Setting]](t)(hub.GetConfig.Do(ctx, c, nobody, hub.None{}))
			want := "alice"
			if name == "socket" {
				want = fmt.Sprintf("uid:%d", os.Getuid())
			}
			if got := must[hub.Status](t)(hub.GetStatus.Do(ctx, c, nobody, hub.None{})); got.Caller.User != want {
				t.Errorf("caller %q, want %q", got.Caller.User, want)
			}
			must[hub.Doctor](t)(hub.GetDoctor.Do(ctx, c, nobody, hub.None{}))
			if got := must[hub.Stopped](t)(hub.Stop.Do(ctx, c, nobody, hub.StopRequest{DenyNew: true})); !got.DenyNew {
				t.Errorf("stopped %+v", got)
			}
			must[hub.Stopped](t)(hub.Resume.Do(ctx, c, nobody, hub.None{}))
			if _, err := hub.Reload.Do(ctx, c, nobody, hub.None{}); fault.KindOf(err) != fault.BadState || fault.HintOf(err) != "palyra-admin config validate" {
				t.Errorf("reload: %v", err)
			}
			if got := must[hub.LayerPatch](t)(hub.GetPatch.Do(ctx, c, nobody, hub.PatchQuery{Layer: apitest.Layer})); string(got.Patch) != "diff\xff\n" {
				t.Errorf("patch %q", got.Patch)
			}
			list := hub.LayerList{Layer: apitest.Layer, LayerListBody: hub.LayerListBody{Digest: "sha256:" + strings.Repeat("0", 64)}}
			must[hub.Run](t)(hub.ApplyLayer.Do(ctx, c, nobody, list))
			must[hub.Run](t)(hub.UndoLayer.Do(ctx, c, nobody, list))
			must[hub.Run](t)(hub.RecoverLayer.Do(ctx, c, nobody, apitest.Layer))
			must[hub.None](t)(hub.DiscardLayer.Do(ctx, c, nobody, apitest.Layer))
			must[hub.Session](t)(hub.EndSession.Do(ctx, c, nobody, hub.SessionChange{ID: s.ID, Version: 1}))
		})
	}
}

// TestErrors come with all that they had.
func TestErrors(t *testing.T) {
	_, socket, tcp := serve(t, httpapi.Limits{})
	c, ctx := dial(t, Config{Socket: socket}), t.Context()
	_, err := hub.Call.Do(ctx, c, nobody, hub.NewCall{Tool: apitest.ToolDeny})
	d := hub.DenialOf(err)
	if fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "policy_denied" || fault.HintOf(err) != "ask the operator" ||
		d == nil || d.DecisionID == "" || d.Layer != hub.LayerPolicy || d.Fix != "permit it" {
		t.Errorf("denial: %v, %+v", err, d)
	}
	if _, err := hub.GetRun.Do(ctx, c, nobody, "../../livez"); fault.KindOf(err) != fault.Usage && fault.KindOf(err) != fault.NotFound {
		t.Errorf("odd id: %v", err)
	}
	weak := dial(t, Config{URL: "http://" + tcp, Token: apitest.WeakToken})
	if _, err = hub.GetConfig.Do(ctx, weak, nobody, hub.None{}); hub.DenialOf(err) == nil || hub.DenialOf(err).Permission != "config.read" {
		t.Errorf("scope: %v", err)
	}
	wrong := dial(t, Config{URL: "http://" + tcp, Token: "palyra_wrong"})
	if _, err = hub.GetStatus.Do(ctx, wrong, nobody, hub.None{}); fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "unauthenticated" || strings.Contains(err.Error(), "palyra_wrong") {
		t.Errorf("wrong token: %v", err)
	}
	gone := dial(t, Config{Socket: filepath.Join(t.TempDir(), "nothing")})
	if _, err = hub.GetStatus.Do(ctx, gone, nobody, hub.None{}); fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != "daemon_unreachable" || fault.HintOf(err) == "" {
		t.Errorf("no daemon: %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	if _, err = hub.Call.Do(short, c, nobody, hub.NewCall{Tool: apitest.ToolWait}); fault.KindOf(err) != fault.Timeout {
		t.Errorf("deadline: %v", err)
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	if _, err = hub.GetStatus.Do(now, c, nobody, hub.None{}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("canceled: %v", err)
	}
}

// TestOtherServers: what is no answer of ours is an error and no success.
func TestOtherServers(t *testing.T) {
	for name, tt := range map[string]struct {
		serve http.HandlerFunc
		kind  fault.Kind
	}{
		"HTML":              {func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") }, fault.Integrity},
		"redirect":          {func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "http://x/", http.StatusFound) }, fault.Internal},
		"proxy error":       {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "bad gateway", http.StatusBadGateway) }, fault.Unavailable},
		"lying problem":     {func(w http.ResponseWriter, _ *http.Request) { problemJSON(w, 404, `{"status":200,"kind":"usage"}`) }, fault.NotFound},
		"kind is not known": {func(w http.ResponseWriter, _ *http.Request) { problemJSON(w, 403, `{"status":403,"kind":"strange"}`) }, fault.Denied},
		"breaks off": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "{")
		}, fault.Unavailable},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(tt.serve)
			defer s.Close()
			_, err := hub.GetStatus.Do(t.Context(), dial(t, Config{URL: s.URL}), nobody, hub.None{})
			if err == nil || fault.KindOf(err) != tt.kind {
				t.Errorf("%v: kind %v, want %v", err, fault.KindOf(err), tt.kind)
			}
		})
	}
}

func problemJSON(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	io.WriteString(w, body)
}

func TestNew(t *testing.T) {
	for _, cfg := range []Config{{}, {Socket: "/a", URL: "https://b"}, {URL: "http://example.com"}, {URL: "http://10.0.0.1:7142"}, {URL: "ftp://127.0.0.1"},
		{URL: "127.0.0.1:7142"}, {URL: "http://user@127.0.0.1"}, {URL: "http://127.0.0.1/x"}, {URL: "http://127.0.0.1?x"}, {URL: "http://localhost.evil.example"}} {
		if _, err := New(cfg); fault.KindOf(err) != fault.Usage {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
	for _, cfg := range []Config{{Socket: "/a"}, {URL: "https://example.com"}, {URL: "http://[::1]:7142/"}, {URL: "http://localhost:1"}} {
		if _, err := New(cfg); err != nil {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// relay passes connections on to a socket, and breaks them when it is told to.
type relay struct {
	t    *testing.T
	path string
	mu   sync.Mutex
	open []net.Conn
}

func newRelay(t *testing.T, to string) *relay {
	r := &relay{t: t, path: filepath.Join(t.TempDir(), "r")}
	l, err := net.Listen("unix", r.path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close(); r.breakAll() })
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return
			}
			b, err := net.Dial("unix", to)
			if err != nil {
				a.Close()
				continue
			}
			r.mu.Lock()
			r.open = append(r.open, a, b)
			r.mu.Unlock()
			go func() { io.Copy(a, b); a.Close() }()
			go func() { io.Copy(b, a); b.Close() }()
		}
	}()
	return r
}

func (r *relay) breakAll() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range r.open {
		c.Close()
	}
	r.open = nil
}

// TestTapeResumes where it was, each event once, whatever becomes of the connection.
func TestTapeResumes(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{})
	r := newRelay(t, socket)
	c, ctx := dial(t, Config{Socket: r.path}), t.Context()
	s := must[hub.Session](t)(hub.CreateSession.Do(ctx, c, nobody, hub.NewSession{}))
	run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
	tape := must[hub.Tape](t)(hub.ReadTape.Do(ctx, c, nobody, hub.TapeQuery{Run: run.ID}))
	defer tape.Close()
	for i := range 200 {
		if i%40 == 39 {
			r.breakAll()
		}
		h.Emit(run.ID, hub.EventStepStarted, hub.StepStarted{Step: i})
		ev := must[hub.Event](t)(tape.Next(ctx))
		if ev.Seq != uint64(i+1) {
			t.Fatalf("event %d, want %d", ev.Seq, i+1)
		}
	}
	// A caller that stops waiting can go on later.
	for range 201 - 200 {
		must[hub.Event](t)(tape.Next(ctx))
	}
	short, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
	defer cancel()
	if _, err := tape.Next(short); fault.KindOf(err) != fault.Timeout {
		t.Errorf("Next until a deadline: %v", err)
	}
	h.Finish(run.ID)
	if ev := must[hub.Event](t)(tape.Next(ctx)); ev.Kind != hub.EventRunDone {
		t.Errorf("last event %+v", ev)
	}
	for range 2 {
		if _, err := tape.Next(ctx); err != io.EOF {
			t.Errorf("after the last event: %v", err)
		}
	}
	done := must[hub.Tape](t)(hub.ReadTape.Do(ctx, c, nobody, hub.TapeQuery{Run: run.ID, After: 202}))
	if _, err := done.Next(ctx); err != io.EOF {
		t.Errorf("tape of a run that has ended, from its end: %v", err)
	}
	if _, err := hub.ReadTape.Do(ctx, c, nobody, hub.TapeQuery{Run: "run_" + strings.Repeat("0", 32)}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no such run: %v", err)
	}
}

// TestOutputResumes: each byte of both streams comes once, although the connection breaks
// between the parts.
func TestOutputResumes(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{})
	c, ctx := dial(t, Config{Socket: socket}), t.Context()
	s := must[hub.Session](t)(hub.CreateSession.Do(ctx, c, nobody, hub.NewSession{}))
	run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
	out := must[hub.Outputs](t)(hub.ReadOutput.Do(ctx, c, nobody, hub.OutputQuery{Run: run.ID})).(*outputs)
	defer out.Close()
	got := map[string]string{}
	for i := range 20 {
		h.Write(run.ID, "stdout", fmt.Sprintf("%d,", i))
		h.Write(run.ID, "stderr", "e")
		for range 2 {
			p := must[hub.OutputPart](t)(out.Next(ctx))
			if got[p.Stream] += p.Text; i%3 == 0 {
				out.drop() // the rest comes over another connection
			}
		}
	}
	h.Finish(run.ID)
	if p, err := out.Next(ctx); err != io.EOF {
		t.Errorf("after the last part: %+v, %v", p, err)
	}
	if !strings.HasSuffix(got["stdout"], ",18,19,") || len(got["stdout"]) != 50 || len(got["stderr"]) != 20 {
		t.Errorf("%q", got)
	}
	if c.reconnects.Load() == 0 {
		t.Error("no connection broke")
	}
	// A daemon that leaves bytes out is no daemon.
	bad := must[hub.Outputs](t)(hub.ReadOutput.Do(ctx, c, nobody, hub.OutputQuery{Run: run.ID})).(*outputs)
	defer bad.Close()
	bad.q.Stdout = 1
	if _, err := bad.Next(ctx); fault.ReasonOf(err) != "bad_answer" {
		t.Errorf("a byte is missing: %v", err)
	}
}

// TestTapeEnds: a tape whose daemon is gone, or accepts and never answers, ends with a named
// error when the client's patience does.
func TestTapeEnds(t *testing.T) {
	for name, c := range map[string]struct {
		silent bool // something listens there
		want   string
	}{"gone": {false, "daemon_unreachable"}, "silent": {true, "connection_lost"}} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "s")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			began := make(chan net.Conn, 1)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				if _, err := http.ReadRequest(bufio.NewReader(conn)); err != nil {
					t.Error(err)
				}
				io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n\n\r\n")
				began <- conn
			}()
			tape := must[hub.Tape](t)(hub.ReadTape.Do(t.Context(), dial(t, Config{Socket: path, Patience: 200 * time.Millisecond}), nobody, hub.TapeQuery{Run: "run_1"}))
			defer tape.Close()
			conn := <-began
			if c.silent {
				defer l.Close() // its queue takes connections
			} else {
				l.Close()
			}
			conn.Close()
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err = tape.Next(ctx)
			if fault.KindOf(err) != fault.Unavailable || fault.ReasonOf(err) != c.want {
				t.Errorf("the tape ends with %v (%s), want %s", err, fault.ReasonOf(err), c.want)
			}
		})
	}
}

// TestTapeViewResumes: of the events that one recorded event stands for a reader gets
// each once, although the connection breaks between them.
func TestTapeViewResumes(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{})
	r := newRelay(t, socket)
	c, ctx := dial(t, Config{Socket: r.path}), t.Context()
	s := must[hub.Session](t)(hub.CreateSession.Do(ctx, c, nobody, hub.NewSession{}))
	run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
	index := uint64(1)
	for i := range 20 {
		h.Emit(run.ID, hub.EventStepStarted, hub.StepStarted{Step: i})
		h.Emit(run.ID, hub.EventStepDecided, hub.StepDecided{Step: i, Effect: "needs_approval"})
		h.Emit(run.ID, hub.EventStepEnded, hub.StepResult{Index: i, Outcome: "executed", Approval: "apr_1", LogIndex: &index})
	}
	h.Finish(run.ID)
	view := must[hub.Tape](t)(hub.ReadTape.Do(ctx, c, nobody, hub.TapeQuery{Run: run.ID, View: hub.ViewTools})).(*tape)
	defer view.Close()
	want := []string{hub.EventRunInProgress}
	for range 20 {
		want = append(want, hub.EventToolProposal, hub.EventToolDecision, hub.EventToolResult, hub.EventToolAttestation)
	}
	want = append(want, hub.EventRunDone)
	for i, kind := range want {
		ev := must[hub.Event](t)(view.Next(ctx))
		if ev.Kind != kind {
			t.Fatalf("event %d: %s, want %s", i, ev.Kind, kind)
		}
		if i%3 == 0 {
			view.drop() // the rest comes over another connection
		}
	}
	if _, err := view.Next(ctx); err != io.EOF {
		t.Errorf("after the last event: %v", err)
	}
}

// TestTapeSilence: a connection that is dead but not closed is given up.
func TestTapeSilence(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{Heartbeat: time.Hour})
	c, ctx := dial(t, Config{Socket: socket, Silence: 50 * time.Millisecond}), t.Context()
	s := must[hub.Session](t)(hub.CreateSession.Do(ctx, c, nobody, hub.NewSession{}))
	run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, nobody, hub.NewRun{Session: s.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
	tape := must[hub.Tape](t)(hub.ReadTape.Do(ctx, c, nobody, hub.TapeQuery{Run: run.ID})).(*tape)
	must[hub.Event](t)(tape.Next(ctx))
	// The first event may have been slow to come, too.
	first, before := tape.body, c.reconnects.Load()
	go func() {
		for { // until it has connected again, which only a silence makes it do
			if p, err := hub.ListRuns.Do(ctx, h, nobody, hub.RunQuery{}); err != nil || len(p.Items) == 0 {
				return
			}
			if c.reconnects.Load() > before {
				h.Finish(run.ID)
				return
			}
		}
	}()
	must[hub.Event](t)(tape.Next(ctx))
	if tape.body == first {
		t.Error("the silent connection is still in use")
	}
	tape.Close()
	if _, err := tape.Next(ctx); fault.KindOf(err) != fault.Canceled {
		t.Errorf("closed tape: %v", err)
	}
}

// TestArtifact reads and seeks as in a file.
func TestArtifact(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{})
	c, ctx := dial(t, Config{Socket: socket}), t.Context()
	content := bytes.Repeat([]byte("0123456789"), 10000)
	d, run := h.PutArtifact(content), "run_"+strings.Repeat("0", 32)
	a := must[hub.Artifact](t)(hub.GetArtifact.Do(ctx, c, nobody, hub.ArtifactQuery{Run: run, Digest: d}))
	defer a.Close()
	if i := a.Info(); i.Digest != d || i.Size != int64(len(content)) || i.MediaType == "" || !i.Created.Equal(time.Unix(1, 0)) {
		t.Errorf("info %+v", i)
	}
	if b := must[[]byte](t)(io.ReadAll(a)); !bytes.Equal(b, content) {
		t.Errorf("%d bytes, want %d", len(b), len(content))
	}
	for _, at := range []int64{5, 99999, 100000, 200000, 0} {
		must[int64](t)(a.Seek(at, io.SeekStart))
		want := content[min(at, int64(len(content))):]
		if b := must[[]byte](t)(io.ReadAll(a)); !bytes.Equal(b, want) {
			t.Errorf("from %d: %d bytes, want %d", at, len(b), len(want))
		}
	}
	if _, err := a.Seek(-1, io.SeekStart); err == nil {
		t.Error("seek before the beginning")
	}
	if _, err := hub.GetArtifact.Do(ctx, c, nobody, hub.ArtifactQuery{Run: run, Digest: "sha256:" + strings.Repeat("1", 64)}); fault.KindOf(err) != fault.NotFound {
		t.Errorf("no such artifact: %v", err)
	}
}

// TestBackup is whole or an error.
func TestBackup(t *testing.T) {
	_, socket, _ := serve(t, httpapi.Limits{})
	c, ctx := dial(t, Config{Socket: socket}), t.Context()
	var b bytes.Buffer
	if i := must[hub.BackupInfo](t)(hub.Backup.Do(ctx, c, nobody, hub.BackupTo{BackupRequest: hub.BackupRequest{Recipients: []string{"age1"}}, W: &b})); i.Bytes != int64(b.Len()) || b.Len() == 0 {
		t.Errorf("%+v, %d bytes", i, b.Len())
	}
	if _, err := hub.Backup.Do(ctx, c, nobody, hub.BackupTo{BackupRequest: hub.BackupRequest{}, W: io.Discard}); err == nil {
		t.Error("a backup that broke off is taken for whole")
	}
	if _, err := hub.Backup.Do(ctx, c, nobody, hub.BackupTo{BackupRequest: hub.BackupRequest{Recipients: []string{"age1"}}, W: full{}}); fault.ReasonOf(err) != "io_error" {
		t.Errorf("full disk: %v", err)
	}
}

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space") }

// TestKeysSurviveBreaks: a request with a key is sent again when the connection
// was gone, and happens once.
func TestKeysSurviveBreaks(t *testing.T) {
	h, socket, _ := serve(t, httpapi.Limits{})
	r := newRelay(t, socket)
	c, ctx := dial(t, Config{Socket: r.path}), t.Context()
	for range 20 {
		must[hub.Session](t)(hub.CreateSession.Do(ctx, c, nobody, hub.NewSession{}))
		r.breakAll() // the connection that waits for the next request is dead
	}
	if n := h.Changes(); n != 20 {
		t.Errorf("%d sessions, want 20", n)
	}
}
