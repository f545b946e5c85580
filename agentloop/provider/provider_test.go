package provider

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"palyra/agentloop/turn"
	"palyra/internal/sample"
)

var update = flag.Bool("update", false, "rewrite the events and bodies in testdata")

// decode returns the lines of the events of a body. The last is the error's, if there is one.
func decode(dialect string, body io.Reader) (lines string, err error) {
	var b bytes.Buffer
	w := turn.Writer{W: &b}
	counted, err := Decode(dialect, body, w.Write)
	if e, ok := errors.AsType[*turn.Error](err); ok {
		if failed := w.Write(turn.Event{Error: e, Usage: counted}); failed != nil {
			return "", failed
		}
	}
	return b.String(), err
}

// TestCounted: what a provider has counted stands beside the error of an answer that isn't whole.
func TestCounted(t *testing.T) {
	const start = `data: {"type":"message_start","message":{"usage":{"input_tokens":5,"cache_read_input_tokens":20,"output_tokens":1}}}` + "\n\n"
	for _, c := range []struct {
		dialect, body string
		broken        bool
		want          *turn.Usage
	}{
		{turn.Messages, start, false, &turn.Usage{Input: 25, Cached: 20, Output: 1}},
		{turn.Messages, start, true, &turn.Usage{Input: 25, Cached: 20, Output: 1}},
		{turn.Messages, `data: {"type":"message_start","message":{}}` + "\n\n", true, nil},
		{turn.Messages, strings.Replace(start, "20", "-20", 1), true, nil},
		{turn.Responses, `data: {"type":"response.failed","response":{"error":{"code":"server_error"},"usage":{"input_tokens":7,"output_tokens":3}}}` + "\n\n", false, &turn.Usage{Input: 7, Output: 3}},
		{turn.Responses, `data: {"type":"response.failed","response":{"error":{"code":"server_error"},"usage":null}}` + "\n\n", false, nil},
		{turn.Chat, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}` + "\n\n", true, &turn.Usage{Input: 9, Output: 2}},
	} {
		body, broke := io.Reader(strings.NewReader(c.body)), errors.New("broken")
		if c.broken {
			body = io.MultiReader(body, iotest.ErrReader(broke))
		}
		got, err := Decode(c.dialect, body, func(turn.Event) error { return nil })
		if err == nil || errors.Is(err, broke) != c.broken || !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, %v; want %+v", c.body, got, err, c.want)
		}
	}
}

// golden compares got with a file.
func golden(t *testing.T, name, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// streams calls f with each recorded form of a stream.
func streams(t testing.TB, f func(name, dialect string, stream []byte)) {
	t.Helper()
	files, err := filepath.Glob("testdata/streams/*.sse")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d streams, %v", len(files), err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		name := strings.TrimSuffix(filepath.Base(file), ".sse")
		dialect, _, _ := strings.Cut(name, "-")
		f(name, dialect, b)
	}
}

// cuts returns where to cut a stream: everywhere, but of one whose square is large in every seventh
// place and beside each line's end.
func cuts(stream []byte) (at []int) {
	for n := range stream {
		if len(stream) < 2000 || n%7 == 0 || stream[n] == '\n' || stream[n-1] == '\n' {
			at = append(at, n)
		}
	}
	return at
}

// TestStreams: each dialect's answers, in the form that its provider documents, are the same
// events however they come.
func TestStreams(t *testing.T) {
	every := sample.Of(8, 1)
	streams(t, func(name, dialect string, stream []byte) {
		whole, err := decode(dialect, bytes.NewReader(stream))
		golden(t, filepath.Join("testdata/streams", name+".events"), whole)
		a, bad := turn.ReadAnswer(strings.NewReader(whole))
		if bad != nil || (a.Error != nil) != (err != nil) {
			t.Errorf("%s: %v, %v: %+v", name, err, bad, a)
		}
		if got, _ := decode(dialect, iotest.OneByteReader(bytes.NewReader(stream))); got != whole {
			t.Errorf("%s: byte by byte: %s", name, got)
		}
		if got, _ := decode(dialect, iotest.DataErrReader(bytes.NewReader(bytes.ReplaceAll(stream, []byte("\n"), []byte("\r\n"))))); got != whole {
			t.Errorf("%s: with CR LF: %s", name, got)
		}
		for i, n := range cuts(stream) {
			if i%every > 0 {
				continue
			}
			if got, _ := decode(dialect, io.MultiReader(bytes.NewReader(stream[:n]), bytes.NewReader(stream[n:]))); got != whole {
				t.Fatalf("%s: in two pieces, of %d bytes the first: %s", name, n, got)
			}
		}
	})
}

// TestCut: a stream that ends anywhere before its end is an error behind the first of the events.
func TestCut(t *testing.T) {
	every := sample.Of(8, 1)
	streams(t, func(name, dialect string, stream []byte) {
		whole, _ := decode(dialect, bytes.NewReader(stream))
		for i, n := range cuts(stream) {
			if i%every > 0 {
				continue
			}
			got, err := decode(dialect, bytes.NewReader(stream[:n]))
			lines := strings.SplitAfter(got, "\n")
			before := strings.Join(lines[:max(0, len(lines)-2)], "")
			if e, ok := errors.AsType[*turn.Error](err); !ok || e.Class != turn.Malformed || !strings.Contains(e.Message, "ended before") || !strings.HasPrefix(whole, before) {
				t.Fatalf("%s: of %d bytes the first %d are %q, %v", name, len(stream), n, got, err)
			}
			if i%16 > 0 {
				continue
			}
			// Of a connection that breaks the reader's error is kept.
			if _, err := decode(dialect, io.MultiReader(bytes.NewReader(stream[:n]), iotest.ErrReader(io.ErrUnexpectedEOF))); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Fatalf("%s: broken behind %d bytes: %v", name, n, err)
			}
		}
	})
}

// conversation has everything that one can have.
func conversation() *turn.Request {
	schema := json.RawMessage(`{"type":"object","properties":{"path":{"type":"string"}},"required":["path"]}`)
	item := func(text string) turn.Part { return turn.Part{Opaque: json.RawMessage(text)} }
	call := func(id, arguments string) turn.Part {
		return turn.Part{Call: &turn.Call{ID: id, Name: "fs_read_file", Arguments: arguments}}
	}
	return &turn.Request{
		System: "Be brief.", MaxTokens: 1000, CacheKey: "session-1",
		Tools: []turn.Offer{{Name: "fs_read_file", Description: "Reads <a> file.", Schema: schema}, {Name: "list", Schema: json.RawMessage(`{"type":"object"}`)}},
		Messages: []turn.Message{
			{Role: turn.User, Parts: []turn.Part{{Text: "Read these."}, {Text: "And that."}}},
			{Role: turn.Assistant, Parts: []turn.Part{
				item(`{"type":"reasoning","id":"rs_1","encrypted_content":"gA==","summary":[]}`),
				item(`{"type":"thinking","thinking":"Two.","signature":"Eq=="}`), item(`{"type":"redacted_thinking","data":"Em"}`),
				{Text: "I read "}, {Text: "them."}, call("c1", `{"path": "a"}`), call("c2", `{"path":`), call("c3", "")}},
			{Role: turn.User, Parts: []turn.Part{{Text: "Quickly."}, {Result: &turn.Result{ID: "c1", Text: "hello"}}, {Result: &turn.Result{ID: "c2", Text: "no JSON", Failed: true}}, {Result: &turn.Result{ID: "c3"}}}},
			{Role: turn.Assistant, Parts: []turn.Part{item(`{"type":"thinking","thinking":"","signature":"Er=="}`)}},
			{Role: turn.User, Parts: []turn.Part{{Text: "Well?"}}},
		},
	}
}

// TestEncode: what goes to a provider, byte by byte.
func TestEncode(t *testing.T) {
	small := &turn.Request{Messages: []turn.Message{{Role: turn.User, Parts: []turn.Part{{Text: "Hello."}}}}}
	for _, dialect := range []string{turn.Responses, turn.Chat, turn.Messages} {
		for name, c := range map[string]struct {
			model string
			r     *turn.Request
		}{"all": {"gpt-5", conversation()}, "least": {"gpt-4.1", small}} {
			q, err := Encode(dialect, c.model, c.r)
			if err != nil {
				t.Fatal(err)
			}
			golden(t, fmt.Sprintf("testdata/bodies/%s-%s.json", dialect, name), string(q.Body)+"\n")
			if q.Headers["content-type"] != "application/json" || q.Headers["accept"] != "text/event-stream" || (q.Headers["anthropic-version"] == "2023-06-01") != (dialect == turn.Messages) {
				t.Errorf("%s: %v", dialect, q.Headers)
			}
			if want := map[string]string{turn.Responses: "/responses", turn.Chat: "/chat/completions", turn.Messages: "/messages"}[dialect]; q.Path != want {
				t.Errorf("%s: %s", dialect, q.Path)
			}
		}
	}
	half := 0.5
	for dialect, made := range map[string]*turn.Request{
		turn.Responses: {Temperature: &half, TopP: &half, Choice: turn.ChoiceTool + "a", OneCall: true, Summary: "auto", Format: &turn.Format{Name: "n", Description: "d", Schema: json.RawMessage(`{"type":"object"}`), Strict: true}},
		turn.Chat:      {Temperature: &half, TopP: &half, Stop: []string{"\n"}, Choice: turn.ChoiceTool + "a", OneCall: true, Format: &turn.Format{Schema: json.RawMessage(`{"type":"object"}`)}},
		turn.Messages:  {Temperature: &half, TopP: &half, Stop: []string{"\n"}, Choice: turn.ChoiceTool + "a", OneCall: true, Format: &turn.Format{Name: "n", Schema: json.RawMessage(`{"type":"object"}`)}, Thinking: &turn.Thinking{Budget: 1024, Display: "omitted"}},
	} {
		made.Effort = "high"
		made.Messages = []turn.Message{small.Messages[0], {Role: turn.System, Parts: []turn.Part{{Text: "Be kind."}, {Text: "Be brief."}}}}
		made.Tools = []turn.Offer{{Name: "a", Schema: json.RawMessage(`{}`), Strict: true}}
		q, err := Encode(dialect, "m", made)
		if err != nil {
			t.Fatal(err)
		}
		golden(t, fmt.Sprintf("testdata/bodies/%s-made.json", dialect), string(q.Body)+"\n")
		for choice, want := range map[string]string{turn.ChoiceNone: `"none"`, turn.ChoiceAny: `"required"`} {
			if dialect == turn.Messages {
				want = `{"type":"none"}`
				if choice == turn.ChoiceAny {
					want = `{"disable_parallel_tool_use":true,"type":"any"}`
				}
			}
			r := *made
			r.Choice = choice
			if q, err := Encode(dialect, "m", &r); err != nil || !bytes.Contains(q.Body, []byte(`"tool_choice":`+want)) {
				t.Errorf("%s, %s: %s, %v", dialect, choice, q.Body, err)
			}
		}
	}
	for dialect, r := range map[string]*turn.Request{turn.Responses: {Messages: small.Messages, Stop: []string{"a"}}, turn.Messages: {Messages: small.Messages, Format: new(turn.Format)},
		turn.Responses + " ": {Messages: small.Messages, Thinking: new(turn.Thinking)}, turn.Chat: {Messages: small.Messages, Thinking: new(turn.Thinking)},
		turn.Messages + " ":  {Messages: small.Messages, Format: &turn.Format{Description: "d", Schema: json.RawMessage(`{}`)}},
		turn.Messages + "  ": {Messages: small.Messages, Summary: "auto"}, turn.Chat + " ": {Messages: small.Messages, Summary: "auto"}} {
		if _, err := Encode(strings.TrimSpace(dialect), "m", r); err == nil {
			t.Errorf("%s: it's taken", dialect)
		}
	}
	adaptive := &turn.Request{Messages: small.Messages, Thinking: new(turn.Thinking)}
	if q, err := Encode(turn.Messages, "m", adaptive); err != nil || !bytes.Contains(q.Body, []byte(`"thinking":{"type":"adaptive"}`)) {
		t.Errorf("%s, %v", q.Body, err)
	}
	blank := &turn.Request{Messages: []turn.Message{small.Messages[0], {Role: turn.Assistant, Parts: []turn.Part{{Text: "\n"}}}}}
	if q, err := Encode(turn.Messages, "m", blank); err != nil || bytes.Contains(q.Body, []byte("assistant")) {
		t.Errorf("%s, %v", q.Body, err)
	}
	for name, change := range map[string]func(*turn.Request){
		"script":   func(r *turn.Request) { r.Script = json.RawMessage(`{"turns":[]}`) },
		"tokens":   func(r *turn.Request) { r.MaxTokens = -1 },
		"a name":   func(r *turn.Request) { r.Tools = []turn.Offer{{Name: "fs.read", Schema: json.RawMessage(`{}`)}} },
		"a schema": func(r *turn.Request) { r.Tools = []turn.Offer{{Name: "a", Schema: json.RawMessage(`true`)}} },
	} {
		r := *small
		if change(&r); true {
			if _, err := Encode(turn.Chat, "m", &r); err == nil {
				t.Errorf("%s: it's taken", name)
			}
		}
	}
	for _, dialect := range []string{"", turn.Scripted, "gemini"} {
		if _, err := Encode(dialect, "m", small); err == nil {
			t.Errorf("the dialect %q is known", dialect)
		}
	}
}

// TestBack: what came of an answer goes back in the form in which it came.
func TestBack(t *testing.T) {
	for name, want := range map[string][]string{
		"openai-calls": {`{"encrypted_content":"gAAAAABoé==","id":"rs_0","status":null,"summary":[{"text":"Two files.","type":"summary_text"}],"type":"reasoning"},` +
			`{"content":[{"text":"I read both.","type":"output_text"}],"role":"assistant","type":"message"},` +
			`{"arguments":"{\"path\":\"a.txt\"}","call_id":"call_a1","name":"fs_read_file","type":"function_call"}`},
		"openai_chat-calls": {`{"content":"I read both.","role":"assistant","tool_calls":[{"function":{"arguments":"{\"path\":\"a.txt\"}","name":"fs_read_file"},"id":"call_a1","type":"function"},`},
		"anthropic-calls": {`{"content":[{"signature":"EqQBCgIYAhIM1gbcDa9GJwZA2b3h==","thinking":"Two files, so <two> calls.","type":"thinking"},{"data":"EmwKAhgBEgy3va3pzix/LafPsn4a","type":"redacted_thinking"},` +
			`{"text":"I read both.","type":"text"},{"id":"toolu_01A","input":{"path":"a.txt"},"name":"fs_read_file","type":"tool_use"},`},
	} {
		dialect, _, _ := strings.Cut(name, "-")
		stream, err := os.ReadFile("testdata/streams/" + name + ".sse")
		if err != nil {
			t.Fatal(err)
		}
		lines, err := decode(dialect, bytes.NewReader(stream))
		if err != nil {
			t.Fatal(err)
		}
		a, err := turn.ReadAnswer(strings.NewReader(lines))
		if err != nil {
			t.Fatal(err)
		}
		r := &turn.Request{Messages: []turn.Message{{Role: turn.User, Parts: []turn.Part{{Text: "Go."}}}, a.Message}}
		b, err := r.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if r, err = turn.ParseRequest(b); err != nil {
			t.Fatal(err)
		}
		q, err := Encode(dialect, "m", r)
		for _, w := range want {
			if err != nil || !strings.Contains(string(q.Body), w) {
				t.Errorf("%s: %s, %v; want %s", name, q.Body, err, w)
			}
		}
	}
}
