// Package fault gives every failure that crosses a package or process border a
// number and a reason code.
//
// Callers act on the [Kind]: the CLI maps it to an exit status, a transport to an HTTP or
// gRPC code. A reason code is finer, stable and meant for machines ("policy_denied",
// "userns_unavailable"). The text is for people. An [Error] must not hold a secret, an
// argument or a tool's output. The caller quotes foreign text with %q, and only if it names
// the thing.
//
//	return fault.New(fault.Refused, "userns_unavailable", "start cell", err).
//		WithHint("set /proc/sys/user/max_user_namespaces above 0")
//
// The package doesn't hide errors: the cause stays reachable through Unwrap.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind is the class of a failure. The numbers go over the wire; they are
// append-only and never reused. Zero is Internal: an unclassified failure is
// our bug, not the caller's.
type Kind uint16

// The kinds. The comment names the exit status that the CLI gives them when
// they come from an administrative command / from palyra exec.
const (
	Internal    Kind = 0  // our own bug or an unclassified failure; 1 / 125
	Usage       Kind = 1  // malformed request, flag or input; 2 / 125
	NotFound    Kind = 2  // the named thing does not exist; 1 / 127
	NotExec     Kind = 3  // the named thing is not something that can be executed; 1 / 125
	Denied      Kind = 4  // policy said no; 4 / 126
	NotApproved Kind = 5  // an approver said no, or none could be asked; 5 / 126
	Refused     Kind = 6  // the host cannot enforce what the call needs; 7 / 125
	Integrity   Kind = 7  // a signature, digest, proof or log does not check; 8 / 125
	BadState    Kind = 8  // state directory or configuration is unsafe or unreadable; 78 / 125
	Busy        Kind = 9  // another process holds it; try again; 75 / 125
	Unavailable Kind = 10 // a resource ran out (disk, descriptors); try again; 75 / 125
	Timeout     Kind = 11 // a deadline passed; 124 / 124
	Canceled    Kind = 12 // the caller gave up; 130 / 130
	Unsupported Kind = 13 // this platform has no such mechanism; 7 / 125
)

var names = [...]string{"internal", "usage", "not_found", "not_executable", "denied", "not_approved", "refused",
	"integrity", "bad_state", "busy", "unavailable", "timeout", "canceled", "unsupported"}

// String returns the kind's name, as it appears in JSON.
func (k Kind) String() string {
	if int(k) < len(names) {
		return names[k]
	}
	return fmt.Sprintf("kind_%d", uint16(k))
}

// Error is a failure with its class. Make one with New.
type Error struct {
	Kind   Kind
	Reason string // a code of Reasons
	Op     string // the operation and the thing, "open journal \"/x\""
	Hint   string // what a person can do about it; may be empty
	Err    error  // the cause; may be nil
}

// New returns an Error. op names the operation and the thing; err may be nil.
func New(k Kind, reason, op string, err error) *Error {
	return &Error{Kind: k, Reason: reason, Op: op, Err: err}
}

// WithHint returns a copy of e with the hint set.
func (e *Error) WithHint(hint string) *Error {
	c := *e
	c.Hint = hint
	return &c
}

// Error returns "op: cause", or "op: reason" without a cause. A cause that already names
// the same operation, as a daemon's answer to its client does, doesn't get it twice.
func (e *Error) Error() string {
	if e.Err == nil {
		return e.Op + ": " + e.Reason
	}
	cause := e.Err.Error()
	if strings.HasPrefix(cause, e.Op+": ") {
		return cause
	}
	return e.Op + ": " + cause
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Mark returns err with its text and chain, in which errors.Is finds sentinel, too.
func Mark(err, sentinel error) error { return marked{err, sentinel} }

type marked struct {
	error
	sentinel error
}

func (m marked) Is(target error) bool { return target == m.sentinel }
func (m marked) Unwrap() error        { return m.error }

// KindOf returns the kind of the first Error in err's chain, Internal if none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Kind
	}
	return Internal
}

// ReasonOf returns the reason code of the first Error in err's chain, "" if none.
func ReasonOf(err error) string {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Reason
	}
	return ""
}

// HintOf returns the first non-empty hint in err's chain.
func HintOf(err error) string {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
