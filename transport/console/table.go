package console

import (
	"context"
	"net/http"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// page is a page, or what one of its buttons does.
type page struct {
	method string
	words  []string // of the path, behind root; "*" is any
	do     func(*turn) error
}

// table has all of them.
var table = []page{
	{http.MethodGet, []string{""}, func(t *turn) error { return see(t.w, t.r, first) }},
	{http.MethodGet, []string{"questions"}, (*turn).questions},
	{http.MethodGet, []string{"questions", "*"}, (*turn).question},
	{http.MethodPost, []string{"questions", "*"}, (*turn).answer},
	{http.MethodPost, []string{"grants", "*", "revoke"}, (*turn).revokeGrant},
	{http.MethodGet, []string{"runs"}, (*turn).runs},
	{http.MethodGet, []string{"runs", "*"}, (*turn).run},
	{http.MethodGet, []string{"runs", "*", "output", "*"}, (*turn).output},
	{http.MethodGet, []string{"runs", "*", "output", "*", "*"}, (*turn).file},
	{http.MethodPost, []string{"runs", "*", "cancel"}, (*turn).cancel},
	{http.MethodGet, []string{"agent"}, (*turn).agent},
	{http.MethodPost, []string{"agent"}, (*turn).askAgent},
	{http.MethodPost, []string{"agent", "instructions"}, (*turn).instructions},
	{http.MethodPost, []string{"agent", "instructions", "accept"}, (*turn).acceptInstructions},
	{http.MethodPost, []string{"agent", "instructions", "revoke"}, (*turn).revokeInstructions},
	{http.MethodGet, []string{"memory"}, (*turn).memory},
	{http.MethodPost, []string{"memory"}, (*turn).findMemory},
	{http.MethodPost, []string{"memory", "add"}, (*turn).addMemory},
	{http.MethodPost, []string{"memory", "forget"}, (*turn).forgetMemory},
	{http.MethodGet, []string{"changes"}, (*turn).layers},
	{http.MethodGet, []string{"changes", "*"}, (*turn).layer},
	{http.MethodPost, []string{"changes", "*", "apply"}, (*turn).applyLayer},
	{http.MethodPost, []string{"changes", "*", "undo"}, (*turn).undoLayer},
	{http.MethodPost, []string{"changes", "*", "recover"}, (*turn).recoverLayer},
	{http.MethodPost, []string{"changes", "*", "discard"}, (*turn).discard},
	{http.MethodGet, []string{"journal"}, (*turn).journal},
	{http.MethodGet, []string{"journal", "*"}, (*turn).entry},
	{http.MethodPost, []string{"journal", "verify"}, (*turn).verifyJournal},
	{http.MethodGet, []string{"receipts"}, (*turn).receipts},
	{http.MethodPost, []string{"receipts"}, (*turn).verifyReceipt},
	{http.MethodGet, []string{"receipts", "*"}, (*turn).receipt},
	{http.MethodGet, []string{"receipts", "*", "bundle"}, (*turn).bundle},
	{http.MethodGet, []string{"hosts"}, (*turn).hosts},
	{http.MethodGet, []string{"secrets"}, (*turn).secrets},
	{http.MethodPost, []string{"secrets"}, (*turn).listSecrets},
	{http.MethodGet, []string{"access"}, (*turn).access},
	{http.MethodPost, []string{"access", "*", "revoke"}, (*turn).revokeToken},
	{http.MethodGet, []string{"access", "passkey"}, (*turn).passkeyForm},
	{http.MethodPost, []string{"access", "passkey"}, (*turn).addPasskey},
	{http.MethodPost, []string{"access", "passkeys", "*", "revoke"}, (*turn).revokePasskey},
	{http.MethodPost, []string{"access", "pairings"}, (*turn).beginPairing},
	{http.MethodGet, []string{"access", "pairings", "*"}, (*turn).pairing},
	{http.MethodPost, []string{"access", "pairings", "*"}, (*turn).answerPairing},
	{http.MethodGet, []string{"host"}, (*turn).host},
	{http.MethodGet, []string{"policy"}, (*turn).policy},
	{http.MethodGet, []string{"policy", "sets", "*"}, (*turn).policySet},
	{http.MethodGet, []string{"policy", "decision"}, (*turn).findDecision},
	{http.MethodGet, []string{"policy", "decisions", "*"}, (*turn).decision},
	{http.MethodGet, []string{"policy", "try"}, (*turn).tryForm},
	{http.MethodPost, []string{"policy", "try"}, (*turn).tryChange},
	{http.MethodPost, []string{"policy", "test"}, (*turn).testPolicy},
	{http.MethodPost, []string{"policy", "reload"}, (*turn).reload},
	{http.MethodGet, []string{feedWord}, (*turn).feed},
	{http.MethodPost, []string{"stop"}, (*turn).stop},
	{http.MethodPost, []string{"resume"}, (*turn).resume},
	{http.MethodPost, []string{"leave"}, func(t *turn) error { return t.leave("This browser's token is revoked.") }},
}

// place is an entry of the navigation: the first word of its pages' paths, and its name.
type place struct{ At, Name string }

var places = []place{
	{"questions", "Questions"},
	{"runs", "Runs"},
	{"agent", "Agent"},
	{"memory", "Memory"},
	{"changes", "Changes"},
	{"journal", "Journal"},
	{"receipts", "Receipts"},
	{"hosts", "Hosts"},
	{"policy", "Policy"},
	{"secrets", "Secrets"},
	{"access", "Access"},
	{"host", "Host"},
}

// ask has the hub do an operation for the visitor.
func ask[In, Out any](t *turn, op hub.Op[In, Out], in In) (Out, error) {
	return op.Do(t.next(), t.v.Hub, t.v.Caller, in)
}

// attend is ask for an operation that makes a call: policy may have it wait for a person, and the
// page with it.
func attend[In, Out any](t *turn, op hub.Op[In, Out], in In) (out Out, err error) {
	if t.v.Stay == nil {
		return ask(t, op, in)
	}
	ctx, w, leave, err := t.v.Stay()
	if err != nil {
		return out, err
	}
	defer leave()
	was := t.ctx
	t.w, t.ctx = w, ctx
	defer func() { t.ctx = was }()
	return ask(t, op, in)
}

// one returns the run of one call with its step, and whether that did what it was to do. An answer
// may have come without the steps: palyrad had no room for them.
func (t *turn) one(r hub.Run) (hub.Run, bool, error) {
	if len(r.Steps) == 0 {
		var err error
		if r, err = ask(t, hub.GetRun, r.ID); err != nil {
			return r, false, err
		}
	}
	return r, len(r.Steps) == 1 && r.Steps[0].Outcome == "executed" && r.Steps[0].Exit == 0, nil
}

// next returns the ctx of one operation. The hub counts an answer until its request is over, and
// a caller's share is that of the largest answer: a page that held one while it waits for another
// would wait for itself. So the answer before counts no more.
func (t *turn) next() context.Context {
	t.over()
	ctx, over := budget.Request(t.ctx)
	t.over = over
	return ctx
}

// may is ask for a part of a page that the visitor may lack the permission for: then it's left out.
func may[In, Out any](t *turn, op hub.Op[In, Out], in In) (*Out, error) {
	out, err := op.Do(t.next(), t.v.Hub, t.v.Caller, in)
	if fault.KindOf(err) == fault.Denied {
		return nil, nil
	}
	return &out, err
}

// listed bounds a page's list.
const listed = 100

func (t *turn) after() hub.PageQuery {
	return hub.PageQuery{After: t.r.URL.Query().Get("after"), Limit: listed}
}
