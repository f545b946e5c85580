package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/built"
)

// question makes a call about which a person is asked, with a text in its arguments.
func (r *running) question(text string) hub.Run {
	r.t.Helper()
	var session hub.Session
	r.must(201, "POST", "/api/v1/sessions", `{"title":"t"}`, &session)
	in, err := json.Marshal(map[string]any{"session": session.ID, "steps": []any{map[string]any{"tool": "process.run", "input": map[string]any{"argv": []string{"/usr/bin/stty", text}}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	var run hub.Run
	r.must(201, "POST", "/api/v1/runs", string(in), &run)
	return run
}

// told waits until palyrad has made so many calls of its own, and returns the newest.
func (r *running) told(n int) hub.Run {
	r.t.Helper()
	for limit := time.Now().Add(patience); ; <-time.After(lookAgain) {
		var p hub.Page[hub.Run]
		r.must(200, "GET", "/api/v1/runs?principal=palyrad", "", &p)
		if len(p.Items) == n && p.Items[0].Ended != nil {
			var run hub.Run
			r.must(200, "GET", "/api/v1/runs/"+p.Items[0].ID, "", &run)
			return run
		}
		if len(p.Items) > n || time.Now().After(limit) {
			r.t.Fatalf("%d calls of palyrad's own, want %d: %+v\n%s", len(p.Items), n, p.Items, r.log)
		}
	}
}

// notifying is a palyrad that notifies a URL, with policies; "" is the built-in set.
func notifying(t *testing.T, url, policies string) *running {
	t.Helper()
	more := fmt.Sprintf("listen.http = \"off\"\n[notify]\nurl = %q\n", url)
	if policies != "" {
		dir := filepath.Join(t.TempDir(), "policy")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "p.cedar"), []byte(policies), 0o644); err != nil {
			t.Fatal(err)
		}
		more += fmt.Sprintf("[policy]\ndir = %q\n", dir)
	}
	p := newPlace(t, more)
	withEgress(t, p)
	if _, err := os.Stat(filepath.Join(p.bin, "palyra-fetch")); err != nil {
		if err := built.Into(p.bin, "palyra-fetch"); err != nil {
			t.Fatal(err)
		}
	}
	return p.start()
}

func (r *running) warned(about string) bool {
	return slices.ContainsFunc(r.status().Warnings, func(w string) bool { return strings.Contains(w, about) })
}

// failed waits until status and doctor say that the last notification failed.
func (r *running) failed() {
	r.t.Helper()
	for limit := time.Now().Add(patience); !r.warned("notify.url"); <-time.After(lookAgain) {
		if time.Now().After(limit) {
			r.t.Fatalf("warnings: %q", r.status().Warnings)
		}
	}
	var d hub.Doctor
	r.must(200, "GET", "/api/v1/doctor", "", &d)
	if !slices.Contains(d.Missing, "notify") {
		r.t.Errorf("doctor misses %q", d.Missing)
	}
}

// lookAgain is how often a test asks.
const lookAgain = 50 * time.Millisecond

// TestNotify: the operator's URL gets an id and a number when a question waits, by a call of
// palyrad's own, and nothing of the question. Another question within 30 s brings no second one.
func TestNotify(t *testing.T) {
	got := make(chan string, 16)
	host := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		b, _ := httputil.DumpRequest(q, true)
		got <- string(b)
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, "{}")
	}))
	defer host.Close()
	r := notifying(t, host.URL+"/topic", "")
	r.question("a-text-of-the-call")
	var posted string
	select {
	case posted = <-got:
	case <-time.After(patience):
		t.Fatalf("the URL heard nothing\n%s", r.log)
	}
	if !strings.HasPrefix(posted, "POST /topic HTTP/1.1\r\n") || strings.Contains(posted, "a-text") || strings.Contains(posted, "process.run") ||
		!regexp.MustCompile(`\r\n\r\n\{"id":"apr_[0-9a-f]{32}","waiting":1\}$`).MatchString(posted) {
		t.Errorf("the URL got\n%s", posted)
	}
	run := r.told(1)
	s := run.Steps[0]
	if s.Tool != "http.fetch" || s.Outcome != "executed" || s.LogIndex == nil || r.warned("notify") {
		t.Errorf("%+v; warnings %q", s, r.status().Warnings)
	}
	r.question("another-text")
	r.told(1)
	if len(got) != 0 {
		t.Errorf("a second notification within 30 s: %s", <-got)
	}
}

// TestNotifyDenied: a policy that doesn't permit it, or wants a person's yes, makes no notification
// and no question, and status says so.
func TestNotifyDenied(t *testing.T) {
	const rest = `@id("rest") permit (principal, action, resource) unless { principal == Palyra::User::"palyrad" };
@id("ask") @untested("a test") forbid (principal, action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"process.run") unless { context.approved };
`
	for name, tt := range map[string]struct{ policies, outcome string }{
		"denied": {rest, "denied"},
		"asked":  {rest + `@id("own") permit (principal, action, resource) when { principal == Palyra::User::"palyrad" && context.approved };`, "not_approved"},
	} {
		t.Run(name, func(t *testing.T) {
			got := make(chan bool, 16)
			host := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got <- true }))
			defer host.Close()
			r := notifying(t, host.URL, tt.policies)
			r.question("x")
			if s := r.told(1).Steps[0]; s.Outcome != tt.outcome || len(got) != 0 {
				t.Errorf("%+v, %d requests", s, len(got))
			}
			var p hub.Page[hub.Approval]
			r.must(200, "GET", "/api/v1/approvals", "", &p)
			if len(p.Items) != 1 || p.Items[0].Requester == "palyrad" {
				t.Errorf("questions: %+v", p.Items)
			}
			r.failed()
		})
	}
}

// TestNotifySilent: a URL that takes connections and never answers holds nothing up, and neither
// does one that refuses them.
func TestNotifySilent(t *testing.T) {
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	taken := make(chan net.Conn, 16)
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			taken <- c
		}
	}()
	r := notifying(t, "http://"+host.Addr().String()+"/", "")
	run := r.question("x")
	select {
	case c := <-taken:
		defer c.Close()
	case <-time.After(patience):
		t.Fatalf("the URL heard nothing\n%s", r.log)
	}
	r.call(echo)
	r.must(200, "POST", "/api/v1/runs/"+run.ID+"/cancel", "", nil)
	if s := r.told(1).Steps[0]; s.Outcome != "executed" || s.Exit == 0 {
		t.Errorf("%+v", s)
	}
	r.failed()
}
