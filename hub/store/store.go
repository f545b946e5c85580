// Package store is the working state: sessions, runs with their steps and tapes,
// approvals, artifacts, idempotency keys, tokens, members and settings, in one
// SQLite database and a folder of content-addressed files. The journal holds the
// evidence; this holds what is needed to go on.
//
//	s, err := store.Open(filepath.Join(stateDir, "store"), store.Options{})
//	err = s.Update(ctx, func(tx *store.Tx) error {
//		run.State = store.RunDone
//		if err := tx.UpdateRun(run); err != nil { // fault.Busy "version_conflict" if somebody was first
//			return err
//		}
//		_, err := tx.AppendEvent(run.ID, "run.done", payload)
//		return err
//	})
//	run, err := store.View(ctx, s, func(tx *store.Tx) (*store.Run, error) { return tx.Run(id) })
//
// # Contract
//
// Update returns nil when everything that its function did is durable, and an
// error when nothing of it happened. Functions given to Update run one after the
// other and may share one commit; what one does wrong does not touch the others.
// A View sees one consistent state. Updates of versioned rows are compare-and-set.
//
// Errors have kinds: fault.NotFound ("not_found" …), fault.Busy
// ("version_conflict"), fault.Usage for what may not be stored, fault.Unavailable
// ("disk_full", "io_error"), fault.BadState ("read_only",
// "schema_too_new" …), fault.Integrity ("store_corrupt", "store_corrupt").
// When the disk is full or became read-only, reads still work.
//
// What it does not protect against: whoever runs as the owner of the state
// directory can change anything in it. The journal shows what does not agree with
// it ([Store.CheckJournal]); an older copy of the whole directory shows nowhere.
//
// The schema, the files and the backup: docs/formats/store.md.
package store

import (
	"context"
	"io"
	"time"

	"palyra/internal/canon"
	"palyra/internal/clock"
)

// Options tune a Store. The zero value is right for all but tests.
type Options struct {
	// ArtifactQuota bounds the bytes of all artifacts. Default 10 GiB; more than
	// that is fault.Unavailable "disk_full".
	ArtifactQuota int64
	// ArtifactShare returns how many of these bytes the runs of a principal may hold;
	// more is fault.Unavailable "quota". It is called with locks held and
	// waits for nothing. Default: all.
	ArtifactShare func(principal string) int64
	// MaxArtifact bounds one artifact in bytes. Default 256 MiB.
	MaxArtifact int64
	// Readers is how many Views run at the same time. Default 4.
	Readers int
	// Clock is the host's. It goes on from what Retire kept of it.
	// Default: a new one.
	Clock *clock.Clock
	// TestOnlyStep is called with the name of each durable step, so that a test
	// can kill the process there.
	TestOnlyStep func(name string)
}

// CreateSession adds a session. It fills ID, State, Version and Created where they are zero.
func (tx *Tx) CreateSession(s *Session) error { return tx.createSession(s) }

// Session returns a session, or fault.NotFound "no_such_session".
func (tx *Tx) Session(id string) (*Session, error) { return tx.session(id) }

// SessionOf returns the session whose id begins so, or fault.NotFound "no_such_session".
func (tx *Tx) SessionOf(prefix string) (*Session, error) { return tx.sessionOf(prefix) }

// IdleSessions returns open sessions, the oldest first, that were made and had their last run
// before a moment.
func (tx *Tx) IdleSessions(before time.Time, most int) ([]Session, error) {
	return tx.idleSessions(before, most)
}

// Sessions lists sessions.
func (tx *Tx) Sessions(f SessionFilter, p Page) ([]Session, error) { return tx.sessions(f, p) }

// UpdateSession sets Title, State and Ended if s.Version is the current one, and increments it.
func (tx *Tx) UpdateSession(s *Session) error { return tx.updateSession(s) }

// OpenSessions counts the open sessions of a principal, or of all if it is "".
func (tx *Tx) OpenSessions(principal string) (int, error) { return tx.openSessions(principal) }

// CreateRun adds a run. It fills ID, State, Version and Created where they are
// zero. An idempotency key that its principal used before is fault.Busy
// "locked"; see RunByKey.
func (tx *Tx) CreateRun(r *Run) error { return tx.createRun(r) }

// Run returns a run, or fault.NotFound "not_found".
func (tx *Tx) Run(id string) (*Run, error) { return tx.run(id) }

// RunByKey returns the run that principal started with this idempotency key.
func (tx *Tx) RunByKey(principal, key string) (*Run, error) { return tx.runByKey(principal, key) }

// RunHead is Run without the plan, which may be large.
func (tx *Tx) RunHead(id string) (*Run, error) { return tx.runHead(id) }

// RunBytes returns how much Run and Steps of a run read, in bytes.
func (tx *Tx) RunBytes(id string) (int64, error) { return tx.runBytes(id) }

// Runs lists runs, without the plans.
func (tx *Tx) Runs(f RunFilter, p Page) ([]Run, error) { return tx.runs(f, p) }

// UpdateRun sets State, Reason, Use, Started and Ended if r.Version is the
// current one, and increments it. A second active run in a session is fault.Busy
// "locked"; a run that has ended stays so: fault.Usage "run_ended".
func (tx *Tx) UpdateRun(r *Run) error { return tx.updateRun(r) }

// SetPlan replaces the plan of a run in any state. Its version stays.
func (tx *Tx) SetPlan(run string, plan []byte) error { return tx.setPlan(run, plan) }

// CreateStep adds a step to a run; indexes go up from 0 without gaps.
func (tx *Tx) CreateStep(s *Step) error { return tx.createStep(s) }

// Steps returns the steps of a run in order.
func (tx *Tx) Steps(run string) ([]Step, error) { return tx.steps(run) }

// Step returns one step, or fault.NotFound "not_found".
func (tx *Tx) Step(run string, index int) (*Step, error) { return tx.step(run, index) }

// StepHead returns one step without its input, or fault.NotFound "not_found".
func (tx *Tx) StepHead(run string, index int) (*Step, error) { return tx.stepHead(run, index) }

// StepByCall returns the step with this call id.
func (tx *Tx) StepByCall(callID string) (*Step, error) { return tx.stepByCall(callID) }

// LastStep returns the step of a run with the highest index, without its input; nil if
// it has none.
func (tx *Tx) LastStep(run string) (*Step, error) { return tx.lastStep(run) }

// UnsettledSteps returns the oldest 1000 steps whose LogIndex is NotLogged,
// without their inputs.
func (tx *Tx) UnsettledSteps() ([]Step, error) { return tx.unsettledSteps() }

// UpdateStep sets everything but Tool and Input if the step is in state from.
func (tx *Tx) UpdateStep(s *Step, from StepState) error { return tx.updateStep(s, from) }

// AppendEvent adds an event to the tape of a run and returns it. It is durable,
// and may be sent, when Update has returned.
func (tx *Tx) AppendEvent(run, kind string, payload []byte) (Event, error) {
	return tx.appendEvent(run, kind, payload)
}

// Events returns at most limit events of a run with Seq > after, in order.
// A page ends with the event that goes beyond 128 KiB.
func (tx *Tx) Events(run string, after uint64, limit int) ([]Event, error) {
	return tx.events(run, after, limit)
}

// LastEvent returns the highest Seq of a run, 0 if its tape is empty.
func (tx *Tx) LastEvent(run string) (uint64, error) { return tx.lastEvent(run) }

// CreateApproval adds a pending request. It fills ID, State, Version and Created where they are
// zero.
func (tx *Tx) CreateApproval(a *Approval) error { return tx.createApproval(a) }

// Approval returns a request, or fault.NotFound "not_found".
func (tx *Tx) Approval(id string) (*Approval, error) { return tx.approval(id) }

// ApprovalHead is Approval without Request, which may be large.
func (tx *Tx) ApprovalHead(id string) (*Approval, error) { return tx.approvalHead(id) }

// Approvals lists requests.
func (tx *Tx) Approvals(f ApprovalFilter, p Page) ([]Approval, error) { return tx.approvals(f, p) }

// ResolveApproval ends a pending request, if version is the current one, and
// returns it without Request. If another request was first it's fault.Busy "version_conflict". An
// answer after its time is fault.NotApproved "approval_expired" and changes nothing.
func (tx *Tx) ResolveApproval(id string, version int64, r Resolution) (*Approval, error) {
	return tx.resolveApproval(id, version, r)
}

// UseApproval notes that a grant was made of an approved request. It can be done
// once: fault.NotApproved "not_approved", "not_approved". It looks at
// no time: the grant did, and a note may come when the call has ended.
func (tx *Tx) UseApproval(id string) error { return tx.useApproval(id) }

// HoldsArtifact reports whether holder holds the artifact.
func (tx *Tx) HoldsArtifact(d canon.Digest, holder string) (bool, error) {
	return tx.holdsArtifact(d, holder)
}

// OwnsArtifact reports whether a run of the principal holds the artifact.
func (tx *Tx) OwnsArtifact(d canon.Digest, principal string) (bool, error) {
	return tx.ownsArtifact(d, principal)
}

// ReleaseArtifacts takes back all holds of holder.
func (tx *Tx) ReleaseArtifacts(holder string) error { return tx.releaseArtifacts(holder) }

// BeginIdempotent reserves a key for a request: nil if it was free, what is
// recorded if the same request came before (Response nil: it is still under
// way). Another request with the key is fault.Usage "idempotency_key_reused".
func (tx *Tx) BeginIdempotent(i Idempotency) (*Idempotency, error) { return tx.beginIdempotent(i) }

// FinishIdempotent records the response to the request that reserved the key.
func (tx *Tx) FinishIdempotent(principal, key string, response []byte) error {
	return tx.finishIdempotent(principal, key, response)
}

// AbandonIdempotent gives back a key whose request has no response.
func (tx *Tx) AbandonIdempotent(principal, key string) error {
	return tx.abandonIdempotent(principal, key)
}

// ExpireIdempotent removes at most so many keys whose time is over, those first
// that were over first, and returns how many. A step of the host's clock brings no key's time
// nearer, until it has lasted for clock.Settle.
func (tx *Tx) ExpireIdempotent(most int) (int, error) { return tx.expireIdempotent(most) }

// Setting returns a setting, or fault.NotFound "not_found".
func (tx *Tx) Setting(key string) (*Setting, error) { return tx.setting(key) }

// PutSetting sets a value if s.Version is the current one, 0 for one that does
// not exist, and increments it.
func (tx *Tx) PutSetting(s *Setting) error { return tx.putSetting(s) }

// OpenArtifact returns an artifact whose content was checked against its digest
// through the descriptor that is returned, at its beginning.
func (s *Store) OpenArtifact(ctx context.Context, d canon.Digest) (io.ReadSeekCloser, *Artifact, error) {
	return s.openArtifact(ctx, d)
}

// SweepArtifacts removes what nobody holds, and files that no row knows.
func (s *Store) SweepArtifacts(ctx context.Context) (removed int, bytes int64, err error) {
	return s.sweepArtifacts(ctx)
}
