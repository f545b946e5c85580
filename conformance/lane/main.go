// Command lane runs a command within a budget of seconds and ends every process
// that the command has started.
//
//	lane 300 make check
//
// CI runs each of its lanes under it (.ci/lanes). A lane that hangs doesn't take
// the time of those after it, and a daemon or an emulator that it leaves behind
// doesn't disturb them: orphans come to this process, however often they have
// forked and whatever session they are in.
//
// Exit status: the command's own (128 and the signal's number if a signal ended
// it); 124 if the budget was over; 125 if the command couldn't be started or one
// of its processes couldn't be ended. Standard error names what was left behind, and
// says at last on how many processors the command was at work.
//
// It doesn't protect against a process that the caller may not signal, one in an
// uninterruptible sleep, and the files that ended processes leave.
package main

import (
	"fmt"
	"os"
	"strconv"
	"time"
)

const (
	statusOver   = 124 // as timeout(1) has it
	statusBroken = 125
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: lane SECONDS COMMAND [ARGUMENT...]")
		os.Exit(statusBroken)
	}
	seconds, err := strconv.Atoi(os.Args[1])
	if err != nil || seconds <= 0 {
		fmt.Fprintf(os.Stderr, "lane: budget %q: not a number of seconds\n", os.Args[1])
		os.Exit(statusBroken)
	}
	status, err := run(time.Duration(seconds)*time.Second, os.Args[2:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "lane:", err)
	}
	os.Exit(status)
}
