package turn

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestAnswer: an answer is its pieces in their order.
func TestAnswer(t *testing.T) {
	var b bytes.Buffer
	w := Writer{&b}
	for _, ev := range []Event{
		{Opaque: json.RawMessage(`{"type":"reasoning"}`)}, {Text: "I "}, {Text: "look."},
		{Call: &Call{ID: "1", Name: "fs_read_file", Arguments: `{"path":"a"}`}},
		{End: EndCalls, Usage: &Usage{Input: 7, Output: 3}},
	} {
		if err := w.Write(ev); err != nil {
			t.Fatal(err)
		}
	}
	a, err := ReadAnswer(bytes.NewReader(b.Bytes()))
	if err != nil || a.Text() != "I look." || len(a.Calls()) != 1 || len(a.Message.Parts) != 3 || a.End != EndCalls || a.Usage.Input != 7 {
		t.Errorf("%+v, %v", a, err)
	}
	for i := range b.Len() - 1 { // the last byte is a newline
		if _, err := ReadAnswer(bytes.NewReader(b.Bytes()[:i])); err == nil {
			t.Errorf("the first %d bytes are an answer", i)
		}
	}
	if _, err := ReadAnswer(strings.NewReader("{\"text\":\"a\"}\n")); !errors.Is(err, ErrCut) {
		t.Error(err)
	}
}

// TestAnswerBounds: what isn't an answer is refused.
func TestAnswerBounds(t *testing.T) {
	for name, text := range map[string]string{
		"two kinds":   `{"text":"a","end":"stop"}`,
		"none":        `{}`,
		"usage":       `{"text":"a","usage":{"input":1,"output":1}}`,
		"unknown":     `{"words":"a"}`,
		"behind":      "{\"end\":\"stop\"}\n{\"text\":\"a\"}",
		"text":        strings.Repeat(`{"text":"`+strings.Repeat("a", 1<<10)+"\"}\n", 65) + `{"end":"stop"}`,
		"calls":       strings.Repeat(`{"call":{"id":"1","name":"a","arguments":""}}`+"\n", MaxCalls+1) + `{"end":"calls"}`,
		"not JSON":    "hello",
		"another end": "{\"error\":{\"class\":\"x\",\"message\":\"y\"}}\n{\"end\":\"stop\"}",
	} {
		if _, err := ReadAnswer(strings.NewReader(text + "\n")); fault.ReasonOf(err) != "bad_answer" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRequest: a request is read as it was written, and each part is one thing.
func TestRequest(t *testing.T) {
	r := &Request{System: "s", Messages: []Message{{User, []Part{{Text: "hello"}}}, {Assistant, []Part{{Call: &Call{ID: "1", Name: "a", Arguments: "{"}}}},
		{User, []Part{{Result: &Result{ID: "1", Text: "no JSON", Failed: true}}}}}, Tools: []Offer{{Name: "a", Schema: json.RawMessage(`{"type":"object"}`)}}}
	b, err := r.Encode()
	if err != nil {
		t.Fatal(err)
	}
	if back, err := ParseRequest(b); err != nil || len(back.Messages) != 3 || back.Messages[1].Parts[0].Call.Arguments != "{" {
		t.Errorf("%+v, %v", back, err)
	}
	for _, bad := range []string{
		`{"messages":[]}`,
		`{"messages":[{"role":"developer","parts":[{"text":"a"}]}]}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]},{"role":"system","parts":[{"result":{"id":"1","text":""}}]}]}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"effort":"High"}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"thinking":{"budget":-1}}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"thinking":{"display":"none of it"}}`,
		`{"messages":[{"role":"user","parts":[]}]}`,
		`{"messages":[{"role":"user","parts":[{}]}]}`,
		`{"messages":[{"role":"user","parts":[{"call":{"id":"1","name":"a","arguments":""}}]}]}`,
		`{"messages":[{"role":"assistant","parts":[{"result":{"id":"1","text":""}}]}]}`,
		`{"messages":[{"role":"user","parts":[{"text":"a","result":{"id":"1","text":""}}]}]}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"temperature":2.1}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"top_p":-0.1}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"top_k":1}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"stop":[""]}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"choice":"any"}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"choice":"tool/a"}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"choice":"auto"}`,
		`{"messages":[{"role":"user","parts":[{"text":"a"}]}],"format":{"schema":null}}`,
	} {
		if _, err := ParseRequest([]byte(bad)); err == nil {
			t.Errorf("%s is a request", bad)
		}
	}
}

// FuzzReadAnswer: whatever comes is refused, or is within the bounds.
func FuzzReadAnswer(f *testing.F) {
	f.Add([]byte("{\"text\":\"a\"}\n{\"end\":\"stop\"}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := ReadAnswer(bytes.NewReader(b))
		if err == nil && (len(a.Text()) > MaxText || len(a.Calls()) > MaxCalls || a.End == "" && a.Error == nil) {
			t.Errorf("%+v", a)
		}
	})
}
