// Package approval puts one call to a person and records the answer.
//
// A [Request] is what the person sees; an [Approver] is a surface that can show
// it and come back with an [Answer]; [Resolve] asks and makes the [Record] that
// authz.Authority.Grant accepts. Deny is the zero value throughout: a timeout,
// an error, a missing approver and an unclear answer are all a no, and each is
// recorded as what it was.
//
//	rec := approval.Resolve(ctx, &approval.Terminal{In: tty, Out: tty, Name: "alice"}, req)
//	if !rec.Approved() { … rec.View().Answer says why … }
//
// An Approver is a person at a terminal ([Terminal]) or a [Hub], which puts the
// question down in a durable [Book] and waits for whoever answers first.
//
// A Record is bound to one decision, one capsule digest and one policy-set
// digest, is good for one grant and expires. It cannot be made elsewhere: the
// zero Record approves nothing. That holds as well where the yes came before the
// question: a [Standing] grant, for a session or a time, for one capsule or for a
// [Pattern], is looked up by the Hub, and every use of it is a record of its own.
//
// What it does not protect against: an approver who does not read, and a
// surface that lies about who answered. Authenticating the approver is the
// surface's work.
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

	"palyra/internal/canon"
	"palyra/internal/clock"
)

// Request is one question to a person. All text in it may come from a model;
// a surface shows it through Escape.
type Request struct {
	Decision  [16]byte      // id of the decision that asks
	Capsule   canon.Digest  // identity of what will run
	PolicySet canon.Digest  // of the set that decided
	Principal string        // who wants it, `Palyra::User::"alice"`
	Tool      string        // "process.run"
	Call      Call          // what will happen
	Why       []Why         // which policies ask, and their reasons
	Timeout   time.Duration // for the answer; 0 is DefaultTimeout, more than MaxTimeout is cut to it
}

// Call is the part of a capsule that a person judges.
type Call struct {
	Argv         []string     // as the program will see it
	Executable   string       // resolved path
	Digest       canon.Digest // of the executable
	Script       string       // path of a #! script; Executable is then its interpreter
	ScriptDigest canon.Digest
	Operands     []Operand // files named in arguments, pinned
	EnvNames     []string  // of the whole environment
	EnvChanged   []string  // "NAME=VALUE" of each variable that does not have the value that every call's has
	Cwd          string    //
	Workspace    string    // host directory; "" is an empty private one
	ReadOnly     bool      // the workspace
	Stdin        string    // "none", "sealed" or "stream"
	EgressHosts  []string  //
	Capabilities []string  //
	Tier         string    // floor
	Limits       string    // one line, "wall 30s, memory 512 MiB"

	// For patterns and for policy's word on the answer.
	EnvDigest   canon.Digest // of the whole environment
	StdinDigest canon.Digest // of a sealed one
	StdinSize   int64        // bytes of a sealed one
	StdinHead   string       // its first MaxStdinHead bytes, as they are: foreign
	Network     string       // "fresh" or "void"; neither leads anywhere
	Bounds      Limits       //
	Kind        string       // of the program: "shell", "interpreter", "loader", "wrapper" or "other"; "" is unknown
	System      bool         // every file of the program is root's, in root's folders, writable by nobody else
	Sensitive   bool         // the tool is declared so
	Loose       []string     // arguments that name something that is not held, as the program sees it
	Absent      []string     // arguments that name nothing yet
	Libraries   []string     // places that are not the system's, where the program's loader looks for libraries
	Folders     []string     // arguments that name folders
	Planted     []Planted    // what a built-in tool is about to write where other programs run or obey it
}

// MaxStdinHead is how many bytes of a sealed input a person is shown.
const MaxStdinHead = 2048

// Planted is a file that other programs run or obey because it lies where it lies.
type Planted struct {
	Path string // as the tool was given it
	Kind string // "hook", "editor", "agent", …: package toolproto lists them
	Why  string // "git runs it, or what it names, as a hook"
}

// Limits bound a call: wall and cpu in nanoseconds, memory, output, file_size and
// disk in bytes.
type Limits struct {
	Wall      int64 `json:"wall"`
	CPU       int64 `json:"cpu"`
	Memory    int64 `json:"memory"`
	PIDs      int64 `json:"pids"`
	Output    int64 `json:"output"`
	FileSize  int64 `json:"file_size"`
	OpenFiles int64 `json:"open_files"`
	Disk      int64 `json:"disk"`
	Inodes    int64 `json:"inodes"`
}

// within reports whether no limit of l is above that of m.
func (l *Limits) within(m *Limits) bool {
	return l.Wall <= m.Wall && l.CPU <= m.CPU && l.Memory <= m.Memory && l.PIDs <= m.PIDs && l.Output <= m.Output &&
		l.FileSize <= m.FileSize && l.OpenFiles <= m.OpenFiles && l.Disk <= m.Disk && l.Inodes <= m.Inodes
}

// Operand is a file operand of the call.
type Operand struct {
	Path   string
	Digest canon.Digest
}

// Why is one policy that asks.
type Why struct {
	Policy string // id
	Reason string // its @reason
	Where  string // "30-sensitive.cedar:29"
}

// Answer is what an Approver says. The zero Answer denies.
type Answer struct {
	Approved bool
	Approver string // who answered, as the surface authenticated it
	Surface  string // "terminal", "console", …
	// ID names the durable record of a surface that keeps one: "apr_" and 32
	// hexadecimal digits. Such a surface judges by itself whether an answer was
	// in time. Default: Resolve makes one up, and judges.
	ID string

	Scope     string       // ScopeOnce, the default, or that of the standing grant that Grant names
	Grant     string       // id of the standing grant that this answer made or rests on; "" for once
	Pattern   canon.Digest // of that grant, zero if it is for one capsule
	Approvers []string     // all who said yes, where it took more than one

	Comment string // of a no, for whoever asked: foreign, at most MaxComment bytes count
}

// MaxComment is how much of a comment the caller is given, in bytes.
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
	Expired     = "expired"     // nobody answered in time
	Withdrawn   = "withdrawn"   // the caller gave up while waiting
	Unreachable = "unreachable" // nobody could be asked
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
	Comment   string       `json:"comment,omitempty"` // what the person said with a no; not in receipts
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

// The reasons for which a record is no good for a grant.
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

// Resolve puts q to a and records the answer. It always returns a record; a nil
// approver gives one that says nobody could be reached, and so does a question
// whose card would be longer than MaxCard: nothing is left out of one. A yes that
// arrives together with the end of the time is a no, unless the surface has put
// down durably that it was in time: record and receipt then say the same, and the
// caller who gave up runs nothing all the same.
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
		return r.close(Unreachable, fmt.Sprintf("nobody can read all of it: a card of %d bytes, at most %d; propose less at a time", n, MaxCard))
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
		r.view.Approvers = ans.Approvers
	}
	if ans.Approved && ans.Scope != "" {
		r.view.Scope, r.view.Grant, r.view.Pattern = ans.Scope, ans.Grant, ans.Pattern
	}
	switch {
	case ans.ID != "" && err == nil: // an answer that is on record
	case errors.Is(ctx.Err(), context.Canceled):
		return r.close(Withdrawn, "the caller gave up")
	case asked.Err() != nil:
		return r.close(Expired, "nobody answered in time")
	}
	switch {
	case err != nil:
		return r.close(Unreachable, err.Error())
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

// ask calls the approver; a panic in a surface is an approver that could not be
// reached, not a reason to lose the call's receipt.
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

// spelled is a time as receipts spell it: UTC, whole milliseconds.
func spelled(t time.Time) time.Time { return t.UTC().Truncate(time.Millisecond) }
