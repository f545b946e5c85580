package httpapi

import (
	"encoding/json"
	"errors"
	"net/http"
	"reflect"
	"strings"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// foreignPath begins the paths of OpenAI's API, and of Anthropic's.
const foreignPath = "/v1/"

// foreign returns the routes of others' APIs, for their clients. They aren't part of the OpenAPI
// document: a request there asks the hub for the operations that it consists of, each with its own
// permission.
func foreign() (all []route) {
	add := func(id, at, permission, summary string, in any) {
		o := &hub.Operation{Tag: "openai", ID: id, Root: true, Permission: permission, Summary: summary, Status: http.StatusOK}
		o.Method, o.Path, _ = strings.Cut(at, " ")
		if in != nil {
			o.In = reflect.TypeOf(in)
		}
		all = append(all, route{Operation: o, in: api.InputOf(o), foreign: true, serve: speakForeign})
	}
	body := foreignInput{}
	add("openaiModels", "GET /v1/models", "session.read", "List the models that the caller can ask", nil)
	add("openaiModel", "GET /v1/models/{model...}", "session.read", "Get a model", nil)
	add("openaiChat", "POST /v1/chat/completions", "run.start", "Ask a model, or the agent, as Chat Completions", body)
	add("openaiRespond", "POST /v1/responses", "run.start", "Ask a model, or the agent, as Responses", body)
	add("openaiResponse", "GET /v1/responses/{response}", "session.read", "Get a response", foreignEvents{})
	add("openaiDelete", "DELETE /v1/responses/{response}", "session.write", "Give a response up", nil)
	add("openaiInput", "GET /v1/responses/{response}/input_items", "session.read", "List what a response was asked", foreignPage{})
	add("openaiCancel", "POST /v1/responses/{response}/cancel", "run.cancel", "Cancel a response", nil)
	add("openaiEmbeddings", "POST /v1/embeddings", "run.start", "Ask a model for the vectors of texts", body)
	add("anthropicMessages", "POST /v1/messages", "run.start", "Ask a model, or the agent, as Anthropic's Messages", foreignMessages{})
	return all
}

// foreignInput is any JSON document: the surface reads it.
type foreignInput struct {
	Body json.RawMessage `json:"body" in:"body"`
}

// foreignMessages is a foreignInput whose query may say that there are members of a beta in it, as
// Claude Code's does. Those that aren't supported are refused by name, as others are.
type foreignMessages struct {
	Body json.RawMessage `json:"body" in:"body"`
	Beta bool            `json:"beta" in:"query"`
}

// foreignEvents is the query for a response's events.
type foreignEvents struct {
	Stream        bool   `json:"stream" in:"query"`
	StartingAfter uint64 `json:"starting_after" in:"query"`
}

// foreignPage is the query for a page of a list.
type foreignPage struct {
	Limit uint64 `json:"limit" in:"query"`
	Order string `json:"order" in:"query" enum:"asc desc"`
	After string `json:"after" in:"query"`
}

// speakForeign has the surface answer.
func speakForeign(x *exchange) error {
	p := x.s.cfg.OpenAI
	if p == nil {
		return featureOff(x, "openai")
	}
	return p.Serve(x.timed(), x.r, x.visitor())
}

// lost is an exchange for what has no route, nil where problems are this API's own.
func (s *Server) lost(w http.ResponseWriter, r *http.Request) *exchange {
	if s.cfg.OpenAI == nil || !strings.HasPrefix(r.URL.Path, foreignPath) {
		return nil
	}
	return &exchange{s: s, w: w, r: r, rt: &route{foreign: true}}
}

// apiKey returns the token that a request brings as Anthropic's clients do, or else the one that it
// brought as Authorization.
func apiKey(r *http.Request, token string) (string, error) {
	switch vs := r.Header.Values("X-Api-Key"); {
	case len(vs) == 0:
		return token, nil
	case len(vs) > 1 || token != "" || vs[0] == "" || len(vs[0]) > maxToken || strings.ContainsFunc(vs[0], func(c rune) bool { return c <= ' ' || c > '~' }):
		return "", fault.New(fault.Denied, "unauthenticated", "read X-Api-Key", errors.New("want one header: a token, and no Authorization beside it"))
	default:
		return vs[0], nil
	}
}
