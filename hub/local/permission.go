package local

import (
	"context"
	"errors"
	"slices"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Do implements hub.Hub: first the permission, then whether an emergency stop lets it be, then the
// operation.
func (h *Hub) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	if err := h.ask(c, op); err != nil {
		return nil, err
	}
	if op.EffectOf(in) == hub.Gives && h.brake.denies() {
		return nil, h.refuse(c, "stopped", op.Verb(), "an operator stopped this daemon and must let it go on: palyra resume",
			hub.Denial{Layer: hub.LayerStop, Reason: "stopped", Fix: "palyra resume"})
	}
	return h.table.Do(ctx, c, op, in)
}

func holder(c hub.Caller) access.Holder { return access.Holder{Principal: c.User, Token: c.Token} }

// ask returns nil if the caller may do the operation. Status answers every caller, and in
// full those who may read the configuration.
//
// No policy takes the stop away from an owner at the socket: the kernel says who that is,
// and a policy that forbids everything, by mistake or by design, must not keep its owner
// from the brake. For all other callers, and for an owner's token, it is a permission like
// any other. The daemon's own signals remain where there is no owner.
//
// A caller whose certificate has ended since it was authenticated is no caller any more: streams
// and long waits ask again.
func (h *Hub) ask(c hub.Caller, op *hub.Operation) error {
	if !c.Until.IsZero() && !h.cfg.Clock.Latest().Before(c.Until) {
		return unauthenticated()
	}
	if op.Permission == hub.Authenticated || op.Brake && h.privileged(c) {
		return nil
	}
	if off := h.turnedOff(c, op); off != "" {
		return h.refuseFeature(c, op.Verb(), off)
	}
	return h.need(c, access.Permission(op.Permission))
}

// MayFollow returns nil if the caller who opened a tape may go on reading it, by their
// present token, role and scopes. Under other policies they may see less than before, and
// open it again. It waits for no disk.
func (h *Hub) MayFollow(c hub.Caller) error {
	if c.Policies != "" && c.Policies != h.k.PolicySet().Digest().String() {
		return fault.New(fault.Denied, "policy_changed", "follow tape", nil)
	}
	return h.ask(c, hub.ReadTape.Operation)
}

// whyNot says why the caller may not use a permission now, and what to do about it; nil if
// it may. A feature can be off, the registry can say no, and a policy can forbid it. Every
// check of a permission comes here, and leaves no trace.
func (h *Hub) whyNot(c hub.Caller, p access.Permission) (_ *hub.Denial, hint string) {
	switch p {
	case access.MemberManage, access.PolicyManage, access.BackupManage:
		if overHTTP(c) && !h.cfg.Features.Has(access.HTTPAdmin) {
			return featureOff(access.HTTPAdmin)
		}
	}
	if err := h.access.Allow(holder(c), p); err != nil {
		reason, hint := fault.ReasonOf(err), fault.HintOf(err)
		return &hub.Denial{Layer: hub.LayerAccess, Reason: reason, Policies: []string{"permission:" + string(p)}, Permission: string(p), Fix: hint}, hint
	}
	d := h.decideUse(c, p)
	if d.Effect == policy.Allow {
		return nil, ""
	}
	den := refusedBy(&d, string(p))
	return &den, "an owner can change the policies"
}

// need returns nil if the caller may use a permission. The hub remembers a no.
func (h *Hub) need(c hub.Caller, p access.Permission) error {
	const op = "check permission"
	d, hint := h.whyNot(c, p)
	switch {
	case d == nil:
		return nil
	case d.Layer != hub.LayerPolicy:
		return h.refuse(c, d.Reason, op, hint, *d)
	}
	asked := h.useRequest(c, p)
	h.remember(c, op, *d, &asked, "")
	return fault.New(fault.Denied, d.Reason, op, &hub.DenialError{Denial: *d}).WithHint(hint)
}

// needTool is need for the permissions that guard what a tool does besides running a program: a
// token can't read or end through a tool what it may not through an operation. A token that may
// end sessions may end what runs in them.
func (h *Hub) needTool(c hub.Caller, name string) error {
	var all []access.Permission
	switch name {
	case toolproto.VaultGet, toolproto.VaultList, toolproto.VaultSet, toolproto.VaultRemove, toolproto.VaultRotate, toolproto.VaultImport, toolproto.VaultExport, toolproto.VaultAddRecipient:
		// Before a person is asked: no one would get what the call reveals.
		return fault.New(fault.Usage, "invalid_input", "call tool "+name, errors.New("the vault has operations of its own")).
			WithHint("palyra help vault")
	case toolproto.ChangesApply, toolproto.ChangesUndo, toolproto.ChangesRecover:
		return fault.New(fault.Usage, "invalid_input", "call tool "+name, errors.New("layers have operations of their own")).
			WithHint("a person applies changes: palyra help changes apply, or the console")
	case toolproto.ArtifactRead:
		all = append(all, access.ArtifactRead)
	case toolproto.ProcessList, toolproto.ProcessStatus:
		all = append(all, access.SessionRead)
	case toolproto.ProcessOutput:
		all = append(all, access.SessionRead, access.ArtifactRead)
	case toolproto.ProcessStop:
		if all = append(all, access.SessionRead); !h.holds(c, access.RunCancel) {
			all = append(all, access.SessionWrite)
		}
	}
	for _, p := range all {
		if err := h.need(c, p); err != nil {
			return err
		}
	}
	return nil
}

// holds reports whether the caller may use a permission. Unlike need it isn't an attempt,
// and the hub doesn't remember a no.
func (h *Hub) holds(c hub.Caller, p access.Permission) bool {
	d, _ := h.whyNot(c, p)
	return d == nil
}

func (h *Hub) decideUse(c hub.Caller, p access.Permission) policy.Decision {
	return h.k.PolicySet().Decide(h.useRequest(c, p))
}

// useRequest returns the use of a permission as policy sees it.
func (h *Hub) useRequest(c hub.Caller, p access.Permission) policy.Request {
	return policy.Request{
		Principal: h.principal(c.User, c.Token), Action: policy.PermissionUse, Resource: policy.Entity{Type: policy.TypePermission, ID: string(p)},
		Context: policy.Context{DeviceID: c.Device, ChannelID: c.Surface, Features: h.cfg.Features.On()},
	}
}

// principal returns a user as policy sees them, with their present role and, if they used a
// token, its scopes.
func (h *Hub) principal(user, token string) policy.Entity {
	e := policy.Entity{Type: policy.TypeUser, ID: user}
	if role := h.access.Role(user); role != "" {
		e.Roles = []string{string(role)}
	}
	if token != "" {
		e.Scopes = scopesOf(h.access.Permissions(access.Holder{Principal: user, Token: token}))
	}
	return e
}

// scopesOf returns the names of permissions, an empty list for none.
func scopesOf(s access.Set) []string {
	out := []string{}
	for _, p := range s.List() {
		out = append(out, string(p))
	}
	return out
}

// The rules of who sees what, once a permission lets the caller ask at all:
//
//   - things of a principal (sessions, runs, tapes, artifacts, decisions, receipts,
//     statements of the journal): that principal, and callers who manage members;
//   - a request for approval: these, callers who have answered it and, while it waits,
//     callers whose answer policy would accept;
//   - a standing grant: these, and those who gave it;
//   - the policies that decided, and what would change that: those of them who hold
//     policy.read.
//
// For the rest a thing with an id does not exist, and a list has its time and its
// digests. sees, seesRequest, seesGrant and seesPolicy are these four lines, and the
// only places that say so.

// sees reports whether the caller sees a principal's things.
func (h *Hub) sees(c hub.Caller, principal string) bool {
	return c.User != "" && c.User == principal || h.seesAll(c)
}

// seesRequest reports whether the caller sees a request for approval.
func (h *Hub) seesRequest(ctx context.Context, c hub.Caller, a *hub.Approval) bool {
	if h.sees(c, a.Requester) || c.User != "" && (c.User == a.Approver || slices.Contains(a.Yes, c.User)) {
		return true
	}
	w, err := h.wordOn(ctx, c, a)
	return err == nil && (w.verdict != approval.No || w.passkey)
}

// wordOn is policy's word on a yes of the caller's to this call alone. To a request that doesn't
// wait it's no.
func (h *Hub) wordOn(ctx context.Context, c hub.Caller, a *hub.Approval) (ruling, error) {
	if a.State != hub.ApprovalPending || !h.holds(c, access.ApprovalResolve) {
		return ruling{}, nil
	}
	return h.word(ctx, &approval.Question{By: answerer(c), Scope: approval.ScopeOnce, Approvers: append(slices.Clone(a.Yes), c.User),
		Subject: approval.Subject{Run: a.Run, Session: a.Session, Step: a.Step, CallID: a.CallID, Requester: a.Requester},
		Request: &approval.Request{Call: approval.Call(a.Card)}})
}

// seesGrant reports whether the caller sees a standing grant.
func (h *Hub) seesGrant(c hub.Caller, g *approval.Standing) bool {
	return h.sees(c, g.Requester) || c.User != "" && slices.Contains(g.Approvers, c.User)
}

// seesPolicy reports whether the caller is told which policies decided.
func (h *Hub) seesPolicy(c hub.Caller) bool { return h.holds(c, access.PolicyRead) }

// seesAll reports whether the caller sees the things of every principal.
func (h *Hub) seesAll(c hub.Caller) bool { return h.holds(c, access.MemberManage) }

func noSuch(what, id string) error { return store.NoSuch(what, id) }
