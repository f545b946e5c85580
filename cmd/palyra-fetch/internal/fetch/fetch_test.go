package fetch

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

type obj = map[string]any

// input is an input of the tool, through its decoder.
func input(t *testing.T, o obj) *toolproto.FetchInput {
	t.Helper()
	b, err := canon.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	in := new(toolproto.FetchInput)
	if err := toolproto.Decode(b, in); err != nil {
		t.Fatal(err)
	}
	return in
}

// served is a server on this machine's loopback, and what it was asked.
type served struct {
	*httptest.Server
	mu    sync.Mutex // a client that gave up doesn't wait for its handler
	asked []*http.Request
	sent  []string
}

func serve(t *testing.T, tls bool, h http.HandlerFunc) *served {
	t.Helper()
	s := new(served)
	note := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		s.mu.Lock()
		s.asked, s.sent = append(s.asked, r), append(s.sent, string(b))
		s.mu.Unlock()
		h(w, r)
	})
	if tls {
		s.Server = httptest.NewUnstartedServer(note)
		s.EnableHTTP2 = true
		s.StartTLS()
	} else {
		s.Server = httptest.NewServer(note)
	}
	t.Cleanup(s.Close)
	return s
}

func (s *served) host() string { return s.Listener.Addr().String() }

// TestAnswers: what a server says becomes a result within its bounds.
func TestAnswers(t *testing.T) {
	answers := map[string]http.HandlerFunc{
		"/text": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "Text/Plain; charset=utf-8")
			w.Header().Set("ETag", `"1"`)
			w.Header().Set("Set-Cookie", "secret=1")
			w.Header().Add("Vary", "A")
			w.Header().Add("Vary", "B\u202e\xff")
			io.WriteString(w, "héllo")
		},
		"/latin": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Write([]byte("h\xe9"))
		},
		"/nothing": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) },
		"/empty":   func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Length", "0") },
		"/missing": http.NotFound,
		"/octets":  func(w http.ResponseWriter, r *http.Request) { w.Write([]byte{0, 1, 2}) },
		"/untyped": func(w http.ResponseWriter, r *http.Request) { w.Header()["Content-Type"] = nil; io.WriteString(w, "x") },
		"/nonsense": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", ";;")
			io.WriteString(w, "x")
		},
		"/parameter": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/html; charset")
			io.WriteString(w, "x")
		},
		"/br": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Encoding", "br")
			io.WriteString(w, "x")
		},
		"/bomb": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			for range 8 { // MiB, if somebody reads them
				if _, err := z.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		},
		"/nogzip": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Encoding", "gzip")
			io.WriteString(w, strings.Repeat("no gzip", 10))
		},
		"/head": func(w http.ResponseWriter, r *http.Request) { w.Header().Set("X", strings.Repeat("x", maxHead)) },
		"/cut": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "aé")
		},
		"/short": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			w.Header().Set("Content-Length", "10")
			io.WriteString(w, "x")
		},
		"/slow": func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		"/forever": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.Copy(w, endless{})
		},
		"/stuck": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/plain")
			io.WriteString(w, "x")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		},
	}
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { answers[r.URL.Path](w, r) })
	for _, c := range []struct {
		path   string
		more   obj
		reason string // of the error
		want   string // the result's status, length, truncated and text
	}{
		{"/text", nil, "", "200 6 false héllo"},
		{"/text", obj{"method": "HEAD"}, "", "200 0 false "},
		{"/text", obj{"allowed_content_types": []string{"text/*"}}, "", "200 6 false héllo"},
		{"/text", obj{"allowed_content_types": []string{"application/json"}}, "content_type_refused", ""},
		{"/text", obj{"max_response_bytes": 2}, "", "200 1 true h"},
		{"/text", obj{"max_response_bytes": 6}, "", "200 6 false héllo"},
		{"/text", obj{"max_response_bytes": 5}, "", "200 5 true héll"},
		{"/latin", nil, "", "200 2 false base64 aOk="},
		{"/nothing", nil, "", "204 0 false "},
		{"/empty", nil, "", "200 0 false "},
		{"/missing", nil, "", "404 19 false 404 page not found\n"},
		{"/octets", nil, "content_type_refused", ""},
		{"/octets", obj{"allowed_content_types": []string{"application/octet-stream"}}, "", "200 3 false base64 AAEC"},
		{"/untyped", nil, "content_type_refused", ""},
		{"/nonsense", nil, "content_type_refused", ""},
		{"/parameter", nil, "", "200 1 false x"},
		{"/br", nil, "content_type_refused", ""},
		{"/bomb", obj{"max_response_bytes": 3}, "", "200 3 true base64 AAAA"},
		{"/nogzip", nil, "bad_answer", ""},
		{"/head", nil, "connection_lost", ""},
		{"/short", nil, "connection_lost", ""},
		{"/slow", obj{"request_timeout_ms": 50}, "timeout", ""},
		{"/stuck", obj{"request_timeout_ms": 50}, "timeout", ""},
		{"/forever", obj{"max_response_bytes": 3}, "", "200 3 true 111"},
	} {
		o := obj{"url": s.URL + c.path}
		for k, v := range c.more {
			o[k] = v
		}
		got, err := run(input(t, o), nil)
		if fault.ReasonOf(err) != c.reason || (err == nil) != (got != nil) {
			t.Errorf("%s %v: %+v, %v; want %s", c.path, c.more, got, err, c.reason)
			continue
		}
		if got == nil {
			if strings.Contains(err.Error(), c.path) {
				t.Errorf("%s: the error repeats the URL: %v", c.path, err)
			}
			continue
		}
		text := got.Content.Text
		if got.Content.Binary {
			text = "base64 " + got.Content.Base64
		}
		if is := fmt.Sprintf("%d %d %v %s", got.Status, got.Length, got.Truncated, text); is != c.want || got.URL != s.URL+c.path || got.Redirects == nil {
			t.Errorf("%s %v: %q, %+v; want %q", c.path, c.more, is, got, c.want)
		}
		if _, err := toolproto.Encode(got); err != nil {
			t.Errorf("%s: %v", c.path, err)
		}
		if c.path == "/text" && (got.Headers["etag"] != `"1"` || got.Headers["vary"] != "A, B\u202e\uFFFD" || got.Headers["set-cookie"] != "") {
			t.Errorf("%s: %v", c.path, got.Headers)
		}
	}
}

type endless struct{}

func (endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = '1'
	}
	return len(b), nil
}

// TestRedirects: what is followed, and with what.
func TestRedirects(t *testing.T) {
	page := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		status, _ := strconv.Atoi(r.URL.Query().Get("status"))
		switch n, _ := strconv.Atoi(r.URL.Query().Get("n")); {
		case r.URL.Query().Get("to") != "":
			w.Header().Set("Location", r.URL.Query().Get("to"))
			w.WriteHeader(status)
		case n > 0:
			http.Redirect(w, r, fmt.Sprintf("/?n=%d", n-1), http.StatusFound)
		default:
			io.WriteString(w, "here")
		}
	}
	plain, secure, other := serve(t, false, page), serve(t, true, page), serve(t, false, page)
	roots := x509.NewCertPool()
	roots.AddCert(secure.Certificate())
	to := func(s *served, status int, where string) string {
		return fmt.Sprintf("%s/?status=%d&to=%s", s.URL, status, url.QueryEscape(where))
	}
	for name, c := range map[string]struct {
		in     obj
		reason string
		word   string // of the error
		hops   int
		method string // of the last request
		sent   string
	}{
		"three":                 {in: obj{"url": plain.URL + "/?n=3"}, hops: 3, method: "GET"},
		"four":                  {in: obj{"url": plain.URL + "/?n=4"}, reason: "redirect_refused", word: "more than 3"},
		"ten":                   {in: obj{"url": plain.URL + "/?n=10", "max_redirects": 10}, hops: 10, method: "GET"},
		"eleven":                {in: obj{"url": plain.URL + "/?n=11", "max_redirects": 10}, reason: "redirect_refused", word: "more than 10"},
		"none":                  {in: obj{"url": plain.URL + "/?n=1", "allow_redirects": false}, method: "GET"},
		"another host":          {in: obj{"url": to(plain, 302, other.URL+"/x")}, reason: "egress_denied", word: `"egress_hosts":["` + other.host() + `"]`},
		"another port":          {in: obj{"url": to(plain, 302, "http://127.0.0.1:9/"), "egress_hosts": []string{"127.0.0.1:10"}}, reason: "egress_denied"},
		"another host, named":   {in: obj{"url": to(plain, 302, other.URL+"/x"), "egress_hosts": []string{other.host()}}, hops: 1, method: "GET"},
		"to https":              {in: obj{"url": to(plain, 301, secure.URL+"/"), "egress_hosts": []string{secure.host()}}, hops: 1, method: "GET"},
		"to http":               {in: obj{"url": to(secure, 301, plain.URL+"/"), "egress_hosts": []string{plain.host()}}, reason: "redirect_refused", word: "https to http"},
		"to a file":             {in: obj{"url": to(plain, 302, "file:///etc/passwd")}, reason: "redirect_refused", word: "scheme"},
		"to a user":             {in: obj{"url": to(plain, 302, "http://u:p@"+plain.host()+"/")}, reason: "redirect_refused", word: "credentials"},
		"nowhere":               {in: obj{"url": plain.URL + "/?status=302&to="}, method: "GET"},
		"no redirect":           {in: obj{"url": to(plain, 300, "/x")}, method: "GET"},
		"a POST sees another":   {in: obj{"url": to(plain, 303, "/x"), "method": "POST", "body": "b", "headers": []string{"content-type: text/plain"}}, hops: 1, method: "GET"},
		"a POST found":          {in: obj{"url": to(plain, 302, "/x"), "method": "POST", "body": "b"}, hops: 1, method: "GET"},
		"a POST is sent again":  {in: obj{"url": to(plain, 307, "/x"), "method": "POST", "body": "b"}, reason: "redirect_refused", word: "body"},
		"a POST for good":       {in: obj{"url": to(plain, 308, other.URL), "method": "POST", "body": "b", "egress_hosts": []string{other.host()}}, reason: "redirect_refused", word: "body"},
		"a HEAD stays one":      {in: obj{"url": to(plain, 303, "/x"), "method": "HEAD"}, hops: 1, method: "HEAD"},
		"a POST":                {in: obj{"url": plain.URL + "/", "method": "POST", "body": "Yg==", "encoding": "base64"}, method: "POST", sent: "b"},
		"an empty POST":         {in: obj{"url": plain.URL + "/", "method": "POST"}, method: "POST"},
		"a foreign certificate": {in: obj{"url": "https://" + strings.Replace(secure.host(), "127.0.0.1", "127.0.0.2", 1) + "/"}, reason: "connection_lost"},
	} {
		plain.asked, plain.sent, secure.asked, other.asked = nil, nil, nil, nil
		got, err := run(input(t, c.in), roots)
		if fault.ReasonOf(err) != c.reason || err != nil && !strings.Contains(err.Error(), c.word) {
			t.Errorf("%s: %+v, %v; want %s %q", name, got, err, c.reason, c.word)
			continue
		}
		if c.reason == "egress_denied" && len(other.asked) > 0 {
			t.Errorf("%s: the other host was asked", name)
		}
		if got == nil {
			continue
		}
		if len(got.Redirects) != c.hops || got.Method != c.method || c.hops > 0 && got.Redirects[c.hops-1].URL != got.URL {
			t.Errorf("%s: %+v", name, got)
		}
		if all := append(append(plain.asked, secure.asked...), other.asked...); len(all) != c.hops+1 {
			t.Errorf("%s: %d requests", name, len(all))
		}
		if n := len(plain.sent); n > 0 && c.hops == 0 && plain.sent[n-1] != c.sent {
			t.Errorf("%s: sent %q", name, plain.sent)
		}
	}
	// The certificate of another authority.
	if got, err := run(input(t, obj{"url": secure.URL}), x509.NewCertPool()); fault.ReasonOf(err) != "bad_answer" {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestAsks: what the server is told about the caller.
func TestAsks(t *testing.T) {
	var where string
	a := serve(t, false, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, where, http.StatusSeeOther) })
	b := serve(t, true, func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Content-Type", "text/plain") })
	where = b.URL + "/?x=%2F"
	roots := x509.NewCertPool()
	roots.AddCert(b.Certificate())
	t.Setenv("HTTP_PROXY", "http://127.0.0.1:1")
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	got, err := run(input(t, obj{"url": a.URL + "/a?b", "method": "POST", "body": "{}", "egress_hosts": []string{b.host()},
		"headers": []string{"Content-Type:application/json", "Accept: text/html;q=1", "if-none-match: \"1\"", "Accept-Language: de", "user-agent: x y"}}), roots)
	if err != nil || len(a.asked) != 1 || len(b.asked) != 1 {
		t.Fatalf("%+v, %v", got, err)
	}
	first, second := a.asked[0], b.asked[0]
	for header, want := range map[string][2]string{"Content-Type": {"application/json", ""}, "Accept": {"text/html;q=1", "text/html;q=1"}, "If-None-Match": {`"1"`, ""},
		"Accept-Language": {"de", "de"}, "User-Agent": {"x y", "x y"}, "Referer": {}, "Cookie": {}, "Authorization": {}} {
		if first.Header.Get(header) != want[0] || second.Header.Get(header) != want[1] {
			t.Errorf("%s: %q, then %q; want %q", header, first.Header.Get(header), second.Header.Get(header), want)
		}
	}
	if first.RequestURI != "/a?b" || second.RequestURI != "/?x=%2F" || second.Proto != "HTTP/2.0" || a.sent[0] != "{}" || b.sent[0] != "" {
		t.Errorf("%s, %s %s, %q %q", first.RequestURI, second.Proto, second.RequestURI, a.sent, b.sent)
	}
}

// TestCredentials: placeholders go to the URL's host, and to none that it redirects to.
func TestCredentials(t *testing.T) {
	var where []string
	a := serve(t, true, func(w http.ResponseWriter, r *http.Request) {
		if len(where) == 0 {
			w.Header().Set("Content-Type", "text/plain")
			return
		}
		next := where[0]
		where = where[1:]
		http.Redirect(w, r, next, http.StatusFound)
	})
	b := serve(t, true, func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, a.URL+"/back", http.StatusFound) })
	where = []string{"/same", b.URL + "/"}
	roots := x509.NewCertPool()
	roots.AddCert(a.Certificate())
	roots.AddCert(b.Certificate())
	question := obj{"url": a.URL + "/", "egress_hosts": []string{b.host()}, "credential_bindings": []string{"Authorization: Bearer vault://global/a", "x-api-key: vault://global/b"}}
	if _, err := run(input(t, question), roots); err == nil || len(a.asked) != 0 {
		t.Fatalf("without placeholders: %v, asked %d times", err, len(a.asked))
	}
	t.Setenv("CREDENTIAL_1", "one")
	t.Setenv("CREDENTIAL_2", "two")
	got, err := run(input(t, question), roots)
	if err != nil || len(a.asked) != 3 || len(b.asked) != 1 {
		t.Fatalf("%+v, %v, asked %d and %d times", got, err, len(a.asked), len(b.asked))
	}
	for _, r := range a.asked {
		if r.Header.Get("Authorization") != "Bearer one" || r.Header.Get("X-Api-Key") != "two" {
			t.Errorf("%s has %v", r.URL, r.Header)
		}
	}
	if h := b.asked[0].Header; h.Get("Authorization") != "" || h.Get("X-Api-Key") != "" {
		t.Errorf("the other host has %v", h)
	}
}

// TestLost: no server, one that speaks no HTTP, and one that says nothing.
func TestLost(t *testing.T) {
	for name, c := range map[string]struct {
		says   string
		silent bool
		reason string
	}{
		"nothing":      {"", false, "connection_lost"},
		"no HTTP":      {"SSH-2.0-OpenSSH\r\n", false, "connection_lost"},
		"odd headers":  {"HTTP/1.1 200 OK\r\nno header\r\n\r\n", false, "bad_answer"},
		"two lengths":  {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nxx", false, "connection_lost"},
		"silence":      {"", true, "timeout"},
		"endless 100s": {strings.Repeat("HTTP/1.1 100 Continue\r\n\r\n", 10000), false, "connection_lost"},
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				go func() {
					defer conn.Close()
					conn.Read(make([]byte, 4096))
					io.WriteString(conn, c.says)
					if c.silent {
						io.Copy(io.Discard, conn)
					}
				}()
			}
		}()
		in := obj{"url": "http://" + l.Addr().String()}
		if c.silent {
			in["request_timeout_ms"] = 50
		}
		if got, err := run(input(t, in), nil); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %+v, %v; want %s", name, got, err, c.reason)
		}
		if c.silent { // no handshake either
			if got, err := run(input(t, obj{"url": "https://" + l.Addr().String(), "connect_timeout_ms": 50}), nil); fault.ReasonOf(err) != "timeout" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		l.Close()
		if got, err := run(input(t, in), nil); fault.ReasonOf(err) != "connection_lost" {
			t.Errorf("after %s: %+v, %v", name, got, err)
		}
	}
}

// TestProgram runs the whole program.
func TestProgram(t *testing.T) {
	s := serve(t, false, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") })
	good := fmt.Sprintf(`{"url":%q}`, s.URL)
	for _, c := range []struct {
		args   []string
		stdin  string
		status toolproto.Status
		reason string
	}{
		{[]string{"http.fetch", "method=GET", "url=" + s.URL}, good, toolproto.Done, ""},
		{[]string{"http.fetch", "method=GET", "url=" + s.URL + "/other"}, good, toolproto.Bad, "invalid_input"},
		{[]string{"http.fetch"}, good, toolproto.Bad, "invalid_input"},
		{[]string{"http.fetch", "method=GET", "url=" + s.URL}, good + "\n{}", toolproto.Bad, "json_syntax"},
		{[]string{"palyra.echo"}, `{"text":"x"}`, toolproto.Bad, "not_found"},
		{nil, good, toolproto.Bad, "invalid_input"},
		{[]string{"http.fetch", "method=GET", "url=http://localhost"}, `{"url":"http://localhost"}`, toolproto.Bad, "invalid_input"},
	} {
		var out bytes.Buffer
		status := Main(c.args, strings.NewReader(c.stdin), &out)
		var got struct {
			toolproto.FetchResult
			Error toolproto.Reason
		}
		if err := json.Unmarshal(out.Bytes(), &got); err != nil || status != c.status || got.Error.Reason != c.reason || c.reason == "" && got.Content.Text != "hello" {
			t.Errorf("%q: %d, %s, %v", c.args, status, &out, err)
		}
	}
}
