package approval

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"palyra/call"
	"palyra/internal/clock"
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

	// Yes are the approvers who have said yes while it is pending and needs more.
	Yes []string

	scoped *Standing         // that its yes asked for; on its way to the call that waits
	signed []*call.SignedYes // so, the yeses that passkeys signed
}

// Resolution is the end of an Entry.
type Resolution struct {
	State    string // not Pending
	Approver string // must be there for Approved and Denied
	Surface  string
	Detail   string
	Scope    string // of a yes; "" leaves it
}

// Book keeps entries durably.
type Book interface {
	// Open adds a pending entry. It returns when the entry is durable.
	Open(ctx context.Context, e *Entry) error
	// Resolve ends a pending entry if version is its current one, and returns
	// what it is now when that is durable. If somebody was first it is fault.Busy
	// with ErrConflict, and a Book may return the entry with it.
	Resolve(ctx context.Context, id string, version int64, r Resolution) (*Entry, error)
	// Cover adds an entry that was approved before it was asked, by a standing
	// grant. It returns when that is durable.
	Cover(ctx context.Context, e *Entry, r Resolution) error
	// Entry returns an entry without its Request, or fault.NotFound.
	Entry(ctx context.Context, id string) (*Entry, error)
	// Pending lists the unanswered entries.
	Pending(ctx context.Context) ([]Entry, error)
}

// Hub writes questions into a Book and waits until any surface answers them. Each question
// has one durable record and gets one answer: of two racing answers the Book takes one, and
// the other approver is told so.
//
// An Entry is answered by [Hub.Resolve], ends as Expired when its time is over and as
// Withdrawn when the call is cancelled. The sealed call waits in memory, so an earlier
// process's pending calls can never run. [Hub.Expire], called before the first question,
// says so in the Book.
//
// A yes may stand for further calls: see [Standing]. For looks for one before it
// asks; each use of it is an entry of its own.
//
// Hub is safe for concurrent use.
type Hub struct {
	book  Book
	opt   HubOptions
	shelf shelf

	mu      sync.Mutex
	waiting map[string]*waiter // guarded by mu
}

// waiter is a call that waits for an answer.
type waiter struct {
	entry    Entry      // as it was asked; immutable
	answered chan Entry // of capacity 1

	mu   sync.Mutex // held through an answer: they are judged one after the other
	yes  []vote     // so far, where it takes more than one; guarded by mu
	done bool       // one has counted; guarded by mu
}

// Question is the question to HubOptions.Judge: may By say yes to this?
type Question struct {
	By By
	// Against says that By says no. An approver who may not say yes to a call, alone or
	// with others, may not end it for others either.
	Against bool
	Subject Subject
	Request *Request
	Scope   string
	Pattern bool // to every call that fits a pattern
	// Approvers are those who have said yes, By among them. One is the usual number.
	Approvers []string
	// Use says that By said yes before, and a call is about to run because of it.
	Use bool
}

// Signature is a passkey's over the digest of a statement, as WebAuthn gives it.
type Signature struct{ Credential, Data, Client, Signature []byte }

// Verdict is Judge's answer. The zero Verdict is no.
type Verdict int

// The verdicts.
const (
	No   Verdict = iota // with an error that says why
	More                // it counts, and another person must say yes as well
	Yes
)

// HubOptions tune a Hub. The zero value is the strict one.
type HubOptions struct {
	// AllowSelf lets the requester of a call approve it. One credential is then enough for
	// a sensitive call.
	AllowSelf bool
	// Judge says whether an answer counts, by the permission that By holds at this moment
	// and by policy. A no counts unless it says No. The approver gets its error. A Judge
	// also decides who may approve their own calls, and may read AllowSelf for that.
	// Default: every caller but the requester.
	Judge func(ctx context.Context, q Question) (Verdict, error)
	// Clock is the host's. Default: a new one.
	Clock *clock.Clock
	// Record puts an act into the journal and returns when it is durable.
	// Default: nowhere.
	Record func(ctx context.Context, act, subject string, by By, detail map[string]string) error
	// Quota refuses another entry in the journal for a yes that needs further ones.
	// Default: there is no quota.
	Quota func(principal string) error
	// Verify completes the statement of a yes with the origin of the pages where passkeys sign,
	// and returns it with the signature if a passkey of by's made that over it. Default: no
	// signature holds.
	Verify func(ctx context.Context, by By, y call.Yes, s *Signature) (*call.SignedYes, error)
	// TestOnlyStep is called at the named steps "approval:asked" and
	// "approval:answered", so that a test can kill the process there.
	TestOnlyStep func(name string)
}

// NewHub returns a Hub over a Book.
func NewHub(b Book, o HubOptions) *Hub {
	if o.TestOnlyStep == nil {
		o.TestOnlyStep = func(string) {}
	}
	if o.Clock == nil {
		o.Clock = clock.New()
	}
	return &Hub{book: b, opt: o, shelf: shelf{clock: o.Clock}, waiting: make(map[string]*waiter)}
}

func (h *Hub) record(ctx context.Context, act, subject string, by By, detail map[string]string) error {
	if h.opt.Record == nil {
		return nil
	}
	return h.opt.Record(ctx, act, subject, by, detail)
}

func (h *Hub) judge(ctx context.Context, q Question) (Verdict, error) {
	if h.opt.Judge != nil {
		return h.opt.Judge(ctx, q)
	}
	if q.By.Principal == q.Subject.Requester && !h.opt.AllowSelf && !q.Against {
		return No, ErrSelf()
	}
	return Yes, nil
}

// ErrSelf is fault.Denied "self_approval".
func ErrSelf() error {
	return fault.New(fault.Denied, "self_approval", "answer approval", errors.New("the requester of a call may not approve it")).
		WithHint(fault.Do("self_approval"))
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
	now := h.opt.Clock.Now()
	if ans, ok, err := h.covered(ctx, d.subject, &q, now); ok || err != nil {
		return ans, err
	}
	e := &Entry{Subject: d.subject, ID: ident.New(ident.Approval), Request: q, Scope: ScopeOnce, State: Pending, Version: 1, Created: now, Expires: now.Add(q.Timeout)}
	if end, ok := ctx.Deadline(); ok {
		// The caller's time may be over before, and its date may be of a clock that was set
		// since.
		e.Expires = now.Add(max(time.Until(end), time.Nanosecond))
	}
	// The waiter stands there before the question can be seen.
	w := &waiter{entry: *e, answered: make(chan Entry, 1)}
	h.mu.Lock()
	h.waiting[e.ID] = w
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
	case got := <-w.answered:
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

// covered answers a question that a standing grant covers. All who gave it must still be
// allowed to give it, at this moment and for this call.
func (h *Hub) covered(ctx context.Context, sub Subject, q *Request, now time.Time) (Answer, bool, error) {
	g := h.shelf.take(&sub, q, func(g *Standing) bool {
		for _, by := range g.Voters {
			v, err := h.judge(ctx, Question{By: by, Subject: sub, Request: q, Scope: g.Scope, Pattern: g.Pattern != nil, Approvers: g.Approvers, Use: true})
			if v != Yes || err != nil {
				return false
			}
		}
		return len(g.Voters) > 0
	})
	if g == nil {
		return Answer{}, false, nil
	}
	e := &Entry{Subject: sub, ID: ident.New(ident.Approval), Request: *q, Scope: g.Scope, State: Pending, Version: 1, Created: now, Expires: now.Add(q.Timeout)}
	r := Resolution{State: Approved, Approver: g.By.Principal, Surface: g.By.Surface, Scope: g.Scope, Detail: "by grant " + g.ID}
	if err := h.book.Cover(ctx, e, r); err != nil {
		return Answer{}, false, err
	}
	if !h.shelf.has(g.Requester, g.ID) {
		return Answer{}, false, fault.New(fault.NotApproved, "not_approved", "use grant", fmt.Errorf("%s ended meanwhile", g.ID))
	}
	return Answer{ID: e.ID, Approved: true, Approver: g.By.Principal, Surface: g.By.Surface, Scope: g.Scope, Grant: g.ID, Pattern: g.PatternDigest,
		Approvers: several(g.Approvers)}, true, nil
}

// several is nil for a single name: the record has that one anyway.
func several(names []string) []string {
	if len(names) < 2 {
		return nil
	}
	return names
}

// end closes the entry of a question whose ctx is over. It returns the entry as it is now,
// with an approver's answer if that was first.
func (h *Hub) end(ctx context.Context, e *Entry) (*Entry, error) {
	r := Resolution{State: Withdrawn, Detail: "the caller gave up"}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		r = Resolution{State: Expired, Detail: "nobody answered in time"}
	}
	ctx = context.WithoutCancel(ctx)
	got, err := h.book.Resolve(ctx, e.ID, e.Version, r)
	if errors.Is(err, ErrConflict) {
		return h.book.Entry(ctx, e.ID)
	}
	return got, err
}

// By is the approver, as the surface authenticated them.
type By struct {
	Principal string
	Surface   string
	Token     string // id of the token that was shown, "" for none
	Device    string
	// Passkey is the id of the one that signed this very answer, "" for none. Hub.Resolve sets it.
	Passkey string
}

// ErrConflict is in the error of a Book for a change that was made for another version.
var ErrConflict = errors.New("another request changed it first")

// Resolve answers a pending entry in the name of by and returns the new entry, which is
// still pending if policy also wants another person's yes. version is the one that the
// answer was made for; 0 means any.
//
// It is fault.Busy "version_conflict" if the entry has an answer, is over or has changed,
// fault.Denied "self_approval" if by asked for the call and now says yes to it,
// fault.NotApproved "approval_expired" after its time, and fault.NotApproved
// "approval_expired" if no call waits for it any more. In all of these cases the answer
// changed nothing. If the journal doesn't take a yes for further calls, it is a yes to this
// call alone, and Resolve returns the journal's error.
func (h *Hub) Resolve(ctx context.Context, id string, version int64, by By, r Reply) (*Entry, error) {
	op := fmt.Sprintf("answer approval %.80q", id)
	if by.Principal == "" {
		return nil, fault.New(fault.Denied, "no_approver", op, errors.New("no approver is named"))
	}
	e, err := h.book.Entry(ctx, id)
	if err != nil {
		return nil, err
	}
	if version == 0 {
		version = e.Version
	}
	w := h.waiter(id)
	switch {
	case e.State != Pending || e.Version != version:
		return e, fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("it is %s", e.State)).WithHint("read it again")
	case !h.opt.Clock.Now().Before(e.Expires): // a clock that was set forward; the call itself waits by another
		return e, fault.New(fault.NotApproved, "approval_expired", op, nil)
	case w == nil:
		return e, fault.New(fault.NotApproved, "approval_expired", op, errors.New("no call waits for it"))
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.done {
		return e, fault.New(fault.Busy, "version_conflict", op, errors.New("it has an answer")).WithHint("read it again")
	}
	end := Resolution{State: Denied, Approver: by.Principal, Surface: by.Surface, Detail: r.Comment}
	var g *Standing
	var voters []By
	var names []string
	if !r.Approve {
		q := w.question(by, terms{scope: ScopeOnce}, []By{by})
		q.Against = true
		switch verdict, err := h.judge(ctx, q); {
		case err != nil:
			return e, err
		case verdict == No:
			return e, fault.New(fault.Denied, "not_permitted", op, nil)
		}
	}
	var signed []*call.SignedYes
	if r.Approve {
		var more bool
		by.Passkey = ""
		if g, voters, signed, more, err = h.vote(ctx, w, &by, version, &r); err != nil {
			return e, err
		}
		names = namesOf(voters)
		if more {
			e.Yes = names
			return e, nil
		}
		end.State, end.Scope = Approved, ScopeOnce
		if g != nil {
			end.Scope = g.Scope
		}
		if len(names) > 1 {
			end.Detail = strings.TrimSpace("yes of " + strings.Join(names, ", ") + ". " + r.Comment)
		}
		if len(signed) > 0 {
			end.Detail = strings.TrimSpace("signed with " + passkeysOf(signed) + ". " + end.Detail)
		}
	}
	if g != nil {
		h.shelf.reserve(g)
	}
	got, err := h.book.Resolve(ctx, id, version, end)
	if err != nil {
		if g != nil {
			h.shelf.release(g)
		}
		return got, err
	}
	w.done = true
	h.opt.TestOnlyStep("approval:answered")
	out := *got
	out.Yes, out.signed = names, signed
	if g != nil {
		v := *g
		v.By, v.Voters, v.Approvers, v.Created, v.signed = by, voters, names, got.Answered, signatureOf(signed, by.Principal)
		life := w.life(g, r.For)
		v.Expires, v.due = got.Answered.Add(life), h.opt.Clock.In(life)
		if err = h.stand(context.WithoutCancel(ctx), g, v); err == nil && h.shelf.has(v.Requester, v.ID) {
			out.scoped = g
		}
	}
	w.answered <- out // the one that won; its place is free
	return got, err
}

// stand makes the reserved g stand as v: first in the journal, so that no receipt names a
// grant that the journal lacks. A grant that was taken away meanwhile doesn't stand, and
// the journal says so.
func (h *Hub) stand(ctx context.Context, g *Standing, v Standing) error {
	if err := h.record(ctx, "approval.grant", v.ID, v.By, v.detail()); err != nil {
		h.shelf.release(g)
		return err
	}
	if h.shelf.put(g, v) {
		return nil
	}
	return h.record(ctx, "approval.revoke", v.ID, v.By, map[string]string{"approval": v.Approval, "why": "grants were taken away while it was given"})
}

// life returns how long a grant stands.
func (w *waiter) life(g *Standing, asked time.Duration) time.Duration {
	if g.Scope == ScopeTimed {
		return asked
	}
	return MaxStanding
}

// Expire ends every entry that an earlier process left pending and returns their number.
// Call it before the first question.
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

// waiter returns the call that waits for the answer to a question, or nil.
func (h *Hub) waiter(id string) *waiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.waiting[id]
}

// Asked returns the request of a question whose call waits, as it is in memory.
func (h *Hub) Asked(id string) (r Request, ok bool) {
	w := h.waiter(id)
	if w == nil {
		return Request{}, false
	}
	return w.entry.Request, true
}

// Waiting returns how many calls wait for an answer.
func (h *Hub) Waiting() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.waiting)
}

// answer returns the entry's answer for the waiting call. Only Approved is a yes.
func (e *Entry) answer() Answer {
	a := Answer{ID: e.ID, Approved: e.State == Approved, Approver: e.Approver, Surface: e.Surface, Approvers: several(e.Yes), Signed: e.signed}
	if e.State == Denied {
		a.Comment = e.Detail
	}
	if g := e.scoped; g != nil && a.Approved {
		a.Scope, a.Grant, a.Pattern = g.Scope, g.ID, g.PatternDigest
	}
	return a
}
