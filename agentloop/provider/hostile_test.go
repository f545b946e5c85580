package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"palyra/agentloop/turn"
)

// endless repeats a text.
type endless struct {
	text string
	at   int
}

func (e *endless) Read(b []byte) (int, error) {
	n := copy(b, e.text[e.at:])
	e.at = (e.at + n) % len(e.text)
	return n, nil
}

func data(text string) string { return "data: " + text + "\n\n" }

// TestMalformed: what a provider may not send is refused by name.
func TestMalformed(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	chat := func(delta string) string { return data(`{"choices":[{"delta":` + delta + `},null]}`) }
	block := func(block string) string {
		return data(`{"type":"content_block_start","index":0,"content_block":` + block + `}`)
	}
	delta := func(delta string) string {
		return data(`{"type":"content_block_delta","index":0,"delta":` + delta + `}`)
	}
	item := func(item string) string { return data(`{"type":"response.output_item.done","item":` + item + `}`) }
	call := func(i int) string {
		return fmt.Sprintf(`{"index":%d,"id":"%d","function":{"name":"a","arguments":"{}"}}`, i, i)
	}
	const done = "data: [DONE]\n\n"
	over := data(`{"type":"content_block_stop","index":0}`)
	for _, c := range []struct{ dialect, stream, want string }{
		{turn.Responses, data(`hello`), "isn't JSON"},
		{turn.Responses, data(`{"type":7}`), "its member \"type\" is of the type number"},
		{turn.Responses, data(`{"type":"response.output_text.delta","delta":["a"]}`), `"delta" is of the type array`},
		{turn.Responses, data(`{"type":"response.output_text.delta","delta":"` + long(turn.MaxText+1) + `"}`), "the text has more than 65536 bytes"},
		{turn.Responses, item(`{"type":"function_call","name":"a","arguments":"{}"}`), "no id"},
		{turn.Responses, item(`{"type":"function_call","call_id":"` + long(257) + `","name":"a","arguments":"{}"}`), "no id"},
		{turn.Responses, item(`{"type":"function_call","call_id":"1","name":"a","arguments":{}}`), `"arguments" is of the type object`},
		{turn.Responses, item(`{"type":"function_call","call_id":"1","name":"a","arguments":"` + long(turn.MaxArguments+1) + `"}`), "arguments have more than"},
		{turn.Responses, item(`{"type":"function_call","call_id":"1","name":"a"}`) + item(`{"type":"function_call","call_id":"1","name":"b"}`), `two calls have the id "1"`},
		{turn.Responses, item(`{"type":"reasoning","x":"` + long(turn.MaxOpaque) + `"}`), "item of the provider's own"},
		{turn.Responses, item(`{"type":"reasoning","x":"`+long(turn.MaxOpaque/2)+`"}`) + item(`{"type":"reasoning","x":"`+long(turn.MaxOpaque/2)+`"}`), "items have more than 1048576"},
		{turn.Responses, item(`{"type":"reasoning","x":` + strings.Repeat("[", 60) + strings.Repeat("]", 60) + `}`), "item of the provider's own"},
		{turn.Responses, item(`{"type":"reasoning","type":"other"}`), "item of the provider's own"},
		{turn.Responses, item(`{"type":"reasoning","n":9007199254740993}`), "item of the provider's own"},
		{turn.Responses, data(`{"type":"response.incomplete","response":{"incomplete_details":{"reason":"tea"}}}`), `"tea"`},
		{turn.Responses, data(`{"type":"response.completed","response":{"usage":{"input_tokens":-1}}}`), "counts -1 tokens"},
		{turn.Responses, data(`{"type":"response.completed","response":{"usage":{"input_tokens":1e30}}}`), "usage.input_tokens"},
		{turn.Responses, item(`{"type":"message","content":[{}` + strings.Repeat(",{}", 64) + `]}`), "array of an event has more than 64"},
		{turn.Responses, done, "isn't JSON"},

		{turn.Chat, data(`[]`), "of the type array"},
		{turn.Chat, chat(`{"content":{}}`), `content" is of the type object`},
		{turn.Chat, chat(`{"content":"` + long(turn.MaxText+1) + `"}`), "the text has more"},
		{turn.Chat, data(`{"choices":[{"index":1,"delta":{}}]}`), "second choice"},
		{turn.Chat, data(`{"choices":[{"finish_reason":"tea"}]}`), `"tea"`},
		{turn.Chat, data(`{"choices":[{"finish_reason":"stop"}]}`) + chat(`{"content":"a"}`), "goes on behind its end"},
		{turn.Chat, data(`{"choices":[{"finish_reason":"tool_calls"}]}`) + done, "has no calls"},
		{turn.Chat, data(`{"choices":[{}` + strings.Repeat(",{}", 1<<20) + `]}`), "array of an event has more than 64"},
		{turn.Chat, data(`{"choices":{}}`), `"choices" is of the type object`},
		{turn.Chat, data(`{"choices":[{}`), "isn't JSON"},
		{turn.Chat, done, "ended before"},
		{turn.Chat, chat(`{"tool_calls":[{"index":0,"id":"1","function":{"name":"a"}}]}`) + chat(`{"tool_calls":[{"index":0,"id":"2"}]}`), `is called "1", and then "2"`},
		{turn.Chat, chat(`{"tool_calls":[{"index":0,"function":{"name":"a"}}]}`) + data(`{"choices":[{"finish_reason":"tool_calls"}]}`) + done, "no id"},
		{turn.Chat, chat(`{"tool_calls":[{"index":0,"id":"1","function":{"arguments":"` + long(turn.MaxArguments) + `"}},{"index":1,"function":{"arguments":"x"}}]}`), "arguments have more than"},
		{turn.Chat, data(`{"choices":[{"finish_reason":"stop"}],"usage":{"completion_tokens":1099511627777}}`) + done, "counts 1099511627777"},

		{turn.Messages, over, "ends, which isn't open"},
		{turn.Messages, delta(`{"type":"text_delta","text":"a"}`), "block 0, which isn't open"},
		{turn.Messages, block(`{"type":"text"}`) + block(`{"type":"text"}`), "before block 0 is done"},
		{turn.Messages, block(`{"type":"text","text":1}`), `"text" is of the type number`},
		{turn.Messages, block(`{"type":"text"}`) + delta(`{"type":"text_delta","text":"`+long(turn.MaxText+1)+`"}`), "the text has more"},
		{turn.Messages, block(`{"type":"thinking"}`) + delta(`{"type":"thinking_delta","thinking":"`+long(turn.MaxOpaque+1)+`"}`), "thinking\" has more than"},
		{turn.Messages, block(`{"type":"thinking"}`) + delta(`{"type":"signature_delta","signature":"`+long(turn.MaxOpaque+1)+`"}`), "signature has more than"},
		{turn.Messages, block(`{"type":"tool_use","id":"1","name":"a"}`) + delta(`{"type":"input_json_delta","partial_json":"`+long(turn.MaxArguments+1)+`"}`), "tool_use\" has more than"},
		{turn.Messages, block(`{"type":"tool_use","name":"a"}`) + over + block(`{"type":"text"}`), "no id"},
		{turn.Messages, data(`{"type":"message_stop"}`), "without a reason"},
		{turn.Messages, block(`{"type":"text"}`) + data(`{"type":"message_stop"}`), "before block 0 does"},
		{turn.Messages, data(`{"type":"message_delta","delta":{"stop_reason":"pause_turn"}}`), `"pause_turn"`},
		{turn.Messages, data(`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`) + block(`{"type":"text"}`), "goes on behind its end"},
		{turn.Messages, data(`{"type":"message_start","message":{"usage":{"input_tokens":-3}}}`) + data(`{"type":"message_delta","delta":{"stop_reason":"end_turn"}}`) + data(`{"type":"message_stop"}`), "counts -3"},
	} {
		_, err := decode(c.dialect, strings.NewReader(c.stream))
		if e, ok := errors.AsType[*turn.Error](err); !ok || e.Class != turn.Malformed || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s %.150s: %v; want %q", c.dialect, c.stream, err, c.want)
		}
	}
	var calls []string
	for i := range turn.MaxCalls + 1 {
		calls = append(calls, call(i))
	}
	for name, c := range map[string]struct {
		r    io.Reader
		want string
	}{
		"an endless line":    {&endless{text: long(1 << 12)}, "an event has more than 8388608 bytes"},
		"an endless comment": {&endless{text: strings.Repeat(": x\n", 1<<10)}, "an event has more than"},
		"an endless stream":  {&endless{text: ": " + long(1<<16) + "\n\n"}, "the stream has more than 67108864 bytes"},
		"nothing":            {strings.NewReader(""), "ended before"},
		"a page":             {strings.NewReader("<html><body>Hello.</body></html>\n\n"), "ended before"},
	} {
		_, err := decode(turn.Messages, c.r)
		if e, ok := errors.AsType[*turn.Error](err); !ok || e.Class != turn.Malformed || !strings.Contains(e.Message, c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
	}
	if _, err := decode(turn.Chat, strings.NewReader(chat(`{"tool_calls":[`+strings.Join(calls, ",")+`]}`))); err == nil || !strings.Contains(err.Error(), "more than 64 elements") {
		t.Error(err)
	}
	if _, err := decode(turn.Chat, strings.NewReader(chat(`{"tool_calls":[`+strings.Join(calls[:64], ",")+`]}`)+chat(`{"tool_calls":[`+calls[64]+`]}`))); err == nil || !strings.Contains(err.Error(), "more than 64 calls") {
		t.Error(err)
	}
	for text, want := range map[string]string{`{"error":{}}`: "transient_upstream: the provider names no reason", `{"error":"x"}`: "transient_upstream: x", `{"error":{"code":429}}`: "rate_limited: 429"} {
		if _, err := decode(turn.Chat, strings.NewReader(data(text))); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	// Whoever takes the events can end it.
	gone := errors.New("gone")
	if _, err := Decode(turn.Chat, strings.NewReader(chat(`{"content":"a"}`)), func(turn.Event) error { return gone }); err != gone {
		t.Error(err)
	}
	if _, err := Decode(turn.Scripted, nil, nil); err == nil {
		t.Error("scripted is a stream")
	}
}

// TestFailure: the classes of errors, and how long a provider wants to be left alone.
func TestFailure(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	openai := func(typ, code, message string) string {
		b, _ := json.Marshal(object{"error": object{"message": message, "type": typ, "param": nil, "code": code}})
		return string(b)
	}
	anthropic := func(typ, message string) string {
		return fmt.Sprintf(`{"type":"error","error":{"type":%q,"message":%q},"request_id":"req_1"}`, typ, message)
	}
	for _, c := range []struct {
		status  int
		header  string // NAME=VALUE;…
		body    string
		class   string
		message string
		after   int64
	}{
		{401, "", openai("invalid_request_error", "invalid_api_key", "Incorrect API key."), turn.AuthInvalid, "Incorrect API key.", 0},
		{401, "", anthropic("authentication_error", "invalid x-api-key"), turn.AuthInvalid, "invalid x-api-key", 0},
		{401, "", "", turn.AuthInvalid, "the provider answered 401", 0},
		{402, "", anthropic("billing_error", "Pay."), turn.Quota, "Pay.", 0},
		{403, "", anthropic("permission_error", "No."), turn.Denied, "No.", 0},
		{403, "", openai("request_forbidden", "unsupported_country_region_territory", "No."), turn.Denied, "No.", 0},
		{404, "", anthropic("not_found_error", "model: x"), turn.Permanent, "model: x", 0},
		{404, "", openai("invalid_request_error", "model_not_found", "Which?"), turn.Permanent, "Which?", 0},
		{400, "", openai("invalid_request_error", "context_length_exceeded", "Long."), turn.ContextWindow, "Long.", 0},
		{400, "", anthropic("invalid_request_error", "prompt is too long: 208310 tokens > 200000 maximum"), turn.ContextWindow, "prompt is too long: 208310 tokens > 200000 maximum", 0},
		{400, "", anthropic("invalid_request_error", "Output blocked by content filtering policy"), turn.ContentBlocked, "Output blocked by content filtering policy", 0},
		{400, "", anthropic("invalid_request_error", "Your credit balance is too low."), turn.Quota, "Your credit balance is too low.", 0},
		{400, "", openai("invalid_request_error", "content_policy_violation", "No."), turn.ContentBlocked, "No.", 0},
		{400, "", openai("invalid_request_error", "", "Unknown parameter."), turn.Permanent, "Unknown parameter.", 0},
		{400, "", `{"error":"wrong"}`, turn.Permanent, "wrong", 0},
		{413, "", "<html>too large</html>", turn.ContextWindow, "the provider answered 413", 0},
		{413, "", anthropic("request_too_large", "Large."), turn.ContextWindow, "Large.", 0},
		{408, "", "", turn.TimedOut, "the provider answered 408", 0},
		{504, "", anthropic("timeout_error", "Slow."), turn.TimedOut, "Slow.", 0},
		{500, "", anthropic("api_error", "Hm."), turn.Transient, "Hm.", 0},
		{500, "", openai("server_error", "", "prompt is too long"), turn.Transient, "prompt is too long", 0},
		{502, "", "<html>", turn.Transient, "the provider answered 502", 0},
		{529, "retry-after=7", anthropic("overloaded_error", "Overloaded"), turn.Transient, "Overloaded", 7000},
		{307, "location=/x;retry-after=1", "", turn.Permanent, "the provider answered 307: a redirect isn't followed", 0},
		{204, "", "", turn.Malformed, "the provider answered 204", 0},
		{418, "", `{"error":{"code":`, turn.Permanent, "the provider answered 418", 0},

		{429, "", openai("insufficient_quota", "insufficient_quota", "Pay."), turn.Quota, "Pay.", 0},
		{429, "retry-after=3", openai("tokens", "rate_limit_exceeded", "Slowly."), turn.RateLimited, "Slowly.", 3000},
		{429, "retry-after=3;retry-after-ms=250", "", turn.RateLimited, "the provider answered 429", 250},
		{429, "retry-after=1.5", "", turn.RateLimited, "the provider answered 429", 1500},
		{429, "retry-after=Fri, 02 Jan 2026 03:04:35 GMT", "", turn.RateLimited, "the provider answered 429", 30000},
		{429, "retry-after=Friday, 02-Jan-26 03:04:35 GMT", "", turn.RateLimited, "the provider answered 429", 30000},
		{429, "retry-after=Fri, 02 Jan 2026 03:04:00 GMT", "", turn.RateLimited, "the provider answered 429", 0},
		{429, "retry-after=-1", "", turn.RateLimited, "the provider answered 429", 0},
		{429, "retry-after=1e300", "", turn.RateLimited, "the provider answered 429", mostWait.Milliseconds()},
		{429, "retry-after=NaN", "", turn.RateLimited, "the provider answered 429", 0},
		{429, "retry-after=Inf", "", turn.RateLimited, "the provider answered 429", mostWait.Milliseconds()},
		{429, "retry-after=Fri, 02 Jan 2999 03:04:35 GMT", "", turn.RateLimited, "the provider answered 429", mostWait.Milliseconds()},
		{429, "x-ratelimit-remaining-requests=0;x-ratelimit-reset-requests=1s;x-ratelimit-remaining-tokens=0;x-ratelimit-reset-tokens=6m0s", "", turn.RateLimited, "the provider answered 429", 360000},
		{429, "x-ratelimit-remaining-requests=0;x-ratelimit-reset-requests=20ms;x-ratelimit-remaining-tokens=5;x-ratelimit-reset-tokens=6m0s", "", turn.RateLimited, "the provider answered 429", 20},
		{429, "anthropic-ratelimit-input-tokens-remaining=0;anthropic-ratelimit-input-tokens-reset=2026-01-02T03:05:05Z", "", turn.RateLimited, "the provider answered 429", 60000},
		{429, "x-ratelimit-remaining-tokens=0;x-ratelimit-reset-tokens=soon", "", turn.RateLimited, "the provider answered 429", 0},
	} {
		headers := make(map[string]string)
		for _, h := range strings.Split(c.header, ";") {
			name, value, _ := strings.Cut(h, "=")
			headers[name] = value
		}
		e := Failure(c.status, func(name string) string { return headers[name] }, []byte(c.body), now)
		if want := (turn.Error{Class: c.class, Status: c.status, Message: c.message, RetryAfter: c.after}); *e != want {
			t.Errorf("%d %s %s: %+v; want %+v", c.status, c.header, c.body, *e, want)
		}
	}
	e := Failure(400, func(string) string { return "" }, []byte(openai("", "", "a\nb\x1b[31m\u202e"+strings.Repeat("é", 1000))), now)
	if !strings.HasPrefix(e.Message, "a b [31m éé") || len(e.Message) > 512 || strings.Contains(e.Message, "\uFFFD") {
		t.Errorf("%q", e.Message)
	}
}

// seedStreams: whatever a provider sends is refused, or is an answer that turn.ReadAnswer takes and
// that Encode takes back; and it's the same byte by byte.
func seedStreams(f *testing.F, dialect string) {
	streams(f, func(name, of string, stream []byte) {
		if of == dialect {
			f.Add(stream)
		}
	})
	f.Fuzz(func(t *testing.T, stream []byte) {
		whole, err := decode(dialect, bytes.NewReader(stream))
		if err != nil {
			if _, ok := errors.AsType[*turn.Error](err); !ok {
				t.Fatal(err)
			}
		}
		if cut, _ := decode(dialect, iotest.OneByteReader(bytes.NewReader(stream))); cut != whole {
			t.Fatalf("byte by byte:\n%s\nwhole:\n%s", cut, whole)
		}
		a, bad := turn.ReadAnswer(strings.NewReader(whole))
		if bad != nil || (a.Error != nil) != (err != nil) {
			t.Fatalf("%v, %v:\n%s", err, bad, whole)
		}
		if len(a.Message.Parts) == 0 {
			return
		}
		r := &turn.Request{Messages: []turn.Message{a.Message}}
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, err = turn.ParseRequest(b); err != nil {
			t.Fatal(err)
		}
		for _, to := range []string{turn.Responses, turn.Chat, turn.Messages} {
			if q, err := Encode(to, "m", r); err != nil || !json.Valid(q.Body) {
				t.Fatalf("%s: %s, %v", to, q.Body, err)
			}
		}
	})
}

func FuzzResponses(f *testing.F) { seedStreams(f, turn.Responses) }
func FuzzChat(f *testing.F)      { seedStreams(f, turn.Chat) }
func FuzzMessages(f *testing.F)  { seedStreams(f, turn.Messages) }

// TestPlay: a script's answers, one for each turn.
func TestPlay(t *testing.T) {
	script := `{"turns":[{"text":"I look now.","calls":[{"name":"ls","input":{}}]},` +
		`{"calls":[{"name":"cat","input":{"a":["{{last}}",1,{"{{last}}":"<{{last}}{{last}}>"}]}},{"name":"ls","input":{}}]},` +
		`{"error":{"class":"rate_limited","message":"slowly","retry_after_ms":5}},{"text":"cut","end":"length"},{"text":"no","end":"tea"}]}`
	r := &turn.Request{Script: json.RawMessage(script), Messages: []turn.Message{{Role: turn.User, Parts: []turn.Part{{Text: "Go."}}}}}
	for n, want := range []string{
		`{"text":"I "}{"text":"look "}{"text":"now."}{"call":{"arguments":"{}","id":"call_0_0","name":"ls"}}{"end":"calls"}`,
		`{"call":{"arguments":"{\"a\":[\"r\\\"1\",1,{\"{{last}}\":\"<r\\\"1r\\\"1>\"}]}","id":"call_1_0","name":"cat"}}{"call":{"arguments":"{}","id":"call_1_1","name":"ls"}}{"end":"calls"}`,
		`{"error":{"class":"rate_limited","message":"slowly","retry_after_ms":5}}`,
		`{"text":"cut"}{"end":"length"}`,
		`turn 4: no end is called "tea"`,
		`{"text":"the "}{"text":"script "}{"text":"is "}{"text":"over"}{"end":"stop"}`,
		`{"text":"the "}{"text":"script "}{"text":"is "}{"text":"over"}{"end":"stop"}`,
	} {
		var b bytes.Buffer
		w := turn.Writer{W: &b}
		err := Play(r, w.Write)
		if e, ok := errors.AsType[*turn.Error](err); ok {
			w.Write(turn.Event{Error: e})
		} else if err != nil {
			fmt.Fprint(&b, err)
		}
		if got := strings.ReplaceAll(b.String(), "\n", ""); got != want && (want[0] == '{' || !strings.Contains(got, want)) {
			t.Errorf("turn %d: %s; want %s", n, got, want)
		}
		r.Messages = append(r.Messages, turn.Message{Role: turn.Assistant, Parts: []turn.Part{{Text: "a"}}},
			turn.Message{Role: turn.User, Parts: []turn.Part{{Result: &turn.Result{ID: "x", Text: fmt.Sprintf("r\"%d", n+1)}}}})
	}
	for _, bad := range []string{``, `{}x`, `{"turns":[{"calls":[{"name":"a"}]}]}`, `{"turns":[{"calls":[{"name":"","input":{}}]}]}`, `{"turns":[{"end":"calls"}]}`, `{"turns":[{"error":{"class":"","message":"a"}}]}`} {
		if err := Play(&turn.Request{Script: json.RawMessage(bad)}, func(turn.Event) error { return nil }); err == nil {
			t.Errorf("%s is a script", bad)
		}
	}
	// A result doesn't grow without bound.
	r.Messages = []turn.Message{{Role: turn.User, Parts: []turn.Part{{Result: &turn.Result{ID: "x", Text: strings.Repeat("x", 1<<20)}}}}}
	r.Script = json.RawMessage(`{"turns":[{"calls":[{"name":"a","input":{"a":"` + strings.Repeat("{{last}}", 1<<16) + `"}}]}]}`)
	if err := Play(r, func(turn.Event) error { return nil }); err == nil || !strings.Contains(err.Error(), "arguments have more than") {
		t.Error(err)
	}
}
