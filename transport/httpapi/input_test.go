package httpapi

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
	"palyra/transport/api/apitest"
)

// TestBadBodies: one reading of a body, or none.
func TestBadBodies(t *testing.T) {
	r := newRig(t)
	ok := `{"title":"x"}`
	for _, tt := range []struct {
		name, body, reason string
		status             int
		headers            []string
	}{
		{"10 MB", `{"title":"` + strings.Repeat("x", 10<<20) + `"}`, "json_too_large", 413, nil},
		{"just too large", `{"title":"` + strings.Repeat("x", 1<<20) + `"}`, "json_too_large", 413, nil},
		{"empty", " ", "json_syntax", 400, nil},
		{"unknown member", `{"title":"x","principal":"root"}`, "invalid_input", 400, nil},
		{"member in capitals", `{"Title":"x"}`, "invalid_input", 400, nil},
		{"duplicate member", `{"title":"x","title":"y"}`, "json_syntax", 400, nil},
		{"duplicate by escape", `{"title":"x","\u0074itle":"y"}`, "json_syntax", 400, nil},
		{"trailing data", ok + ok, "json_syntax", 400, nil},
		{"array", `[]`, "invalid_input", 400, nil},
		{"null", `null`, "invalid_input", 400, nil},
		{"wrong type", `{"title":1}`, "invalid_input", 400, nil},
		{"comment", `{"title":"x"} // no`, "json_syntax", 400, nil},
		{"lone surrogate", `{"title":"\ud800"}`, "json_syntax", 400, nil},
		{"bad UTF-8", "{\"title\":\"\xff\"}", "json_syntax", 400, nil},
		{"BOM", "\ufeff" + ok, "json_syntax", 400, nil},
		{"text", ok, "invalid_input", 415, []string{"Content-Type: ", "Content-Type: text/plain"}},
		{"form", ok, "invalid_input", 415, []string{"Content-Type: ", "Content-Type: application/x-www-form-urlencoded"}},
		{"no type", ok, "invalid_input", 415, []string{"Content-Type: "}},
		{"two types", ok, "invalid_input", 415, []string{"Content-Type: application/json"}},
		{"other charset", ok, "invalid_input", 415, []string{"Content-Type: ", "Content-Type: application/json; charset=utf-16"}},
		{"compressed", ok, "invalid_input", 415, []string{"Content-Encoding: gzip"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r.refused(r.send(post, "/api/v1/sessions", tt.body, append(tt.headers, r.key())...), tt.status, tt.reason)
		})
	}
	deep := strings.Repeat("[", 40) + strings.Repeat("]", 40)
	r.refused(r.send(post, "/api/v1/calls", `{"tool":"test.echo","input":`+deep+`}`), 400, "json_syntax")
	deeper := strings.Repeat(`{"a":`, 100000) + "1" + strings.Repeat("}", 100000)
	r.refused(r.send(post, "/api/v1/calls", `{"tool":"test.echo","input":`+deeper+`}`), 400, "json_syntax")
	r.refused(r.send(get, "/api/v1/status", ok), 400, "invalid_input")
	r.refused(r.send(post, "/api/v1/resume", "{}"), 400, "invalid_input")
	if n := r.hub.Changes(); n != 0 {
		t.Errorf("%d changes by requests that were refused", n)
	}
	r.want(r.send(post, "/api/v1/sessions", ok, r.key(), "Content-Type: ", `Content-Type: application/json; charset="UTF-8"`), 201)
}

// TestBadIDs: what is no id is not looked up.
func TestBadIDs(t *testing.T) {
	r := newRig(t)
	hex := strings.Repeat("0", 32)
	for _, id := range []string{"x", "ses_", "ses_" + hex + "0", "ses_" + strings.ToUpper(strings.Repeat("a", 32)), "run_" + hex, "ses_" + hex[:31] + "%00",
		"ses_" + hex + "%20"} {
		r.refused(r.send(get, "/api/v1/sessions/"+id, ""), 400, "invalid_input")
	}
	for _, id := range []string{"%2e%2e", "%2e%2e%2f" + hex, "ses_" + hex + "%2F"} {
		r.refused(r.send(get, "/api/v1/sessions/"+id, ""), 404, "not_found")
	}
	for _, i := range []string{"-1", "01", "1e3", "18446744073709551616", "x"} {
		r.refused(r.send(get, "/api/v1/receipts/"+i, ""), 400, "invalid_input")
	}
	r.refused(r.send(get, "/api/v1/runs?session=run_"+hex, ""), 400, "invalid_input")
	r.refused(r.send(http.MethodDelete, "/api/v1/members/a%0ab", "", "If-Match: *"), 400, "invalid_input")
}

// TestFlags: a parameter that is true or false has these two spellings, in the document, too.
func TestFlags(t *testing.T) {
	type input struct {
		Whole bool `json:"whole,omitempty" in:"query" doc:"all of it"`
	}
	op := &hub.Operation{ID: "look", Method: get, Path: "/look", In: api.Type[input](), Status: 200}
	for query, want := range map[string]any{"": input{}, "whole=true": input{true}, "whole=false": input{}, "whole=1": nil, "whole=True": nil, "whole=": nil, "whole": nil,
		"whole=true&whole=true": nil} {
		x := &exchange{r: new(http.Request), rt: &route{Operation: op, in: api.InputOf(op)}}
		var err error
		var got any
		if x.query, err = parseQuery(query, x.rt.in.Query); err == nil {
			got, err = x.input()
		}
		if got != want || want == nil && (fault.KindOf(err) != fault.Usage || !strings.Contains(err.Error(), `"whole"`)) {
			t.Errorf("%q: %+v, %v", query, got, err)
		}
	}
	doc, err := api.Document([]*hub.Operation{op})
	if err != nil || !strings.Contains(strings.Join(strings.Fields(string(doc)), " "), `"name": "whole", "schema": { "type": "boolean" }`) {
		t.Errorf("%v\n%s", err, doc)
	}
}

// dial opens a connection that a test writes to as it likes.
func (r *rig) dial(network string) net.Conn {
	r.t.Helper()
	addr := r.socket
	if network == "tcp" {
		addr = r.tcp
	}
	c, err := net.Dial(network, addr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		r.t.Fatal(err)
	}
	return c
}

// raw sends bytes and reads one response.
func (r *rig) raw(network, text string) *http.Response {
	r.t.Helper()
	c := r.dial(network)
	if _, err := io.WriteString(c, text); err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		r.t.Fatalf("response to %.60q: %v", text, err)
	}
	return resp
}

// TestRawRequests: what net/http itself refuses, it refuses before us.
func TestRawRequests(t *testing.T) {
	r := newRig(t)
	for name, tt := range map[string]struct {
		text   string
		status int
	}{
		"two lengths":         {"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400},
		"length and chunks":   {"POST /api/v1/resume HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 200},
		"other encoding":      {"POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", 501},
		"no host":             {"GET /livez HTTP/1.1\r\n\r\n", 400},
		"two hosts":           {"GET /livez HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400},
		"space in the name":   {"GET /livez HTTP/1.1\r\nHost: a\r\nX : b\r\n\r\n", 400},
		"huge header":         {"GET /livez HTTP/1.1\r\nHost: a\r\nX: " + strings.Repeat("x", 64<<10) + "\r\n\r\n", 431},
		"old version of tape": {"GET /api/v1/runs/run_" + strings.Repeat("0", 32) + "/tape HTTP/1.0\r\nHost: a\r\n\r\n", 505},
		"connect":             {"CONNECT x:1 HTTP/1.1\r\nHost: x:1\r\n\r\n", 404},
		"HTTP/2 preface":      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400},
	} {
		t.Run(name, func(t *testing.T) {
			if resp := r.raw("unix", tt.text); resp.StatusCode != tt.status {
				t.Errorf("status %d, want %d", resp.StatusCode, tt.status)
			}
		})
	}
}

// TestSlowLoris: who does not come to the point is cut off, and others are served meanwhile.
func TestSlowLoris(t *testing.T) {
	t.Parallel() // it waits for deadlines
	r := newRig(t, func(c *Config) {
		// So long that what is sent at once comes in time on a machine that stalls, too.
		c.Limits.HeaderTime, c.Limits.BodyTime, c.Limits.Idle = 6*time.Second, 6*time.Second, 6*time.Second
	})
	var cut sync.WaitGroup
	gone := func(name, text string) {
		c := r.dial("unix")
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		cut.Go(func() {
			if _, err := io.Copy(io.Discard, c); err != nil { // ends when the server closes
				t.Errorf("%s: %v", name, err)
			}
		})
	}
	// A call that waits for longer than all of these goes on.
	done := make(chan answer, 1)
	go func() { done <- r.send(post, "/api/v1/calls", `{"tool":"test.wait"}`) }()
	run := r.firstRun()
	gone("nothing", "")
	gone("half a header", "GET /livez HTTP/1.1\r\nHost: x\r\nX-")
	gone("half a body", "POST /api/v1/stop HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"all\"")
	gone("no next request", "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n")
	r.want(r.send(get, "/livez", ""), 200)
	cut.Wait()
	r.hub.Finish(run.ID)
	var got hub.Run
	r.want(<-done, 200).into(t, &got)
	if got.State != hub.RunDone {
		t.Errorf("state %q of a call that waited", got.State)
	}
}

// firstRun waits until there is a run and returns the newest.
func (r *rig) firstRun() hub.Run {
	r.t.Helper()
	for start := time.Now(); time.Since(start) < time.Minute; {
		var p hub.Page[hub.Run]
		r.send(get, "/api/v1/runs", "").into(r.t, &p)
		if len(p.Items) > 0 {
			return p.Items[0]
		}
	}
	r.t.Fatal("no run")
	return hub.Run{}
}

// TestCallEndsWithItsClient: without a key, no client can fetch the result any more.
func TestCallEndsWithItsClient(t *testing.T) {
	r := newRig(t)
	c := r.dial("unix")
	body := `{"tool":"test.wait"}`
	if _, err := fmt.Fprintf(c, "POST /api/v1/calls HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	r.firstRun()
	c.Close()
	start := time.Now()
	for r.firstRun().State != hub.RunCancelled {
		if time.Since(start) > time.Minute {
			t.Fatal("the run goes on")
		}
	}
}

// TestBrowsers: pages of others get nothing.
func TestBrowsers(t *testing.T) {
	r := newRig(t)
	owner := "Authorization: Bearer " + apitest.OwnerToken
	port := r.tcp[strings.LastIndex(r.tcp, ":"):]
	for _, host := range []string{"evil.example", "evil.example" + port, "127.0.0.1", "localhost:1", "127.0.0.1.evil.example" + port, "[::1]", "localhost" + port + "."} {
		r.refused(r.sendTCP(get, "/livez", "", "Host: "+host), 421, "invalid_input")
	}
	for _, host := range []string{"localhost" + port, "LOCALHOST" + port, "127.0.0.1" + port, "[::1]" + port} {
		r.want(r.sendTCP(get, "/livez", "", "Host: "+host), 200)
	}
	for _, h := range []string{"Sec-Fetch-Site: cross-site", "Sec-Fetch-Site: same-site", "Origin: https://evil.example", "Origin: null"} {
		r.refused(r.sendTCP(post, "/api/v1/resume", "", owner, h), 403, "permission_denied")
	}
	a := r.want(r.sendTCP(post, "/api/v1/resume", "", owner, "Origin: http://"+r.tcp), 200)
	if got := a.header.Get("Access-Control-Allow-Origin"); got != "" {
		t.Errorf("Access-Control-Allow-Origin %q", got)
	}
}

// TestTokens: where a credential may stand, and what guessing costs.
func TestTokens(t *testing.T) {
	r := newRig(t)
	owner := "Authorization: Bearer " + apitest.OwnerToken
	r.want(r.sendTCP(get, "/api/v1/status", "", owner), 200)
	for _, h := range [][]string{
		{owner, owner}, {"Authorization: " + apitest.OwnerToken}, {"Authorization: Bearer"}, {"Authorization: Bearer  " + apitest.OwnerToken},
		{"Authorization: Bearer " + apitest.OwnerToken + ","}, {"Proxy-Authorization: Bearer " + apitest.OwnerToken},
		{"Cookie: token=" + apitest.OwnerToken}, {"X-Api-Key: " + apitest.OwnerToken}, {"Authorization: Bearer " + strings.Repeat("x", 600)},
	} {
		r.refused(r.sendTCP(get, "/api/v1/status", "", h...), 401, "unauthenticated")
	}
	// A token on the socket counts more than who connects; a wrong one does not fall back.
	var s hub.Status
	r.want(r.send(get, "/api/v1/status", "", owner), 200).into(t, &s)
	if s.Caller.User != "alice" {
		t.Errorf("caller %q with a token on the socket", s.Caller.User)
	}
	r.refused(r.send(get, "/api/v1/status", "", "Authorization: Bearer palyra_wrong"), 401, "unauthenticated")

	limited := false
	for range 2 * failureBurst {
		a := r.sendTCP(get, "/api/v1/status", "", "Authorization: Bearer palyra_guess")
		if limited = a.status == 429; limited {
			if p := r.refused(a, 429, "too_many"); p.Status != 429 || a.header.Get("Retry-After") == "" {
				t.Errorf("no Retry-After: %v", a.header)
			}
			break
		}
	}
	if !limited {
		t.Error("guessing is not limited")
	}
	// On loopback everybody has the guesser's address. A token is looked at first,
	// also one that was never used before.
	r.want(r.sendTCP(get, "/api/v1/status", "", owner), 200)
	r.want(r.sendTCP(get, "/api/v1/status", "", "Authorization: Bearer "+apitest.WeakToken), 200)
	r.hub.Revoke(apitest.OwnerToken)
	if a := r.sendTCP(get, "/api/v1/status", "", owner); a.status != 401 && a.status != 429 {
		t.Errorf("a token that was revoked: %d", a.status)
	}
	if strings.Contains(r.log.String(), apitest.OwnerToken) || strings.Contains(r.log.String(), "palyra_guess") {
		t.Error("a token is in the log")
	}
}

// TestRates: requests are counted by principal, on the socket and by tokens, and
// the brake has a rate of its own.
func TestRates(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Rate, c.Limits.Burst = 0.001, 3 })
	for range 3 {
		r.want(r.send(get, "/api/v1/status", ""), 200)
	}
	a := r.send(get, "/api/v1/status", "")
	if r.refused(a, 429, "too_many"); a.header.Get("Retry-After") != "1000" {
		t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
	}
	for range 3 { // the emergency stop is not used up by other requests, and is no way around the limit
		r.want(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 200)
	}
	r.refused(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`), 429, "too_many")
	r.want(r.send(get, "/api/v1/status", "", "Authorization: Bearer "+apitest.OwnerToken), 200) // of another principal
	weak := "Authorization: Bearer " + apitest.WeakToken
	for range 3 {
		r.refused(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`, weak), 403, "scope_missing")
	}
	r.refused(r.send(post, "/api/v1/stop", `{"all":true,"deny_new":false}`, weak), 429, "too_many")
	r.refused(r.send(get, "/api/v1/status", "", weak), 429, "too_many") // a stop without its scope is a request like others
}

// TestCallerKey: for the brake the tokens of a member are one caller, and those of an
// owner are not.
func TestCallerKey(t *testing.T) {
	keys := make(map[string]bool)
	for _, role := range []string{"operator", roleOwner} {
		for _, token := range []string{"", "tok_1", "tok_2"} {
			for _, brake := range []bool{false, true} {
				keys[callerKey(hub.Caller{User: role, Role: role, Token: token}, brake)] = true
			}
		}
	}
	if len(keys) != 4+5 {
		t.Errorf("%v", keys)
	}
}

// TestPanic: a bug in one request is an error with an id, and the next request is served.
func TestPanic(t *testing.T) {
	r := newRig(t)
	r.Server.cfg.Ready = nil // a nil function, called
	a := r.send(get, "/readyz", "")
	r.refused(a, 500, "internal")
	if !strings.Contains(r.log.String(), "panic in a request") || strings.Contains(string(a.body), "nil") {
		t.Errorf("log or answer: %s", a.body)
	}
	r.want(r.send(get, "/livez", ""), 200)
}

// TestNotReady says the class and no more.
func TestNotReady(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Ready = func(context.Context) error { return fmt.Errorf("disk %s full", apitest.Secret) }
	})
	a := r.sendTCP(get, "/readyz", "")
	r.refused(a, 503, "not_ready")
	if strings.Contains(string(a.body), apitest.Secret) || a.header.Get("Retry-After") == "" {
		t.Errorf("answer %s, %v", a.body, a.header)
	}
}

func TestAccepts(t *testing.T) {
	for _, tt := range []struct{ accept, want string }{
		{"", hub.MediaSSE}, {"*/*", hub.MediaSSE}, {"application/x-ndjson", hub.MediaNDJSON}, {"text/event-stream", hub.MediaSSE},
		{"application/*", hub.MediaNDJSON}, {"text/html, application/x-ndjson;q=0.5", hub.MediaNDJSON}, {"APPLICATION/X-NDJSON", hub.MediaNDJSON},
		{"*/*, application/x-ndjson", hub.MediaNDJSON}, {"text/html", ""}, {"x", ""},
	} {
		h := http.Header{}
		if tt.accept != "" {
			h.Set("Accept", tt.accept)
		}
		if got, _ := accepts(h, hub.MediaSSE, hub.MediaNDJSON); got != tt.want {
			t.Errorf("Accept %q: %q, want %q", tt.accept, got, tt.want)
		}
	}
}
