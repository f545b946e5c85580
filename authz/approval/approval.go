// Package approval puts one call to a person and records the answer.
//
// The person sees a [Request]; an [Approver] is a surface that can show it and come back
// with an [Answer]; [Resolve] asks and makes the [Record] that authz.Authority.Grant
// accepts. Deny is the zero value throughout: a timeout, an error, a missing approver and
// an unclear answer are all a no, and the Record says which it was.
//
//	rec := approval.Resolve(ctx, &approval.Terminal{In: tty, Out: tty, Name: "alice"}, req)
//	if !rec.Approved() { … rec.View().Answer says why … }
//
// An Approver is a person at a terminal ([Terminal]) or a [Hub], which writes the question
// into a durable [Book] and waits for the first answer.
//
// A Record is bound to one decision, one capsule digest and one policy-set digest, is good
// for one grant and expires. Only this package makes one: the zero Record approves nothing.
// The same holds if the yes came before the question: the Hub looks up a [Standing] grant,
// for a session or a time, for one capsule or for a [Pattern], and every use of it is a
// record of its own.
//
// The package doesn't protect against an approver who doesn't read, nor against a surface
// that lies about who answered. The surface authenticates the approver.
package approval

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"palyra/call"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
)

// Request is one question to a person. All text in it may come from a model;
// a surface shows it through Escape.
type Request struct {
	Decision  [16]byte      // id of the decision that asks
	Capsule   canon.Digest  // identity of what will run
	PolicySet canon.Digest  // of the set that decided
	Call      Call          //
	Timeout   time.Duration // for the answer; 0 is DefaultTimeout; at most MaxTimeout
}

// Call is what will happen, and which policies ask.
type Call call.Card

// MaxStdinHead bounds the part of a sealed input that a person is shown, in bytes.
const MaxStdinHead = 2048

// Planted is a file that other programs run or obey because it lies where it lies.
type Planted = call.CardPlanted

// Limits bound a call.
type Limits = call.CardLimits

// Operand is a file operand of the call.
type Operand = call.CardOperand

// Why is one policy that asks.
type Why = call.CardWhy

// Answer is an Approver's answer. The zero Answer denies.
type Answer struct {
	Approved bool
	Approver string // who answered, as the surface authenticated it
	Surface  string // "terminal", "console", …
	// ID names the durable record of a surface that keeps one: "apr_" and 32 hexadecimal
	// digits. Such a surface judges by itself whether an answer was in time. Default:
	// Resolve makes up an id, and judges.
	ID string

	Scope     string       // ScopeOnce, the default, or that of the standing grant that Grant names
	Grant     string       // id of the standing grant that it made or rests on; "": once
	Pattern   canon.Digest // of that grant, zero if it is for one capsule
	Approvers []string     // all who said yes, where it took more than one
	// Signed are the yeses that passkeys of those who gave them signed.
	Signed []*call.SignedYes

	Comment string // of a no, for whoever asked: foreign, at most MaxComment bytes count
}

// MaxComment bounds the part of a comment that the caller is given, in bytes.
const MaxComment = 500

// Approver is a surface that can ask a person. Ask returns when there is an
// answer, when it cannot get one (an error), or when ctx is done.
type Approver interface {
	Ask(ctx context.Context, r Request) (Answer, error)
}

// The timeouts and the lifetime of a record.
const (
	DefaultTimeout = 5 * time.Minute
	MaxTimeout     = 24 * time.Hour
	lifetime       = time.Minute // from the answer to the grant
)

// The answers of a Record. Only Approved lets a call run.
const (
	Approved    = "approved"
	Denied      = "denied"      // a person said no, or nothing clear
	Expired     = "expired"     // no approver answered in time
	Withdrawn   = "withdrawn"   // the caller gave up while waiting
	Unreachable = "unreachable" // no approver could be asked
)

// The scopes of a yes.
const (
	ScopeOnce    = "once"    // exactly this call, once
	ScopeSession = "session" // further calls of its session
	ScopeTimed   = "timed"   // further calls of its requester, for a time
)

// View is a Record as receipts and people see it.
type View struct {
	ID        string       `json:"id"` // "apr_" and 32 hex digits
	Answer    string       `json:"answer"`
	Detail    string       `json:"detail,omitempty"`  // what went wrong, where something did
	Comment   string       `json:"comment,omitempty"` // the person's, with a no; not in receipts
	Approver  string       `json:"approver"`
	Surface   string       `json:"surface"`
	Scope     string       `json:"scope"`
	Requested time.Time    `json:"requested"`
	Answered  time.Time    `json:"answered"`
	Capsule   canon.Digest `json:"capsule"`
	PolicySet canon.Digest `json:"policy_set"`
	Decision  string       `json:"decision"` // 32 hex digits
	Grant     string       `json:"grant,omitempty"`
	Pattern   canon.Digest `json:"pattern,omitzero"`
	Approvers []string     `json:"approvers,omitempty"`
	// Signed are the yeses that passkeys signed: for receipts, which are where they're looked for.
	Signed []*call.SignedYes `json:"-"`
}

// Record is one answered request. Resolve makes it; the zero Record and a nil
// one approve nothing. It must not be copied.
type Record struct {
	view     View
	asked    time.Time // with monotonic reading
	decision [16]byte
	yes      bool
	notAfter time.Time
	used     atomic.Bool
}

// The reasons why a record doesn't fit a grant.
var (
	ErrNotApproved = errors.New("approval: not approved")
	ErrMismatch    = errors.New("approval: given for another call or policy set")
	ErrStale       = errors.New("approval: expired")
	ErrUsed        = errors.New("approval: already used")
)

// View returns what is recorded. A nil Record is a denial without a question.
func (r *Record) View() View {
	if r == nil {
		return View{Answer: Denied}
	}
	return r.view
}

// Approved reports whether a person said yes. It is for display; Use decides.
func (r *Record) Approved() bool { return r != nil && r.yes }

// Use consumes r for a grant of exactly this decision, capsule and policy set.
func (r *Record) Use(decision [16]byte, capsule, policySet canon.Digest) error {
	switch {
	case !r.Approved():
		return ErrNotApproved
	case r.decision != decision || r.view.Capsule != capsule || r.view.PolicySet != policySet || capsule.IsZero():
		return ErrMismatch
	case time.Now().After(r.notAfter):
		return ErrStale
	case r.used.Swap(true):
		return ErrUsed
	}
	return nil
}

// Resolve puts q to a and records the answer. It always returns a record. A nil approver
// gives one that says that no approver could be reached; so does a question whose card
// would be longer than MaxCard, because a card leaves nothing out. A yes that arrives
// together with the end of the time is a no, unless the surface has durably recorded that
// it was in time. Record and receipt then say the same, and a caller who gave up still runs
// nothing.
func Resolve(ctx context.Context, a Approver, q Request) *Record {
	r := &Record{decision: q.Decision, asked: time.Now()}
	var id [16]byte
	rand.Read(id[:])
	r.view = View{
		ID: "apr_" + hex.EncodeToString(id[:]), Answer: Denied, Scope: ScopeOnce, Requested: spelled(r.asked),
		Capsule: q.Capsule, PolicySet: q.PolicySet, Decision: hex.EncodeToString(q.Decision[:]),
	}
	if a == nil {
		return r.close(Unreachable, "no approver reachable")
	}
	if n := len(Card(q)); n > MaxCard {
		return r.close(Unreachable, fmt.Sprintf("no person can read all of it: a card of %d bytes, at most %d; propose less at a time", n, MaxCard))
	}
	limit := q.Timeout
	switch {
	case limit <= 0:
		limit = DefaultTimeout
	case limit > MaxTimeout:
		limit = MaxTimeout
	}
	q.Timeout = limit
	asked, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	ans, err := ask(asked, a, q)
	r.view.Approver, r.view.Surface = ans.Approver, ans.Surface
	if ans.ID != "" {
		r.view.ID = ans.ID
	}
	if ans.Approved {
		r.view.Approvers, r.view.Signed = ans.Approvers, ans.Signed
	}
	if ans.Approved && ans.Scope != "" {
		r.view.Scope, r.view.Grant, r.view.Pattern = ans.Scope, ans.Grant, ans.Pattern
	}
	switch {
	case ans.ID != "" && err == nil:
		// A durable answer counts, even if ctx has ended since: the gate looks at ctx before
		// it runs anything.
	case errors.Is(ctx.Err(), context.Canceled):
		return r.close(Withdrawn, "the caller gave up")
	case asked.Err() != nil:
		return r.close(Expired, "nobody answered in time")
	}
	switch {
	case err != nil:
		text := err.Error()
		if hint := fault.HintOf(err); hint != "" {
			text += "; " + hint
		}
		return r.close(Unreachable, text)
	case !ans.Approved:
		r.view.Comment = clip(ans.Comment)
		return r.close(Denied, "")
	}
	r.yes, r.notAfter = true, time.Now().Add(lifetime)
	return r.close(Approved, "")
}

// clip bounds a comment, at a character.
func clip(s string) string {
	s = strings.ToValidUTF8(s, "\ufffd")
	for n := MaxComment; len(s) > MaxComment; n-- {
		if utf8.RuneStart(s[n]) {
			s = s[:n]
		}
	}
	return s
}

// ask calls the approver. A panic in a surface counts as an unreachable approver; the call
// must not lose its receipt.
func ask(ctx context.Context, a Approver, q Request) (ans Answer, err error) {
	defer func() {
		if p := recover(); p != nil {
			ans, err = Answer{}, fmt.Errorf("approver panicked: %v", p)
		}
	}()
	return a.Ask(ctx, q)
}

func (r *Record) close(answer, detail string) *Record {
	r.view.Answer, r.view.Detail, r.view.Answered = answer, detail, spelled(clock.Since(r.asked, time.Now()))
	return r
}

// spelled returns a time as receipts spell it: UTC, whole milliseconds.
func spelled(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
