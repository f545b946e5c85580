package front

import (
	"errors"
	"io/fs"
	"syscall"

	"palyra/internal/fault"
)

// Hint returns what a person can do about err: the hint that it carries, else the one for
// its reason code, else for the error of the operating system in it, else for its kind. It
// is empty for nil alone. The maker of an error gives it a hint if the hint depends on the
// case; constant hints stand here.
func Hint(err error) string {
	if err == nil {
		return ""
	}
	if h := fault.HintOf(err); h != "" {
		return h
	}
	if h := fault.Do(fault.ReasonOf(err)); h != "" {
		return h
	}
	for _, s := range system {
		if errors.Is(err, s.err) {
			return s.hint
		}
	}
	if k := fault.KindOf(err); int(k) < len(kinds) {
		return kinds[k]
	}
	return kinds[fault.Internal]
}

// system has hints for errors of the operating system, for errors whose maker
// knew no more than that.
var system = []struct {
	err  error
	hint string
}{
	{syscall.ENOSPC, "free some space and try again"},
	{syscall.EROFS, "choose a place on a file system that can be written to"},
	{syscall.EMFILE, "raise the limit of open files: ulimit -n"},
	{syscall.ENFILE, "the host is out of open files; try again when less runs"},
	{syscall.ENOMEM, "free some memory and try again"},
	{syscall.EPIPE, "the reader of the output has left"},
	{syscall.EIO, "look at the kernel's log for errors of the disk"},
	{syscall.ENOTDIR, "a part of the path is not a directory: namei -l PATH"},
	{syscall.EISDIR, "name a file, not a directory"},
	{syscall.ELOOP, "name the file itself, not a link"},
	{fs.ErrPermission, "look at the owner and mode of it and of each folder above: namei -l PATH; or run as a user who may"},
	{fs.ErrNotExist, "look at the path: it does not exist, or not under that name"},
	{fs.ErrExist, "name another, or move what is there away"},
}

// kinds has the general hints. A test wants one for every kind.
var kinds = [...]string{
	fault.Internal:    "this is a defect of Palyra, or an error that it does not know: report the command line and this message",
	fault.Usage:       "palyra help COMMAND shows flags, operands and examples",
	fault.NotFound:    "look at the name: what it means is not there",
	fault.NotExec:     "CMD must be an ELF binary or a #! script: a regular file that this user may read and execute",
	fault.Denied:      "ask whoever administers the policies and roles; palyra policy why DECISION says which rule it was",
	fault.NotApproved: "a person must say yes: run it on a terminal, or palyra approvals ls",
	fault.Refused:     "palyra sandbox probe says what this host can enforce, and what would mend it",
	fault.Integrity:   "do not rely on what this names: keep it as evidence, and compare it with another copy or a backup",
	fault.BadState:    "look at the owner, mode and content of what this names; it is used again when that is mended",
	fault.Busy:        "try again when whoever uses it is done",
	fault.Unavailable: "try again when less runs; df and ulimit -a say what ran out",
	fault.Timeout:     "try again, with more time if it was too little",
	fault.Canceled:    "it was ended before its end; run it again",
	fault.Unsupported: "this platform has no such mechanism; calls run on Linux only",
}
