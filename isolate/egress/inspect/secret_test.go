package inspect

import (
	"compress/gzip"
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/evidence"
)

const tokenUse = "T=vault://global/t header:authorization GET,POST a.example:443/v1"

// TestUses: the host gets the value, and the program its placeholder again, over each pair of
// protocols.
func TestUses(t *testing.T) {
	for _, c := range []struct{ h2, h1host bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		t.Run(fmt.Sprintf("%+v", c), func(t *testing.T) {
			got := make(chan *http.Request, 8)
			r := newRig(t, setup{uses: []string{tokenUse, "T=vault://global/t query:key a.example:443"}, value: theValue, h1: c.h1host, handler: func(w http.ResponseWriter, q *http.Request) {
				got <- q
				if q.URL.Path == "/v1/early" {
					w.Header().Set("Link", "<"+q.Header.Get("Authorization")+">")
					w.WriteHeader(http.StatusEarlyHints)
				}
				echo(w, q)
			}})
			client := r.client(c.h2)
			res, body := r.do(client, "GET", "https://a.example/v1/x", http.Header{"Authorization": {"Bearer " + r.placeholder}, "Accept-Encoding": {"gzip"}, "Range": {"bytes=0-3"}}, nil)
			if q := <-got; q.Header.Get("Authorization") != "Bearer "+theValue || q.Header.Get("Accept-Encoding") != "identity" || q.Header.Get("Range") != "" {
				t.Errorf("the host got %v", q.Header)
			}
			if res.StatusCode != 200 || !strings.Contains(body, "Authorization: Bearer "+r.placeholder+"\n") || res.Header.Get("X-Auth") != "Bearer "+r.placeholder || res.Trailer.Get("X-Trailer") != "t Bearer "+r.placeholder {
				t.Errorf("%d, %s, %v, %v", res.StatusCode, body, res.Header, res.Trailer)
			}
			basic := "Basic " + base64.StdEncoding.EncodeToString([]byte("git:"+r.placeholder))
			_, body = r.do(client, "POST", "https://a.example/v1/x?key="+r.placeholder, http.Header{"Authorization": {basic}}, strings.NewReader("body"))
			if q := <-got; q.Header.Get("Authorization") != "Basic "+base64.StdEncoding.EncodeToString([]byte("git:"+theValue)) || q.URL.Query().Get("key") != theValue {
				t.Errorf("the host got %v, %v", q.Header, q.URL)
			}
			for how, text := range answers(theValue) {
				if strings.Contains(body, text) {
					t.Errorf("the program got the value, %s: %s", how, body)
				}
			}
			// An interim answer has headers, too.
			q, _ := http.NewRequest("GET", "https://a.example/v1/early", nil)
			q.Header.Set("Authorization", "Bearer "+r.placeholder)
			early := ""
			res, err := client.Do(q.WithContext(withEarly(q.Context(), func(h http.Header) { early = h.Get("Link") })))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if <-got; early != "<Bearer "+r.placeholder+">" {
				t.Errorf("early: %q", early)
			}
			// Without a placeholder nothing is put in. A part of the answer could be one of the value all the
			// same: a cookie may stand for it by now.
			r.do(client, "GET", "https://a.example/v1/x", http.Header{"Authorization": {"Bearer own"}, "Range": {"bytes=0-3"}}, nil)
			if q := <-got; q.Header.Get("Authorization") != "Bearer own" || q.Header.Get("Range") != "" {
				t.Errorf("the host got %v", q.Header)
			}
			_, leaks, denied := r.end(client)
			if len(leaks)+len(denied) > 0 {
				t.Errorf("%v, %v", leaks, denied)
			}
			requests, _ := r.g.Requests()
			if len(requests) != 4 || fmt.Sprint(requests[0].Uses) != "[T]" || fmt.Sprint(requests[1].Uses) != "[T]" || len(requests[3].Uses) != 0 || requests[1].Path != "/v1/x" {
				t.Errorf("%+v", requests)
			}
		})
	}
}

// TestLeaks: the placeholder in any place but its own ends the call, and nothing of it goes to the
// host behind that.
func TestLeaks(t *testing.T) {
	type send struct {
		method, path, host string
		header             http.Header
		body               string
		trailer            http.Header
	}
	for name, c := range map[string]struct {
		send  func(p string) send
		where string
	}{
		"another header":        {func(p string) send { return send{header: http.Header{"X-Other": {p}}} }, evidence.LeakHeader},
		"a header's name":       {func(p string) send { return send{header: http.Header{p: {"x"}}} }, evidence.LeakHeader},
		"the place and another": {func(p string) send { return send{header: http.Header{"Authorization": {p}, "Cookie": {"a=" + p}}} }, evidence.LeakHeader},
		"basic of another": {func(p string) send {
			return send{header: http.Header{"X-Auth": {"Basic " + base64.StdEncoding.EncodeToString([]byte("u:"+p))}}}
		}, evidence.LeakHeader},
		"another path":   {func(p string) send { return send{path: "/v2", header: http.Header{"Authorization": {p}}} }, evidence.LeakHeader},
		"another method": {func(p string) send { return send{method: "DELETE", header: http.Header{"Authorization": {p}}} }, evidence.LeakHeader},
		"path":           {func(p string) send { return send{path: "/v1/" + p} }, evidence.LeakPath},
		"path, escaped":  {func(p string) send { return send{path: "/v1/" + percent(p[:1]) + p[1:]} }, evidence.LeakPath},
		"query":          {func(p string) send { return send{path: "/v1?q=" + p} }, evidence.LeakQuery},
		"query, escaped": {func(p string) send { return send{path: "/v1?q=" + p[:9] + percent(p[9:10]) + p[10:]} }, evidence.LeakQuery},
		"query, hex":     {func(p string) send { return send{path: "/v1?" + fmt.Sprintf("%x", p)} }, evidence.LeakQuery},
		"method":         {func(p string) send { return send{method: strings.ToUpper(p)} }, evidence.LeakMethod},
		"host":           {func(p string) send { return send{host: p + ".example"} }, evidence.LeakHost},
		"host, cut":      {func(p string) send { return send{host: p[:20] + "." + p[20:] + ".example"} }, evidence.LeakHost},
		"body":           {func(p string) send { return send{method: "POST", body: "some text " + p + " and more"} }, evidence.LeakBody},
		"body, in base 64": {func(p string) send {
			return send{method: "POST", body: base64.StdEncoding.EncodeToString([]byte("x" + p))}
		}, evidence.LeakBody},
		"a long body": {func(p string) send {
			return send{method: "POST", body: strings.Repeat("x", 1<<20-20) + p + strings.Repeat("y", 1<<20)}
		}, evidence.LeakBody},
		"trailer": {func(p string) send { return send{method: "POST", body: "x", trailer: http.Header{"X-Up": {p}}} }, evidence.LeakHeader},
	} {
		for _, h2 := range []bool{false, true} {
			if h2 && name == "a header's name" || h2 && name == "method" {
				continue // Go's client sends none such
			}
			t.Run(fmt.Sprintf("%s %t", name, h2), func(t *testing.T) {
				got := new(lockedBuffer)
				r := newRig(t, setup{inspect: []string{"a.example:443"}, uses: []string{tokenUse}, value: theValue, handler: func(w http.ResponseWriter, q *http.Request) {
					fmt.Fprintf(got, "%s %s %v ", q.Host, q.RequestURI, q.Header)
					io.Copy(got, q.Body)
					fmt.Fprintf(got, " %v", q.Trailer)
				}})
				s := c.send(r.placeholder)
				if s.method == "" {
					s.method = "GET"
				}
				if s.path == "" {
					s.path = "/v1/x"
				}
				q, err := http.NewRequest(s.method, "https://a.example"+s.path, strings.NewReader(s.body))
				if err != nil {
					t.Fatal(err)
				}
				q.Header, q.Host, q.Trailer = http.Header{}, s.host, s.trailer
				for k, v := range s.header {
					q.Header[k] = v
				}
				if s.trailer != nil {
					q.ContentLength = -1
				}
				client := r.client(h2)
				if res, err := client.Do(q); err == nil {
					res.Body.Close()
					t.Errorf("answered %d", res.StatusCode)
				}
				<-r.leaked
				_, leaks, _ := r.end(client)
				if len(leaks) == 0 || leaks[0] != (evidence.Leak{Name: "T", Host: "a.example", Port: 443, Where: c.where}) {
					t.Errorf("%+v, want %s", leaks, c.where)
				}
				r.host.Close() // waits for handlers
				w := newWatch([]string{"T"}, []string{r.placeholder})
				if text := got.String(); w.In([]byte(text)) != "" || strings.Contains(text, theValue) {
					t.Errorf("the host got %.300s", text)
				}
			})
		}
	}
}

// TestGreetingLeaks: a placeholder in the clear, before TLS has begun.
func TestGreetingLeaks(t *testing.T) {
	for name, speak := range map[string]func(r *rig){
		"server name": func(r *rig) {
			tls.Client(r.dial(), &tls.Config{InsecureSkipVerify: true, ServerName: r.placeholder + ".example"}).Handshake()
		},
		"server name, cut": func(r *rig) {
			tls.Client(r.dial(), &tls.Config{InsecureSkipVerify: true, ServerName: r.placeholder[:10] + "." + r.placeholder[10:] + ".example"}).Handshake()
		},
		"protocol": func(r *rig) {
			tls.Client(r.dial(), &tls.Config{InsecureSkipVerify: true, ServerName: r.name, NextProtos: []string{r.placeholder}}).Handshake()
		},
		"no TLS": func(r *rig) {
			io.WriteString(r.dial(), "\x16\x03\x01\x00\x40"+r.placeholder+r.placeholder)
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, setup{uses: []string{tokenUse}, value: theValue, handler: echo})
			speak(r)
			<-r.leaked
			r.wg.Wait()
			if r.leaks[0].Where != evidence.LeakTLS || r.leaks[0].Name != "T" {
				t.Errorf("%+v", r.leaks)
			}
		})
	}
}

// TestAnswers: an encoded answer is refused, streams stay streams, and a host that breaks off within
// a value has told nothing of it.
func TestAnswers(t *testing.T) {
	next := make(chan struct{})
	r := newRig(t, setup{uses: []string{"T=vault://global/t header:authorization a.example:443"}, value: theValue, handler: func(w http.ResponseWriter, q *http.Request) {
		value := strings.TrimPrefix(q.Header.Get("Authorization"), "Bearer ")
		switch q.URL.Path {
		case "/gzip":
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			io.WriteString(z, value)
			z.Close()
		case "/stream":
			for i := range 3 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				<-next
			}
			for _, c := range []byte(value) {
				w.Write([]byte{c})
				w.(http.Flusher).Flush()
			}
		case "/cut":
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "it's "+value[:len(value)-1])
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		case "/moved":
			http.Redirect(w, q, "https://other.example/?token="+value, http.StatusFound)
		case "/none":
			w.Header().Set("Content-Encoding", "gzip")
			w.WriteHeader(http.StatusNotModified)
		}
	}})
	for _, h2 := range []bool{false, true} {
		client := r.client(h2)
		auth := http.Header{"Authorization": {"Bearer " + r.placeholder}}
		res, body := r.do(client, "GET", "https://a.example/gzip", auth.Clone(), nil)
		if res.StatusCode != 502 || !strings.Contains(body, "encoded") || res.Header.Get("Content-Encoding") != "" {
			t.Errorf("%d %q", res.StatusCode, body)
		}
		if res, _ := r.do(client, "HEAD", "https://a.example/gzip", auth.Clone(), nil); res.StatusCode != 200 {
			t.Errorf("HEAD: %d", res.StatusCode)
		}
		if res, _ := r.do(client, "GET", "https://a.example/none", auth.Clone(), nil); res.StatusCode != 304 {
			t.Errorf("304: %d", res.StatusCode)
		}
		q, _ := http.NewRequest("GET", "https://a.example/stream", nil)
		q.Header = auth.Clone()
		res, err := client.Do(q)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 100)
		for i := range 3 {
			n, err := io.ReadAtLeast(res.Body, b, 9)
			if want := fmt.Sprintf("data: %d\n\n", i); err != nil || string(b[:n]) != want {
				t.Errorf("%q, %v, want %q", b[:n], err, want)
			}
			next <- struct{}{} // the host goes on when the program has got it
		}
		rest, err := io.ReadAll(res.Body)
		if err != nil || string(rest) != r.placeholder {
			t.Errorf("in single bytes: %q, %v", rest, err)
		}
		res.Body.Close()
		q, _ = http.NewRequest("GET", "https://a.example/cut", nil)
		q.Header = auth.Clone()
		if res, err = client.Do(q); err != nil {
			t.Fatal(err)
		}
		rest, err = io.ReadAll(res.Body)
		res.Body.Close()
		if err == nil || string(rest) != "it's " {
			t.Errorf("cut off: %q, %v", rest, err)
		}
		res, _ = r.do(client, "GET", "https://a.example/moved", auth.Clone(), nil)
		if got := res.Header.Get("Location"); res.StatusCode != 302 || got != "https://other.example/?token="+r.placeholder {
			t.Errorf("%d, %s", res.StatusCode, got)
		}
		client.CloseIdleConnections()
	}
}

// TestEnd: whatever is under way, the connection ends with its call, and nothing of it is left.
func TestEnd(t *testing.T) {
	for _, h2 := range []bool{false, true} {
		began := make(chan struct{}, 4)
		r := newRig(t, setup{inspect: []string{"a.example:443"}, handler: func(w http.ResponseWriter, q *http.Request) {
			w.WriteHeader(200)
			w.(http.Flusher).Flush()
			began <- struct{}{}
			<-q.Context().Done()
		}})
		client := r.client(h2)
		res, err := client.Get("https://a.example/never")
		if err != nil {
			t.Fatal(err)
		}
		<-began
		r.g.cfg.Leaked(evidence.Leak{Name: "T"}) // ends the call
		if _, err := io.ReadAll(res.Body); err == nil {
			t.Error("the answer ended in order")
		}
		res.Body.Close()
		r.wg.Wait()
	}
}

func TestNew(t *testing.T) {
	in, err := rule.ParseInspection(rules(t, "a.example"), nil, []string{"T=vault://global/t header:authorization a.example:443 form:npm_", "U=vault://global/u query:key a.example:443"})
	if err != nil {
		t.Fatal(err)
	}
	good, other := rule.NewPlaceholder("npm_"), rule.NewPlaceholder("")
	for name, ps := range map[string][]string{"none": nil, "one": {good}, "another form": {other, other}, "the same": {good, good[4:] + "x"}, "short": {good[:9], other}} {
		if _, err := New(Config{Inspection: in, Placeholders: ps, Until: time.Now().Add(time.Hour)}); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
	g, err := New(Config{Inspection: in, Placeholders: []string{good, other}, Until: time.Now().Add(time.Hour)})
	if err != nil || g.Authority() == "" {
		t.Fatal(err)
	}
	if g.Give(nil) == nil || g.Give([][]byte{[]byte("only one value")}) == nil {
		t.Error("too few values were taken")
	}
	none, err := New(Config{})
	if err != nil || none.Authority() != "" || none.Watch() != nil || none.Names("a.example", 443) || none.Give(nil) != nil {
		t.Errorf("without inspection: %v", err)
	}
}

func rules(t testing.TB, texts ...string) rule.Rules {
	t.Helper()
	rs, err := rule.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}
