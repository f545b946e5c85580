package hub

import (
	"encoding/json"
	"io"
	"strings"
	"time"

	"palyra/internal/canon"
)

// Tool is a row of the table of tools.
type Tool struct {
	Name         string          `json:"name"`
	Description  string          `json:"description"`
	InputSchema  json.RawMessage `json:"input_schema"` // JSON Schema
	Capabilities []string        `json:"capabilities"`
	Tier         string          `json:"tier"`
	Sensitive    bool            `json:"sensitive"`
	Limits       json.RawMessage `json:"limits"` // isolate.Limits
	// Staged are the workspaces in which its calls write to a layer of their session.
	Staged []string `json:"staged,omitempty"`
	// Server is the MCP server whose tool it is, and Definition the one that was accepted, as in
	// ServerTool. Such a tool is called as mcp.call; Name is what agents see beside other tools.
	Server     string          `json:"server,omitempty"`
	Definition json.RawMessage `json:"definition,omitempty"`
}

// NameForModels is the name that a tool of palyrad's table has for models, whose interfaces take no
// dots. Tools have one dot, so the first underscore of a name stands for it.
func NameForModels(tool string) string { return strings.ReplaceAll(tool, ".", "_") }

// ToolQuery says which list of tools the caller has.
type ToolQuery struct {
	Known string `json:"known,omitempty" in:"query" doc:"revision of that list: while it stands, the answer has no items"`
}

// ToolList is the tools that a caller may use.
type ToolList struct {
	Items    []Tool        `json:"items"`    // never null
	Revision string        `json:"revision"` // another one: the tools may be others
	LeftOut  []ToolLeftOut `json:"left_out,omitempty"`
}

// FolderQuery names folders of the host.
type FolderQuery struct {
	Paths []string `json:"paths,omitempty"` // absolute and clean; at most MaxFolders
}

// MaxFolders bounds a FolderQuery.
const MaxFolders = 32

// Folder is a folder of the host as calls name it.
type Folder struct {
	// Workspaces are the names of the innermost workspace that holds it: several, if it was declared
	// under several. Empty: none holds it.
	Workspaces []string `json:"workspaces"`
	Folder     string   `json:"folder,omitempty"` // in there, such as "." or "cmd/tool"
}

// ToolLeftOut is a tool of an MCP server, or all of them, that a list is without.
type ToolLeftOut struct {
	Server string `json:"server"`
	Tool   string `json:"tool,omitempty"`
	Why    string `json:"why"`
}

// Explanation is a decision without a call.
type Explanation struct {
	Effect     string        `json:"effect"`
	Reason     string        `json:"reason"`
	DecisionID string        `json:"decision_id"`
	Policies   []string      `json:"policies"`
	PolicySet  canon.Digest  `json:"policy_set"`
	Capsule    canon.Digest  `json:"capsule"`
	Errors     []string      `json:"errors,omitempty"`
	Fix        string        `json:"fix,omitempty"`
	Kind       string        `json:"kind"`   // of the executable
	Family     string        `json:"family"` //
	Traces     []PolicyTrace `json:"traces"`
}

// PolicyTrace is one policy's part in a decision.
type PolicyTrace struct {
	Policy
	Matched    bool              `json:"matched"`
	Conditions []PolicyCondition `json:"conditions"`
}

// PolicyCondition is one conjunct of a when or unless clause.
type PolicyCondition struct {
	Clause string `json:"clause"`
	Text   string `json:"text"`
	Result string `json:"result"`
}

// Policy is one policy of a set.
type Policy struct {
	ID     string `json:"id"`
	Effect string `json:"effect"` // "permit" or "forbid"
	File   string `json:"file"`
	Line   int    `json:"line"`
	Reason string `json:"reason,omitempty"`
}

// PolicyInfo is the set in force.
type PolicyInfo struct {
	Digest   string   `json:"digest"`
	Source   string   `json:"source"` // directory; "" is the built-in set
	Policies []Policy `json:"policies"`
}

// KeptPolicySet is a set that decided, or the one that does. A list of them leaves out Files.
type KeptPolicySet struct {
	Digest  string     `json:"digest"`
	InForce bool       `json:"in_force"`
	Since   *time.Time `json:"since,omitempty"` // when it was last put in force; null if that isn't kept
	// Files are the texts of its policies and lists of hosts by name, without its tests.
	Files map[string]string `json:"files,omitempty"`
}

// PolicySet is a candidate: the files of a policy directory, by name.
type PolicySet struct {
	Files map[string]string `json:"files"`
}

// PolicyTestRequest names the set to test.
type PolicyTestRequest struct {
	Candidate *PolicySet `json:"candidate,omitempty"` // without it the set in force
}

// PolicyReport is the outcome of a set's policy tests.
type PolicyReport struct {
	Digest   string          `json:"digest"` // "" if it does not load
	Tests    int             `json:"tests"`
	Failures []PolicyFailure `json:"failures"` // what does not load is the first
}

// PolicyFailure is one test that failed.
type PolicyFailure struct {
	Test string `json:"test"`
	Text string `json:"text"`
}

// PolicyDiffQuery says what to decide again. Exactly one of Candidate, Diff and
// Fix names the candidate.
type PolicyDiffQuery struct {
	Candidate PolicySet `json:"candidate,omitzero"`
	Diff      string    `json:"diff,omitempty"` // unified diff against the set in force
	Fix       string    `json:"fix,omitempty"`  // the change that the decision with this id offers
	Last      int       `json:"last,omitempty"` // the newest decisions; 0 is 100, at most 10000
}

// PolicyDiff lists the calls that a candidate would have decided otherwise.
type PolicyDiff struct {
	From     string `json:"from"` // digest of the set in force
	To       string `json:"to"`   // digest of the candidate
	Replayed int    `json:"replayed"`
	// Skipped counts calls that an older version recorded without policy's whole question, and those
	// that would take too long to match with the candidate's patterns.
	Skipped int            `json:"skipped"`
	Changed []PolicyChange `json:"changed"` // those with another effect, newest first
	// Same counts calls with the same effect for another reason, or by other policies.
	Same int `json:"same"`
}

// PolicyChange is one call that would be decided otherwise.
type PolicyChange struct {
	DecisionID string   `json:"decision_id"`
	CallID     string   `json:"call_id"`
	LogIndex   uint64   `json:"log_index"`
	Time       string   `json:"time"`
	Principal  string   `json:"principal"` // as Cedar writes it
	Tool       string   `json:"tool"`
	Argv       []string `json:"argv"`
	Run        string   `json:"run,omitempty"`
	Before     Verdict  `json:"before"`
	After      Verdict  `json:"after"`
	// Reduced: it is another principal's, and the caller manages no members. Only index,
	// time and verdicts are set.
	Reduced bool `json:"reduced,omitempty"`
}

// DecisionReport is all that is known of a decision.
type DecisionReport struct {
	Denial
	Effect string `json:"effect"` // "allow", "needs_approval" or "deny"
	// Rules are those of Policies that the set in force still has unchanged.
	Rules     []Policy `json:"rules"`
	Outcome   string   `json:"outcome,omitempty"` // of the call; "" if there is none, or none yet
	CallID    string   `json:"call_id,omitempty"`
	LogIndex  *uint64  `json:"log_index,omitempty"`
	Time      string   `json:"time"`
	Principal string   `json:"principal"`
	Session   string   `json:"session,omitempty"`
	Run       string   `json:"run,omitempty"`
	Tool      string   `json:"tool,omitempty"`
	Argv      []string `json:"argv,omitempty"`
}

// Verdict is a decision in short.
type Verdict struct {
	Effect   string   `json:"effect"`
	Reason   string   `json:"reason"`
	Policies []string `json:"policies"`
}

// JournalStatus is the state of the journal.
type JournalStatus struct {
	Origin     string   `json:"origin"`
	Size       uint64   `json:"size"`
	Checkpoint string   `json:"checkpoint"` // signed note; "" if it is empty
	Open       []uint64 `json:"open"`       // intents without a result: calls that run now
}

// JournalQuery says which entries.
type JournalQuery struct {
	From  uint64 `json:"from,omitempty" in:"query" doc:"index of the first"`
	Limit int    `json:"limit,omitempty" in:"query" doc:"entries in a page, 1 to 200; 50 without it" max:"200"`
}

// JournalSince names an earlier size of the journal.
type JournalSince struct {
	Old uint64 `json:"old" in:"query" doc:"the size that it had" needed:"true"`
}

// JournalEntry is one entry, in short. Receipt has the whole.
type JournalEntry struct {
	Index     uint64  `json:"index"`
	Type      string  `json:"type"` // predicate type
	Time      string  `json:"time"` // as the statement says
	CallID    string  `json:"call_id,omitempty"`
	Tool      string  `json:"tool,omitempty"`
	Principal string  `json:"principal,omitempty"`
	Outcome   string  `json:"outcome,omitempty"` // "" of an intent and an act
	Closes    *uint64 `json:"closes,omitempty"`  // the intent that a result closes
	Act       string  `json:"act,omitempty"`
	Subject   string  `json:"subject,omitempty"`
	// Statement is the in-toto Statement; null if the caller may not read policy.
	Statement json.RawMessage `json:"statement"`
	// Reduced: it belongs to another principal. Only index, type and time are set.
	Reduced bool `json:"reduced,omitempty"`
}

// JournalProof proves that an entry is in the log.
type JournalProof struct {
	Index      uint64   `json:"index"`
	Size       uint64   `json:"size"`
	Leaf       []byte   `json:"leaf"`   // base64
	Hashes     [][]byte `json:"hashes"` // RFC 6962 §2.1.1, leaf to root
	Checkpoint string   `json:"checkpoint"`
}

// JournalConsistency proves that one log extends another.
type JournalConsistency struct {
	Old        uint64   `json:"old"`
	Size       uint64   `json:"size"`
	Hashes     [][]byte `json:"hashes"` // RFC 6962 §2.1.2
	Checkpoint string   `json:"checkpoint"`
}

// ArtifactInfo is what is known of an artifact.
type ArtifactInfo struct {
	Digest    string    `json:"digest"`
	Size      int64     `json:"size"`
	MediaType string    `json:"media_type"`
	Created   time.Time `json:"created"`
}

// NewToken describes a token to be made.
type NewToken struct {
	Name string `json:"name"`
	// Principal is "" or the caller: a token is for the principal that mints it.
	Principal string        `json:"principal,omitempty"`
	Scopes    []string      `json:"scopes"` // at least one; none that the caller lacks
	TTL       time.Duration `json:"ttl_ns"` // mandatory
}

// Token is an API token without its secret.
type Token struct {
	ID        string     `json:"id"`
	Name      string     `json:"name"`
	Principal string     `json:"principal"`
	Scopes    []string   `json:"scopes"`
	State     string     `json:"state"` // "active", "expired", "revoked" or "rotated"
	Successor string     `json:"successor,omitempty"`
	Version   int64      `json:"version"`
	Created   time.Time  `json:"created"`
	Expires   time.Time  `json:"expires"`
	Revoked   *time.Time `json:"revoked,omitempty"`
	LastUse   *time.Time `json:"last_use,omitempty"`
}

// TokenSecret is a new token with its text. The text cannot be had again.
type TokenSecret struct {
	Token
	Secret string `json:"secret"` // "palyra_…"
}

// TokenQuery chooses tokens; zero fields choose all that the caller may see.
type TokenQuery struct {
	PageQuery `of:"token"`
	Principal string `json:"principal,omitempty" in:"query" doc:"whose tokens"`
}

// TokenChange names a token and the version that the change is made for.
type TokenChange struct {
	ID      string `json:"id" in:"path" as:"token"`
	Version int64  `json:"version,omitempty" in:"match"`
}

// Rotation names a token, its version, and how it is succeeded.
type Rotation struct {
	ID              string `json:"id" in:"path" as:"token"`
	Version         int64  `json:"version,omitempty" in:"match"`
	RotationRequest `in:"body"`
}

// RotationRequest says how a token is succeeded.
type RotationRequest struct {
	TTL     time.Duration `json:"ttl_ns,omitempty"`     // of the successor; 0: the old one's
	Overlap time.Duration `json:"overlap_ns,omitempty"` // how long the old one stays good
}

// Member is a principal with a role.
type Member struct {
	Principal string    `json:"principal"`
	Role      string    `json:"role"` // "owner", "admin" or "operator"
	Version   int64     `json:"version"`
	Created   time.Time `json:"created"`
	By        string    `json:"by,omitempty"`
}

// MemberPut gives a principal a role. Version is that of the member whom the caller
// saw; 0 means that there is none yet.
type MemberPut struct {
	Principal    string `json:"principal" in:"path"`
	Version      int64  `json:"version,omitempty" in:"match"`
	MemberChange `in:"body"`
}

// MemberChange is a member's new role.
type MemberChange struct {
	Role string `json:"role"` // "owner", "admin" or "operator"
}

// MemberRemoval names a member and the version that the removal is made for.
type MemberRemoval struct {
	Principal string `json:"principal" in:"path"`
	Version   int64  `json:"version,omitempty" in:"match"`
}

// Setting is one key of the configuration.
type Setting struct {
	Key    string `json:"key"`
	Value  any    `json:"value"`
	Source string `json:"source"` // "default", "file" or "environment"
	Doc    string `json:"doc,omitempty"`
}

// Status is the state of the daemon. A caller who may not read it gets no StatusDetail: its
// members are left out, not zero.
type Status struct {
	Version string `json:"version"`
	Mode    string `json:"mode"` // "normal", "safe", "stopped" or "draining"
	DenyNew bool   `json:"deny_new"`
	Hidden  bool   `json:"hidden,omitempty"` // the rest is not for the caller
	Caller  Caller `json:"caller"`           // who asks, as the daemon sees it
	*StatusDetail
}

// StatusDetail is the part that a caller needs the permission for Status to see.
type StatusDetail struct {
	Profile     string        `json:"profile"`
	PID         int           `json:"pid"`
	User        string        `json:"user"` // "uid:0"
	Started     time.Time     `json:"started"`
	Uptime      time.Duration `json:"uptime_ns"`
	PolicySet   canon.Digest  `json:"policy_set"`
	Confinement Confinement   `json:"confinement"`
	Pool        Pool          `json:"pool"`
	Counts      Counts        `json:"counts"`
	Retention   Retention     `json:"retention"`
	Journal     JournalCounts `json:"journal"`
	FeaturesOff []string      `json:"features_off"` // of this installation; never null
	Warnings    []string      `json:"warnings"`     // weak settings, and faults; never null
}

// Retention says when ended runs and artifacts are removed, and how many this daemon
// removed since it started.
type Retention struct {
	Runs             time.Duration `json:"runs_ns"`        // after a run's end; 0: for ever
	ArtifactBytes    int64         `json:"artifact_bytes"` // of all artifacts; 0: the quota alone
	Sessions         time.Duration `json:"sessions_ns"`    // without a run; then an open one ends. 0: never
	Caches           time.Duration `json:"caches_ns"`      // without a call; 0: for ever
	Every            time.Duration `json:"every_ns"`
	Last             *time.Time    `json:"last,omitempty"`   // the last sweep
	Failed           string        `json:"failed,omitempty"` // reason code of a partial sweep
	RemovedRuns      int64         `json:"removed_runs"`
	RemovedArtifacts int64         `json:"removed_artifacts"`
	RemovedBytes     int64         `json:"removed_bytes"`
	RemovedLayers    int64         `json:"removed_layers"`
	RemovedCaches    int64         `json:"removed_caches"`
	EndedSessions    int64         `json:"ended_sessions"` // that were idle
}

// Confinement is the daemon's confinement of itself, as it observed it.
type Confinement struct {
	Enforced bool              `json:"enforced"`
	Controls []ConfinedControl `json:"controls"`
}

// ConfinedControl is one control on the daemon itself.
type ConfinedControl struct {
	Name   string `json:"name"`
	On     bool   `json:"on"`
	Detail string `json:"detail"`
	Fix    string `json:"fix,omitempty"`
}

// Pool says how many cells and networks are made ahead of calls, and how old they get.
type Pool struct {
	Cells    int           `json:"cells"`
	Networks int           `json:"networks"`
	MaxAge   time.Duration `json:"max_age_ns"`
}

// Counts are the numbers of stored things.
type Counts struct {
	SessionsOpen     int `json:"sessions_open"`
	RunsActive       int `json:"runs_active"`
	RunsQueued       int `json:"runs_queued"`
	ApprovalsPending int `json:"approvals_pending"`
	TapeReaders      int `json:"tape_readers"`
}

// JournalCounts is the journal in short.
type JournalCounts struct {
	Size uint64 `json:"size"`
	Open int    `json:"open"`
}

// Doctor says what the host can enforce, and how the parts that decide and record are.
type Doctor struct {
	Missing  []string  `json:"missing"` // findings whose no costs something; never null
	Healthy  bool      `json:"healthy"` // every tier that is in use can be enforced
	Kernel   string    `json:"kernel"`
	Machine  string    `json:"machine"`
	Findings []Finding `json:"findings"`
}

// Finding is one control of the host, or one thing that is examined.
type Finding struct {
	Name   string   `json:"name"`
	Answer string   `json:"answer"` // "yes", "no" or "unknown"
	Detail string   `json:"detail"`
	Since  string   `json:"since"`
	How    string   `json:"how"`
	Needed []string `json:"needed"`         // tiers that cannot be had without it
	Cost   string   `json:"cost,omitempty"` // what its absence costs
	Fix    string   `json:"fix,omitempty"`  // the command, or what to do
}

// StopRequest says what to stop.
type StopRequest struct {
	All     bool `json:"all"`      // all runs; false: only the caller's
	DenyNew bool `json:"deny_new"` // refuse new runs and calls until Resume, also after a restart
}

// Stopped is the state after Stop or Resume.
type Stopped struct {
	Cancelled int    `json:"cancelled"` // runs that it ended
	DenyNew   bool   `json:"deny_new"`
	LogIndex  uint64 `json:"log_index"` // of the administrative act; 0 while that is pending
	// Left counts the runs that may still have a live program: killed, but not seen to end
	// within two seconds.
	Left int `json:"left,omitempty"`
	// Pending names the places where the stop isn't written down yet: "brake" (with it, and
	// without the store, a restart forgets that new runs are denied), "store", "journal".
	// The daemon tries until it is.
	Pending []string `json:"pending,omitempty"`
}

// BackupRequest says for whom a backup is encrypted.
type BackupRequest struct {
	Recipients []string `json:"recipients"` // age recipients: "age1…"
}

// BackupTo says for whom a backup is encrypted, and where it is written.
type BackupTo struct {
	BackupRequest `in:"body"`
	W             io.Writer `json:"-"`
}

// BackupInfo says what a backup holds.
type BackupInfo struct {
	Files  int    `json:"files"`
	Bytes  int64  `json:"bytes"`
	Digest string `json:"digest"` // of what was written
}
