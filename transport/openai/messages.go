package openai

import (
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	"palyra/agentloop/turn"
)

// messagesRequest is a request of Anthropic's Messages API.
type messagesRequest struct {
	question
	stream bool
}

// messages answers POST /v1/messages.
func (x *exchange) messages() error {
	q, err := x.readMessages()
	if err != nil {
		return err
	}
	ctx := x.r.Context()
	t, err := x.begin(ctx, &q.question)
	if err != nil {
		return err
	}
	m := &message{x: x, q: q, t: t, stream: stream{w: x.w}}
	err = x.follow(t.run.ID, m.take)
	if err == nil {
		err = t.get(ctx)
	}
	if err == nil {
		err = m.finish()
	}
	t.end(err)
	return m.stream.fail(x.r, err)
}

// readMessages reads the request.
func (x *exchange) readMessages() (*messagesRequest, error) {
	f, q := open("", x.v.Body), new(messagesRequest)
	id := f.must("model")
	q.stream = f.yes("stream")
	if text := f.raw("metadata"); text != nil {
		o := open("metadata", text)
		o.text("user_id")
		q.meta.session = o.text(labelSession)
		q.meta.staged = o.isStaged()
		f.add(o.rest(""))
	}
	if f.count("max_tokens") == 0 {
		f.fail("max_tokens", "missing_required_parameter", "want a whole number of at least 1")
	}
	if f.err != nil {
		return nil, f.err
	}
	var err error
	if q.model, err = find(x.r.Context(), x.v, id); err != nil {
		return nil, err
	}
	var all []said
	if s := words(f, "system", "text", "cache"); len(s) > 0 {
		all = append(all, said{role: roleSystem, texts: s})
	}
	for i, text := range f.list("messages") {
		all = append(all, messageOf(f, i, text)...)
	}
	where := " in the agent's lane"
	if q.model.agent {
		if all, err = x.fresh(&q.question, all); err != nil {
			return nil, err
		}
		q.tell(f, "messages", all, q.goesOn())
		if q.meta.session != "" { // else there is no session in which their results could come
			q.equip(f, messagesTools(f))
			messagesChoice(f, new(turn.Request), "auto")
		}
		f.only("thinking", `{"type":"disabled"}`)
		q.agent.MaxTokens = f.count("max_tokens")
	} else {
		where = ""
		q.ask(f, "messages", all)
		messagesOptions(f, &q.request)
		if text := f.raw("output_config"); text != nil {
			o := open("output_config", text)
			q.request.Effort = o.text("effort")
			if text := o.raw("format"); text != nil {
				s := open("output_config.format", text)
				if s.must("type") != "json_schema" {
					s.fail("type", "unsupported_value", "want json_schema")
				}
				q.request.Format = &turn.Format{Schema: schemaOf(s), Strict: true}
				o.add(s.rest(""))
			}
			f.add(o.rest(""))
		}
		q.request.Thinking = thinking(f)
		if q.request.MaxTokens = f.count("max_tokens"); strings.Contains(string(x.v.Body), `"cache_control"`) {
			q.request.CacheKey = "palyra" // a provider that has keys finds the prompt by its beginning all the same
		}
	}
	if f.raw("thread") != nil {
		f.fail("thread", noThreads, "it isn't supported: send the conversation whole")
	}
	f.only("service_tier", `"auto"`, `"standard_only"`)
	if err := f.rest(where); err != nil {
		return nil, err
	}
	return q, nil
}

// messageOf reads a message: what was said, and for each result one more.
func messageOf(f *fields, i int, text json.RawMessage) (all []said) {
	m := open(in("messages", i), text)
	s := said{role: m.must("role")}
	if s.role != turn.User && s.role != turn.Assistant && s.role != roleSystem {
		m.fail("role", "unsupported_value", "want user, assistant or system")
	}
	content := m.raw("content")
	if content != nil && content[0] == '"' {
		s.texts = words(m, "content", "text")
		f.add(m.rest(""))
		return []said{s}
	}
	for j, text := range m.list("content") {
		b := open(m.path+in("content", j), text)
		b.raw("cache_control")
		switch kind := b.must("type"); {
		case kind == "text":
			if t := b.text("text"); t != "" {
				s.parts = append(s.parts, turn.Part{Text: t})
			}
			b.only("citations", "[]")
		case kind == "tool_use" && s.role == turn.Assistant:
			input := b.raw("input")
			if input == nil {
				input = json.RawMessage("{}")
			}
			s.parts = append(s.parts, turn.Part{Call: &turn.Call{ID: b.must("id"), Name: b.must("name"), Arguments: string(input)}})
			b.raw("caller")
		case kind == "tool_result" && s.role == turn.User:
			all = append(all, said{role: roleTool, result: &turn.Result{ID: b.must("tool_use_id"), Text: strings.Join(words(b, "content", "text", "cache"), "\n"), Failed: b.yes("is_error")}})
		case (kind == "thinking" || kind == "redacted_thinking") && s.role == turn.Assistant:
			s.parts = append(s.parts, turn.Part{Opaque: unredact(text)})
			for _, name := range []string{"thinking", "signature", "data"} {
				b.raw(name)
			}
		default:
			b.fail("type", "unsupported_value", "want text, tool_use, tool_result or thinking, of the role that has it")
		}
		m.add(b.rest(""))
	}
	f.add(m.rest(""))
	if slices.ContainsFunc(s.parts, func(p turn.Part) bool { return p.Text == "" }) {
		return append(all, s)
	}
	for _, p := range s.parts { // text alone
		s.texts = append(s.texts, p.Text)
	}
	if s.parts = nil; len(s.texts) > 0 || len(all) == 0 {
		all = append(all, s)
	}
	return all
}

// thinking reads how a model thinks before it answers.
func thinking(f *fields) *turn.Thinking {
	text := f.raw("thinking")
	if text == nil {
		return nil
	}
	o, t := open("thinking", text), new(turn.Thinking)
	switch kind := o.must("type"); kind {
	case "adaptive":
		t.Display = o.text("display")
	case "enabled":
		t.Display = o.text("display")
		if t.Budget = o.count("budget_tokens"); t.Budget == 0 {
			o.fail("budget_tokens", "missing_required_parameter", "want a whole number of at least 1")
		}
	case "disabled":
		t = nil
	default:
		o.fail("type", "unsupported_value", "want adaptive, enabled or disabled")
	}
	f.add(o.rest(""))
	return t
}

// messagesOptions reads what says how a model answers.
func messagesOptions(f *fields, r *turn.Request) {
	sampling(f, r)
	r.Stop, _ = value[[]string](f, "stop_sequences", "a list of strings")
	r.Tools = messagesTools(f)
	messagesChoice(f, r, "auto", "none", "any", "tool")
}

// messagesTools reads the client's tools.
func messagesTools(f *fields) (offers []turn.Offer) {
	for i, text := range f.list("tools") {
		t := open(in("tools", i), text)
		t.only("type", `"custom"`)
		t.raw("cache_control")
		offers = append(offers, offer(t, t.must("name"), t.text("description"), t.raw("input_schema"), t.yes("strict")))
		f.add(t.rest(""))
	}
	return offers
}

// messagesChoice reads which tools are to be called, of these choices. One call at a time is for a
// lane with others than auto.
func messagesChoice(f *fields, r *turn.Request, choices ...string) {
	text := f.raw("tool_choice")
	if text == nil {
		return
	}
	o := open("tool_choice", text)
	if r.OneCall = o.yes("disable_parallel_tool_use"); r.OneCall && len(choices) == 1 {
		o.fail("disable_parallel_tool_use", "unsupported_value", "want false, which it is without this member")
	}
	kind := o.must("type")
	if !slices.Contains(choices, kind) {
		o.fail("type", "unsupported_value", "want %s", strings.Join(choices, " or "))
	}
	switch kind {
	case "none":
		r.Choice = turn.ChoiceNone
	case "any":
		r.Choice = turn.ChoiceAny
	case "tool":
		r.Choice = turn.ChoiceTool + o.must("name")
	}
	f.add(o.rest(""))
	name, is := strings.CutPrefix(r.Choice, turn.ChoiceTool)
	if is && !slices.ContainsFunc(r.Tools, func(o turn.Offer) bool { return o.Name == name }) || r.Choice == turn.ChoiceAny && len(r.Tools) == 0 {
		f.fail("tool_choice", "invalid_value", "there is no such tool")
	}
}

// message is an answer of the Messages API while it comes.
type message struct {
	x      *exchange
	q      *messagesRequest
	t      *task
	stream stream

	content []object
	text    *strings.Builder // of the open block; nil: there is none
	led     bool             // message_start was sent
	size    int
	last    turnEnd
}

func (m *message) send(kind string, data object) error {
	if !m.q.stream {
		return nil
	}
	if !m.led {
		m.led = true
		o := m.object(nil, turn.Usage{})
		o["content"] = []object{}
		if err := m.send("message_start", object{"message": o}); err != nil {
			return err
		}
	}
	data["type"] = kind
	return m.stream.send(kind, data)
}

func (m *message) grow(n int) error {
	m.size += n
	return m.x.grow(m.size)
}

// take takes what comes of the run.
func (m *message) take(it *item) error {
	m.last.note(it)
	switch {
	case it.beat:
		return m.send("ping", object{})
	case it.began != nil:
		return m.close() // another turn is another block
	case it.said == nil:
		return nil
	case it.said.Text != "":
		if m.text == nil {
			m.text = new(strings.Builder)
			m.content = append(m.content, object{"type": "text", "text": ""})
			if err := m.send("content_block_start", object{"index": len(m.content) - 1, "content_block": object{"type": "text", "text": ""}}); err != nil {
				return err
			}
		}
		m.text.WriteString(it.said.Text)
		if err := m.grow(len(it.said.Text)); err != nil {
			return err
		}
		return m.send("content_block_delta", object{"index": len(m.content) - 1, "delta": object{"type": "text_delta", "text": it.said.Text}})
	}
	if err := m.close(); err != nil || m.q.model.agent {
		return err
	}
	switch {
	case it.said.Call != nil:
		return m.call(it.said.Call)
	case it.said.Opaque != nil:
		if err := m.grow(len(it.said.Opaque)); err != nil {
			return err
		}
		return m.block(redact(it.said.Opaque))
	}
	return nil
}

// close ends the open block.
func (m *message) close() error {
	if m.text == nil {
		return nil
	}
	m.content[len(m.content)-1]["text"] = m.text.String()
	m.text = nil
	return m.send("content_block_stop", object{"index": len(m.content) - 1})
}

// block adds a block that is whole.
func (m *message) block(b object) error {
	m.content = append(m.content, b)
	at := len(m.content) - 1
	if err := m.send("content_block_start", object{"index": at, "content_block": b}); err != nil {
		return err
	}
	return m.send("content_block_stop", object{"index": at})
}

// call adds a call of the client's tool.
func (m *message) call(c *turn.Call) error {
	input := json.RawMessage(c.Arguments)
	var o object
	if strings.TrimSpace(c.Arguments) == "" {
		input = json.RawMessage("{}")
	} else if json.Unmarshal(input, &o) != nil {
		var err error
		if input, err = encode(object{"INVALID_JSON": c.Arguments}); err != nil {
			return err
		}
	}
	if err := m.grow(len(input)); err != nil {
		return err
	}
	m.content = append(m.content, object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": input})
	at := len(m.content) - 1
	if err := m.send("content_block_start", object{"index": at, "content_block": object{"type": "tool_use", "id": c.ID, "name": c.Name, "input": object{}}}); err != nil {
		return err
	}
	if err := m.send("content_block_delta", object{"index": at, "delta": object{"type": "input_json_delta", "partial_json": string(input)}}); err != nil {
		return err
	}
	return m.send("content_block_stop", object{"index": at})
}

// messagesEnds are the reasons to stop.
var messagesEnds = map[string]string{turn.EndStop: "end_turn", turn.EndCalls: "tool_use", turn.EndLength: "max_tokens", turn.EndRefused: "refusal"}

func (m *message) object(stop any, u turn.Usage) object {
	return object{"id": name("msg_", m.t.run.ID), "type": "message", "role": "assistant", "model": m.q.model.id, "content": m.content, "stop_reason": stop, "stop_sequence": nil,
		"usage": messagesUsage(u), "palyra": m.t.about(m.q.model)}
}

// messagesUsage counts what was read from the cache beside the input, as the API does.
func messagesUsage(u turn.Usage) object {
	return object{"input_tokens": u.Input - u.Cached, "cache_read_input_tokens": u.Cached, "cache_creation_input_tokens": 0, "output_tokens": u.Output}
}

// finish says how the run ended.
func (m *message) finish() error {
	if err := m.close(); err != nil {
		return err
	}
	end, usage, no := m.t.outcome(m.q.model, &m.last)
	if no != nil {
		return no
	}
	for _, c := range m.t.open() {
		if err := m.call(&turn.Call{ID: c.ID, Name: c.Name, Arguments: c.Arguments}); err != nil {
			return err
		}
	}
	if !m.q.stream {
		if m.content == nil {
			m.content = []object{}
		}
		return answer(m.x.w, http.StatusOK, m.object(messagesEnds[end], usage))
	}
	if err := m.send("message_delta", object{"delta": object{"stop_reason": messagesEnds[end], "stop_sequence": nil}, "usage": messagesUsage(usage), "palyra": m.t.about(m.q.model)}); err != nil {
		return err
	}
	return m.send("message_stop", object{})
}

// redact is an item of a provider's own as a block. Messages' own are passed on as they are.
func redact(item json.RawMessage) object {
	var o object
	if json.Unmarshal(item, &o) == nil && (o["type"] == "thinking" || o["type"] == "redacted_thinking") {
		return o
	}
	return object{"type": "redacted_thinking", "data": sealed + base64.StdEncoding.EncodeToString(item)}
}

// unredact is a block as it came from its provider.
func unredact(block json.RawMessage) json.RawMessage {
	var o struct {
		Data string `json:"data"`
	}
	if json.Unmarshal(block, &o) != nil {
		return block
	}
	return unseal(block, o.Data, "reasoning")
}
