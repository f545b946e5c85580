// Package toolproto is the protocol between the kernel and palyra-tool: the input and the
// result of every built-in tool, as Go types and as JSON.
//
// A tool's input is one JSON object. [Decode] accepts one reading of it only: unknown,
// repeated and null members, trailing data, too much and too deep are errors, and so is
// every member outside the bounds that stand in its struct tag. The kernel decodes before
// it decides, and hands on the decoded input in canonical form. palyra-tool decodes again
// with the same code, because a program in a cell trusts no other process. [Members] gives
// the same tags as data, from which the JSON Schema is printed. So schema, kernel and tool
// can't disagree.
//
// A file holds one tool: its name, its input with the gist of it, and its result. A member
// of an input has two tags beside its name: tool holds the bounds that Decode applies, doc
// the sentence of the schema. Lengths of strings are characters. Members whose zero value
// Decode would refuse are left out where they are zero. process.run has no name here: the
// kernel runs what its input names, without palyra-tool.
//
// # Names of files
//
// A file name is bytes; JSON holds text. [Escape] spells the paths in inputs and results:
// printable characters stand for themselves, every other byte and the backslash as \xHH.
// The spelling is reversible and unique, and nothing in it moves a cursor or hides behind a
// direction mark. [ParsePath] reads it and wants a plain relative path: no leading slash,
// no empty element, no "." but alone, no "..".
//
// # On the wire
//
// palyra-tool NAME BRIEF... reads the input from standard input, as one line if a payload
// follows it (artifact.read), writes one line of canonical JSON, the result or a [Failure],
// to standard output, and ends with an exit status of [Status]. BRIEF comes from the
// input's Brief method. It gives the meaning of the input in a few words, with paths spelled
// as in the input, so that policy can read them and an approver sees them. palyra-tool
// refuses an input that they don't belong to.
//
// The package doesn't protect against a tool that lies. A program in a cell wrote the
// result; the receipt says which program that was.
package toolproto

import (
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// MaxInput is the most that an input may hold, in bytes of JSON. The kernel's canonical
// form of it may be longer by maxDefaults, since it has the omitted members with their
// defaults.
const (
	MaxInput    = 1<<20 - 8<<10
	maxDefaults = 4 << 10
)

// Status is an exit status of palyra-tool.
type Status int

// The exit statuses. Everything else is a signal or the Go runtime.
const (
	Done     Status = 0 // the result is on standard output
	Failed   Status = 1 // it could not be done; nothing was changed
	Bad      Status = 2 // the input is not one that the tool takes; nothing was looked at
	Conflict Status = 3 // what is on disk is not what the caller said it is; nothing was changed
	// Partial: the tool failed half-way and couldn't undo everything; the failure names the
	// rest.
	Partial Status = 4
	Broken  Status = 5 // the tool itself, or its standard streams
	Undone  Status = 6 // changes.recover alone: the list is taken back, and the result is on standard output
)

// Failure is palyra-tool's output instead of a result.
type Failure struct {
	Error Reason `json:"error"`
	// Left lists the paths that differ from before, if any.
	Left []Left `json:"left,omitempty"`
}

// Reason is an error as data.
type Reason struct {
	Reason string `json:"reason"` // stable code
	Text   string `json:"text"`   // for people; foreign names in it are quoted
}

// ReasonOf returns an error as data.
func ReasonOf(err error) Reason {
	code := fault.ReasonOf(err)
	if code == "" {
		code = "internal"
	}
	return Reason{Reason: code, Text: strings.ToValidUTF8(err.Error(), "\uFFFD")}
}

// Fail returns the failure that an error is, and its exit status.
func Fail(err error) (Status, Failure) {
	f := Failure{Error: ReasonOf(err)}
	switch fault.KindOf(err) {
	case fault.Usage:
		return Bad, f
	case fault.Busy:
		return Conflict, f
	case fault.Internal:
		return Broken, f
	}
	return Failed, f
}

// Left is the state of one path after a change failed half-way.
type Left struct {
	Path string `json:"path"`
	// State is "new" (changed as asked) or "unknown" (neither that nor as before, as far as
	// we could see).
	State string `json:"state"`
	// Kept is the path of the former content; empty if there was none.
	Kept string `json:"kept,omitempty"`
}

// usage returns an error of the input.
func usage(reason, op string, err error) error { return fault.New(fault.Usage, reason, op, err) }

// Encode returns the canonical JSON of an input or a result, and a newline.
func Encode(v any) ([]byte, error) {
	b, err := canon.Marshal(v)
	if err != nil {
		return nil, err
	}
	return append(b, '\n'), nil
}
