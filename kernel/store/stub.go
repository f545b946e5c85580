package store

import (
	"context"
	"io"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

func todo(name string) error { return fault.New(fault.Unsupported, "not_built", name, nil) }

// Store is an open store. Its methods may be called concurrently.
type Store struct{}

// Tx is a transaction. It ends with the function it was given to and belongs to
// that function's goroutine.
type Tx struct{}

// Open opens or creates the store in dir.
func Open(dir string, o Options) (*Store, error) { return nil, todo("open store") }

// Close ends the store.
func (s *Store) Close() error { return nil }

// Update runs f in a transaction that may write.
func (s *Store) Update(ctx context.Context, f func(*Tx) error) error { return todo("update") }

// View runs f in a transaction that only reads.
func View[T any](ctx context.Context, s *Store, f func(*Tx) (T, error)) (T, error) {
	var zero T
	return zero, todo("view")
}

// Check says whether the store is sound.
func (s *Store) Check(ctx context.Context) error { return todo("check") }

func (tx *Tx) createSession(*Session) error                           { return todo("store") }
func (tx *Tx) session(string) (*Session, error)                       { return nil, todo("store") }
func (tx *Tx) sessions(SessionFilter, Page) ([]Session, error)        { return nil, todo("store") }
func (tx *Tx) updateSession(*Session) error                           { return todo("store") }
func (tx *Tx) createRun(*Run) error                                   { return todo("store") }
func (tx *Tx) run(string) (*Run, error)                               { return nil, todo("store") }
func (tx *Tx) runByKey(principal, key string) (*Run, error)           { return nil, todo("store") }
func (tx *Tx) runs(RunFilter, Page) ([]Run, error)                    { return nil, todo("store") }
func (tx *Tx) updateRun(*Run) error                                   { return todo("store") }
func (tx *Tx) createStep(*Step) error                                 { return todo("store") }
func (tx *Tx) steps(string) ([]Step, error)                           { return nil, todo("store") }
func (tx *Tx) step(string, int) (*Step, error)                        { return nil, todo("store") }
func (tx *Tx) stepByCall(string) (*Step, error)                       { return nil, todo("store") }
func (tx *Tx) updateStep(*Step, StepState) error                      { return todo("store") }
func (tx *Tx) appendEvent(string, string, []byte) (Event, error)      { return Event{}, todo("store") }
func (tx *Tx) events(string, uint64, int) ([]Event, error)            { return nil, todo("store") }
func (tx *Tx) lastEvent(string) (uint64, error)                       { return 0, todo("store") }
func (tx *Tx) createApproval(*Approval) error                         { return todo("store") }
func (tx *Tx) approval(string) (*Approval, error)                     { return nil, todo("store") }
func (tx *Tx) approvals(ApprovalFilter, Page) ([]Approval, error)     { return nil, todo("store") }
func (tx *Tx) useApproval(string) error                               { return todo("store") }
func (tx *Tx) artifact(canon.Digest) (*Artifact, error)               { return nil, todo("store") }
func (tx *Tx) holdArtifact(canon.Digest, string) error                { return todo("store") }
func (tx *Tx) holdsArtifact(canon.Digest, string) (bool, error)       { return false, todo("store") }
func (tx *Tx) releaseArtifacts(string) error                          { return todo("store") }
func (tx *Tx) beginIdempotent(Idempotency) (*Idempotency, error)      { return nil, todo("store") }
func (tx *Tx) finishIdempotent(principal, key string, b []byte) error { return todo("store") }
func (tx *Tx) abandonIdempotent(principal, key string) error          { return todo("store") }
func (tx *Tx) expireIdempotent() (int, error)                         { return 0, todo("store") }
func (tx *Tx) setting(string) (*Setting, error)                       { return nil, todo("store") }
func (tx *Tx) putSetting(*Setting) error                              { return todo("store") }
func (tx *Tx) resolveApproval(string, int64, Resolution) (*Approval, error) {
	return nil, todo("store")
}
func (s *Store) putArtifact(context.Context, string, string, io.Reader) (*Artifact, error) {
	return nil, todo("store")
}
func (s *Store) openArtifact(context.Context, canon.Digest) (io.ReadSeekCloser, *Artifact, error) {
	return nil, nil, todo("store")
}
func (s *Store) sweepArtifacts(context.Context) (int, int64, error) { return 0, 0, todo("store") }
