// Package provider speaks the dialects of language models' providers, over bytes alone: it makes
// the HTTP request of a turn.Request, and turn.Events of the answer's body.
//
//	q, err := provider.Encode(turn.Messages, "a-model", req)    // POST {url}{q.Path}
//	counted, err := provider.Decode(turn.Messages, res.Body, emit) // of an answer with status 200
//	err = provider.DecodeVectors(res.Body, req.Embed, emit)     // of one to a request for vectors
//	failed := provider.Failure(status, header, body, time.Now()) // of another
//
// docs/formats/turn.md has the mapping of each dialect.
//
// # Contract
//
// Decode gives events to emit as they come, and an End exactly once, last, if it returns nil. Each
// answer that it takes, turn.ReadAnswer takes. How the body is cut into reads changes nothing. A
// body that ends before the answer does is an error. Events, members and kinds of items that
// aren't known here are ignored, since providers add them; one that is known and of another type
// is Malformed, as is all that exceeds a bound.
//
// A call that max_tokens cut is dropped. What an answer that isn't EndCalls has of calls is to be
// shown, not run.
//
// # What it does not protect against
//
// An answer is the provider's word, its usage too. Time is the reader's: a body that
// hangs makes Decode hang.
package provider

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"palyra/agentloop/turn"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sse"
)

// The bounds of a stream, in bytes. Those of what an answer has of each kind are package turn's.
const (
	MaxEvent  = 8 << 20  // the first and last of Responses repeat the prompt and the whole answer
	MaxStream = 64 << 20 // of the body: an event for each token, and the provider's padding
	maxWord   = 256      // of an id or a name
	maxDepth  = 56       // of an item of the provider's own; a request that has it may have 64
	maxCount  = 1 << 40  // tokens of a usage
)

// defaultTokens is max_tokens for a provider that has no default.
const defaultTokens = 8192

// Question is what goes to a provider.
type Question struct {
	Path    string            // behind the provider's URL
	Headers map[string]string // besides the credentials
	Body    []byte            // canonical JSON
}

// Encode returns what puts r to a model in a dialect, with an answer in words as a stream.
func Encode(dialect, model string, r *turn.Request) (Question, error) {
	bad := func(format string, a ...any) (Question, error) {
		return Question{}, fault.New(fault.Usage, "invalid_input", "ask model", fmt.Errorf(format, a...))
	}
	q := Question{Headers: map[string]string{"content-type": "application/json", "accept": "text/event-stream"}}
	switch {
	case r.Script != nil:
		return bad("a script is for the scripted provider alone")
	case r.MaxTokens < 0:
		return bad("max_tokens is %d", r.MaxTokens)
	}
	if err := r.Fits(dialect); err != nil {
		return Question{}, err
	}
	for _, o := range r.Tools {
		if !offered(o.Name) {
			return bad("a tool's name is %.80q: want 1 to 64 of a-z, A-Z, 0-9, _ and -", o.Name)
		}
		if len(o.Schema) == 0 || o.Schema[0] != '{' {
			return bad("tool %q: the schema isn't an object", o.Name)
		}
	}
	var body object
	switch {
	case r.Embed != nil && (dialect == turn.Responses || dialect == turn.Chat):
		q.Path, body = "/embeddings", embedBody(model, r.Embed)
		q.Headers["accept"] = "application/json"
	case dialect == turn.Responses:
		q.Path, body = "/responses", responsesBody(model, r)
	case dialect == turn.Chat:
		q.Path, body = "/chat/completions", chatBody(model, r)
	case dialect == turn.Messages:
		q.Path, body = "/messages", messagesBody(model, r)
		q.Headers["anthropic-version"] = "2023-06-01"
	default:
		return bad("no dialect is called %.80q", dialect)
	}
	var err error
	q.Body, err = canon.Marshal(body)
	return q, err
}

// sampling adds what says how an answer's words are chosen.
func sampling(b object, r *turn.Request) {
	if r.Temperature != nil {
		b["temperature"] = *r.Temperature
	}
	if r.TopP != nil {
		b["top_p"] = *r.TopP
	}
}

// choice adds what says which tools are called, as both of OpenAI's dialects do; one is their form
// of a single tool.
func choice(b object, r *turn.Request, one func(name string) object) {
	switch name, is := strings.CutPrefix(r.Choice, turn.ChoiceTool); {
	case is:
		b["tool_choice"] = one(name)
	case r.Choice == turn.ChoiceAny:
		b["tool_choice"] = "required"
	case r.Choice != "" && len(r.Tools) > 0:
		b["tool_choice"] = r.Choice
	}
	if r.OneCall && len(r.Tools) > 0 {
		b["parallel_tool_calls"] = false
	}
}

// schema is a format's in the form of OpenAI's.
func schema(f *turn.Format) object {
	o := object{"name": cmp.Or(f.Name, "answer"), "schema": f.Schema, "strict": f.Strict}
	if f.Description != "" {
		o["description"] = f.Description
	}
	return o
}

// object is one of JSON.
type object = map[string]any

func offered(name string) bool {
	for _, c := range []byte(name) {
		if (c|0x20 < 'a' || c|0x20 > 'z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return len(name) > 0 && len(name) <= 64
}

// ownItems are the types of items that Messages has; all others are Responses'. A conversation may
// go on with another provider, to which what isn't its own says nothing.
var ownItems = map[string]bool{"thinking": true, "redacted_thinking": true}

// own reports whether an opaque part came in a dialect.
func own(dialect string, item json.RawMessage) bool {
	var of struct {
		Type string `json:"type"`
	}
	return json.Unmarshal(item, &of) == nil && dialect != turn.Chat && ownItems[of.Type] == (dialect == turn.Messages)
}

// decoder takes a stream's events. done is true behind the End.
type decoder interface {
	event(ev sse.Event) (done bool, err error)
	counted() *turn.Usage // so far; nil: nothing
}

// Decode reads the body of an answer. The error is a *turn.Error for what the provider said or
// ought not to have, else body's or emit's; then counted is what the provider had counted by then,
// nil if nothing.
func Decode(dialect string, body io.Reader, emit func(turn.Event) error) (counted *turn.Usage, err error) {
	s := &sink{emit: emit, ids: make(map[string]bool)}
	var d decoder
	switch dialect {
	case turn.Responses:
		d = &responses{sink: s}
	case turn.Chat:
		d = &chat{sink: s}
	case turn.Messages:
		d = &messages{sink: s}
	default:
		return nil, fault.New(fault.Usage, "invalid_input", "read answer", fmt.Errorf("no dialect is called %.80q", dialect))
	}
	if err = drive(d, body); err != nil {
		if counted = d.counted(); counts(counted) != nil {
			counted = nil
		}
	}
	return counted, err
}

func drive(d decoder, body io.Reader) error {
	r := sse.NewReader(&bounded{r: body, left: MaxStream}, MaxEvent, "")
	for {
		ev, err := r.Next()
		if errors.Is(err, io.EOF) {
			return bad("the stream ended before the answer did")
		}
		if large, ok := errors.AsType[sse.ErrLarge](err); ok {
			return bad("%v", large)
		}
		if err != nil {
			return err
		}
		if done, err := d.event(ev); done || err != nil {
			return err
		}
	}
}

// bounded reads what a stream may have.
type bounded struct {
	r    io.Reader
	left int
}

func (b *bounded) Read(p []byte) (int, error) {
	if b.left == 0 {
		return 0, bad("the stream has more than %d bytes", MaxStream)
	}
	n, err := b.r.Read(p[:min(len(p), b.left)])
	b.left -= n
	return n, err
}

// bad returns the error of an answer that isn't as documented.
func bad(format string, a ...any) *turn.Error {
	return &turn.Error{Class: turn.Malformed, Message: clean(fmt.Sprintf(format, a...))}
}

// clean bounds a stranger's text, and makes it one line that prints.
func clean(s string) string {
	const most = 512
	if len(s) > most {
		s = s[:most]
	}
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if !unicode.IsPrint(c) {
			return ' '
		}
		return c
	}, strings.ToValidUTF8(s, "")))
}

// read reads a known event, and leaves what v hasn't.
func read(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return bad("an event isn't as documented: its member %.80q is of the type %s", e.Field, e.Value)
	}
	if e, ok := errors.AsType[*turn.Error](err); ok {
		return e
	}
	if err != nil {
		return bad("an event isn't JSON: %v", err)
	}
	return nil
}

// few is an array that has no more elements than an answer may have calls. Without a bound a byte
// of an event can take thirty of memory.
type few[T any] []T

// UnmarshalJSON implements json.Unmarshaler.
func (f *few[T]) UnmarshalJSON(b []byte) error {
	if b[0] != '[' {
		return json.Unmarshal(b, (*[]T)(f)) // null, or an error
	}
	d := json.NewDecoder(bytes.NewReader(b))
	if _, err := d.Token(); err != nil {
		return err
	}
	for d.More() {
		if len(*f) == turn.MaxCalls {
			return bad("an array of an event has more than %d elements", turn.MaxCalls)
		}
		var v T
		if err := d.Decode(&v); err != nil {
			return err
		}
		*f = append(*f, v)
	}
	return nil
}

// kindOf returns the stream's word for an event, or else the type that the event says it has. So
// most of what isn't known here isn't parsed, such as the prompt, which Responses repeats twice.
func kindOf(ev sse.Event) (string, error) {
	var of struct {
		Type string `json:"type"`
	}
	if ev.Kind != "message" {
		return ev.Kind, nil
	}
	err := read(ev.Data, &of)
	return of.Type, err
}

// sink emits what is within the bounds of an answer.
type sink struct {
	emit                    func(turn.Event) error
	text, arguments, opaque int             // bytes
	ids                     map[string]bool // of calls
}

// say emits text.
func (s *sink) say(text string) error {
	if text == "" {
		return nil
	}
	if s.text += len(text); s.text > turn.MaxText {
		return bad("the text has more than %d bytes", turn.MaxText)
	}
	return s.emit(turn.Event{Text: text})
}

// fits reports whether n more bytes of arguments may come.
func (s *sink) fits(n int) error {
	if s.arguments+n > turn.MaxArguments {
		return bad("the calls' arguments have more than %d bytes", turn.MaxArguments)
	}
	return nil
}

// call emits a call.
func (s *sink) call(c *turn.Call) error {
	switch {
	case c.ID == "" || c.Name == "" || len(c.ID) > maxWord || len(c.Name) > maxWord:
		return bad("a call has no id or no name of 1 to %d bytes", maxWord)
	case s.ids[c.ID]:
		return bad("two calls have the id %.80q", c.ID)
	case len(s.ids) == turn.MaxCalls:
		return bad("there are more than %d calls", turn.MaxCalls)
	}
	if err := s.fits(len(c.Arguments)); err != nil {
		return err
	}
	s.arguments += len(c.Arguments)
	s.ids[c.ID] = true
	return s.emit(turn.Event{Call: c})
}

// keep emits an item of the provider's own.
func (s *sink) keep(item []byte) error {
	var any json.RawMessage
	if err := canon.Decode(item, &any, canon.Limits{Bytes: turn.MaxOpaque, Depth: maxDepth}); err != nil {
		return bad("an item of the provider's own: %v", err)
	}
	b, err := canon.Canonical(item)
	if err != nil {
		return bad("an item of the provider's own: %v", err)
	}
	if s.opaque += len(b); s.opaque > turn.MaxOpaque {
		return bad("the provider's own items have more than %d bytes", turn.MaxOpaque)
	}
	return s.emit(turn.Event{Opaque: b})
}

// end emits the last event. A model that stops behind calls wants their results, whatever it says.
func (s *sink) end(end string, u *turn.Usage) error {
	switch {
	case end == turn.EndStop && len(s.ids) > 0:
		end = turn.EndCalls
	case end == turn.EndCalls && len(s.ids) == 0:
		return bad("the answer wants results, and has no calls")
	}
	if err := counts(u); err != nil {
		return err
	}
	return s.emit(turn.Event{End: end, Usage: u})
}

// counts returns what is wrong with a usage, which may be nil.
func counts(u *turn.Usage) error {
	if u == nil {
		return nil
	}
	for _, n := range []int64{u.Input, u.Cached, u.Output, u.Reasoning} {
		if n < 0 || n > maxCount {
			return bad("the usage counts %d tokens", n)
		}
	}
	return nil
}
