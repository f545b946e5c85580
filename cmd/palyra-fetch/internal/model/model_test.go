package model

import (
	"bytes"
	"compress/gzip"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"palyra/agentloop/turn"
)

const hello = `{"messages":[{"role":"user","parts":[{"text":"Hello."}]}]}`

// serve returns the URL of a server on this machine's loopback.
func serve(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// stream is a recorded stream of a dialect.
func stream(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("../../../../agentloop/provider/testdata/streams/" + name + ".sse")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// ask runs the program, and returns the answer and what it said otherwise.
func ask(t *testing.T, p *program, input string, args ...string) (turn.Answer, int, string) {
	t.Helper()
	if p.quiet == 0 {
		p.quiet = time.Minute
	}
	if p.getenv == nil {
		p.getenv = func(name string) string { return map[string]string{"KEY": "placeholder"}[name] }
	}
	var out, errs bytes.Buffer
	status := p.main(append([]string{turn.Tool}, args...), strings.NewReader(input), &out, &errs)
	if status > 1 {
		if out.Len() > 0 {
			t.Errorf("status %d, with the output %s", status, &out)
		}
		return turn.Answer{}, status, errs.String()
	}
	a, err := turn.ReadAnswer(&out)
	if err != nil || errs.Len() > 0 || (status == 0) != (a.Error == nil) {
		t.Errorf("status %d, %v, %s, answer %+v", status, err, &errs, a)
	}
	return a, status, ""
}

// TestAsk: what a provider of each dialect is sent, and that its answer comes as it is sent.
func TestAsk(t *testing.T) {
	for _, c := range []struct{ dialect, url, path, secret, header, value string }{
		{turn.Responses, "/v1", "/v1/responses", "header:authorization", "Authorization", "Bearer placeholder"},
		{turn.Chat, "/v1/?api-version=2", "/v1/chat/completions?api-version=2", "header:authorization", "Authorization", "Bearer placeholder"},
		{turn.Messages, "", "/messages", "header:x-api-key", "X-Api-Key", "placeholder"},
	} {
		text := stream(t, c.dialect+"-text")
		first, rest, _ := bytes.Cut(text, []byte("lo, "))
		goOn := make(chan struct{})
		var asked atomic.Int32
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			b, _ := io.ReadAll(r.Body)
			var body struct {
				Model  string
				Stream bool
			}
			if json.Unmarshal(b, &body) != nil || body.Model != "a-model" || !body.Stream || r.Method != http.MethodPost || r.URL.String() != c.path ||
				r.Header.Get(c.header) != c.value || r.Header.Get("X-Team") != "blue" || r.Header.Get("Content-Type") != "application/json" ||
				r.Header.Get("Accept-Encoding") != "" || r.Header.Get("User-Agent") != "palyra-fetch" {
				t.Errorf("%s: asked %s %s %v: %s", c.dialect, r.Method, r.URL, r.Header, b)
			}
			w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
			w.Write(first)
			w.(http.Flusher).Flush()
			<-goOn
			w.Write([]byte("lo, "))
			w.Write(rest)
		})
		read, write := io.Pipe()
		p := &program{getenv: func(string) string { return "placeholder" }, quiet: time.Minute}
		status := make(chan int, 1)
		go func() {
			status <- p.main([]string{turn.Tool, c.dialect, s.URL + c.url, "a-model", "header:x-team=blue", "secret:" + c.secret + "=KEY"}, strings.NewReader(hello), write, io.Discard)
			write.Close()
		}()
		line := make([]byte, len(`{"text":"Hel"}`))
		if _, err := io.ReadFull(read, line); err != nil || string(line) != `{"text":"Hel"}` { // before the rest is sent
			t.Errorf("%s: %s, %v", c.dialect, line, err)
		}
		close(goOn)
		a, err := turn.ReadAnswer(io.MultiReader(bytes.NewReader(line), read))
		if n := <-status; err != nil || n != 0 || a.Text() != "Hello, wörld 👋." || a.End != turn.EndStop || a.Usage.Output == 0 || asked.Load() != 1 {
			t.Errorf("%s: %d, %+v, %v", c.dialect, n, a, err)
		}
	}
}

// TestTLS: HTTP/2, and a certificate of an authority that the cell doesn't trust.
func TestTLS(t *testing.T) {
	proto := ""
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		proto = r.Proto
		w.Header().Set("Content-Type", "text/event-stream")
		w.Write(stream(t, "anthropic-text"))
	}))
	s.EnableHTTP2 = true
	s.StartTLS()
	defer s.Close()
	roots := x509.NewCertPool()
	roots.AddCert(s.Certificate())
	if a, status, _ := ask(t, &program{testOnlyRoots: roots}, hello, turn.Messages, s.URL, "m"); status != 0 || a.End != turn.EndStop || proto != "HTTP/2.0" {
		t.Errorf("%d, %+v, %s", status, a, proto)
	}
	if a, status, _ := ask(t, &program{testOnlyRoots: x509.NewCertPool()}, hello, turn.Messages, s.URL, "m"); status != 1 || a.Error.Class != turn.Permanent {
		t.Errorf("%d, %+v", status, a.Error)
	}
}

// TestHostile: each way in which a provider doesn't answer is an error of its class, once, and what
// came before it is there.
func TestHostile(t *testing.T) {
	events := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "text/event-stream")
			io.WriteString(w, text)
		}
	}
	fail := func(status int, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			for i := 0; i+1 < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	hang := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			if text != "" {
				events(text)(w, r)
				w.(http.Flusher).Flush()
			}
			<-r.Context().Done()
		}
	}
	raw := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			c, _, err := http.NewResponseController(w).Hijack()
			if err == nil {
				io.WriteString(c, text)
				c.Close()
			}
		}
	}
	piece := "data: {\"choices\":[{\"delta\":{\"content\":\"Hel\"}}]}\n\n"
	call := `{"choices":[{"delta":{"tool_calls":[{"index":0,"id":"1","function":{"name":"a","arguments":"{\"a\":"}}]},"finish_reason":"tool_calls"}]}`
	whole := "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
	for name, c := range map[string]struct {
		h       http.HandlerFunc
		class   string // "": there is an answer
		message string
		text    string
		after   int64
	}{
		"hangs":                        {h: hang(""), class: turn.TimedOut, message: "said nothing"},
		"hangs in its answer":          {h: hang(piece), class: turn.TimedOut, message: "said nothing", text: "Hel"},
		"hangs in an event":            {h: hang(piece + "data: {"), class: turn.TimedOut, message: "said nothing", text: "Hel"},
		"half an event":                {h: events(piece + "data: {\"choices\""), class: turn.Malformed, message: "ended before", text: "Hel"},
		"ends":                         {h: events(piece), class: turn.Malformed, message: "ended before", text: "Hel"},
		"wrong JSON":                   {h: events("data: {\"choices\":]}\n\n"), class: turn.Malformed, message: "isn't JSON"},
		"breaks":                       {h: raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n" + piece), class: turn.Unreachable, message: "unexpected EOF", text: "Hel"},
		"breaks before":                {h: raw(""), class: turn.Unreachable, message: "EOF"},
		"no HTTP":                      {h: raw("220 mail.example ESMTP\r\n\r\n"), class: turn.Malformed, message: "malformed HTTP"},
		"an endless head":              {h: raw("HTTP/1.1 200 OK\r\nX: " + strings.Repeat("x", 1<<20)), class: turn.Malformed, message: "exceeded 65536"},
		"no length":                    {h: raw(whole + string(stream(t, "openai_chat-text"))), text: "Hello, wörld 👋."},
		"too many requests":            {h: fail(429, `{"error":{"message":"Slowly.","type":"requests","code":"rate_limit_exceeded"}}`, "Retry-After", "20"), class: turn.RateLimited, message: "Slowly.", after: 20000},
		"overloaded":                   {h: fail(529, `{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}`), class: turn.Transient, message: "Overloaded"},
		"wrong key":                    {h: fail(401, `{"error":{"code":"invalid_api_key","message":"No."}}`), class: turn.AuthInvalid, message: "No."},
		"an endless error":             {h: fail(500, `{"error":{"message":"`+strings.Repeat("x", 1<<20)), class: turn.Transient, message: "answered 500"},
		"elsewhere":                    {h: fail(307, "", "Location", "http://127.0.0.1:1/"), class: turn.Permanent, message: "redirect"},
		"a page":                       {h: fail(200, "<html>Sign in.</html>", "Content-Type", "text/html"), class: turn.Malformed, message: `"text/html"`},
		"no type":                      {h: raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"), class: turn.Malformed, message: "not a stream"},
		"no stream":                    {h: fail(200, `{"choices":[]}`, "Content-Type", "application/json"), class: turn.Malformed, message: "not a stream"},
		"no content":                   {h: fail(204, ""), class: turn.Malformed, message: "answered 204"},
		"compressed":                   {h: fail(200, "x", "Content-Type", "text/event-stream", "Content-Encoding", "gzip"), class: turn.Malformed, message: `"gzip"`},
		"an endless line":              {h: events("data: " + strings.Repeat("x", 9<<20)), class: turn.Malformed, message: "an event has more"},
		"100,000 events":               {h: events(strings.Repeat("data: {\"choices\":[]}\n\n", 100_000) + string(stream(t, "openai_chat-text"))), text: "Hello, wörld 👋."},
		"100,000 pieces":               {h: events(strings.Repeat(piece, 100_000)), class: turn.Malformed, message: "the text has more", text: strings.Repeat("Hel", turn.MaxText/3)},
		"broken arguments":             {h: events("data: " + call + "\n\ndata: [DONE]\n\n")},
		"broken arguments, and no end": {h: events("data: " + call + "\n\n"), class: turn.Malformed, message: "ended before"},
		"an error in the stream":       {h: events(string(stream(t, "openai_chat-error"))), class: turn.Transient, message: "Upstream", text: "It "},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			s := serve(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); io.Copy(io.Discard, r.Body); c.h(w, r) })
			p := &program{quiet: time.Minute}
			if c.class == turn.TimedOut {
				p.quiet = time.Second
			}
			a, _, _ := ask(t, p, hello, turn.Chat, s.URL, "m")
			if (a.Error == nil) != (c.class == "") || a.Text() != c.text || asked.Load() != 1 {
				t.Fatalf("%+v, asked %d times", a.Error, asked.Load())
			}
			if e := a.Error; e != nil && (e.Class != c.class || !strings.Contains(e.Message, c.message) || e.RetryAfter != c.after) {
				t.Errorf("%+v", e)
			}
			if name == "broken arguments" && (len(a.Calls()) != 1 || a.Calls()[0].Arguments != `{"a":`) {
				t.Errorf("%+v", a)
			}
		})
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if a, status, _ := ask(t, new(program), hello, turn.Chat, "http://"+l.Addr().String(), "m"); status != 1 || a.Error.Class != turn.Unreachable {
		t.Errorf("nothing listens: %d, %+v", status, a.Error)
	}
	counted := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}` + "\n\n"
	for name, h := range map[string]http.HandlerFunc{"ends": events(counted), "breaks": raw("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 1000\r\n\r\n" + counted)} {
		if a, _, _ := ask(t, &program{quiet: time.Minute}, hello, turn.Chat, serve(t, h).URL, "m"); a.Error == nil || a.Usage != (turn.Usage{Input: 9, Output: 2}) {
			t.Errorf("%s behind its count: %+v", name, a)
		}
	}
	var packed bytes.Buffer
	z := gzip.NewWriter(&packed)
	z.Write(stream(t, "openai_chat-text"))
	z.Close()
	s := serve(t, fail(200, packed.String(), "Content-Type", "text/event-stream", "Content-Encoding", "gzip"))
	if a, status, _ := ask(t, new(program), hello, turn.Chat, s.URL, "m"); status != 1 || a.Error.Class != turn.Malformed {
		t.Errorf("compressed: %d, %+v", status, a.Error)
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("gone") }
func (broken) Read([]byte) (int, error)  { return 0, errors.New("gone") }

// TestArguments: what isn't a question ends without an event, and without a request.
func TestArguments(t *testing.T) {
	s := serve(t, func(w http.ResponseWriter, r *http.Request) { t.Error("it was asked") })
	for _, c := range []struct {
		args, input, want string
		status            int
	}{
		{"", hello, "usage", 2},
		{"openai " + s.URL, hello, "usage", 2},
		{"gemini " + s.URL + " m", hello, `"gemini"`, 2},
		{"openai ftp://a.example m", hello, "scheme", 2},
		{"openai " + s.URL + " m x", hello, "no argument", 2},
		{"openai " + s.URL + " m secret:header:authorization=NONE", hello, `"NONE" is empty`, 2},
		{"openai " + s.URL + " " + strings.Repeat("m", 257), hello, "257", 2},
		{"openai " + s.URL + " m", `{"messages":[]}`, "no message", 2},
		{"openai " + s.URL + " m", `hello`, "", 2},
		{"openai " + s.URL + " m", `{"script":{"turns":[]},` + hello[1:], "script", 2},
		{"openai " + s.URL + " m", hello + strings.Repeat(" ", turn.MaxRequest), "", 2},
		{"scripted " + s.URL + " m", hello, "no URL but -", 2},
		{"scripted - m header:a=b", hello, "no URL but -", 2},
		{"scripted - m", hello, "has none", 2},
	} {
		_, status, said := ask(t, new(program), c.input, strings.Fields(c.args)...)
		if status != c.status || !strings.HasPrefix(said, "palyra-fetch: ") || !strings.Contains(said, c.want) {
			t.Errorf("%s: %d, %s; want %d, %s", c.args, status, said, c.status, c.want)
		}
	}
	var errs bytes.Buffer
	if n := new(program).main([]string{turn.Tool, turn.Scripted, "-", "m"}, broken{}, io.Discard, &errs); n != 5 {
		t.Errorf("no input: %d, %s", n, &errs)
	}
	script := `{"script":{"turns":[{"text":"Hello there."}]},` + hello[1:]
	if n := new(program).main([]string{turn.Tool, turn.Scripted, "-", "m"}, strings.NewReader(script), broken{}, &errs); n != 5 {
		t.Errorf("no reader: %d, %s", n, &errs)
	}
}

// TestScripted: a script answers without a network, with the turn's answer or its error.
func TestScripted(t *testing.T) {
	const script = `{"script":{"turns":[{"text":"I look.","calls":[{"name":"ls","input":{}}]},{"error":{"class":"rate_limited","message":"slowly"}}]},`
	a, status, _ := ask(t, new(program), script+hello[1:], turn.Scripted, "-", "m")
	if status != 0 || a.Text() != "I look." || len(a.Calls()) != 1 || a.End != turn.EndCalls {
		t.Errorf("%d, %+v", status, a)
	}
	second := script + `"messages":[{"role":"user","parts":[{"text":"a"}]},{"role":"assistant","parts":[{"text":"a"}]},{"role":"user","parts":[{"text":"a"}]}]}`
	if a, status, _ = ask(t, new(program), second, turn.Scripted, "-", "m"); status != 1 || a.Error.Class != turn.RateLimited {
		t.Errorf("%d, %+v", status, a)
	}
}

func ExampleMain() {
	request := `{"messages":[{"role":"user","parts":[{"text":"Hello."}]}],"script":{"turns":[{"text":"Hello to you."}]}}`
	status := Main([]string{turn.Tool, turn.Scripted, "-", "a-model"}, strings.NewReader(request), os.Stdout, os.Stderr)
	fmt.Println(status)
	// Output:
	// {"text":"Hello "}
	// {"text":"to "}
	// {"text":"you."}
	// {"end":"stop"}
	// 0
}
