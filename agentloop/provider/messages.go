package provider

import (
	"encoding/json"
	"strings"

	"palyra/agentloop/turn"
	"palyra/internal/canon"
	"palyra/internal/sse"
)

func messagesBody(model string, r *turn.Request) object {
	b := object{"model": model, "stream": true, "max_tokens": int64(defaultTokens)}
	if r.MaxTokens > 0 {
		b["max_tokens"] = r.MaxTokens
	}
	sampling(b, r)
	config := object{}
	if r.Effort != "" {
		config["effort"] = r.Effort
	}
	if r.Format != nil {
		config["format"] = object{"type": "json_schema", "schema": r.Format.Schema}
	}
	if len(config) > 0 {
		b["output_config"] = config
	}
	if t := r.Thinking; t != nil {
		o := object{"type": "adaptive"}
		if t.Budget > 0 {
			o = object{"type": "enabled", "budget_tokens": t.Budget}
		}
		if t.Display != "" {
			o["display"] = t.Display
		}
		b["thinking"] = o
	}
	if len(r.Stop) > 0 {
		b["stop_sequences"] = r.Stop
	}
	if choice := messagesChoice(r); choice != nil {
		b["tool_choice"] = choice
	}
	// A mark says that the prompt up to there may be cached.
	mark := func(o object) {
		if r.CacheKey != "" {
			o["cache_control"] = object{"type": "ephemeral"}
		}
	}
	if r.System != "" {
		text := object{"type": "text", "text": r.System}
		mark(text)
		b["system"] = []object{text}
	}
	if len(r.Tools) > 0 {
		var tools []object
		for _, o := range r.Tools {
			t := tool(object{"name": o.Name, "input_schema": o.Schema}, o)
			if o.Strict {
				t["strict"] = true
			}
			tools = append(tools, t)
		}
		mark(tools[len(tools)-1])
		b["tools"] = tools
	}
	type message struct {
		role           string
		results, parts []any // results have to come first
	}
	var all []*message
	for _, m := range r.Messages {
		if n := len(all); n == 0 || all[n-1].role != m.Role {
			all = append(all, &message{role: m.Role})
		}
		of := all[len(all)-1]
		for _, p := range m.Parts {
			switch {
			case strings.TrimSpace(p.Text) != "": // the provider refuses one of white space alone
				of.parts = append(of.parts, object{"type": "text", "text": p.Text})
			case p.Call != nil:
				of.parts = append(of.parts, object{"type": "tool_use", "id": p.Call.ID, "name": p.Call.Name, "input": inputOf(p.Call.Arguments)})
			case p.Result != nil:
				o := object{"type": "tool_result", "tool_use_id": p.Result.ID, "content": p.Result.Text}
				if p.Result.Failed {
					o["is_error"] = true
				}
				of.results = append(of.results, o)
			case p.Opaque != nil && own(turn.Messages, p.Opaque):
				of.parts = append(of.parts, p.Opaque)
			}
		}
	}
	said, marked := []object{}, object{}
	for _, m := range all {
		if m.parts = append(m.results, m.parts...); len(m.parts) > 0 {
			said = append(said, object{"role": m.role, "content": m.parts})
			if last, ok := m.parts[len(m.parts)-1].(object); ok && m.role == turn.User {
				marked = last
			}
		}
	}
	mark(marked)
	b["messages"] = said
	return b
}

// messagesChoice says which tools are called, nil for as the model likes.
func messagesChoice(r *turn.Request) object {
	if len(r.Tools) == 0 {
		return nil
	}
	o := object{"type": "auto"}
	switch name, is := strings.CutPrefix(r.Choice, turn.ChoiceTool); {
	case is:
		o = object{"type": "tool", "name": name}
	case r.Choice == turn.ChoiceNone:
		return object{"type": "none"}
	case r.Choice != "":
		o["type"] = r.Choice
	case !r.OneCall:
		return nil
	}
	if r.OneCall {
		o["disable_parallel_tool_use"] = true
	}
	return o
}

// inputOf is a call's arguments as the object that Messages wants. Other text is put into one,
// in the form that the provider documents for it.
func inputOf(arguments string) any {
	if strings.TrimSpace(arguments) == "" {
		return object{}
	}
	if b, err := canon.Canonical([]byte(arguments)); err == nil && b[0] == '{' {
		return json.RawMessage(b)
	}
	return object{"INVALID_JSON": arguments}
}

// messages decodes Messages.
type messages struct {
	*sink
	open  *block
	held  *turn.Call // whole if the model went on behind it, or came to its end
	end   string
	usage bool // something is counted
	// What the provider counts as input is neither read from the cache nor written to it.
	input, written, cached, output int64
}

// block is a block of the answer that isn't done.
type block struct {
	index           int64
	kind            string
	text, signature strings.Builder // a thinking block's, or in text a call's arguments
	id, name        string
	input           json.RawMessage // a call's, where it comes at once
}

type messagesUsage struct {
	Input   *int64 `json:"input_tokens"`
	Written *int64 `json:"cache_creation_input_tokens"`
	Cached  *int64 `json:"cache_read_input_tokens"`
	Output  *int64 `json:"output_tokens"`
}

// messagesEnds are the reasons to stop.
var messagesEnds = map[string]string{"end_turn": turn.EndStop, "stop_sequence": turn.EndStop, "tool_use": turn.EndCalls,
	"max_tokens": turn.EndLength, "model_context_window_exceeded": turn.EndLength, "refusal": turn.EndRefused}

func (d *messages) event(ev sse.Event) (done bool, err error) {
	kind, err := kindOf(ev)
	if err != nil {
		return false, err
	}
	switch kind {
	case "message_start":
		var e struct {
			Message struct {
				Usage messagesUsage `json:"usage"`
			} `json:"message"`
		}
		if err := read(ev.Data, &e); err != nil {
			return false, err
		}
		d.count(e.Message.Usage)
	case "content_block_start":
		return false, d.start(ev.Data)
	case "content_block_delta":
		return false, d.delta(ev.Data)
	case "content_block_stop":
		return false, d.stop(ev.Data)
	case "message_delta":
		var e struct {
			Delta struct {
				Reason string `json:"stop_reason"`
			} `json:"delta"`
			Usage messagesUsage `json:"usage"`
		}
		if err := read(ev.Data, &e); err != nil {
			return false, err
		}
		d.count(e.Usage)
		if r := e.Delta.Reason; r != "" {
			if d.end = messagesEnds[r]; d.end == "" {
				return false, bad("the answer ends for a reason that isn't known here, %.80q", r)
			}
		}
	case "message_stop":
		return d.finish()
	case "error":
		return false, inStream(ev.Data)
	}
	return false, nil
}

// count takes what is counted so far. Each number is that of the whole answer.
func (d *messages) count(u messagesUsage) {
	for _, of := range []struct {
		to   *int64
		from *int64
	}{{&d.input, u.Input}, {&d.written, u.Written}, {&d.cached, u.Cached}, {&d.output, u.Output}} {
		if of.from != nil {
			*of.to, d.usage = *of.from, true
		}
	}
}

// start opens a block.
func (d *messages) start(data []byte) error {
	var e struct {
		Index int64           `json:"index"`
		Block json.RawMessage `json:"content_block"`
	}
	if err := read(data, &e); err != nil {
		return err
	}
	var kind struct {
		Type string `json:"type"`
	}
	if err := read(e.Block, &kind); err != nil {
		return err
	}
	var of struct {
		Text      string          `json:"text"`
		Thinking  string          `json:"thinking"`
		Signature string          `json:"signature"`
		ID        string          `json:"id"`
		Name      string          `json:"name"`
		Input     json.RawMessage `json:"input"`
	}
	switch {
	case d.open != nil:
		return bad("block %d begins before block %d is done", e.Index, d.open.index)
	case d.end != "":
		return bad("the answer goes on behind its end")
	}
	if err := d.whole(); err != nil {
		return err
	}
	d.open = &block{index: e.Index, kind: kind.Type}
	switch kind.Type {
	case "text", "thinking", "tool_use":
		if err := read(e.Block, &of); err != nil {
			return err
		}
		d.open.id, d.open.name, d.open.input = of.ID, of.Name, of.Input
		if kind.Type == "text" {
			return d.say(of.Text)
		}
		d.open.signature.WriteString(of.Signature)
		return d.add(of.Thinking, turn.MaxOpaque)
	case "redacted_thinking":
		return d.keep(e.Block)
	}
	return nil
}

// add adds to the open block, which keeps at most most bytes.
func (d *messages) add(text string, most int) error {
	if d.open.text.Len()+len(text) > most {
		return bad("a block of the kind %.80q has more than %d bytes", d.open.kind, most)
	}
	d.open.text.WriteString(text)
	return nil
}

// delta takes a piece of the open block.
func (d *messages) delta(data []byte) error {
	var e struct {
		Index int64           `json:"index"`
		Delta json.RawMessage `json:"delta"`
	}
	if err := read(data, &e); err != nil {
		return err
	}
	if d.open == nil || e.Index != d.open.index {
		return bad("there is a piece of block %d, which isn't open", e.Index)
	}
	var of struct {
		Type string `json:"type"`
	}
	if err := read(e.Delta, &of); err != nil {
		return err
	}
	var p struct {
		Text      string `json:"text"`
		Thinking  string `json:"thinking"`
		Signature string `json:"signature"`
		JSON      string `json:"partial_json"`
	}
	switch of.Type + " " + d.open.kind {
	case "text_delta text", "thinking_delta thinking", "signature_delta thinking", "input_json_delta tool_use":
		if err := read(e.Delta, &p); err != nil {
			return err
		}
	}
	switch of.Type + " " + d.open.kind {
	case "text_delta text":
		return d.say(p.Text)
	case "thinking_delta thinking":
		return d.add(p.Thinking, turn.MaxOpaque)
	case "signature_delta thinking":
		if d.open.signature.Len()+len(p.Signature) > turn.MaxOpaque {
			return bad("a signature has more than %d bytes", turn.MaxOpaque)
		}
		d.open.signature.WriteString(p.Signature)
	case "input_json_delta tool_use":
		return d.add(p.JSON, turn.MaxArguments)
	}
	return nil
}

// stop closes the open block.
func (d *messages) stop(data []byte) error {
	var e struct {
		Index int64 `json:"index"`
	}
	if err := read(data, &e); err != nil {
		return err
	}
	b := d.open
	if b == nil || e.Index != b.index {
		return bad("block %d ends, which isn't open", e.Index)
	}
	d.open = nil
	switch b.kind {
	case "thinking":
		if b.signature.Len() == 0 {
			return nil // it was cut, and the provider wants none without
		}
		item, err := json.Marshal(object{"type": b.kind, "thinking": b.text.String(), "signature": b.signature.String()})
		if err != nil {
			return err
		}
		return d.keep(item)
	case "tool_use":
		d.held = &turn.Call{ID: b.id, Name: b.name, Arguments: b.text.String()}
		if d.held.Arguments == "" { // without parameters no piece comes; it may also be there at once
			d.held.Arguments = "{}"
			if len(b.input) > 0 {
				d.held.Arguments = string(b.input)
			}
		}
	}
	return nil
}

// whole emits the call that is known to be whole now.
func (d *messages) whole() error {
	c := d.held
	if d.held = nil; c == nil {
		return nil
	}
	return d.call(c)
}

// finish takes the last event.
func (d *messages) finish() (bool, error) {
	switch {
	case d.open != nil:
		return false, bad("the answer ends before block %d does", d.open.index)
	case d.end == "":
		return false, bad("the answer ends without a reason")
	case d.end == turn.EndStop || d.end == turn.EndCalls:
		if err := d.whole(); err != nil {
			return false, err
		}
	}
	return true, d.sink.end(d.end, d.counted())
}

// counted adds up what is counted so far. A number that can't be one stands for the sum.
func (d *messages) counted() *turn.Usage {
	if !d.usage {
		return nil
	}
	for _, n := range []int64{d.input, d.written, d.cached} {
		if n < 0 || n > maxCount {
			return &turn.Usage{Input: n}
		}
	}
	return &turn.Usage{Input: d.input + d.written + d.cached, Cached: d.cached, Output: d.output}
}
