package hub_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"slices"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// recorded is a tape that was written, and a hub that has its run and no receipts.
type recorded struct{ events []hub.Event }

func (r *recorded) Next(context.Context) (hub.Event, error) {
	if len(r.events) == 0 {
		return hub.Event{}, io.EOF
	}
	e := r.events[0]
	r.events = r.events[1:]
	return e, nil
}

func (r *recorded) Close() error { return nil }

func (r *recorded) Do(_ context.Context, _ hub.Caller, op *hub.Operation, _ any) (any, error) {
	if op == hub.GetRun.Operation {
		return hub.Run{Steps: []hub.StepResult{{Index: 0, Input: json.RawMessage(`{"a":1}`)}}}, nil
	}
	return nil, errors.New("no permission")
}

// TestToolViewAsked: a question and its answer become the original's events, in its
// order: the decision is told when a person has made it.
func TestToolViewAsked(t *testing.T) {
	index := uint64(7)
	put := func(kind string, data any) hub.Event {
		b, err := json.Marshal(data)
		if err != nil {
			t.Fatal(err)
		}
		return hub.Event{Run: "run_1", Kind: kind, Data: b}
	}
	for name, c := range map[string]struct {
		state, outcome string
		denial         *hub.Denial
		kind           string
	}{
		"approved": {"approved", "executed", nil, "allow"},
		"denied":   {"denied", "not_approved", &hub.Denial{Layer: hub.LayerApproval, Reason: "denied"}, "deny"},
	} {
		t.Run(name, func(t *testing.T) {
			r := &recorded{events: []hub.Event{
				put(hub.EventRunInProgress, hub.RunChange{State: "in_progress"}),
				put(hub.EventStepStarted, hub.StepStarted{Step: 0, Tool: "fs.write_file"}),
				put(hub.EventStepDecided, hub.StepDecided{Step: 0, Effect: "needs_approval", Reason: "approval_required"}),
				put(hub.EventApprovalRequested, hub.Approval{ID: "apr_1", Step: 0, Text: "card", Card: hub.Card{Tool: "fs.write_file"}}),
				put(hub.EventApprovalResolved, hub.ApprovalResolved{Step: 0, Approval: "apr_1", State: c.state}),
				put(hub.EventStepEnded, hub.StepResult{Index: 0, CallID: "call_1", Outcome: c.outcome, Denial: c.denial, LogIndex: &index, Approval: "apr_1"}),
				put(hub.EventRunDone, hub.RunChange{State: "done"})}}
			v := (&hub.ToolView{Hub: r, Run: "run_1", Receipts: true}).Tape(r)
			var kinds []string
			data := map[string]string{}
			for {
				e, err := v.Next(t.Context())
				if err == io.EOF {
					break
				} else if err != nil {
					t.Fatal(err)
				}
				kinds = append(kinds, e.Kind)
				data[e.Kind] = string(e.Data)
			}
			if want := []string{"run.in_progress", "tool_proposal", "tool_approval_request", "tool_approval_response", "tool_decision", "tool_result", "tool_attestation", "run.done"}; !slices.Equal(kinds, want) {
				t.Errorf("got %q, want %q", kinds, want)
			}
			var d hub.ToolDecision
			if err := json.Unmarshal([]byte(data["tool_decision"]), &d); err != nil || d.Kind != c.kind || !d.ApprovalRequired || !d.PolicyEnforced || d.ProposalID != "run_1/0" {
				t.Errorf("%s", data["tool_decision"])
			}
			if data["tool_proposal"] != `{"proposal_id":"run_1/0","tool_name":"fs.write_file","input_json":{"a":1}}` {
				t.Errorf("%s", data["tool_proposal"])
			}
			var a hub.ToolAttestation
			if err := json.Unmarshal([]byte(data["tool_attestation"]), &a); err != nil || a.AttestationID != "call_1" || *a.Receipt != 7 || (a.Executor == hub.LayerApproval) != (c.kind == "deny") || (a.SandboxEnforcement == "none") != (c.kind == "deny") {
				t.Errorf("%s", data["tool_attestation"])
			}
		})
	}
}

// TestToolViewReceipts: a reader without the right to receipts asks for none; and one
// that cannot have one now is told so, instead of an attestation that lacks it.
func TestToolViewReceipts(t *testing.T) {
	index := uint64(7)
	b, err := json.Marshal(hub.StepResult{CallID: "call_1", Outcome: "executed", LogIndex: &index})
	if err != nil {
		t.Fatal(err)
	}
	e := hub.Event{Run: "run_1", Seq: 1, Kind: hub.EventStepEnded, Data: b}
	busy := &busy{}
	v := hub.ToolView{Hub: busy, Run: "run_1"}
	if evs, err := v.Of(t.Context(), e); err != nil || len(evs) != 2 || busy.asked != 0 {
		t.Errorf("without the right: %d events, %v, asked %d times", len(evs), err, busy.asked)
	}
	v.Receipts = true
	if _, err := v.Of(t.Context(), e); fault.KindOf(err) != fault.Unavailable || busy.asked != 1 {
		t.Errorf("busy: %v, asked %d times", err, busy.asked)
	}
}

// busy is a hub that has no room for a receipt.
type busy struct{ asked int }

func (b *busy) Do(context.Context, hub.Caller, *hub.Operation, any) (any, error) {
	b.asked++
	return nil, fault.New(fault.Unavailable, "budget", "take reads", nil)
}
