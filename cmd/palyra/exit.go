package main

import (
	"errors"
	"syscall"

	"palyra/cmd/internal/programs"
	"palyra/internal/fault"
	"palyra/kernel"
)

// The statuses that palyra exec adds to those of the program it ran. They are
// Docker's and timeout(1)'s, which scripts already know.
const (
	execTimedOut = 124
	execRefused  = programs.ExecRefused
	execDenied   = 126
	execNotFound = 127
	execSignal   = 128 // plus the signal's number
)

// execExit returns the status of a palyra exec that ended in err without the
// program having run. fault.Kind's comments state the same table; a test
// compares. 127 is about CMD alone: a policy directory that is not there is a
// refusal.
func execExit(err error) int {
	switch fault.KindOf(err) {
	case fault.NotFound:
		if errors.Is(err, kernel.ErrNoProgram) {
			return execNotFound
		}
	case fault.Denied, fault.NotApproved:
		return execDenied
	case fault.Timeout:
		return execTimedOut
	case fault.Canceled:
		return execSignal + int(syscall.SIGINT)
	}
	return execRefused
}
