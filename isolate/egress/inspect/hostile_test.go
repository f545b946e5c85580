package inspect

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
)

// TestHostileHosts: whatever a host answers, the program gets one answer to its request, or none, and
// never the value.
func TestHostileHosts(t *testing.T) {
	const ok = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, c := range map[string]struct {
		answer func(value string) string
		status int // 0: none, or a body that breaks off
	}{
		"nothing":      {func(string) string { return "" }, 502},
		"no HTTP":      {func(string) string { return "220 mail.example ESMTP\r\n" }, 502},
		"a long head":  {func(string) string { return "HTTP/1.1 200 OK\r\nX: " + strings.Repeat("y", 80<<10) + "\r\n\r\n" }, 502},
		"many headers": {func(string) string { return "HTTP/1.1 200 OK\r\n" + strings.Repeat("X: y\r\n", 20<<10) + "\r\n" }, 502},
		"many interim ones": {func(string) string {
			return strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n", 4096) + ok
		}, 200},
		"another protocol": {func(string) string {
			return "HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\nraw"
		}, 502},
		"two lengths": {func(string) string { return "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nokk" }, 502},
		"length and chunks": {func(string) string {
			return "HTTP/1.1 200 OK\r\nContent-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
		}, 200},
		"an odd coding": {func(string) string {
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"
		}, 502},
		"a bad chunk":    {func(string) string { return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n" }, 0},
		"a short body":   {func(string) string { return "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nok" }, 0},
		"two answers":    {func(string) string { return ok + "HTTP/1.1 200 OK\r\nX-Second: 1\r\nContent-Length: 4\r\n\r\nevil" }, 200},
		"a header's end": {func(v string) string { return "HTTP/1.1 200 OK\r\nX: a\rSet-Cookie: b\r\nContent-Length: 2\r\n\r\nok" }, 502},
		"NUL":            {func(v string) string { return "HTTP/1.1 200 OK\r\nX: a\x00b\r\nContent-Length: 2\r\n\r\nok" }, 502},
		"a status line":  {func(v string) string { return "HTTP/1.1 200 " + v + "\r\nContent-Length: 2\r\n\r\nok" }, 200},
		"a header's name": {func(v string) string {
			return "HTTP/1.1 200 OK\r\nX-" + strings.NewReplacer("/", "", "+", "", "=", "", "&", "").Replace(v) + ": 1\r\nContent-Length: 2\r\n\r\nok"
		}, 200},
		"an encoding": {func(v string) string { return "HTTP/1.1 200 OK\r\nContent-Encoding: br\r\nContent-Length: 2\r\n\r\nok" }, 502},
		"two encodings": {func(v string) string {
			return "HTTP/1.1 200 OK\r\nContent-Encoding: identity\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"
		}, 502},
		"a trailer": {func(v string) string {
			return "HTTP/1.1 200 OK\r\nTrailer: X-T\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-T: " + v + "\r\n\r\n"
		}, 200},
		"an undeclared trailer": {func(v string) string {
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX-U: " + v + "\r\n\r\n"
		}, 200},
		"in pieces": {func(v string) string {
			return "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n" + v[:4] + "\r\n3\r\n" + v[4:7] + fmt.Sprintf("\r\n%x\r\n", len(v)-7) + v[7:] + "\r\n0\r\n\r\n"
		}, 200},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{uses: []string{"T=vault://global/t header:authorization a.example:443"}, value: theValue, handler: echo, h1: true})
			config := r.host.TLS.Clone()
			config.NextProtos = []string{"http/1.1"}
			r.to.Dial = func(ctx context.Context) (net.Conn, error) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					return nil, err
				}
				r.wg.Go(func() {
					raw, err := l.Accept()
					l.Close() // not before: a connection that waits would be broken off
					if err != nil {
						return
					}
					defer raw.Close()
					host := tls.Server(raw, config)
					if _, err := http.ReadRequest(bufio.NewReader(host)); err != nil {
						return
					}
					io.WriteString(host, c.answer(theValue))
					host.Close()
				})
				return new(net.Dialer).DialContext(ctx, "tcp", l.Addr().String())
			}
			// Without net/http in the program, which would judge the answer itself.
			program := r.tls("http/1.1")
			io.WriteString(program, "GET / HTTP/1.1\r\nHost: a.example\r\nAuthorization: Bearer "+r.placeholder+"\r\nConnection: close\r\n\r\n")
			all, _ := io.ReadAll(program)
			program.Close()
			answers := bufio.NewReader(strings.NewReader(string(all)))
			status := 0
			for {
				res, err := http.ReadResponse(answers, nil)
				if err != nil {
					break
				}
				if res.StatusCode < 200 {
					continue
				}
				if _, err := io.ReadAll(res.Body); err == nil {
					status = res.StatusCode
				}
				if len(res.Header["X-Second"])+len(res.Header["Set-Cookie"]) > 0 {
					t.Errorf("%q", all)
				}
				break
			}
			if status != c.status {
				t.Errorf("%d, want %d: %.300q", status, c.status, all)
			}
			if rest, _ := io.ReadAll(answers); len(rest) > 0 {
				t.Errorf("behind the answer: %q", rest)
			}
			if text := string(all); strings.Contains(text, theValue) {
				t.Errorf("the program got the value: %q", text)
			}
			if len(r.leaks) > 0 {
				t.Errorf("%+v", r.leaks)
			}
		})
	}
}
