package inspect

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	rule "palyra/call/egress"
)

// unsized hides the length of a body.
type unsized struct{ io.Reader }

// TestBodies: a body of a request that is longer than its rule lets it be is a 413, and an answer's is
// a 502 or ends there, over each pair of protocols, whether the length is said or not. What is as
// long as it may be passes. The denial has the bound.
func TestBodies(t *testing.T) {
	var whole atomic.Int64 // requests that the host read to their end
	host := func(w http.ResponseWriter, r *http.Request) {
		if _, err := io.Copy(io.Discard, r.Body); err != nil {
			panic(http.ErrAbortHandler)
		}
		whole.Add(1)
		n, _ := strconv.Atoi(r.URL.Query().Get("n"))
		if r.URL.Query().Has("sized") || r.Method == "HEAD" {
			w.Header().Set("Content-Length", strconv.Itoa(n))
		}
		w.WriteHeader(http.StatusOK)
		for w.(http.Flusher).Flush(); n > 0; n -= 256 {
			w.Write(make([]byte, min(n, 256)))
		}
	}
	const kib = 1 << 10
	for _, c := range []struct{ h2, h1host bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, setup{inspect: []string{"a.example:443/any", "a.example:443/any body:1KiB", "a.example:443/v1/ body:1KiB answer:2KiB", "a.example:443/v1/wide body:2KiB answer:3KiB"}, handler: host, h1: c.h1host})
			client := r.client(c.h2)
			for _, x := range []struct {
				method, target string
				body           int
				unsized        bool
				status         int    // 0: the answer breaks off
				got            int    // of the answer's body
				denied         string // "": it passes
			}{
				{"POST", "/v1/x?n=2048", kib, false, 200, 2 * kib, ""},
				{"POST", "/v1/x?n=2048&sized", kib, true, 200, 2 * kib, ""},
				{"POST", "/v1/x?n=1", kib + 1, false, 413, 0, "body:1KiB"},
				{"POST", "/v1/x?n=1", kib + 1, true, 413, 0, "body:1KiB"},
				{"POST", "/v1/x?n=1", 200 * kib, true, 413, 0, "body:1KiB"}, // net/http reads as much behind its answer
				{"GET", "/v1/x?n=2049&sized", 0, false, 502, 0, "answer:2KiB"},
				{"GET", "/v1/x?n=2049", 0, false, 0, 2 * kib, "answer:2KiB"},
				{"GET", "/v1/x?n=1000000", 0, false, 0, 2 * kib, "answer:2KiB"},
				{"HEAD", "/v1/x?n=1000000", 0, false, 200, 0, ""},
				{"POST", "/v1/wide?n=3072", 2 * kib, false, 200, 3 * kib, ""},
				{"POST", "/v1/wide?n=1", 3 * kib, true, 413, 0, "body:2KiB"},
				{"POST", "/any?n=10000", 10_000, true, 200, 10_000, ""},
			} {
				before, denied := whole.Load(), len(r.denials())
				var body io.Reader
				if x.body > 0 {
					body = bytes.NewReader(make([]byte, x.body))
				}
				if x.unsized {
					body = unsized{body}
				}
				q, err := http.NewRequest(x.method, "https://a.example"+x.target, body)
				if err != nil {
					t.Fatal(err)
				}
				q.Header.Set("Expect", "100-continue") // so that no write of the client's races with the answer
				res, err := client.Do(q)
				if err != nil {
					t.Fatalf("%+v: %v", x, err)
				}
				got, err := io.ReadAll(res.Body)
				res.Body.Close()
				switch {
				case x.status == 0 && (err == nil || len(got) > x.got),
					x.status != 0 && (err != nil || res.StatusCode != x.status), x.status == 200 && len(got) != x.got:
					t.Errorf("%+v: %d, %d bytes, %v", x, res.StatusCode, len(got), err)
				case x.status > 400 && (res.Header.Get("Server") != "palyra" || !strings.Contains(string(got), "longer than")):
					t.Errorf("%+v: says %q", x, got)
				}
				if came := whole.Load() > before; came != (x.status != 413) {
					t.Errorf("%+v: the host has the request: %v", x, came)
				}
				var want []string
				if x.denied != "" {
					want = []string{"a.example:443 " + x.denied}
				}
				if said := r.denials()[denied:]; !slices.Equal(said, want) {
					t.Errorf("%+v: denied %q", x, said)
				}
			}
			r.end(client)
			requests, _ := r.g.Requests()
			for i, want := range map[int]struct {
				status   uint32
				refused  bool
				sent     int64
				received int64
			}{0: {200, false, kib, 2 * kib}, 2: {413, true, 0, -1}, 3: {413, false, -1, -1}, 5: {502, false, 0, -1}, 6: {200, false, 0, -1}} {
				q := requests[i]
				if q.Status != want.status || q.Refused != want.refused || want.sent >= 0 && q.Sent != want.sent || q.Sent > kib || want.received >= 0 && q.Received != want.received || q.Received > 2*kib {
					t.Errorf("request %d: %+v, want %+v", i, q, want)
				}
			}
		})
	}
}

func (r *rig) denials() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.denied)
}

// TestBodiesWithValues: an answer's bound is of what the host sends, whatever stands in place of a
// value then.
func TestBodiesWithValues(t *testing.T) {
	const value = "the-value-of-a-secret-that-is-as-long-as-need-be-to-be-longer-than-its-placeholder"
	r := newRig(t, setup{inspect: []string{fmt.Sprintf("a.example:443 answer:%d", len(value))}, uses: []string{"T=vault://global/k header:authorization a.example:443"}, value: value,
		handler: func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, value, r.URL.Query().Get("more")) }})
	client := r.client(true)
	if res, body := r.do(client, "GET", "https://a.example/", nil, nil); res.StatusCode != 200 || body != r.placeholder {
		t.Errorf("%d %q", res.StatusCode, body)
	}
	if res, body := r.do(client, "GET", "https://a.example/?more=x", nil, nil); res.StatusCode != 502 || strings.Contains(body, value) {
		t.Errorf("%d %q", res.StatusCode, body)
	}
}

// TestSocketBodies: bytes that follow a 101 are bounded as bodies are, each way.
func TestSocketBodies(t *testing.T) {
	for _, c := range []struct{ bound, say, want string }{
		{"body:8", "one\ntwo\n", "heard one\nheard two\n"},
		{"body:8", "one\ntwo\nthree\n", "heard one\nheard two\n"},
		{"answer:60", "one\n" + strings.Repeat("x", 100) + "\n", "heard one\n"},
	} {
		var reached atomic.Int64
		r := newRig(t, setup{inspect: []string{"a.example:443/v1/ websocket " + c.bound}, handler: sockets(&reached)})
		conn := r.tls("http/1.1")
		in := bufio.NewReader(conn)
		fmt.Fprintf(conn, "GET /v1/live HTTP/1.1\r\n%sX-Want: websocket\r\n\r\n", asksSocket)
		if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 101 {
			t.Fatalf("%+v, %v", res, err)
		}
		in.ReadString('\n') // how it was asked
		for line := range strings.Lines(c.say) {
			io.WriteString(conn, line)
			if got, err := in.ReadString('\n'); err == nil && got != "heard "+line {
				t.Errorf("%q", got)
			} else if err == nil {
				c.want = strings.TrimPrefix(c.want, got)
			} else if c.want == "" && !slices.Equal(r.denials(), []string{"a.example:443 " + c.bound}) {
				t.Errorf("%q ends with %q denied", c.bound, r.denials())
			}
		}
		if conn.Close(); c.want != "" {
			t.Errorf("%s: %q didn't come", c.bound, c.want)
		}
		r.wg.Wait()
		b, err := rule.ParseBound(c.bound)
		if requests, _ := r.g.Requests(); err != nil || len(requests) != 1 || b.Body > 0 && requests[0].Sent > b.Body || b.Answer > 0 && requests[0].Received > b.Answer {
			t.Errorf("%+v, %v", requests, err)
		}
		if over := strings.Contains(c.say, "three") || b.Answer > 0; over != (len(r.denials()) > 0) {
			t.Errorf("%q denied", r.denials())
		}
	}
}
