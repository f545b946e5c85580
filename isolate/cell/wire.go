package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// The protocol between palyra and palyra-cell: one SOCK_SEQPACKET connection,
// one JSON document a message. The client's first message is a hello, which the
// server answers with a hello once it can serve. Then the client sends requests
// and the server answers each once, in the order in which the runs end.
//
// A run request carries descriptors (SCM_RIGHTS), the files in the order of
// request.Files. Behind its document and a zero byte stands the canonical JSON of
// the Spec, whose digest the grant is bound to; one that is too large for a
// message, since arguments may be, is a sealed memfd before the files.
//
// The server announces each cell that waits, with its evidence, and each one that
// it threw away. The answer of a warm call names its cell and has only what the
// announcement could not say: to read evidence takes as long as a small program.

const (
	wireVersion = 1
	maxMessage  = 1 << 18 // bytes; a reply with its mount table is some 8 KiB
	maxInline   = 1 << 14 // bytes of a Spec in a message
	maxSpec     = 16 << 20
	maxFiles    = 250 // SCM_MAX_FD is 253
)

type hello struct {
	Version int       `json:"version"`
	Tier    tier.Tier `json:"tier"`
	Key     []byte    `json:"key,omitempty"` // client to server: the grant key, 32 bytes
	Pool    Pool      `json:"pool,omitzero"` // client to server
	Error   *wireErr  `json:"error,omitempty"`
}

type request struct {
	Op    string   `json:"op"` // "stats", "expect", "run", "cancel" or "explain", which is a run up to the clone, without a grant
	ID    uint64   `json:"id"`
	Files []string `json:"files,omitempty"` // what each descriptor after the body is

	Network string          `json:"network,omitempty"` // "expect": of calls that come
	Limits  *isolate.Limits `json:"limits,omitempty"`

	Grant  []byte   `json:"grant,omitempty"`
	spec   []byte   // behind the document; empty if it is the first descriptor
	memory *os.File // the client's side of that descriptor
}

type reply struct {
	ID     uint64          `json:"id"`
	Result *isolate.Result `json:"result,omitempty"`
	Warm   *warmResult     `json:"warm,omitempty"`
	Armed  uint64          `json:"armed,omitempty"` // the cell whose evidence Result has
	Gone   uint64          `json:"gone,omitempty"`  // a cell that was thrown away
	Plan   *Plan           `json:"plan,omitempty"`
	Stats  *Stats          `json:"stats,omitempty"`
	Error  *wireErr        `json:"error,omitempty"`
}

// warmResult is the Result of a warm call but for what was announced of its cell.
type warmResult struct {
	Armed      uint64              `json:"armed"`
	Outcome    isolate.Outcome     `json:"outcome"`
	Cell       evidence.Cell       `json:"cell"`
	Executable evidence.Executable `json:"executable"`
	Tape       evidence.Tape       `json:"tape"`
	Exit       evidence.Exit       `json:"exit"`
	Usage      evidence.Usage      `json:"usage"`
}

func shorten(armed uint64, r *isolate.Result) *warmResult {
	e := r.Evidence
	return &warmResult{armed, r.Outcome, e.Cell, e.Executable, e.Tape, e.Exit, e.Usage}
}

// extend undoes shorten.
func (w *warmResult) extend(e *evidence.Evidence) *isolate.Result {
	e.Cell, e.Executable, e.Tape, e.Exit, e.Usage = w.Cell, w.Executable, w.Tape, w.Exit, w.Usage
	return &isolate.Result{Outcome: w.Outcome, Evidence: e}
}

// wireErr is a fault.Error without its causes: what crosses the border is the
// kind, the reason and texts that hold nothing secret.
type wireErr struct {
	Kind   fault.Kind `json:"kind"`
	Reason string     `json:"reason"`
	Op     string     `json:"op"`
	Text   string     `json:"text"`
	Hint   string     `json:"hint,omitempty"`
}

func toWire(err error) *wireErr {
	if err == nil {
		return nil
	}
	w := &wireErr{Kind: fault.KindOf(err), Reason: fault.ReasonOf(err), Hint: fault.HintOf(err), Text: err.Error()}
	if e, ok := errors.AsType[*fault.Error](err); ok {
		w.Op = e.Op
		w.Text = ""
		if e.Err != nil {
			w.Text = e.Err.Error()
		}
	}
	if w.Reason == "" {
		w.Reason = "cell_internal"
	}
	return w
}

func (w *wireErr) err() error {
	if w == nil {
		return nil
	}
	var cause error
	if w.Text != "" {
		cause = errors.New(w.Text)
	}
	return fault.New(w.Kind, w.Reason, w.Op, cause).WithHint(w.Hint)
}

func decode(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode cell message: %w", err)
	}
	return nil
}
