package store

import (
	"context"
	"errors"
	"fmt"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The result codes of SQLite that are told apart: https://www.sqlite.org/rescode.html
const (
	codeBusy       = 5
	codeLocked     = 6
	codeNoMem      = 7
	codeReadOnly   = 8
	codeInterrupt  = 9
	codeIOErr      = 10
	codeCorrupt    = 11
	codeFull       = 13
	codeCantOpen   = 14
	codeTooBig     = 18
	codeConstraint = 19
	codeNotADB     = 26

	codeForeignKey = codeConstraint | 3<<8
	codePrimaryKey = codeConstraint | 6<<8
	codeUnique     = codeConstraint | 8<<8
)

// codeOf returns the extended result code of an error of SQLite, 0 for any other error.
func codeOf(err error) int {
	var e interface{ Code() int }
	if errors.As(err, &e) {
		return e.Code()
	}
	return 0
}

// classify gives an error of SQLite, of the file system or of a context its kind.
func classify(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return fault.New(fault.Canceled, "canceled", op, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fault.New(fault.Timeout, "timeout", op, err)
	}
	switch codeOf(err) & 0xff {
	case 0:
		return durable.Fault(op, err)
	case codeFull:
		return fault.New(fault.Unavailable, "disk_full", op, err).WithHint("free some space and try again")
	case codeIOErr:
		return fault.New(fault.Unavailable, "io_error", op, err).WithHint("look at the kernel's log for errors of the disk")
	case codeNoMem:
		return fault.New(fault.Unavailable, "resource_exhausted", op, err)
	case codeBusy, codeLocked:
		return fault.New(fault.Busy, "locked", op, err)
	case codeReadOnly:
		return fault.New(fault.BadState, "read_only", op, err).
			WithHint("make the state directory writable again")
	case codeCantOpen:
		return fault.New(fault.BadState, "state_io", op, err).
			WithHint("check the state directory's owner and mode, free space and open file limit")
	case codeCorrupt, codeNotADB:
		return fault.New(fault.Integrity, "store_corrupt", op, err).
			WithHint("restore the last good backup: palyra backup restore")
	case codeInterrupt:
		return fault.New(fault.Canceled, "canceled", op, err)
	case codeTooBig, codeConstraint:
		return fault.New(fault.Usage, "invalid_input", op, err)
	}
	return fault.New(fault.Internal, "internal", op, err)
}

// broken reports whether err says that SQLite may have ended the transaction by
// itself, or that nothing written in it can be relied on.
func broken(err error) bool {
	switch codeOf(err) & 0xff {
	case 0, codeConstraint, codeTooBig:
		return false
	}
	return true
}

// ErrConflict is in the error of a change that was made for another version.
var ErrConflict = errors.New("another request changed it first")

func conflict(op string) error {
	return fault.New(fault.Busy, "version_conflict", op, ErrConflict).
		WithHint("read it again and decide anew")
}

// NoSuch is the error for what does not exist, or isn't for the caller: nothing in
// it tells the two apart.
func NoSuch(what, id string) error {
	reason := "not_found"
	if what == "session" { // a client goes on in another one
		reason = "no_such_session"
	}
	return fault.New(fault.NotFound, reason, "look up "+what, fmt.Errorf("%.80q does not exist", id)).WithHint(fault.Lists(what))
}

func usage(reason, op, format string, args ...any) error {
	return fault.New(fault.Usage, reason, op, fmt.Errorf(format, args...))
}
