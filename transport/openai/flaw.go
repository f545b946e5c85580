package openai

import (
	"cmp"
	"net/http"
	"strconv"
	"strings"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api"
)

// The types of errors.
const (
	kindRequest = "invalid_request_error"
	kindKey     = "invalid_api_key"
	kindAccess  = "access_error"
	kindRate    = "rate_limit_error"
	kindServer  = "server_error"
)

// flaw is an error in the client's words.
type flaw struct {
	status      int
	kind        string // type
	param, code string // "": null
	text        string
	wait        int64 // seconds after which to ask again; 0: it isn't known
	final       bool  // asking again changes nothing
	more        object
}

// Error implements error.
func (f *flaw) Error() string { return f.text }

// bad is a flaw of a request's member.
func bad(param, code, text string) *flaw {
	return &flaw{status: http.StatusBadRequest, kind: kindRequest, param: param, code: code, text: text}
}

// object is the flaw as error objects have it.
func (f *flaw) object() object {
	null := func(s string) any {
		if s == "" {
			return nil
		}
		return s
	}
	o := object{"message": f.text, "type": f.kind, "param": null(f.param), "code": null(f.code)}
	if f.more != nil {
		o["palyra"] = f.more
	}
	return o
}

// noThreads is the code of a refusal of a conversation that the server is to hold. Anthropic's tool
// runner sends all of it then.
const noThreads = "thread_unsupported_request"

// anthropicKinds are the types of errors that /v1/messages has, by status.
var anthropicKinds = map[int]string{400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
	413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error"}

// document is the body of an answer that is this error, as the path's clients expect it.
func (f *flaw) document(path string) object {
	if path != pathMessages {
		return object{"error": f.object()}
	}
	kind := anthropicKinds[f.status]
	switch {
	case kind == "" && f.status < 500:
		kind = "invalid_request_error"
	case kind == "":
		kind = "api_error"
	}
	text := f.text
	if f.param != "" {
		text = f.param + ": " + text
	}
	o := object{"type": kind, "message": text}
	if f.code == noThreads {
		o["details"] = object{"error_code": f.code, "unsupported": []string{f.param}}
	}
	return object{"type": "error", "error": o}
}

// answer answers a request with the error.
func (f *flaw) answer(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	if f.wait > 0 {
		h.Set("Retry-After", strconv.FormatInt(f.wait, 10))
	}
	if f.final {
		h.Set("X-Should-Retry", "false") // both makers' clients read it
	}
	_ = answer(w, f.status, f.document(r.URL.Path))
}

// Refuse implements behind.Surface.
func (h *Handler) Refuse(w http.ResponseWriter, r *http.Request, p api.Problem) {
	f := flawOf(&p)
	if p.Status == http.StatusUnauthorized {
		f.code = "invalid_api_token"
		if r.Header.Get("Authorization") == "" && r.Header.Get("X-Api-Key") == "" {
			f.code = "missing_bearer_token"
		}
	}
	f.answer(w, r)
}

// flawOf is a problem in the client's words.
func flawOf(p *api.Problem) *flaw {
	f := &flaw{status: p.Status, kind: kindServer, code: cmp.Or(p.Reason, p.Kind), text: cmp.Or(p.Detail, p.Title)}
	if p.Hint != "" {
		f.text += ": " + p.Hint
	}
	switch {
	case p.Status == http.StatusUnauthorized:
		f.kind = kindKey
	case p.Status == http.StatusForbidden && fault.Code(p.Reason) == fault.ErrFeatureOff:
		f.kind, f.code = kindAccess, "feature_disabled"
	case p.Status == http.StatusForbidden && p.Permission != "":
		f.kind, f.code = kindAccess, "missing_scope"
	case p.Status == http.StatusForbidden:
		f.kind, f.code = kindAccess, "access_denied"
	case p.Status == http.StatusTooManyRequests:
		f.kind = kindRate
	case p.Status < 500:
		f.kind = kindRequest
	}
	more := object{}
	for _, m := range []struct{ name, value string }{{"reason", p.Reason}, {"decision", p.Decision}, {"layer", p.Layer}, {"request", strings.TrimPrefix(p.Instance, "urn:palyra:request:")}} {
		if m.value != "" {
			more[m.name] = m.value
		}
	}
	if len(more) > 0 {
		f.more = more
	}
	return f
}

// upstream are the failures of providers in the client's words: the status, the type, and the
// code where it isn't the class. Asking again is the client's to do where that may help.
var upstream = map[string]struct {
	status int
	kind   string
	code   string
}{
	turn.AuthInvalid:    {http.StatusBadGateway, kindServer, ""},
	turn.Denied:         {http.StatusBadGateway, kindServer, ""},
	turn.RateLimited:    {http.StatusTooManyRequests, kindRate, "rate_limit_exceeded"},
	turn.Quota:          {http.StatusTooManyRequests, kindRate, "insufficient_quota"},
	turn.ContextWindow:  {http.StatusBadRequest, kindRequest, "context_length_exceeded"},
	turn.ContentBlocked: {http.StatusBadRequest, kindRequest, "content_policy_violation"},
	turn.Malformed:      {http.StatusBadGateway, kindServer, ""},
	turn.Unreachable:    {http.StatusBadGateway, kindServer, ""},
	turn.TimedOut:       {http.StatusGatewayTimeout, kindServer, ""},
	turn.Transient:      {http.StatusServiceUnavailable, kindServer, ""},
	turn.Permanent:      {http.StatusBadGateway, kindServer, ""},
}

// failed is what a provider's failure is to the client.
func failed(e *turn.Error) *flaw {
	u, ok := upstream[e.Class]
	if !ok {
		u = upstream[turn.Malformed]
	}
	return &flaw{status: u.status, kind: u.kind, code: cmp.Or(u.code, e.Class), text: "the model's provider: " + e.Message, wait: (e.RetryAfter + 999) / 1000,
		final: !e.Again() && u.status != http.StatusBadRequest, more: object{"class": e.Class, "status": e.Status}}
}

// unmade is what a turn that wasn't made is to the client.
func unmade(run *hub.Run, st *hub.StepResult) *flaw {
	f := &flaw{status: http.StatusInternalServerError, kind: kindServer, code: cmp.Or(st.Reason, st.Outcome, run.Reason, run.State), text: cmp.Or(st.Error, "the model wasn't asked"), final: true, more: object{"run": run.ID}}
	if st.Hint != "" {
		f.text += ": " + st.Hint
	}
	d := st.Denial
	switch code := fault.Code(cmp.Or(st.Reason, run.Reason)); {
	case code == fault.ErrBudgetTokens || code == fault.ErrBudgetCost:
		f.status, f.kind, f.code = http.StatusTooManyRequests, kindRate, "insufficient_quota"
		f.more["reason"], f.more["layer"] = code, hub.LayerBudget
	case d != nil:
		f.status, f.kind, f.code = http.StatusForbidden, kindAccess, "access_denied"
		f.text = map[string]string{hub.LayerPolicy: "the operator's policy doesn't permit to ask this model", hub.LayerApproval: "a person's approval is needed, and there was none",
			hub.LayerBudget: "the run's budget is used up", hub.LayerStop: "all calls are stopped", hub.LayerIsolation: "this host can't confine the call"}[d.Layer]
		f.text = cmp.Or(f.text, "the call is refused")
		if d.Comment != "" {
			f.text += ": " + d.Comment
		}
		f.more["decision"], f.more["layer"] = d.DecisionID, d.Layer
		if d.Reason != "" {
			f.more["reason"] = d.Reason
		}
	case run.State == hub.RunCancelled:
		f.status, f.kind, f.code, f.text = http.StatusConflict, kindRequest, "cancelled", "the run was cancelled"
	case st.Outcome == "timed_out":
		f.status, f.code, f.text, f.final = http.StatusGatewayTimeout, "timed_out", "the model didn't answer in time", false
	case st.Outcome == "" && fault.Code(st.Reason) == fault.ErrInvalidInput:
		f.status, f.kind = http.StatusBadRequest, kindRequest
	}
	return f
}
