// Package turn is one question to a language model, and the answer, in one form for all providers.
// A [Request] is the standard input of the tool model.turn, an answer its standard output: a line
// of JSON for each [Event]. A question for the vectors of texts is one, too ([Embed]).
//
//	b, err := req.Encode()               // canonical: its digest names what is asked
//	answer, err := turn.ReadAnswer(out)  // of the whole output
//
// # Contract
//
// An answer is text, calls of tools and items of the provider's own, in the order in which the
// model made them, and ends with one event that has End or Error. One without is cut off: ErrCut.
//
// # What it does not protect against
//
// An answer is the provider's word: its calls are proposals, and decided as any.
package turn

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Tool is the name of the tool that asks a model once.
const Tool = "model.turn"

// The bounds of a turn, in bytes.
const (
	MaxRequest   = 4 << 20
	MaxText      = 64 << 10  // of an answer's text
	MaxArguments = 512 << 10 // of all of an answer's calls
	MaxOpaque    = 1 << 20   // of the provider's own items
	MaxAnswer    = 8 << 20   // of all events as lines
	MaxCalls     = 64        // of an answer
)

// The dialects that models are spoken to in.
const (
	Responses = "openai"      // POST {url}/responses
	Chat      = "openai_chat" // POST {url}/chat/completions
	Messages  = "anthropic"   // POST {url}/messages, anthropic-version 2023-06-01
	Scripted  = "scripted"    // no provider: Request.Script says what it answers
)

// Request is a question.
type Request struct {
	System    string    `json:"system,omitempty"`
	Messages  []Message `json:"messages,omitempty"` // at least one; the last but System's is a user's or has results
	Tools     []Offer   `json:"tools,omitempty"`
	MaxTokens int64     `json:"max_tokens,omitempty"` // of the answer; 0: the provider's default, 8192 where it has none
	// CacheKey is what a provider may use to find a prompt that begins in the same way.
	CacheKey string `json:"cache_key,omitempty"`
	// How the answer is made. Fits says which dialect has which.
	Temperature *float64 `json:"temperature,omitempty"` // 0 to 2
	TopP        *float64 `json:"top_p,omitempty"`       // 0 to 1
	Stop        []string `json:"stop,omitempty"`        // texts before which it ends
	Choice      string   `json:"choice,omitempty"`      // of tools: "" as the model likes, or ChoiceNone, ChoiceAny, ChoiceTool and a name
	OneCall     bool     `json:"one_call,omitempty"`    // it has one call at most
	Format      *Format  `json:"format,omitempty"`      // its text is JSON
	// Effort is how much it reasons, in a word of the provider's: 1 to 16 of a-z. "": its default.
	Effort string `json:"effort,omitempty"`
	// Summary is how much it tells of that, likewise. "": nothing. It comes in opaque items.
	Summary  string    `json:"summary,omitempty"`
	Thinking *Thinking `json:"thinking,omitempty"` // nil: as it does untold
	// Script is what the scripted provider answers; see Script. Others have none.
	Script json.RawMessage `json:"script,omitempty"`
	// Embed asks for vectors. A request that has it has nothing else.
	Embed *Embed `json:"embed,omitempty"`
}

// The choices of tools.
const (
	ChoiceNone = "none"  // call none
	ChoiceAny  = "any"   // call one at least
	ChoiceTool = "tool/" // and a tool's name: call this one
)

// Thinking has a model of Messages think before it answers. Its thoughts come as opaque items.
type Thinking struct {
	Budget  int64  `json:"budget,omitempty"`  // most tokens of it; 0: the model chooses ("adaptive")
	Display string `json:"display,omitempty"` // how much of it comes, in a word that the provider knows; "": its default
}

// Format is what an answer's text is: an object of JSON.
type Format struct {
	Name        string          `json:"name,omitempty"`
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema,omitempty"` // JSON Schema of the object; nil: any
	Strict      bool            `json:"strict,omitempty"` // the provider makes sure that it follows the schema
}

// maxStop is how many texts an answer may end at.
const maxStop = 16

// The roles of messages.
const (
	User      = "user"      // text and results
	Assistant = "assistant" // text, calls and opaque items
	System    = "system"    // text: instructions that count from there on
)

// Message is one of a conversation.
type Message struct {
	Role  string `json:"role"`
	Parts []Part `json:"parts"`
}

// Part is a part of a message. Exactly one member is set.
type Part struct {
	Text   string  `json:"text,omitempty"`
	Call   *Call   `json:"call,omitempty"`
	Result *Result `json:"result,omitempty"`
	// Opaque is an item of the provider's own, such as reasoning, which wants it back as it came.
	Opaque json.RawMessage `json:"opaque,omitempty"`
}

// Call is a call of a tool that a model proposes.
type Call struct {
	ID        string `json:"id"`        // the provider's
	Name      string `json:"name"`      // as offered
	Arguments string `json:"arguments"` // as the model wrote them: JSON, if it did well
}

// Result is what became of a call.
type Result struct {
	ID     string `json:"id"` // of the Call
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`
}

// Offer is a tool that a model may call.
type Offer struct {
	Name        string          `json:"name"`                // 1 to 64 of a-z A-Z 0-9 _ -
	Namespace   string          `json:"namespace,omitempty"` // the caller's word for what Name has before "__"
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"` // JSON Schema of an object
	// Strict has the provider make sure that arguments follow the schema.
	Strict bool `json:"strict,omitempty"`
}

// The ends of answers.
const (
	EndStop    = "stop"    // the model has said what it had to
	EndCalls   = "calls"   // it wants results
	EndLength  = "length"  // max_tokens, or the window, came to an end
	EndRefused = "refused" // the provider's rules for content
)

// Event is a piece of an answer. Exactly one member is set, but Usage may stand beside End, and
// beside Error: what the provider had counted by then.
type Event struct {
	Text   string          `json:"text,omitempty"` // the next piece of it
	Call   *Call           `json:"call,omitempty"` // whole
	Opaque json.RawMessage `json:"opaque,omitempty"`
	Vector Vector          `json:"vector,omitempty"` // of the next text of an Embed
	End    string          `json:"end,omitempty"`    // the last event
	Usage  *Usage          `json:"usage,omitempty"`
	Error  *Error          `json:"error,omitempty"` // the last event
}

// Usage is what a turn took, in tokens, as the provider counts them.
type Usage struct {
	Input     int64 `json:"input"`               // all of it, cached too
	Cached    int64 `json:"cached,omitempty"`    // of Input: read from the provider's cache
	Output    int64 `json:"output"`              // all of it, reasoning too
	Reasoning int64 `json:"reasoning,omitempty"` // of Output
}

// The classes of failures.
const (
	AuthInvalid    = "auth_invalid"
	Denied         = "permission_denied"
	RateLimited    = "rate_limited"
	Quota          = "quota_exceeded"
	ContextWindow  = "context_window_exceeded"
	ContentBlocked = "content_policy_blocked"
	Malformed      = "malformed_response"
	Unreachable    = "network_unavailable"
	TimedOut       = "provider_timeout"
	Transient      = "transient_upstream" // 5xx
	Permanent      = "permanent_upstream" // another 4xx
)

// Error is why there is no answer.
type Error struct {
	Class   string `json:"class"`
	Status  int    `json:"status,omitempty"` // of HTTP
	Message string `json:"message"`          // one line, bounded; the provider's word
	// RetryAfter is how long the provider wants to be left alone, in milliseconds; 0: it doesn't say.
	RetryAfter int64 `json:"retry_after_ms,omitempty"`
}

// Error implements error.
func (e *Error) Error() string { return e.Class + ": " + e.Message }

// Again reports whether the same question may be answered later.
func (e *Error) Again() bool {
	switch e.Class {
	case RateLimited, Unreachable, TimedOut, Transient, Malformed:
		return true
	}
	return false
}

// Encode returns the request as canonical JSON.
func (r *Request) Encode() ([]byte, error) {
	b, err := canon.Marshal(r)
	if err == nil && len(b) > MaxRequest {
		err = fault.New(fault.Usage, "too_large", "ask model", fmt.Errorf("the request has %d bytes, the limit is %d", len(b), MaxRequest))
	}
	return b, err
}

// ParseRequest reads a request, of Encode or of a caller.
func ParseRequest(b []byte) (*Request, error) {
	var r Request
	if err := canon.Decode(b, &r, canon.Limits{Bytes: MaxRequest, Depth: 64}); err != nil {
		return nil, err
	}
	return &r, r.check()
}

func (r *Request) check() error {
	bad := func(format string, a ...any) error {
		return fault.New(fault.Usage, "invalid_input", "read request to model", fmt.Errorf(format, a...))
	}
	if r.Embed != nil {
		return r.checkEmbed()
	}
	if len(r.Messages) == 0 {
		return bad("there is no message")
	}
	switch {
	case r.Temperature != nil && (*r.Temperature < 0 || *r.Temperature > 2):
		return bad("temperature isn't between 0 and 2")
	case r.TopP != nil && (*r.TopP < 0 || *r.TopP > 1):
		return bad("top_p isn't between 0 and 1")
	case len(r.Stop) > maxStop || slices.Contains(r.Stop, ""):
		return bad("stop has more than %d texts, or an empty one", maxStop)
	case r.Effort != "" && !isWord(r.Effort) || r.Summary != "" && !isWord(r.Summary) || r.Thinking != nil && r.Thinking.Display != "" && !isWord(r.Thinking.Display):
		return bad("effort, summary, and display of thinking, have 1 to 16 of a-z")
	case r.Thinking != nil && r.Thinking.Budget < 0:
		return bad("the budget of thinking is less than 0")
	case r.Format != nil && r.Format.Schema != nil && r.Format.Schema[0] != '{':
		return bad("format: the schema isn't an object")
	}
	name, one := strings.CutPrefix(r.Choice, ChoiceTool)
	switch {
	case r.Choice == "", r.Choice == ChoiceNone:
	case r.Choice == ChoiceAny && len(r.Tools) > 0:
	case one && slices.ContainsFunc(r.Tools, func(o Offer) bool { return o.Name == name }):
	default:
		return bad("choice is %.80q: want none, any or tool/ and the name of a tool that is offered", r.Choice)
	}
	for i, m := range r.Messages {
		if m.Role != User && m.Role != Assistant && m.Role != System || len(m.Parts) == 0 {
			return bad("message %d: want the role user, assistant or system, and a part", i)
		}
		for j, p := range m.Parts {
			of := m.Role
			n := 0
			for _, is := range []struct {
				set  bool
				role string
			}{{p.Text != "", m.Role}, {p.Call != nil, Assistant}, {p.Result != nil, User}, {p.Opaque != nil, Assistant}} {
				if is.set {
					n, of = n+1, is.role
				}
			}
			if n != 1 || of != m.Role {
				return bad("message %d, part %d: want one member, of those that the role has", i, j)
			}
		}
	}
	return nil
}

// isWord reports whether s is a word of a provider's: 1 to 16 of a-z.
func isWord(s string) bool {
	return s != "" && len(s) <= 16 && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz") == ""
}

// Fits returns why a dialect can't ask this, nil if it can.
func (r *Request) Fits(dialect string) error {
	for _, no := range []struct {
		is      bool
		dialect string
		member  string
	}{{len(r.Stop) > 0, Responses, "stop"}, {r.Format != nil && r.Format.Schema == nil, Messages, "a format without a schema"},
		{r.Format != nil && r.Format.Description != "", Messages, "a format's description"}, {r.Embed != nil, Messages, "embed"},
		{r.Summary != "", Messages, "a summary of reasoning"}, {r.Summary != "", Chat, "a summary of reasoning"},
		{r.Thinking != nil, Responses, "thinking"}, {r.Thinking != nil, Chat, "thinking"}} {
		if no.is && no.dialect == dialect {
			return fault.New(fault.Usage, "invalid_input", "ask model", fmt.Errorf("%s: models of the provider %q have none", no.member, dialect))
		}
	}
	return nil
}

// Answer is a model's answer.
type Answer struct {
	Message Message  // the assistant's; without parts if the model said nothing
	Vectors []Vector // of an Embed; then there are no parts
	End     string
	Usage   Usage
	Error   *Error // nil: there is none, and End says how it ended
}

// Text returns what the model said, without its calls.
func (a *Answer) Text() string {
	var b bytes.Buffer
	for _, p := range a.Message.Parts {
		b.WriteString(p.Text)
	}
	return b.String()
}

// Calls returns the calls of the answer, in order.
func (a *Answer) Calls() (out []*Call) {
	for i := range a.Message.Parts {
		if c := a.Message.Parts[i].Call; c != nil {
			out = append(out, c)
		}
	}
	return out
}

// ErrCut is the error of output without a last event.
var ErrCut = errors.New("the answer isn't whole")

// ReadAnswer reads the output of model.turn. With an error it returns what came before.
func ReadAnswer(r io.Reader) (Answer, error) {
	a := Answer{Message: Message{Role: Assistant}}
	bad := func(err error) (Answer, error) {
		return a, fault.New(fault.Integrity, "bad_answer", "read answer of model", err)
	}
	lines := bufio.NewScanner(io.LimitReader(r, MaxAnswer))
	lines.Buffer(nil, MaxAnswer)
	text, arguments, opaque := 0, 0, 0
	for lines.Scan() {
		if a.End != "" || a.Error != nil {
			return bad(errors.New("it goes on behind its end"))
		}
		var ev Event
		if err := canon.Decode(lines.Bytes(), &ev, canon.Limits{Bytes: MaxAnswer, Depth: 64}); err != nil {
			return bad(err)
		}
		n := 0
		for _, set := range []bool{ev.Text != "", ev.Call != nil, ev.Opaque != nil, ev.Vector != nil, ev.End != "", ev.Error != nil} {
			if set {
				n++
			}
		}
		if n != 1 || ev.Usage != nil && ev.End == "" && ev.Error == nil {
			return bad(fmt.Errorf("an event of %d kinds", n))
		}
		if ev.Vector != nil && len(a.Message.Parts) > 0 || len(a.Vectors) > 0 && (ev.Text != "" || ev.Call != nil || ev.Opaque != nil) {
			return bad(errors.New("it has vectors and something else"))
		}
		switch {
		case ev.Vector != nil:
			n := 0
			if len(a.Vectors) > 0 {
				n = len(a.Vectors[0])
			}
			if err := ev.Vector.check(n); err != nil {
				return bad(err)
			}
			if len(a.Vectors) == MaxInputs {
				return bad(fmt.Errorf("more than %d vectors", MaxInputs))
			}
			a.Vectors = append(a.Vectors, ev.Vector)
		case ev.Text != "":
			if text += len(ev.Text); text > MaxText {
				return bad(fmt.Errorf("more than %d bytes of text", MaxText))
			}
			if n := len(a.Message.Parts); n > 0 && a.Message.Parts[n-1].Text != "" {
				a.Message.Parts[n-1].Text += ev.Text
				continue
			}
			a.Message.Parts = append(a.Message.Parts, Part{Text: ev.Text})
		case ev.Call != nil:
			if arguments += len(ev.Call.Arguments); arguments > MaxArguments || len(a.Calls()) == MaxCalls {
				return bad(fmt.Errorf("more than %d calls, or %d bytes of arguments", MaxCalls, MaxArguments))
			}
			a.Message.Parts = append(a.Message.Parts, Part{Call: ev.Call})
		case ev.Opaque != nil:
			if opaque += len(ev.Opaque); opaque > MaxOpaque {
				return bad(fmt.Errorf("more than %d bytes of the provider's items", MaxOpaque))
			}
			a.Message.Parts = append(a.Message.Parts, Part{Opaque: ev.Opaque})
		case ev.Error != nil:
			a.Error = ev.Error
		default:
			a.End = ev.End
		}
		if ev.Usage != nil {
			a.Usage = *ev.Usage
		}
	}
	if err := lines.Err(); err != nil {
		return bad(err)
	}
	if a.End == "" && a.Error == nil {
		return bad(ErrCut)
	}
	return a, nil
}

// Writer writes events as lines. Pieces of text are lines of their own, so that a reader has them
// as they come.
type Writer struct{ W io.Writer }

// Write writes an event.
func (w Writer) Write(ev Event) error {
	b, err := canon.Marshal(ev)
	if err != nil {
		return err
	}
	_, err = w.W.Write(append(b, '\n'))
	return err
}

// Script is a scripted provider's answers: it has as many as a run has turns. The turn of a request
// is the number of its assistant messages.
type Script struct {
	Turns []ScriptTurn `json:"turns"`
}

// ScriptTurn is one answer of a script.
type ScriptTurn struct {
	Text  string       `json:"text,omitempty"`
	Calls []ScriptCall `json:"calls,omitempty"`
	Error *Error       `json:"error,omitempty"` // instead of an answer
	End   string       `json:"end,omitempty"`   // "": calls if it has some, else stop
	Usage *Usage       `json:"usage,omitempty"` // what it says that it took
}

// ScriptCall is a call of a script. "{{last}}" in a string of the input is the text of the last
// result.
type ScriptCall struct {
	Name  string          `json:"name"`
	Input json.RawMessage `json:"input"`
}
