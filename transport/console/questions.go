package console

import (
	"errors"
	"net/url"
	"slices"
	"strconv"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

func (t *turn) questions() error {
	waiting, err := ask(t, hub.ListApprovals, hub.ApprovalQuery{State: hub.ApprovalPending, PageQuery: hub.PageQuery{After: t.r.URL.Query().Get("waiting"), Limit: listed}})
	if err != nil {
		return err
	}
	all, err := ask(t, hub.ListApprovals, hub.ApprovalQuery{PageQuery: t.after()})
	if err != nil {
		return err
	}
	var over []hub.Approval
	for _, a := range all.Items {
		if a.State != hub.ApprovalPending {
			over = append(over, a)
		}
	}
	grants, err := may(t, hub.ListGrants, hub.None{})
	if err != nil {
		return err
	}
	t.count = len(waiting.Items)
	slices.Reverse(waiting.Items) // oldest first
	return t.show("questions", "Questions", struct {
		Waiting, Over []hub.Approval
		Longer, Next  string // where those begin that have waited longer, and older answers
		Grants        *hub.Page[hub.StandingGrant]
	}{waiting.Items, over, waiting.Next, all.Next, grants})
}

func (t *turn) question() error {
	a, err := ask(t, hub.GetApproval, t.words[1])
	if err != nil {
		return err
	}
	var p *hub.Preview
	if a.State == hub.ApprovalPending && !a.Reduced {
		if p, err = may(t, hub.PreviewApproval, hub.PreviewQuery{ID: a.ID, Answer: hub.Answer{Approve: true, Scope: "session"}}); err != nil {
			return err
		}
	}
	return t.show("question", "Question", struct {
		hub.Approval
		Preview *hub.Preview
	}{a, p})
}

// answer gives the answer of a form for the version and the capsule that it showed: the hub refuses
// one for another.
func (t *turn) answer() error {
	const op = "answer question"
	f := t.v.Form
	version, err := strconv.ParseInt(f.Get("version"), 10, 64)
	if err != nil || version < 1 || f.Get("capsule") == "" {
		return fault.New(fault.Usage, "invalid_input", op, errors.New("the form lacks what it was for"))
	}
	a := hub.Answer{Comment: f.Get("comment"), Capsule: f.Get("capsule")}
	did := "denied"
	switch f.Get("answer") {
	case "no":
	case "yes":
		a.Approve, a.Scope, did = true, f.Get("scope"), "approved"
		if uses := f.Get("uses"); uses != "" && a.Scope != "once" {
			if a.Uses, err = strconv.ParseInt(uses, 10, 64); err != nil || a.Uses < 1 {
				return fault.New(fault.Usage, "invalid_input", op, errors.New("uses: want a number from 1 on"))
			}
		}
		if a.Scope == "timed" {
			if a.For, err = time.ParseDuration(f.Get("for")); err != nil {
				return fault.New(fault.Usage, "invalid_input", op, errors.New("for: want a time such as 10m"))
			}
		}
	default:
		return fault.New(fault.Usage, "invalid_input", op, errors.New("the form has neither yes nor no"))
	}
	r := hub.Resolution{ID: t.words[1], Version: version, Answer: a}
	if a.Approve {
		if shown, err := t.signature(&r); err != nil || shown {
			return err
		}
	}
	if _, err := ask(t, hub.ResolveApproval, r); err != nil {
		return err
	}
	return t.see("questions", did)
}

// signature puts the form's signature over a yes into r, or shows the page that asks for one. That
// page has the answer in a form of its own: it's what is signed, and what is sent with it.
func (t *turn) signature(r *hub.Resolution) (shown bool, err error) {
	f := t.v.Form
	if f.Has("signature") {
		r.Signature = new(hub.PasskeySignature)
		return false, fields(f, map[string]*[]byte{"id": &r.Signature.ID, "data": &r.Signature.Data, "client": &r.Signature.Client, "signature": &r.Signature.Signature})
	}
	q, err := t.c.cfg.Door.AskAnswer(t.ctx, t.v.Caller, *r)
	if err != nil || q == nil {
		return false, err
	}
	return true, t.showStill("sign", "Sign a yes", struct {
		hub.Resolution
		Ask    *hub.PasskeyRequest
		Known  []string
		Fields []struct{ Name, Value string }
	}{*r, q, textsOf(q.Known), formOf(f, "version", "capsule", "answer", "scope", "for", "uses", "comment")})
}

// formOf returns fields of a form, to stand in another one.
func formOf(f url.Values, names ...string) (all []struct{ Name, Value string }) {
	for _, n := range names {
		all = append(all, struct{ Name, Value string }{n, f.Get(n)})
	}
	return all
}

func (t *turn) revokeGrant() error {
	if _, err := ask(t, hub.RevokeGrant, t.words[1]); err != nil {
		return err
	}
	return t.see("questions", "ended")
}
