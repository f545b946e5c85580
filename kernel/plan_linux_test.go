package kernel

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// TestConfineIsWhatTheReceiptSays: Confine's plan for a call agrees with the call's receipt,
// files that are sealed for approval included.
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
	// The setting of a daemon's calls, and tier B, where root's palyra-cell runs each call as
	// another user.
	for _, c := range []struct {
		name string
		tier tier.Tier
		cfg  Config
		tape func(*cell.Plan) *cell.PlanTape
	}{
		{"warm", tier.C, Config{Warm: tier.C, Pool: cell.Pool{Cells: 1}}, func(p *cell.Plan) *cell.PlanTape { return p.Warm }},
		{"tier b", tier.B, Config{}, func(p *cell.Plan) *cell.PlanTape { return &p.Tape }},
	} {
		if c.tier == tier.B && os.Getuid() != 0 {
			continue // the limit of processes counts the user's
		}
		t.Run(c.name, func(t *testing.T) {
			h, p := openHouse(t, c.cfg), Proposal{Tool: ToolRun, TierFloor: c.tier, Argv: []string{"/bin/true"}}
			x, err := Confine(t.Context(), Config{StateDir: h.dir, CellPath: cellPath(t)}, p, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := h.Expect(t.Context(), "", isolate.Limits{}); err != nil {
				t.Fatal(err)
			}
			var e evidence.Evidence
			if err := json.Unmarshal(h.verify(h.call(&p, IO{})).Statement.Predicate.Evidence, &e); err != nil {
				t.Fatal(err)
			}
			if got := c.tape(x.Plan); got.Digest != e.Tape.Digest || len(got.Steps) != e.Tape.Steps || (e.Cell.Mode == evidence.CellWarm) != (c.cfg.Pool.Cells > 0) {
				t.Errorf("tape %s of %d steps, the receipt of a %s cell says %s of %d", got.Digest, len(got.Steps), e.Cell.Mode, e.Tape.Digest, e.Tape.Steps)
			}
		})
	}
	// A denied call is planned too, and no state directory is made.
	dir := filepath.Join(t.TempDir(), "none")
	x, err := Confine(t.Context(), Config{StateDir: dir, CellPath: cellPath(t)}, Proposal{Tool: ToolRun, Argv: []string{"bash", "-c", "id"}}, nil)
	if err != nil || x.Decision.Effect != policy.Deny || x.Plan == nil {
		t.Errorf("a denied call: %+v, %v", x, err)
	}
	if _, err := os.Lstat(dir); err == nil {
		t.Error("a state directory was made")
	}
}
