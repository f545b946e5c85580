package provider

import (
	"encoding/json"
	"strings"

	"palyra/agentloop/turn"
	"palyra/internal/sse"
)

func chatBody(model string, r *turn.Request) object {
	b := object{"model": model, "stream": true, "stream_options": object{"include_usage": true}}
	if r.MaxTokens > 0 {
		b["max_completion_tokens"] = r.MaxTokens
	}
	if r.CacheKey != "" {
		b["prompt_cache_key"] = r.CacheKey
	}
	if r.Effort != "" {
		b["reasoning_effort"] = r.Effort
	}
	sampling(b, r)
	choice(b, r, func(name string) object { return object{"type": "function", "function": object{"name": name}} })
	if len(r.Stop) > 0 {
		b["stop"] = r.Stop
	}
	switch {
	case r.Format == nil:
	case r.Format.Schema == nil:
		b["response_format"] = object{"type": "json_object"}
	default:
		b["response_format"] = object{"type": "json_schema", "json_schema": schema(r.Format)}
	}
	if len(r.Tools) > 0 {
		var tools []object
		for _, o := range r.Tools {
			f := tool(object{"name": o.Name, "parameters": o.Schema}, o)
			if o.Strict {
				f["strict"] = true
			}
			tools = append(tools, object{"type": "function", "function": f})
		}
		b["tools"] = tools
	}
	said := []object{}
	if s := systemOf(r); s != "" {
		said = append(said, object{"role": "system", "content": s})
	}
	for _, m := range r.Messages {
		if m.Role == turn.System {
			continue
		}
		var text []string
		var calls []object
		for _, p := range m.Parts {
			switch {
			case p.Text != "":
				text = append(text, p.Text)
			case p.Call != nil:
				calls = append(calls, object{"id": p.Call.ID, "type": "function", "function": object{"name": p.Call.Name, "arguments": p.Call.Arguments}})
			case p.Result != nil: // before the message's text: they answer what is said last
				said = append(said, object{"role": "tool", "tool_call_id": p.Result.ID, "content": told(p.Result)})
			}
		}
		switch {
		case m.Role == turn.User && len(text) > 0:
			said = append(said, object{"role": m.Role, "content": strings.Join(text, "\n\n")})
		case m.Role == turn.Assistant && len(text)+len(calls) > 0:
			o := object{"role": m.Role, "content": nil}
			if len(text) > 0 {
				o["content"] = strings.Join(text, "")
			}
			if len(calls) > 0 {
				o["tool_calls"] = calls
			}
			said = append(said, o)
		}
	}
	b["messages"] = said
	return b
}

// systemOf is all of a request's instructions. The templates of many models refuse a message of the
// role system behind others.
func systemOf(r *turn.Request) string {
	var all []string
	if r.System != "" {
		all = append(all, r.System)
	}
	for _, m := range r.Messages {
		for _, p := range m.Parts {
			if m.Role == turn.System {
				all = append(all, p.Text)
			}
		}
	}
	return strings.Join(all, "\n\n")
}

// chat decodes Chat.
type chat struct {
	*sink
	calls   []*chatCall
	pending int // bytes of arguments
	end     string
	refused bool
	usage   *turn.Usage
}

type chatCall struct {
	index     int64
	id, name  string
	arguments strings.Builder
}

type chatChunk struct {
	Error   json.RawMessage `json:"error"`
	Choices few[struct {
		Index int64 `json:"index"`
		Delta struct {
			Content string         `json:"content"`
			Refusal string         `json:"refusal"`
			Calls   few[chatDelta] `json:"tool_calls"`
		} `json:"delta"`
		Finish string `json:"finish_reason"`
	}] `json:"choices"`
	Usage *struct {
		Input  int64 `json:"prompt_tokens"`
		Output int64 `json:"completion_tokens"`
		In     struct {
			Cached int64 `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
		Out struct {
			Reasoning int64 `json:"reasoning_tokens"`
		} `json:"completion_tokens_details"`
	} `json:"usage"`
}

type chatDelta struct {
	Index    *int64 `json:"index"`
	ID       string `json:"id"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// chatEnds are the reasons to finish.
var chatEnds = map[string]string{"stop": turn.EndStop, "tool_calls": turn.EndCalls, "function_call": turn.EndCalls, "length": turn.EndLength, "content_filter": turn.EndRefused}

func (d *chat) event(ev sse.Event) (done bool, err error) {
	if string(ev.Data) == "[DONE]" {
		return true, d.finish()
	}
	var c chatChunk
	if err := read(ev.Data, &c); err != nil {
		return false, err
	}
	if ev.Kind == "error" || len(c.Error) > 0 && string(c.Error) != "null" {
		return false, inStream(ev.Data)
	}
	if u := c.Usage; u != nil {
		d.usage = &turn.Usage{Input: u.Input, Cached: u.In.Cached, Output: u.Output, Reasoning: u.Out.Reasoning}
	}
	for _, of := range c.Choices {
		if of.Index != 0 {
			return false, bad("there is a second choice, which wasn't asked for")
		}
		text := of.Delta.Content + of.Delta.Refusal
		if d.end != "" && (text != "" || len(of.Delta.Calls) > 0) {
			return false, bad("the answer goes on behind its end")
		}
		d.refused = d.refused || of.Delta.Refusal != ""
		if err := d.say(text); err != nil {
			return false, err
		}
		for _, p := range of.Delta.Calls {
			if err := d.piece(p); err != nil {
				return false, err
			}
		}
		if of.Finish != "" {
			if d.end = chatEnds[of.Finish]; d.end == "" {
				return false, bad("the answer ends for a reason that isn't known here, %.80q", of.Finish)
			}
		}
	}
	return false, nil
}

func (d *chat) counted() *turn.Usage { return d.usage }

// piece adds a piece of a call. Without an index, which some servers leave out, one with an id is
// another call, and one without is the last call's.
func (d *chat) piece(p chatDelta) error {
	var c *chatCall
	for _, of := range d.calls {
		if p.Index != nil && of.index == *p.Index || p.Index == nil && (p.ID == "" || p.ID == of.id) {
			c = of
		}
	}
	if c == nil {
		if len(d.calls) == turn.MaxCalls {
			return bad("there are more than %d calls", turn.MaxCalls)
		}
		c = &chatCall{index: int64(len(d.calls))}
		if p.Index != nil {
			c.index = *p.Index
		}
		d.calls = append(d.calls, c)
	}
	for _, w := range []struct {
		is  *string
		new string
	}{{&c.id, p.ID}, {&c.name, p.Function.Name}} {
		if *w.is != "" && w.new != "" && w.new != *w.is {
			return bad("a call is called %.80q, and then %.80q", *w.is, w.new)
		}
		if w.new != "" {
			*w.is = w.new
		}
	}
	d.pending += len(p.Function.Arguments)
	if err := d.fits(d.pending); err != nil {
		return err
	}
	c.arguments.WriteString(p.Function.Arguments)
	return nil
}

// finish emits the calls, which are whole only if the model came to its end.
func (d *chat) finish() error {
	if d.end == "" {
		return bad("the stream ended before the answer did")
	}
	if d.refused {
		d.end = turn.EndRefused
	}
	if d.end == turn.EndStop || d.end == turn.EndCalls {
		for _, c := range d.calls {
			if err := d.call(&turn.Call{ID: c.id, Name: c.name, Arguments: c.arguments.String()}); err != nil {
				return err
			}
		}
	}
	return d.sink.end(d.end, d.usage)
}
