package proxy

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"palyra/call/egress"
)

func why(err error) string {
	var r *Refused
	if errors.As(err, &r) {
		return r.Why
	}
	return ""
}

func TestParseConnect(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{"CONNECT packages.example:443 HTTP/1.1\r\n\r\n", "packages.example:443"},
		{"CONNECT Packages.Example.:8443 HTTP/1.0\r\nHost: other.example\r\n\r\n", "packages.example:8443"},
		{"CONNECT 192.0.2.7:443 HTTP/1.1\r\nHost: 192.0.2.7:443\r\nUser-Agent: x\r\nProxy-Connection: Keep-Alive\r\n\r\n", "192.0.2.7:443"},
		{"CONNECT [2001:db8::1]:443 HTTP/1.1\r\nContent-Length: 0\r\n\r\n", "[2001:db8::1]:443"},
	} {
		rest := "\x16\x03\x01 what the tunnel begins with \r\n\r\n"
		to, n, err := ParseConnect([]byte(c.in + rest))
		if err != nil || to.String() != c.want || n != len(c.in) {
			t.Errorf("ParseConnect(%q) = %v, %d, %v, want %s, %d", c.in, to, n, err, c.want, len(c.in))
		}
		for i := range c.in {
			if to, n, err := ParseConnect([]byte(c.in[:i])); err != ErrShort || n != 0 || to != (Target{}) {
				t.Fatalf("ParseConnect(%q) = %v, %d, %v, want ErrShort", c.in[:i], to, n, err)
			}
		}
	}
}

// TestConnectRefused has ATTACKS 91 and requests that two readers of HTTP may read as two.
// Sources: the hosts of curl's tests/libtest/lib1560.c; RFC 9112 §11.2 (smuggling).
func TestConnectRefused(t *testing.T) {
	const end = " HTTP/1.1\r\n\r\n"
	for _, c := range []struct{ in, why string }{
		{"GET http://packages.example/" + end, "unset http_proxy"},
		{"POST HTTP://packages.example/" + end, "unset http_proxy"},
		{"GET /" + end, "CONNECT alone"},
		{"connect packages.example:443" + end, "CONNECT alone"},
		{"PRI * HTTP/2.0\r\n\r\n", "no request of HTTP/1"},
		{"CONNECT packages.example:443 HTTP/1.2\r\n\r\n", "no request of HTTP/1"},
		{"CONNECT packages.example:443\r\n\r\n", "no request of HTTP/1"},
		{"CONNECT  packages.example:443" + end, "no request of HTTP/1"},
		{"CONNECT packages.example:443 HTTP/1.1 \r\n\r\n", "no request of HTTP/1"},
		{"CONNECT packages.example" + end, "without a port"},
		{"CONNECT packages.example:" + end, "1 to 65535"},
		{"CONNECT packages.example:0" + end, "1 to 65535"},
		{"CONNECT packages.example:70000" + end, "1 to 65535"},
		{"CONNECT packages.example:https" + end, "1 to 65535"},
		{"CONNECT :443" + end, "no name"},
		{"CONNECT https://packages.example:443" + end, "':'"},
		{"CONNECT evil.example@packages.example:443" + end, "a user"},
		{"CONNECT packages.example:80@evil.example:443" + end, "':'"},
		{"CONNECT packages.example%2f.evil.example:443" + end, "nothing is decoded"},
		{"CONNECT packages.example#:443" + end, "'#'"},
		{"CONNECT packages.example/:443" + end, "'/'"},
		{"CONNECT 0x7f.1:443" + end, "a number"},
		{"CONNECT 2130706433:443" + end, "a number"},
		{"CONNECT ::1:443" + end, "in brackets"},
		{"CONNECT [fe80::1%25eth0]:443" + end, "no zone"},
		{"CONNECT [::ffff:127.0.0.1]:443" + end, "as IPv4"},
		{"CONNECT b\u00fccher.example:443" + end, "xn--"},
		{"CONNECT evil.example\x00.packages.example:443" + end, "control"},
		{"CONNECT packages.example:443\x0b" + end, "control"},
		{"CONNECT packages.example:443 HTTP/1.1\n\n", "CR LF"},
		{"CONNECT packages.example:443 HTTP/1.1\n", "CR LF"},
		{"CONNECT packages.example:443 HTTP/1.1\rX\r\n\r\n", "CR LF"},
		{"\r\n\r\nCONNECT packages.example:443" + end, "no request"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nContent-Length: 5\r\n\r\n", "a body"},
		{"CONNECT packages.example:443 HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n", "a body"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nContent-Length : 5\r\n\r\n", "a header line"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nA: b\r\n Content-Length: 5\r\n\r\n", "a header line"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nnone\r\n\r\n", "a header line"},
		{"CONNECT packages.example:443 HTTP/1.1\r\n: b\r\n\r\n", "a header line"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nA: " + strings.Repeat("b", MaxHead), "more than"},
		{"CONNECT packages.example:443 HTTP/1.1\r\nA: " + strings.Repeat("b", MaxHead) + "\r\n\r\n", "more than"},
		{strings.Repeat("x", MaxHead), "more than"},
		{"\x16\x03\x01\x00\xff", "control"}, // TLS to the proxy itself
		{"\x05\x01\x00", "control"},         // SOCKS5 at the wrong port
	} {
		to, n, err := ParseConnect([]byte(c.in))
		if n != 0 || to != (Target{}) || !strings.Contains(why(err), c.why) {
			t.Errorf("ParseConnect(%.60q) = %v, %d, %v, want %q", c.in, to, n, err, c.why)
			continue
		}
		answer := err.(*Refused).Answer
		r, err := http.ReadResponse(bufio.NewReader(bytes.NewReader(answer)), nil)
		if err != nil {
			t.Errorf("answer %q: %v", answer, err)
			continue
		}
		body, err := io.ReadAll(r.Body)
		if err != nil || r.StatusCode < 400 || r.Status == "" || !strings.HasPrefix(r.Status, "4") && !strings.HasPrefix(r.Status, "5") || len(body) < 5 || !r.Close {
			t.Errorf("answer %q: status %q, body %q, %v", answer, r.Status, body, err)
		}
	}
}

func TestGreeting(t *testing.T) {
	for in, want := range map[string]int{"\x05\x01\x00": 3, "\x05\x02\x02\x00": 4, "\x05\x01\x00\x05\x01\x00": 3} {
		if n, err := ParseGreeting([]byte(in)); n != want || err != nil {
			t.Errorf("ParseGreeting(%q) = %d, %v", in, n, err)
		}
	}
	for _, in := range []string{"", "\x05", "\x05\x02", "\x05\x02\x00"} {
		if n, err := ParseGreeting([]byte(in)); n != 0 || err != ErrShort {
			t.Errorf("ParseGreeting(%q) = %d, %v, want ErrShort", in, n, err)
		}
	}
	for in, want := range map[string]string{"\x05\x01\x02": "authentication", "\x05\x00": "authentication", "\x04\x01\x00\x50": "SOCKS4", "GET /": "no SOCKS5"} {
		if n, err := ParseGreeting([]byte(in)); n != 0 || !strings.Contains(why(err), want) {
			t.Errorf("ParseGreeting(%q) = %d, %v, want %q", in, n, err, want)
		}
	}
}

func named(name, port string) string {
	return "\x05\x01\x00\x03" + string([]byte{byte(len(name))}) + name + port
}

func TestParseSOCKS(t *testing.T) {
	for _, c := range []struct{ in, want string }{
		{named("Packages.example", "\x01\xbb"), "packages.example:443"},
		{named("packages.example.", "\x00\x16"), "packages.example:22"},
		{named("192.0.2.7", "\x01\xbb"), "192.0.2.7:443"}, // clients put addresses there, too
		{"\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb", "192.0.2.7:443"},
		{"\x05\x01\x00\x04" + string(netip.MustParseAddr("2001:db8::1").AsSlice()) + "\x01\xbb", "[2001:db8::1]:443"},
		{"\x05\x01\x00\x04" + string(netip.MustParseAddr("::ffff:127.0.0.1").AsSlice()) + "\x01\xbb", "127.0.0.1:443"},
	} {
		to, n, err := ParseSOCKS([]byte(c.in + "tunnel"))
		if err != nil || n != len(c.in) || to.String() != c.want || to.Addr.Is4In6() {
			t.Errorf("ParseSOCKS(%q) = %v, %d, %v, want %s", c.in, to, n, err, c.want)
		}
		for i := range c.in {
			if to, n, err := ParseSOCKS([]byte(c.in[:i])); err != ErrShort || n != 0 || to != (Target{}) {
				t.Fatalf("ParseSOCKS(%q) = %v, %d, %v, want ErrShort", c.in[:i], to, n, err)
			}
		}
	}
	for _, c := range []struct{ in, why string }{
		// The host with NUL of anthropic-experimental/sandbox-runtime: the allowlist saw the end, connect(2) the beginning.
		{named("evil.example\x00.packages.example", "\x01\xbb"), "NUL"},
		{named("", "\x01\xbb"), "no name"},
		{named("0x7f000001", "\x01\xbb"), "a number"},
		{named("::1", "\x01\xbb"), "in brackets"},
		{named("fe80::1%eth0", "\x01\xbb"), "in brackets"},
		{named("packages.example\r\n", "\x01\xbb"), `'\r'`},
		{named(strings.Repeat("a", 255), "\x01\xbb"), "at most"},
		{named("packages.example", "\x00\x00"), "port 0"},
		{"\x05\x02\x00\x01\xc0\x00\x02\x07\x01\xbb", "command 2"},
		{"\x05\x03\x00\x01\xc0\x00\x02\x07\x01\xbb", "command 3"},
		{"\x05\x01\x01\x01\xc0\x00\x02\x07\x01\xbb", "reserved"},
		{"\x05\x01\x00\x02\xc0\x00\x02\x07\x01\xbb", "address type 2"},
		{"\x04", "begins with 4"},
	} {
		to, n, err := ParseSOCKS([]byte(c.in))
		if n != 0 || to != (Target{}) || !strings.Contains(why(err), c.why) {
			t.Errorf("ParseSOCKS(%q) = %v, %d, %v, want %q", c.in, to, n, err, c.why)
		} else if a := err.(*Refused).Answer; len(a) != 10 || a[0] != 5 || a[1] == 0 {
			t.Errorf("ParseSOCKS(%q): answer %x", c.in, a)
		}
	}
}

// check holds what a parser took to what it may take: a target in one spelling, and the same of a
// longer input (what follows is the tunnel's), nothing of a shorter one.
func check(t *testing.T, b []byte, parse func([]byte) (Target, int, error)) {
	t.Helper()
	to, n, err := parse(b)
	if err != nil {
		var r *Refused
		if n != 0 || to != (Target{}) || err != ErrShort && !errors.As(err, &r) {
			t.Errorf("%q: %v, %d, %v", b, to, n, err)
		}
		if r != nil && bytes.IndexByte(r.Answer, 0) >= 0 && r.Answer[0] == 'H' {
			t.Errorf("%q: answer %q", b, r.Answer)
		}
		return
	}
	if n < 1 || n > len(b) || to.Port == 0 || (to.Name == "") != to.Addr.IsValid() {
		t.Fatalf("%q: %v, %d", b, to, n)
	}
	if to.Name != "" {
		if name, err := egress.Name(to.Name); err != nil || name != to.Name {
			t.Errorf("%q: name %q isn't canonical", b, to.Name)
		}
	}
	if again, m, err := parse(b[:n]); again != to || m != n || err != nil {
		t.Errorf("%q: alone %v, %d, %v", b, again, m, err)
	}
	if _, _, err := parse(b[:n-1]); err != ErrShort {
		t.Errorf("%q: one byte less gives %v", b, err)
	}
}

func FuzzConnect(f *testing.F) {
	f.Add([]byte("CONNECT packages.example:443 HTTP/1.1\r\nHost: packages.example:443\r\n\r\n\x16\x03\x01"))
	f.Add([]byte("CONNECT [2001:db8::1]:443 HTTP/1.0\r\nContent-Length: 0\r\n\r\n"))
	f.Add([]byte("GET http://packages.example/ HTTP/1.1\r\n\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, b, ParseConnect)
		// net/http reads what we take as the same request.
		to, _, err := ParseConnect(b)
		if err != nil {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(bytes.NewReader(b)))
		if err != nil {
			return // it's stricter with Host
		}
		if r.Method != "CONNECT" || r.ContentLength > 0 || !strings.EqualFold(strings.Replace(r.URL.Host, ".:", ":", 1), to.String()) && to.Name != "" {
			t.Errorf("%q: ours %v, net/http's %s %s, %d bytes", b, to, r.Method, r.URL.Host, r.ContentLength)
		}
	})
}

func FuzzSOCKS(f *testing.F) {
	f.Add([]byte("\x05\x01\x00"))
	f.Add([]byte(named("packages.example", "\x01\xbb")))
	f.Add([]byte(named("evil.example\x00.packages.example", "\x01\xbb")))
	f.Add([]byte("\x05\x01\x00\x01\xc0\x00\x02\x07\x01\xbb"))
	f.Fuzz(func(t *testing.T, b []byte) {
		check(t, b, ParseSOCKS)
		if n, err := ParseGreeting(b); err == nil && (n < 3 || n > len(b) || b[0] != 5) {
			t.Errorf("ParseGreeting(%q) = %d", b, n)
		}
	})
}
