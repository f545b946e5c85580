package store

import (
	"math"
	"time"

	"palyra/internal/canon"
)

// Times are UTC, kept in nanoseconds; the zero time is kept as 0. Ids come from
// internal/ident. A Version counts the changes of a row from 1.

// SessionState is the state of a session.
type SessionState string

// The states of a session.
const (
	SessionOpen  SessionState = "open"
	SessionEnded SessionState = "ended"
)

// Session belongs to a principal and holds runs.
type Session struct {
	ID        string // "ses_…"
	Principal string
	Title     string // foreign text; for display only
	State     SessionState
	Version   int64
	Created   time.Time
	Ended     time.Time // zero: not ended
}

// RunState is the state of a run. Which may follow which is hub/run's table;
// the store knows only which are terminal and which are active.
type RunState string

// The states of a run.
const (
	RunPending         RunState = "pending"
	RunAccepted        RunState = "accepted"
	RunInProgress      RunState = "in_progress"
	RunWaitingApproval RunState = "waiting_approval"
	RunDone            RunState = "done"
	RunFailed          RunState = "failed"
	RunCancelled       RunState = "cancelled"
)

// Terminal reports whether nothing follows s.
func (s RunState) Terminal() bool { return s == RunDone || s == RunFailed || s == RunCancelled }

// Active reports whether a run in s is being worked on. A session has at most
// one such run; the schema enforces it.
func (s RunState) Active() bool { return s == RunInProgress || s == RunWaitingApproval }

// Budget bounds a run, and counts what it used. In a bound 0 means none.
type Budget struct {
	Calls int64
	Wall  time.Duration
	Bytes int64
}

// Run is one task inside a session.
type Run struct {
	ID        string // "run_…"
	Session   string
	Principal string
	State     RunState
	Reason    string // why it is in a terminal state; a reason code
	Plan      []byte // JSON, opaque here: what it was started with
	Budget    Budget
	Use       Budget
	// IdempotencyKey is the caller's; unique per principal. "" is none.
	IdempotencyKey string
	// Parallel says that it may be active beside others of its session that are parallel, too. It's
	// for the schema, and isn't read.
	Parallel bool
	Version  int64
	Created  time.Time
	Started  time.Time // zero: not started
	Ended    time.Time // zero: not ended
}

// StepState is the state of a step.
type StepState string

// The states of a step.
const (
	StepPending StepState = "pending"
	StepRunning StepState = "running" // handed to the kernel; what became of it may be unknown
	StepDone    StepState = "done"    // has an outcome, and a result in the journal
	StepFailed  StepState = "failed"  // never came to a decision: no call id, no result
	StepSkipped StepState = "skipped" // the run ended before it
)

// Step is one call of a run.
type Step struct {
	Run   string
	Index int // from 0
	Tool  string
	Input []byte // JSON, as it was proposed
	State StepState
	// CallID is unique. It may be set as soon as it is known, and must be when
	// State is StepDone.
	CallID  string
	Capsule canon.Digest // zero until decided
	Outcome string       // one of crypt/receipt's outcomes; "" until StepDone
	Exit    int
	Reason  string // reason code of what went wrong; "" if nothing did
	// Output is the result in short; OutputDigest names the artifact that holds
	// the whole, zero if Output is the whole.
	Output       []byte
	OutputDigest canon.Digest
	LogIndex     uint64 // of the result in the journal, or NotLogged; valid in StepDone
	Started      time.Time
	Ended        time.Time
}

// NotLogged is the LogIndex of a step whose call the journal failed to take down:
// what it says about the call, if anything, is found out when it is read again.
const NotLogged uint64 = math.MaxInt64

// Event is one entry of a run's tape.
type Event struct {
	Run     string
	Seq     uint64 // from 1, without gaps
	Kind    string
	Time    time.Time
	Payload []byte // JSON
}

// ApprovalState is the state of an approval request.
type ApprovalState string

// The states of an approval request. All but pending are final.
const (
	ApprovalPending   ApprovalState = "pending"
	ApprovalApproved  ApprovalState = "approved"
	ApprovalDenied    ApprovalState = "denied"
	ApprovalExpired   ApprovalState = "expired"
	ApprovalWithdrawn ApprovalState = "withdrawn"
)

// Approval is a request for approval and its answer.
type Approval struct {
	ID        string // "apr_…"
	Run       string // "" outside runs
	Session   string // "" outside sessions
	Step      int
	Call      string // call id; "" where it is not known
	Requester string // principal that wants the call
	Decision  string // id of the decision that asks
	Request   []byte // JSON: what is shown to the person
	Capsule   canon.Digest
	PolicySet canon.Digest
	Scope     string // "once", …
	State     ApprovalState
	Version   int64
	Approver  string // principal, as its surface authenticated it
	Surface   string
	Detail    string // what went wrong, where something did
	Created   time.Time
	Expires   time.Time
	Answered  time.Time // zero: pending
	Used      time.Time // zero: no grant was made of it
}

// Resolution is how a pending approval ends.
type Resolution struct {
	State    ApprovalState // not ApprovalPending
	Approver string
	Surface  string
	Detail   string
	Scope    string    // of a yes; "" leaves it
	Time     time.Time // zero: now
}

// Artifact is a content-addressed file.
type Artifact struct {
	Digest    canon.Digest
	Size      int64
	MediaType string
	Refs      int // how many hold it; 0 can be swept
	Created   time.Time
}

// Idempotency is what was answered to a request with an idempotency key.
type Idempotency struct {
	Principal string
	Key       string
	Request   canon.Digest // of the request; another one with the same key is refused
	Response  []byte       // nil: not answered yet
	Created   time.Time
	Expires   time.Time
}

// Setting is a named value that outlives the process.
type Setting struct {
	Key     string
	Value   []byte
	Version int64
}

// Page bounds a list. Lists are newest first unless OldestFirst is set.
type Page struct {
	After       string // id of the last item already seen; "": from the beginning
	Limit       int    // at most MaxPage; 0 means 100
	OldestFirst bool
	// Bytes ends the page with the row that goes beyond it; 0: no bound. It counts
	// what rows have of foreign length. A page that it ended has others after it.
	Bytes int
}

// MaxPage is the largest page.
const MaxPage = 1000

// SessionFilter chooses sessions; zero fields choose all.
type SessionFilter struct {
	Principal string
	State     SessionState
}

// RunFilter chooses runs; zero fields choose all.
type RunFilter struct {
	Principal string
	Session   string
	States    []RunState
}

// ApprovalFilter chooses approvals; zero fields choose all.
type ApprovalFilter struct {
	Requester string
	Run       string
	Session   string
	Reader    string // who asked for it or answered it, as far as it has been answered
	States    []ApprovalState
	Heads     bool // without the cards, which are large: Request is nil
}
