package hub

import (
	"encoding/json"
	"time"
)

// Digests are "sha256:" and 64 hexadecimal digits, or "" for none. Ids are those
// of internal/ident. Times are UTC; a nil or zero one has not come yet. Durations
// are nanoseconds.

// Credential is how a caller authenticates. Exactly one of PeerUID and Token is set.
type Credential struct {
	PeerUID *uint32 `json:"peer_uid,omitempty"` // of the process at the other end of a unix socket
	PeerPID int32   `json:"peer_pid,omitempty"` // for the log only
	Token   string  `json:"token,omitempty"`    // "palyra_…"; never logged
	Address string  `json:"address,omitempty"`  // of the peer, for limits and the log
	Surface string  `json:"surface"`            // "unix", "http", …
	Device  string  `json:"device,omitempty"`
}

// Caller is who asks, as Authenticate found it. The zero Caller may do nothing.
type Caller struct {
	User    string   `json:"user"`              // the principal: "uid:1000", or the one that a token is bound to
	Surface string   `json:"surface"`           // where the request came in
	Role    string   `json:"role,omitempty"`    // "owner", "admin", "operator" or ""
	Scopes  []string `json:"scopes,omitempty"`  // of the token; nil: no token, the role alone bounds it
	Token   string   `json:"token,omitempty"`   // id of the token that it used
	Device  string   `json:"device,omitempty"`  //
	Address string   `json:"address,omitempty"` //
}

// Page is a part of a list. Next, if not "", is the After of the next part.
type Page[T any] struct {
	Items []T    `json:"items"` // never null
	Next  string `json:"next,omitempty"`
}

// PageQuery says which part of a list.
type PageQuery struct {
	After string `json:"after,omitempty"` // Next of the part before; "": from the beginning
	Limit int    `json:"limit,omitempty"` // 1 to 1000; 0 is 100
}

// NewSession is what a session is made from.
type NewSession struct {
	Title string `json:"title,omitempty"` // at most 200 bytes; for display only
}

// The states of a session.
const (
	SessionOpen  = "open"
	SessionEnded = "ended"
)

// Session belongs to a principal and holds runs, of which one is active at a time.
type Session struct {
	ID        string     `json:"id"`
	Principal string     `json:"principal"`
	Title     string     `json:"title"`
	State     string     `json:"state"`
	Version   int64      `json:"version"`
	Created   time.Time  `json:"created"`
	Ended     *time.Time `json:"ended,omitempty"`
}

// SessionQuery chooses sessions; zero fields choose all that the caller may see.
type SessionQuery struct {
	PageQuery
	Principal string `json:"principal,omitempty"`
	State     string `json:"state,omitempty"`
}

// Budget bounds a run; zero fields have the daemon's bounds, which none exceeds.
type Budget struct {
	Calls int64         `json:"calls,omitempty"`
	Wall  time.Duration `json:"wall_ns,omitempty"` // from the first step on, waiting for approval included
	Bytes int64         `json:"bytes,omitempty"`   // of output
}

// Step is one call that a run is to make.
type Step struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input,omitempty"` // a JSON object; what it may hold is the tool's schema
}

// NewRun is what a run is made from.
type NewRun struct {
	Session        string `json:"session"`
	Steps          []Step `json:"steps"`                // at least one
	Budget         Budget `json:"budget,omitzero"`      //
	KeepGoing      bool   `json:"keep_going,omitempty"` // go on after a step that did not end well
	IdempotencyKey string `json:"-"`                    // 1 to 128 printable ASCII characters; "" is none. HTTP has it in a header
}

// NewCall is a run of one step.
type NewCall struct {
	Session        string          `json:"session,omitempty"` // "": one of its own, which ends with it
	Tool           string          `json:"tool"`
	Input          json.RawMessage `json:"input,omitempty"`
	Budget         Budget          `json:"budget,omitzero"`
	IdempotencyKey string          `json:"-"`
}

// The states of a run. The last three are final.
const (
	RunPending         = "pending"          // recorded; waits for its session
	RunAccepted        = "accepted"         // the next of its session; waits for a place
	RunInProgress      = "in_progress"      // makes calls
	RunWaitingApproval = "waiting_approval" // a person is asked about one
	RunDone            = "done"
	RunFailed          = "failed"
	RunCancelled       = "cancelled"
)

// Run is one task: a list of steps and what became of it.
type Run struct {
	ID        string       `json:"id"`
	Session   string       `json:"session"`
	Principal string       `json:"principal"`
	State     string       `json:"state"`
	Reason    string       `json:"reason,omitempty"` // code; why it failed or was cancelled
	Budget    Budget       `json:"budget"`
	Use       Budget       `json:"use"`
	Steps     []StepResult `json:"steps,omitempty"`    // not in lists
	LastSeq   uint64       `json:"last_seq,omitempty"` // of its tape; not in lists
	Version   int64        `json:"version"`
	Created   time.Time    `json:"created"`
	Started   *time.Time   `json:"started,omitempty"`
	Ended     *time.Time   `json:"ended,omitempty"`
}

// RunQuery chooses runs; zero fields choose all that the caller may see.
type RunQuery struct {
	PageQuery
	Session   string   `json:"session,omitempty"`
	Principal string   `json:"principal,omitempty"`
	States    []string `json:"states,omitempty"`
}

// The states of a step.
const (
	StepPending = "pending"
	StepRunning = "running"
	StepDone    = "done"    // it has an outcome, and a result in the journal
	StepFailed  = "failed"  // it never came to a decision, or nobody knows what became of it
	StepSkipped = "skipped" // the run ended before it
)

// StepResult is what became of a step.
type StepResult struct {
	Index   int             `json:"index"`
	Tool    string          `json:"tool"`
	Input   json.RawMessage `json:"input,omitempty"`
	State   string          `json:"state"`
	CallID  string          `json:"call_id,omitempty"`
	Capsule string          `json:"capsule,omitempty"` // digest
	Outcome string          `json:"outcome,omitempty"` // "executed", "denied", "not_approved", "refused", "failed", "timed_out", "killed", "outcome_unknown"
	Exit    int             `json:"exit"`
	Reason  string          `json:"reason,omitempty"` // code of what went wrong
	Error   string          `json:"error,omitempty"`  // text of it
	Hint    string          `json:"hint,omitempty"`
	Denial  *Denial         `json:"denial,omitempty"`
	// Stdout and Stderr are what the tool wrote.
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
	// LogIndex is the result's place in the journal; see Receipt. Nil: none.
	LogIndex *uint64    `json:"log_index,omitempty"`
	Approval string     `json:"approval,omitempty"` // id
	Started  *time.Time `json:"started,omitempty"`
	Ended    *time.Time `json:"ended,omitempty"`
}

// MaxInline is how much output is given in a result, in bytes. More is an artifact.
const MaxInline = 8 << 10

// Output is one stream that a tool wrote.
type Output struct {
	Size     int64  `json:"size"`               // bytes that were kept
	Text     string `json:"text,omitempty"`     // the whole, if it is UTF-8 and at most MaxInline; else its beginning
	Base64   []byte `json:"base64,omitempty"`   // instead of Text where it is not UTF-8
	Artifact string `json:"artifact,omitempty"` // digest of the whole where Text or Base64 is not the whole
	Lost     bool   `json:"lost,omitempty"`     // the whole could not be kept: no space
	LostWhy  string `json:"lost_why,omitempty"` // reason code: quota_artifacts, artifact_quota, disk_full …
}

// The layers that can say no.
const (
	LayerAccess    = "access"    // the caller lacks a permission
	LayerPolicy    = "policy"    // Cedar
	LayerApproval  = "approval"  // a person, or nobody answered
	LayerIsolation = "isolation" // the host cannot enforce what the call needs
	LayerBudget    = "budget"    // the run used up what it had
	LayerStop      = "stop"      // the emergency stop
)

// Denial is why something was not done, and what would have to change.
type Denial struct {
	DecisionID string   `json:"decision_id,omitempty"` // 32 hexadecimal digits
	Layer      string   `json:"layer"`
	Reason     string   `json:"reason"`
	Policies   []string `json:"policies,omitempty"`   // ids of those that determined it, sorted
	PolicySet  string   `json:"policy_set,omitempty"` // digest
	Capsule    string   `json:"capsule,omitempty"`    // digest
	Errors     []string `json:"errors,omitempty"`     // of evaluation
	Fix        string   `json:"fix,omitempty"`        // Cedar text, a command or a sentence
	Permission string   `json:"permission,omitempty"` // layer access: the one that is missing
	Comment    string   `json:"comment,omitempty"`    // layer approval: what the person said with the no; foreign
}

// Event is one entry of a tape.
type Event struct {
	Run  string          `json:"run"`
	Seq  uint64          `json:"seq"` // from 1, without gaps
	Kind string          `json:"kind"`
	Time time.Time       `json:"time"`
	Data json.RawMessage `json:"data"` // an object; see the kinds
}

// The kinds of events. A state of the run is "run." and its name.
const (
	EventRunPending         = "run.pending"          // RunChange
	EventRunAccepted        = "run.accepted"         // RunChange
	EventRunInProgress      = "run.in_progress"      // RunChange
	EventRunWaitingApproval = "run.waiting_approval" // RunChange
	EventRunDone            = "run.done"             // RunChange; the last
	EventRunFailed          = "run.failed"           // RunChange; the last
	EventRunCancelled       = "run.cancelled"        // RunChange; the last
	EventStepStarted        = "step.started"         // StepStarted
	EventStepDecided        = "step.decided"         // StepDecided
	EventStepEnded          = "step.ended"           // StepResult without Input
	EventApprovalRequested  = "approval.requested"   // Approval
	EventApprovalResolved   = "approval.resolved"    // ApprovalResolved
)

// RunChange is the data of the run's own events.
type RunChange struct {
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	By     string `json:"by,omitempty"` // who cancelled it
	Use    Budget `json:"use"`
}

// StepStarted is the data of EventStepStarted.
type StepStarted struct {
	Step int    `json:"step"`
	Tool string `json:"tool"`
}

// StepDecided is the data of EventStepDecided.
type StepDecided struct {
	Step       int      `json:"step"`
	CallID     string   `json:"call_id"`
	Capsule    string   `json:"capsule"` // digest
	DecisionID string   `json:"decision_id"`
	Effect     string   `json:"effect"` // "allow", "needs_approval" or "deny"
	Reason     string   `json:"reason"`
	Policies   []string `json:"policies"`
}

// ApprovalResolved is the data of EventApprovalResolved.
type ApprovalResolved struct {
	Step     int    `json:"step"`
	Approval string `json:"approval"` // id
	State    string `json:"state"`
	Approver string `json:"approver,omitempty"`
	Surface  string `json:"surface,omitempty"`
}

// The states of a request for approval. All but pending are final.
const (
	ApprovalPending   = "pending"
	ApprovalApproved  = "approved"
	ApprovalDenied    = "denied"
	ApprovalExpired   = "expired"
	ApprovalWithdrawn = "withdrawn" // the call was cancelled while it waited
)

// Approval is a question to a person, and the answer. All text in Card may come
// from a model: a terminal shows it escaped (approval.Escape).
type Approval struct {
	ID         string     `json:"id"`
	State      string     `json:"state"`
	Version    int64      `json:"version"`
	Run        string     `json:"run"`
	Session    string     `json:"session"`
	Step       int        `json:"step"`
	CallID     string     `json:"call_id"`
	Requester  string     `json:"requester"`
	DecisionID string     `json:"decision_id"`
	Capsule    string     `json:"capsule"`       // digest; what is approved is exactly this
	PolicySet  string     `json:"policy_set"`    // digest; another set in force voids the answer
	Scope      string     `json:"scope"`         // "once", "session" or "timed"
	Yes        []string   `json:"yes,omitempty"` // who said yes while it waits for another person's
	Card       Card       `json:"card"`
	Text       string     `json:"text"` // Card as lines of printable ASCII
	Approver   string     `json:"approver,omitempty"`
	Surface    string     `json:"surface,omitempty"`
	Detail     string     `json:"detail,omitempty"`
	Created    time.Time  `json:"created"`
	Expires    time.Time  `json:"expires"`
	Answered   *time.Time `json:"answered,omitempty"`
	Reduced    bool       `json:"reduced,omitempty"` // it is another's, and the caller could not answer it: times and digests are all that is told
}

// Card is what the person is shown.
type Card struct {
	Principal    string        `json:"principal"` // who wants it, as Cedar writes it
	Tool         string        `json:"tool"`
	Argv         []string      `json:"argv"`
	Executable   string        `json:"executable"`
	Digest       string        `json:"digest"`
	Script       string        `json:"script,omitempty"`
	ScriptDigest string        `json:"script_digest,omitempty"`
	Operands     []CardOperand `json:"operands"`
	EnvNames     []string      `json:"env_names"`
	EnvChanged   []string      `json:"env_changed,omitempty"` // "NAME=VALUE" of those that do not have the value that every call's have
	Cwd          string        `json:"cwd"`
	Workspace    string        `json:"workspace,omitempty"` // "": a private, empty one
	ReadOnly     bool          `json:"read_only"`
	Stdin        string        `json:"stdin"`
	EgressHosts  []string      `json:"egress_hosts"`
	Capabilities []string      `json:"capabilities"`
	Tier         string        `json:"tier"`
	Limits       string        `json:"limits"`
	Why          []CardWhy     `json:"why"`
	EnvDigest    string        `json:"env_digest,omitempty"`
	StdinDigest  string        `json:"stdin_digest,omitempty"` // of a sealed one
	StdinSize    int64         `json:"stdin_size,omitempty"`
	StdinText    string        `json:"stdin_text,omitempty"` // its beginning, escaped to printable ASCII
	Network      string        `json:"network,omitempty"`
	Bounds       CardLimits    `json:"bounds,omitzero"`
	Kind         string        `json:"kind,omitempty"`      // of the program: "shell", "interpreter", "loader", "wrapper" or "other"
	System       bool          `json:"system,omitempty"`    // the program is root's, writable by nobody else
	Sensitive    bool          `json:"sensitive,omitempty"` // the tool is declared so
	Loose        []string      `json:"loose,omitempty"`     // arguments that name what is not held
	Absent       []string      `json:"absent,omitempty"`    // arguments that name nothing yet
	Libraries    []string      `json:"libraries,omitempty"` // places that are not the system's, where the program's loader looks for libraries
	Folders      []string      `json:"folders,omitempty"`   // arguments that name folders
	Planted      []CardPlanted `json:"planted,omitempty"`   // what a tool is about to write where other programs run or obey it
}

// CardLimits are the limits of a call: durations in nanoseconds, sizes in bytes.
type CardLimits struct {
	Wall      int64 `json:"wall"`
	CPU       int64 `json:"cpu"`
	Memory    int64 `json:"memory"`
	PIDs      int64 `json:"pids"`
	Output    int64 `json:"output"`
	FileSize  int64 `json:"file_size"`
	OpenFiles int64 `json:"open_files"`
	Disk      int64 `json:"disk"`
	Inodes    int64 `json:"inodes"`
}

// CardOperand is a file that an argument names, with what was in it when the call was sealed.
type CardOperand struct {
	Path   string `json:"path"`
	Digest string `json:"digest"`
}

// CardPlanted is a file that other programs run or obey because it lies where it lies.
type CardPlanted struct {
	Path string `json:"path"`
	Kind string `json:"kind"` // "hook", "editor", "agent", …
	Why  string `json:"why"`  // in words
}

// CardWhy is one policy that asks.
type CardWhy struct {
	Policy string `json:"policy"`
	Reason string `json:"reason"`
	Where  string `json:"where"`
}

// ApprovalQuery chooses requests; zero fields choose all that the caller may see.
type ApprovalQuery struct {
	PageQuery
	State   string `json:"state,omitempty"`
	Run     string `json:"run,omitempty"`
	Session string `json:"session,omitempty"`
}

// Answer is a person's answer. The zero Answer is no.
type Answer struct {
	Approve bool   `json:"approve"`
	Comment string `json:"comment,omitempty"` // at most 500 bytes; kept, and a no's told to the caller
	// Capsule is the digest of what the person was shown. An answer to another one
	// is refused ("other_capsule"). Default: whatever the request is for.
	Capsule string `json:"capsule,omitempty"`

	// How far a yes reaches. Anything but "once" makes a standing grant.
	Scope   string        `json:"scope,omitempty"`   // "once", the default, "session" or "timed"
	For     time.Duration `json:"for_ns,omitempty"`  // of "timed": a second to 24 hours
	Uses    int64         `json:"uses,omitempty"`    // calls that it is good for, this one included; 0: not bounded
	Pattern *Pattern      `json:"pattern,omitempty"` // further calls like this one; without it those of this very capsule
}

// Pattern says in what further calls may differ from the one that is asked about:
// less of limits, egress and capabilities, other content of the files that it
// names, and what stands here.
type Pattern struct {
	Within  []int `json:"within,omitempty"`  // positions in argv of paths that may be any in the working directory or below; 1 is the first argument
	Content bool  `json:"content,omitempty"` // another standard input; of a built-in tool, other content to write
}

// Preview is what an answer would let through.
type Preview struct {
	Pattern string        `json:"pattern,omitempty"` // digest; "": bound to the capsule
	Text    string        `json:"text"`              // as lines of printable ASCII
	Looked  int           `json:"looked"`            // recent requests of the same requester that were looked at
	Refused []PreviewCall `json:"refused"`           // those that had no yes and that it would have let through
}

// PreviewCall is one recent request for approval that ended without a yes.
type PreviewCall struct {
	Approval string    `json:"approval"`
	State    string    `json:"state"`
	Tool     string    `json:"tool"`
	Argv     []string  `json:"argv"`
	Created  time.Time `json:"created"`
}

// StandingGrant is a yes that stands for further calls of one requester. It ends
// when it expires, is used up or revoked, when the policies change, with its
// session, in an emergency stop, with the credential that gave it, and with the daemon.
type StandingGrant struct {
	ID        string    `json:"id"`
	Approval  string    `json:"approval"` // that made it
	Scope     string    `json:"scope"`
	Session   string    `json:"session,omitempty"`
	Requester string    `json:"requester"`
	Approver  string    `json:"approver"`
	Approvers []string  `json:"approvers"` // all who said yes
	Tool      string    `json:"tool"`
	Capsule   string    `json:"capsule,omitempty"` // digest that it is bound to
	Pattern   string    `json:"pattern,omitempty"` // or digest of its pattern
	Text      string    `json:"text,omitempty"`    // the pattern as lines of printable ASCII
	PolicySet string    `json:"policy_set"`        // digest; another set in force voids it
	Uses      int64     `json:"uses"`
	MaxUses   int64     `json:"max_uses,omitempty"` // 0: not bounded
	Created   time.Time `json:"created"`
	Expires   time.Time `json:"expires"`
	Reduced   bool      `json:"reduced,omitempty"` // it is another's: times and digests are all that is told
}
