package hub

import (
	"encoding/json"
	"time"

	"palyra/call"
	"palyra/call/diagnosis"
	"palyra/internal/canon"
)

// Digests are "sha256:" and 64 hexadecimal digits, or "" for none. Ids are those
// of internal/ident. Times are UTC; a nil or zero one has not come yet. Durations
// are nanoseconds.

// Credential is how a caller authenticates. Exactly one of PeerUID and Token is set.
type Credential struct {
	PeerUID *uint32 `json:"peer_uid,omitempty"` // of the process at the other end of a unix socket
	PeerPID int32   `json:"peer_pid,omitempty"` // for the log only
	Token   string  `json:"token,omitempty"`    // "palyra_…"; never logged
	// Chain is what the peer of a TLS connection showed, leaf first, in DER, having proved that it has
	// the key.
	Chain   [][]byte `json:"chain,omitempty"`
	Address string   `json:"address,omitempty"` // of the peer, for limits and the log
	Surface string   `json:"surface"`           // "unix", "http", …; a token's caller at the first has "unix_token"
	Device  string   `json:"device,omitempty"`
}

// Caller is the principal that asks, as Authenticate found it. The zero Caller may do
// nothing.
type Caller struct {
	User    string `json:"user"`           // the principal: "uid:1000", or a token's
	Surface string `json:"surface"`        // where the request came in
	Role    string `json:"role,omitempty"` // "owner", "admin", "operator" or ""
	// Scopes are the token's; nil: there is no token, and the role alone bounds the caller.
	Scopes  []string `json:"scopes,omitempty"`
	Token   string   `json:"token,omitempty"`   // id of the token that it used
	Device  string   `json:"device,omitempty"`  //
	Address string   `json:"address,omitempty"` //

	// Until is when the certificate ends with which a device came. Nothing that was opened with it
	// goes on then. Zero: the credential says so itself whenever it's asked.
	Until time.Time `json:"-"`

	// For the surface: whether the caller is told why policy and host say no, and the
	// digest of the policies that said so.
	ReadsPolicy bool   `json:"-"`
	Policies    string `json:"-"`
}

// Page is a part of a list. Next, if not "", is the After of the next part.
type Page[T any] struct {
	Items []T    `json:"items"` // never null
	Next  string `json:"next,omitempty"`
}

// PageQuery says which part of a list.
type PageQuery struct {
	After string `json:"after,omitempty" in:"query" doc:"next of the page before"`
	Limit int    `json:"limit,omitempty" in:"query" doc:"items in a page, 1 to 1000; 100 without it" max:"1000"`
}

// NewSession describes a session to be made.
type NewSession struct {
	Title string `json:"title,omitempty"` // at most 200 bytes; for display only
}

// The states of a session.
const (
	SessionOpen  = "open"
	SessionEnded = "ended"
)

// Session belongs to a principal and holds runs, of which one is active at a time, or several
// parallel ones.
type Session struct {
	ID        string     `json:"id"`
	Principal string     `json:"principal"`
	Title     string     `json:"title"`
	State     string     `json:"state"`
	Version   int64      `json:"version"`
	Created   time.Time  `json:"created"`
	Ended     *time.Time `json:"ended,omitempty"`
	// Inputs is the session's label: where what it has read came from, each origin with the call
	// that brought it first. Only of one that was asked for by its id.
	Inputs call.Inputs `json:"inputs,omitempty"`
}

// SessionQuery chooses sessions; zero fields choose all that the caller may see.
type SessionQuery struct {
	PageQuery `of:"session"`
	Principal string `json:"principal,omitempty" in:"query" doc:"whose sessions"`
	State     string `json:"state,omitempty" in:"query" doc:"their state" enum:"open ended"`
}

// SessionChange names a session and the version that the change is made for.
type SessionChange struct {
	ID      string `json:"id" in:"path" as:"session"`
	Version int64  `json:"version,omitempty" in:"match"`
	Idle    bool   `json:"idle,omitempty" in:"query" doc:"only if no run of it is under way; else locked"`
}

// Budget bounds a run; zero fields have the daemon's bounds, which none exceeds.
type Budget struct {
	Calls int64         `json:"calls,omitempty"`
	Wall  time.Duration `json:"wall_ns,omitempty"` // from the first step on, with waits
	Bytes int64         `json:"bytes,omitempty"`   // of output
}

// Step is one call that a run is to make.
type Step struct {
	Tool  string          `json:"tool"`
	Input json.RawMessage `json:"input,omitempty"` // a JSON object by the tool's schema
}

// Agent is what an agent is to do: a model chooses the steps of its run, one after the other.
type Agent struct {
	Prompt string `json:"prompt,omitempty"` // at most MaxPrompt bytes; "" where there are Results
	Model  string `json:"model,omitempty"`  // of those that are configured; "": the default
	Turns  int    `json:"turns,omitempty"`  // how often the model may be asked; 0: as often as the daemon lets it
	// Instructions stand behind what palyrad itself tells the model, before all else.
	Instructions string `json:"instructions,omitempty"` // at most MaxInstructions bytes
	MaxTokens    int64  `json:"max_tokens,omitempty"`   // of each answer; 0: what the model's configuration says
	// Functions are the caller's own, which the model may call. A run ends with such calls
	// (AgentEnded.Calls), and a later one of the session goes on with their Results.
	Functions []AgentFunction `json:"functions,omitempty"` // at most MaxFunctions
	Results   []AgentResult   `json:"results,omitempty"`   // at most MaxPrompt bytes
	// After is the earlier run of the session that it follows; "": the last one that has ended.
	After string `json:"after,omitempty"`
	// Workspace is the one whose instructions the model is told, if they were accepted; "": the only
	// one that is declared, if there is one.
	Workspace string `json:"workspace,omitempty"`
}

// The bounds of an Agent, in bytes.
const (
	MaxPrompt       = 256 << 10
	MaxInstructions = 64 << 10 // of a project's file, too
)

// MaxFunctions is how many functions a caller may offer.
const MaxFunctions = 64

// AgentFunction is a function that the caller makes itself.
type AgentFunction struct {
	Name        string          `json:"name"` // 1 to 64 of a-z A-Z 0-9 _ -, and none of palyrad's tools
	Description string          `json:"description,omitempty"`
	Schema      json.RawMessage `json:"schema"` // JSON Schema of an object: its arguments
}

// AgentCall is a call of an AgentFunction that a model wants.
type AgentCall struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // a JSON object, as the model wrote it
}

// AgentResult is what became of an AgentCall. It's foreign text: the session's label has it as a
// tool's.
type AgentResult struct {
	ID     string `json:"id"` // of the call
	Text   string `json:"text"`
	Failed bool   `json:"failed,omitempty"`
}

// NewRun describes a run to be made.
type NewRun struct {
	Session   string `json:"session"`
	Steps     []Step `json:"steps,omitempty"`      // at least one, unless there is an Agent
	Agent     *Agent `json:"agent,omitempty"`      // chooses the steps
	Budget    Budget `json:"budget,omitzero"`      //
	KeepGoing bool   `json:"keep_going,omitempty"` // go on after a step that did not end well
	Staged    bool   `json:"staged,omitempty"`     // what its calls write to workspaces goes to layers of the session
	Parallel  bool   `json:"parallel,omitempty"`   // it may be made while others of its session are that may, too

	// Metadata are names and values of the caller's own, which palyrad keeps with the run and doesn't
	// read: at most MaxMetadata, of MaxMetadataName and MaxMetadataValue bytes.
	Metadata map[string]string `json:"metadata,omitempty"`
	// IdempotencyKey is 1 to 128 printable ASCII characters, or "" for none. HTTP has it in
	// a header.
	IdempotencyKey string `json:"-" in:"key"`
}

// The bounds of NewRun.Metadata.
const (
	MaxMetadata      = 24
	MaxMetadataName  = 64
	MaxMetadataValue = 512
)

// NewCall is a run of one step.
type NewCall struct {
	Session        string          `json:"session,omitempty"` // "": its own, which ends with it
	Tool           string          `json:"tool"`
	Input          json.RawMessage `json:"input,omitempty"`
	Budget         Budget          `json:"budget,omitzero"`
	Staged         bool            `json:"staged,omitempty"`   // what it writes to a workspace goes to a layer of the session
	Parallel       bool            `json:"parallel,omitempty"` // it may be made while others of its session are that may, too
	IdempotencyKey string          `json:"-" in:"key"`
}

// The states of a run. The last three are final.
const (
	RunPending         = "pending"          // recorded; waits for its session
	RunAccepted        = "accepted"         // next in its session; waits for a place
	RunInProgress      = "in_progress"      // makes calls
	RunWaitingApproval = "waiting_approval" // a person is asked about one
	RunDone            = "done"
	RunFailed          = "failed"
	RunCancelled       = "cancelled"
)

// Run is one task: a list of steps and their outcomes.
type Run struct {
	ID        string `json:"id"`
	Session   string `json:"session"`
	Principal string `json:"principal"`
	State     string `json:"state"`
	Reason    string `json:"reason,omitempty"` // code; why it failed or was cancelled
	// Background: no caller waits for it; see process.run. Of runs in lists only those have it that
	// haven't ended.
	Background bool         `json:"background,omitempty"`
	Agent      *Agent       `json:"agent,omitempty"`  // not in lists
	Answer     *AgentEnded  `json:"answer,omitempty"` // of an agent's run that has ended; not in lists
	Budget     Budget       `json:"budget"`
	Use        Budget       `json:"use"`
	Steps      []StepResult `json:"steps,omitempty"`    // not in lists
	LastSeq    uint64       `json:"last_seq,omitempty"` // of its tape; not in lists
	Version    int64        `json:"version"`
	Created    time.Time    `json:"created"`
	Started    *time.Time   `json:"started,omitempty"`
	Ended      *time.Time   `json:"ended,omitempty"`

	Metadata map[string]string `json:"metadata,omitempty"` // of NewRun; not in lists
}

// RunQuery chooses runs; zero fields choose all that the caller may see.
type RunQuery struct {
	PageQuery `of:"run"`
	Session   string   `json:"session,omitempty" in:"query" doc:"the session that they belong to"`
	Principal string   `json:"principal,omitempty" in:"query" doc:"whose runs"`
	States    []string `json:"states,omitempty" in:"query" as:"state" doc:"a state that they may be in" enum:"pending accepted in_progress waiting_approval done failed cancelled"`
	// Only is "" or OnlyBackground.
	Only string `json:"only,omitempty" in:"query" doc:"background: only those in the background that haven't ended" enum:"background"`
}

// OnlyBackground chooses the runs in the background that haven't ended; see RunQuery.
const OnlyBackground = "background"

// The states of a step.
const (
	StepPending = "pending"
	StepRunning = "running"
	StepDone    = "done"    // it has an outcome, and a result in the journal
	StepFailed  = "failed"  // it never came to a decision, or its outcome is unknown
	StepSkipped = "skipped" // the run ended before it
)

// StepResult is the outcome of a step.
type StepResult struct {
	Index   int             `json:"index"`
	Tool    string          `json:"tool"`
	Input   json.RawMessage `json:"input,omitempty"`
	State   string          `json:"state"`
	CallID  string          `json:"call_id,omitempty"`
	Capsule canon.Digest    `json:"capsule,omitzero"`
	// DecisionID is policy's decision about the call, 32 hexadecimal digits; see GetDecision.
	DecisionID string `json:"decision_id,omitempty"`
	// Outcome is "executed", "denied", "not_approved", "refused", "failed", "timed_out",
	// "killed" or "outcome_unknown".
	Outcome string  `json:"outcome,omitempty"`
	Exit    int     `json:"exit"`
	Reason  string  `json:"reason,omitempty"` // code of what went wrong
	Error   string  `json:"error,omitempty"`  // text of it
	Hint    string  `json:"hint,omitempty"`
	Denial  *Denial `json:"denial,omitempty"`
	// Diagnosis says why a program that ran may have failed; absent if it didn't, or if that
	// can't be told.
	Diagnosis *Diagnosis `json:"diagnosis,omitempty"`
	// Stdout and Stderr are what the tool wrote.
	Stdout Output `json:"stdout"`
	Stderr Output `json:"stderr"`
	// Layer has what the session's calls wrote to the workspace, if that is staged; absent if
	// it's empty. See GetLayer.
	Layer string `json:"layer,omitempty"`
	// LogIndex is the result's place in the journal; see Receipt. Nil: none.
	LogIndex *uint64 `json:"log_index,omitempty"`
	Approval string  `json:"approval,omitempty"` // id
	// Inputs are the events with what an agent was told before this step; see AgentInput.
	Inputs  []uint64   `json:"inputs,omitempty"`
	Started *time.Time `json:"started,omitempty"`
	Ended   *time.Time `json:"ended,omitempty"`
}

// Diagnosis is what Palyra observed or guesses of a call that failed. It's no part of the
// receipt.
type Diagnosis = diagnosis.Diagnosis

// MaxInline bounds the output in a result, in bytes. Longer output is an artifact.
const MaxInline = 8 << 10

// Output is one stream that a tool wrote.
type Output struct {
	Size int64 `json:"size"` // bytes that were kept
	// Text is the whole output if it is UTF-8 and at most MaxInline, else its beginning.
	Text     string       `json:"text,omitempty"`
	Base64   []byte       `json:"base64,omitempty"`   // instead of Text where it is not UTF-8
	Artifact canon.Digest `json:"artifact,omitzero"`  // of the whole where Text or Base64 is not the whole
	Lost     bool         `json:"lost,omitempty"`     // the whole could not be kept: no space
	LostWhy  string       `json:"lost_why,omitempty"` // such as quota or disk_full
}

// The layers that can say no.
const (
	LayerAccess    = "access"    // the caller lacks a permission
	LayerPolicy    = "policy"    // Cedar
	LayerApproval  = "approval"  // a person said no, or none answered
	LayerIsolation = "isolation" // the host cannot enforce what the call needs
	LayerBudget    = "budget"    // the run used up what it had
	LayerStop      = "stop"      // the emergency stop
)

// Denial says why something wasn't done, and what would have to change.
type Denial struct {
	DecisionID string       `json:"decision_id,omitempty"` // 32 hexadecimal digits
	Layer      string       `json:"layer"`
	Reason     string       `json:"reason"`
	Policies   []string     `json:"policies,omitempty"` // ids of those that determined it, sorted
	PolicySet  canon.Digest `json:"policy_set,omitzero"`
	Capsule    canon.Digest `json:"capsule,omitzero"`
	Errors     []string     `json:"errors,omitempty"` // of evaluation
	// Fix is a command or a sentence. GetDecision tells the change for layer policy.
	Fix        string `json:"fix,omitempty"`
	Permission string `json:"permission,omitempty"` // layer access: the one that is missing
	// Comment is the person's comment with a no (layer approval). It is foreign text.
	Comment string `json:"comment,omitempty"`
}

// Event is one entry of a tape.
type Event struct {
	Run  string          `json:"run"`
	Seq  uint64          `json:"seq"` // from 1, without gaps
	Kind string          `json:"kind"`
	Time time.Time       `json:"time"`
	Data json.RawMessage `json:"data"` // an object; see the kinds
}

// TapeQuery says which events of a run to read, and how to show them.
type TapeQuery struct {
	Run   string `json:"run" in:"path"`
	After uint64 `json:"after,omitempty" in:"query" doc:"sequence number of the last event already seen"`
	// View is "" for the events as they are recorded, or ViewTools.
	View string `json:"view,omitempty" in:"query" enum:"tools" doc:"tools: the events of calls as tool_proposal, tool_decision, tool_approval_request, tool_approval_response, tool_result and tool_attestation"`
}

// OutputQuery says which output of a run to read, and from where on.
type OutputQuery struct {
	Run    string `json:"run" in:"path"`
	Step   int    `json:"step,omitempty" in:"query" doc:"the first step to read"`
	Stdout uint64 `json:"stdout,omitempty" in:"query" doc:"bytes of that step's standard output already seen"`
	Stderr uint64 `json:"stderr,omitempty" in:"query" doc:"bytes of that step's standard error already seen"`
	// Tail leaves out what that step wrote before the newest so many bytes of each stream; 0: nothing.
	Tail uint64 `json:"tail,omitempty" in:"query" doc:"of that step only the newest bytes of each stream, at most so many; all without it"`
	// Until is "" to follow the run to its end, or UntilNow.
	Until string `json:"until,omitempty" in:"query" enum:"now" doc:"now: only what there is"`
}

// UntilNow ends output with what there is; see OutputQuery.
const UntilNow = "now"

// OutputPart is a piece of what a step wrote, of 16 KiB at most.
type OutputPart struct {
	Step   int    `json:"step"`
	Stream string `json:"stream"`           // "stdout" or "stderr"
	From   int64  `json:"from"`             // bytes of the stream before it
	Text   string `json:"text,omitempty"`   // of whole characters
	Base64 []byte `json:"base64,omitempty"` // instead of Text where that isn't UTF-8
	// Lost says why the rest of the stream can't be had, as Output does; "": it comes.
	Lost string `json:"lost,omitempty"`
}

// Bytes returns the piece.
func (p *OutputPart) Bytes() []byte {
	if p.Base64 != nil {
		return p.Base64
	}
	return []byte(p.Text)
}

// ArtifactQuery names an artifact that a run holds.
type ArtifactQuery struct {
	Run    string `json:"run" in:"path"`
	Digest string `json:"digest" in:"path"`
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
	EventStepOutput         = "step.output"          // StepOutput; its program has written something and runs on
	EventStepEnded          = "step.ended"           // StepResult without Input
	EventApprovalRequested  = "approval.requested"   // Approval
	EventApprovalResolved   = "approval.resolved"    // ApprovalResolved
	EventServerStarting     = "server.starting"      // ServerStarting; the step waits for an MCP server
	EventAgentStarted       = "agent.started"        // AgentStarted
	EventAgentInstructions  = "agent.instructions"   // AgentInstructions
	EventAgentSignal        = "agent.signal"         // AgentSignal
	EventAgentRecalled      = "agent.recalled"       // AgentRecalled
	EventAgentShortened     = "agent.shortened"      // AgentShortened
	EventAgentDeferred      = "agent.deferred"       // AgentDeferred
	EventAgentInput         = "agent.input"          // AgentInput
	EventAgentEnded         = "agent.ended"          // AgentEnded; the run's end comes next
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
	// Inputs are the events with what an agent was told before this step; see AgentInput.
	Inputs []uint64 `json:"inputs,omitempty"`
}

// StepOutput is the data of EventStepOutput; ReadOutput has the output.
type StepOutput struct {
	Step int `json:"step"`
}

// StepDecided is the data of EventStepDecided.
type StepDecided struct {
	Step       int          `json:"step"`
	CallID     string       `json:"call_id"`
	Capsule    canon.Digest `json:"capsule"`
	DecisionID string       `json:"decision_id"`
	Effect     string       `json:"effect"` // "allow", "needs_approval" or "deny"
	Reason     string       `json:"reason"`
	Policies   []string     `json:"policies"`
}

// ServerStarting is the data of EventServerStarting. A person may have to allow the start: the tape
// of Run says so.
type ServerStarting struct {
	Step   int    `json:"step"`
	Server string `json:"server"`
	Run    string `json:"run"` // of the server's own call
}

// AgentStarted is the data of EventAgentStarted: what a model is offered.
type AgentStarted struct {
	Model    string        `json:"model"`
	Fallback []string      `json:"fallback,omitempty"` // models that are asked where it fails, in order
	Tools    string        `json:"tools"`              // id of the list: "toolcat_" and 16 hexadecimal digits
	Offered  []string      `json:"offered"`            // the caller's functions, too
	LeftOut  []ToolLeftOut `json:"left_out,omitempty"`
	// Earlier is how many messages of the session's earlier runs it's given.
	Earlier int `json:"earlier,omitempty"`
}

// AgentInstructions is the data of EventAgentInstructions: what became of the instructions of the
// run's workspace.
type AgentInstructions struct {
	Workspace string       `json:"workspace"`
	File      string       `json:"file,omitempty"`
	Digest    canon.Digest `json:"digest,omitzero"`
	Accepted  bool         `json:"accepted"`
	Why       string       `json:"why,omitempty"` // they weren't told as instructions
}

// The texts that AgentSignal is about.
const (
	SignalPrompt  = "prompt"  // or the instructions beside it
	SignalResult  = "result"  // of a function of the caller
	SignalMessage = "message" // what Told says besides the output
	SignalStdout  = "stdout"
	SignalStderr  = "stderr"
)

// AgentSignal is the data of EventAgentSignal: what was found in a text that a model is told. A
// secret is told by a name.
type AgentSignal struct {
	Of    string   `json:"of"`
	Step  int      `json:"step"` // whose output it is; 0 of a prompt
	Found []Signal `json:"found"`
	More  int      `json:"more,omitempty"` // that aren't among Found
}

// Signal is a sign of instructions, of hidden text or of a secret: formats/signals.md.
type Signal struct {
	Code     string `json:"code"`
	Severity string `json:"severity"` // "warning", "high" or "critical"
	From     int    `json:"from"`     // bytes of what the model is told of the text, as it was
	To       int    `json:"to"`
}

// AgentRecalled is the data of EventAgentRecalled: the items of memory that a model is told before
// its prompt. The run's first step found them.
type AgentRecalled struct {
	Items []string `json:"items"` // ids
}

// AgentShortened is the data of EventAgentShortened: what the next turn doesn't tell the model,
// since its window is full. Messages are counted from 0, those of the session's earlier runs first.
type AgentShortened struct {
	Question canon.Digest `json:"question"` // as it's asked; its receipt has this digest, too
	Bytes    int64        `json:"bytes"`    // of the question
	Messages int          `json:"messages"` // that there are
	Was      int64        `json:"was"`      // bytes of these, about
	From     int          `json:"from"`     // messages from here
	To       int          `json:"to"`       // to before here are left out, but the prompt
	// Shortened is how many of the others have shorter results of tools than there were.
	Shortened int `json:"shortened"`
}

// AgentDeferred is the data of EventAgentDeferred: turns of a model failed three times in a row,
// and none is sent for a while.
type AgentDeferred struct {
	Model    string    `json:"model"`
	Until    time.Time `json:"until"`
	Fallback bool      `json:"fallback"` // the next model is asked instead; else the run waits
}

// The modes of what a caller says to an agent at work.
const (
	// InputSteer is told before the model's next turn. Calls that it wants and that haven't been
	// made aren't.
	InputSteer     = "steer"
	InputInterrupt = "interrupt" // as InputSteer, and the call under way is ended
	InputFollowUp  = "follow_up" // told when the model has answered; the run goes on with it
)

// MaxInput bounds an AgentInput, in bytes.
const MaxInput = 64 << 10

// AgentInput is the data of EventAgentInput. StepStarted says before which step the model was told.
type AgentInput struct {
	Mode    string `json:"mode"`
	Text    string `json:"text"`
	Surface string `json:"surface"` // where it came in
}

// RunInput is what a caller says to their agent at work. At most 8 of them wait for it.
type RunInput struct {
	Run  string    `json:"run" in:"path"`
	Said AgentWord `json:"said" in:"body"`
}

// RunMetadata is what the metadata of a run is to be.
type RunMetadata struct {
	Run      string   `json:"run" in:"path"`
	Metadata Metadata `json:"metadata" in:"body"`
}

// Metadata are names and values of a caller's own; see NewRun.
type Metadata struct {
	Metadata map[string]string `json:"metadata"`
}

// AgentWord is something that an agent is told.
type AgentWord struct {
	Mode string `json:"mode,omitempty" enum:"steer interrupt follow_up"` // "": steer
	Text string `json:"text"`                                            // at most MaxInput bytes
}

// RunInputTaken is the answer to a RunInput: it's on the tape.
type RunInputTaken struct {
	Seq uint64 `json:"seq"` // of its event
}

// AgentEnded is the data of EventAgentEnded.
type AgentEnded struct {
	Text  string `json:"text,omitempty"`  // the model's answer
	Error string `json:"error,omitempty"` // instead of it: why there is none
	// Calls are of the caller's functions: the run of the session that has their results goes on.
	Calls []AgentCall `json:"calls,omitempty"`
	Turns int         `json:"turns"` // that were answered
	Usage AgentUsage  `json:"usage"`
}

// AgentUsage is what a model took, in tokens, as its provider counts them.
type AgentUsage struct {
	Input     int64 `json:"input"`
	Cached    int64 `json:"cached,omitempty"` // of Input
	Output    int64 `json:"output"`
	Reasoning int64 `json:"reasoning,omitempty"` // of Output
	Cost      int64 `json:"cost,omitempty"`      // in millionths of the unit of the models' prices
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
	ID         string       `json:"id"`
	State      string       `json:"state"`
	Version    int64        `json:"version"`
	Run        string       `json:"run"`
	Session    string       `json:"session"`
	Step       int          `json:"step"`
	CallID     string       `json:"call_id"`
	Requester  string       `json:"requester"`
	DecisionID string       `json:"decision_id"`
	Capsule    canon.Digest `json:"capsule"`       // what is approved is exactly this
	PolicySet  canon.Digest `json:"policy_set"`    // another set in force voids the answer
	Scope      string       `json:"scope"`         // "once", "session" or "timed"
	Yes        []string     `json:"yes,omitempty"` // who said yes while it waits for another person's
	Card       Card         `json:"card"`
	Text       string       `json:"text"` // Card as lines of printable ASCII
	Approver   string       `json:"approver,omitempty"`
	Surface    string       `json:"surface,omitempty"`
	Detail     string       `json:"detail,omitempty"`
	Created    time.Time    `json:"created"`
	Expires    time.Time    `json:"expires"`
	Answered   *time.Time   `json:"answered,omitempty"`
	// Passkey: it waits, and a yes of the caller's to this call alone takes a passkey's signature,
	// and so the console.
	Passkey bool `json:"passkey,omitempty"`
	// Reduced: it is another principal's, and the caller couldn't answer it. Only times and
	// digests are set.
	Reduced bool `json:"reduced,omitempty"`
}

// Card is the view of a call that the person is shown.
type Card = call.Card

// CardWhy is one policy that asks.
type CardWhy = call.CardWhy

// ApprovalQuery chooses requests; zero fields choose all that the caller may see.
type ApprovalQuery struct {
	PageQuery `of:"approval"`
	Session   string `json:"session,omitempty" in:"query" doc:"the session that they belong to"`
	Run       string `json:"run,omitempty" in:"query" doc:"the run that they belong to"`
	State     string `json:"state,omitempty" in:"query" doc:"their state" enum:"pending approved denied expired withdrawn"`
}

// Resolution is an answer to a request for approval, made for a version of it.
type Resolution struct {
	ID      string `json:"id" in:"path" as:"approval"`
	Version int64  `json:"version,omitempty" in:"match"`
	Answer  Answer `json:"answer" in:"body"`
	// Signature is a passkey's over a yes: see PasskeyDoor.AskAnswer. No request has it; the
	// console passes it on.
	Signature *PasskeySignature `json:"-"`
}

// PreviewQuery is an answer to a request for approval that might be given.
type PreviewQuery struct {
	ID     string `json:"id" in:"path" as:"approval"`
	Answer Answer `json:"answer" in:"body"`
}

// Answer is a person's answer. The zero Answer is no.
type Answer struct {
	Approve bool `json:"approve"`
	// Comment is at most 500 bytes. It is kept, and the caller is told a no's.
	Comment string `json:"comment,omitempty"`
	// Capsule is the digest of what the person was shown. An answer to another one is
	// refused ("not_approved"). Default: the request's own.
	Capsule string `json:"capsule,omitempty"`

	// How far a yes reaches. Anything but "once" makes a standing grant.
	Scope string        `json:"scope,omitempty"`  // "once", the default, "session" or "timed"
	For   time.Duration `json:"for_ns,omitempty"` // of "timed": a second to 24 hours
	// Uses bounds the calls that it is good for, this one included; 0: no bound.
	Uses int64 `json:"uses,omitempty"`
	// Pattern covers further calls like this one; without it, those of this very capsule.
	Pattern *Pattern `json:"pattern,omitempty"`
}

// Pattern says how further calls may differ from the one that is asked about: lower limits,
// less egress, fewer capabilities, other content of the files that it names, and the fields
// here.
type Pattern struct {
	// Within are positions in argv of paths that may be any in the working directory or
	// below; 1 is the first argument.
	Within []int `json:"within,omitempty"`
	// Content allows another standard input, or a built-in tool other content to write.
	Content bool `json:"content,omitempty"`
}

// Preview lists the calls that an answer would let through.
type Preview struct {
	Pattern canon.Digest  `json:"pattern,omitzero"` // zero: bound to the capsule
	Text    string        `json:"text"`             // as lines of printable ASCII
	Looked  int           `json:"looked"`           // the requester's recent requests
	Refused []PreviewCall `json:"refused"`          // had no yes, would get through
	// Void says why a yes of the caller's wouldn't count now, as a code; "": it would, alone or
	// with others'.
	Void string `json:"void,omitempty"`
	// Passkey: a yes of the caller's takes a passkey's signature, and so the console.
	Passkey bool `json:"passkey,omitempty"`
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
	ID        string       `json:"id"`
	Approval  string       `json:"approval"` // that made it
	Scope     string       `json:"scope"`
	Session   string       `json:"session,omitempty"`
	Requester string       `json:"requester"`
	Approver  string       `json:"approver"`
	Approvers []string     `json:"approvers"` // all who said yes
	Tool      string       `json:"tool"`
	Capsule   canon.Digest `json:"capsule,omitzero"` // that it is bound to
	Pattern   canon.Digest `json:"pattern,omitzero"` // or its pattern
	Text      string       `json:"text,omitempty"`   // the pattern as lines of printable ASCII
	PolicySet canon.Digest `json:"policy_set"`       // another set in force voids it
	Uses      int64        `json:"uses"`
	MaxUses   int64        `json:"max_uses,omitempty"` // 0: not bounded
	Created   time.Time    `json:"created"`
	Expires   time.Time    `json:"expires"`
	// Reduced: it is another principal's. Only times and digests are set.
	Reduced bool `json:"reduced,omitempty"`
}
