// Package front is what the commands of palyra and palyra-ctl have in common
// where they meet a person or a script: how a result and an error are printed,
// which exit status stands for which kind of error, and what a JSON document
// looks like.
//
// Results go to standard output, what is for people goes to standard error, and
// with --json a command prints exactly one JSON document. An error is one line,
// then a "hint:" line where a hint is known; control characters and whatever
// else could deceive a terminal are escaped in both.
//
// What it does not protect against: a report's text is printed as it is. Whoever
// puts foreign bytes into one escapes them (Escape).
package front

import (
	"fmt"
	"io"
	"strings"

	"palyra/authz/approval"
	"palyra/internal/fault"
)

// Report is the result of a command that only reads or administers.
type Report struct {
	Text   string   // for people
	Fields Document // for --json
	Exit   int      // status if there is no error; 0 unless the command found something
}

// Findings is the status of a command that did its work and found something.
const Findings = 3

// exits maps a kind to the status of an administrative command. fault.Kind's
// comments state the same table; a test compares.
var exits = map[fault.Kind]int{
	fault.Internal:    1,
	fault.Usage:       2,
	fault.NotFound:    1,
	fault.NotExec:     1,
	fault.Denied:      4,
	fault.NotApproved: 5,
	fault.Refused:     7,
	fault.Integrity:   8,
	fault.BadState:    78,
	fault.Busy:        75,
	fault.Unavailable: 75,
	fault.Timeout:     124,
	fault.Canceled:    130,
	fault.Unsupported: 7,
}

// Exit returns the status of an administrative command that ended in err, 0 for
// nil.
func Exit(err error) int {
	if err == nil {
		return 0
	}
	if e, ok := exits[fault.KindOf(err)]; ok {
		return e
	}
	return 1
}

// Complain writes err for people: the error under the program's name, then a
// hint if there is one.
func Complain(w io.Writer, program string, err error) {
	fmt.Fprintf(w, "%s: %s\n", program, Escape(err.Error()))
	if h := fault.HintOf(err); h != "" {
		fmt.Fprintf(w, "hint: %s\n", Escape(h))
	}
}

// Print writes the end of a command: r, or with json set one document that also
// carries err, on stdout; err on stderr, too. It returns the exit status. schema
// names the command, "journal.show". A nil r is an empty report.
func Print(stdout, stderr io.Writer, program, schema string, json bool, r *Report, err error) int {
	if err != nil {
		Complain(stderr, program, err)
	}
	if r == nil {
		r = &Report{}
	}
	status := r.Exit
	if err != nil {
		status = Exit(err)
	}
	var werr error
	if json {
		fields := Document{"ok": status == 0}
		for k, v := range r.Fields {
			fields[k] = v
		}
		if err != nil {
			fields["error"] = ErrorFields(err)
		}
		werr = fields.Write(stdout, schema)
	} else {
		_, werr = io.WriteString(stdout, r.Text)
	}
	if werr != nil && status == 0 {
		lost := fault.New(fault.Unavailable, "write_failed", "write standard output", werr)
		Complain(stderr, program, lost)
		return Exit(lost)
	}
	return status
}

// Escape makes foreign text safe for a terminal and keeps its line breaks.
func Escape(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		var b strings.Builder
		for _, r := range l {
			if r == '\\' || r == '"' || r == '\t' || (r >= ' ' && r <= '~') {
				b.WriteRune(r)
				continue
			}
			b.WriteString(approval.Escape(string(r)))
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}
