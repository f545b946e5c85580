package openai

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
)

// responseRequest is a request for a response.
type responseRequest struct {
	question
	stream, background bool
	previous           string // run; "": none
	resume             bool   // there is no input: go on with previous
	echo               object // what the response repeats of the request
}

// createResponse answers POST /v1/responses.
func (x *exchange) createResponse() error {
	since := time.Now()
	q, err := x.readResponse()
	if err != nil {
		return err
	}
	ctx := x.r.Context()
	t, err := x.task(ctx, q)
	if err != nil {
		return err
	}
	b := newReply(x, t, q.model, q.echo)
	if q.background {
		if t.goes = true; !q.stream {
			return answer(x.w, http.StatusOK, b.object("queued"))
		}
	}
	b.stoppable, b.since = q.store && !q.background, since
	if q.stream {
		b.stream = &stream{w: x.w}
	}
	if q.background { // its client may want to know at once what to come back for
		err = b.open()
	}
	if err == nil {
		err = x.follow(t.run.ID, b.take)
	}
	waits := errors.Is(err, errWaits)
	if waits {
		t.goes, err = true, nil
	}
	if err == nil {
		err = t.get(ctx)
	}
	if err == nil {
		err = b.finish(waits)
	}
	t.end(err)
	if b.stream != nil {
		return b.stream.fail(x.r, err)
	}
	return err
}

// task begins the run of a request, or finds the one that it goes on with.
func (x *exchange) task(ctx context.Context, q *responseRequest) (*task, error) {
	if !q.resume {
		return x.begin(ctx, &q.question)
	}
	r, err := hub.GetRun.Do(ctx, x.v.Hub, hub.Caller{}, q.previous)
	return &task{x: x, run: r, goes: q.store}, err
}

// readResponse reads the request.
func (x *exchange) readResponse() (*responseRequest, error) {
	f, q := open("", x.v.Body), new(responseRequest)
	id := f.must("model")
	q.stream, q.background, q.store = f.yes("stream"), f.yes("background"), true
	if is, there := f.flag("store"); there {
		q.store = is
	}
	if q.background && !q.store {
		f.fail("background", "unsupported_value", "a response in the background is stored, and fetched with GET: want no store false")
	}
	if o := f.raw("stream_options"); o != nil {
		o := open("stream_options", o)
		o.only("include_obfuscation", "false")
		f.add(o.rest(""))
	}
	q.meta = f.metadata()
	f.text("user")
	value[map[string]string](f, "client_metadata", "an object of strings")
	instructions := f.text("instructions")
	previous := f.text("previous_response_id")
	for _, one := range []struct {
		name   string
		values []string
	}{{"truncation", []string{`"disabled"`}}, {"service_tier", []string{`"auto"`, `"default"`}}, {"include", []string{"[]", `["reasoning.encrypted_content"]`}}, {"top_logprobs", []string{"0"}}} {
		f.only(one.name, one.values...)
	}
	all := responseInput(f)
	if f.err != nil {
		return nil, f.err
	}
	var err error
	if q.model, err = find(x.r.Context(), x.v, id); err != nil {
		return nil, err
	}
	if previous != "" {
		if err := x.previous(q, previous, len(all) == 0); err != nil {
			return nil, err
		}
	}
	q.keep(f, instructions, previous)
	where := " in the agent's lane"
	switch {
	case q.resume:
		where = " where a response is resumed"
		if len(q.kept) > 1 || len(q.meta.all) > 0 { // more than previous_response_id
			f.fail("previous_response_id", "unsupported_value", "a response is resumed without metadata, instructions, safety_identifier and background: it has its own")
		}
	case q.model.agent:
		if instructions != "" {
			all = slices.Insert(all, 0, said{role: roleDeveloper, texts: []string{instructions}})
		}
		q.tell(f, "input", all, q.session != "" || q.goesOn())
		q.equip(f, responseTools(f))
		freely(f)
		q.agent.MaxTokens = f.count("max_output_tokens")
		q.echo = repeated(q.kept, &q.agent, nil, q.store)
	default:
		where = ""
		q.request.System = instructions
		q.ask(f, "input", all)
		responseOptions(f, &q.request)
		q.echo = repeated(q.kept, nil, &q.request, q.store)
	}
	if err := f.rest(where); err != nil {
		return nil, err
	}
	return q, nil
}

// previous goes on with a response: in its session, and of a model behind what it was asked and
// answered. Without input it's the response itself that goes on.
func (x *exchange) previous(q *responseRequest, id string, resume bool) error {
	run, err := x.response(x.r.Context(), id, "previous_response_id")
	if err != nil {
		return err
	}
	switch {
	case !q.store:
		return bad("store", "unsupported_value", "the response that it goes on with is stored, and so is this one")
	case q.meta.session != "":
		return bad("metadata."+labelSession, "unsupported_value", "it goes on in the session of previous_response_id")
	}
	q.previous, q.session = run.ID, run.Session
	switch {
	case q.model.agent != (run.Agent != nil):
		return bad("previous_response_id", "invalid_value", "the response is of the other lane: name a model of the same")
	case resume:
		q.resume = true
		_, q.echo, err = echoOf(run)
		return err
	case !over(run):
		return bad("previous_response_id", "invalid_value", "the response isn't over: resume it without input, or cancel it")
	case q.model.agent:
		q.agent.After = run.ID
		return nil
	}
	_, asked, err := askedOf(run)
	if err != nil {
		return err
	}
	a, err := x.answerOf(x.r.Context(), run, &run.Steps[0])
	if err != nil {
		return err
	}
	q.request.Messages = asked.Messages
	if len(a.Message.Parts) > 0 {
		q.request.Messages = append(q.request.Messages, a.Message)
	}
	return nil
}

// responseInput reads the input: a text, or items.
func responseInput(f *fields) (all []said) {
	text := f.raw("input")
	if text == nil {
		return nil
	}
	if text[0] == '"' {
		if s := f.text("input"); s != "" {
			all = []said{{role: turn.User, texts: []string{s}}}
		}
		return all
	}
	for i, text := range f.list("input") {
		m := open(in("input", i), text)
		kind := m.text("type")
		m.text("id")
		m.only("status", `"completed"`, `"incomplete"`, `"in_progress"`)
		s := said{role: turn.Assistant}
		switch kind {
		case "message", "":
			if s.role = m.must("role"); !slices.Contains([]string{roleSystem, roleDeveloper, turn.User, turn.Assistant}, s.role) {
				m.fail("role", "unsupported_value", "want system, developer, user or assistant")
			}
			s.texts = words(m, "content", "input_text", "output_text", "refusal", "text")
			m.text("phase")
		case "function_call":
			c := &turn.Call{ID: m.must("call_id"), Name: m.must("name"), Arguments: m.text("arguments")}
			if space := m.text("namespace"); space != "" {
				c.Name = space + inSpace + c.Name
			}
			s.parts = []turn.Part{{Call: c}}
		case "function_call_output":
			s = said{role: roleTool, result: &turn.Result{ID: m.must("call_id"), Text: strings.Join(words(m, "output", "input_text"), "")}}
		case "reasoning":
			s.parts = []turn.Part{{Opaque: unwrap(text)}}
			for _, name := range []string{"summary", "content", "encrypted_content"} {
				m.raw(name)
			}
		default:
			m.fail("type", "unsupported_value", "want message, function_call, function_call_output or reasoning")
			for name := range m.m {
				m.raw(name)
			}
		}
		f.add(m.rest(""))
		all = append(all, s)
	}
	return all
}

// inSpace stands between the name of a namespace and that of a tool in it, for providers.
const inSpace = "__"

// responseTools reads the client's tools: functions, and namespaces of them.
func responseTools(f *fields) (offers []turn.Offer) {
	for i, text := range f.list("tools") {
		t := open(in("tools", i), text)
		switch t.must("type") {
		case "function":
			offers = append(offers, functionOf(t, ""))
		case "namespace":
			space, about := t.must("name"), t.text("description")
			for j, text := range t.list("tools") {
				o := open(t.path+in("tools", j), text)
				o.only("type", `"function"`)
				of := functionOf(o, space)
				if of.Namespace = space; j == 0 && about != "" { // which no provider has a place for
					of.Description = strings.TrimSpace(about + between + of.Description)
				}
				offers = append(offers, of)
				t.add(o.rest(""))
			}
		default:
			t.fail("type", "unsupported_value", "want function or namespace: palyrad's own tools are the agent's, model agent/NAME")
		}
		f.add(t.rest(""))
	}
	return offers
}

// functionOf reads a function, in a namespace if that has a name.
func functionOf(f *fields, space string) turn.Offer {
	name := f.must("name")
	if space != "" {
		name = space + inSpace + name
	}
	return offer(f, name, f.text("description"), f.raw("parameters"), f.yes("strict"))
}

// toolsOf are tools as a response repeats them.
func toolsOf(offers []turn.Offer) []object {
	all := []object{}
	for i, o := range offers {
		if o.Namespace == "" {
			all = append(all, toolOf(o))
			continue
		}
		if i == 0 || offers[i-1].Namespace != o.Namespace {
			all = append(all, object{"type": "namespace", "name": o.Namespace, "description": "", "tools": []object{}})
		}
		space := all[len(all)-1]
		o.Name = strings.TrimPrefix(o.Name, o.Namespace+inSpace)
		space["tools"] = append(space["tools"].([]object), toolOf(o))
	}
	return all
}

func toolOf(o turn.Offer) object {
	return object{"type": "function", "name": o.Name, "description": o.Description, "parameters": o.Schema, "strict": o.Strict}
}

// responseOptions reads what says how a model answers.
func responseOptions(f *fields, r *turn.Request) {
	sampling(f, r)
	r.MaxTokens = f.count("max_output_tokens")
	r.CacheKey = f.text("prompt_cache_key")
	r.Tools = responseTools(f)
	choice(f, r, func(o *fields) string { return o.must("name") })
	if text := f.raw("reasoning"); text != nil {
		o := open("reasoning", text)
		r.Effort, r.Summary = o.text("effort"), o.text("summary")
		f.add(o.rest(""))
	}
	if text := f.raw("text"); text != nil {
		t := open("text", text)
		t.only("verbosity", `"medium"`)
		if text := t.raw("format"); text != nil {
			o := open("text.format", text)
			format(o, r, func() *fields { return o })
			t.add(o.rest(""))
		}
		f.add(t.rest(""))
	}
}

// keep says what the run keeps of the request besides what it's asked.
func (q *responseRequest) keep(f *fields, instructions, previous string) {
	q.kept = make(map[string]string)
	maps.Copy(q.kept, q.meta.all)
	safety := f.text("safety_identifier")
	if len(safety) > hub.MaxMetadataValue {
		f.fail("safety_identifier", "invalid_value", "want at most %d bytes", hub.MaxMetadataValue)
	}
	for name, v := range map[string]string{keptPrevious: previous, keptSafety: safety} {
		if v != "" {
			q.kept[name] = v
		}
	}
	if instructions != "" {
		q.kept[keptInstructions] = strconv.Itoa(len(instructions))
	}
	if q.background {
		q.kept[keptBackground] = "true"
	}
}

// repeatRequest puts down what a response repeats of what was asked.
func repeatRequest(echo object, r *turn.Request) {
	if r.Temperature != nil {
		echo["temperature"] = *r.Temperature
	}
	if r.TopP != nil {
		echo["top_p"] = *r.TopP
	}
	if r.CacheKey != "" {
		echo["prompt_cache_key"] = r.CacheKey
	}
	if reasoning := (object{"effort": nil, "summary": nil}); r.Effort != "" || r.Summary != "" {
		for name, word := range map[string]string{"effort": r.Effort, "summary": r.Summary} {
			if word != "" {
				reasoning[name] = word
			}
		}
		echo["reasoning"] = reasoning
	}
	if r.MaxTokens > 0 {
		echo["max_output_tokens"] = r.MaxTokens
	}
	echo["tools"], echo["parallel_tool_calls"] = toolsOf(r.Tools), !r.OneCall
	switch name, is := strings.CutPrefix(r.Choice, turn.ChoiceTool); {
	case is:
		echo["tool_choice"] = object{"type": "function", "name": name}
	case r.Choice == turn.ChoiceAny:
		echo["tool_choice"] = "required"
	case r.Choice != "":
		echo["tool_choice"] = r.Choice
	}
	switch f := r.Format; {
	case f == nil:
	case f.Schema == nil:
		echo["text"] = object{"format": object{"type": "json_object"}}
	default:
		echo["text"] = object{"format": object{"type": "json_schema", "name": f.Name, "description": f.Description, "schema": f.Schema, "strict": f.Strict}}
	}
}
