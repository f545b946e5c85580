package openai

import (
	"encoding/json"
	"net/http"
	"slices"

	"palyra/agentloop/turn"
)

// embeddings answers POST /v1/embeddings: a run of one step, in the lane of models.
func (x *exchange) embeddings() error {
	q, format, err := x.readEmbeddings()
	if err != nil {
		return err
	}
	ctx := x.r.Context()
	t, err := x.begin(ctx, q)
	if err != nil {
		return err
	}
	e := &embedded{x: x, q: q, t: t, format: format}
	err = x.follow(t.run.ID, e.take)
	if err == nil {
		err = t.get(ctx)
	}
	if err == nil {
		err = e.finish()
	}
	t.end(err)
	return err
}

// The forms of vectors in an answer. The official clients ask for base64 and give their callers
// numbers.
const (
	formatFloat  = "float"
	formatBase64 = "base64"
)

// readEmbeddings reads the request.
func (x *exchange) readEmbeddings() (q *question, format string, err error) {
	f := open("", x.v.Body)
	id := f.must("model")
	e := &turn.Embed{Dimensions: f.count("dimensions")}
	if e.Dimensions > turn.MaxDimensions {
		f.fail("dimensions", "invalid_value", "want at most %d", turn.MaxDimensions)
	}
	if format = f.text("encoding_format"); format == "" {
		format = formatFloat
	}
	if !slices.Contains([]string{formatFloat, formatBase64}, format) {
		f.fail("encoding_format", "unsupported_value", "want float or base64")
	}
	f.text("user")
	switch text := f.raw("input"); {
	case text == nil:
		f.fail("input", "missing_required_parameter", "want a string or a list of strings")
	case text[0] == '"':
		e.Input = []string{f.must("input")}
	default:
		for i, text := range f.list("input") {
			s := ""
			switch {
			case text[0] == '[' || text[0] >= '0' && text[0] <= '9':
				f.fail(in("input", i), "unsupported_value", "want text: numbers of tokens are a model's own")
			case json.Unmarshal(text, &s) != nil:
				f.fail(in("input", i), "invalid_type", "want a string")
			case s == "":
				f.fail(in("input", i), "invalid_value", "it's empty")
			}
			e.Input = append(e.Input, s)
		}
		if n := len(e.Input); n == 0 || n > turn.MaxInputs {
			f.fail("input", "invalid_value", "want 1 to %d texts", turn.MaxInputs)
		}
	}
	if err := f.rest(""); err != nil {
		return nil, "", err
	}
	q = &question{request: turn.Request{Embed: e}}
	q.model, err = find(x.r.Context(), x.v, id)
	return q, format, err
}

// embedded is an answer with vectors while it comes.
type embedded struct {
	x       *exchange
	q       *question
	t       *task
	format  string
	vectors []turn.Vector
	size    int // that the answer takes while it's written
	last    turnEnd
}

// take takes what comes of the run.
func (e *embedded) take(it *item) error {
	e.last.note(it)
	if it.said == nil || it.said.Vector == nil {
		return nil
	}
	e.vectors = append(e.vectors, it.said.Vector)
	each := 4 // its text, twice
	if e.format == formatFloat {
		each = 8
	}
	e.size += each * len(it.said.Vector)
	return e.x.grow(e.size)
}

// finish answers when the run has ended.
func (e *embedded) finish() error {
	_, usage, no := e.t.outcome(e.q.model, &e.last)
	if no != nil {
		return no
	}
	if n := len(e.q.request.Embed.Input); len(e.vectors) != n {
		return failed(&turn.Error{Class: turn.Malformed, Message: "the answer hasn't a vector for each text"})
	}
	data := make([]object, len(e.vectors))
	for i, v := range e.vectors {
		data[i] = object{"object": "embedding", "index": i, "embedding": v} // base64
		if e.format == formatFloat {
			data[i]["embedding"] = v.Numbers()
		}
	}
	return answer(e.x.w, http.StatusOK, object{"object": "list", "data": data, "model": e.q.model.id,
		"usage": object{"prompt_tokens": usage.Input, "total_tokens": usage.Input}, "palyra": e.t.about(e.q.model)})
}
