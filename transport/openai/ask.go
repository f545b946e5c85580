package openai

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// errGone is the error of an answer that no client takes.
var errGone = errors.New("the client has gone")

// cleanup bounds what is done for a request when it's over.
const cleanup = 30 * time.Second

// question is what a request asks, in whichever of the forms.
type question struct {
	model   *model
	meta    metadata
	request turn.Request      // of a model
	agent   hub.Agent         // of the agent
	store   bool              // the answer stays, and can be gone on with
	kept    map[string]string // of the run's metadata
	session string            // to go on in; "": none was named
}

// task is the run of a question.
type task struct {
	x   *exchange
	run hub.Run
	own bool // the session ends with it
	// goes: the run goes on without the client.
	goes bool
}

// begin begins the run of a question.
func (x *exchange) begin(ctx context.Context, q *question) (*task, error) {
	n := hub.NewRun{Staged: q.meta.staged, Metadata: q.kept}
	switch embeds := q.model.Kind == hub.ModelEmbeddings; {
	case embeds && q.request.Embed == nil:
		return nil, bad("model", "unsupported_value", "it makes embeddings, and has no answers: POST "+pathEmbeddings)
	case q.request.Embed != nil && !embeds:
		return nil, bad("model", "unsupported_value", "it makes no embeddings: GET /v1/models says which does, as palyra.kind")
	}
	if q.model.agent {
		n.Agent = &q.agent
		n.Agent.Model = q.model.name()
	} else {
		if err := q.request.Fits(q.model.Provider); err != nil {
			return nil, err
		}
		text, err := q.request.Encode()
		if err == nil {
			_, err = turn.ParseRequest(text)
		}
		if err != nil {
			return nil, err
		}
		input, err := canon.Marshal(map[string]any{"model": q.model.Name, "request": json.RawMessage(text)})
		if err != nil {
			return nil, err
		}
		n.Steps, n.Parallel = []hub.Step{{Tool: turn.Tool, Input: input}}, true
	}
	t := &task{x: x}
	for again := false; ; again = true {
		var kept bool
		var err error
		if n.Session, kept, err = x.session(ctx, q, again); err != nil {
			return nil, err
		}
		made := q.session == "" && !kept && !q.goesOn()
		t.own = made && !q.store && q.meta.session == ""
		t.run, err = hub.StartRun.Do(ctx, x.v.Hub, hub.Caller{}, n)
		switch {
		case err == nil:
			return t, nil
		case kept && !again && errors.Is(err, fault.ErrNoSession): // it was ended by others
			continue
		case made: // no answer would name it
			t.endSession(n.Session)
		}
		return nil, err
	}
}

// newSession as a label's value asks for a session that stays.
const newSession = "new"

// session returns where a question's run is made. kept: in the session of all stored answers of the
// caller's.
func (x *exchange) session(ctx context.Context, q *question, anew bool) (id string, kept bool, err error) {
	switch {
	case q.session != "":
		return q.session, false, nil
	case q.meta.session != "" && q.meta.session != newSession:
		id, err = x.named(ctx, q.meta.session)
		return id, false, err
	case q.store && !q.model.agent && q.meta.session == "":
		id, err = x.h.stored(ctx, x, anew)
		return id, true, err
	}
	name := title
	if q.store && q.meta.session == "" {
		name = titleConversation
	}
	s, err := hub.CreateSession.Do(ctx, x.v.Hub, hub.Caller{}, hub.NewSession{Title: name})
	if errors.Is(err, fault.ErrTooMany) && x.giveUp(ctx) {
		s, err = hub.CreateSession.Do(ctx, x.v.Hub, hub.Caller{}, hub.NewSession{Title: name})
	}
	return s.ID, false, err
}

// What people see of a session. One of titleConversation is open for stored responses of the agent
// alone, and may be given up for another.
const (
	title             = "openai"
	titleConversation = "openai conversation"
)

// giveUp ends the conversation of the caller's that was used least recently, of those in which
// nothing is under way. It reports whether it has.
func (x *exchange) giveUp(ctx context.Context) bool {
	p, err := hub.ListSessions.Do(ctx, x.v.Hub, hub.Caller{}, hub.SessionQuery{Principal: x.v.Caller.User, State: hub.SessionOpen, PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		return false
	}
	type conversation struct {
		id   string
		used time.Time
	}
	var all []conversation
	for _, s := range p.Items {
		if s.Title != titleConversation {
			continue
		}
		used := s.Created
		runs, err := hub.ListRuns.Do(ctx, x.v.Hub, hub.Caller{}, hub.RunQuery{Session: s.ID, PageQuery: hub.PageQuery{Limit: 1}})
		if err != nil {
			return false
		}
		if len(runs.Items) > 0 {
			if runs.Items[0].Ended == nil {
				continue
			}
			used = *runs.Items[0].Ended
		}
		all = append(all, conversation{s.ID, used})
	}
	slices.SortFunc(all, func(a, b conversation) int { return a.used.Compare(b.used) })
	for _, c := range all {
		_, err := hub.EndSession.Do(ctx, x.v.Hub, hub.Caller{}, hub.SessionChange{ID: c.id, Idle: true})
		if !errors.Is(err, fault.ErrLocked) { // nothing was begun in it meanwhile, nor beside its newest
			return err == nil
		}
	}
	return false
}

// named returns a session that the caller names, if it's theirs and open.
func (x *exchange) named(ctx context.Context, id string) (string, error) {
	no := &flaw{status: http.StatusNotFound, kind: kindRequest, param: "metadata." + labelSession, code: "session_not_found", text: "you have no open session of this name"}
	if ident.Check(ident.Session, id) != nil {
		return "", no
	}
	s, err := hub.GetSession.Do(ctx, x.v.Hub, hub.Caller{}, id)
	switch {
	case fault.KindOf(err) == fault.NotFound, err == nil && (s.Principal != x.v.Caller.User || s.State != hub.SessionOpen):
		return "", no
	}
	return id, err
}

// stored returns the session of the caller's stored answers: the one of this process, that of an
// earlier one, or a new one. A session for each would soon be as many as a principal may have.
func (h *Handler) stored(ctx context.Context, x *exchange, anew bool) (string, error) {
	who := owner{x.v.Caller.User, x.v.Caller.Token}
	h.mu.Lock()
	id := h.kept[who]
	h.mu.Unlock()
	if id != "" && !anew {
		return id, nil
	}
	name := title + " " + who.token
	if !anew {
		p, err := hub.ListSessions.Do(ctx, x.v.Hub, hub.Caller{}, hub.SessionQuery{Principal: who.user, State: hub.SessionOpen, PageQuery: hub.PageQuery{Limit: 1000}})
		if err != nil {
			return "", err
		}
		for i := range p.Items {
			if p.Items[i].Title == name {
				id = p.Items[i].ID
			}
		}
	}
	if id == "" || anew {
		s, err := hub.CreateSession.Do(ctx, x.v.Hub, hub.Caller{}, hub.NewSession{Title: name})
		if err != nil {
			return "", err
		}
		id = s.ID
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.kept) >= maxKept {
		clear(h.kept) // they're found again
	}
	h.kept[who] = id
	return id, nil
}

// maxKept bounds the sessions that are remembered.
const maxKept = 1024

// end ends what the request began, unless the run is to go on: for it goes, or the server ends
// before it, which isn't the client's doing.
func (t *task) end(err error) {
	if t.goes || err != nil && fault.KindOf(context.Cause(t.x.r.Context())) == fault.Unavailable {
		return
	}
	if t.own {
		t.endSession(t.run.Session) // and the run, if it hasn't ended
		return
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.x.r.Context()), cleanup)
		defer cancel()
		_, _ = hub.CancelRun.Do(ctx, t.x.v.Hub, hub.Caller{}, t.run.ID)
	}
}

func (t *task) endSession(id string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.x.r.Context()), cleanup)
	defer cancel()
	// One that stays open is ended when it was idle for long.
	_, _ = hub.EndSession.Do(ctx, t.x.v.Hub, hub.Caller{}, hub.SessionChange{ID: id})
}

// get reads the run when it has ended.
func (t *task) get(ctx context.Context) error {
	r, err := hub.GetRun.Do(ctx, t.x.v.Hub, hub.Caller{}, t.run.ID)
	if err == nil {
		t.run = r
	}
	return err
}

// name is the run's id behind another prefix.
func name(prefix, run string) string { return prefix + strings.TrimPrefix(run, ident.Run+"_") }

// runOf is the run of a response's id, "" if it's none.
func runOf(prefix, id string) string {
	hex, ok := strings.CutPrefix(id, prefix)
	if run := ident.Run + "_" + hex; ok && ident.Check(ident.Run, run) == nil {
		return run
	}
	return ""
}

// about is what an answer has of palyrad's.
func (t *task) about(m *model) object { return about(&t.run, m.lane()) }

func about(run *hub.Run, lane string) object {
	receipts := []uint64{}
	for i := range run.Steps {
		if n := run.Steps[i].LogIndex; n != nil {
			receipts = append(receipts, *n)
		}
	}
	return object{"run": run.ID, "session": run.Session, "lane": lane, "receipts": receipts}
}

// said is a message of a request.
type said struct {
	role   string
	texts  []string
	parts  []turn.Part // of an assistant's, in order; nil: the texts are all
	result *turn.Result
}

// The roles of requests that turn.Request doesn't have.
const (
	roleSystem    = "system"
	roleDeveloper = "developer"
	roleTool      = "tool"
)

// between stands between what several messages tell a model first.
const between = "\n\n"

// ask puts the messages into a question to a model. list names them.
func (q *question) ask(f *fields, list string, all []said) {
	var system []string
	if q.request.System != "" {
		system = append(system, q.request.System)
	}
	for i, m := range all {
		switch m.role {
		case roleSystem, roleDeveloper:
			if len(q.request.Messages) == 0 {
				system = append(system, m.texts...)
				continue
			}
			m.role = turn.System
		case roleTool:
			q.add(turn.User, turn.Part{Result: m.result})
			continue
		}
		parts := m.parts
		for _, s := range m.texts {
			parts = append(parts, turn.Part{Text: s})
		}
		if len(parts) == 0 {
			if m.role != turn.Assistant {
				f.fail(in(list, i)+".content", "missing_required_parameter", "want text")
			}
			continue // an assistant that said nothing
		}
		q.add(m.role, parts...)
	}
	q.request.System = strings.Join(system, between)
	n := len(q.request.Messages)
	for n > 0 && q.request.Messages[n-1].Role == turn.System {
		n--
	}
	if n == 0 || q.request.Messages[n-1].Role != turn.User {
		f.fail(list, "invalid_value", "the last is a user's, or has the result of a call")
	}
}

// add adds parts to the last message, if it's of the same role.
func (q *question) add(role string, parts ...turn.Part) {
	if n := len(q.request.Messages); n > 0 && q.request.Messages[n-1].Role == role {
		q.request.Messages[n-1].Parts = append(q.request.Messages[n-1].Parts, parts...)
		return
	}
	q.request.Messages = append(q.request.Messages, turn.Message{Role: role, Parts: parts})
}

// goesOn reports whether the client names a session that has something already.
func (q *question) goesOn() bool { return q.meta.session != "" && q.meta.session != newSession }

// fresh leaves of a conversation what an agent's session doesn't have, as clients send it that know
// of no sessions: what stands behind the assistant's last message, if the session's last run ended
// with that, and instructions, which are each request's own. Else it leaves all.
func (x *exchange) fresh(q *question, all []said) ([]said, error) {
	k := len(all) - 1
	for k >= 0 && all[k].role != turn.Assistant {
		k--
	}
	if k < 0 || !q.goesOn() {
		return all, nil
	}
	ctx := x.r.Context()
	session, err := x.named(ctx, q.meta.session)
	if err != nil {
		return nil, err
	}
	p, err := hub.ListRuns.Do(ctx, x.v.Hub, hub.Caller{}, hub.RunQuery{Session: session, PageQuery: hub.PageQuery{Limit: 1}})
	if err != nil || len(p.Items) == 0 {
		return all, err
	}
	run, err := hub.GetRun.Do(ctx, x.v.Hub, hub.Caller{}, p.Items[0].ID)
	if err != nil || run.Answer == nil || !all[k].is(run.Answer) {
		return all, err
	}
	q.agent.After = run.ID
	left := slices.DeleteFunc(slices.Clone(all[:k]), func(m said) bool { return m.role != roleSystem && m.role != roleDeveloper })
	return append(left, all[k+1:]...), nil
}

// is reports whether a message is what an agent's run ended with: its calls, or its text behind
// that of earlier turns.
func (m *said) is(a *hub.AgentEnded) bool {
	var ids, calls []string
	text := strings.Join(m.texts, "")
	for _, p := range m.parts {
		if text += p.Text; p.Call != nil {
			ids = append(ids, p.Call.ID)
		}
	}
	for _, c := range a.Calls {
		calls = append(calls, c.ID)
	}
	return slices.Equal(ids, calls) && (len(calls) > 0 || a.Text != "" && strings.HasSuffix(text, a.Text))
}

// tell makes the messages what an agent is to do. A single one of a user's is the prompt; several
// stand under their roles. In a session that goes on they're what's new alone: it has the rest.
func (q *question) tell(f *fields, list string, all []said, goesOn bool) {
	var instructions []string
	var talk []said
	for i, m := range all {
		switch {
		case m.role == roleSystem || m.role == roleDeveloper:
			instructions = append(instructions, m.texts...)
		case m.role == roleTool && !goesOn:
			f.fail(in(list, i), "unsupported_value", "a result is of a call in a session that goes on: name it with previous_response_id, or metadata.%s", labelSession)
		case m.role == roleTool:
			q.agent.Results = append(q.agent.Results, hub.AgentResult{ID: m.result.ID, Text: m.result.Text, Failed: m.result.Failed})
		case m.parts != nil || m.role == turn.Assistant && goesOn:
			f.fail(in(list, i), "unsupported_value", "the session has what was said and called before: send what's new alone")
		default:
			talk = append(talk, m)
		}
	}
	var b strings.Builder
	for i, m := range talk {
		if len(talk) > 1 {
			b.WriteString("# " + m.role + "\n")
		}
		b.WriteString(strings.Join(m.texts, "\n\n"))
		if i < len(talk)-1 {
			b.WriteString("\n\n")
		}
	}
	q.agent.Instructions, q.agent.Prompt = strings.Join(instructions, between), b.String()
	n := len(talk)
	switch {
	case n == 0 && len(q.agent.Results) > 0:
	case n == 0 || talk[n-1].role != turn.User || len(talk[n-1].texts) == 0:
		f.fail(list, "invalid_value", "the last is a user's, and has text")
	case len(q.agent.Prompt) > hub.MaxPrompt:
		f.fail(list, "invalid_value", "want at most %d bytes", hub.MaxPrompt)
	}
	if len(q.agent.Instructions) > hub.MaxInstructions {
		f.fail(list, "invalid_value", "want at most %d bytes of instructions", hub.MaxInstructions)
	}
}

// equip gives an agent the client's tools.
func (q *question) equip(f *fields, offers []turn.Offer) {
	for i, o := range offers {
		if o.Namespace != "" {
			f.fail(in("tools", i)+".type", "unsupported_value", "want function: the agent's lane has no namespaces")
		}
		if o.Strict {
			f.fail(in("tools", i)+".strict", "unsupported_value", "the agent's lane has no strict tools")
		}
		q.agent.Functions = append(q.agent.Functions, hub.AgentFunction{Name: o.Name, Description: o.Description, Schema: o.Schema})
	}
	if len(offers) > hub.MaxFunctions {
		f.fail("tools", "invalid_value", "want at most %d", hub.MaxFunctions)
	}
}

// freely refuses to have an agent call what it didn't choose.
func freely(f *fields) {
	f.only("tool_choice", `"auto"`)
	f.only("parallel_tool_calls", "true")
}

// offer is a tool of the client's.
func offer(f *fields, name, description string, schema json.RawMessage, strict bool) turn.Offer {
	if schema == nil {
		schema = json.RawMessage(`{"type":"object","properties":{}}`)
	}
	if schema[0] != '{' {
		f.fail("parameters", "invalid_type", "want a schema that is an object")
	}
	if !offered(name) {
		f.fail("name", "invalid_value", "want 1 to 64 of a-z, A-Z, 0-9, _ and -")
	}
	return turn.Offer{Name: name, Description: description, Schema: schema, Strict: strict}
}

func offered(name string) bool {
	return name != "" && len(name) <= 64 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-") == ""
}
