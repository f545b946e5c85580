package local

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"palyra/hub"
)

// TestToolView: the tape of real calls in the original's words says what the receipts
// say, points to them, and adds no row to the tape.
func TestToolView(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	for _, c := range []struct {
		name  string
		argv  []string
		want  []string
		check func(d hub.ToolDecision, r hub.ToolResult, a hub.ToolAttestation) bool
	}{
		{"executed", []string{"/bin/echo", "hello"}, []string{"tool_proposal", "tool_decision", "tool_result", "tool_attestation"},
			func(d hub.ToolDecision, r hub.ToolResult, a hub.ToolAttestation) bool {
				sum := sha256.Sum256([]byte("hello\n"))
				return d.Kind == "allow" && !d.ApprovalRequired && r.Success && r.Output == "hello\n" && a.ExecutionSHA256 == hex.EncodeToString(sum[:]) &&
					a.Executor == "sandbox_tier_c_linux_native" && len(a.SandboxEnforcement) >= 6 && a.SandboxEnforcement[:6] == "strict" && !a.TimedOut && !a.ExecutedAt.IsZero()
			}},
		{"denied", []string{"/bin/sh", "-c", "id"}, []string{"tool_proposal", "tool_decision", "tool_result", "tool_attestation"},
			func(d hub.ToolDecision, r hub.ToolResult, a hub.ToolAttestation) bool {
				return d.Kind == "deny" && d.DecisionID != "" && len(d.Policies) > 0 && !r.Success && r.Error != "" && a.Executor == "policy" && a.SandboxEnforcement == "none" && a.ExecutionSHA256 == ""
			}},
	} {
		run := h.call(h.owner, argv(c.argv...))
		tape, err := hub.ReadTape.Do(ctx, h, h.owner, hub.TapeQuery{Run: run.ID, View: hub.ViewTools})
		if err != nil {
			t.Fatal(err)
		}
		var kinds []string
		var last uint64
		data := map[string]json.RawMessage{}
		for {
			e, err := tape.Next(ctx)
			if errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if e.Seq < last || e.Run != run.ID {
				t.Errorf("%s: %+v after %d", c.name, e, last)
			}
			if last = e.Seq; len(e.Kind) > 5 && e.Kind[:5] == "tool_" {
				kinds = append(kinds, e.Kind)
				data[e.Kind] = e.Data
			}
		}
		tape.Close()
		var d hub.ToolDecision
		var r hub.ToolResult
		var a hub.ToolAttestation
		err = errors.Join(json.Unmarshal(data["tool_decision"], &d), json.Unmarshal(data["tool_result"], &r), json.Unmarshal(data["tool_attestation"], &a))
		if err != nil || !slices.Equal(kinds, c.want) || !c.check(d, r, a) || a.Receipt == nil || *a.Receipt != *run.Steps[0].LogIndex || a.AttestationID != run.Steps[0].CallID {
			t.Errorf("%s: %v %q\n%s\n%s\n%s", c.name, err, kinds, data["tool_decision"], data["tool_result"], data["tool_attestation"])
		}
		if last != run.LastSeq {
			t.Errorf("%s: the view ends at %d, the tape at %d", c.name, last, run.LastSeq)
		}
	}
}
