package inspect

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/evidence"
)

// rig is a guard between a program and a host, all on the loopback interface.
type rig struct {
	t           testing.TB
	g           *Guard
	in          rule.Inspection
	placeholder string
	host        *httptest.Server
	name        string
	roots       *x509.CertPool // of the program
	to          Target
	ctx         context.Context
	leaked      chan struct{} // closed with the first leak

	mu     sync.Mutex
	leaks  []evidence.Leak
	denied []string
	seen   []Seen
	wg     sync.WaitGroup
}

type setup struct {
	inspect, uses []string
	value         string
	handler       http.HandlerFunc
	h1            bool                             // the host has HTTP/1.1 alone
	stranger      bool                             // the host's certificate is nobody's
	pins          func(*x509.Certificate) []string // rules, of the host's certificate
}

const hostName = "a.example"

func newRig(t testing.TB, c setup) *rig {
	t.Helper()
	r := &rig{t: t, name: hostName, leaked: make(chan struct{})}
	var cancel context.CancelFunc
	r.ctx, cancel = context.WithCancel(t.Context())
	ca, err := NewAuthority(hosts(t, hostName, "other.example"), time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cert, err := ca.Leaf(hostName)
	if err != nil {
		t.Fatal(err)
	}
	if c.pins != nil {
		c.inspect = c.pins(cert.Leaf)
		slices.Sort(c.inspect)
	}
	rules, err := rule.ParseRules([]string{hostName})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(c.uses)
	if r.in, err = rule.ParseInspection(rules, c.inspect, c.uses); err != nil {
		t.Fatal(err)
	}
	r.host = httptest.NewUnstartedServer(c.handler)
	r.host.TLS = &tls.Config{Certificates: []tls.Certificate{*cert}}
	r.host.EnableHTTP2 = !c.h1
	r.host.Config.ErrorLog = nil
	r.host.StartTLS()
	roots := x509.NewCertPool()
	if !c.stranger {
		roots.AddCert(ca.cert)
	}
	var ps []string
	var given [][]byte
	for range r.in.Uses {
		if r.placeholder == "" {
			r.placeholder = rule.NewPlaceholder("")
		}
		ps, given = append(ps, r.placeholder), append(given, []byte(c.value))
	}
	r.g, err = New(Config{Inspection: r.in, Placeholders: ps, Roots: roots, Until: time.Now().Add(time.Hour), Idle: time.Minute,
		Denied: func(host string, port uint16, why string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.denied = append(r.denied, fmt.Sprintf("%s:%d %s", host, port, why))
		},
		Limited: func(host string, port uint16, limit string) {
			r.mu.Lock()
			defer r.mu.Unlock()
			r.denied = append(r.denied, fmt.Sprintf("%s:%d %s", host, port, limit))
		},
		Leaked: func(l evidence.Leak) {
			r.mu.Lock()
			defer r.mu.Unlock()
			if r.leaks = append(r.leaks, l); len(r.leaks) == 1 {
				close(r.leaked)
				cancel()
			}
		}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.g.Give(given); err != nil {
		t.Fatal(err)
	}
	r.roots = x509.NewCertPool()
	r.roots.AppendCertsFromPEM([]byte(r.g.Authority()))
	r.to = Target{Host: hostName, Port: 443, Dial: func(ctx context.Context) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "tcp", r.host.Listener.Addr().String())
	}, Room: func(context.Context, int64) (func(), error) { return func() {}, nil }}
	t.Cleanup(func() { // after the program's connections
		cancel()
		r.wg.Wait()
		r.host.Close()
		r.g.Wipe()
	})
	return r
}

// dial is the program's connecting.
func (r *rig) dial() net.Conn {
	r.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	far, err := l.Accept()
	if err != nil {
		r.t.Fatal(err)
	}
	r.wg.Go(func() {
		seen := r.g.Serve(r.ctx, far, r.to)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.seen = append(r.seen, seen)
	})
	c.SetDeadline(time.Now().Add(30 * time.Second))
	return c
}

// client is a program's.
func (r *rig) client(h2 bool) *http.Client {
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: r.roots, ServerName: r.name}, ForceAttemptHTTP2: h2, DisableCompression: true,
		DialContext: func(context.Context, string, string) (net.Conn, error) { return r.dial(), nil }}
	r.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// tls is a program's connection that speaks for itself.
func (r *rig) tls(protocols ...string) *tls.Conn {
	r.t.Helper()
	c := tls.Client(r.dial(), &tls.Config{RootCAs: r.roots, ServerName: r.name, NextProtos: protocols})
	if err := c.Handshake(); err != nil {
		r.t.Fatal(err)
	}
	return c
}

func (r *rig) do(c *http.Client, method, url string, header http.Header, body io.Reader) (*http.Response, string) {
	r.t.Helper()
	q, err := http.NewRequest(method, url, body)
	if err != nil {
		r.t.Fatal(err)
	}
	if header != nil {
		q.Header = header
	}
	res, err := c.Do(q)
	if err != nil {
		r.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return res, string(b)
}

// end waits for the connections, and returns what was seen.
func (r *rig) end(c *http.Client) (seen []Seen, leaks []evidence.Leak, denied []string) {
	c.CloseIdleConnections()
	r.wg.Wait()
	return r.seen, r.leaks, r.denied
}

// echo answers with what it got: method, target, headers, body, trailers.
func echo(w http.ResponseWriter, r *http.Request) {
	b, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Trailer", "X-Trailer")
	w.Header().Set("X-Auth", r.Header.Get("Authorization"))
	w.Header().Set("X-Proto", r.Proto)
	fmt.Fprintf(w, "%s %s host %s length %d\n", r.Method, r.RequestURI, r.Host, r.ContentLength)
	for _, k := range []string{"Authorization", "Accept-Encoding", "Range", "X-Forwarded-For", "User-Agent", "Te", "Connection"} {
		if v := r.Header[k]; v != nil {
			fmt.Fprintf(w, "%s: %s\n", k, strings.Join(v, "|"))
		}
	}
	fmt.Fprintf(w, "body %q trailer %q\n", b, r.Trailer.Get("X-Up"))
	w.Header().Set("X-Trailer", "t "+r.Header.Get("Authorization"))
}

// TestProxy: requests arrive as they are, over each pair of protocols, with their trailers.
func TestProxy(t *testing.T) {
	for _, c := range []struct{ h2, h1host bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			r := newRig(t, setup{inspect: []string{"a.example:443"}, handler: echo, h1: c.h1host})
			client := r.client(c.h2)
			res, body := r.do(client, "GET", "https://a.example/@scope%2fname?a=b&c;d=%zz", http.Header{"X-Forwarded-For": {"192.0.2.1"}, "User-Agent": nil, "Range": {"bytes=0-1"}}, nil)
			want := "GET /@scope%2fname?a=b&c;d=%zz host a.example length 0\nRange: bytes=0-1\nX-Forwarded-For: 192.0.2.1\nbody \"\" trailer \"\"\n"
			if res.StatusCode != 200 || body != want {
				t.Errorf("%d, %s, want %s", res.StatusCode, body, want)
			}
			if (res.Proto == "HTTP/2.0") != c.h2 || (res.Header.Get("X-Proto") == "HTTP/2.0") != (c.h2 && !c.h1host) {
				t.Errorf("%s to %s", res.Proto, res.Header.Get("X-Proto"))
			}
			if got := res.Trailer.Get("X-Trailer"); strings.TrimSpace(got) != "t" {
				t.Errorf("trailer %q", got)
			}
			// A body whose length isn't known, with trailers.
			pr, pw := io.Pipe()
			q, _ := http.NewRequest("POST", "https://a.example/up", pr)
			q.Trailer = http.Header{"X-Up": nil}
			go func() { pw.Write([]byte("some ")); pw.Write([]byte("body")); q.Trailer.Set("X-Up", "done"); pw.Close() }()
			res, err := client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			b, _ := io.ReadAll(res.Body)
			res.Body.Close()
			if !strings.Contains(string(b), `POST /up host a.example length -1`) || !strings.Contains(string(b), `body "some body" trailer "done"`) {
				t.Errorf("%s", b)
			}
			_, body = r.do(client, "PUT", "https://a.example/up", nil, strings.NewReader("known"))
			if !strings.Contains(body, "PUT /up host a.example length 5\n") || !strings.Contains(body, `body "known"`) {
				t.Errorf("%s", body)
			}
			seen, leaks, denied := r.end(client)
			if len(leaks)+len(denied) > 0 || len(seen) != 1 || seen[0].ServerName != "a.example" || seen[0].TLS != "TLS 1.3" || seen[0].Key.IsZero() || !seen[0].Closed {
				t.Errorf("%+v, %v, %v", seen, leaks, denied)
			}
			requests, more := r.g.Requests()
			if len(requests) != 3 || more != 0 {
				t.Fatalf("%+v", requests)
			}
			if q := requests[1]; q.Method != "POST" || q.Path != "/up" || q.Sent != 9 || q.Received != int64(len(b)) || q.Status != 200 || q.Refused || q.Host != "a.example" || q.Port != 443 {
				t.Errorf("%+v", q)
			}
			if requests[0].Path != "/@scope%2fname" {
				t.Errorf("%+v", requests[0])
			}
		})
	}
}

// TestPinned: a request and its secret reach a host with a pinned key, and none with another, good as
// its certificate is.
func TestPinned(t *testing.T) {
	other := rule.PinOf(make([]byte, 32))
	for _, good := range []bool{true, false} {
		var reached atomic.Int64
		c := setup{uses: []string{"T=vault://global/k header:authorization a.example:443"}, value: "the-value-of-it",
			handler: func(w http.ResponseWriter, q *http.Request) { reached.Add(1) }}
		c.pins = func(cert *x509.Certificate) []string {
			sum := sha256.Sum256(cert.RawSubjectPublicKeyInfo)
			if good {
				return []string{"a.example:443 pin:" + other, "GET a.example:443/x pin:" + rule.PinOf(sum[:])}
			}
			return []string{"a.example:443 pin:" + other}
		}
		r := newRig(t, c)
		client := r.client(true)
		res, body := r.do(client, "GET", "https://a.example/", http.Header{"Authorization": {"Bearer " + r.placeholder}}, nil)
		seen, _, denied := r.end(client)
		requests, _ := r.g.Requests()
		switch {
		case len(requests) != 1 || len(seen) != 1 || seen[0].Key.IsZero():
			t.Errorf("good %v: %+v, %+v", good, requests, seen)
		case good && (res.StatusCode != 200 || reached.Load() != 1 || len(denied) != 0 || len(requests[0].Uses) != 1):
			t.Errorf("a pinned key: %d %s, %d requests, %v, %+v", res.StatusCode, body, reached.Load(), denied, requests)
		case !good && (res.StatusCode != 502 || !strings.Contains(body, "its key is pin:sha256/") || reached.Load() != 0 || len(requests[0].Uses) != 0 ||
			!slices.Equal(denied, []string{"a.example:443 pin"})):
			t.Errorf("another key: %d %s, %d requests, %v, %+v", res.StatusCode, body, reached.Load(), denied, requests)
		}
	}
}

// TestRefused: what no rule has, and what isn't a plain request to this host, never reaches it.
func TestRefused(t *testing.T) {
	var mu sync.Mutex
	var reached []string
	r := newRig(t, setup{inspect: []string{"GET,HEAD a.example:443/simple", "POST a.example:443/up"}, h1: true, handler: func(w http.ResponseWriter, q *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		reached = append(reached, q.Method+" "+q.RequestURI)
	}})
	for _, h2 := range []bool{false, true} {
		client := r.client(h2)
		for target, want := range map[string]int{
			"GET /simple": 200, "GET /simple/": 200, "GET /simple/x?y": 200, "HEAD /simple/x": 200, "POST /up": 200,
			"POST /simple": 403, "GET /up": 403, "GET /": 403, "GET /simplex": 403, "GET /simple/../up": 403, "GET /simple/%2e%2e/up": 403, "GET //simple": 403,
			"GET /simple/..%2fup": 403, "DELETE /simple": 403, "get /simple": 403, "GET /simple/%00": 403,
		} {
			method, path, _ := strings.Cut(target, " ")
			res, body := r.do(client, method, "https://a.example"+path, nil, nil)
			if res.StatusCode != want {
				t.Errorf("%s: %d, %s", target, res.StatusCode, body)
			}
			if want == 403 && (res.Header.Get("Server") != "palyra" || !strings.Contains(body, "no rule of the call")) {
				t.Errorf("%s: %v %q", target, res.Header, body)
			}
		}
		for host, want := range map[string]int{"other.example": 421, "a.example:8443": 421, "a.example:443": 200, "A.EXAMPLE": 200, "a.example.": 421, "": 200} {
			q, _ := http.NewRequest("GET", "https://a.example/simple", nil)
			q.Host = host
			res, err := client.Do(q)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != want {
				t.Errorf("host %q: %d, want %d", host, res.StatusCode, want)
			}
		}
		client.CloseIdleConnections()
	}
	for raw, want := range map[string]string{
		"GET https://other.example/simple HTTP/1.1\r\nHost: other.example\r\n\r\n":                                                   "400",
		"GET http://a.example/simple HTTP/1.1\r\nHost: a.example\r\n\r\n":                                                            "400",
		"OPTIONS * HTTP/1.1\r\nHost: a.example\r\n\r\n":                                                                              "400",
		"CONNECT other.example:443 HTTP/1.1\r\nHost: other.example:443\r\n\r\n":                                                      "501",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n":                               "501",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: \r\n\r\n": "501",
		"GET /simple HTTP/1.1\r\n\r\n":                                                              "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nHost: other.example\r\n\r\n":                    "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nX: \x00\r\n\r\n":                                "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nX : y\r\n\r\n":                                  "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked, identity\r\n\r\n":   "501",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n": "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nContent-Length: +1\r\n\r\n":                     "400",
		"GET /simple HTTP/1.1\r\nHost: a.example\r\nX: " + strings.Repeat("y", 80<<10) + "\r\n\r\n": "431",
		"GET /simple GET /up HTTP/1.1\r\nHost: a.example\r\n\r\n":                                   "400",
		"\x16\x03\x01 nonsense\r\n\r\n":                                                             "400",
	} {
		c := r.tls("http/1.1")
		go io.WriteString(c, raw)
		line, err := bufio.NewReader(c).ReadString('\n')
		if err != nil || !strings.Contains(line, " "+want+" ") {
			t.Errorf("%.60q: %q, %v, want %s", raw, line, err, want)
		}
		c.Close()
	}
	r.wg.Wait()
	if n := len(reached); n != 2*(5+3) {
		t.Errorf("%d requests came through: %v", n, reached)
	}
	if len(r.leaks) > 0 || !slices.Contains(r.denied, "a.example:443 request") {
		t.Errorf("%v, %v", r.leaks, r.denied)
	}
	requests, _ := r.g.Requests()
	refused := 0
	for _, q := range requests {
		if q.Refused {
			refused++
		}
	}
	if refused != len(r.denied) || refused < 2*14 {
		t.Errorf("%d refused requests, %d denials", refused, len(r.denied))
	}
}

// TestSmuggling: bytes that two readers could take for different requests reach the host as the
// requests that the rules judged, and as no other.
func TestSmuggling(t *testing.T) {
	for name, raw := range map[string]string{
		"length and chunks":  "POST /up HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a folded header":    "POST /up HTTP/1.1\r\nHost: a.example\r\nX: y\r\n Transfer-Encoding: chunked\r\nContent-Length: 44\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"bare line feeds":    "POST /up HTTP/1.1\nHost: a.example\nContent-Length: 43\n\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"bare carriage":      "POST /up HTTP/1.1\r\nHost: a.example\r\nX: y\rContent-Length: 0\r\nContent-Length: 43\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a chunk's size":     "POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0x0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a chunk's line":     "POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n2\nab\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a chunk's trailers": "POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 43\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"an odd coding":      "POST /up HTTP/1.1\r\nHost: a.example\r\nTransfer-Encoding: xchunked\r\nContent-Length: 43\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"an old version":     "POST /up HTTP/1.0\r\nHost: a.example\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"a header's name":    "POST /up HTTP/1.1\r\nHost: a.example\r\nContent-Length\x0b: 0\r\nContent-Length: 43\r\n\r\nGET /secret HTTP/1.1\r\nHost: a.example\r\n\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var got bytes.Buffer // all that reaches the host
			r := newRig(t, setup{inspect: []string{"POST a.example:443/up"}, h1: true, handler: func(w http.ResponseWriter, q *http.Request) {
				b, _ := io.ReadAll(q.Body)
				mu.Lock()
				defer mu.Unlock()
				fmt.Fprintf(&got, "%s %s te %v length %d body %q\n", q.Method, q.RequestURI, q.TransferEncoding, q.ContentLength, b)
			}})
			c := r.tls("http/1.1")
			io.WriteString(c, raw)
			c.CloseWrite()
			answer, _ := io.ReadAll(c)
			c.Close()
			r.wg.Wait()
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(got.String(), "GET") && !strings.Contains(got.String(), `body "GET`) && !strings.Contains(got.String(), `body "0\r\n\r\nGET`) || strings.Count(got.String(), "\n") > 1 {
				t.Errorf("the host got %s", got.String())
			}
			t.Logf("the host got %q; the program %.40q", got.String(), answer)
		})
	}
}

// TestGreetings: an inspected host is spoken to in TLS, for its name.
func TestGreetings(t *testing.T) {
	r := newRig(t, setup{inspect: []string{"a.example:443"}, uses: []string{"T=vault://global/t header:authorization a.example:443"}, value: theValue, handler: echo})
	c := r.dial()
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: a.example\r\n\r\n")
	if b, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 400 ") || !strings.Contains(string(b), "takes TLS alone: https://a.example/") {
		t.Errorf("without TLS: %q, %v", b, err)
	}
	c.Close()
	handshake := func(config *tls.Config) error {
		c := r.dial()
		defer c.Close()
		return tls.Client(c, config).Handshake()
	}
	for _, name := range []string{"other.example", "b.a.example", "example"} {
		if err := handshake(&tls.Config{InsecureSkipVerify: true, ServerName: name}); err == nil {
			t.Errorf("%s is served", name)
		}
	}
	for _, config := range []*tls.Config{{RootCAs: r.roots, ServerName: "A.EXAMPLE"}, {InsecureSkipVerify: true}} {
		c := tls.Client(r.dial(), config)
		if err := c.HandshakeContext(t.Context()); err != nil {
			t.Errorf("%q: %v", config.ServerName, err)
		}
		c.Close()
	}
	if err := handshake(&tls.Config{RootCAs: r.roots, ServerName: "a.example", MaxVersion: tls.VersionTLS11, MinVersion: tls.VersionTLS10}); err == nil {
		t.Error("TLS 1.1 is served")
	}
	if err := handshake(&tls.Config{RootCAs: x509.NewCertPool(), ServerName: "a.example"}); err == nil {
		t.Error("a program that doesn't know the authority trusts it")
	}
	r.wg.Wait()
	if n := len(slices.DeleteFunc(slices.Clone(r.denied), func(s string) bool { return s != "a.example:443 not_tls" })); n != 4 {
		t.Errorf("denied: %v", r.denied)
	}
	if len(r.leaks) > 0 {
		t.Errorf("%v", r.leaks)
	}
}

// TestUpstream: a host that can't be reached, or shows a certificate of another, gets nothing.
func TestUpstream(t *testing.T) {
	reached := func(w http.ResponseWriter, r *http.Request) { t.Error("the host was asked") }
	for name, c := range map[string]struct {
		change func(*rig)
		set    setup
		says   string
	}{
		"a certificate of nobody": {func(*rig) {}, setup{stranger: true}, "unknown authority"},
		"another name's": {func(r *rig) { // the host is right, and another was meant
			r.to.Host, r.name = "other.example", "other.example"
		}, setup{}, "other.example"},
		"refused": {func(r *rig) {
			r.to.Dial = func(context.Context) (net.Conn, error) { return nil, errors.New("it refuses the connection") }
		}, setup{}, "it refuses the connection"},
		"no TLS": {func(r *rig) {
			r.to.Dial = func(context.Context) (net.Conn, error) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return nil, err
				}
				defer l.Close()
				go func() {
					if b, err := l.Accept(); err == nil {
						io.WriteString(b, "SSH-2.0-x\r\n")
						io.Copy(io.Discard, b)
						b.Close()
					}
				}()
				a, err := net.Dial("tcp", l.Addr().String())
				return a, err
			}
		}, setup{}, "its TLS"},
	} {
		t.Run(name, func(t *testing.T) {
			c.set.handler, c.set.inspect = reached, []string{"a.example:443"}
			r := newRig(t, c.set)
			c.change(r)
			if r.name != hostName {
				in, err := rule.ParseInspects([]string{"other.example:443"})
				if err != nil {
					t.Fatal(err)
				}
				r.g.cfg.Inspection.Rules = in
				if r.g.authority, err = NewAuthority(hosts(t, "other.example"), time.Now(), time.Now().Add(time.Hour)); err != nil {
					t.Fatal(err)
				}
				r.roots.AddCert(r.g.authority.cert)
			}
			client := r.client(true)
			res, body := r.do(client, "GET", "https://"+r.name+"/", nil, nil)
			if res.StatusCode != 502 || !strings.Contains(body, c.says) {
				t.Errorf("%d %s", res.StatusCode, body)
			}
			r.end(client)
			if requests, _ := r.g.Requests(); len(requests) != 1 || !requests[0].Refused || requests[0].Status != 502 {
				t.Errorf("%+v", requests)
			}
		})
	}
}
