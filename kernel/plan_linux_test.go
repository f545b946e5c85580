package kernel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// What Confine says of a call is what the receipt of the same call says, files
// that are sealed for approval included.
func TestConfineIsWhatTheReceiptSays(t *testing.T) {
	ws := t.TempDir()
	if err := os.WriteFile(filepath.Join(ws, "in.txt"), []byte("b\na\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		p      Proposal
		effect policy.Effect
	}{
		{"plain", Proposal{Argv: []string{"/bin/true"}}, policy.Allow},
		{"void", Proposal{Argv: []string{"/bin/true"}, Network: isolate.NetworkVoid}, policy.Allow},
		{"limits", Proposal{Argv: []string{"/bin/true"}, Limits: isolate.Limits{PIDs: 7, Memory: 64 << 20}}, policy.Allow},
		{"approved", Proposal{Argv: []string{"sort", "in.txt"}, Workspace: ws}, policy.NeedsApproval},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.p.Tool, c.p.TierFloor = ToolRun, tier.C
			h := openHouse(t, Config{Approver: answer{yes: true}})
			x, err := Confine(t.Context(), Config{StateDir: h.dir, CellPath: cellPath(t)}, c.p, nil)
			if err != nil {
				t.Fatal(err)
			}
			o := h.call(&c.p, IO{})
			if o.Outcome != receipt.Executed || x.Decision.Effect != c.effect || o.Decision.Effect != c.effect {
				t.Fatalf("%s after %s, planned for %s, want %s", o.Outcome, o.Decision.Effect, x.Decision.Effect, c.effect)
			}
			var e evidence.Evidence
			if err := json.Unmarshal(h.verify(o).Statement.Predicate.Evidence, &e); err != nil {
				t.Fatal(err)
			}
			if x.Plan.Tape.Digest != e.Tape.Digest || len(x.Plan.Tape.Steps) != e.Tape.Steps {
				t.Errorf("tape %s of %d steps, the receipt says %s of %d", x.Plan.Tape.Digest, len(x.Plan.Tape.Steps), e.Tape.Digest, e.Tape.Steps)
			}
			if x.Plan.Seccomp.Policy != e.Seccomp.Policy || x.Plan.Network != e.Network.Mode {
				t.Errorf("filter %s, network %s, the receipt says %s, %s", x.Plan.Seccomp.Policy, x.Plan.Network, e.Seccomp.Policy, e.Network.Mode)
			}
		})
	}
	// A denied call is planned, too, and nothing of a state directory is made.
	dir := filepath.Join(t.TempDir(), "none")
	x, err := Confine(t.Context(), Config{StateDir: dir, CellPath: cellPath(t)}, Proposal{Tool: ToolRun, Argv: []string{"bash", "-c", "id"}}, nil)
	if err != nil || x.Decision.Effect != policy.Deny || x.Plan == nil {
		t.Errorf("a denied call: %+v, %v", x, err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("a state directory was made")
	}
}
