package approval

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
)

// Pending is the state of an Entry that has no answer yet. The others are the
// answers of a Record; all of those are final.
const Pending = "pending"

// Subject is the place in a session that a request belongs to.
type Subject struct {
	Run       string
	Session   string
	Step      int
	CallID    string
	Requester string // principal that wants the call, as its surface authenticated it: "uid:1000"
}

// Entry is a request as a Book keeps it.
type Entry struct {
	Subject
	ID       string // "apr_" and 32 hexadecimal digits
	Request  Request
	Scope    string
	State    string // Pending, Approved, Denied, Expired or Withdrawn
	Version  int64  // counts the changes from 1
	Approver string // principal, as its surface authenticated it
	Surface  string
	Detail   string
	Created  time.Time
	Expires  time.Time // an answer after it does not count
	Answered time.Time // zero: Pending
}

// Resolution is how an Entry ends.
type Resolution struct {
	State    string // not Pending
	Approver string // must be there for Approved and Denied
	Surface  string
	Detail   string
}

// Book keeps entries durably.
type Book interface {
	// Open adds a pending entry. It returns when the entry is durable.
	Open(ctx context.Context, e *Entry) error
	// Resolve ends a pending entry if version is its current one, and returns
	// what it is now when that is durable. If somebody was first it is fault.Busy
	// "version_conflict", and a Book may return the entry with it.
	Resolve(ctx context.Context, id string, version int64, r Resolution) (*Entry, error)
	// Entry returns an entry without its Request, or fault.NotFound.
	Entry(ctx context.Context, id string) (*Entry, error)
	// Pending lists what has no answer.
	Pending(ctx context.Context) ([]Entry, error)
}

// Hub puts questions down in a Book and waits until any surface answers them.
// One durable record per question, answered once: of two answers that race the
// Book takes one, and the other is told so.
//
// An Entry is answered by [Hub.Resolve], ends as Expired when its time is over
// and as Withdrawn when the call is cancelled. The sealed call waits in memory:
// what was pending in an earlier process can never run, and [Hub.Expire], called
// before the first question, says so in the Book.
//
// Hub is safe for concurrent use.
type Hub struct {
	book Book
	opt  HubOptions

	mu      sync.Mutex
	waiting map[string]chan Entry // of capacity 1; guarded by mu
}

// HubOptions tune a Hub. The zero value is the strict one.
type HubOptions struct {
	// AllowSelf lets whoever asked for a call approve it. One credential is then
	// enough for a sensitive call.
	AllowSelf bool
	// TestOnlyStep is called at the named steps "approval:asked" and
	// "approval:answered", so that a test can kill the process there.
	TestOnlyStep func(name string)
}

// NewHub returns a Hub over a Book.
func NewHub(b Book, o HubOptions) *Hub {
	if o.TestOnlyStep == nil {
		o.TestOnlyStep = func(string) {}
	}
	return &Hub{book: b, opt: o, waiting: make(map[string]chan Entry)}
}

// For returns the Approver of one call.
func (h *Hub) For(s Subject) Approver { return &desk{h, s} }

// desk is a Hub for one call.
type desk struct {
	hub     *Hub
	subject Subject
}

// Ask implements Approver.
func (d *desk) Ask(ctx context.Context, q Request) (Answer, error) {
	h := d.hub
	now := time.Now().UTC()
	e := &Entry{Subject: d.subject, ID: ident.New(ident.Approval), Request: q, Scope: ScopeOnce, State: Pending, Version: 1, Created: now, Expires: now.Add(q.Timeout)}
	if end, ok := ctx.Deadline(); ok { // the caller's time may be over before
		e.Expires = end.UTC()
	}
	// The waiter stands there before the question can be seen.
	answered := make(chan Entry, 1)
	h.mu.Lock()
	h.waiting[e.ID] = answered
	h.mu.Unlock()
	defer func() {
		h.mu.Lock()
		delete(h.waiting, e.ID)
		h.mu.Unlock()
	}()
	if err := h.book.Open(ctx, e); err != nil {
		return Answer{}, err
	}
	h.opt.TestOnlyStep("approval:asked")
	select {
	case got := <-answered:
		return got.answer(), nil
	case <-ctx.Done():
	}
	got, err := h.end(ctx, e)
	if err != nil {
		return Answer{ID: e.ID}, err
	}
	if got.State == Approved || got.State == Denied { // the answer was first
		return got.answer(), nil
	}
	return Answer{ID: e.ID}, ctx.Err()
}

// end closes the entry of a question whose ctx is over and returns what it has
// become, which is somebody's answer if that was first.
func (h *Hub) end(ctx context.Context, e *Entry) (*Entry, error) {
	r := Resolution{State: Withdrawn, Detail: "the caller gave up"}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r = Resolution{State: Expired, Detail: "nobody answered in time"}
	}
	ctx = context.WithoutCancel(ctx)
	got, err := h.book.Resolve(ctx, e.ID, e.Version, r)
	if fault.ReasonOf(err) == reasonConflict {
		return h.book.Entry(ctx, e.ID)
	}
	return got, err
}

// By is who answers, as the surface authenticated them.
type By struct {
	Principal string
	Surface   string
}

// reasonConflict is the reason code of a change that was made for another version.
const reasonConflict = "version_conflict"

// Resolve answers a pending entry in the name of by and returns it as it is
// then. version is the one that the answer was made for, 0 whichever there is.
//
// It is fault.Busy "version_conflict" if the entry has an answer, is over or has
// changed, fault.Denied "self_approval" if by asked for the call and now says yes to it,
// fault.NotApproved "approval_expired" after its time, and fault.NotApproved
// "approval_abandoned" if no call waits for it any more. In all of these the
// answer changed nothing.
func (h *Hub) Resolve(ctx context.Context, id string, version int64, by By, approve bool, comment string) (*Entry, error) {
	op := fmt.Sprintf("answer approval %.80q", id)
	if by.Principal == "" {
		return nil, fault.New(fault.Denied, "no_approver", op, errors.New("nobody is known to answer"))
	}
	e, err := h.book.Entry(ctx, id)
	if err != nil {
		return nil, err
	}
	if version == 0 {
		version = e.Version
	}
	switch {
	case e.State != Pending || e.Version != version:
		return e, fault.New(fault.Busy, reasonConflict, op, fmt.Errorf("it is %s", e.State)).WithHint("read it again")
	case approve && e.Requester == by.Principal && !h.opt.AllowSelf:
		return e, fault.New(fault.Denied, "self_approval", op, errors.New("whoever asked for a call may not approve it")).
			WithHint("another principal with the permission to approve must answer")
	case !time.Now().Before(e.Expires):
		return e, fault.New(fault.NotApproved, "approval_expired", op, nil)
	}
	h.mu.Lock()
	waiter := h.waiting[id]
	h.mu.Unlock()
	if waiter == nil {
		return e, fault.New(fault.NotApproved, "approval_abandoned", op, errors.New("no call waits for it"))
	}
	r := Resolution{State: Denied, Approver: by.Principal, Surface: by.Surface, Detail: comment}
	if approve {
		r.State = Approved
	}
	got, err := h.book.Resolve(ctx, id, version, r)
	if err != nil {
		return got, err
	}
	h.opt.TestOnlyStep("approval:answered")
	waiter <- *got // the one that won; its place is free
	return got, nil
}

// Expire ends everything that an earlier process left pending and returns how
// much that was. It must be called before the first question.
func (h *Hub) Expire(ctx context.Context) (int, error) {
	left, err := h.book.Pending(ctx)
	if err != nil {
		return 0, err
	}
	for i, e := range left {
		_, err := h.book.Resolve(ctx, e.ID, e.Version, Resolution{State: Expired, Detail: "the daemon restarted while it waited"})
		if err != nil {
			return i, err
		}
	}
	return len(left), nil
}

// Waiting returns how many calls wait for an answer.
func (h *Hub) Waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

// answer is what the entry tells the call that waited. Only Approved is a yes.
func (e *Entry) answer() Answer {
	return Answer{ID: e.ID, Approved: e.State == Approved, Approver: e.Approver, Surface: e.Surface}
}
