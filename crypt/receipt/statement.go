package receipt

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/call"
	"palyra/internal/canon"
)

// The predicate types of our statements.
const (
	IntentType = "https://palyra.dev/attestation/tool-intent/v1"    // what is about to happen
	ResultType = "https://palyra.dev/attestation/tool-execution/v1" // what happened
)

// PredicateVersion is the version of Predicate.
const PredicateVersion = 1

// The outcomes of a call. A result has one, an intent has "".
const (
	Executed       = "executed"        // the program ended by itself, whatever its status
	Denied         = "denied"          // policy said no
	NotApproved    = "not_approved"    // the approver said no, or nobody answered
	Refused        = "refused"         // the host cannot enforce what the call needs
	Failed         = "failed"          // it could not be started, or its sealed operands were uncovered while it ran
	TimedOut       = "timed_out"       // killed at the deadline
	Killed         = "killed"          // killed by a limit or by the caller
	OutcomeUnknown = "outcome_unknown" // palyra or palyra-cell died: it may have run, in part or to its end
)

// ran lists the outcomes that only a call can have that was about to happen.
var ran = []string{Executed, Failed, TimedOut, Killed, OutcomeUnknown}

// Statement is an in-toto Statement v1 with one of our predicates.
type Statement struct {
	Type          string    `json:"_type"`
	Subject       []Subject `json:"subject"`
	PredicateType string    `json:"predicateType"`
	Predicate     Predicate `json:"predicate"`
}

// Subject is a thing that a statement is about, by digest.
type Subject struct {
	Name   string        `json:"name"`
	Digest SubjectDigest `json:"digest"`
}

// SubjectDigest holds the hexadecimal SHA-256, the one algorithm we use.
type SubjectDigest struct {
	SHA256 string `json:"sha256"`
}

// The names of subjects, in their order.
const (
	SubjectCapsule = "capsule"
	SubjectStdout  = "stdout"
	SubjectStderr  = "stderr"
)

// Predicate says what a call was and what became of it. Values of environment
// variables, bytes of input and output, and secrets are never in it.
type Predicate struct {
	Version   int             `json:"version"` // PredicateVersion
	CallID    string          `json:"call_id"`
	Seq       uint64          `json:"seq"`  // size of the journal, as this process knew it, when the statement was made
	Time      string          `json:"time"` // RFC 3339, UTC; a clock's claim, not evidence
	BootID    string          `json:"boot_id"`
	Tool      string          `json:"tool"`
	Principal string          `json:"principal"`
	SessionID string          `json:"session_id"`
	RunID     string          `json:"run_id,omitempty"` // absent: no run made the call
	Capsule   Capsule         `json:"capsule"`
	Question  *Question       `json:"question,omitempty"` // absent: written before there was one, or too long
	Decision  Decision        `json:"decision"`
	Approval  *Approval       `json:"approval"`          // null: nobody was asked
	Outcome   string          `json:"outcome"`           // "" in an intent
	Intent    *uint64         `json:"intent"`            // log index of the intent; null in intents, and where none was needed
	Error     *Error          `json:"error"`             // null: none
	Evidence  json.RawMessage `json:"evidence"`          // isolate/evidence.Evidence; null: nothing ran, or the outcome is unknown
	Planted   *Planted        `json:"planted,omitempty"` // absent: no writable workspace, nobody looked, or written before anybody did
}

// Capsule summarises what was asked for; Digest is that of the whole.
type Capsule struct {
	Digest      canon.Digest `json:"digest"`
	Bytes       int64        `json:"bytes"` // length of the capsule's canonical JSON
	Argv        []string     `json:"argv"`
	EnvNames    []string     `json:"env_names"` // without values
	Cwd         string       `json:"cwd"`
	TierFloor   string       `json:"tier_floor"`
	Executable  File         `json:"executable"`
	Script      *File        `json:"script"`
	Operands    []File       `json:"operands"`
	Workspace   *Workspace   `json:"workspace"` // null: a private empty one
	Stdin       Stdin        `json:"stdin"`
	EgressHosts []string     `json:"egress_hosts"`
	Limits      Limits       `json:"limits"`
	// Absent where zero.
	Network      string   `json:"network,omitempty"`      // "void": the network namespace that is shared and empty; "loopback": one in which the program can connect to itself; "session": such a one that calls of the statement's session_id share
	Capabilities []string `json:"capabilities,omitempty"` // that the tool's table declares
	Sensitive    bool     `json:"sensitive,omitempty"`    // the tool's table declares it so
	// Mounts are the host directories that the program saw read-only, at their own paths.
	Mounts []Mount `json:"mounts,omitempty"`
	// Caches are the names of those that the program shared with other calls of its principal
	// and workspace.
	Caches []string `json:"caches,omitempty"`
	// Secrets are those that the program could read, by name, reference, version and record.
	Secrets []call.Secret `json:"secrets,omitempty"`
	// EgressInspect are rules about requests to hosts, which palyra-egress read.
	EgressInspect []string `json:"egress_inspect,omitempty"`
	// EgressSecrets are those that palyra-egress could put into requests, by use, version and record;
	// the program couldn't read them.
	EgressSecrets []call.EgressSecret `json:"egress_secrets,omitempty"`
	// Declared says that the operator declared mounts, caches and an environment set for the
	// workspace.
	Declared *call.Declared `json:"declared,omitempty"`
	// TTY is the terminal that the program had for itself, with what was typed there as its input
	// and one stream of output.
	TTY *call.TTY `json:"tty,omitempty"`
	// Background says that no caller waited for the program's end.
	Background bool  `json:"background,omitempty"`
	Loader     *File `json:"loader,omitempty"` // dynamic loader of the executable; none too where written before it was recorded
}

// File is a file that was pinned.
type File = call.File

// Stdin says what the program could read.
type Stdin = call.Stdin

// Workspace is the host directory that the call saw.
type Workspace struct {
	Source   string `json:"source"`
	ReadOnly bool   `json:"read_only"`
	// Staged says that the program wrote to a layer, and the directory stayed as it was. Layer
	// is the name that the layer was asked for by; absent: the call got a new one.
	Staged bool   `json:"staged,omitempty"`
	Layer  string `json:"layer,omitempty"`
	// OwnPath says that the program saw the directory at Source, and not at /workspace.
	OwnPath bool `json:"own_path,omitempty"`
}

// Mount is a host directory that the call saw read-only.
type Mount = call.Mount

// Limits are the bounds that were asked for, call.Limits in the receipt's spelling;
// what was in force is evidence.
type Limits struct {
	Wall      time.Duration `json:"wall_ns"`
	CPU       time.Duration `json:"cpu_ns"`
	Memory    int64         `json:"memory"`
	PIDs      int64         `json:"pids"`
	Output    int64         `json:"output"`
	FileSize  int64         `json:"file_size"`
	OpenFiles int64         `json:"open_files"`
	Disk      int64         `json:"disk"`
	Inodes    int64         `json:"inodes"`
}

// Question is what policy was told of a call that stands nowhere else in the
// statement: with it the request can be put to policy again, exactly. Its fields'
// comments are the table in docs/formats/receipt.md.
type Question struct {
	// Roles are the principal's roles, as authenticated.
	Roles []string `json:"roles"`
	// Device is the device that asked, "" if unknown.
	Device string `json:"device"`
	// Channel is the surface that the request came by.
	Channel string `json:"channel"`
	// System is true if program and scripts are the system's own.
	System bool `json:"system"`
	// Certificate is what the sandbox certificate said of the tier, `proven` or `refuted`.
	Certificate string `json:"certificate,omitempty"`
	// EnvOverridden are the variables of every call that had another value.
	EnvOverridden []string `json:"env_overridden,omitempty"`
	// EnvCode are the variables that led to code that isn't the system's.
	EnvCode []string `json:"env_code,omitempty"`
	// Unpinned are the kinds of what was named and not held.
	Unpinned []string `json:"unpinned,omitempty"`
	// LineArgs are the arguments in the scripts' `#!` lines; older versions didn't tell policy.
	LineArgs []string `json:"line_args,omitempty"`
	// MCP is the gist of a question to a server that ran already; no program was started.
	MCP *call.MCP `json:"mcp,omitempty"`
	// Inputs are the origins of what the session had read: `web`, `project` and others.
	Inputs []string `json:"inputs,omitempty"`
	// Signals are signs in what a call that can reach hosts took along: `hidden`, `secret`.
	Signals []string `json:"signals,omitempty"`
}

// Decision is policy's answer.
type Decision struct {
	ID        string       `json:"id"`
	Effect    string       `json:"effect"` // "allow", "deny" or "needs_approval"
	Reason    string       `json:"reason"`
	Policies  []string     `json:"policies"` // that determined it, sorted
	Errors    []string     `json:"errors"`   // of evaluation; any is a denial
	PolicySet canon.Digest `json:"policy_set"`
	Fix       string       `json:"fix"` // a change that would allow this call, and those of its shape
}

// Approval is a person's answer.
type Approval struct {
	ID        string       `json:"id"`
	Answer    string       `json:"answer"`
	Approver  string       `json:"approver"`
	Surface   string       `json:"surface"`
	Scope     string       `json:"scope"`
	Requested string       `json:"requested"` // RFC 3339, UTC
	Answered  string       `json:"answered"`
	Capsule   canon.Digest `json:"capsule"`
	PolicySet canon.Digest `json:"policy_set"`

	// The rest is absent where it is zero. Grant and Pattern name the standing
	// grant that the yes made or rests on, and the digest of the pattern that it is
	// bound to instead of the capsule; Approvers are all who said yes, where it took
	// more than one.
	Grant     string       `json:"grant,omitempty"`
	Pattern   canon.Digest `json:"pattern,omitzero"`
	Approvers []string     `json:"approvers,omitempty"`
	// Signed are the yeses that passkeys of those who gave them signed; none where the yes was
	// given before, to a standing grant, whose act has them.
	Signed []*call.SignedYes `json:"signed,omitempty"`
}

// Error is why a call did not run or did not end well.
type Error struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
}

// NewStatement returns the statement for a predicate: with an outcome it is a
// result, without it is an intent. The capsule is the first subject; stdout and
// stderr are digests of what was kept of the output, zero for none.
func NewStatement(p Predicate, stdout, stderr canon.Digest) Statement {
	s := Statement{Type: statementType, PredicateType: IntentType, Predicate: p}
	if p.Outcome != "" {
		s.PredicateType = ResultType
	}
	add := func(name string, d canon.Digest) {
		if !d.IsZero() {
			s.Subject = append(s.Subject, Subject{Name: name, Digest: SubjectDigest{SHA256: d.Hex()}})
		}
	}
	add(SubjectCapsule, p.Capsule.Digest)
	add(SubjectStdout, stdout)
	add(SubjectStderr, stderr)
	s.normalise()
	return s
}

// normalise makes lists empty rather than null: there is one way to say none.
func (s *Statement) normalise() {
	p := &s.Predicate
	for _, l := range []*[]string{&p.Capsule.Argv, &p.Capsule.EnvNames, &p.Capsule.EgressHosts, &p.Decision.Policies, &p.Decision.Errors} {
		if *l == nil {
			*l = []string{}
		}
	}
	if p.Question != nil && p.Question.Roles == nil {
		p.Question.Roles = []string{}
	}
	if p.Capsule.Operands == nil {
		p.Capsule.Operands = []File{}
	}
	if p.Evidence == nil {
		p.Evidence = json.RawMessage("null")
	}
	if p.Planted != nil {
		p.Planted.normalise()
	}
}

// IsIntent reports whether the statement says what is about to happen.
func (s *Statement) IsIntent() bool { return s.PredicateType == IntentType }

// check holds a statement to what its type promises.
func (s *Statement) check() error {
	p := &s.Predicate
	switch {
	case s.Type != statementType:
		return fmt.Errorf("statement type %q, want %q", s.Type, statementType)
	case s.PredicateType != IntentType && s.PredicateType != ResultType:
		return fmt.Errorf("predicate type %q is none of ours", s.PredicateType)
	case p.Version != PredicateVersion:
		return fmt.Errorf("predicate version %d, want %d", p.Version, PredicateVersion)
	case p.CallID == "":
		return errors.New("no call_id")
	case p.Capsule.Digest.IsZero():
		return errors.New("no capsule digest")
	case !slices.Contains([]string{"allow", "deny", "needs_approval"}, p.Decision.Effect):
		return fmt.Errorf("decision %q", p.Decision.Effect)
	case !slices.IsSorted(p.Decision.Policies):
		return errors.New("policies are not sorted")
	}
	if err := checkTime(p.Time); err != nil {
		return err
	}
	// Its members belong to isolate/evidence, which crypt does not import; whoever
	// reads evidence decodes it strictly there. That it is JSON, in canonical form
	// and without a name twice, is seen to by printing and by parsing the whole.
	if !isNull(p.Evidence) && p.Evidence[0] != '{' {
		return errors.New("evidence is neither null nor an object")
	}
	if err := s.checkSubjects(); err != nil {
		return err
	}
	if s.IsIntent() {
		return p.checkIntent()
	}
	return p.checkResult()
}

func (p *Predicate) checkIntent() error {
	switch {
	case p.Outcome != "" || p.Intent != nil || p.Error != nil || !isNull(p.Evidence) || p.Planted != nil:
		return errors.New("an intent has no outcome, intent, error, evidence or anything planted")
	case p.Decision.Effect == "deny":
		return errors.New("an intent for a call that policy denied")
	case p.Decision.Effect == "needs_approval" && p.Approval == nil:
		return errors.New("an intent for a call that needs approval and has none")
	}
	return p.checkApproval()
}

func (p *Predicate) checkResult() error {
	began := slices.Contains(ran, p.Outcome)
	switch {
	case !began && p.Outcome != Denied && p.Outcome != NotApproved && p.Outcome != Refused:
		return fmt.Errorf("outcome %q", p.Outcome)
	case began && p.Intent == nil:
		return fmt.Errorf("outcome %q without an intent", p.Outcome)
	case (p.Outcome == Denied || p.Outcome == NotApproved) && (p.Intent != nil || !isNull(p.Evidence)):
		return fmt.Errorf("outcome %q with an intent or with evidence", p.Outcome)
	case p.Outcome == Denied && p.Decision.Effect != "deny":
		return errors.New("a denied call whose decision is no denial")
	case p.Outcome != Denied && p.Decision.Effect == "deny":
		return fmt.Errorf("outcome %q after a denial", p.Outcome)
	case p.Outcome == NotApproved && p.Decision.Effect != "needs_approval":
		return errors.New("a call that was not approved and needed no approval")
	case began && p.Decision.Effect == "needs_approval" && p.Approval == nil:
		return fmt.Errorf("outcome %q of a call that needs approval and has none", p.Outcome)
	case p.Outcome == Executed && isNull(p.Evidence):
		return errors.New("an executed call without evidence")
	}
	if err := p.checkPlanted(); err != nil {
		return err
	}
	return p.checkApproval()
}

func (p *Predicate) checkApproval() error {
	if p.Approval != nil && p.Approval.Capsule != p.Capsule.Digest {
		return errors.New("the approval is for another capsule")
	}
	if a := p.Approval; a != nil && ((a.Grant != "") != (a.Scope == "session" || a.Scope == "timed") || a.Grant == "" && !a.Pattern.IsZero()) {
		return fmt.Errorf("an approval of scope %q with grant %q", clip(a.Scope), clip(a.Grant))
	}
	if p.Approval != nil {
		return p.Approval.checkSigned()
	}
	return nil
}

func (s *Statement) checkSubjects() error {
	names := []string{SubjectCapsule, SubjectStdout, SubjectStderr}
	if len(s.Subject) == 0 || s.Subject[0].Name != SubjectCapsule || s.Subject[0].Digest.SHA256 != s.Predicate.Capsule.Digest.Hex() {
		return errors.New("the first subject is not the capsule of the predicate")
	}
	at := -1
	for _, sub := range s.Subject {
		i := slices.Index(names, sub.Name)
		if i <= at {
			return fmt.Errorf("subject %q is unknown, twice or out of order", sub.Name)
		}
		at = i
		if d, err := canon.ParseDigest("sha256:" + sub.Digest.SHA256); err != nil || d.IsZero() {
			return fmt.Errorf("subject %q has no SHA-256 digest", sub.Name)
		}
	}
	if s.IsIntent() && len(s.Subject) != 1 {
		return errors.New("an intent has output")
	}
	return nil
}

// checkTime accepts RFC 3339 in UTC, in the spelling that Go gives it.
func checkTime(s string) error {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil || t.UTC().Format(time.RFC3339Nano) != s {
		return fmt.Errorf("time %q is not RFC 3339 in UTC", s)
	}
	return nil
}

func isNull(m json.RawMessage) bool { return len(m) == 0 || string(m) == "null" }

// parseStatement decodes the canonical JSON of one of our statements.
func parseStatement(payload []byte) (*Statement, error) {
	var s Statement
	if err := decodeExactly(payload, &s, maxPayload); err != nil {
		return nil, err
	}
	if err := s.check(); err != nil {
		return nil, err
	}
	return &s, nil
}

// decodeExactly decodes strictly and refuses every spelling but the one that
// encoding v gives: no member missing, none unknown, no other order or space.
func decodeExactly(b []byte, v any, max int) error {
	if err := canon.Decode(b, v, canon.Limits{Bytes: max}); err != nil {
		return err
	}
	again, err := canon.Marshal(v)
	if err != nil {
		return err
	}
	if !bytes.Equal(again, b) {
		return errors.New("not in canonical form, or a member is missing")
	}
	return nil
}
