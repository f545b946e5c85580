// Package hub is what transport reaches the kernel through: the types and the
// one interface, [Hub], whose arguments and results serialise.
//
// palyra/kernel/hub/local is the hub of this process, over a kernel, a store and
// runs. palyra/transport/client is the same interface over a socket. This
// package holds data and names, links neither of the two, and so costs a client
// nothing.
//
// # Contract
//
// Every method takes the [Caller] as its surface authenticated it; nothing in
// any other argument says who asks. Before anything else a method asks for the
// permission that the table in palyra/kernel/hub/local names for it. What a
// caller may not see does not exist for it: fault.NotFound, not fault.Denied.
//
// Errors are *fault.Error. What a policy, a person or the host said no to is
// fault.Denied, fault.NotApproved or fault.Refused, and carries a [Denial]
// ([DenialOf]). A call that was decided is a result and no error, whatever
// became of it: its step holds outcome and denial.
//
// What can be changed has a Version, which counts from 1 and is the ETag. A
// change names the version it was made for; 0 means whichever there is. An
// outdated one is fault.Busy "version_conflict".
//
// # What it does not protect against
//
// A transport that lies about who is calling. Callers are made by
// [Hub.Authenticate] from what a transport cannot invent, a token or the peer
// of a unix socket, but a transport in the same process could make one up.
package hub

import (
	"context"
	"errors"
	"io"
)

// Hub is the whole of what can be asked of a daemon.
type Hub interface {
	// Authenticate says who is calling, by a credential. It returns
	// fault.Denied "unauthenticated" without a reason that would help to guess.
	Authenticate(ctx context.Context, c Credential) (Caller, error)

	// CreateSession opens a session that belongs to the caller.
	CreateSession(ctx context.Context, c Caller, n NewSession) (Session, error)
	// Session returns one session.
	Session(ctx context.Context, c Caller, id string) (Session, error)
	// Sessions lists sessions, newest first.
	Sessions(ctx context.Context, c Caller, q SessionQuery) (Page[Session], error)
	// EndSession cancels the runs of a session, ends it, and gives back the space
	// of its artifacts: what they held can be read no more. Ending twice is no
	// error; the session of a Call has ended with it, and keeps its artifacts until then.
	EndSession(ctx context.Context, c Caller, id string, version int64) (Session, error)

	// StartRun queues a run and returns it without waiting. The same idempotency
	// key with the same request returns the same run; with another one it is
	// fault.Usage "idempotency_mismatch". A full queue is fault.Busy "queue_full".
	StartRun(ctx context.Context, c Caller, n NewRun) (Run, error)
	// Run returns one run with its steps.
	Run(ctx context.Context, c Caller, id string) (Run, error)
	// Runs lists runs without their steps, newest first.
	Runs(ctx context.Context, c Caller, q RunQuery) (Page[Run], error)
	// CancelRun ends a run and returns when no process of it is left. Cancelling
	// one that has ended is no error and changes nothing.
	CancelRun(ctx context.Context, c Caller, id string) (Run, error)
	// Tape reads the events of a run with Seq > after: first those that are
	// there, then the others as they come.
	Tape(ctx context.Context, c Caller, run string, after uint64) (Tape, error)
	// Call starts a run of one step and returns it when it has ended. A done ctx
	// cancels it, unless it has an idempotency key: then it goes on, and the same
	// Call returns what became of it. Without a session it gets one of its own.
	Call(ctx context.Context, c Caller, n NewCall) (Run, error)

	// Approvals lists requests for approval, newest first. Those that the caller
	// could not answer and that are another's are Reduced.
	Approvals(ctx context.Context, c Caller, q ApprovalQuery) (Page[Approval], error)
	// Approval returns one request.
	Approval(ctx context.Context, c Caller, id string) (Approval, error)
	// ResolveApproval answers a pending request in the caller's name. A second
	// answer is fault.Busy "version_conflict" and changes nothing.
	ResolveApproval(ctx context.Context, c Caller, id string, version int64, a Answer) (Approval, error)
	// PreviewApproval says what a yes would let through: the pattern, and which
	// recent requests without a yes it would have covered. It changes nothing.
	PreviewApproval(ctx context.Context, c Caller, id string, a Answer) (Preview, error)
	// Grants lists the standing grants, oldest first; those of others Reduced.
	Grants(ctx context.Context, c Caller) (Page[StandingGrant], error)
	// RevokeGrant ends a standing grant. What runs because of it runs on.
	RevokeGrant(ctx context.Context, c Caller, id string) (StandingGrant, error)

	// Tools lists the tools.
	Tools(ctx context.Context, c Caller) ([]Tool, error)

	// PolicyExplain decides a call as Call would, and stops there.
	PolicyExplain(ctx context.Context, c Caller, n NewCall) (Explanation, error)
	// PolicyTest runs the policy tests of a candidate, of the set in force if nil.
	PolicyTest(ctx context.Context, c Caller, candidate *PolicySet) (PolicyReport, error)
	// PolicyWhy returns a decision by its id, or by eight or more of its first
	// digits: of a call that the caller may see, from the journal; of a denial that
	// is none of a call, as long as the process remembers it.
	PolicyWhy(ctx context.Context, c Caller, id string) (DecisionReport, error)
	// PolicyExport returns the bundle of a call's decision, JSON: all that it
	// follows from, for another Cedar engine.
	PolicyExport(ctx context.Context, c Caller, id string) ([]byte, error)
	// PolicyDiff decides recent calls again, by a candidate.
	PolicyDiff(ctx context.Context, c Caller, q PolicyDiffQuery) (PolicyDiff, error)
	// PolicyInfo lists the policies in force.
	PolicyInfo(ctx context.Context, c Caller) (PolicyInfo, error)

	// Receipt returns the receipt of a journal entry: a Sigstore bundle, JSON. It is
	// signed as a whole: of another principal's call there is none.
	Receipt(ctx context.Context, c Caller, index uint64) ([]byte, error)
	// JournalStatus returns size, origin and newest checkpoint.
	JournalStatus(ctx context.Context, c Caller) (JournalStatus, error)
	// JournalEntries lists entries from an index on, oldest first; those of others
	// Reduced.
	JournalEntries(ctx context.Context, c Caller, from uint64, limit int) (Page[JournalEntry], error)
	// JournalProof proves an entry under the newest checkpoint.
	JournalProof(ctx context.Context, c Caller, index uint64) (JournalProof, error)
	// JournalConsistency proves that the log extends what it was at size old.
	JournalConsistency(ctx context.Context, c Caller, old uint64) (JournalConsistency, error)
	// JournalCheckpoint returns the newest checkpoint, a signed note.
	JournalCheckpoint(ctx context.Context, c Caller) ([]byte, error)
	// JournalTile returns a file of the published log: "tile/…" as C2SP names it.
	JournalTile(ctx context.Context, c Caller, name string) ([]byte, error)

	// Artifact opens an artifact that a run holds which the caller may see. The
	// caller closes it.
	Artifact(ctx context.Context, c Caller, run, digest string) (Artifact, error)

	// CreateToken makes an API token. Its text is in the result and nowhere else.
	CreateToken(ctx context.Context, c Caller, n NewToken) (TokenSecret, error)
	// Tokens lists tokens, newest first.
	Tokens(ctx context.Context, c Caller, q TokenQuery) (Page[Token], error)
	// RevokeToken ends a token for good.
	RevokeToken(ctx context.Context, c Caller, id string, version int64) (Token, error)
	// RotateToken makes the successor of a token; the old one stays good for the overlap.
	RotateToken(ctx context.Context, c Caller, id string, r Rotation) (TokenSecret, error)

	// Members lists who has which role.
	Members(ctx context.Context, c Caller) (Page[Member], error)
	// PutMember gives a principal a role. Nobody gives more than they have. Version
	// is that of the member whom the caller saw; 0 means that there is none yet.
	PutMember(ctx context.Context, c Caller, m Member) (Member, error)
	// RemoveMember takes a principal's role. The last owner cannot be removed.
	RemoveMember(ctx context.Context, c Caller, principal string, version int64) error

	// Config lists the settings in force.
	Config(ctx context.Context, c Caller) ([]Setting, error)
	// Status says how the daemon is.
	Status(ctx context.Context, c Caller) (Status, error)
	// Doctor names every control of the host that is missing.
	Doctor(ctx context.Context, c Caller) (Doctor, error)

	// Stop ends what the request names, and returns when it has ended.
	Stop(ctx context.Context, c Caller, r StopRequest) (Stopped, error)
	// Resume takes new runs again after a Stop with DenyNew.
	Resume(ctx context.Context, c Caller) (Stopped, error)
	// Reload reads the policies again. On an error the old ones stay.
	Reload(ctx context.Context, c Caller) (PolicyInfo, error)
	// Backup writes an encrypted copy of the working state to w.
	Backup(ctx context.Context, c Caller, r BackupRequest, w io.Writer) (BackupInfo, error)
}

// Tape reads events in order. Next blocks until there is one, returns io.EOF
// after the last event of a run that has ended, and the error of its ctx. What
// it returns is durable. A reader holds no queue: a slow one reads later from
// the store and delays nobody. Next must not be called concurrently.
type Tape interface {
	Next(ctx context.Context) (Event, error)
	Close() error
}

// Artifact is an open artifact. Its content was checked against its digest.
type Artifact interface {
	io.ReadSeekCloser
	Info() ArtifactInfo
}

// DenialError is what Unwrap of a *fault.Error leads to where something said no.
type DenialError struct{ Denial Denial }

// Error names layer and decision.
func (e *DenialError) Error() string {
	if e.Denial.DecisionID == "" {
		return "denied by " + e.Denial.Layer
	}
	return "denied by " + e.Denial.Layer + ", decision " + e.Denial.DecisionID
}

// DenialOf returns the denial in err's chain, nil if there is none.
func DenialOf(err error) *Denial {
	if e, ok := errors.AsType[*DenialError](err); ok {
		return &e.Denial
	}
	return nil
}
