package inspect

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"palyra/isolate/evidence"
)

const asksSocket = "Host: a.example\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate\r\n"

// sockets is a host that switches to a protocol in which it says what it was asked with, and then line
// by line what it hears.
func sockets(reached *atomic.Int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		reached.Add(1)
		if r.URL.Path == "/v1/no" {
			http.Error(w, "not now", http.StatusTeapot)
			return
		}
		c, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		defer c.Close()
		fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-Auth: %s\r\n\r\n", r.Header.Get("X-Want"), r.Header.Get("Authorization"))
		fmt.Fprintf(rw, "%s %s %q %q\n", r.Header.Get("Upgrade"), r.Header.Get("Authorization"), r.Header["Connection"], r.Header["Sec-Websocket-Extensions"])
		rw.Flush()
		for {
			line, err := rw.ReadString('\n')
			if err != nil {
				return
			}
			io.WriteString(rw, "heard "+line)
			rw.Flush()
		}
	}
}

// TestSockets: a request that a rule lets become a WebSocket does, over HTTP/1.1, with the value of a
// secret in its place; bytes pass and are counted, values come back as placeholders.
func TestSockets(t *testing.T) {
	var reached atomic.Int64
	r := newRig(t, setup{inspect: []string{"a.example:443/v1/ websocket"}, uses: []string{"T=vault://global/k header:authorization a.example:443"},
		value: "the-value-of-it", handler: sockets(&reached)})
	c := r.tls("http/1.1")
	in := bufio.NewReader(c)
	fmt.Fprintf(c, "GET /v1/live HTTP/1.1\r\n%sX-Want: WebSocket\r\nAuthorization: Bearer %s\r\n\r\n", asksSocket, r.placeholder)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if res.StatusCode != 101 || res.Header.Get("X-Auth") != "Bearer "+r.placeholder {
		t.Fatalf("%d %v", res.StatusCode, res.Header)
	}
	first, err := in.ReadString('\n')
	if want := fmt.Sprintf("websocket Bearer %s [\"Upgrade\"] []\n", r.placeholder); err != nil || first != want {
		t.Errorf("%q, %v, want %q", first, err, want)
	}
	n := int64(len(first))
	for _, text := range []string{"one\n", "two\n"} { // each answer before the next word
		io.WriteString(c, text)
		line, err := in.ReadString('\n')
		if err != nil || line != "heard "+text {
			t.Fatalf("%q, %v", line, err)
		}
		n += int64(len(line))
	}
	c.Close()
	r.wg.Wait()
	requests, _ := r.g.Requests()
	if len(requests) != 1 || requests[0].Status != 101 || requests[0].Sent != 8 || requests[0].Received != n || requests[0].Refused || !slices.Equal(requests[0].Uses, []string{"T"}) {
		t.Errorf("%+v, want 8 and %d bytes", requests, n)
	}
	if len(r.leaks)+len(r.denied) > 0 {
		t.Errorf("%v, %v", r.leaks, r.denied)
	}
}

// TestSocketLeaks: a placeholder in what follows ends the call, and goes no further.
func TestSocketLeaks(t *testing.T) {
	var reached atomic.Int64
	r := newRig(t, setup{inspect: []string{"GET a.example:443/v1/ websocket"}, uses: []string{"T=vault://global/k header:authorization a.example:443"},
		value: "the-value-of-it", handler: sockets(&reached)})
	c := r.tls("http/1.1")
	in := bufio.NewReader(c)
	fmt.Fprintf(c, "GET /v1/live HTTP/1.1\r\n%sX-Want: websocket\r\n\r\n", asksSocket)
	if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != 101 {
		t.Fatalf("%+v, %v", res, err)
	}
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	io.WriteString(c, r.placeholder+"\n")
	<-r.leaked
	rest, _ := io.ReadAll(in)
	r.wg.Wait()
	if want := (evidence.Leak{Name: "T", Host: "a.example", Port: 443, Where: evidence.LeakBody}); len(rest) > 0 || len(r.leaks) != 1 || r.leaks[0] != want {
		t.Errorf("%q, %+v", rest, r.leaks)
	}
}

// TestNoSockets: upgrades that no rule has, or to another protocol, don't reach the host, and the host
// switches to nothing else.
func TestNoSockets(t *testing.T) {
	var reached atomic.Int64
	r := newRig(t, setup{inspect: []string{"GET,POST a.example:443/v1/ websocket", "a.example:443/v2/"}, handler: sockets(&reached)})
	for _, c := range []struct {
		head    string
		status  int
		reaches int64
	}{
		{"GET /v2/live HTTP/1.1\r\n" + asksSocket, 501, 0},
		{"GET /v3/live HTTP/1.1\r\n" + asksSocket, 501, 0},
		{"GET /v1/../v1/live HTTP/1.1\r\n" + asksSocket, 501, 0},
		{"POST /v1/live HTTP/1.1\r\n" + asksSocket + "Content-Length: 0\r\n", 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + asksSocket + "Content-Length: 1\r\n\r\nx", 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + asksSocket + "Transfer-Encoding: chunked\r\n\r\n0\r\n", 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + asksSocket + "Upgrade: h2c\r\n", 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + strings.Replace(asksSocket, "Upgrade: websocket", "Upgrade: h2c", 1), 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + strings.Replace(asksSocket, "Upgrade: websocket", "Upgrade: websocket, h2c", 1), 501, 0},
		{"GET /v1/live HTTP/1.1\r\n" + strings.Replace(asksSocket, "a.example", "b.example", 1), 421, 0},
		{"GET /v1/live HTTP/1.1\r\n" + asksSocket + "X-Want: h2c\r\n", 502, 1},
		{"GET /v1/live HTTP/1.1\r\nHost: a.example\r\nX-Want: websocket\r\n", 502, 1}, // unasked
		{"GET /v1/no HTTP/1.1\r\n" + asksSocket, 418, 1},
	} {
		reached.Store(0)
		conn := r.tls("http/1.1")
		io.WriteString(conn, c.head+"\r\n")
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%q: %v", c.head, err)
		}
		if res.StatusCode != c.status || reached.Load() != c.reaches {
			t.Errorf("%q: %d, reached %d times, want %d and %d", c.head, res.StatusCode, reached.Load(), c.status, c.reaches)
		}
		conn.Close()
	}
}
