package remote

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// seen is a request that a server got.
type seen struct{ method, session, version, last, header, query, body string }

// server is one on this machine's loopback, and what it was asked.
type server struct {
	*httptest.Server
	mu  sync.Mutex
	got []seen
}

func serve(t *testing.T, answer func(out http.ResponseWriter, q seen, id string)) *server {
	t.Helper()
	s := new(server)
	s.Server = httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		q := seen{r.Method, r.Header.Get("Mcp-Session-Id"), r.Header.Get("Mcp-Protocol-Version"), r.Header.Get("Last-Event-ID"), r.Header.Get("X-Team") + r.Header.Get("Authorization"), r.URL.RawQuery, string(b)}
		s.mu.Lock()
		s.got = append(s.got, q)
		s.mu.Unlock()
		var m struct{ ID json.RawMessage }
		json.Unmarshal(b, &m)
		answer(out, q, string(m.ID))
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *server) all() []seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]seen{}, s.got...)
}

// good answers as a server should, with sessions s1, s2, …
func good(then func(out http.ResponseWriter, q seen, id string)) func(out http.ResponseWriter, q seen, id string) {
	n := 0
	var mu sync.Mutex
	return func(out http.ResponseWriter, q seen, id string) {
		switch {
		case q.method == http.MethodGet && q.last == "":
			out.WriteHeader(http.StatusMethodNotAllowed)
		case strings.Contains(q.body, `"initialize"`):
			mu.Lock()
			n++
			out.Header().Set("Mcp-Session-Id", fmt.Sprintf("s%d", n))
			mu.Unlock()
			out.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"result":{"protocolVersion":"2025-06-18"}}`, id)
		case id == "" && q.method == http.MethodPost:
			out.WriteHeader(http.StatusAccepted)
		case q.method == http.MethodDelete:
		default:
			then(out, q, id)
		}
	}
}

const (
	hello = `{"jsonrpc":"2.0","id":1,"method":"initialize","params":{}}` + "\n"
	ready = `{"jsonrpc":"2.0","method":"notifications/initialized"}` + "\n"
	call  = `{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{}}` + "\n"
)

// drive runs the program with the input and, when answers answers have come, ends it.
func drive(t *testing.T, url string, answers int, input string, more ...string) (lines []string, status int, said string) {
	t.Helper()
	in, give := io.Pipe()
	take, out := io.Pipe()
	var errs bytes.Buffer
	done := make(chan int)
	go func() {
		n := Main(append([]string{Name, url}, more...), in, out, &errs)
		out.Close()
		in.CloseWithError(io.ErrClosedPipe)
		done <- n
	}()
	go func() {
		io.WriteString(give, input)
		if answers == 0 {
			give.Close()
		}
	}()
	rest := json.NewDecoder(take)
	for {
		var raw json.RawMessage
		if rest.Decode(&raw) != nil {
			break
		}
		if lines = append(lines, string(raw)); len(lines) == answers {
			give.Close()
		}
	}
	return lines, <-done, errs.String()
}

func jsonAnswer(out http.ResponseWriter, id, text string) {
	out.Header().Set("Content-Type", "application/json; charset=utf-8")
	fmt.Fprintf(out, "{\"jsonrpc\":\"2.0\",\n\"id\":%s,\"result\":%q}", id, text)
}

// TestSession: a session begins, is named in each request with the version, and ends.
func TestSession(t *testing.T) {
	s := serve(t, good(func(out http.ResponseWriter, q seen, id string) { jsonAnswer(out, id, "done") }))
	lines, status, said := drive(t, s.URL+"/v1?a=b", 2, hello+ready+call, "header:x-team=blue")
	if status != 0 || len(lines) != 2 || !strings.Contains(lines[1], `"done"`) {
		t.Fatalf("%q, %d, %s", lines, status, said)
	}
	posts, ended := 0, false
	for _, q := range s.all() {
		first := strings.Contains(q.body, `"initialize"`)
		if q.header != "blue" || q.query != "a=b" || first != (q.session == "") || first != (q.version == "") {
			t.Errorf("asked %+v", q)
		}
		if q.method == http.MethodPost {
			posts++
		}
		ended = q.method == http.MethodDelete
	}
	if posts != 3 || !ended {
		t.Errorf("%d messages; ended: %v", posts, ended)
	}
}

// TestForgotten: a server that has forgotten the session gets another, and the message once in that.
func TestForgotten(t *testing.T) {
	s := serve(t, good(func(out http.ResponseWriter, q seen, id string) {
		if q.session == "s1" {
			http.Error(out, "who", http.StatusNotFound)
			return
		}
		jsonAnswer(out, id, "done in "+q.session)
	}))
	lines, status, said := drive(t, s.URL, 2, hello+ready+call)
	if status != 0 || len(lines) != 2 || !strings.Contains(lines[1], "done in s2") || !strings.Contains(said, "another has begun") {
		t.Fatalf("%q, %d, %s", lines, status, said)
	}
}

// TestStreams: an answer comes in a stream, and in the rest of one that was cut.
func TestStreams(t *testing.T) {
	s := serve(t, good(func(out http.ResponseWriter, q seen, id string) {
		out.Header().Set("Content-Type", "text/event-stream")
		switch q.last {
		case "":
			io.WriteString(out, ": hi\nid: e1\nretry: 1\ndata: {\"method\":\"notifications/x\"}\n\nid: e2\ndata:\n\ndata: half")
		case "e2":
			io.WriteString(out, "id: e3\n\n")
		default:
			io.WriteString(out, "event: other\ndata: no\n\ndata: {\"id\":2,\ndata: \"result\":7}\n\n")
		}
	}))
	lines, status, said := drive(t, s.URL, 3, hello+ready+call)
	if status != 0 || len(lines) != 3 || lines[1] != `{"method":"notifications/x"}` || lines[2] != `{"id":2, "result":7}` {
		t.Fatalf("%q, %d, %s", lines, status, said)
	}
}

// TestLost: an answer that is lost ends the program with the reason, and no message is sent twice.
func TestLost(t *testing.T) {
	for want, answer := range map[string]func(out http.ResponseWriter, id string){
		"can't be resumed": func(out http.ResponseWriter, id string) {
			out.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(out, "data: {}\n\n")
		},
		"answered 404 when it was to be resumed": func(out http.ResponseWriter, id string) {
			out.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(out, "id: gone\nretry: 1\ndata: {}\n\n")
		},
		"neither JSON nor events": func(out http.ResponseWriter, id string) {
			out.Header().Set("Content-Type", "text/html")
			io.WriteString(out, "<html>")
		},
		"nothing else":            func(out http.ResponseWriter, id string) { out.WriteHeader(http.StatusAccepted) },
		"something else than":     func(out http.ResponseWriter, id string) { jsonAnswer(out, "77", "x") },
		"more than 4194304 bytes": func(out http.ResponseWriter, id string) { jsonAnswer(out, id, strings.Repeat("x", maxMessage)) },
		"an event has more than": func(out http.ResponseWriter, id string) {
			out.Header().Set("Content-Type", "text/event-stream")
			for range 5 {
				io.WriteString(out, "data: "+strings.Repeat("x", 1<<20)+"\n")
			}
		},
		"the answer was lost": func(out http.ResponseWriter, id string) {
			c, _, err := http.NewResponseController(out).Hijack()
			if err == nil {
				c.Close()
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			s := serve(t, good(func(out http.ResponseWriter, q seen, id string) {
				if q.last != "" {
					http.NotFound(out, nil)
					return
				}
				answer(out, id)
			}))
			_, status, said := drive(t, s.URL, -1, hello+ready+call)
			if status != 1 || !strings.Contains(said, want) {
				t.Errorf("%d, %s; want %q", status, said, want)
			}
			calls := 0
			for _, q := range s.all() {
				if strings.Contains(q.body, "tools/call") {
					calls++
				}
			}
			if calls != 1 {
				t.Errorf("the call was sent %d times", calls)
			}
		})
	}
}

func redirect(out http.ResponseWriter, to string, status int) {
	out.Header().Set("Location", to)
	out.WriteHeader(status)
}

// TestDeclined: what HTTP says instead of an answer is an error for that call alone.
func TestDeclined(t *testing.T) {
	for want, answer := range map[string]func(out http.ResponseWriter, q seen, id string){
		"Palyra does no OAuth": func(out http.ResponseWriter, q seen, id string) { http.Error(out, "", http.StatusUnauthorized) },
		"answered 500":         func(out http.ResponseWriter, q seen, id string) { http.Error(out, "", http.StatusInternalServerError) },
		"its own words": func(out http.ResponseWriter, q seen, id string) {
			out.Header().Set("Content-Type", "application/json")
			out.WriteHeader(http.StatusBadRequest)
			fmt.Fprintf(out, `{"jsonrpc":"2.0","id":%s,"error":{"code":-1,"message":"its own words"}}`, id)
		},
		"a redirect to other.example:80": func(out http.ResponseWriter, q seen, id string) {
			redirect(out, "http://other.example/", http.StatusTemporaryRedirect)
		},
		"status 302": func(out http.ResponseWriter, q seen, id string) {
			redirect(out, "/else", http.StatusFound)
		},
		"more than 3 redirects": func(out http.ResponseWriter, q seen, id string) {
			redirect(out, "/again", http.StatusPermanentRedirect)
		},
	} {
		t.Run(want, func(t *testing.T) {
			s := serve(t, good(answer))
			lines, status, said := drive(t, s.URL, 2, hello+ready+call)
			if status != 0 || len(lines) != 2 || !strings.Contains(lines[1], want) || !strings.Contains(lines[1], `"id":2`) {
				t.Errorf("%q, %d, %s; want %q", lines, status, said, want)
			}
		})
	}
	s := serve(t, good(nil))
	s.Close()
	if lines, status, said := drive(t, s.URL, 1, hello); status != 0 || len(lines) != 1 || !strings.Contains(lines[0], "wasn't asked") {
		t.Errorf("nothing listens: %q, %d, %s", lines, status, said)
	}
}

// TestCancelled: a caller that doesn't want the answer is answered for the server, which is told.
func TestCancelled(t *testing.T) {
	asked := make(chan struct{})
	leave := make(chan struct{})
	s := serve(t, good(func(out http.ResponseWriter, q seen, id string) {
		out.Header().Set("Content-Type", "text/event-stream")
		http.NewResponseController(out).Flush()
		close(asked)
		<-leave
	}))
	defer close(leave) // before the server waits for it
	in, give := io.Pipe()
	take, out := io.Pipe()
	over := make(chan int, 1)
	go func() { over <- Main([]string{Name, s.URL}, in, out, io.Discard); out.Close() }()
	answers := json.NewDecoder(take)
	var m struct {
		ID    int
		Error struct{ Code int }
	}
	io.WriteString(give, hello)
	if err := answers.Decode(&m); err != nil || m.ID != 1 {
		t.Fatal(m, err)
	}
	io.WriteString(give, ready+call)
	<-asked
	io.WriteString(give, `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":2}}`+"\n")
	if err := answers.Decode(&m); err != nil || m.ID != 2 || m.Error.Code != -32800 {
		t.Fatal(m, err)
	}
	give.Close()
	if status := <-over; status != 0 {
		t.Error(status)
	}
}

// TestArguments: what isn't an argument is refused by name, and a placeholder goes where its use says.
func TestArguments(t *testing.T) {
	env := map[string]string{"TOKEN": "placeholder"}
	for _, c := range []struct{ args, want string }{
		{"", "usage"}, {"mcp.serve", "usage"}, {"mcp.serve ftp://a.example", "unsupported scheme"}, {"mcp.serve https://a.example x", "no argument"},
		{"mcp.serve https://a.example secret:header:authorization=NONE", `"NONE" is empty`}, {"mcp.serve https://a.example secret:body:a=TOKEN", "no argument"},
	} {
		if _, err := newRelay(strings.Fields(c.args), func(n string) string { return env[n] }, nil, nil); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v; want %q", c.args, err, c.want)
		}
	}
	r, err := newRelay(strings.Fields("mcp.serve https://a.example/x?b=c secret:header:authorization=TOKEN secret:header:x-api-key=TOKEN secret:query:key=TOKEN"), func(n string) string { return env[n] }, nil, nil)
	if err != nil || r.headers.Get("Authorization") != "Bearer placeholder" || r.headers.Get("X-Api-Key") != "placeholder" || r.at.String() != "https://a.example/x?b=c&key=placeholder" {
		t.Errorf("%v, %v, %v", r.headers, r.at, err)
	}
}

// TestWait: a server chooses the time before a stream is resumed, within bounds.
func TestWait(t *testing.T) {
	for _, c := range []struct {
		retry time.Duration
		n     int
		want  time.Duration
	}{{0, 0, defaultRetry}, {0, 1, 2 * defaultRetry}, {1, 0, leastRetry}, {time.Hour, 0, mostRetry}, {leastRetry, 2, 4 * leastRetry}, {mostRetry, 1 << 20, mostRetry}} {
		if got := wait(c.retry, c.n); got != c.want {
			t.Errorf("%v, %d: %v; want %v", c.retry, c.n, got, c.want)
		}
	}
}
