package inspect

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/evidence"
)

// FuzzRequest: whatever a program sends on an inspected connection of HTTP/1.1, the host gets
// requests that a rule has, for its own name, with the value in its place alone and no placeholder.
func FuzzRequest(f *testing.F) {
	in, err := rule.ParseInspection(rules(f, hostName), []string{"GET,POST a.example:443/v1"}, []string{"T=vault://global/t header:authorization GET a.example:443/v1"})
	if err != nil {
		f.Fatal(err)
	}
	p := "0123456789abcdefghjkmnpqrstvwxyz01234567"
	for _, seed := range []string{
		"GET /v1/x HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer " + p + "\r\n\r\n",
		"POST /v1 HTTP/1.1\r\nHost: a.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\nGET /v2 HTTP/1.1\r\nHost: a.example\r\n\r\n",
		"GET /v1/../v2 HTTP/1.1\r\nHost: a.example\r\n\r\nGET http://b.example/v1 HTTP/1.1\r\nHost: b.example\r\n\r\n",
		"GET /v1 HTTP/1.1\nHost: a.example\n X: y\nUpgrade: h2c\n\n", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"POST /v1 HTTP/1.1\r\nHost: a.example\r\nTrailer: X\r\nTransfer-Encoding: chunked\r\n\r\n28\r\n" + p + "\r\n0\r\nX: y\r\n\r\n",
	} {
		f.Add([]byte(seed))
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, raw []byte) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		g, err := New(Config{Inspection: in, Placeholders: []string{p}, Until: time.Now().Add(time.Hour), Idle: time.Minute, Denied: func(string, uint16, string) {}, Limited: func(string, uint16, string) {}, Leaked: func(evidence.Leak) { cancel() }})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Wipe()
		if err := g.Give([][]byte{[]byte(theValue)}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		var reached atomic.Int64
		w := newWatch([]string{"T"}, []string{p})
		host := &http.Server{Handler: http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			reached.Add(1)
			body, _ := io.ReadAll(r.Body)
			normal, perr := rule.Path(r.URL.EscapedPath())
			if r.Host != hostName || perr != nil || normal != "/v1" && !strings.HasPrefix(normal, "/v1/") || r.Method != "GET" && r.Method != "POST" || r.URL.Host != "" {
				t.Errorf("the host got %s %s for %q", r.Method, r.RequestURI, r.Host)
			}
			var head bytes.Buffer
			r.Header.Write(&head)
			if w.In(head.Bytes()) != "" || w.In(body) != "" || w.In([]byte(r.RequestURI)) != "" {
				t.Errorf("the host got a placeholder: %s %s %q", r.RequestURI, head.Bytes(), body)
			}
			if n := strings.Count(head.String(), theValue); n > strings.Count(strings.Join(r.Header["Authorization"], " "), theValue) || n > 0 && r.Method != "GET" {
				t.Errorf("the value is in another place: %s", head.Bytes())
			}
			io.WriteString(rw, r.Header.Get("Authorization"))
		})}
		l := newLink(ctx, g, Target{Host: hostName, Port: 443})
		l.prepare()
		l.transport.DialTLSContext = func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			o := &once{conn: make(chan net.Conn, 1), ended: make(chan struct{}), addr: theirs.LocalAddr()}
			o.conn <- theirs
			wg.Go(func() { <-ctx.Done(); theirs.Close(); close(o.ended) })
			wg.Go(func() { host.Serve(o) })
			return ours, nil
		}
		program, far := net.Pipe()
		stop := context.AfterFunc(ctx, func() { program.Close(); far.Close() })
		defer stop()
		wg.Go(func() { l.serve(far, nil) })
		var answer bytes.Buffer
		answered := make(chan struct{})
		wg.Go(func() { defer close(answered); io.Copy(&answer, program) })
		program.Write(raw)
		program.Write([]byte("GET /v1/end HTTP/1.1\r\nHost: a.example\r\nConnection: close\r\n\r\n"))
		select { // the last request closes the connection, unless it's taken for a body
		case <-answered:
		case <-time.After(100 * time.Millisecond):
		}
		program.Close()
		far.Close()
		l.end()
		cancel()
		host.Close()
		wg.Wait()
		if len(raw) == 0 && reached.Load() != 1 {
			t.Error("the last request didn't reach the host")
		}
		if strings.Contains(answer.String(), theValue) {
			t.Errorf("the program got the value: %q", answer.Bytes())
		}
	})
}
