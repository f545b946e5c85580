package openai

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/fault"
)

// chatRequest is a request for a chat completion.
type chatRequest struct {
	question
	stream, usage bool
}

// chat answers POST /v1/chat/completions.
func (x *exchange) chat() error {
	q, err := x.readChat()
	if err != nil {
		return err
	}
	ctx := x.r.Context()
	t, err := x.begin(ctx, &q.question)
	if err != nil {
		return err
	}
	c := &completion{x: x, q: q, t: t, stream: stream{w: x.w}}
	err = x.follow(t.run.ID, c.take)
	if err == nil {
		err = t.get(ctx)
	}
	if err == nil {
		err = c.finish()
	}
	t.end(err)
	return c.stream.fail(x.r, err)
}

// readChat reads the request.
func (x *exchange) readChat() (*chatRequest, error) {
	f, q := open("", x.v.Body), new(chatRequest)
	id := f.must("model")
	q.stream = f.yes("stream")
	if o := f.raw("stream_options"); o != nil {
		o := open("stream_options", o)
		q.usage = o.yes("include_usage")
		o.only("include_obfuscation", "false")
		f.add(o.rest(""))
		if !q.stream {
			f.fail("stream_options", "invalid_value", "it's for a stream")
		}
	}
	q.meta = f.metadata()
	q.kept = q.meta.all
	f.text("user")
	f.text("safety_identifier")
	f.only("n", "1")
	f.only("store", "false")
	if f.err != nil {
		return nil, f.err
	}
	var err error
	if q.model, err = find(x.r.Context(), x.v, id); err != nil {
		return nil, err
	}
	all := chatMessages(f)
	where := " in the agent's lane"
	if q.model.agent {
		if all, err = x.fresh(&q.question, all); err != nil {
			return nil, err
		}
		q.tell(f, "messages", all, q.goesOn())
		if q.meta.session != "" { // else there is no session in which their results could come
			q.equip(f, chatTools(f))
			freely(f)
		}
		q.agent.MaxTokens = max(f.count("max_tokens"), f.count("max_completion_tokens"))
	} else {
		where = ""
		q.ask(f, "messages", all)
		chatOptions(f, &q.request)
	}
	if err := f.rest(where); err != nil {
		return nil, err
	}
	return q, nil
}

// chatMessages reads the messages.
func chatMessages(f *fields) (all []said) {
	for i, text := range f.list("messages") {
		m := open(in("messages", i), text)
		s := said{role: m.must("role")}
		switch s.role {
		case roleSystem, roleDeveloper, turn.User:
			s.texts = words(m, "content", "text")
			m.text("name")
		case turn.Assistant:
			s.texts = words(m, "content", "text", "refusal")
			if r := m.text("refusal"); r != "" {
				s.texts = append(s.texts, r)
			}
			m.text("name")
			m.only("annotations", "[]")
			var parts []turn.Part
			for j, text := range m.list("tool_calls") {
				c := open(m.path+in("tool_calls", j), text)
				c.only("type", `"function"`)
				id := c.must("id")
				fn := open(c.path+"function", c.raw("function"))
				parts = append(parts, turn.Part{Call: &turn.Call{ID: id, Name: fn.must("name"), Arguments: fn.text("arguments")}})
				c.add(fn.rest(""))
				m.add(c.rest(""))
			}
			if parts != nil {
				var before []turn.Part
				for _, text := range s.texts {
					before = append(before, turn.Part{Text: text})
				}
				s.texts, s.parts = nil, append(before, parts...)
			}
		case roleTool:
			s.result = &turn.Result{ID: m.must("tool_call_id"), Text: strings.Join(words(m, "content", "text"), "")}
		default:
			m.fail("role", "unsupported_value", "want system, developer, user, assistant or tool")
			m.raw("content")
		}
		f.add(m.rest(""))
		all = append(all, s)
	}
	return all
}

// chatOptions reads what says how a model answers.
func chatOptions(f *fields, r *turn.Request) {
	sampling(f, r)
	r.MaxTokens = max(f.count("max_tokens"), f.count("max_completion_tokens"))
	r.Effort = f.text("reasoning_effort")
	r.CacheKey = f.text("prompt_cache_key")
	if text := f.raw("stop"); text != nil && text[0] == '"' {
		r.Stop = []string{f.text("stop")}
	} else {
		r.Stop, _ = value[[]string](f, "stop", "a string or a list of strings")
	}
	r.Tools = chatTools(f)
	choice(f, r, func(o *fields) string {
		fn := open(o.path+"function", o.raw("function"))
		name := fn.must("name")
		o.add(fn.rest(""))
		return name
	})
	if text := f.raw("response_format"); text != nil {
		o := open("response_format", text)
		format(o, r, func() *fields { return open(o.path+"json_schema", o.raw("json_schema")) })
		f.add(o.rest(""))
	}
	f.only("frequency_penalty", "0", "0.0")
	f.only("presence_penalty", "0", "0.0")
	f.only("logprobs", "false")
	f.only("logit_bias", "{}")
	f.only("modalities", `["text"]`)
	f.only("service_tier", `"auto"`, `"default"`)
}

// chatTools reads the client's tools.
func chatTools(f *fields) (offers []turn.Offer) {
	for i, text := range f.list("tools") {
		t := open(in("tools", i), text)
		if kind := t.must("type"); kind != "function" {
			t.fail("type", "unsupported_value", "want function")
		}
		fn := open(t.path+"function", t.raw("function"))
		offers = append(offers, offer(fn, fn.must("name"), fn.text("description"), fn.raw("parameters"), fn.yes("strict")))
		t.add(fn.rest(""))
		f.add(t.rest(""))
	}
	return offers
}

// sampling reads temperature and top_p.
func sampling(f *fields, r *turn.Request) {
	r.Temperature, r.TopP = f.number("temperature"), f.number("top_p")
	if t := r.Temperature; t != nil && (*t < 0 || *t > 2) {
		f.fail("temperature", "invalid_value", "want 0 to 2")
	}
	if t := r.TopP; t != nil && (*t < 0 || *t > 1) {
		f.fail("top_p", "invalid_value", "want 0 to 1")
	}
}

// choice reads which tools are to be called. one reads the name of a single one.
func choice(f *fields, r *turn.Request, one func(o *fields) string) {
	if is, there := f.flag("parallel_tool_calls"); there {
		r.OneCall = !is
	}
	text := f.raw("tool_choice")
	switch {
	case text == nil:
	case text[0] == '"':
		switch c := f.text("tool_choice"); c {
		case "auto":
		case "none":
			r.Choice = turn.ChoiceNone
		case "required":
			r.Choice = turn.ChoiceAny
		default:
			f.fail("tool_choice", "unsupported_value", "want auto, none, required or a function")
		}
	default:
		o := open("tool_choice", text)
		if kind := o.must("type"); kind != "function" {
			o.fail("type", "unsupported_value", "want function")
		}
		r.Choice = turn.ChoiceTool + one(o)
		f.add(o.rest(""))
	}
	name, is := strings.CutPrefix(r.Choice, turn.ChoiceTool)
	if is && !slices.ContainsFunc(r.Tools, func(o turn.Offer) bool { return o.Name == name }) || r.Choice == turn.ChoiceAny && len(r.Tools) == 0 {
		f.fail("tool_choice", "invalid_value", "there is no such tool")
	}
}

// schemaOf reads the schema of a format.
func schemaOf(s *fields) json.RawMessage {
	text := s.raw("schema")
	if text == nil || text[0] != '{' {
		s.fail("schema", "invalid_type", "want an object")
	}
	return text
}

// format reads what the answer's text is. schema opens the object that has name and schema.
func format(o *fields, r *turn.Request, schema func() *fields) {
	switch kind := o.must("type"); kind {
	case "text":
	case "json_object":
		r.Format = new(turn.Format)
	case "json_schema":
		s := schema()
		r.Format = &turn.Format{Name: s.must("name"), Description: s.text("description"), Schema: schemaOf(s), Strict: s.yes("strict")}
		if s != o {
			o.add(s.rest(""))
		} else if s.err != nil {
			o.add(s.err)
		}
	default:
		o.fail("type", "unsupported_value", "want text, json_object or json_schema")
	}
}

// completion is a chat completion while it comes.
type completion struct {
	x      *exchange
	q      *chatRequest
	t      *task
	stream stream

	text   strings.Builder
	calls  []object
	turns  int  // that have said something
	middle bool // of a turn that has said something
	led    bool // the first chunk was sent
	size   int
	last   turnEnd
}

// turnEnd is how the last turn ended.
type turnEnd struct {
	end    string
	usage  *turn.Usage
	failed *turn.Error
	step   *hub.StepResult
}

// note notes what says how a turn ends.
func (e *turnEnd) note(it *item) {
	switch {
	case it.began != nil && it.began.Tool == turn.Tool:
		*e = turnEnd{}
	case it.said != nil && it.said.End != "":
		e.end, e.usage = it.said.End, it.said.Usage
	case it.said != nil && it.said.Error != nil:
		e.failed = it.said.Error
	case it.ended != nil && it.ended.Tool == turn.Tool:
		e.step = it.ended
	}
}

// take takes what comes of the run.
func (c *completion) take(it *item) error {
	c.last.note(it)
	switch {
	case it.beat && c.q.stream:
		return c.stream.beat("the run goes on")
	case it.asked != nil && c.q.stream:
		return c.stream.beat("a person is asked: palyra approvals show " + it.asked.ID)
	case it.began != nil && it.began.Tool == turn.Tool:
		c.middle = false
	case it.said != nil && it.said.Text != "":
		text := it.said.Text
		if !c.middle && c.turns > 0 {
			text = "\n\n" + text // another turn's
		}
		if !c.middle {
			c.middle = true
			c.turns++
		}
		if c.q.stream {
			return c.delta(object{"content": text}, nil)
		}
		c.size += len(text)
		c.text.WriteString(text)
		return c.x.grow(c.size)
	case it.said != nil && it.said.Call != nil && !c.q.model.agent:
		call := it.said.Call
		return c.call(call.ID, call.Name, call.Arguments)
	}
	return nil
}

// call adds a call of the client's tool.
func (c *completion) call(id, name, arguments string) error {
	o := object{"id": id, "type": "function", "function": object{"name": name, "arguments": arguments}}
	c.calls = append(c.calls, o)
	if c.size += len(arguments); !c.q.stream {
		return c.x.grow(c.size)
	}
	o["index"] = len(c.calls) - 1
	return c.delta(object{"tool_calls": []object{o}}, nil)
}

func (c *completion) head(kind string) object {
	return object{"id": name("chatcmpl_", c.t.run.ID), "object": kind, "created": c.t.run.Created.Unix(), "model": c.q.model.id}
}

// delta sends a chunk. The first has the role.
func (c *completion) delta(delta object, finish any) error {
	if !c.led {
		c.led = true
		if err := c.delta(object{"role": "assistant", "content": ""}, nil); err != nil {
			return err
		}
	}
	o := c.head("chat.completion.chunk")
	o["choices"] = []object{{"index": 0, "delta": delta, "logprobs": nil, "finish_reason": finish}}
	if c.q.usage {
		o["usage"] = nil
	}
	if finish != nil {
		o["palyra"] = c.t.about(c.q.model)
	}
	return c.stream.send("", o)
}

// chatEnds are the reasons to finish.
var chatEnds = map[string]string{turn.EndStop: "stop", turn.EndCalls: "tool_calls", turn.EndLength: "length", turn.EndRefused: "content_filter"}

// finish says how the run ended.
func (c *completion) finish() error {
	end, usage, no := c.t.outcome(c.q.model, &c.last)
	if no != nil {
		return no
	}
	for _, call := range c.t.open() {
		if err := c.call(call.ID, call.Name, call.Arguments); err != nil {
			return err
		}
	}
	if c.q.stream {
		if err := c.delta(object{}, chatEnds[end]); err != nil {
			return err
		}
		if c.q.usage {
			o := c.head("chat.completion.chunk")
			o["choices"], o["usage"] = []object{}, chatUsage(usage)
			if err := c.stream.send("", o); err != nil {
				return err
			}
		}
		return c.stream.write("", []byte("[DONE]"))
	}
	m := object{"role": "assistant", "content": c.text.String(), "refusal": nil}
	if len(c.calls) > 0 {
		m["tool_calls"] = c.calls
		if c.text.Len() == 0 {
			m["content"] = nil
		}
	}
	o := c.head("chat.completion")
	o["choices"] = []object{{"index": 0, "message": m, "logprobs": nil, "finish_reason": chatEnds[end]}}
	o["usage"], o["palyra"] = chatUsage(usage), c.t.about(c.q.model)
	return answer(c.x.w, http.StatusOK, o)
}

func chatUsage(u turn.Usage) object {
	return object{"prompt_tokens": u.Input, "completion_tokens": u.Output, "total_tokens": u.Input + u.Output,
		"prompt_tokens_details": object{"cached_tokens": u.Cached}, "completion_tokens_details": object{"reasoning_tokens": u.Reasoning}}
}

// cut are the reasons of agents' runs that say that there was more to come.
var cut = []fault.Code{fault.ErrMaxTurns, fault.ErrContextBudget, fault.ErrIncompleteAnswer, fault.ErrBudgetCalls, fault.ErrBudgetWall, fault.ErrBudgetBytes}

// open are the calls of the client's tools with which an agent's run ended.
func (t *task) open() []hub.AgentCall {
	if t.run.Answer == nil || t.run.State != hub.RunDone {
		return nil
	}
	return t.run.Answer.Calls
}

// outcome says how a run ended, or why there is no answer.
func (t *task) outcome(m *model, last *turnEnd) (end string, usage turn.Usage, no *flaw) {
	run := &t.run
	if !m.agent {
		switch {
		case last.end != "" && (last.step == nil || last.step.Outcome == "executed"):
			if last.usage != nil {
				usage = *last.usage
			}
			return last.end, usage, nil
		case last.failed != nil:
			return "", usage, failed(last.failed)
		}
		st := last.step
		if st == nil && len(run.Steps) > 0 {
			st = &run.Steps[0]
		}
		if st == nil {
			st = new(hub.StepResult)
		}
		return "", usage, unmade(run, st)
	}
	if a := run.Answer; a != nil {
		usage = turn.Usage{Input: a.Usage.Input, Cached: a.Usage.Cached, Output: a.Usage.Output, Reasoning: a.Usage.Reasoning}
	}
	switch {
	case len(t.open()) > 0:
		return turn.EndCalls, usage, nil
	case run.State == hub.RunDone:
		return turn.EndStop, usage, nil
	case slices.Contains(cut, fault.Code(run.Reason)):
		return turn.EndLength, usage, nil
	case fault.Code(run.Reason) == fault.ErrProvider && last.failed != nil:
		return "", usage, failed(last.failed)
	}
	no = unmade(run, new(hub.StepResult))
	no.text = "the agent's run ended without an answer: " + run.Reason
	if run.Answer != nil && run.Answer.Error != "" {
		no.text += ": " + run.Answer.Error
	}
	return "", usage, no
}
