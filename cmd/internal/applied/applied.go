// Package applied says what palyra changes apply and undo came to, for the two programs that do
// them: palyra makes the call itself, palyra-ctl has palyrad make it. Both print the same.
package applied

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"palyra/cmd/internal/front"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// Applied is a call of changes.apply or changes.undo that did its work.
type Applied struct {
	Tool, Layer, Workspace string
	Result                 *toolproto.ChangesResult
	Git                    bool                  // a repository changes, too
	Refs                   []toolproto.RefChange // its refs
	Head                   string                // what is checked out now, "" if that stays
	Left                   []Left                // parts of it that stay in the layer
	LeftGit                int                   // files of git's own that stay there, too
	CallID                 string
	LogIndex               uint64
	Receipt                json.RawMessage
}

// Left is a part of a repository that stays in the layer.
type Left struct {
	Path string `json:"path"`
	Why  string `json:"why"`
}

// Report is what the command prints.
func (a *Applied) Report() *front.Report {
	verb, changes := "applied", "changes"
	if a.Tool == toolproto.ChangesUndo {
		verb = "undid"
	}
	if a.Result.Changes == 1 {
		changes = "change"
	}
	var b strings.Builder
	line := func(format string, v ...any) {
		b.WriteString(front.OneLine(front.Escape(fmt.Sprintf(format, v...))) + "\n")
	}
	line("%s layer %s: %d %s to %s", verb, a.Layer, a.Result.Changes, changes, a.Workspace)
	for _, x := range a.Refs {
		line("%s: %s..%s", x.Name, front.ShortID(x.Old), front.ShortID(x.New))
	}
	if a.Head != "" {
		line("HEAD: %s", a.Head)
	}
	for _, x := range a.Left {
		line("left in the layer: %s: %s", x.Path, x.Why)
	}
	if a.LeftGit > 0 {
		line("left in the layer: %d files of .git", a.LeftGit)
	}
	fields := front.Document{"layer": a.Layer, "workspace": a.Workspace, "digest": a.Result.Digest, "changes": a.Result.Changes,
		"left": a.Left, "left_git": a.LeftGit, "call_id": a.CallID, "log_index": a.LogIndex, "receipt": a.Receipt}
	if a.Git {
		fields["refs"] = a.Refs
	}
	return &front.Report{Text: b.String(), Fields: fields}
}

// most bounds what palyra-tool writes.
var most = canon.Limits{Bytes: 1 << 24}

// Read returns the result of a call of a tool for changes that ended with this status, or its
// failure as an error.
func Read(op string, exit int, stdout []byte) (*toolproto.ChangesResult, error) {
	if status := toolproto.Status(exit); status != toolproto.Done && status != toolproto.Undone {
		return nil, Failure(op, exit, stdout)
	}
	var res toolproto.ChangesResult
	if err := canon.Decode(bytes.TrimSuffix(stdout, []byte("\n")), &res, most); err != nil {
		return nil, fault.New(fault.Internal, "internal", "read palyra-tool's result", err)
	}
	return &res, nil
}

// Failure is the error of a tool of palyra-tool's that ended with this status.
func Failure(op string, exit int, stdout []byte) error {
	var f toolproto.Failure
	if err := canon.Decode(bytes.TrimSuffix(stdout, []byte("\n")), &f, most); err != nil {
		return fault.New(fault.Unavailable, "killed", op, fmt.Errorf("palyra-tool ended with status %d", exit))
	}
	e := &fault.Error{Kind: fault.Refused, Reason: f.Error.Reason, Op: op, Err: errors.New(f.Error.Text)}
	switch {
	case toolproto.Status(exit) == toolproto.Conflict:
		e.Kind = fault.Busy
	case errors.Is(e, fault.ErrDiskFull), errors.Is(e, fault.ErrIO):
		e.Kind = fault.Unavailable
	case toolproto.Status(exit) == toolproto.Bad:
		e.Kind = fault.Usage
	}
	return e
}

// Recovered says, for a person, what a call of changes.recover made of a layer.
func Recovered(w io.Writer, layer string, res *toolproto.ChangesResult) {
	whole := "nothing of it is"
	if res.Applied {
		whole = "all of it is"
	}
	fmt.Fprintf(w, "palyra: an apply or undo of layer %s was interrupted: %s in the workspace now\n", front.Escape(layer), whole)
	for _, left := range res.Left {
		at := ""
		if left.Kept != "" {
			at = ", what was there is " + left.Kept
		}
		fmt.Fprintf(w, "palyra: changed by another since, and left alone: %s%s\n", front.Escape(left.Path), front.Escape(at))
	}
}
