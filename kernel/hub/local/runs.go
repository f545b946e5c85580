package local

import (
	"context"
	"fmt"
	"slices"

	"palyra/authz/approval"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel/hub"
	"palyra/kernel/run"
	"palyra/kernel/session"
	"palyra/kernel/store"
)

// The reasons for which the hub ends runs.
const (
	reasonCancelled    = "cancelled"
	reasonSessionEnded = "session_ended"
)

// page is a PageQuery as the store has it.
func page(q hub.PageQuery) (store.Page, error) {
	if q.Limit < 0 || q.Limit > store.MaxPage {
		return store.Page{}, fault.New(fault.Usage, "bad_limit", "list", fmt.Errorf("a page has 1 to %d items", store.MaxPage))
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	return store.Page{After: q.After, Limit: q.Limit, Bytes: pageBytes}, nil
}

// What answers hold, for Hub.reads, in bytes. A page is what its rows have, decoded
// and encoded again.
const (
	pageBytes    = 1 << 20 // of the rows of a page
	listBytes    = 4 * pageBytes
	runBytes     = 64 << 10 // of a small run
	mostRunBytes = 20 << 20 // of any, with 256 steps
	scanBytes    = 8 << 20  // of a look through the journal
)

// reads takes room for an answer, which the request has until that is written.
// It waits for it in line.
func (h *Hub) reads(ctx context.Context, c hub.Caller, n int64) (release func(), err error) {
	hold, err := h.pools.reads.Wait(ctx, h.payer(c), n)
	if err != nil {
		return nil, err
	}
	return hold.Keep(ctx), nil
}

// oneOf returns fault.Usage "bad_state" for a state that is none of these.
func oneOf[S ~string](state string, known ...S) (S, error) {
	if state == "" || slices.Contains(known, S(state)) {
		return S(state), nil
	}
	return "", fault.New(fault.Usage, "bad_state", "list", fmt.Errorf("%.40q is none of %q", state, known))
}

// pageOf turns rows into a page. A full one, of limit rows or of pageBytes, may
// have another after it.
func pageOf[R, T any](rows []R, limit int, size func(*R) int, id func(*R) string, of func(*R) (T, error)) (hub.Page[T], error) {
	bytes := 0
	p := hub.Page[T]{Items: make([]T, 0, len(rows))}
	for i := range rows {
		v, err := of(&rows[i])
		if err != nil {
			return hub.Page[T]{Items: []T{}}, err
		}
		p.Items = append(p.Items, v)
		bytes += size(&rows[i])
	}
	if n := len(rows); n > 0 && (n == limit || bytes >= pageBytes) {
		p.Next = id(&rows[n-1])
	}
	return p, nil
}

func sessionOf(s *store.Session) (hub.Session, error) {
	v := hub.Session{ID: s.ID, Principal: s.Principal, Title: s.Title, State: string(s.State), Version: s.Version, Created: s.Created}
	if !s.Ended.IsZero() {
		v.Ended = &s.Ended
	}
	return v, nil
}

// CreateSession implements hub.Hub.
func (h *Hub) CreateSession(ctx context.Context, c hub.Caller, n hub.NewSession) (hub.Session, error) {
	if err := h.ask(c, "CreateSession"); err != nil {
		return hub.Session{}, err
	}
	if err := (quota{h}).Check(c.User); err != nil {
		return hub.Session{}, err
	}
	s, err := session.Create(ctx, h.st, c.User, n.Title, h.cfg.Sessions)
	if err != nil {
		return hub.Session{}, err
	}
	quota{h}.Spend(c.User, rowBytes)
	return sessionOf(s)
}

// Session implements hub.Hub.
func (h *Hub) Session(ctx context.Context, c hub.Caller, id string) (hub.Session, error) {
	if err := h.ask(c, "Session"); err != nil {
		return hub.Session{}, err
	}
	s, err := h.session(ctx, c, id)
	if err != nil {
		return hub.Session{}, err
	}
	return sessionOf(s)
}

// session returns a session that the caller sees.
func (h *Hub) session(ctx context.Context, c hub.Caller, id string) (*store.Session, error) {
	if err := ident.Check(ident.Session, id); err != nil {
		return nil, err
	}
	s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(id) })
	if err == nil && !h.sees(c, s.Principal) {
		return nil, noSuch("session", id)
	}
	return s, err
}

// Sessions implements hub.Hub.
func (h *Hub) Sessions(ctx context.Context, c hub.Caller, q hub.SessionQuery) (none hub.Page[hub.Session], err error) {
	if err := h.ask(c, "Sessions"); err != nil {
		return none, err
	}
	p, err := page(q.PageQuery)
	if err != nil {
		return none, err
	}
	state, err := oneOf(q.State, store.SessionOpen, store.SessionEnded)
	if err != nil {
		return none, err
	}
	if !h.only(c, &q.Principal) {
		return hub.Page[hub.Session]{Items: []hub.Session{}}, nil
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Session, error) {
		return tx.Sessions(store.SessionFilter{Principal: q.Principal, State: state}, p)
	})
	if err != nil {
		return none, err
	}
	return pageOf(rows, p.Limit, func(s *store.Session) int { return len(s.Title) }, func(s *store.Session) string { return s.ID }, sessionOf)
}

// only narrows a filter to what the caller sees. It reports whether that can be anything.
func (h *Hub) only(c hub.Caller, principal *string) bool {
	if h.seesAll(c) {
		return true
	}
	if *principal == "" {
		*principal = c.User
	}
	return *principal == c.User
}

// EndSession implements hub.Hub.
func (h *Hub) EndSession(ctx context.Context, c hub.Caller, id string, version int64) (hub.Session, error) {
	if err := h.ask(c, "EndSession"); err != nil {
		return hub.Session{}, err
	}
	if _, err := h.session(ctx, c, id); err != nil {
		return hub.Session{}, err
	}
	// First the session: no run comes after those that are cancelled.
	s, err := session.End(ctx, h.st, id, version)
	if err != nil {
		return hub.Session{}, err
	}
	h.runs.Approvals().Drop(func(g *approval.Standing) bool { return g.Session == id })
	_, err = h.runs.CancelAll(ctx, run.Stop{Reason: reasonSessionEnded, By: c.User}, func(sess, _ string) bool { return sess == id })
	if err != nil {
		return hub.Session{}, err
	}
	if err := h.release(context.WithoutCancel(ctx), id); err != nil {
		return hub.Session{}, err
	}
	return sessionOf(s)
}

// release gives back the artifacts of a session's runs.
func (h *Hub) release(ctx context.Context, session string) error {
	for after := ""; ; {
		var n int
		err := h.st.Update(ctx, func(tx *store.Tx) error {
			runs, err := tx.Runs(store.RunFilter{Session: session}, store.Page{After: after, Limit: 100})
			if err != nil {
				return err
			}
			for _, r := range runs {
				after = r.ID
				if err := tx.ReleaseArtifacts(r.ID); err != nil {
					return err
				}
			}
			n = len(runs)
			return nil
		})
		if err != nil {
			return err
		}
		if n < 100 {
			break
		}
	}
	_, _, err := h.st.SweepArtifacts(ctx)
	if fault.ReasonOf(err) == "backup_running" { // the next one does it
		return nil
	}
	return err
}

// StartRun implements hub.Hub.
func (h *Hub) StartRun(ctx context.Context, c hub.Caller, n hub.NewRun) (hub.Run, error) {
	if err := h.ask(c, "StartRun"); err != nil {
		return hub.Run{}, err
	}
	if err := ident.Check(ident.Session, n.Session); err != nil {
		return hub.Run{}, err
	}
	id, err := h.runs.Start(ctx, run.Request{Session: n.Session, User: c.User, Surface: c.Surface, Device: c.Device, Reserve: h.privileged(c),
		Steps: n.Steps, Budget: n.Budget, KeepGoing: n.KeepGoing, Key: n.IdempotencyKey})
	if err != nil {
		return hub.Run{}, h.named(c, err)
	}
	return h.runs.Read(ctx, id)
}

// Run implements hub.Hub.
func (h *Hub) Run(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	if err := h.ask(c, "Run"); err != nil {
		return hub.Run{}, err
	}
	if err := h.visible(ctx, c, id); err != nil {
		return hub.Run{}, err
	}
	n, err := store.View(ctx, h.st, func(tx *store.Tx) (int64, error) { return tx.RunBytes(id) })
	if err != nil {
		return hub.Run{}, err
	}
	release, err := h.reads(ctx, c, min(2*n+runBytes, mostRunBytes)) // decoded, and encoded again
	if err != nil {
		return hub.Run{}, err
	}
	defer release()
	return h.runs.Read(ctx, id)
}

// visible returns nil if the caller sees a run.
func (h *Hub) visible(ctx context.Context, c hub.Caller, id string) error {
	if err := ident.Check(ident.Run, id); err != nil {
		return err
	}
	r, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Run, error) { return tx.RunHead(id) })
	if err == nil && !h.sees(c, r.Principal) {
		return noSuch("run", id)
	}
	return err
}

// Runs implements hub.Hub.
func (h *Hub) Runs(ctx context.Context, c hub.Caller, q hub.RunQuery) (none hub.Page[hub.Run], err error) {
	if err := h.ask(c, "Runs"); err != nil {
		return none, err
	}
	p, err := page(q.PageQuery)
	if err != nil {
		return none, err
	}
	if !h.only(c, &q.Principal) {
		return hub.Page[hub.Run]{Items: []hub.Run{}}, nil
	}
	f := store.RunFilter{Principal: q.Principal, Session: q.Session}
	for _, s := range q.States {
		state, err := oneOf(s, store.RunPending, store.RunAccepted, store.RunInProgress, store.RunWaitingApproval,
			store.RunDone, store.RunFailed, store.RunCancelled)
		if err != nil {
			return none, err
		}
		f.States = append(f.States, state)
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Run, error) { return tx.Runs(f, p) })
	if err != nil {
		return none, err
	}
	return pageOf(rows, p.Limit, func(r *store.Run) int { return len(r.IdempotencyKey) }, func(r *store.Run) string { return r.ID }, func(r *store.Run) (hub.Run, error) { return run.Of(r), nil })
}

// CancelRun implements hub.Hub.
func (h *Hub) CancelRun(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	if err := h.ask(c, "CancelRun"); err != nil {
		return hub.Run{}, err
	}
	if err := h.visible(ctx, c, id); err != nil {
		return hub.Run{}, err
	}
	if err := h.runs.Cancel(ctx, id, run.Stop{Reason: reasonCancelled, By: c.User}); err != nil {
		return hub.Run{}, err
	}
	return h.runs.Read(ctx, id)
}

// Tape implements hub.Hub.
func (h *Hub) Tape(ctx context.Context, c hub.Caller, id string, after uint64) (hub.Tape, error) {
	if err := h.ask(c, "Tape"); err != nil {
		return nil, err
	}
	if err := h.visible(ctx, c, id); err != nil {
		return nil, err
	}
	t, err := h.runs.Tape(id, after)
	if err != nil { // not a nil pointer in an interface
		return nil, err
	}
	return t, nil
}

// Call implements hub.Hub.
func (h *Hub) Call(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Run, error) {
	if err := h.ask(c, "Call"); err != nil {
		return hub.Run{}, err
	}
	if n.Session != "" {
		if err := ident.Check(ident.Session, n.Session); err != nil {
			return hub.Run{}, err
		}
	}
	id, err := h.runs.Start(ctx, run.Request{Session: n.Session, User: c.User, Surface: c.Surface, Device: c.Device, Reserve: h.privileged(c),
		Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}, Budget: n.Budget, Key: n.IdempotencyKey, Attended: true})
	if err != nil {
		return hub.Run{}, h.named(c, err)
	}
	if err := h.runs.Wait(ctx, id); err != nil {
		if ctx.Err() != nil && n.IdempotencyKey == "" { // nobody will ask for it again
			err = h.runs.Cancel(context.WithoutCancel(ctx), id, run.Stop{Reason: run.ReasonCallerGone, By: c.User})
		}
		if err != nil {
			return hub.Run{}, err
		}
	}
	return h.runs.Read(context.WithoutCancel(ctx), id)
}

// Approvals implements hub.Hub.
func (h *Hub) Approvals(ctx context.Context, c hub.Caller, q hub.ApprovalQuery) (none hub.Page[hub.Approval], err error) {
	if err := h.ask(c, "Approvals"); err != nil {
		return none, err
	}
	p, err := page(q.PageQuery)
	if err != nil {
		return none, err
	}
	f := store.ApprovalFilter{Run: q.Run, Session: q.Session}
	state, err := oneOf(q.State, store.ApprovalPending, store.ApprovalApproved, store.ApprovalDenied, store.ApprovalExpired, store.ApprovalWithdrawn)
	if err != nil {
		return none, err
	}
	if state != "" {
		f.States = []store.ApprovalState{state}
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.View(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) { return tx.Approvals(f, p) })
	if err != nil {
		return none, err
	}
	v, err := pageOf(rows, p.Limit, func(a *store.Approval) int { return len(a.Request) + len(a.Detail) }, func(a *store.Approval) string { return a.ID }, func(a *store.Approval) (hub.Approval, error) {
		return h.approvalFor(ctx, c, a)
	})
	if q.Run != "" || q.Session != "" { // to which run a reduced one belongs is not told either
		v.Items = slices.DeleteFunc(v.Items, func(a hub.Approval) bool { return a.Reduced })
	}
	return v, err
}

// approvalFor is a request as the caller sees it.
func (h *Hub) approvalFor(ctx context.Context, c hub.Caller, row *store.Approval) (hub.Approval, error) {
	v, err := run.ApprovalOf(row)
	if err == nil && v.State == hub.ApprovalPending {
		v.Yes = h.runs.Approvals().Yes(v.ID)
	}
	if err == nil && !h.seesRequest(ctx, c, &v) {
		v = reduced(&v)
	}
	return v, err
}

// Approval implements hub.Hub.
func (h *Hub) Approval(ctx context.Context, c hub.Caller, id string) (hub.Approval, error) {
	if err := h.ask(c, "Approval"); err != nil {
		return hub.Approval{}, err
	}
	release, err := h.reads(ctx, c, listBytes)
	if err != nil {
		return hub.Approval{}, err
	}
	defer release()
	v, err := h.approval(ctx, id)
	if err == nil && !h.seesRequest(ctx, c, &v) {
		v = reduced(&v)
	}
	return v, err
}

func (h *Hub) approval(ctx context.Context, id string) (hub.Approval, error) {
	if err := ident.Check(ident.Approval, id); err != nil {
		return hub.Approval{}, err
	}
	a, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.Approval(id) })
	if err != nil {
		return hub.Approval{}, err
	}
	v, err := run.ApprovalOf(a)
	if err == nil && v.State == hub.ApprovalPending {
		v.Yes = h.runs.Approvals().Yes(id)
	}
	return v, err
}

// maxComment bounds the comment on an answer, in bytes.
const maxComment = 500

// Artifact implements hub.Hub.
func (h *Hub) Artifact(ctx context.Context, c hub.Caller, runID, digest string) (hub.Artifact, error) {
	if err := h.ask(c, "Artifact"); err != nil {
		return nil, err
	}
	if err := h.visible(ctx, c, runID); err != nil {
		return nil, err
	}
	d, err := canon.ParseDigest(digest)
	if err != nil {
		return nil, fault.New(fault.Usage, "bad_digest", "open artifact", err)
	}
	holds, err := store.View(ctx, h.st, func(tx *store.Tx) (bool, error) { return tx.HoldsArtifact(d, runID) })
	if err != nil {
		return nil, err
	}
	if !holds {
		return nil, noSuch("artifact", digest)
	}
	f, a, err := h.st.OpenArtifact(ctx, d)
	if err != nil {
		return nil, err
	}
	return &artifact{f, hub.ArtifactInfo{Digest: digest, Size: a.Size, MediaType: a.MediaType, Created: a.Created}}, nil
}
