// Package openai serves palyrad's models and its agent as OpenAI's API has them, so that programs
// written for that API work with palyrad:
//
//	h := openai.NewHandler()
//	s, err := httpapi.New(httpapi.Config{Hub: hub, OpenAI: h})
//
// The model that a request names chooses its lane. Of the model NAME, which the operator declared,
// the answer is one turn, or the vectors of texts: a call of the tool model.turn, decided, bounded
// and attested as any. The tools that such a request offers are the client's, which makes their
// calls itself. agent/NAME, or agent, is palyrad's own agent: the request is the prompt of a run,
// whose calls of palyrad's tools are made here. docs/OPENAI.md has what is supported.
//
// # Contract
//
// A member of a request that isn't supported is refused by name, never ignored. A piece of an
// answer is passed on when the provider has sent it. A client that goes cancels its run, unless the
// run is in the background. A response is read from the run that made it, so it outlives the
// process; it is its principal's alone, and gone when its session has ended.
//
// # What it does not protect against
//
// What a model answers is its provider's word, and the client's to judge: a call of a client's own
// tool is made without Palyra.
package openai

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/transport/behind"
)

// The paths.
const (
	pathModels     = "/v1/models"
	pathChat       = "/v1/chat/completions"
	pathResponses  = "/v1/responses"
	pathEmbeddings = "/v1/embeddings"
	pathMessages   = "/v1/messages"
)

// Needs are the permissions that a request takes besides its route's: those of the operations that
// it consists of.
var Needs = []string{"session.read", "session.write", "artifact.read", "run.cancel"}

// beat is the time between signs of life in a stream.
const beat = 15 * time.Second

// Handler answers under /v1/, behind the checks of palyra/transport/httpapi. It is safe for
// concurrent use.
type Handler struct {
	beat time.Duration

	mu   sync.Mutex
	kept map[owner]string // the session of an owner's stored responses; guarded by mu
}

// owner is whose a session is. Another token of the same principal is another owner.
type owner struct{ user, token string }

var _ behind.Surface = (*Handler)(nil)

// NewHandler returns a Handler.
func NewHandler() *Handler { return &Handler{beat: beat, kept: make(map[owner]string)} }

// Begin implements behind.Protocol. Nothing is kept beyond a request.
func (h *Handler) Begin(ctx context.Context) (wait func()) { return func() { <-ctx.Done() } }

// Serve implements behind.Protocol.
func (h *Handler) Serve(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	err := h.serve(w, r, v)
	var f *flaw
	if errors.As(err, &f) {
		f.answer(w, r)
		return nil
	}
	return err
}

func (h *Handler) serve(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	id, part, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, pathResponses+"/"), "/")
	switch path := r.URL.Path; {
	case path == pathModels:
		return h.listModels(w, r, v)
	case strings.HasPrefix(path, pathModels+"/"):
		return h.getModel(w, r, v, strings.TrimPrefix(path, pathModels+"/"))
	}
	if err := needs(v); err != nil {
		return err
	}
	release, err := v.Hold(answerBytes)
	if err != nil {
		return err
	}
	one := &oneAnswer{Hub: v.Hub, over: func() {}}
	defer one.end()
	asks := *v
	asks.Hub = one
	x := &exchange{h: h, w: w, r: r, v: &asks, held: []func(){release}, room: answerBytes}
	defer x.release()
	switch path := r.URL.Path; {
	case path == pathChat:
		return x.chat()
	case path == pathMessages:
		return x.messages()
	case path == pathEmbeddings:
		return x.embeddings()
	case path == pathResponses:
		return x.createResponse()
	case part == "cancel":
		return x.cancelResponse(id)
	case part == "input_items":
		return x.inputItems(id)
	case r.Method == http.MethodDelete:
		return x.deleteResponse(id)
	}
	return x.getResponse(id)
}

// oneAnswer has the hub count one answer at a time, the last. It counts each until its request is
// over, and a caller's share is that of a few lists: a request that held them while it waits for
// another would wait for itself.
type oneAnswer struct {
	hub.Hub
	mu   sync.Mutex
	over func() // the last answer counts no more; guarded by mu
}

// Do implements hub.Hub.
func (o *oneAnswer) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	ctx, over := budget.Request(ctx)
	o.mu.Lock()
	last := o.over
	o.over = over
	o.mu.Unlock()
	last()
	return o.Hub.Do(ctx, c, op, in)
}

func (o *oneAnswer) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.over()
}

// needs refuses a caller who couldn't do all that a request consists of: a run that can't be
// cancelled mustn't begin.
func needs(v *behind.Visitor) error {
	for _, p := range Needs {
		if v.Caller.Scopes != nil && !slices.Contains(v.Caller.Scopes, p) {
			return &flaw{status: http.StatusForbidden, kind: kindAccess, code: "missing_scope", text: "the token has no scope " + p + "; a request here takes run.start, " + strings.Join(Needs, ", ")}
		}
	}
	return nil
}

// exchange is a request and its answer. The goroutine of the request owns it.
type exchange struct {
	h    *Handler
	w    http.ResponseWriter
	r    *http.Request
	v    *behind.Visitor
	held []func()
	room int64 // bytes that are held
}

// answerBytes is what an answer holds until the client has it. It takes more when it's larger.
const answerBytes = 64 << 10

// grow makes room for n bytes.
func (x *exchange) grow(n int) error {
	for int64(n) > x.room {
		release, err := x.v.Hold(x.room)
		if err != nil {
			return err
		}
		x.held = append(x.held, release)
		x.room *= 2
	}
	return nil
}

func (x *exchange) release() {
	for _, f := range x.held {
		f()
	}
}

// model is one that a request may name.
type model struct {
	id    string
	agent bool
	hub.Model
}

// The names of the agent's models.
const (
	agentAlone  = "agent"
	agentPrefix = "agent/"
)

// models lists what the caller can ask.
func models(ctx context.Context, v *behind.Visitor) (all []model, err error) {
	p, err := hub.ListModels.Do(ctx, v.Hub, hub.Caller{}, hub.None{})
	if err != nil {
		return nil, err
	}
	for _, m := range p.Items {
		if m.Reason == "" {
			all = append(all, model{m.Name, false, m})
		}
	}
	for _, m := range slices.Clone(all) {
		if m.Kind == hub.ModelEmbeddings {
			continue // no agent asks it
		}
		all = append(all, model{agentPrefix + m.Name, true, m.Model})
		if m.Default {
			all = append(all, model{agentAlone, true, m.Model})
		}
	}
	return all, nil
}

// find returns the model of an id.
func find(ctx context.Context, v *behind.Visitor, id string) (*model, error) {
	all, err := models(ctx, v)
	if err != nil {
		return nil, err
	}
	for i := range all {
		if all[i].id == id {
			return &all[i], nil
		}
	}
	return nil, &flaw{status: http.StatusNotFound, kind: kindRequest, code: "model_not_found", param: "model",
		text: "there is no model of this name that you could ask: GET /v1/models lists those that there are, palyra models ls says why not"}
}

// name is what palyrad calls the model of an agent's run: "" for the default.
func (m *model) name() string {
	if m.id == agentAlone {
		return ""
	}
	return m.Name
}

func (m *model) lane() string {
	if m.agent {
		return "agent"
	}
	return "raw"
}

// object is the model as a list has it. palyrad doesn't know when a model was made.
func (m *model) object() object {
	return object{"id": m.id, "object": "model", "created": 0, "owned_by": m.Provider, "palyra": object{"lane": m.lane(), "model": m.Model.Model, "kind": m.Kind, "context": m.Context}}
}

func (h *Handler) listModels(w http.ResponseWriter, r *http.Request, v *behind.Visitor) error {
	all, err := models(r.Context(), v)
	if err != nil {
		return err
	}
	list := []object{}
	for i := range all {
		list = append(list, all[i].object())
	}
	return answer(w, http.StatusOK, object{"object": "list", "data": list})
}

func (h *Handler) getModel(w http.ResponseWriter, r *http.Request, v *behind.Visitor, id string) error {
	m, err := find(r.Context(), v, id)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, m.object())
}

// object is one of JSON.
type object = map[string]any

// answer answers with a JSON document.
func answer(w http.ResponseWriter, status int, v any) error {
	b, err := encode(v)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", hub.MediaJSON)
	w.WriteHeader(status)
	_, _ = w.Write(append(b, '\n')) // the client may have gone
	return nil
}

// encode writes JSON, with text as it is.
func encode(v any) ([]byte, error) {
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, fault.New(fault.Internal, "internal", "encode answer", err)
	}
	return []byte(strings.TrimSuffix(b.String(), "\n")), nil
}
