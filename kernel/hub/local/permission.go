package local

import (
	"context"
	"encoding/hex"
	"fmt"
	"slices"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/internal/fault"
	"palyra/kernel/hub"
	"palyra/kernel/run"
)

// Permissions returns the permission that each method of hub.Hub asks for, by
// the method's name. Authenticate has none: it is how one gets to have any.
// Status answers everybody, and tells the rest to who holds its permission.
func Permissions() map[string]access.Permission {
	return map[string]access.Permission{
		"CreateSession": access.SessionWrite,
		"Session":       access.SessionRead,
		"Sessions":      access.SessionRead,
		"EndSession":    access.SessionWrite,

		"StartRun":  access.RunStart,
		"Run":       access.SessionRead,
		"Runs":      access.SessionRead,
		"CancelRun": access.RunCancel,
		"Tape":      access.SessionRead,
		"Call":      access.RunStart,

		"Approvals":       access.ApprovalRead,
		"Approval":        access.ApprovalRead,
		"ResolveApproval": access.ApprovalResolve,
		"PreviewApproval": access.ApprovalRead,
		"Grants":          access.ApprovalRead,
		"RevokeGrant":     access.ApprovalResolve,

		"Tools":         access.SessionRead,
		"PolicyExplain": access.PolicyRead,
		"PolicyTest":    access.PolicyRead,
		"PolicyDiff":    access.PolicyManage, // it shows what others asked for
		"PolicyInfo":    access.PolicyRead,
		"PolicyWhy":     access.PolicyRead,
		"PolicyExport":  access.PolicyRead,

		"Receipt":            access.JournalRead,
		"JournalStatus":      access.JournalRead,
		"JournalEntries":     access.JournalRead,
		"JournalProof":       access.JournalRead,
		"JournalConsistency": access.JournalRead,
		"JournalCheckpoint":  access.JournalRead,
		"JournalTile":        access.JournalRead,

		"Artifact": access.ArtifactRead,

		"CreateToken":  access.TokenManage,
		"Tokens":       access.TokenManage,
		"RevokeToken":  access.TokenManage,
		"RotateToken":  access.TokenManage,
		"Members":      access.MemberManage,
		"PutMember":    access.MemberManage,
		"RemoveMember": access.MemberManage,

		"Config": access.ConfigRead,
		"Status": access.ConfigRead,
		"Doctor": access.ConfigRead,

		"Stop":   access.RunCancel,
		"Resume": access.PolicyManage, // more than it takes to stop
		"Reload": access.PolicyManage,
		"Backup": access.BackupManage,
	}
}

func holder(c hub.Caller) access.Holder { return access.Holder{Principal: c.User, Token: c.Token} }

// ask returns nil if the caller may call the method.
func (h *Hub) ask(c hub.Caller, method string) error {
	p, ok := h.permissions[method]
	if !ok {
		return fault.New(fault.Internal, "no_permission", "check "+method, nil)
	}
	if off := h.turnedOff(c, method, p); off != "" {
		return h.refuseFeature(c, method, off)
	}
	return h.need(c, p)
}

// MayFollow returns nil if whoever opened a tape may go on reading it: their
// token, role and scopes are looked at as they are now. It waits for no disk.
func (h *Hub) MayFollow(c hub.Caller) error { return h.ask(c, "Tape") }

// need returns nil if the caller holds a permission and no policy forbids its use.
func (h *Hub) need(c hub.Caller, p access.Permission) error {
	err := h.access.Allow(holder(c), p)
	if err == nil {
		return h.mayUse(c, p)
	}
	hint := fault.HintOf(err)
	return h.refuse(c, fault.ReasonOf(err), "check permission", hint, hub.Denial{Layer: hub.LayerAccess, Reason: fault.ReasonOf(err),
		Policies: []string{"permission:" + string(p)}, Permission: string(p), Fix: hint})
}

// mayUse asks policy about a permission that the caller holds.
func (h *Hub) mayUse(c hub.Caller, p access.Permission) error {
	d := h.decideUse(c, p)
	if d.Effect == policy.Allow {
		return nil
	}
	return h.refuse(c, d.Reason, "check permission", "an owner can change the policies", hub.Denial{
		DecisionID: hex.EncodeToString(d.ID[:]), Layer: hub.LayerPolicy, Reason: d.Reason, Policies: some(d.Policies),
		PolicySet: d.PolicySet.String(), Permission: string(p), Errors: d.Errors, Fix: d.Fix})
}

func (h *Hub) decideUse(c hub.Caller, p access.Permission) policy.Decision {
	return h.k.PolicySet().Decide(policy.Request{
		Principal: h.principal(c.User, c.Token), Action: policy.PermissionUse, Resource: policy.Entity{Type: policy.TypePermission, ID: string(p)},
		Context: policy.Context{DeviceID: c.Device, ChannelID: c.Surface, Features: h.cfg.Features.On()},
	})
}

// principal is a user as policy sees them, with the role of this moment and, if
// they show a token, its scopes.
func (h *Hub) principal(user, token string) policy.Entity {
	e := policy.Entity{Type: policy.TypeUser, ID: user}
	if role := h.access.Role(user); role != "" {
		e.Roles = []string{string(role)}
	}
	if token != "" {
		e.Scopes = []string{}
		for _, p := range h.access.Permissions(access.Holder{Principal: user, Token: token}).List() {
			e.Scopes = append(e.Scopes, string(p))
		}
	}
	return e
}

// Who sees what, once a permission lets the caller ask at all:
//
//   - what belongs to a principal (sessions, runs, tapes, artifacts, decisions,
//     receipts, statements of the journal): that principal, and who manages members;
//   - a request for approval: these, who has answered it, and, while it waits, who
//     could answer it with policy's word;
//   - a standing grant: these, and who gave it;
//   - which policies decided, and what would change that: of those, who holds policy.read.
//
// For the rest a thing with an id does not exist, and a list has its time and its
// digests. sees, seesRequest, seesGrant and seesPolicy are these four lines, and the
// only places that say so.

// sees reports whether the caller sees what belongs to a principal.
func (h *Hub) sees(c hub.Caller, principal string) bool {
	return c.User != "" && c.User == principal || h.seesAll(c)
}

// seesRequest reports whether the caller sees a request for approval.
func (h *Hub) seesRequest(ctx context.Context, c hub.Caller, a *hub.Approval) bool {
	if h.sees(c, a.Requester) || c.User != "" && (c.User == a.Approver || slices.Contains(a.Yes, c.User)) {
		return true
	}
	if a.State != hub.ApprovalPending || !h.holds(c, access.ApprovalResolve) {
		return false
	}
	call, err := run.CallOf(&a.Card)
	if err != nil {
		return false
	}
	verdict, _, err := h.word(ctx, &approval.Question{By: answerer(c), Scope: approval.ScopeOnce, Approvers: append(slices.Clone(a.Yes), c.User),
		Subject: approval.Subject{Run: a.Run, Session: a.Session, Step: a.Step, CallID: a.CallID, Requester: a.Requester},
		Request: &approval.Request{Tool: a.Card.Tool, Call: call}})
	return err == nil && verdict != approval.No
}

// seesGrant reports whether the caller sees a standing grant.
func (h *Hub) seesGrant(c hub.Caller, g *approval.Standing) bool {
	return h.sees(c, g.Requester) || c.User != "" && slices.Contains(g.Approvers, c.User)
}

// seesPolicy reports whether the caller is told which policies decided.
func (h *Hub) seesPolicy(c hub.Caller) bool { return h.holds(c, access.PolicyRead) }

// holds reports whether the caller may use a permission. Unlike need it is no
// attempt to: a no is not remembered.
func (h *Hub) holds(c hub.Caller, p access.Permission) bool {
	return h.access.Permissions(holder(c)).Has(p) && h.decideUse(c, p).Effect == policy.Allow
}

func (h *Hub) seesAll(c hub.Caller) bool {
	return h.access.Permissions(holder(c)).Has(access.MemberManage)
}

func noSuch(what, id string) error {
	return fault.New(fault.NotFound, "no_such_"+what, "look up "+what, fmt.Errorf("%.80q does not exist", id))
}
