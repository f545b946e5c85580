package kernel

import (
	"context"
	"errors"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/fault"
)

// privateWorkspace names, for policy, the empty workspace of a call that has no other.
const privateWorkspace = "private"

// YesRequest returns who's yes to a call as policy sees it. c has what the card doesn't: session,
// run, device, channel and features, and of the answer all but tool and sensitivity.
func YesRequest(who policy.Entity, card *approval.Call, c policy.Context) policy.Request {
	place := card.Workspace
	if place == "" {
		place = privateWorkspace
	}
	c.Executable = policy.Executable{Path: card.Executable, Digest: card.Digest, System: card.System}
	if card.Script != "" {
		c.Executable.Path, c.Executable.Digest, c.Executable.Interpreter = card.Script, card.ScriptDigest, card.Executable
	}
	c.EgressHosts, c.Capabilities, c.Tier, c.Inputs = card.EgressHosts, card.Capabilities, card.Tier, card.Inputs.Origins()
	c.Answer.Tool, c.Answer.Sensitive = card.Tool, card.Sensitive
	return policy.Request{Principal: who, Action: policy.ApprovalResolve, Resource: policy.Entity{Type: policy.TypeWorkspace, ID: place}, Context: c}
}

// here is the approver of a process without a hub: the person at its terminal. It knows no
// passkeys, so it doesn't ask for a yes that policy wants one for.
type here struct {
	k   *Kernel
	who policy.Entity
	approval.Approver
}

// Ask implements approval.Approver.
func (h here) Ask(ctx context.Context, q approval.Request) (approval.Answer, error) {
	if h.takesPasskey(&q) {
		return approval.Answer{}, fault.New(fault.Denied, "no_approver", "ask for approval", errors.New("a yes to this call takes a passkey, which palyrad alone can ask for")).
			WithHint("make the call through palyrad, and answer in the console: palyra console open")
	}
	return h.Approver.Ask(ctx, q)
}

// takesPasskey reports whether policy would permit a yes with a passkey, and none without, however
// many people gave it.
func (h here) takesPasskey(q *approval.Request) bool {
	set := h.k.PolicySet()
	allowed := func(passkey bool) bool {
		for n := range int64(policy.MaxApprovers) {
			r := YesRequest(h.who, &q.Call, policy.Context{ChannelID: "terminal", Features: access.FeatureNames(),
				Answer: policy.Answer{Requester: h.who.ID, Approver: h.who.ID, Scope: approval.ScopeOnce, Approvers: n + 1, Passkey: passkey}})
			if set.Decide(r).Effect == policy.Allow {
				return true
			}
		}
		return false
	}
	return !allowed(false) && allowed(true)
}
