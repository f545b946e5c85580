package local

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"
	"unicode/utf8"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel"
	"palyra/kernel/hub"
	"palyra/kernel/run"
	"palyra/kernel/store"
)

// ResolveApproval implements hub.Hub.
func (h *Hub) ResolveApproval(ctx context.Context, c hub.Caller, id string, version int64, a hub.Answer) (hub.Approval, error) {
	if err := h.ask(c, "ResolveApproval"); err != nil {
		return hub.Approval{}, err
	}
	if err := ident.Check(ident.Approval, id); err != nil {
		return hub.Approval{}, err
	}
	if len(a.Comment) > maxComment || !utf8.ValidString(a.Comment) {
		return hub.Approval{}, fault.New(fault.Usage, "bad_comment", "answer approval", fmt.Errorf("a comment is at most %d bytes of UTF-8", maxComment))
	}
	if off := h.answerOff(a); off != "" {
		return hub.Approval{}, h.refuseFeature(c, "answer approval", off)
	}
	if this, err := h.approval(ctx, id); err != nil {
		return hub.Approval{}, err
	} else if a.Capsule != "" && a.Capsule != this.Capsule {
		return hub.Approval{}, fault.New(fault.NotApproved, "other_capsule", "answer approval", fmt.Errorf("the answer is to capsule %.80q", a.Capsule)).
			WithHint("read it again")
	}
	if _, err := h.runs.Approvals().Resolve(ctx, id, version, answerer(c), reply(a)); err != nil {
		switch d := hub.DenialOf(err); {
		case d != nil:
			h.remember(c, "answer approval", *d)
		case fault.KindOf(err) == fault.Denied:
			reason := fault.ReasonOf(err)
			err = h.refuse(c, reason, "answer approval", fault.HintOf(err), hub.Denial{Layer: hub.LayerApproval, Reason: reason, Fix: fault.HintOf(err)})
		}
		return hub.Approval{}, err
	}
	return h.approval(context.WithoutCancel(ctx), id)
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

// judge says whether an answer counts: whoever gives it must hold the permission
// and have policy's word at this moment, for this call. It is asked about each yes
// when the last one comes, and again each time that a standing grant is used. A no
// counts of whoever could say yes, alone or with others; requesters take back what
// they asked for, and who manages members can end it anyway.
func (h *Hub) judge(ctx context.Context, q approval.Question) (approval.Verdict, error) {
	c := hub.Caller{User: q.By.Principal, Token: q.By.Token, Surface: q.By.Surface, Device: q.By.Device}
	if err := h.need(c, access.ApprovalResolve); err != nil {
		return approval.No, err
	}
	if q.Against && h.sees(c, q.Subject.Requester) {
		return approval.Yes, nil
	}
	verdict, d, err := h.word(ctx, &q)
	if err != nil || verdict != approval.No {
		return verdict, err
	}
	return approval.No, fault.New(fault.Denied, d.Reason, "answer approval", &hub.DenialError{Denial: hub.Denial{
		DecisionID: hex.EncodeToString(d.ID[:]), Layer: hub.LayerPolicy, Reason: d.Reason, Policies: some(d.Policies),
		PolicySet: d.PolicySet.String(), Errors: d.Errors, Fix: d.Fix}}).WithHint("somebody whom the policies let approve must answer")
}

// word is policy's word on an answer, with the decision where it is no.
func (h *Hub) word(ctx context.Context, q *approval.Question) (approval.Verdict, policy.Decision, error) {
	none := policy.Decision{}
	r, err := h.answerRequest(ctx, q)
	if err != nil {
		return approval.No, none, err
	}
	set := h.k.PolicySet()
	if q.By.Principal == q.Subject.Requester && !h.cfg.AllowSelf {
		self := r
		self.Action = policy.ApprovalSelf
		if d := set.Decide(self); d.Effect != policy.Allow {
			return approval.No, none, approval.ErrSelf()
		}
	}
	d := set.Decide(r)
	if d.Effect == policy.Allow {
		return approval.Yes, none, nil
	}
	if !q.Use { // would more people do?
		more := r
		for n := range int64(maxApprovers) {
			if more.Context.Answer.Approvers = r.Context.Answer.Approvers + 1 + n; more.Context.Answer.Approvers > maxApprovers {
				break
			}
			if set.Decide(more).Effect == policy.Allow {
				return approval.More, none, nil
			}
		}
	}
	return approval.No, d, nil
}

// maxApprovers bounds how many people a policy can ask for.
const maxApprovers = 8

// answerRequest is a yes as policy sees it.
func (h *Hub) answerRequest(ctx context.Context, q *approval.Question) (policy.Request, error) {
	who, err := h.entity(ctx, q.By.Principal)
	if err != nil {
		return policy.Request{}, err
	}
	who.Scopes = h.principal(q.By.Principal, q.By.Token).Scopes
	call := &q.Request.Call
	place := call.Workspace
	if place == "" {
		place = privateWorkspace
	}
	exe := policy.Executable{Path: call.Executable, Digest: call.Digest, System: call.System}
	if call.Script != "" {
		exe.Path, exe.Digest, exe.Interpreter = call.Script, call.ScriptDigest, call.Executable
	}
	return policy.Request{
		Principal: who, Action: policy.ApprovalResolve, Resource: policy.Entity{Type: policy.TypeWorkspace, ID: place},
		Context: policy.Context{
			SessionID: q.Subject.Session, RunID: q.Subject.Run, DeviceID: q.By.Device, ChannelID: q.By.Surface,
			Executable: exe, EgressHosts: call.EgressHosts, Capabilities: call.Capabilities, Tier: call.Tier,
			Features: h.cfg.Features.On(),
			Answer: policy.Answer{Tool: q.Request.Tool, Requester: q.Subject.Requester, Approver: q.By.Principal, Scope: q.Scope,
				Sensitive: call.Sensitive, Pattern: q.Pattern, Approvers: int64(len(q.Approvers))},
		},
	}, nil
}

// privateWorkspace names, for policy, the empty workspace of a call that has no
// other.
const privateWorkspace = "private"

// recordApproval puts what became of grants into the journal.
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

// maxPreview is how many recent requests a preview looks at.
const maxPreview = 1000

// PreviewApproval implements hub.Hub.
func (h *Hub) PreviewApproval(ctx context.Context, c hub.Caller, id string, a hub.Answer) (hub.Preview, error) {
	if err := h.ask(c, "PreviewApproval"); err != nil {
		return hub.Preview{}, err
	}
	if err := ident.Check(ident.Approval, id); err != nil {
		return hub.Preview{}, err
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return hub.Preview{}, err
	}
	defer release()
	this, err := h.approval(ctx, id)
	if err == nil && !h.seesRequest(ctx, c, &this) {
		err = noSuch("approval", id)
	}
	if err != nil {
		return hub.Preview{}, err
	}
	p, asked, err := h.runs.Approvals().Preview(id, reply(a))
	if err != nil {
		return hub.Preview{}, err
	}
	v := hub.Preview{Refused: []hub.PreviewCall{}, Text: "exactly the capsule " + asked.Capsule.String() + "\n"}
	if p != nil {
		sum, err := p.Sum()
		if err != nil {
			return hub.Preview{}, err
		}
		v.Pattern, v.Text = sum.String(), p.Text()
	}
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) {
		return tx.Approvals(store.ApprovalFilter{Requester: this.Requester}, store.Page{Limit: maxPreview, Bytes: listBytes})
	})
	if err != nil {
		return hub.Preview{}, err
	}
	for i := range rows {
		row := &rows[i]
		if row.ID == id {
			continue
		}
		v.Looked++
		if row.State == store.ApprovalApproved || a.Scope == approval.ScopeSession && row.Session != this.Session {
			continue
		}
		past, err := run.ApprovalOf(row)
		if err != nil {
			return hub.Preview{}, err
		}
		fits := row.Capsule == asked.Capsule
		if p != nil {
			call, err := run.CallOf(&past.Card)
			fits = err == nil && p.Match(past.Card.Tool, &call) == nil
		}
		if fits {
			if !h.seesRequest(ctx, c, &past) {
				past = reduced(&past)
			}
			v.Refused = append(v.Refused, hub.PreviewCall{Approval: past.ID, State: past.State, Tool: past.Card.Tool, Argv: past.Card.Argv, Created: past.Created})
		}
	}
	return v, nil
}

// PoliciesChanged is to be called after every reload. It keeps the new policies,
// so that what they decide can be explained when they are replaced; it ends the
// standing grants that were given under others, and returns how many. Those cover
// nothing in any case; nor shall they when the old policies are back.
func (h *Hub) PoliciesChanged() int {
	h.archive()
	now := h.k.PolicySet().Digest()
	return h.runs.Approvals().Drop(func(g *approval.Standing) bool { return g.PolicySet != now })
}

// Grants implements hub.Hub.
func (h *Hub) Grants(_ context.Context, c hub.Caller) (hub.Page[hub.StandingGrant], error) {
	v := hub.Page[hub.StandingGrant]{Items: []hub.StandingGrant{}}
	if err := h.ask(c, "Grants"); err != nil {
		return v, err
	}
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

// reduced is what is told of a request to those who do not see it.
func reduced(a *hub.Approval) hub.Approval {
	return hub.Approval{ID: a.ID, State: a.State, Version: a.Version, Capsule: a.Capsule, PolicySet: a.PolicySet, Scope: a.Scope,
		Card:    hub.Card{Argv: []string{}, Operands: []hub.CardOperand{}, EnvNames: []string{}, EgressHosts: []string{}, Capabilities: []string{}, Why: []hub.CardWhy{}},
		Created: a.Created, Expires: a.Expires, Answered: a.Answered, Reduced: true}
}

func grantOf(g *approval.Standing) hub.StandingGrant {
	v := hub.StandingGrant{ID: g.ID, Approval: g.Approval, Scope: g.Scope, Session: g.Session, Requester: g.Requester, Approver: g.By.Principal,
		Approvers: slices.Clone(g.Approvers), Tool: g.Tool, PolicySet: g.PolicySet.String(), Uses: g.Uses, MaxUses: g.MaxUses, Created: g.Created, Expires: g.Expires}
	if g.Pattern != nil {
		v.Pattern, v.Text = g.PatternDigest.String(), g.Pattern.Text()
	} else {
		v.Capsule = g.Capsule.String()
	}
	return v
}

// RevokeGrant implements hub.Hub. Whoever sees a grant may take it back: for the
// others it does not exist.
func (h *Hub) RevokeGrant(ctx context.Context, c hub.Caller, id string) (hub.StandingGrant, error) {
	if err := h.ask(c, "RevokeGrant"); err != nil {
		return hub.StandingGrant{}, err
	}
	if err := ident.Check(ident.Grant, id); err != nil {
		return hub.StandingGrant{}, err
	}
	all := h.runs.Approvals().Standing()
	if !slices.ContainsFunc(all, func(g approval.Standing) bool { return g.ID == id && h.seesGrant(c, &g) }) {
		return hub.StandingGrant{}, noSuch("grant", id)
	}
	g, err := h.runs.Approvals().Revoke(ctx, id, answerer(c))
	return grantOf(&g), err
}
