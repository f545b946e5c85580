package openai

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/canon"
)

// errWaits ends following a run that waits for a person: it's resumed.
var errWaits = errors.New("the run waits for a person")

// The types of items that are palyrad's own.
const (
	itemApproval = "palyra:approval_request"
	itemCall     = "palyra:tool_call"
)

// reply is a response while it comes, of either lane.
type reply struct {
	x      *exchange
	t      *task
	model  *model
	echo   object
	stream *stream // nil: the response comes whole
	// stoppable: where a person is asked from since on, the response is incomplete until it's resumed.
	stoppable bool
	since     time.Time

	from int // the number of the first event that is sent

	output []object
	seq    int
	size   int
	status string
	why    string // of a response that is incomplete
	failed *flaw
	usage  turn.Usage
	last   turnEnd

	message object          // the open one; nil: there is none
	text    strings.Builder // of it
	calls   map[int]int     // places in output of palyrad's own calls, by step
	asks    map[string]int  // and of requests for approval, by id
	pending []*turn.Call    // calls that an agent's turn proposed, in order
	turned  bool            // a model has been asked
	began   bool            // response.created was sent
}

func newReply(x *exchange, t *task, m *model, echo object) *reply {
	return &reply{x: x, t: t, model: m, echo: echo, status: "in_progress", calls: make(map[int]int), asks: make(map[string]int)}
}

// unasked is what a response repeats of a request that says nothing of it: the defaults that the
// protocol has. What a provider's own are it doesn't say.
func unasked() object {
	return object{"instructions": nil, "metadata": object{}, "background": false, "previous_response_id": nil, "tools": []object{}, "tool_choice": "auto", "parallel_tool_calls": true,
		"temperature": 1, "top_p": 1, "max_output_tokens": nil, "max_tool_calls": nil, "text": object{"format": object{"type": "text"}}, "truncation": "disabled", "reasoning": nil,
		"presence_penalty": 0, "frequency_penalty": 0, "top_logprobs": 0, "service_tier": "default", "safety_identifier": nil, "prompt_cache_key": nil}
}

// object is the response as it is now.
func (b *reply) object(status string) object {
	o := object{"id": name("resp_", b.t.run.ID), "object": "response", "created_at": b.t.run.Created.Unix(), "completed_at": nil, "model": b.model.id, "status": status,
		"output": b.output, "error": nil, "incomplete_details": nil, "usage": nil, "store": b.t.goes || !b.t.own, "palyra": b.t.about(b.model)}
	maps.Copy(o, unasked())
	if b.t.run.Ended != nil {
		o["completed_at"] = b.t.run.Ended.Unix()
	}
	if b.output == nil {
		o["output"] = []object{}
	}
	maps.Copy(o, b.echo)
	switch status {
	case "failed":
		o["error"] = object{"code": b.failed.code, "message": b.failed.text}
	case "incomplete":
		o["incomplete_details"] = object{"reason": b.why}
	}
	if status == "completed" || status == "incomplete" && b.why != waitsForApproval || status == "failed" && b.usage != (turn.Usage{}) {
		u := b.usage
		o["usage"] = object{"input_tokens": u.Input, "input_tokens_details": object{"cached_tokens": u.Cached}, "output_tokens": u.Output,
			"output_tokens_details": object{"reasoning_tokens": u.Reasoning}, "total_tokens": u.Input + u.Output}
	}
	return o
}

// send sends an event, if there is a stream.
func (b *reply) send(kind string, data object) error {
	if b.stream == nil {
		return nil
	}
	if err := b.open(); err != nil {
		return err
	}
	data["type"], data["sequence_number"] = kind, b.seq
	if b.seq++; b.seq <= b.from {
		return nil
	}
	return b.stream.send(kind, data)
}

// open begins the stream.
func (b *reply) open() error {
	if b.began {
		return nil
	}
	b.began = true
	if b.from > 0 {
		if err := b.stream.beat("the events from number " + strconv.Itoa(b.from) + " on"); err != nil {
			return err
		}
	}
	o := b.object("in_progress")
	o["output"] = []object{} // what there is comes next
	for _, kind := range []string{"response.created", "response.in_progress"} {
		if err := b.send(kind, object{"response": o}); err != nil {
			return err
		}
	}
	return nil
}

// take takes what comes of the run.
func (b *reply) take(it *item) error {
	b.last.note(it)
	switch {
	case it.beat && b.stream != nil:
		return b.stream.beat("the run goes on")
	case it.began != nil:
		return b.start(it.began)
	case it.said != nil:
		return b.say(it.said)
	case it.asked != nil:
		if err := b.ask(it.asked); err != nil {
			return err
		}
		if b.stoppable && !it.asked.Created.Before(b.since) {
			return errWaits
		}
		b.seq++ // the number of the event with which a stream that was first ended here
	case it.answered != nil:
		return b.resolve(it.answered)
	case it.ended != nil:
		return b.end(it.ended)
	}
	return nil
}

// add adds an item.
func (b *reply) add(o object) error {
	b.output = append(b.output, o)
	return b.send("response.output_item.added", object{"output_index": len(b.output) - 1, "item": o})
}

func (b *reply) done(at int) error {
	return b.send("response.output_item.done", object{"output_index": at, "item": b.output[at]})
}

// id names an item.
func (b *reply) id(prefix string) string {
	return name(prefix, b.t.run.ID) + "_" + strconv.Itoa(len(b.output))
}

// start begins a step. The calls of an agent's are items.
func (b *reply) start(s *hub.StepStarted) error {
	if s.Tool == turn.Tool || !b.model.agent {
		b.pending, b.turned = nil, true
		return nil
	}
	if !b.turned { // palyrad's own, which find what the model is told
		return nil
	}
	o := object{"id": b.id("tc_"), "type": itemCall, "status": "in_progress", "tool": s.Tool}
	if c := b.proposed(s.Tool); c != nil {
		o["name"], o["arguments"] = c.Name, c.Arguments
	}
	b.calls[s.Step] = len(b.output)
	return b.add(o)
}

// proposed returns the call that a step of a tool makes, and forgets those before it: the agent
// made none of them. Tools of servers have names of their own.
func (b *reply) proposed(tool string) *turn.Call {
	offered := strings.ReplaceAll(tool, ".", "_")
	i := slices.IndexFunc(b.pending, func(c *turn.Call) bool { return c.Name == offered })
	if i < 0 && tool == hub.ToolMCPCall && len(b.pending) > 0 {
		i = 0
	}
	if i < 0 {
		return nil
	}
	c := b.pending[i]
	b.pending = b.pending[i+1:]
	return c
}

// end ends a step.
func (b *reply) end(s *hub.StepResult) error {
	if s.LogIndex != nil {
		b.note(s)
	}
	if s.Tool == turn.Tool {
		return b.close("incomplete")
	}
	at, ok := b.calls[s.Index]
	if !ok {
		return nil
	}
	delete(b.calls, s.Index)
	o := b.output[at]
	o["status"], o["outcome"], o["exit"] = "completed", s.Outcome, s.Exit
	if s.Outcome != "executed" {
		o["status"], o["reason"] = "failed", s.Reason
	}
	if s.LogIndex != nil {
		o["receipt"] = *s.LogIndex
	}
	if d := s.Denial; d != nil {
		o["denial"] = object{"layer": d.Layer, "reason": d.Reason, "decision": d.DecisionID}
	}
	return b.done(at)
}

// note keeps a step's receipt for what the answer has of palyrad's.
func (b *reply) note(s *hub.StepResult) {
	for i := range b.t.run.Steps {
		if b.t.run.Steps[i].Index == s.Index {
			b.t.run.Steps[i].LogIndex = s.LogIndex
			return
		}
	}
	b.t.run.Steps = append(b.t.run.Steps, hub.StepResult{Index: s.Index, LogIndex: s.LogIndex})
}

// say takes a piece of a model's answer.
func (b *reply) say(ev *turn.Event) error {
	if ev.Text != "" {
		return b.write(ev.Text)
	}
	status := "completed"
	if ev.Error != nil || ev.End == turn.EndLength {
		status = "incomplete"
	}
	if err := b.close(status); err != nil {
		return err
	}
	switch {
	case ev.Opaque != nil && !b.model.agent:
		o, err := wrap(ev.Opaque, b.id("rs_"))
		if err != nil {
			return err
		}
		if err := b.grow(len(ev.Opaque)); err != nil {
			return err
		}
		if err := b.reason(o); err != nil {
			return err
		}
		return b.done(len(b.output) - 1)
	case ev.Call != nil && b.model.agent:
		b.pending = append(b.pending, ev.Call)
		return b.grow(len(ev.Call.Arguments))
	case ev.Call != nil:
		return b.call(ev.Call.ID, ev.Call.Name, ev.Call.Arguments)
	}
	return nil
}

func (b *reply) grow(n int) error {
	b.size += n
	return b.x.grow(b.size)
}

// part is what a message has of text.
func part(text string) object {
	return object{"type": "output_text", "text": text, "annotations": []any{}, "logprobs": []any{}}
}

// write adds to the open message, or opens one.
func (b *reply) write(text string) error {
	at := len(b.output) - 1
	if b.message == nil {
		b.message = object{"id": b.id("msg_"), "type": "message", "status": "in_progress", "role": "assistant", "content": []object{}}
		b.text.Reset()
		if err := b.add(b.message); err != nil {
			return err
		}
		at++
		if err := b.send("response.content_part.added", object{"item_id": b.message["id"], "output_index": at, "content_index": 0, "part": part("")}); err != nil {
			return err
		}
	}
	b.text.WriteString(text)
	if err := b.grow(len(text)); err != nil {
		return err
	}
	return b.send("response.output_text.delta", object{"item_id": b.message["id"], "output_index": at, "content_index": 0, "delta": text, "logprobs": []any{}})
}

// close ends the open message.
func (b *reply) close(status string) error {
	m := b.message
	if m == nil {
		return nil
	}
	at, text := len(b.output)-1, b.text.String()
	b.message = nil
	m["status"], m["content"] = status, []object{part(text)}
	if err := b.send("response.output_text.done", object{"item_id": m["id"], "output_index": at, "content_index": 0, "text": text, "logprobs": []any{}}); err != nil {
		return err
	}
	if err := b.send("response.content_part.done", object{"item_id": m["id"], "output_index": at, "content_index": 0, "part": part(text)}); err != nil {
		return err
	}
	return b.done(at)
}

// space is the namespace of a tool of the client's, "" if it's in none.
func (b *reply) space(name string) string {
	tools, _ := b.echo["tools"].([]object)
	for _, t := range tools {
		of, _ := t["tools"].([]object)
		for _, o := range of {
			if space, _ := t["name"].(string); o["name"] == strings.TrimPrefix(name, space+inSpace) && strings.HasPrefix(name, space+inSpace) {
				return space
			}
		}
	}
	return ""
}

// reason adds an item that reasons. A part of its summary comes in one piece: the provider's item
// is passed on once it's whole.
func (b *reply) reason(o object) error {
	parts, _ := o["summary"].([]any)
	o["summary"] = []any{} // a client adds the parts as they come
	if err := b.add(o); err != nil {
		return err
	}
	if len(parts) > 0 {
		o["summary"] = parts
	}
	for i, p := range parts {
		of, _ := p.(map[string]any)
		text, ok := of["text"].(string)
		if !ok {
			continue
		}
		for _, ev := range []struct {
			kind, member string
			v            any
		}{{"part.added", "part", object{"type": "summary_text", "text": ""}}, {"text.delta", "delta", text}, {"text.done", "text", text}, {"part.done", "part", p}} {
			data := object{"item_id": o["id"], "output_index": len(b.output) - 1, "summary_index": i, ev.member: ev.v}
			if err := b.send("response.reasoning_summary_"+ev.kind, data); err != nil {
				return err
			}
		}
	}
	return nil
}

// call adds a call of the client's tool.
func (b *reply) call(id, name, arguments string) error {
	o := object{"id": b.id("fc_"), "type": "function_call", "status": "in_progress", "call_id": id, "name": name, "arguments": ""}
	if space := b.space(name); space != "" {
		name = strings.TrimPrefix(name, space+inSpace)
		o["namespace"], o["name"] = space, name
	}
	if err := b.grow(len(arguments)); err != nil {
		return err
	}
	if err := b.add(o); err != nil {
		return err
	}
	at := len(b.output) - 1
	if err := b.send("response.function_call_arguments.delta", object{"item_id": o["id"], "output_index": at, "delta": arguments}); err != nil {
		return err
	}
	if err := b.send("response.function_call_arguments.done", object{"item_id": o["id"], "output_index": at, "name": name, "arguments": arguments}); err != nil {
		return err
	}
	o["arguments"], o["status"] = arguments, "completed"
	return b.done(at)
}

// waitsForApproval is why a response is incomplete whose run waits for a person.
const waitsForApproval = "palyra:approval_required"

// ask adds a request for approval.
func (b *reply) ask(a *hub.Approval) error {
	o := object{"id": a.ID, "type": itemApproval, "status": "incomplete", "approval": a.ID, "capsule": a.Capsule.String(), "expires_at": a.Expires.Unix()}
	if a.Text != "" { // a caller who may not read policy isn't told
		o["text"] = a.Text
	}
	if err := b.close("completed"); err != nil {
		return err
	}
	b.asks[a.ID] = len(b.output)
	return b.add(o)
}

// resolve says how a request for approval ended.
func (b *reply) resolve(a *hub.ApprovalResolved) error {
	at, ok := b.asks[a.Approval]
	if !ok {
		return nil
	}
	b.output[at]["status"], b.output[at]["state"] = "completed", a.State
	return b.done(at)
}

// wait says that the run waits for a person.
func (b *reply) wait() { b.status, b.why = "incomplete", waitsForApproval }

// settle says how the run ended.
func (b *reply) settle() error {
	for _, c := range b.t.open() {
		if err := b.call(c.ID, c.Name, c.Arguments); err != nil {
			return err
		}
	}
	end, usage, no := b.t.outcome(b.model, &b.last)
	b.usage = usage
	switch {
	case b.t.run.State == hub.RunCancelled && no != nil:
		b.status = "cancelled"
	case no != nil:
		b.status, b.failed = "failed", no
	case end == turn.EndLength && b.model.agent:
		b.status, b.why = "incomplete", "palyra:"+b.t.run.Reason
	case end == turn.EndLength:
		b.status, b.why = "incomplete", "max_output_tokens"
	case end == turn.EndRefused:
		b.status, b.why = "incomplete", "content_filter"
	default:
		b.status = "completed"
	}
	return nil
}

// finish answers.
func (b *reply) finish(waits bool) error {
	if err := b.close("incomplete"); err != nil {
		return err
	}
	if waits {
		b.wait()
	} else if err := b.settle(); err != nil {
		return err
	}
	if b.stream != nil {
		if b.failed != nil && !b.began {
			return b.failed // nothing was sent yet: the status says it
		}
		kind := b.status
		if kind == "cancelled" {
			kind = "failed"
			b.failed = &flaw{code: "cancelled", text: "the run was cancelled"}
		}
		return b.send("response."+kind, object{"response": b.object(kind)})
	}
	if b.failed != nil && len(b.output) == 0 {
		return b.failed
	}
	return answer(b.x.w, http.StatusOK, b.object(b.status))
}

// sealed begins the text of an item of another provider's in a reasoning item.
const sealed = "palyra:"

// wrap is an item of a provider's own as an item of output. Responses' own is passed on as it is.
func wrap(item json.RawMessage, id string) (object, error) {
	var o object
	if err := json.Unmarshal(item, &o); err != nil {
		return nil, err
	}
	if o["type"] == "reasoning" {
		return o, nil
	}
	return object{"id": id, "type": "reasoning", "summary": []any{}, "encrypted_content": sealed + base64.StdEncoding.EncodeToString(item)}, nil
}

// unwrap is a reasoning item as it came from its provider.
func unwrap(item json.RawMessage) json.RawMessage {
	var o struct {
		Text string `json:"encrypted_content"`
	}
	if json.Unmarshal(item, &o) != nil {
		return item
	}
	return unseal(item, o.Text, "thinking", "redacted_thinking")
}

// unseal is the item of another provider's in a text, if it's of these types: a client may write
// what it likes. Else it's the item that has the text.
func unseal(item json.RawMessage, text string, types ...string) json.RawMessage {
	text, ok := strings.CutPrefix(text, sealed)
	b, err := base64.StdEncoding.DecodeString(text)
	var of struct {
		Type string `json:"type"`
	}
	if !ok || err != nil || canon.Decode(b, new(json.RawMessage), canon.Limits{Bytes: turn.MaxOpaque}) != nil || json.Unmarshal(b, &of) != nil || !slices.Contains(types, of.Type) {
		return item
	}
	return b
}
