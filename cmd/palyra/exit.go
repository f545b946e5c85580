package main

import (
	"fmt"
	"io"

	"palyra/internal/fault"
)

// The statuses that palyra exec adds to those of the program it ran. They are
// Docker's and timeout(1)'s, which scripts already know.
const (
	execTimedOut = 124
	execRefused  = 125
	execDenied   = 126
	execNotFound = 127
	execSignal   = 128 // plus the signal's number
)

// exits maps a kind to the status of an administrative command and to that of
// palyra exec. fault.Kind's comments state the same table; a test compares.
var exits = map[fault.Kind]struct{ admin, exec int }{
	fault.Internal:    {1, execRefused},
	fault.Usage:       {2, execRefused},
	fault.NotFound:    {1, execNotFound},
	fault.NotExec:     {1, execRefused},
	fault.Denied:      {4, execDenied},
	fault.NotApproved: {5, execDenied},
	fault.Refused:     {7, execRefused},
	fault.Integrity:   {8, execRefused},
	fault.BadState:    {78, execRefused},
	fault.Busy:        {75, execRefused},
	fault.Unavailable: {75, execRefused},
	fault.Timeout:     {124, execTimedOut},
	fault.Canceled:    {130, 130},
	fault.Unsupported: {7, execRefused},
}

// adminExit returns the status of an administrative command that ended in err.
func adminExit(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := exits[fault.KindOf(err)]; ok {
		return e.admin
	}
	return 1
}

// execExit returns the status of a palyra exec that ended in err without the
// program having run. 127 is about CMD alone: a policy directory that is not
// there is a refusal.
func execExit(err error) int {
	if fault.KindOf(err) == fault.NotFound && fault.ReasonOf(err) != "program_not_found" {
		return execRefused
	}
	if e, ok := exits[fault.KindOf(err)]; ok {
		return e.exec
	}
	return execRefused
}

// complain writes err for people: the error, then a hint if there is one.
func complain(w io.Writer, err error) {
	fmt.Fprintf(w, "palyra: %s\n", escape(err.Error()))
	if h := fault.HintOf(err); h != "" {
		fmt.Fprintf(w, "hint: %s\n", escape(h))
	}
}

// exitFindings is the status of a command that did its work and found something.
const exitFindings = 3
