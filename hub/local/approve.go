package local

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"unicode/utf8"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel"
)

// approvalOperations returns the operations of answers and standing grants.
func (h *Hub) approvalOperations() []hub.Entry {
	return []hub.Entry{
		hub.ResolveApproval.By(h.resolveApproval),
		hub.PreviewApproval.By(h.previewApproval),
		hub.ListGrants.By(h.listGrants),
		hub.RevokeGrant.By(h.revokeGrant),
	}
}

func (h *Hub) resolveApproval(ctx context.Context, c hub.Caller, in hub.Resolution) (hub.Approval, error) {
	if err := ident.Check(ident.Approval, in.ID); err != nil {
		return hub.Approval{}, err
	}
	if len(in.Answer.Comment) > maxComment || !utf8.ValidString(in.Answer.Comment) {
		return hub.Approval{}, fault.New(fault.Usage, "invalid_input", "answer approval", fmt.Errorf("a comment is at most %d bytes of UTF-8", maxComment))
	}
	if off := h.answerOff(in.Answer); off != "" {
		return hub.Approval{}, h.refuseFeature(c, "answer approval", off)
	}
	this, err := h.approvalHead(ctx, in.ID)
	if err != nil {
		return hub.Approval{}, err
	}
	if asked, ok := h.runs.Approvals().Asked(in.ID); ok { // held already, with the call that waits
		this.Card = hub.Card(asked.Call)
	}
	sees := h.seesRequest(ctx, c, &this)
	if !sees { // no policy lets them answer, and how a wider yes would be refused tells of the call
		in.Answer = hub.Answer{Approve: in.Answer.Approve, Capsule: in.Answer.Capsule}
	}
	if in.Answer.Capsule != "" && in.Answer.Capsule != this.Capsule.String() {
		return hub.Approval{}, fault.New(fault.NotApproved, "not_approved", "answer approval", fmt.Errorf("the answer is to capsule %.80q", in.Answer.Capsule)).
			WithHint("read it again")
	}
	r := reply(in.Answer)
	if s := in.Signature; s != nil {
		r.Signature = &approval.Signature{Credential: s.ID, Data: s.Data, Client: s.Client, Signature: s.Signature}
	}
	if _, err := h.runs.Approvals().Resolve(ctx, in.ID, in.Version, answerer(c), r); err != nil {
		switch d := hub.DenialOf(err); {
		case d != nil:
			whose := "" // what would have to change tells of the call, too
			if !sees {
				whose = this.Requester
			}
			h.remember(c, "answer approval", *d, askedIn(err), whose)
		case fault.KindOf(err) == fault.Denied:
			reason := fault.ReasonOf(err)
			err = h.refuse(c, reason, "answer approval", fault.HintOf(err), hub.Denial{Layer: hub.LayerApproval, Reason: reason, Fix: fault.HintOf(err)})
		}
		return hub.Approval{}, err
	}
	done := context.WithoutCancel(ctx) // the approver must hear it, without room without the card
	if _, release, err := h.reading(ctx, c, listBytes); err == nil {
		defer release()
		return h.approval(done, in.ID)
	}
	return h.approvalHead(done, in.ID)
}

func answerer(c hub.Caller) approval.By {
	return approval.By{Principal: c.User, Surface: c.Surface, Token: c.Token, Device: c.Device}
}

func reply(a hub.Answer) approval.Reply {
	r := approval.Reply{Approve: a.Approve, Comment: a.Comment, Scope: a.Scope, For: a.For, Uses: a.Uses}
	if a.Pattern != nil {
		r.Pattern = &approval.Loosen{Within: a.Pattern.Within, Content: a.Pattern.Content}
	}
	return r
}

// judge says whether an answer counts. The approver must hold the permission, and policy
// must accept the answer at this moment, for this call. The hub judges each yes when the
// last one comes, and again at each use of a standing grant. A no counts from everyone who
// could say yes, alone or with others. Requesters can withdraw their own requests, and
// callers who manage members can end any.
func (h *Hub) judge(ctx context.Context, q approval.Question) (approval.Verdict, error) {
	c := hub.Caller{User: q.By.Principal, Token: q.By.Token, Surface: q.By.Surface, Device: q.By.Device}
	if err := h.need(c, access.ApprovalResolve); err != nil {
		return approval.No, err
	}
	if q.Against && h.sees(c, q.Subject.Requester) {
		return approval.Yes, nil
	}
	w, err := h.word(ctx, &q)
	if err != nil || w.verdict != approval.No {
		return w.verdict, err
	}
	hint := "an approver whom the policies permit must answer"
	if w.passkey {
		hint = "answer it in the console with a passkey: palyra console open"
	}
	if w.self {
		err := approval.ErrSelf()
		if w.passkey {
			err = fault.New(fault.Denied, "self_approval", "answer approval", errPasskey).WithHint(hint)
		}
		return approval.No, err
	}
	asked, err := h.answerRequest(ctx, &q)
	if err != nil {
		return approval.No, err
	}
	err = &askedError{hub.DenialError{Denial: refusedBy(&w.no, "")}, asked}
	if w.passkey {
		err = fmt.Errorf("%w: %w", errPasskey, err)
	}
	return approval.No, fault.New(fault.Denied, w.no.Reason, "answer approval", err).WithHint(hint)
}

// errPasskey is in the error of a yes that would count if a passkey had signed it.
var errPasskey = errors.New("this yes takes a passkey")

// ruling is policy's word on an answer.
type ruling struct {
	verdict approval.Verdict
	self    bool            // No, because the approver asked for the call
	no      policy.Decision // No, because of it
	passkey bool            // No, and signed by a passkey it would count, alone or with others'
}

// word returns policy's word on an answer.
func (h *Hub) word(ctx context.Context, q *approval.Question) (ruling, error) {
	r, err := h.answerRequest(ctx, q)
	if err != nil {
		return ruling{}, err
	}
	w := h.ruleOn(q, r)
	if w.verdict == approval.No && !q.Use && !r.Context.Answer.Passkey {
		r.Context.Answer.Passkey = true
		w.passkey = h.ruleOn(q, r).verdict != approval.No
	}
	return w, nil
}

// ruleOn is word about r, which is how policy sees q.
func (h *Hub) ruleOn(q *approval.Question, r policy.Request) ruling {
	set := h.k.PolicySet()
	if q.By.Principal == q.Subject.Requester && !h.cfg.AllowSelf {
		self := r
		self.Action = policy.ApprovalSelf
		if set.Decide(self).Effect != policy.Allow {
			return ruling{self: true}
		}
	}
	d := set.Decide(r)
	if d.Effect == policy.Allow {
		return ruling{verdict: approval.Yes}
	}
	if !q.Use { // would more people do?
		more := r
		for n := r.Context.Answer.Approvers + 1; n <= policy.MaxApprovers; n++ {
			if more.Context.Answer.Approvers = n; set.Decide(more).Effect == policy.Allow {
				return ruling{verdict: approval.More}
			}
		}
	}
	return ruling{no: d}
}

// answerRequest returns a yes as policy sees it.
func (h *Hub) answerRequest(ctx context.Context, q *approval.Question) (policy.Request, error) {
	who, err := h.entity(q.By.Principal)
	if err != nil {
		return policy.Request{}, err
	}
	who.Scopes = h.principal(q.By.Principal, q.By.Token).Scopes
	return kernel.YesRequest(who, &q.Request.Call, policy.Context{
		SessionID: q.Subject.Session, RunID: q.Subject.Run, DeviceID: q.By.Device, ChannelID: q.By.Surface, Features: h.cfg.Features.On(),
		Answer: policy.Answer{Requester: q.Subject.Requester, Approver: q.By.Principal, Scope: q.Scope, Pattern: q.Pattern, Approvers: int64(len(q.Approvers)),
			Passkey: q.Against || q.By.Passkey != "" && h.access.HasPasskey(q.By.Passkey)},
	}), nil
}

// recordApproval puts changes of grants into the journal.
func (h *Hub) recordApproval(ctx context.Context, act, subject string, by approval.By, detail map[string]string) error {
	d := make(map[string]string, len(detail)+1)
	for name, text := range detail {
		d[name] = text
	}
	if by.Token != "" {
		d["token"] = by.Token
	}
	_, err := h.k.Record(ctx, kernel.Act{Act: act, Principal: by.Principal, Subject: subject, Detail: d})
	return err
}

// maxPreview bounds the recent requests that a preview looks at.
const maxPreview = 1000

func (h *Hub) previewApproval(ctx context.Context, c hub.Caller, in hub.PreviewQuery) (hub.Preview, error) {
	if err := ident.Check(ident.Approval, in.ID); err != nil {
		return hub.Preview{}, err
	}
	ctx, release, err := h.reading(ctx, c, 3*listBytes) // the card, a page of others and what is told of them
	if err != nil {
		return hub.Preview{}, err
	}
	defer release()
	this, err := h.approval(ctx, in.ID)
	if err == nil && !h.seesRequest(ctx, c, &this) {
		err = noSuch("approval", in.ID)
	}
	if err != nil {
		return hub.Preview{}, err
	}
	p, asked, err := h.runs.Approvals().Preview(in.ID, reply(in.Answer))
	if err != nil {
		return hub.Preview{}, err
	}
	v := hub.Preview{Refused: []hub.PreviewCall{}, Text: "exactly the capsule " + asked.Capsule.String() + "\n"}
	_, err = h.judge(ctx, approval.Question{By: answerer(c), Subject: approval.Subject{Requester: this.Requester, Session: this.Session, Run: this.Run},
		Request: &asked, Scope: cmp.Or(in.Answer.Scope, approval.ScopeOnce), Pattern: p != nil, Approvers: append(slices.Clone(this.Yes), c.User)})
	switch {
	case errors.Is(err, errPasskey):
		v.Passkey = true
	case err != nil:
		v.Void = cmp.Or(fault.ReasonOf(err), "internal")
	}
	if p != nil {
		sum, err := p.Sum()
		if err != nil {
			return hub.Preview{}, err
		}
		v.Pattern, v.Text = sum, p.Text()
	}
	rows, err := store.Scan(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) {
		return tx.Approvals(store.ApprovalFilter{Requester: this.Requester}, store.Page{Limit: maxPreview, Bytes: listBytes})
	})
	if err != nil {
		return hub.Preview{}, err
	}
	for i := range rows {
		row := &rows[i]
		if row.ID == in.ID {
			continue
		}
		v.Looked++
		if row.State == store.ApprovalApproved || in.Answer.Scope == approval.ScopeSession && row.Session != this.Session {
			continue
		}
		past, err := run.ApprovalOf(row)
		if err != nil {
			return hub.Preview{}, err
		}
		fits := row.Capsule == asked.Capsule
		if p != nil {
			call := approval.Call(past.Card)
			fits = p.Match(call.Tool, &call) == nil
		}
		if fits && h.seesRequest(ctx, c, &past) {
			v.Refused = append(v.Refused, hub.PreviewCall{Approval: past.ID, State: past.State, Tool: past.Card.Tool, Argv: past.Card.Argv, Created: past.Created})
		}
	}
	return v, nil
}

// PoliciesChanged must be called after every reload. It keeps the new policies, so that
// their decisions can be explained after they are replaced. It ends the standing grants
// that were given under other policies, and returns how many. Those already cover nothing,
// and must not when the old policies come back.
func (h *Hub) PoliciesChanged() int {
	h.archive()
	h.runs.ReviewBackground()
	defer h.notices.note(hub.TopicPolicy | hub.TopicQuestions)
	now := h.k.PolicySet().Digest()
	return h.runs.Approvals().Drop(func(g *approval.Standing) bool { return g.PolicySet != now })
}

func (h *Hub) listGrants(_ context.Context, c hub.Caller, _ hub.None) (hub.Page[hub.StandingGrant], error) {
	v := hub.Page[hub.StandingGrant]{Items: []hub.StandingGrant{}}
	for _, g := range h.runs.Approvals().Standing() {
		item := grantOf(&g)
		if !h.seesGrant(c, &g) {
			item = hub.StandingGrant{ID: item.ID, Scope: item.Scope, Approvers: []string{}, Capsule: item.Capsule, Pattern: item.Pattern,
				PolicySet: item.PolicySet, Created: item.Created, Expires: item.Expires, Reduced: true}
		}
		v.Items = append(v.Items, item)
	}
	return v, nil
}

// reduced returns the part of a request that callers who may not see it are told.
func reduced(a *hub.Approval) hub.Approval {
	return hub.Approval{ID: a.ID, State: a.State, Version: a.Version, Capsule: a.Capsule, PolicySet: a.PolicySet, Scope: a.Scope,
		Card: run.NoCard(), Created: a.Created, Expires: a.Expires, Answered: a.Answered, Reduced: true}
}

func grantOf(g *approval.Standing) hub.StandingGrant {
	v := hub.StandingGrant{ID: g.ID, Approval: g.Approval, Scope: g.Scope, Session: g.Session, Requester: g.Requester, Approver: g.By.Principal,
		Approvers: slices.Clone(g.Approvers), Tool: g.Tool, PolicySet: g.PolicySet, Uses: g.Uses, MaxUses: g.MaxUses, Created: g.Created, Expires: g.Expires}
	if g.Pattern != nil {
		v.Pattern, v.Text = g.PatternDigest, g.Pattern.Text()
	} else {
		v.Capsule = g.Capsule
	}
	return v
}

// revokeGrant: every caller who sees a grant may take it back. For the others it doesn't
// exist.
func (h *Hub) revokeGrant(ctx context.Context, c hub.Caller, id string) (hub.StandingGrant, error) {
	if err := ident.Check(ident.Grant, id); err != nil {
		return hub.StandingGrant{}, err
	}
	all := h.runs.Approvals().Standing()
	if !slices.ContainsFunc(all, func(g approval.Standing) bool { return g.ID == id && h.seesGrant(c, &g) }) {
		return hub.StandingGrant{}, noSuch("grant", id)
	}
	g, err := h.runs.Approvals().Revoke(ctx, id, answerer(c))
	h.notices.note(hub.TopicQuestions)
	return grantOf(&g), err
}
