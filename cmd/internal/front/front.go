// Package front is the common front of the commands of palyra and of the programs that it
// becomes: it prints results and errors, maps kinds of error to exit statuses, and writes
// JSON documents.
//
// Results go to standard output, words for people to standard error, and with --json a
// command prints exactly one JSON document. An error is one line, then a "hint:" line
// (Hint); both escape control characters and all else that could deceive a terminal. A
// result that couldn't be written is an error like any other, whatever the result was.
//
// The package prints a report's text as it is. A caller that puts foreign bytes into one
// escapes them (Escape).
package front

import (
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"palyra/authz/approval"
	"palyra/cmd/internal/command"
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

// Statuses are those of all commands but exec and call, which have their own: the results
// of Exit, and Findings.
func Statuses() []command.Exit {
	return []command.Exit{
		{Code: "0", Meaning: "ok"},
		{Code: "1", Meaning: "what is named does not exist or cannot be executed, or an internal error"},
		{Code: "2", Meaning: "usage: the command line, or what it names, is wrong"},
		{Code: "3", Meaning: "done, and something was found"},
		{Code: "4", Meaning: "denied, by policy or for want of a permission"},
		{Code: "5", Meaning: "not approved"},
		{Code: "7", Meaning: "refused: this host cannot enforce what is needed"},
		{Code: "8", Meaning: "integrity failure: a signature, digest, proof or log does not check"},
		{Code: "75", Meaning: "busy, not reachable, out of a resource, or the output cannot be written: try again"},
		{Code: "78", Meaning: "state directory, key, policy or configuration unsafe or unreadable"},
		{Code: "124", Meaning: "a deadline passed"},
		{Code: "130", Meaning: "interrupted"},
	}
}

// WithCommon adds to the statuses that a command documents more, and those that every
// command has, in order. One that the command documents stays as it is.
func WithCommon(exits []command.Exit, more ...command.Exit) []command.Exit {
	return WithExits(exits, append(more,
		command.Exit{Code: "1", Meaning: "what is named does not exist, or an internal error"},
		command.Exit{Code: "75", Meaning: "busy, out of a resource, or the output cannot be written:\n         try again"},
	)...)
}

// WithExits returns the statuses, and those of more that they don't have, in order.
func WithExits(exits []command.Exit, more ...command.Exit) []command.Exit {
	out := slices.Clone(exits)
	for _, e := range more {
		if !slices.ContainsFunc(out, func(have command.Exit) bool { return have.Code == e.Code }) {
			out = append(out, e)
		}
	}
	number := func(e command.Exit) int { n, _ := strconv.Atoi(e.Code); return n }
	slices.SortStableFunc(out, func(a, b command.Exit) int { return number(a) - number(b) })
	return out
}

// Complain writes err for people: the error under the program's name, then a
// hint.
func Complain(w io.Writer, program string, err error) {
	fmt.Fprintf(w, "%s: %s\n", program, Escape(strings.TrimPrefix(err.Error(), program+": ")))
	if h := Hint(err); h != "" {
		fmt.Fprintf(w, "hint: %s\n", Escape(h))
	}
}

// Stream is a standard stream. A command that writes output as it comes writes through one,
// so that a lost write is an error of a known kind.
type Stream struct {
	W    io.Writer
	Name string // "standard output"
}

// Write implements io.Writer.
func (s Stream) Write(b []byte) (int, error) {
	n, err := s.W.Write(b)
	if err != nil {
		err = fault.New(fault.Unavailable, "io_error", "write "+s.Name, err)
	}
	return n, err
}

// Stdout is standard output as a Stream.
func Stdout(w io.Writer) Stream { return Stream{w, "standard output"} }

// Say prints text that is a command's whole result, such as its help, and
// returns the exit status.
func Say(stdout, stderr io.Writer, program, text string) int {
	return Print(stdout, stderr, program, "", false, &Report{Text: text}, nil)
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
	var lost error
	out := Stdout(stdout)
	if json {
		fields := Document{"ok": status == 0}
		for k, v := range r.Fields {
			fields[k] = v
		}
		if err != nil {
			fields["error"] = ErrorFields(err)
		}
		lost = fields.Write(out, schema)
	} else if r.Text != "" { // even writing nothing waits for another write to the same file
		_, lost = io.WriteString(out, r.Text)
	}
	if lost == nil {
		return status
	}
	Complain(stderr, program, lost)
	if err != nil {
		return status
	}
	return Exit(lost) // even if there were findings: they are lost
}

// Run is a whole program whose commands only report: it parses args by t, has do run what
// they name, prints the report and returns the exit status.
func Run(t *command.Table, args []string, stdout, stderr io.Writer, do func(*command.Invocation) (*Report, error)) int {
	if len(args) == 0 || len(args) == 1 && (args[0] == "-h" || args[0] == "--help" || args[0] == "help") {
		return Say(stdout, stderr, t.Program, t.Help())
	}
	inv, err := t.Parse(args)
	switch {
	case err != nil:
		Complain(stderr, t.Program, err)
		return Exit(err)
	case inv.Help != "":
		return Say(stdout, stderr, t.Program, inv.Help)
	}
	r, err := do(inv)
	return Print(stdout, stderr, t.Program, strings.ReplaceAll(inv.Command.Name, " ", "."), inv.Has("json"), r, err)
}

// Required is the error for a flag that has no default and was not given.
func Required(inv *command.Invocation, flag string) error {
	return fault.New(fault.Usage, "bad_command", inv.Command.Name, fmt.Errorf("--%s is required", flag)).
		WithHint("see palyra help " + inv.Command.Name)
}

// OneLine keeps foreign text from looking like another line.
func OneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// Escape makes foreign text safe for a terminal and keeps its line breaks.
func Escape(s string) string { return approval.EscapeText(s) }
