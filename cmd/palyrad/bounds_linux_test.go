package main

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"palyra/hub"
)

// tooMany makes a request that one principal has no place for, and returns
// whether it was refused with that reason, as 429 and with the time to wait.
func (r *running) tooMany(reason, method, path, body string) {
	r.t.Helper()
	req, err := http.NewRequest(method, "http://localhost"+path, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", rand.Text())
	}
	resp, err := r.client().Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer resp.Body.Close()
	var p problem
	b, err := io.ReadAll(resp.Body)
	if err == nil {
		err = json.Unmarshal(b, &p)
	}
	if err != nil || resp.StatusCode != 429 || p.Reason != reason || resp.Header.Get("Retry-After") == "" {
		r.t.Errorf("%s %s: %d %s, Retry-After %q, %v; want 429 %s", method, path, resp.StatusCode, b, resp.Header.Get("Retry-After"), err, reason)
	}
}

// TestPrincipalBounds: what one principal may have at once of sessions, waiting
// runs and readers of tapes, and that a place that is given back can be had.
func TestPrincipalBounds(t *testing.T) {
	r := newPlace(t, "limits.concurrency = 1\nlimits.queue_per_principal = 1\nlimits.sessions_per_principal = 3\nlimits.sse_readers_per_principal = 1\n").start()
	id := r.sleeper(60000) // has a session
	r.sleeper(60000)       // in the place of the owner
	var s hub.Session
	r.must(201, "POST", "/api/v1/sessions", "{}", &s)
	r.tooMany("too_many", "POST", "/api/v1/sessions", "{}")
	run := fmt.Sprintf(`{"session":%q,"steps":[{"tool":"palyra.echo","input":{"text":"hi"}}]}`, s.ID)
	var waits hub.Run
	r.must(201, "POST", "/api/v1/runs", run, &waits)
	r.tooMany("too_many", "POST", "/api/v1/runs", run)
	r.tooMany("too_many", "POST", "/api/v1/calls", echo)

	req, err := http.NewRequest("GET", "http://localhost/api/v1/runs/"+id+"/tape", nil)
	if err != nil {
		t.Fatal(err)
	}
	tape, err := r.client().Do(req)
	if err != nil || tape.StatusCode != 200 {
		t.Fatalf("a reader: %v, %v", tape, err)
	}
	defer tape.Body.Close()
	r.tooMany("too_many", "GET", "/api/v1/runs/"+id+"/tape", "")

	r.must(200, "POST", "/api/v1/runs/"+id+"/cancel", "", nil)
	r.call(echo) // behind the one that waits
	r.must(200, "GET", "/api/v1/runs/"+waits.ID, "", &waits)
	if waits.State != hub.RunDone {
		t.Errorf("the run that waited: %+v", waits)
	}
}
