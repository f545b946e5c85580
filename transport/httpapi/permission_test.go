package httpapi

import (
	"testing"

	"palyra/kernel/hub/local"
	"palyra/transport/api"
)

// methods are the methods of hub.Hub that operations lead to.
var methods = map[string]string{
	"createSession": "CreateSession", "listSessions": "Sessions", "getSession": "Session", "endSession": "EndSession",
	"startRun": "StartRun", "listRuns": "Runs", "getRun": "Run", "cancelRun": "CancelRun", "readTape": "Tape", "getArtifact": "Artifact", "call": "Call",
	"listTools": "Tools", "listApprovals": "Approvals", "getApproval": "Approval", "resolveApproval": "ResolveApproval",
	"previewApproval": "PreviewApproval", "listGrants": "Grants", "revokeGrant": "RevokeGrant",
	"getPolicy": "PolicyInfo", "explainPolicy": "PolicyExplain", "testPolicy": "PolicyTest", "diffPolicy": "PolicyDiff", "getDecision": "PolicyWhy", "exportDecision": "PolicyExport", "reload": "Reload",
	"getReceipt": "Receipt", "getJournal": "JournalStatus", "listJournalEntries": "JournalEntries", "proveJournalEntry": "JournalProof",
	"proveJournalConsistency": "JournalConsistency", "getCheckpoint": "JournalCheckpoint", "getTile": "JournalTile",
	"createToken": "CreateToken", "listTokens": "Tokens", "revokeToken": "RevokeToken", "rotateToken": "RotateToken",
	"listMembers": "Members", "putMember": "PutMember", "removeMember": "RemoveMember",
	"getDoctor": "Doctor", "getConfig": "Config", "stop": "Stop", "resume": "Resume", "backup": "Backup",
}

// TestPermissionsAreTheHubs: the table names the permission that the hub will
// ask for, so that the document tells the truth, and everything that the hub
// can do can be asked for.
func TestPermissionsAreTheHubs(t *testing.T) {
	left := local.Permissions()
	for _, op := range Operations() {
		m, ok := methods[op.ID]
		if !ok {
			if op.Permission == permConfigRead && op.ID == "metrics" || op.Permission == api.Public || op.Permission == api.Authenticated {
				continue
			}
			t.Errorf("operation %s leads to no method", op.ID)
			continue
		}
		if got := string(local.Permissions()[m]); got != op.Permission {
			t.Errorf("%s needs %q here and %q in the hub", op.ID, op.Permission, got)
		}
		delete(left, m)
	}
	delete(left, "Status") // it answers everybody
	for m := range left {
		t.Errorf("nothing leads to %s", m)
	}
}
