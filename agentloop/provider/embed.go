package provider

import (
	"encoding/json"
	"errors"
	"io"

	"palyra/agentloop/provider/wordhash"
	"palyra/agentloop/turn"
)

// embedBody is the body of POST {url}/embeddings, which both of OpenAI's dialects have. Vectors
// come as lists of numbers, which is the default, and all that some servers have.
func embedBody(model string, e *turn.Embed) object {
	b := object{"model": model, "input": e.Input}
	if e.Dimensions > 0 {
		b["dimensions"] = e.Dimensions
	}
	return b
}

// maxElement bounds what an answer with vectors has between two of them, in bytes: one of 4,096
// numbers takes some 100 KiB.
const maxElement = 256 << 10

// meter reads what an answer may have: left bytes in all, and each until it's reset.
type meter struct {
	r          io.Reader
	each, left int
	err        error // of r, if not io.EOF
}

func (m *meter) Read(p []byte) (int, error) {
	switch {
	case m.left == 0:
		return 0, bad("the answer has more than %d bytes", MaxStream)
	case m.each == 0:
		return 0, bad("a part of the answer has more than %d bytes", maxElement)
	}
	n, err := m.r.Read(p[:min(len(p), m.each, m.left)])
	m.each, m.left = m.each-n, m.left-n
	if err != nil && err != io.EOF {
		m.err = err
	}
	return n, err
}

// vectors reads an answer with vectors.
type vectors struct {
	body *meter
	json *json.Decoder
	want *turn.Embed
	got  []turn.Vector // nil ones didn't come yet
	n    int           // that came
	dims int           // of those; 0 before the first
}

// DecodeVectors reads the body of an answer to e: {"data": [{"embedding": […], "index": 0}, …]}.
// It emits all of it when it's whole, and nothing of another. Errors are those of Decode.
func DecodeVectors(body io.Reader, e *turn.Embed, emit func(turn.Event) error) error {
	m := &meter{r: body, left: MaxStream}
	v := &vectors{body: m, json: json.NewDecoder(m), want: e, got: make([]turn.Vector, len(e.Input))}
	usage, err := v.read()
	switch {
	case m.err != nil:
		return m.err
	case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
		return bad("the body ended before the answer did")
	case err != nil:
		return err
	case v.n != len(v.got):
		return bad("there are %d vectors of %d texts", v.n, len(v.got))
	}
	if err := room(len(v.got), v.dims); err != nil {
		return err
	}
	if err := counts(usage); err != nil {
		return err
	}
	for _, of := range v.got {
		if err := emit(turn.Event{Vector: of}); err != nil {
			return err
		}
	}
	return emit(turn.Event{End: turn.EndStop, Usage: usage})
}

// room returns why an answer can't have n vectors.
func room(n, dims int) error {
	const line, end = len(`{"vector":""}` + "\n"), 1 << 10
	if n*((4*dims+2)/3*4+line)+end > turn.MaxAnswer {
		e := bad("%d vectors of %d numbers are more than an answer has room for: ask about fewer texts at a time, or for fewer dimensions", n, dims)
		e.Class = turn.ContextWindow
		return e
	}
	return nil
}

// next allows for one more part of the answer.
func (v *vectors) next() *json.Decoder {
	v.body.each = maxElement
	return v.json
}

// delim reads a delimiter.
func (v *vectors) delim(want json.Delim) error {
	t, err := v.next().Token()
	if err != nil {
		return wrong(err)
	}
	if t != want {
		return bad("the answer isn't as documented: %.80v stands where %s ought to", t, want)
	}
	return nil
}

// wrong is the error of a part that can't be read.
func wrong(err error) error {
	if e, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return bad("the answer isn't as documented: its member %.80q is of the type %s", e.Field, e.Value)
	}
	if e, ok := errors.AsType[*json.SyntaxError](err); ok {
		return bad("the answer isn't JSON: %v", e)
	}
	return err
}

func (v *vectors) read() (usage *turn.Usage, err error) {
	if err := v.delim('{'); err != nil {
		return nil, err
	}
	for v.next().More() {
		key, err := v.next().Token()
		if err != nil {
			return nil, wrong(err)
		}
		switch key {
		case "data":
			if err := v.data(); err != nil {
				return nil, err
			}
		case "usage":
			var u *struct {
				Input int64 `json:"prompt_tokens"`
			}
			if err := v.next().Decode(&u); err != nil {
				return nil, wrong(err)
			}
			if u != nil {
				usage = &turn.Usage{Input: u.Input}
			}
		default:
			var other json.RawMessage
			if err := v.next().Decode(&other); err != nil {
				return nil, wrong(err)
			}
			if key == "error" && string(other) != "null" {
				return nil, inStream([]byte(`{"error":` + string(other) + `}`))
			}
		}
	}
	if err := v.delim('}'); err != nil {
		return nil, err
	}
	if _, err := v.next().Token(); err != io.EOF {
		if err == nil || v.body.err == nil {
			err = bad("the answer goes on behind its end")
		}
		return nil, err
	}
	return usage, nil
}

// data reads the list of vectors.
func (v *vectors) data() error {
	if err := v.delim('['); err != nil {
		return err
	}
	for v.next().More() {
		var of struct {
			Index   *int       `json:"index"` // nil: they come in order
			Numbers []*float32 `json:"embedding"`
		}
		if err := v.next().Decode(&of); err != nil {
			return wrong(err)
		}
		at := v.n
		if of.Index != nil {
			at = *of.Index
		}
		if at < 0 || at >= len(v.got) || v.got[at] != nil {
			return bad("a vector of text %d, and %d were asked about, each once", at, len(v.got))
		}
		numbers := make([]float32, len(of.Numbers))
		for i, x := range of.Numbers {
			if x == nil {
				return bad("a vector has null in it")
			}
			numbers[i] = *x
		}
		switch n := len(numbers); {
		case n == 0 || n > turn.MaxDimensions:
			return bad("a vector of %d numbers, want 1 to %d", n, turn.MaxDimensions)
		case v.want.Dimensions > 0 && int64(n) != v.want.Dimensions:
			return bad("a vector of %d numbers, and %d were asked for", n, v.want.Dimensions)
		case v.dims > 0 && n != v.dims:
			return bad("a vector of %d numbers beside one of %d", n, v.dims)
		}
		v.got[at], v.n, v.dims = turn.NewVector(numbers), v.n+1, len(numbers)
	}
	return v.delim(']')
}

// Hash gives the scripted provider's vectors to emit: those of package wordhash.
func Hash(e *turn.Embed, emit func(turn.Event) error) error {
	dims, usage := int(e.Dimensions), new(turn.Usage)
	if dims == 0 {
		dims = wordhash.Dimensions
	}
	if err := room(len(e.Input), dims); err != nil {
		return err
	}
	for _, text := range e.Input {
		words := wordhash.Words(text)
		usage.Input += int64(len(words))
		numbers := make([]float32, dims)
		for i, x := range wordhash.Vector(words, dims) {
			numbers[i] = float32(x)
		}
		if err := emit(turn.Event{Vector: turn.NewVector(numbers)}); err != nil {
			return err
		}
	}
	return emit(turn.Event{End: turn.EndStop, Usage: usage})
}
