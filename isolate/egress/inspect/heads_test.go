package inspect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
)

// answers has each connection to the host answered by f, over HTTP/1.1 and by hand.
func (r *rig) answers(f func(request *http.Request, host io.Writer)) {
	config := r.host.TLS.Clone()
	config.NextProtos = []string{"http/1.1"}
	r.to.Dial = func(ctx context.Context) (net.Conn, error) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		r.wg.Go(func() {
			raw, err := l.Accept()
			l.Close()
			if err != nil {
				return
			}
			defer raw.Close()
			host := tls.Server(raw, config)
			defer host.Close()
			if q, err := http.ReadRequest(bufio.NewReader(host)); err == nil {
				f(q, host)
			}
		})
		return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
	}
}

// TestTrailersOfNothing: an answer without a body can have trailers over HTTP/2, and tells the value
// there to no program.
func TestTrailersOfNothing(t *testing.T) {
	for _, status := range []int{200, 204, 304} {
		for _, h2 := range []bool{false, true} {
			r := newRig(t, setup{uses: []string{"T=vault://global/t header:authorization a.example:443"}, value: theValue, handler: func(w http.ResponseWriter, q *http.Request) {
				w.Header().Set("Trailer", "X-Told")
				if status == 200 {
					w.Header().Set("Content-Length", "0")
				}
				w.WriteHeader(status)
				w.(http.Flusher).Flush()
				w.Header().Set("X-Told", q.Header.Get("Authorization"))
				w.Header().Set(http.TrailerPrefix+"X-Untold", q.Header.Get("Authorization"))
			}})
			res, _ := r.do(r.client(h2), "GET", "https://a.example/", http.Header{"Authorization": {"Bearer " + r.placeholder}}, nil)
			for _, name := range []string{"X-Told", "X-Untold"} {
				want := "Bearer " + r.placeholder
				if !h2 {
					want = "" // HTTP/1.1 has none where there is no body
				}
				if got := res.Trailer.Get(name); got != want {
					t.Errorf("%d, HTTP/2 %t: %s is %q, want %q", status, h2, name, got, want)
				}
			}
		}
	}
}

// TestTrailerNames: names of trailers are told ahead, in net/http's spelling.
func TestTrailerNames(t *testing.T) {
	const value = "abcdef0123456789abcdef"
	r := newRig(t, setup{uses: []string{"T=vault://global/t header:authorization a.example:443"}, value: value, h1: true})
	r.answers(func(_ *http.Request, host io.Writer) {
		io.WriteString(host, "HTTP/1.1 200 OK\r\nTrailer: X-"+value+", X-Other\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-"+value+": 1\r\nX-Other: 1\r\n\r\n")
	})
	program := r.tls("http/1.1")
	io.WriteString(program, "GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer "+r.placeholder+"\r\nConnection: close\r\n\r\n")
	all, _ := io.ReadAll(program)
	program.Close()
	if text := strings.ToLower(string(all)); strings.Contains(text, value) || !strings.Contains(text, "\r\nx-other: 1") {
		t.Errorf("%q", all)
	}
}

// fields returns n different fields that are as short as fields can be.
func fields(n int) http.Header {
	h := make(http.Header, n)
	for i := range n {
		h[http.CanonicalHeaderKey(fmt.Sprintf("%03x", i))] = []string{""}
	}
	return h
}

// TestHeads: a connection has a bound for all heads of its requests under way, by what they take of
// memory and not by their bytes, and for those of the answers.
func TestHeads(t *testing.T) {
	const most = maxHeads / (3 + 16 + perField) // fields
	wait := make(chan struct{})
	r := newRig(t, setup{inspect: []string{"a.example:443"}, handler: func(w http.ResponseWriter, q *http.Request) {
		<-wait
		w.WriteHeader(http.StatusNoContent)
	}})
	client := r.client(true)
	statuses := make(chan int, 4)
	for range 4 {
		go func() {
			q, err := http.NewRequest("GET", "https://a.example/", nil)
			if err != nil {
				panic(err)
			}
			q.Header = fields(most * 2 / 5)
			res, err := client.Do(q)
			if err != nil {
				t.Error(err)
				statuses <- 0
				return
			}
			res.Body.Close()
			statuses <- res.StatusCode
		}()
	}
	for range 2 {
		if got := <-statuses; got != 431 {
			t.Errorf("%d while two others are under way", got)
		}
	}
	close(wait)
	for range 2 {
		if got := <-statuses; got != 204 {
			t.Errorf("%d", got)
		}
	}
	// What they took is free again, once their ends have come to palyra-egress's side.
	early := 0
	for {
		res, _ := r.do(client, "GET", "https://a.example/", fields(most*4/5), nil)
		if res.StatusCode == 204 {
			break
		}
		if early++; res.StatusCode != 431 {
			t.Fatal(res.StatusCode)
		}
	}
	for what, h := range map[string]http.Header{"one head": fields(most + 1), "names of trailers": {"Trailer": {strings.Join(keys(fields(most*6/5)), ",")}}} {
		var b bytes.Buffer
		b.WriteString("POST / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n")
		h.Write(&b)
		b.WriteString("\r\n0\r\n\r\n")
		program := r.tls("http/1.1")
		program.Write(b.Bytes())
		if res, err := http.ReadResponse(bufio.NewReader(program), nil); err != nil || res.StatusCode != 431 {
			t.Errorf("%s: %v, %v", what, res, err)
		}
		program.Close()
	}
	_, _, denied := r.end(client)
	if want := slices.Repeat([]string{"a.example:443 request"}, 4+early); !slices.Equal(denied, want) {
		t.Errorf("%v", denied)
	}
}

func keys(h http.Header) (all []string) {
	for k := range h {
		all = append(all, k)
	}
	return all
}

// TestAnswersHeads: the same for what a host answers.
func TestAnswersHeads(t *testing.T) {
	const most = maxHeads / (3 + 16 + perField)
	var many bytes.Buffer
	fields(most + 1).Write(&many)
	for what, c := range map[string]struct {
		answer string
		status int
		body   string
	}{
		"a head":            {"HTTP/1.1 200 OK\r\n" + many.String() + "Content-Length: 2\r\n\r\nok", 502, "palyra: " + errHeads.Error() + "\n"},
		"names of trailers": {"HTTP/1.1 200 OK\r\nTrailer: " + strings.Join(keys(fields(most*6/5)), ",") + "\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 502, "palyra: " + errHeads.Error() + "\n"},
		"an interim head":   {"HTTP/1.1 103 Early Hints\r\n" + many.String() + "\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, "ok"},
	} {
		r := newRig(t, setup{inspect: []string{"a.example:443"}, h1: true})
		r.answers(func(_ *http.Request, host io.Writer) { io.WriteString(host, c.answer) })
		q, err := http.NewRequest("GET", "https://a.example/", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := r.client(true).Do(q.WithContext(withEarly(q.Context(), func(h http.Header) {
			if len(h) > most {
				t.Errorf("%s: %d fields", what, len(h))
			}
		})))
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		b, err := io.ReadAll(res.Body)
		if res.Body.Close(); err != nil || res.StatusCode != c.status || string(b) != c.body {
			t.Errorf("%s: %d, %q, %v", what, res.StatusCode, b, err)
		}
	}
	// Trailers come when the answer has begun, which breaks off then: they are counted like heads, and
	// beside them.
	r := newRig(t, setup{inspect: []string{"a.example:443"}, handler: func(w http.ResponseWriter, _ *http.Request) {
		for key := range fields(most / 2) {
			w.Header()["A"+key] = []string{""}
		}
		io.WriteString(w, "ok")
		w.(http.Flusher).Flush()
		for key := range fields(most / 2) {
			w.Header()[http.TrailerPrefix+key] = []string{""}
		}
	}})
	q, err := http.NewRequest("GET", "https://a.example/", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := r.client(true).Do(q)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if b, err := io.ReadAll(res.Body); err == nil || len(res.Trailer) > 0 || res.StatusCode != 200 {
		t.Errorf("%d, %q and %d trailers", res.StatusCode, b, len(res.Trailer))
	}
}

// TestRoom: a request beside others needs room of its own, which is given back.
func TestRoom(t *testing.T) {
	var mu sync.Mutex
	held, most := int64(0), int64(perRequest)
	arrived, wait := make(chan struct{}, 8), make(chan struct{})
	r := newRig(t, setup{inspect: []string{"a.example:443"}, handler: func(w http.ResponseWriter, q *http.Request) {
		arrived <- struct{}{}
		<-wait
	}})
	r.to.Room = func(_ context.Context, n int64) (func(), error) {
		mu.Lock()
		defer mu.Unlock()
		if held+n > most {
			return nil, errors.New("none")
		}
		held += n
		return func() {
			mu.Lock()
			defer mu.Unlock()
			held -= n
		}, nil
	}
	client := r.client(true)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			res, err := client.Get("https://a.example/")
			if err != nil {
				t.Error(err)
				return
			}
			if io.Copy(io.Discard, res.Body); res.Body.Close() != nil || res.StatusCode != 200 {
				t.Errorf("%v", res)
			}
		})
		<-arrived
	}
	if res, body := r.do(client, "GET", "https://a.example/", nil, nil); res.StatusCode != 503 || !strings.Contains(body, "no room") {
		t.Errorf("%d, %q", res.StatusCode, body)
	}
	close(wait)
	wg.Wait()
	_, _, denied := r.end(client)
	if held != 0 || fmt.Sprint(denied) != "[a.example:443 overload]" {
		t.Errorf("%d bytes are held, %v", held, denied)
	}
}

// TestOverrides: a header that is another method or path to some hosts passes only where rules name
// neither.
func TestOverrides(t *testing.T) {
	for _, c := range []struct {
		inspect, header string
		status          int
	}{
		{"GET,POST a.example:443", "X-HTTP-Method-Override", 403},
		{"GET,POST a.example:443", "x_http_method_override", 403},
		{"GET,POST a.example:443", "X-HTTP-Method", 403},
		{"GET,POST a.example:443", "X-Method-Override", 403},
		{"GET,POST a.example:443", "X-Original-URL", 200},
		{"a.example:443/v1", "X-Original-URL", 403},
		{"a.example:443/v1", "X_Rewrite-Url", 403},
		{"a.example:443/v1", "X-Override-URL", 403},
		{"a.example:443/v1", "X-HTTP-Method-Override", 200},
		{"a.example:443", "X-HTTP-Method-Override", 200},
		{"a.example:443", "X-Rewrite-URL", 200},
	} {
		for _, h2 := range []bool{false, true} {
			reached := false
			r := newRig(t, setup{inspect: []string{c.inspect}, handler: func(http.ResponseWriter, *http.Request) { reached = true }})
			res, body := r.do(r.client(h2), "POST", "https://a.example/v1/x", http.Header{c.header: {"DELETE"}}, nil)
			if res.StatusCode != c.status || reached != (c.status == 200) {
				t.Errorf("%s, %s: %d, %q", c.inspect, c.header, res.StatusCode, body)
			}
		}
	}
	r := newRig(t, setup{uses: []string{"T=vault://global/t header:authorization GET a.example:443/v1"}, value: theValue, handler: echo})
	for _, header := range []string{"X-HTTP-Method-Override", "X-Original-URL"} {
		res, body := r.do(r.client(true), "GET", "https://a.example/v1/x", http.Header{header: {"DELETE"}, "Authorization": {r.placeholder}}, nil)
		if res.StatusCode != 403 {
			t.Errorf("%s with a secret: %d, %q", header, res.StatusCode, body)
		}
	}
}
