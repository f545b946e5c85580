package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// The events of calls in the words of the original Palyra. No tape stores them: they
// are made of the events that it has, of the run and of the receipts, when it is
// read; see ToolView.
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

// ToolResult is what a call gave.
type ToolResult struct {
	ProposalID string `json:"proposal_id"`
	Success    bool   `json:"success"`
	Output     string `json:"output_json"` // what the tool wrote to standard output, as far as it is on the tape
	Error      string `json:"error"`
}

// ToolAttestation points to the receipt, which is signed and logged; it is neither.
// What stands in the receipt alone is empty where the caller may not read the journal.
type ToolAttestation struct {
	ProposalID         string    `json:"proposal_id"`
	AttestationID      string    `json:"attestation_id"`             // id of the call
	ExecutionSHA256    string    `json:"execution_sha256,omitempty"` // of standard output, hexadecimal
	Executor           string    `json:"executor"`                   // as the evidence says; of a call that did not run the layer that said no
	SandboxEnforcement string    `json:"sandbox_enforcement"`        // "strict", "strict; degraded: …", or "none" where nothing ran
	ExecutedAt         time.Time `json:"executed_at"`
	TimedOut           bool      `json:"timed_out"`
	Receipt            *uint64   `json:"receipt,omitempty"` // index in the journal: palyra attest get
}

// toolView is a Tape of ToolView.
type toolView struct {
	Tape
	hub     Hub
	caller  Caller
	run     string
	inputs  map[int]json.RawMessage // by step; nil until the run was read
	asked   map[int]bool            // steps whose decision waits for a person
	decided map[int]bool            // steps whose decision was told
	next    []Event
}

// ToolView reads t, the tape of run, in the words of the original: the events of
// steps and approvals are replaced, those of the run stay. An event that several are
// made of gives each its number.
func ToolView(h Hub, c Caller, run string, t Tape) Tape {
	return &toolView{Tape: t, hub: h, caller: c, run: run, asked: map[int]bool{}, decided: map[int]bool{}}
}

// Next implements Tape.
func (v *toolView) Next(ctx context.Context) (Event, error) {
	for len(v.next) == 0 {
		e, err := v.Tape.Next(ctx)
		if err != nil {
			return Event{}, err
		}
		if err := v.take(ctx, e); err != nil {
			return Event{}, err
		}
	}
	e := v.next[0]
	v.next = v.next[1:]
	return e, nil
}

func (v *toolView) id(step int) string { return fmt.Sprintf("%s/%d", v.run, step) }

func (v *toolView) put(of Event, kind string, data any) error {
	b, err := json.Marshal(data)
	if err != nil {
		return err
	}
	of.Kind, of.Data = kind, b
	v.next = append(v.next, of)
	return nil
}

// take makes of one event those that it stands for.
func (v *toolView) take(ctx context.Context, e Event) error {
	switch e.Kind {
	case EventStepStarted:
		var s StepStarted
		if err := json.Unmarshal(e.Data, &s); err != nil {
			return err
		}
		return v.put(e, EventToolProposal, ToolProposal{ProposalID: v.id(s.Step), ToolName: s.Tool, Input: v.input(ctx, s.Step)})
	case EventStepDecided:
		var s StepDecided
		if err := json.Unmarshal(e.Data, &s); err != nil {
			return err
		}
		if s.Effect == "needs_approval" { // what is decided then, a person says
			v.asked[s.Step] = true
			return nil
		}
		d := ToolDecision{ProposalID: v.id(s.Step), Kind: "deny", Reason: s.Reason, PolicyEnforced: true, DecisionID: s.DecisionID, Policies: s.Policies}
		if s.Effect == "allow" {
			d.Kind = "allow"
		} else if s.Reason == "not_permitted" {
			d.Reason = DenyByDefault
		}
		v.decided[s.Step] = true
		return v.put(e, EventToolDecision, d)
	case EventApprovalRequested:
		var a Approval
		if err := json.Unmarshal(e.Data, &a); err != nil {
			return err
		}
		return v.put(e, EventToolApprovalRequest, ToolApprovalRequest{v.id(a.Step), a.Card.Tool, true, a.ID, a.Text})
	case EventApprovalResolved:
		var a ApprovalResolved
		if err := json.Unmarshal(e.Data, &a); err != nil {
			return err
		}
		return v.put(e, EventToolApprovalResponse, ToolApprovalResponse{v.id(a.Step), a.State == ApprovalApproved, a.State, a.Approval})
	case EventStepEnded:
		var s StepResult
		if err := json.Unmarshal(e.Data, &s); err != nil {
			return err
		}
		return v.ended(ctx, e, &s)
	}
	v.next = append(v.next, e)
	return nil
}

func (v *toolView) ended(ctx context.Context, e Event, s *StepResult) error {
	if (v.asked[s.Index] || s.Approval != "") && !v.decided[s.Index] { // a person's answer, or a standing one, is in the outcome
		d := ToolDecision{ProposalID: v.id(s.Index), Kind: "allow", Reason: "approved", ApprovalRequired: true, PolicyEnforced: true}
		if s.Denial != nil && s.Denial.Layer == LayerApproval {
			d.Kind, d.Reason, d.DecisionID, d.Policies = "deny", s.Denial.Reason, s.Denial.DecisionID, s.Denial.Policies
		}
		if err := v.put(e, EventToolDecision, d); err != nil {
			return err
		}
	}
	r := ToolResult{ProposalID: v.id(s.Index), Success: s.Outcome == "executed" && s.Exit == 0, Output: s.Stdout.Text, Error: s.Error}
	if r.Error == "" && !r.Success {
		r.Error = s.Reason
	}
	if err := v.put(e, EventToolResult, r); err != nil || s.LogIndex == nil {
		return err
	}
	return v.put(e, EventToolAttestation, v.attestation(ctx, s, e.Time))
}

// attested is what of a receipt's statement an attestation says.
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
		}
	}
}

func (v *toolView) attestation(ctx context.Context, s *StepResult, at time.Time) ToolAttestation {
	a := ToolAttestation{ProposalID: v.id(s.Index), AttestationID: s.CallID, SandboxEnforcement: "none", ExecutedAt: at, TimedOut: s.Outcome == "timed_out", Receipt: s.LogIndex}
	if s.Denial != nil {
		a.Executor = s.Denial.Layer
	}
	if whole := s.Stdout.Artifact; whole != "" {
		a.ExecutionSHA256 = strings.TrimPrefix(whole, "sha256:")
	} else if s.Stdout.Base64 == nil && int64(len(s.Stdout.Text)) == s.Stdout.Size && s.Denial == nil {
		sum := sha256.Sum256([]byte(s.Stdout.Text))
		a.ExecutionSHA256 = hex.EncodeToString(sum[:])
	}
	b, err := v.hub.Receipt(ctx, v.caller, *s.LogIndex)
	var bundle struct {
		Envelope struct{ Payload []byte } `json:"dsseEnvelope"`
	}
	var x attested
	if err != nil || json.Unmarshal(b, &bundle) != nil || json.Unmarshal(bundle.Envelope.Payload, &x) != nil {
		return a
	}
	a.ExecutedAt = x.Predicate.Time
	for _, sub := range x.Subject {
		if sub.Name == "stdout" {
			a.ExecutionSHA256 = sub.Digest.SHA256
		}
	}
	if ev := x.Predicate.Evidence; ev != nil && ev.Executor != "" {
		a.Executor, a.SandboxEnforcement = ev.Executor, "strict"
		if len(ev.Degradations) > 0 {
			a.SandboxEnforcement += "; degraded: " + strings.Join(slices.Sorted(slices.Values(ev.Degradations)), ", ")
		}
	}
	return a
}

// input is what a step was given: the tape does not repeat it.
func (v *toolView) input(ctx context.Context, step int) json.RawMessage {
	if v.inputs == nil {
		v.inputs = map[int]json.RawMessage{}
		if r, err := v.hub.Run(ctx, v.caller, v.run); err == nil {
			for i := range r.Steps {
				v.inputs[r.Steps[i].Index] = r.Steps[i].Input
			}
		}
	}
	return v.inputs[step]
}

var _ io.Closer = (*toolView)(nil)
