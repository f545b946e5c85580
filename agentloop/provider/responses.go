package provider

import (
	"encoding/json"
	"strings"

	"palyra/agentloop/turn"
	"palyra/internal/sse"
)

// plainModels are the beginnings of names of models that don't reason, and refuse a request that
// asks for reasoning.
var plainModels = []string{"gpt-3", "gpt-4", "gpt-5-chat", "chatgpt"}

func responsesBody(model string, r *turn.Request) object {
	b := object{"model": model, "stream": true, "store": false}
	reasons := true
	for _, p := range plainModels {
		reasons = reasons && !strings.HasPrefix(model, p)
	}
	if reasons { // without a store it's the only way in which reasoning comes back
		b["include"] = []string{"reasoning.encrypted_content"}
	}
	if r.System != "" {
		b["instructions"] = r.System
	}
	if r.MaxTokens > 0 {
		b["max_output_tokens"] = r.MaxTokens
	}
	if r.CacheKey != "" {
		b["prompt_cache_key"] = r.CacheKey
	}
	reasoning := make(object)
	for name, word := range map[string]string{"effort": r.Effort, "summary": r.Summary} {
		if word != "" {
			reasoning[name] = word
		}
	}
	if len(reasoning) > 0 {
		b["reasoning"] = reasoning
	}
	sampling(b, r)
	choice(b, r, func(name string) object { return object{"type": "function", "name": name} })
	switch {
	case r.Format == nil:
	case r.Format.Schema == nil:
		b["text"] = object{"format": object{"type": "json_object"}}
	default:
		format := schema(r.Format)
		format["type"] = "json_schema"
		b["text"] = object{"format": format}
	}
	if len(r.Tools) > 0 {
		var tools []object
		for _, o := range r.Tools {
			tools = append(tools, tool(object{"type": "function", "name": o.Name, "parameters": o.Schema, "strict": o.Strict}, o))
		}
		b["tools"] = tools
	}
	input := []any{}
	for _, m := range r.Messages {
		kind, role := "input_text", m.Role
		switch m.Role {
		case turn.Assistant:
			kind = "output_text"
		case turn.System:
			role = "developer"
		}
		for _, p := range m.Parts {
			switch {
			case p.Call != nil:
				input = append(input, object{"type": "function_call", "call_id": p.Call.ID, "name": p.Call.Name, "arguments": p.Call.Arguments})
			case p.Result != nil:
				input = append(input, object{"type": "function_call_output", "call_id": p.Result.ID, "output": told(p.Result)})
			case p.Opaque != nil && own(turn.Responses, p.Opaque):
				input = append(input, p.Opaque)
			case p.Text != "":
				input = append(input, object{"type": "message", "role": role, "content": []object{{"type": kind, "text": p.Text}}})
			}
		}
	}
	b["input"] = input
	return b
}

// tool adds a tool's description to o, if it has one.
func tool(o object, of turn.Offer) object {
	if of.Description != "" {
		o["description"] = of.Description
	}
	return o
}

// told is a result's text, for a dialect that has no member for failures.
func told(r *turn.Result) string {
	if r.Failed {
		return "failed: " + r.Text
	}
	return r.Text
}

// responses decodes Responses.
type responses struct {
	*sink
	said    bool // something of the message that isn't done
	refused bool
	usage   *turn.Usage
}

type responsesItem struct {
	Type      string `json:"type"`
	Status    string `json:"status"`
	CallID    string `json:"call_id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"`
	Content   few[struct {
		Text    string `json:"text"`
		Refusal string `json:"refusal"`
	}] `json:"content"`
}

type responsesUsage struct {
	Input  int64 `json:"input_tokens"`
	Output int64 `json:"output_tokens"`
	In     struct {
		Cached int64 `json:"cached_tokens"`
	} `json:"input_tokens_details"`
	Out struct {
		Reasoning int64 `json:"reasoning_tokens"`
	} `json:"output_tokens_details"`
}

func (d *responses) event(ev sse.Event) (done bool, err error) {
	kind, err := kindOf(ev)
	if err != nil {
		return false, err
	}
	switch kind {
	case "response.output_text.delta", "response.refusal.delta":
		var e struct {
			Delta string `json:"delta"`
		}
		if err := read(ev.Data, &e); err != nil {
			return false, err
		}
		d.said = d.said || e.Delta != ""
		d.refused = d.refused || kind == "response.refusal.delta"
		return false, d.say(e.Delta)
	case "response.output_item.done":
		var e struct {
			Item json.RawMessage `json:"item"`
		}
		if err := read(ev.Data, &e); err != nil {
			return false, err
		}
		return false, d.item(e.Item)
	case "response.completed", "response.incomplete", "response.failed":
		return d.last(kind, ev.Data)
	case "error":
		return false, inStream(ev.Data)
	}
	return false, nil
}

func (d *responses) counted() *turn.Usage { return d.usage }

// item takes an item of the answer that is done.
func (d *responses) item(data json.RawMessage) error {
	var of struct {
		Type string `json:"type"`
	}
	if err := read(data, &of); err != nil {
		return err
	}
	if of.Type != "message" && of.Type != "function_call" {
		return d.keep(data)
	}
	var i responsesItem
	if err := read(data, &i); err != nil {
		return err
	}
	if i.Type == "function_call" {
		if i.Status == "incomplete" {
			return nil // max_output_tokens has cut it
		}
		return d.call(&turn.Call{ID: i.CallID, Name: i.Name, Arguments: i.Arguments})
	}
	said := d.said
	d.said = false
	for _, c := range i.Content {
		d.refused = d.refused || c.Refusal != ""
		if !said { // the item came at once
			if err := d.say(c.Text + c.Refusal); err != nil {
				return err
			}
		}
	}
	return nil
}

// last takes the last event.
func (d *responses) last(kind string, data []byte) (bool, error) {
	var e struct {
		Response struct {
			Error      json.RawMessage `json:"error"`
			Usage      *responsesUsage `json:"usage"`
			Incomplete struct {
				Why string `json:"reason"`
			} `json:"incomplete_details"`
		} `json:"response"`
	}
	if err := read(data, &e); err != nil {
		return false, err
	}
	if of := e.Response.Usage; of != nil {
		d.usage = &turn.Usage{Input: of.Input, Cached: of.In.Cached, Output: of.Output, Reasoning: of.Out.Reasoning}
	}
	end, why := turn.EndStop, e.Response.Incomplete.Why
	switch {
	case kind == "response.failed":
		return false, problemOf(e.Response.Error).inStream()
	case kind == "response.incomplete" && why == "max_output_tokens":
		end = turn.EndLength
	case kind == "response.incomplete" && why == "content_filter", d.refused:
		end = turn.EndRefused
	case kind == "response.incomplete":
		return false, bad("the answer ends for a reason that isn't known here, %.80q", why)
	}
	return true, d.end(end, d.usage)
}
