package hub

import "testing"

// TestEffects: each operation that isn't refused in every emergency was decided so, by name, and one
// that reads never is.
func TestEffects(t *testing.T) {
	decided := map[*Operation]Effect{
		// Work.
		CreateSession.Operation: Begins, StartRun.Operation: Begins, SendInput.Operation: Begins, Call.Operation: Begins, InspectServer.Operation: Begins, InspectInstructions.Operation: Begins,
		ApplyLayer.Operation: Begins, UndoLayer.Operation: Begins, RecoverLayer.Operation: Begins,
		// It writes as much as the beginning of its run did.
		SetMetadata.Operation: Begins,
		// Memory's and a vault's operations that make a call.
		SearchMemory.Operation: Begins, ListMemory.Operation: Begins, AddMemory.Operation: Begins, ForgetMemory.Operation: Begins,
		SetSecret.Operation: Begins, RollBackSecret.Operation: Begins, RevealSecret.Operation: Begins, ListSecrets.Operation: Begins, RemoveSecret.Operation: Begins,
		RotateVault.Operation: Begins, ImportSecrets.Operation: Begins, ExportSecrets.Operation: Begins,
		// Whoever looks into a stop reads the mended policies, replaces keys that may have leaked,
		// keeps the device with which to lift it, and lifts it.
		Reload.Operation: Mends, RotateKey.Operation: Mends, ReplaceRoot.Operation: Mends, RenewDevice.Operation: Mends, Resume.Operation: Mends,
		// It gives nothing, and writes a file and an entry of the journal.
		CosignJournal.Operation: Mends,
		// They read, though with a body. A backup is wanted before a repair.
		PreviewApproval.Operation: Keeps, FindFolders.Operation: Keeps, ExplainPolicy.Operation: Keeps, TestPolicy.Operation: Keeps, DiffPolicy.Operation: Keeps, Backup.Operation: Keeps, VerifyVault.Operation: Keeps,
		VerifyReceipt.Operation: Keeps, VerifyJournal.Operation: Keeps,
		// A browser gets what its user has at the socket anyway. Whoever looks into a stop may need it.
		OpenConsole.Operation: Keeps,
		// They end or take away.
		EndSession.Operation: Keeps, CancelRun.Operation: Keeps, RevokeInstructions.Operation: Keeps, DiscardLayer.Operation: Keeps, RemoveServer.Operation: Keeps, RevokeGrant.Operation: Keeps,
		RevokeToken.Operation: Keeps, RevokePasskey.Operation: Keeps, RemoveMember.Operation: Keeps, RevokeDevice.Operation: Keeps, RemoveDevice.Operation: Keeps, DenyPairing.Operation: Keeps, Stop.Operation: Keeps,
	}
	for _, op := range Operations() {
		want := decided[op] // Gives without a decision
		if op.Method == "GET" {
			want = Keeps
		}
		if op.Effect != want {
			t.Errorf("%s has effect %d, want %d", op.ID, op.Effect, want)
		}
		if op.EffectOf(nil) != want {
			t.Errorf("%s without input has effect %d, want %d", op.ID, op.EffectOf(nil), want)
		}
	}
	if e := ResolveApproval.EffectOf(Resolution{}); e != Keeps {
		t.Errorf("a no has effect %d", e)
	}
	if e := ResolveApproval.EffectOf(Resolution{Answer: Answer{Approve: true}}); e != Gives {
		t.Errorf("a yes has effect %d", e)
	}
}
