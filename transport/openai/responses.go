package openai

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/fault"
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
	if q.background {
		t.goes = true
		return answer(x.w, http.StatusOK, newReply(x, t, q.model, q.echo).object("queued"))
	}
	b := newReply(x, t, q.model, q.echo)
	b.stoppable, b.since = q.store, since
	if q.stream {
		b.stream = &stream{w: x.w}
	}
	err = x.follow(t.run.ID, b.take)
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
	if q.background && (!q.store || q.stream) {
		f.fail("background", "unsupported_value", "a response in the background is stored, and fetched with GET: want neither store false nor stream")
	}
	if o := f.raw("stream_options"); o != nil {
		o := open("stream_options", o)
		o.only("include_obfuscation", "false")
		f.add(o.rest(""))
	}
	q.meta = f.metadata()
	f.text("user")
	f.text("safety_identifier")
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
	q.echo = object{"metadata": q.meta.all, "store": q.store, "background": q.background}
	for name, v := range map[string]string{"instructions": instructions, "previous_response_id": previous, "safety_identifier": f.text("safety_identifier")} {
		if v != "" {
			q.echo[name] = v
		}
	}
	where := " in the agent's lane"
	switch {
	case q.resume:
		where = " where a response is resumed"
	case q.model.agent:
		if instructions != "" {
			all = slices.Insert(all, 0, said{role: roleDeveloper, texts: []string{instructions}})
		}
		q.tell(f, "input", all, q.session != "" || q.meta.session != "" && q.meta.session != newSession)
		offers, shown := responseTools(f)
		q.echo["tools"] = shown
		q.equip(f, offers)
		if q.agent.MaxTokens = f.count("max_output_tokens"); q.agent.MaxTokens > 0 {
			q.echo["max_output_tokens"] = q.agent.MaxTokens
		}
	default:
		where = ""
		q.request.System = instructions
		q.ask(f, "input", all)
		responseOptions(f, &q.request)
		repeatRequest(q.echo, &q.request)
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
	ended := slices.Contains([]string{hub.RunDone, hub.RunFailed, hub.RunCancelled}, run.State)
	q.previous, q.session = run.ID, run.Session
	switch {
	case q.model.agent != (run.Agent != nil):
		return bad("previous_response_id", "invalid_value", "the response is of the other lane: name a model of the same")
	case resume:
		q.resume = true
		return nil
	case !ended:
		return bad("previous_response_id", "invalid_value", "the response isn't over: resume it without input, or cancel it")
	case q.model.agent:
		q.agent.After = run.ID
		return nil
	}
	asked, err := askedOf(run)
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

// askedOf returns what a raw response's model was asked.
func askedOf(run *hub.Run) (*turn.Request, error) {
	var in struct {
		Request json.RawMessage `json:"request"`
	}
	if err := json.Unmarshal(run.Steps[0].Input, &in); err != nil {
		return nil, err
	}
	return turn.ParseRequest(in.Request)
}

// response reads the run of a response that is the caller's and wasn't given up. param is the
// member that names it.
func (x *exchange) response(ctx context.Context, id, param string) (*hub.Run, error) {
	code := "response_not_found"
	status := http.StatusNotFound
	if param != "" {
		code, status = "previous_response_not_found", http.StatusBadRequest
	}
	no := &flaw{status: status, kind: kindRequest, param: param, code: code, text: "you have no stored response of this id"}
	run := runOf("resp_", id)
	if run == "" {
		return nil, no
	}
	r, err := hub.GetRun.Do(ctx, x.v.Hub, hub.Caller{}, run)
	switch {
	case fault.KindOf(err) == fault.NotFound, err == nil && (r.Principal != x.v.Caller.User || r.Agent == nil && (len(r.Steps) == 0 || r.Steps[0].Tool != turn.Tool || len(r.Steps) > 1)):
		return nil, no
	case err != nil:
		return nil, err
	}
	s, err := hub.GetSession.Do(ctx, x.v.Hub, hub.Caller{}, r.Session)
	if err == nil && s.State != hub.SessionOpen {
		return nil, no
	}
	return &r, err
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
			s.parts = []turn.Part{{Call: &turn.Call{ID: m.must("call_id"), Name: m.must("name"), Arguments: m.text("arguments")}}}
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

// responseTools reads the client's tools, and says how a response has them.
func responseTools(f *fields) (offers []turn.Offer, shown []object) {
	shown = []object{}
	for i, text := range f.list("tools") {
		t := open(in("tools", i), text)
		if kind := t.must("type"); kind != "function" {
			t.fail("type", "unsupported_value", "want function: palyrad's own tools are the agent's, model agent/NAME")
		}
		o := offer(t, t.must("name"), t.text("description"), t.raw("parameters"), t.yes("strict"))
		offers, shown = append(offers, o), append(shown, toolOf(o))
		f.add(t.rest(""))
	}
	return offers, shown
}

func toolOf(o turn.Offer) object {
	return object{"type": "function", "name": o.Name, "description": o.Description, "parameters": o.Schema, "strict": o.Strict}
}

// responseOptions reads what says how a model answers.
func responseOptions(f *fields, r *turn.Request) {
	sampling(f, r)
	r.MaxTokens = f.count("max_output_tokens")
	r.CacheKey = f.text("prompt_cache_key")
	r.Tools, _ = responseTools(f)
	choice(f, r, func(o *fields) string { return o.must("name") })
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
	if r.MaxTokens > 0 {
		echo["max_output_tokens"] = r.MaxTokens
	}
	tools := []object{}
	for _, o := range r.Tools {
		tools = append(tools, toolOf(o))
	}
	echo["tools"], echo["parallel_tool_calls"] = tools, !r.OneCall
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

// getResponse answers GET /v1/responses/{id}.
func (x *exchange) getResponse(id string) error {
	b, err := x.recorded(id)
	if err != nil {
		return err
	}
	return answer(x.w, http.StatusOK, b.object(b.status))
}

// cancelResponse answers POST /v1/responses/{id}/cancel.
func (x *exchange) cancelResponse(id string) error {
	run, err := x.response(x.r.Context(), id, "")
	if err != nil {
		return err
	}
	if _, err := hub.CancelRun.Do(x.r.Context(), x.v.Hub, hub.Caller{}, run.ID); err != nil {
		return err
	}
	return x.getResponse(id)
}

// recorded makes a response of what is on record.
func (x *exchange) recorded(id string) (*reply, error) {
	ctx := x.r.Context()
	run, err := x.response(ctx, id, "")
	if err != nil {
		return nil, err
	}
	m := &model{agent: run.Agent != nil}
	if m.agent {
		m.id = agentAlone
		if run.Agent.Model != "" {
			m.id = agentPrefix + run.Agent.Model
		}
	} else {
		var in struct {
			Model string `json:"model"`
		}
		if err := json.Unmarshal(run.Steps[0].Input, &in); err != nil {
			return nil, err
		}
		m.id = in.Model
	}
	echo := object{"store": true}
	if !m.agent {
		asked, err := askedOf(run)
		if err != nil {
			return nil, err
		}
		repeatRequest(echo, asked)
	}
	b := newReply(x, &task{x: x, run: *run}, m, echo)
	for i := range run.Steps {
		st := &run.Steps[i]
		if err := b.take(&item{began: &hub.StepStarted{Step: st.Index, Tool: st.Tool}}); err != nil {
			return nil, err
		}
		if st.Tool == turn.Tool && st.Outcome == "executed" {
			if err := x.repeat(ctx, run, st, b); err != nil {
				return nil, err
			}
		}
		if st.State == hub.StepDone || st.State == hub.StepFailed {
			if err := b.take(&item{ended: st}); err != nil {
				return nil, err
			}
		}
	}
	switch run.State {
	case hub.RunPending, hub.RunAccepted:
		b.status = "queued"
	case hub.RunInProgress:
		b.status = "in_progress"
	case hub.RunWaitingApproval:
		p, err := hub.ListApprovals.Do(ctx, x.v.Hub, hub.Caller{}, hub.ApprovalQuery{Run: run.ID, State: hub.ApprovalPending})
		if err != nil && fault.KindOf(err) != fault.Denied { // a token that may not read approvals
			return nil, err
		}
		for i := range p.Items {
			if err := b.ask(&p.Items[i]); err != nil {
				return nil, err
			}
		}
		b.wait()
	default:
		return b, b.settle()
	}
	return b, nil
}

// repeat gives a reply the events of a turn that is on record.
func (x *exchange) repeat(ctx context.Context, run *hub.Run, st *hub.StepResult, b *reply) error {
	a, err := x.answerOf(ctx, run, st)
	if err != nil {
		return err
	}
	for i := range a.Message.Parts {
		p := &a.Message.Parts[i]
		if err := b.take(&item{said: &turn.Event{Text: p.Text, Call: p.Call, Opaque: p.Opaque}}); err != nil {
			return err
		}
	}
	return b.take(&item{said: &turn.Event{End: a.End, Error: a.Error, Usage: &a.Usage}})
}

// answerOf reads a model's answer from its step.
func (x *exchange) answerOf(ctx context.Context, run *hub.Run, st *hub.StepResult) (turn.Answer, error) {
	if err := x.grow(int(st.Stdout.Size)); err != nil {
		return turn.Answer{}, err
	}
	if int64(len(st.Stdout.Text)) == st.Stdout.Size {
		return turn.ReadAnswer(strings.NewReader(st.Stdout.Text))
	}
	a, err := hub.GetArtifact.Do(ctx, x.v.Hub, hub.Caller{}, hub.ArtifactQuery{Run: run.ID, Digest: st.Stdout.Artifact.String()})
	if err != nil {
		return turn.Answer{}, fault.New(fault.NotFound, "not_found", "read response", errors.New(cmp.Or(st.Stdout.LostWhy, "its text isn't kept any more")))
	}
	defer a.Close()
	return turn.ReadAnswer(a)
}
