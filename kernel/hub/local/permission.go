package local

import (
	"fmt"

	"palyra/authz/access"
	"palyra/internal/fault"
	"palyra/kernel/hub"
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
	return h.need(c, p)
}

// MayFollow returns nil if whoever opened a tape may go on reading it: their
// token, role and scopes are looked at as they are now. It waits for no disk.
func (h *Hub) MayFollow(c hub.Caller) error { return h.ask(c, "Tape") }

// need returns nil if the caller holds a permission.
func (h *Hub) need(c hub.Caller, p access.Permission) error {
	err := h.access.Allow(holder(c), p)
	if err == nil {
		return nil
	}
	hint := fault.HintOf(err)
	return h.refuse(c, fault.ReasonOf(err), "check permission", hint, hub.Denial{Layer: hub.LayerAccess, Reason: fault.ReasonOf(err),
		Policies: []string{"permission:" + string(p)}, Permission: string(p), Fix: hint})
}

// sees reports whether the caller sees what belongs to a principal.
func (h *Hub) sees(c hub.Caller, principal string) bool {
	return c.User != "" && c.User == principal || h.seesAll(c)
}

func (h *Hub) seesAll(c hub.Caller) bool {
	return h.access.Permissions(holder(c)).Has(access.MemberManage)
}

func noSuch(what, id string) error {
	return fault.New(fault.NotFound, "no_such_"+what, "look up "+what, fmt.Errorf("%.80q does not exist", id))
}
