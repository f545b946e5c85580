package egress

import (
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"testing"

	"palyra/isolate/egress/wire"
	"palyra/isolate/evidence"
)

// TestEarly: a host is connected before the program asks, and the first request finds that
// connection. One that no request takes is in the evidence, too, and one that the program's protocol
// doesn't fit is closed. Where it isn't ordered, or there are more hosts, none is made.
func TestEarly(t *testing.T) {
	const at = "5.5.41.1:443"
	w := newWeb(t, nil)
	l, err := tls.Listen("tcp", at, &tls.Config{Certificates: []tls.Certificate{w.cert}, NextProtos: []string{"h2", "http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan net.Conn, 16)
	s := &http.Server{ErrorLog: log.New(io.Discard, "", 0), Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) { io.WriteString(rw, r.Proto) }),
		ConnState: func(c net.Conn, state http.ConnState) {
			if state == http.StateNew {
				made <- c
			}
		}}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	zone := map[string][]string{"a.example": {"5.5.41.1"}, "b.example": {"5.5.41.1"}, "private.example": {"10.9.0.1"}}
	// A call's sockets take 41 of the 50 descriptors that one owner may have: what isn't given back
	// makes a later one fail.
	b := newBroker(t, Config{Nameserver: newNameServer(t, zone).at, Roots: w.roots, Descriptors: 100})
	b.owner = "uid:1"
	use := []wire.Use{{Use: "T=vault://global/t header:authorization a.example:443"}}
	for _, c := range []struct {
		name  string
		order Order
		asks  string // the protocol; "": nothing
		made  int    // connections
		want  []string
	}{
		{"taken", Order{Rules: []string{"a.example:443"}, Uses: use, Early: true}, "HTTP/2.0", 1, []string{evidence.ConnClosed}},
		{"not taken", Order{Rules: []string{"a.example:443"}, Uses: use, Early: true}, "", 1, []string{evidence.ConnEnded}},
		{"another protocol", Order{Rules: []string{"a.example:443"}, Uses: use, Early: true}, "HTTP/1.1", 2, []string{evidence.ConnClosed}},
		{"not ordered", Order{Rules: []string{"a.example:443"}, Uses: use}, "HTTP/2.0", 1, []string{evidence.ConnClosed}},
		{"two hosts", Order{Rules: []string{"a.example:443", "b.example:443"}, Uses: use, Inspect: []string{"b.example:443"}, Early: true}, "", 0, nil},
		{"names below", Order{Rules: []string{"*.cdn.example:443"}, Inspect: []string{"*.cdn.example:443"}, Early: true}, "", 0, nil},
		{"nowhere", Order{Rules: []string{"private.example:443"}, Inspect: []string{"private.example:443"}, Early: true}, "", 0, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
		again:
			var begun []net.Conn
			b.t = t
			call, _ := b.inspects(&c.order)
			if c.order.Early && c.made > 0 { // before the program asks
				begun = append(begun, <-made)
				begun[0].(*tls.Conn).HandshakeContext(t.Context())
			}
			if c.asks != "" {
				program := call.https(call.session.Authority())
				program.Transport.(*http.Transport).ForceAttemptHTTP2 = c.asks == "HTTP/2.0"
				if _, body, err := get(program, "https://a.example/", nil); err != nil || body != c.asks {
					t.Errorf("%q, %v", body, err)
				}
				program.CloseIdleConnections()
			}
			e := call.end()
			if c.asks == "" && c.made > 0 && len(e.Connections) == 0 && !t.Failed() {
				goto again // the call ended before palyra-egress knew that TLS had begun
			}
			for len(made) > 0 {
				begun = append(begun, <-made)
			}
			if len(begun) != c.made || len(e.Connections) != len(c.want) {
				t.Fatalf("%d connections, want %d; %+v", len(begun), c.made, e.Connections)
			}
			for i, x := range e.Connections {
				if ended := x.Outcome == c.want[i] || x.Outcome == evidence.ConnEnded; !ended || x.Host != "a.example" || x.Address != "5.5.41.1" || x.TLS != "TLS 1.3" || x.Key.IsZero() || x.DurationNS <= 0 {
					t.Errorf("%+v", x)
				}
			}
			for _, conn := range begun {
				conn.Read(make([]byte, 1)) // nothing is left open
			}
			if left := goroutines(); left != "" {
				t.Errorf("left after the end:\n%s", left)
			}
		})
	}
}
