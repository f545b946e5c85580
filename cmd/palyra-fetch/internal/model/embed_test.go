package model

import (
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/agentloop/turn"
)

const texts = `{"embed":{"dimensions":2,"input":["a","b"]}}`

// TestEmbed: what a provider is sent that makes vectors, and its answer.
func TestEmbed(t *testing.T) {
	for _, dialect := range []string{turn.Responses, turn.Chat} {
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if r.Method != http.MethodPost || r.URL.String() != "/v1/embeddings" || r.Header.Get("Authorization") != "Bearer placeholder" || r.Header.Get("Accept") != "application/json" ||
				string(b) != `{"dimensions":2,"input":["a","b"],"model":"a-model"}` {
				t.Errorf("asked %s %s %v: %s", r.Method, r.URL, r.Header, b)
			}
			w.Header().Set("Content-Type", "application/json; charset=utf-8")
			io.WriteString(w, `{"object":"list","data":[{"object":"embedding","index":1,"embedding":[3,4]},{"object":"embedding","index":0,"embedding":[1,2]}],"usage":{"prompt_tokens":2,"total_tokens":2}}`)
		})
		a, status, _ := ask(t, new(program), texts, dialect, s.URL+"/v1", "a-model", "secret:header:authorization=KEY")
		if status != 0 || len(a.Vectors) != 2 || !slices.Equal(a.Vectors[0].Numbers(), []float32{1, 2}) || !slices.Equal(a.Vectors[1].Numbers(), []float32{3, 4}) || a.Usage.Input != 2 {
			t.Errorf("%d, %+v", status, a)
		}
	}
	if _, status, said := ask(t, new(program), texts, turn.Messages, "https://a.example", "m"); status != 2 || !strings.Contains(said, "anthropic") {
		t.Errorf("a provider that has none: %d, %s", status, said)
	}
	a, status, _ := ask(t, new(program), texts, turn.Scripted, "-", "m")
	if status != 0 || len(a.Vectors) != 2 || len(a.Vectors[0]) != 8 {
		t.Errorf("scripted: %d, %+v", status, a)
	}
}

// TestEmbedHostile: each way in which a provider doesn't make vectors is an error of its class, and
// none of them is there.
func TestEmbedHostile(t *testing.T) {
	answers := func(status int, kind, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.Header().Set("Retry-After", "3")
			w.WriteHeader(status)
			io.WriteString(w, text)
		}
	}
	const json, half = "application/json", `{"data":[{"embedding":[1,2]},`
	for name, c := range map[string]struct {
		h              http.HandlerFunc
		class, message string
	}{
		"hangs": {func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, turn.TimedOut, "said nothing"},
		"hangs within": {func(w http.ResponseWriter, r *http.Request) {
			answers(200, json, half)(w, r)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, turn.TimedOut, "said nothing"},
		"breaks": {func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "999")
			answers(200, json, half)(w, r)
		}, turn.Unreachable, "EOF"},
		"half":            {answers(200, json, half), turn.Malformed, "ended before"},
		"one of two":      {answers(200, json, half[:len(half)-1]+"]}"), turn.Malformed, "1 vectors of 2"},
		"other sizes":     {answers(200, json, `{"data":[{"embedding":[1]},{"embedding":[1]}]}`), turn.Malformed, "2 were asked for"},
		"a page":          {answers(200, "text/html", "<html>Sign in.</html>"), turn.Malformed, `"text/html", and not JSON`},
		"a stream":        {answers(200, "text/event-stream", "data: {}\n\n"), turn.Malformed, "not JSON"},
		"huge":            {answers(200, json, `{"data":[`+strings.Repeat(" ", 9<<20)), turn.Malformed, "more than 262144 bytes"},
		"slowly":          {answers(429, json, `{"error":{"message":"Slowly.","type":"rate_limit_error"}}`), turn.RateLimited, "Slowly."},
		"no such path":    {answers(404, "text/plain", "404 page not found"), turn.Permanent, "answered 404"},
		"too long a text": {answers(400, json, `{"error":{"message":"This model's maximum context length is 8192 tokens.","type":"invalid_request_error"}}`), turn.ContextWindow, "8192"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, func(w http.ResponseWriter, r *http.Request) { io.Copy(io.Discard, r.Body); c.h(w, r) })
			p := &program{quiet: time.Minute}
			if c.class == turn.TimedOut {
				p.quiet = time.Second
			}
			a, status, _ := ask(t, p, texts, turn.Chat, s.URL, "m")
			if status != 1 || a.Error.Class != c.class || !strings.Contains(a.Error.Message, c.message) || len(a.Vectors) > 0 || (a.Error.RetryAfter == 3000) != (a.Error.Status >= 400) {
				t.Errorf("%d, %+v", status, a.Error)
			}
		})
	}
}
