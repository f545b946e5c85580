package kernel

import (
	"context"
	"errors"
	"fmt"
	"strings"

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

// here is the approver of a process without a hub: the person at its terminal, who makes the call
// and so would approve their own. It knows no passkeys and one person, so it doesn't ask for a yes
// that wouldn't count.
type here struct {
	k   *Kernel
	who policy.Entity
	approval.Approver
}

// Ask implements approval.Approver.
func (h here) Ask(ctx context.Context, q approval.Request) (approval.Answer, error) {
	if err := h.refuses(&q); err != nil {
		return approval.Answer{}, err
	}
	return h.Approver.Ask(ctx, q)
}

// refuses asks policy about the yes that the person could give. A hub wants a permit of
// approval.resolve, and for one's own call of approval.self. Here the person has the state
// directory and its keys, so a set that permits approval.resolve to no one by its name leaves it to
// them, and each set approval.self. What a set forbids is forbidden here as well.
func (h here) refuses(q *approval.Request) error {
	const op = "ask for approval"
	set := h.k.PolicySet()
	asked := func(action string, approvers int64, passkey bool) (policy.Decision, bool) {
		r := YesRequest(h.who, &q.Call, policy.Context{ChannelID: "terminal", Features: access.FeatureNames(),
			Answer: policy.Answer{Requester: h.who.ID, Approver: h.who.ID, Scope: approval.ScopeOnce, Approvers: approvers, Passkey: passkey}})
		r.Action = action
		d := set.Decide(r)
		left := action == policy.ApprovalSelf || !set.Permits(action)
		return d, d.Effect == policy.Allow || left && (d.Effect == policy.NeedsApproval || d.Reason == policy.ReasonNotPermitted)
	}
	allowed := func(approvers int64, passkey bool) bool {
		_, self := asked(policy.ApprovalSelf, approvers, passkey)
		_, yes := asked(policy.ApprovalResolve, approvers, passkey)
		return self && yes
	}
	if allowed(1, false) {
		return nil
	}
	for n := int64(2); n <= policy.MaxApprovers; n++ {
		if allowed(n, false) {
			return fault.New(fault.Denied, "no_approver", op, fmt.Errorf("a yes to this call takes %d people, whom palyrad alone can ask", n)).
				WithHint("make the call through palyrad")
		}
	}
	for n := range int64(policy.MaxApprovers) {
		if allowed(n+1, true) {
			return fault.New(fault.Denied, "no_approver", op, errors.New("a yes to this call takes a passkey, which palyrad alone can ask for")).
				WithHint("make the call through palyrad, and answer in the console: palyra console open")
		}
	}
	d, ok := asked(policy.ApprovalSelf, 1, false)
	if ok {
		d, _ = asked(policy.ApprovalResolve, 1, false)
	}
	return fault.New(fault.Denied, "no_approver", op, fmt.Errorf("policy takes no yes from the person at this terminal: %s", strings.Join(append([]string{d.Reason}, d.Policies...), " "))).
		WithHint("make the call through palyrad, and have someone answer whom policy permits")
}
