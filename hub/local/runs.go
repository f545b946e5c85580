package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"palyra/agentloop/turn"
	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// The reasons for which the hub ends runs.
const (
	reasonCancelled    = "cancelled"
	reasonSessionEnded = "session_ended"
)

// page returns a PageQuery in the store's form.
func page(q hub.PageQuery) (store.Page, error) {
	if q.Limit < 0 || q.Limit > store.MaxPage {
		return store.Page{}, fault.New(fault.Usage, "invalid_input", "list", fmt.Errorf("a page has 1 to %d items", store.MaxPage))
	}
	if q.Limit == 0 {
		q.Limit = 100
	}
	return store.Page{After: q.After, Limit: q.Limit, Bytes: pageBytes}, nil
}

// The memory that answers hold, for Hub.reads, in bytes. A page holds its rows, decoded and
// encoded again.
const (
	pageBytes    = 1 << 20 // of the rows of a page
	listBytes    = 4 * pageBytes
	runBytes     = 64 << 10 // of a small run
	mostRunBytes = 20 << 20 // of any, with 256 steps
	scanBytes    = 8 << 20  // of a look through the journal
)

// reads takes room for an answer, which the request holds until the answer is written. It
// waits in line.
func (h *Hub) reads(ctx context.Context, c hub.Caller, n int64) (release func(), err error) {
	hold, err := h.pools.reads.Wait(ctx, h.payer(c), n)
	if err != nil {
		return nil, err
	}
	return hold.Keep(ctx), nil
}

// reading is reads, and a processor until release: what a page or a run takes to make.
// A stop ends the ctx.
func (h *Hub) reading(ctx context.Context, c hub.Caller, n int64) (_ context.Context, release func(), err error) {
	room, err := h.reads(ctx, c, n)
	if err != nil {
		return nil, nil, err
	}
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		room()
		return nil, nil, err
	}
	return ctx, func() { over(); room() }, nil
}

// oneOf returns fault.Usage "bad_state" for a state that is none of these.
func oneOf[S ~string](state string, known ...S) (S, error) {
	if state == "" || slices.Contains(known, S(state)) {
		return S(state), nil
	}
	return "", fault.New(fault.Usage, "invalid_input", "list", fmt.Errorf("%.40q is none of %q", state, known))
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

// runOperations returns the operations of sessions, runs, their artifacts and lists of
// approvals.
func (h *Hub) runOperations() []hub.Entry {
	return []hub.Entry{
		hub.CreateSession.By(h.createSession),
		hub.GetSession.By(h.getSession),
		hub.ListSessions.By(h.listSessions),
		hub.EndSession.By(h.endSession),
		hub.StartRun.By(h.startRun),
		hub.GetRun.By(h.getRun),
		hub.ListRuns.By(h.listRuns),
		hub.CancelRun.By(h.cancelRun),
		hub.SendInput.By(h.sendInput),
		hub.SetMetadata.By(h.setMetadata),
		hub.ReadTape.By(h.readTape),
		hub.Call.By(h.call),
		hub.ListApprovals.By(h.listApprovals),
		hub.GetApproval.By(h.getApproval),
		hub.ReadOutput.By(h.readOutput),
		hub.GetArtifact.By(h.getArtifact),
	}
}

func (h *Hub) createSession(ctx context.Context, c hub.Caller, n hub.NewSession) (hub.Session, error) {
	if err := h.room(c); err != nil {
		return hub.Session{}, err
	}
	s, err := session.Create(ctx, h.st, c.User, n.Title, h.cfg.Sessions)
	if err != nil {
		return hub.Session{}, err
	}
	return sessionOf(s)
}

func (h *Hub) getSession(ctx context.Context, c hub.Caller, id string) (hub.Session, error) {
	s, err := h.session(ctx, c, id)
	if err != nil {
		return hub.Session{}, err
	}
	v, err := sessionOf(s)
	if err == nil {
		v.Inputs, err = h.runs.Label(ctx, id)
	}
	return v, err
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

func (h *Hub) listSessions(ctx context.Context, c hub.Caller, q hub.SessionQuery) (none hub.Page[hub.Session], err error) {
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
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.Scan(ctx, h.st, func(tx *store.Tx) ([]store.Session, error) {
		return tx.Sessions(store.SessionFilter{Principal: q.Principal, State: state}, p)
	})
	if err != nil {
		return none, err
	}
	return pageOf(rows, p.Limit, func(s *store.Session) int { return len(s.Title) }, func(s *store.Session) string { return s.ID }, sessionOf)
}

// only narrows a filter to the caller's view. It reports whether anything is left.
func (h *Hub) only(c hub.Caller, principal *string) bool {
	if h.seesAll(c) {
		return true
	}
	if *principal == "" {
		*principal = c.User
	}
	return *principal == c.User
}

func (h *Hub) endSession(ctx context.Context, c hub.Caller, in hub.SessionChange) (hub.Session, error) {
	if _, err := h.session(ctx, c, in.ID); err != nil {
		return hub.Session{}, err
	}
	// End the session first, so that no run comes after the cancelled ones.
	end := session.End
	if in.Idle {
		end = session.EndIdle
	}
	s, err := end(ctx, h.st, in.ID, in.Version)
	if err != nil {
		return hub.Session{}, err
	}
	h.runs.Approvals().Drop(func(g *approval.Standing) bool { return g.Session == in.ID })
	_, err = h.runs.CancelAll(ctx, run.Stop{Reason: reasonSessionEnded, By: c.User}, func(sess, _ string) bool { return sess == in.ID })
	h.over(in.ID) // also if the caller has gone meanwhile: nothing comes back to it
	if err != nil {
		return hub.Session{}, err
	}
	if err := h.release(context.WithoutCancel(ctx), in.ID); err != nil {
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
	if errors.Is(err, store.ErrBackup) { // the next one does it
		return nil
	}
	return err
}

func (h *Hub) startRun(ctx context.Context, c hub.Caller, n hub.NewRun) (hub.Run, error) {
	for _, s := range n.Steps {
		if err := h.needTool(c, s.Tool); err != nil {
			return hub.Run{}, err
		}
	}
	if n.Agent != nil {
		if err := h.needTool(c, turn.Tool); err != nil {
			return hub.Run{}, err
		}
	}
	if err := ident.Check(ident.Session, n.Session); err != nil {
		return hub.Run{}, err
	}
	id, err := h.runs.Start(ctx, run.Request{Session: n.Session, User: c.User, Surface: c.Surface, Device: c.Device, Token: c.Token, Reserve: h.privileged(c),
		Steps: n.Steps, Agent: n.Agent, Budget: n.Budget, KeepGoing: n.KeepGoing, Staged: n.Staged, Parallel: n.Parallel, Metadata: n.Metadata, Key: n.IdempotencyKey})
	if err != nil {
		return hub.Run{}, h.named(c, err)
	}
	return h.answer(ctx, c, id)
}

func (h *Hub) getRun(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	if err := h.visible(ctx, c, id); err != nil {
		return hub.Run{}, err
	}
	return h.readRun(ctx, c, id)
}

// answer is readRun for a caller who must hear that what was asked for was done: without
// room, or amid a stop, the run comes as lists have it, without its steps.
func (h *Hub) answer(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	r, err := h.readRun(ctx, c, id)
	if err == nil || ctx.Err() != nil {
		return r, err
	}
	return h.head(ctx, id)
}

// head reads a run as lists have it.
func (h *Hub) head(ctx context.Context, id string) (hub.Run, error) {
	r, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Run, error) { return tx.RunHead(id) })
	if err != nil {
		return hub.Run{}, err
	}
	v := run.Of(r)
	h.runs.Mark(&v)
	return v, nil
}

// readRun reads a run with its steps, which can be large.
func (h *Hub) readRun(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	n, err := store.View(ctx, h.st, func(tx *store.Tx) (int64, error) { return tx.RunBytes(id) })
	if err != nil {
		return hub.Run{}, err
	}
	ctx, release, err := h.reading(ctx, c, min(2*n+runBytes, mostRunBytes)) // decoded, and encoded again
	if err != nil {
		return hub.Run{}, err
	}
	defer release()
	return h.runs.Read(ctx, id)
}

// visible returns nil if the caller sees a run.
func (h *Hub) visible(ctx context.Context, c hub.Caller, id string) error {
	_, err := h.principalOf(ctx, c, id)
	return err
}

// principalOf returns the principal of a run that the caller sees.
func (h *Hub) principalOf(ctx context.Context, c hub.Caller, id string) (string, error) {
	if err := ident.Check(ident.Run, id); err != nil {
		return "", err
	}
	r, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Run, error) { return tx.RunHead(id) })
	if err != nil {
		return "", err
	}
	if !h.sees(c, r.Principal) {
		return "", noSuch("run", id)
	}
	return r.Principal, nil
}

func (h *Hub) listRuns(ctx context.Context, c hub.Caller, q hub.RunQuery) (none hub.Page[hub.Run], err error) {
	p, err := page(q.PageQuery)
	if err != nil {
		return none, err
	}
	if q.Only != "" && q.Only != hub.OnlyBackground {
		return none, fault.New(fault.Usage, "invalid_input", "list", fmt.Errorf("%.40q is not %q", q.Only, hub.OnlyBackground))
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
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	rows, err := store.Scan(ctx, h.st, func(tx *store.Tx) ([]store.Run, error) {
		if q.Only == hub.OnlyBackground {
			return h.inBackground(tx, f, p)
		}
		return tx.Runs(f, p)
	})
	if err != nil {
		return none, err
	}
	return pageOf(rows, p.Limit, func(r *store.Run) int { return len(r.IdempotencyKey) }, func(r *store.Run) string { return r.ID }, func(r *store.Run) (hub.Run, error) {
		v := run.Of(r)
		h.runs.Mark(&v)
		return v, nil
	})
}

func (h *Hub) cancelRun(ctx context.Context, c hub.Caller, id string) (hub.Run, error) {
	if err := h.visible(ctx, c, id); err != nil {
		return hub.Run{}, err
	}
	if err := h.runs.Cancel(ctx, id, run.Stop{Reason: reasonCancelled, By: c.User}); err != nil {
		return hub.Run{}, err
	}
	if !h.holds(c, access.SessionRead) { // getRun would show nothing
		return h.head(ctx, id)
	}
	return h.answer(ctx, c, id)
}

// setMetadata reads and writes all that a run was started with, which can be large.
func (h *Hub) setMetadata(ctx context.Context, c hub.Caller, in hub.RunMetadata) (none hub.None, err error) {
	principal, err := h.principalOf(ctx, c, in.Run)
	if err != nil {
		return none, err
	}
	if principal != c.User {
		return none, fault.New(fault.Denied, "permission_denied", "set metadata", fmt.Errorf("it's %s's run", principal))
	}
	if err := h.room(c); err != nil {
		return none, err
	}
	n, err := store.View(ctx, h.st, func(tx *store.Tx) (int64, error) { return tx.RunBytes(in.Run) })
	if err != nil {
		return none, err
	}
	ctx, release, err := h.reading(ctx, c, min(2*n+runBytes, mostRunBytes))
	if err != nil {
		return none, err
	}
	defer release()
	return none, h.runs.SetMetadata(ctx, in.Run, in.Metadata.Metadata)
}

func (h *Hub) readTape(ctx context.Context, c hub.Caller, q hub.TapeQuery) (hub.Tape, error) {
	if q.View != "" && q.View != hub.ViewTools {
		return nil, fault.New(fault.Usage, "invalid_input", "read tape", fmt.Errorf("%.40q is not %q", q.View, hub.ViewTools))
	}
	if err := h.visible(ctx, c, q.Run); err != nil {
		return nil, err
	}
	t, err := h.runs.Tape(q.Run, q.After)
	if err != nil { // not a nil pointer in an interface
		return nil, err
	}
	if q.View == hub.ViewTools {
		v := hub.ToolView{Hub: h, Caller: c, Run: q.Run, Receipts: h.holds(c, access.JournalRead) && h.seesPolicy(c)}
		return v.Tape(t), nil
	}
	return t, nil
}

func (h *Hub) call(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Run, error) {
	if err := h.needTool(c, n.Tool); err != nil {
		return hub.Run{}, err
	}
	if n.Session != "" {
		if err := ident.Check(ident.Session, n.Session); err != nil {
			return hub.Run{}, err
		}
	}
	id, err := h.runs.Start(ctx, run.Request{Session: n.Session, User: c.User, Surface: c.Surface, Device: c.Device, Token: c.Token, Reserve: h.privileged(c),
		Steps: []hub.Step{{Tool: n.Tool, Input: n.Input}}, Budget: n.Budget, Staged: n.Staged, Parallel: n.Parallel, Key: n.IdempotencyKey, Attended: true})
	if err != nil {
		return hub.Run{}, h.named(c, err)
	}
	if err := h.runs.Answer(ctx, id); err != nil {
		if ctx.Err() != nil && n.IdempotencyKey == "" { // the caller won't ask for it again
			err = h.runs.Cancel(context.WithoutCancel(ctx), id, run.Stop{Reason: run.ReasonCallerGone, By: c.User})
		}
		if err != nil {
			return hub.Run{}, err
		}
	}
	return h.answer(context.WithoutCancel(ctx), c, id)
}

// once makes one call in the caller's name, in a run of its own, and returns when it's answered. A
// caller who goes ends it. beside may be nil.
func (h *Hub) once(ctx context.Context, c hub.Caller, session string, s hub.Step, beside func(context.Context) context.Context) (id string, err error) {
	id, err = h.runs.Start(ctx, run.Request{Session: session, User: c.User, Surface: c.Surface, Device: c.Device, Token: c.Token, Reserve: h.privileged(c),
		Steps: []hub.Step{s}, Attended: true, Beside: beside})
	if err != nil {
		return "", h.named(c, err)
	}
	if err := h.runs.Answer(ctx, id); err != nil {
		return id, h.runs.Cancel(context.WithoutCancel(ctx), id, run.Stop{Reason: run.ReasonCallerGone, By: c.User})
	}
	return id, nil
}

func (h *Hub) listApprovals(ctx context.Context, c hub.Caller, q hub.ApprovalQuery) (none hub.Page[hub.Approval], err error) {
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
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return none, err
	}
	defer release()
	// The caller isn't told the run of a reduced request, so a page of one run's requests
	// names none.
	of := q.Run != "" || q.Session != ""
	if of && !h.seesAll(c) {
		f.Reader = c.User // of the others only one that waits is left, and that is the newest
	}
	for {
		rows, err := store.Scan(ctx, h.st, func(tx *store.Tx) ([]store.Approval, error) { return tx.Approvals(f, p) })
		if err != nil {
			return none, err
		}
		v, err := pageOf(rows, p.Limit, func(a *store.Approval) int { return len(a.Request) + len(a.Detail) }, func(a *store.Approval) string { return a.ID }, func(a *store.Approval) (hub.Approval, error) {
			return h.approvalFor(ctx, c, a)
		})
		if err != nil || !of {
			return v, err
		}
		p.After = v.Next
		v.Items = slices.DeleteFunc(v.Items, func(a hub.Approval) bool { return a.Reduced })
		if n := len(v.Items); n > 0 && v.Next != "" {
			v.Next = v.Items[n-1].ID
		}
		if len(v.Items) > 0 || v.Next == "" {
			return v, nil
		}
	}
}

func (h *Hub) approvalFor(ctx context.Context, c hub.Caller, row *store.Approval) (hub.Approval, error) {
	v, err := run.ApprovalOf(row)
	if err == nil && v.State == hub.ApprovalPending {
		v.Yes = h.runs.Approvals().Yes(v.ID)
	}
	if err == nil {
		v = h.seenBy(ctx, c, v)
	}
	return v, err
}

// seenBy returns a request as the caller sees it.
func (h *Hub) seenBy(ctx context.Context, c hub.Caller, v hub.Approval) hub.Approval {
	if !h.seesRequest(ctx, c, &v) {
		return reduced(&v)
	}
	w, err := h.wordOn(ctx, c, &v)
	v.Passkey = err == nil && w.passkey
	return v
}

func (h *Hub) getApproval(ctx context.Context, c hub.Caller, id string) (hub.Approval, error) {
	ctx, release, err := h.reading(ctx, c, listBytes)
	if err != nil {
		return hub.Approval{}, err
	}
	defer release()
	v, err := h.approval(ctx, id)
	if err == nil {
		v = h.seenBy(ctx, c, v)
	}
	return v, err
}

// approvalHead reads a request without its card.
func (h *Hub) approvalHead(ctx context.Context, id string) (hub.Approval, error) {
	a, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.ApprovalHead(id) })
	if err != nil {
		return hub.Approval{}, err
	}
	v := run.ApprovalHeadOf(a)
	if v.State == hub.ApprovalPending {
		v.Yes = h.runs.Approvals().Yes(id)
	}
	return v, nil
}

// approval reads a request with its card. Its caller has taken room for that.
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

func (h *Hub) getArtifact(ctx context.Context, c hub.Caller, q hub.ArtifactQuery) (hub.Artifact, error) {
	if err := h.visible(ctx, c, q.Run); err != nil {
		return nil, err
	}
	d, err := canon.ParseDigest(q.Digest)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "open artifact", err).
			WithHint("a digest is sha256: and 64 hexadecimal digits; palyra runs show RUN prints those of a run")
	}
	holds, err := store.View(ctx, h.st, func(tx *store.Tx) (bool, error) { return tx.HoldsArtifact(d, q.Run) })
	if err != nil {
		return nil, err
	}
	if !holds {
		return nil, noSuch("artifact", q.Digest)
	}
	f, a, err := h.openArtifact(ctx, c, d)
	if err != nil {
		return nil, err
	}
	return &artifact{f, hub.ArtifactInfo{Digest: q.Digest, Size: a.Size, MediaType: a.MediaType, Created: a.Created}}, nil
}

// openArtifact hashes the content of an artifact. Its reader then holds no processor.
func (h *Hub) openArtifact(ctx context.Context, c hub.Caller, d canon.Digest) (io.ReadSeekCloser, *store.Artifact, error) {
	ctx, over, err := h.prove(ctx, c)
	if err != nil {
		return nil, nil, err
	}
	defer over()
	return h.st.OpenArtifact(ctx, d)
}

func (h *Hub) readOutput(ctx context.Context, c hub.Caller, q hub.OutputQuery) (hub.Outputs, error) {
	if q.Until != "" && q.Until != hub.UntilNow {
		return nil, fault.New(fault.Usage, "invalid_input", "read output", fmt.Errorf("%.40q is not %q", q.Until, hub.UntilNow))
	}
	principal, err := h.principalOf(ctx, c, q.Run)
	if err != nil {
		return nil, err
	}
	r, err := h.runs.Output(q, func(ctx context.Context, d canon.Digest) (io.ReadSeekCloser, error) {
		f, _, err := h.openArtifact(ctx, c, d)
		return f, err
	})
	if err != nil { // not a nil pointer in an interface
		return nil, err
	}
	return &outputs{r, h, c, q.Run, principal}, nil
}

// outputs reads for a caller who may lose the permission meanwhile.
type outputs struct {
	*run.OutputReader
	h *Hub
	c hub.Caller

	run, principal string
}

// Next implements hub.Outputs.
func (o *outputs) Next(ctx context.Context) (hub.OutputPart, error) {
	if err := o.h.ask(o.c, hub.ReadOutput.Operation); err != nil {
		return hub.OutputPart{}, err
	}
	if !o.h.sees(o.c, o.principal) {
		return hub.OutputPart{}, noSuch("run", o.run)
	}
	return o.OutputReader.Next(ctx)
}
