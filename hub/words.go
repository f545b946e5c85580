package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/internal/fault"
)

// The events of calls in the words of the original Palyra. No tape stores them: ToolView
// makes them, when a tape is read, from its events, the run and the receipts.
const (
	EventToolProposal         = "tool_proposal"          // ToolProposal
	EventToolDecision         = "tool_decision"          // ToolDecision
	EventToolApprovalRequest  = "tool_approval_request"  // ToolApprovalRequest
	EventToolApprovalResponse = "tool_approval_response" // ToolApprovalResponse
	EventToolResult           = "tool_result"            // ToolResult
	EventToolAttestation      = "tool_attestation"       // ToolAttestation
)

// DenyByDefault is the reason of a decision that no policy permitted the call.
const DenyByDefault = "DenyByDefault"

// ToolProposal is a call that is about to be decided. ProposalID is the run and the
// number of the step.
type ToolProposal struct {
	ProposalID string          `json:"proposal_id"`
	ToolName   string          `json:"tool_name"`
	Input      json.RawMessage `json:"input_json,omitempty"`
}

// ToolDecision is the answer to a proposal, a person's included.
type ToolDecision struct {
	ProposalID       string   `json:"proposal_id"`
	Kind             string   `json:"kind"` // "allow" or "deny"
	Reason           string   `json:"reason"`
	ApprovalRequired bool     `json:"approval_required"`
	PolicyEnforced   bool     `json:"policy_enforced"` // true: nothing goes past policy
	DecisionID       string   `json:"decision_id,omitempty"`
	Policies         []string `json:"policies,omitempty"`
}

// ToolApprovalRequest is a question to a person.
type ToolApprovalRequest struct {
	ProposalID       string `json:"proposal_id"`
	ToolName         string `json:"tool_name"`
	ApprovalRequired bool   `json:"approval_required"`
	ApprovalID       string `json:"approval_id"`
	Summary          string `json:"request_summary"` // the card as text
}

// ToolApprovalResponse is the answer, or that there will be none.
type ToolApprovalResponse struct {
	ProposalID string `json:"proposal_id"`
	Approved   bool   `json:"approved"`
	Reason     string `json:"reason"` // the state of the approval
	ApprovalID string `json:"approval_id"`
}

// ToolResult is the result of a call.
type ToolResult struct {
	ProposalID string `json:"proposal_id"`
	Success    bool   `json:"success"`
	Output     string `json:"output_json"` // the part of standard output on the tape
	Error      string `json:"error"`
}

// ToolAttestation points to the receipt, which is signed and logged; it is neither. Only
// the receipt has Executor and SandboxEnforcement of a call that ran: they are empty for a
// token that lacks journal.read or policy.read.
type ToolAttestation struct {
	ProposalID      string `json:"proposal_id"`
	AttestationID   string `json:"attestation_id"`             // id of the call
	ExecutionSHA256 string `json:"execution_sha256,omitempty"` // of stdout, hexadecimal
	// Executor is the evidence's; for a call that didn't run, the layer that said no.
	Executor string `json:"executor"`
	// SandboxEnforcement is "strict", "preflight" if hosts were looked up before the call and that was
	// all, or "none" in the host's network, each with "; degraded: …", or "none" if nothing ran.
	SandboxEnforcement string    `json:"sandbox_enforcement"`
	ExecutedAt         time.Time `json:"executed_at"`
	TimedOut           bool      `json:"timed_out"`
	Receipt            *uint64   `json:"receipt,omitempty"` // index in the journal
}

// ViewTools is the view of a tape in the words of the original; see TapeQuery.
const ViewTools = "tools"

// ToolView turns the events of one run into those of the original: the events of
// steps and approvals are replaced, those of the run stay. It looks at one event at
// a time, so that a reader can begin anywhere. It is owned by its reader.
type ToolView struct {
	Hub    Hub
	Caller Caller
	Run    string
	// Receipts says that the caller may read them: without it they are not asked for.
	Receipts bool

	inputs map[int]json.RawMessage // by step; of those that the run had when it was read
}

func (v *ToolView) id(step int) string { return fmt.Sprintf("%s/%d", v.Run, step) }

// Of returns the events that e stands for, each with its number. There are none while a
// person has yet to decide.
func (v *ToolView) Of(ctx context.Context, e Event) ([]Event, error) {
	switch e.Kind {
	case EventStepStarted:
		return words(e, func(s *StepStarted) ([]word, error) {
			in, err := v.input(ctx, s.Step)
			return []word{{EventToolProposal, ToolProposal{ProposalID: v.id(s.Step), ToolName: s.Tool, Input: in}}}, err
		})
	case EventStepDecided:
		return words(e, func(s *StepDecided) ([]word, error) {
			d := ToolDecision{ProposalID: v.id(s.Step), Kind: "deny", Reason: s.Reason, PolicyEnforced: true, DecisionID: s.DecisionID, Policies: s.Policies}
			switch {
			case s.Effect == "needs_approval":
				return nil, nil
			case s.Effect == "allow":
				d.Kind = "allow"
			case fault.Code(s.Reason) == fault.ErrNotPermitted:
				d.Reason = DenyByDefault
			}
			return []word{{EventToolDecision, d}}, nil
		})
	case EventApprovalRequested:
		return words(e, func(a *Approval) ([]word, error) {
			return []word{{EventToolApprovalRequest, ToolApprovalRequest{v.id(a.Step), a.Card.Tool, true, a.ID, a.Text}}}, nil
		})
	case EventApprovalResolved:
		return words(e, func(a *ApprovalResolved) ([]word, error) {
			return []word{{EventToolApprovalResponse, ToolApprovalResponse{v.id(a.Step), a.State == ApprovalApproved, a.State, a.Approval}}}, nil
		})
	case EventStepEnded:
		return words(e, func(s *StepResult) ([]word, error) { return v.ended(ctx, s, e.Time) })
	}
	return []Event{e}, nil
}

// word is an event of the view.
type word struct {
	kind string
	data any
}

// words reads the data of an event and makes the events that it stands for.
func words[T any](e Event, of func(*T) ([]word, error)) ([]Event, error) {
	var data T
	if err := json.Unmarshal(e.Data, &data); err != nil {
		return nil, err
	}
	ws, err := of(&data)
	if err != nil {
		return nil, err
	}
	var out []Event
	for _, w := range ws {
		b, err := json.Marshal(w.data)
		if err != nil {
			return nil, err
		}
		out = append(out, Event{Run: e.Run, Seq: e.Seq, Kind: w.kind, Time: e.Time, Data: b})
	}
	return out, nil
}

func (v *ToolView) ended(ctx context.Context, s *StepResult, at time.Time) (out []word, err error) {
	no := s.Denial != nil && s.Denial.Layer == LayerApproval
	if s.Approval != "" || no { // the answer of a person, or a standing one
		d := ToolDecision{ProposalID: v.id(s.Index), Kind: "allow", Reason: "approved", ApprovalRequired: true, PolicyEnforced: true}
		if no {
			d.Kind, d.Reason, d.DecisionID, d.Policies = "deny", s.Denial.Reason, s.Denial.DecisionID, s.Denial.Policies
		}
		out = append(out, word{EventToolDecision, d})
	}
	r := ToolResult{ProposalID: v.id(s.Index), Success: s.Outcome == "executed" && s.Exit == 0, Output: s.Stdout.Text, Error: s.Error}
	if r.Error == "" && !r.Success {
		r.Error = s.Reason
	}
	out = append(out, word{EventToolResult, r})
	if s.LogIndex == nil {
		return out, nil
	}
	a, err := v.attestation(ctx, s, at)
	return append(out, word{EventToolAttestation, a}), err
}

// passing returns the errors after which the reader should come again. They must not pass
// for a missing receipt or input.
func passing(err error) error {
	switch fault.KindOf(err) {
	case fault.Unavailable, fault.Timeout, fault.Canceled:
		return err
	}
	return nil
}

// attested is the part of a receipt's statement that an attestation gives.
type attested struct {
	Subject []struct {
		Name   string
		Digest struct{ SHA256 string }
	}
	Predicate struct {
		Time     time.Time
		Outcome  string
		Evidence *struct {
			Executor     string
			Degradations []string
			Network      struct{ Mode string }
		}
	}
}

func (v *ToolView) attestation(ctx context.Context, s *StepResult, at time.Time) (ToolAttestation, error) {
	a := ToolAttestation{ProposalID: v.id(s.Index), AttestationID: s.CallID, ExecutedAt: at, TimedOut: s.Outcome == "timed_out", Receipt: s.LogIndex}
	if s.Denial != nil {
		a.Executor, a.SandboxEnforcement = s.Denial.Layer, "none"
	}
	if whole := s.Stdout.Artifact; !whole.IsZero() {
		a.ExecutionSHA256 = whole.Hex()
	} else if s.Stdout.Base64 == nil && int64(len(s.Stdout.Text)) == s.Stdout.Size && s.Denial == nil {
		sum := sha256.Sum256([]byte(s.Stdout.Text))
		a.ExecutionSHA256 = hex.EncodeToString(sum[:])
	}
	if !v.Receipts {
		return a, nil
	}
	page, err := ListJournalEntries.Do(ctx, v.Hub, v.Caller, JournalQuery{From: *s.LogIndex, Limit: 1}) // a receipt would prove it, too
	var x attested
	if err != nil || len(page.Items) == 0 || json.Unmarshal(page.Items[0].Statement, &x) != nil {
		return a, passing(err)
	}
	a.ExecutedAt, a.SandboxEnforcement = x.Predicate.Time, "none"
	for _, sub := range x.Subject {
		if sub.Name == "stdout" {
			a.ExecutionSHA256 = sub.Digest.SHA256
		}
	}
	if ev := x.Predicate.Evidence; ev != nil && ev.Executor != "" {
		a.Executor, a.SandboxEnforcement = ev.Executor, "strict"
		switch ev.Network.Mode {
		case "host":
			a.SandboxEnforcement = "none"
		case "preflight":
			a.SandboxEnforcement = "preflight"
		}
		if len(ev.Degradations) > 0 {
			a.SandboxEnforcement += "; degraded: " + strings.Join(slices.Sorted(slices.Values(ev.Degradations)), ", ")
		}
	}
	return a, nil
}

// input returns a step's input: the tape doesn't repeat it.
func (v *ToolView) input(ctx context.Context, step int) (json.RawMessage, error) {
	if _, ok := v.inputs[step]; !ok {
		r, err := GetRun.Do(ctx, v.Hub, v.Caller, v.Run)
		if err := passing(err); err != nil {
			return nil, err
		}
		v.inputs = map[int]json.RawMessage{}
		for i := range r.Steps {
			v.inputs[r.Steps[i].Index] = r.Steps[i].Input
		}
	}
	return v.inputs[step], nil
}

// Tape returns t, a tape of v.Run, as v shows it.
func (v *ToolView) Tape(t Tape) Tape { return &toolTape{Tape: t, view: v} }

type toolTape struct {
	Tape
	view *ToolView
	next []Event
}

// Next implements Tape.
func (t *toolTape) Next(ctx context.Context) (Event, error) {
	for len(t.next) == 0 {
		e, err := t.Tape.Next(ctx)
		if err == nil {
			t.next, err = t.view.Of(ctx, e)
		}
		if err != nil {
			return Event{}, err
		}
	}
	e := t.next[0]
	t.next = t.next[1:]
	return e, nil
}
