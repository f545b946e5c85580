package run

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"

	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// book is the store as approval.Hub's Book: a question and its answer change
// the request, the run that waits and the tape in one transaction.
type book struct{ e *Engine }

var _ approval.Book = (*book)(nil)

// Open implements approval.Book.
func (b *book) Open(ctx context.Context, a *approval.Entry) error {
	row := rowOf(a)
	request, err := json.Marshal(cardOf(&a.Request))
	if err != nil {
		return fault.New(fault.Internal, "internal", "ask for approval", err)
	}
	row.Request = request
	j := b.e.job(a.Run)
	if j == nil {
		return fault.New(fault.Internal, "internal", "ask for approval", errors.New("the call belongs to no run"))
	}
	err = b.e.update(ctx, j, func(tx *store.Tx, r *store.Run) error {
		if err := tx.CreateApproval(row); err != nil {
			return err
		}
		v, err := ApprovalOf(row)
		if err != nil {
			return err
		}
		if err := event(tx, r.ID, hub.EventApprovalRequested, v); err != nil {
			return err
		}
		if err := move(tx, r, store.RunWaitingApproval, hub.RunChange{}); err != nil {
			return err
		}
		return tx.UpdateRun(r)
	})
	if err == nil {
		b.e.asks(j)
	}
	return err
}

// Resolve implements approval.Book.
func (b *book) Resolve(ctx context.Context, id string, version int64, q approval.Resolution) (*approval.Entry, error) {
	was, err := b.Entry(ctx, id)
	if err != nil {
		return nil, err
	}
	var row *store.Approval
	change := func(tx *store.Tx, r *store.Run) (err error) {
		row, err = tx.ResolveApproval(id, version, store.Resolution{State: store.ApprovalState(q.State), Approver: q.Approver, Surface: q.Surface, Detail: q.Detail, Scope: q.Scope})
		if err != nil || r.State != store.RunWaitingApproval {
			return err
		}
		err = event(tx, r.ID, hub.EventApprovalResolved, hub.ApprovalResolved{Step: row.Step, Approval: id, State: q.State, Approver: q.Approver, Surface: q.Surface})
		if err != nil {
			return err
		}
		if err := move(tx, r, store.RunInProgress, hub.RunChange{}); err != nil {
			return err
		}
		return tx.UpdateRun(r)
	}
	if j := b.e.job(was.Run); j != nil {
		err = b.e.update(ctx, j, change)
	} else {
		err = b.e.alone(ctx, was.Run, change)
	}
	if errors.Is(err, store.ErrConflict) {
		return nil, fault.Mark(err, approval.ErrConflict)
	}
	if err != nil {
		return nil, err
	}
	return entryOf(row), nil
}

// Cover implements approval.Book. The run does not wait: nobody is asked.
func (b *book) Cover(ctx context.Context, a *approval.Entry, q approval.Resolution) error {
	row := rowOf(a)
	var err error
	if row.Request, err = json.Marshal(cardOf(&a.Request)); err != nil {
		return fault.New(fault.Internal, "internal", "use grant", err)
	}
	j := b.e.job(a.Run)
	if j == nil {
		return fault.New(fault.Internal, "internal", "use grant", errors.New("the call belongs to no run"))
	}
	return b.e.update(ctx, j, func(tx *store.Tx, r *store.Run) error {
		if err := tx.CreateApproval(row); err != nil {
			return err
		}
		_, err := tx.ResolveApproval(row.ID, row.Version, store.Resolution{State: store.ApprovalState(q.State), Approver: q.Approver, Surface: q.Surface,
			Detail: q.Detail, Scope: q.Scope})
		if err != nil {
			return err
		}
		return event(tx, r.ID, hub.EventApprovalResolved,
			hub.ApprovalResolved{Step: row.Step, Approval: row.ID, State: q.State, Approver: q.Approver, Surface: q.Surface})
	})
}

// Entry implements approval.Book.
func (b *book) Entry(ctx context.Context, id string) (*approval.Entry, error) {
	row, err := store.View(ctx, b.e.store, func(tx *store.Tx) (*store.Approval, error) { return tx.ApprovalHead(id) })
	if err != nil {
		return nil, err
	}
	return entryOf(row), nil
}

// Pending implements approval.Book.
func (b *book) Pending(ctx context.Context) (left []approval.Entry, err error) {
	for after := ""; ; {
		rows, err := store.View(ctx, b.e.store, func(tx *store.Tx) ([]store.Approval, error) {
			return tx.Approvals(store.ApprovalFilter{States: []store.ApprovalState{store.ApprovalPending}, Heads: true},
				store.Page{After: after, Limit: store.MaxPage, OldestFirst: true})
		})
		if err != nil || len(rows) == 0 {
			return left, err
		}
		for i := range rows {
			left = append(left, *entryOf(&rows[i]))
		}
		after = rows[len(rows)-1].ID
	}
}

// job returns a run that has not ended.
func (e *Engine) job(id string) *job {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.jobs[id]
}

// alone changes the row of a run that nobody works on.
func (e *Engine) alone(ctx context.Context, id string, f func(tx *store.Tx, r *store.Run) error) error {
	err := e.store.Update(ctx, func(tx *store.Tx) error {
		r, err := tx.RunHead(id)
		if err != nil {
			return err
		}
		return f(tx, r)
	})
	if err == nil {
		e.tapes.ring(id)
	}
	return err
}

func rowOf(a *approval.Entry) *store.Approval {
	return &store.Approval{
		ID: a.ID, Run: a.Run, Session: a.Session, Step: a.Step, Call: a.CallID, Requester: a.Requester,
		Decision: hex.EncodeToString(a.Request.Decision[:]), Capsule: a.Request.Capsule, PolicySet: a.Request.PolicySet,
		Scope: a.Scope, State: store.ApprovalPending, Version: a.Version, Created: a.Created, Expires: a.Expires,
	}
}

func entryOf(r *store.Approval) *approval.Entry {
	return &approval.Entry{
		Subject: approval.Subject{Run: r.Run, Session: r.Session, Step: r.Step, CallID: r.Call, Requester: r.Requester},
		ID:      r.ID, Scope: r.Scope, State: string(r.State), Version: r.Version, Approver: r.Approver, Surface: r.Surface,
		Detail: r.Detail, Created: r.Created, Expires: r.Expires, Answered: r.Answered,
	}
}
