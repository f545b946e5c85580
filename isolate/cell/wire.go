package cell

import (
	"encoding/json"
	"errors"
	"fmt"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// The protocol between palyra and palyra-cell: one SOCK_SEQPACKET connection,
// which blocks on both sides. The client's first message is a hello, in JSON,
// which the server answers with a hello once it can serve. Then the client sends
// requests and the server answers each once, in the order in which the runs end.
// Of a run it says before its Result what is known of the cell: as a rule when the
// gate has been opened, so that this is written and read while the program runs.
// It sends nothing else.
//
// A message begins with its kind. A run's request and its answer, which stand
// between a caller and its program, have a fixed layout (codec.go); everything
// else is JSON behind the kind.
//
//	'R' id has operands grant spec   run; what descriptors come with it is in has
//	'E' id has operands grant spec   explain: a run up to the clone, with no grant
//	'X' id                           cancel, not answered
//	'Q' json                         stats, expect
//	'I' id evidence                  the cell of a run, once before 'A'; a run that
//	                                 has an error after it has 'J' all the same
//	'A' id result                    the Result of a run that had no error
//	'J' json                         any other answer
//
// A run carries descriptors (SCM_RIGHTS): exec, stdout, stderr, then those of
// has, then the operands. What follows the grant is the canonical JSON of the
// Spec, whose digest the grant is bound to; one that is too large for a message,
// since arguments may be, is a sealed memfd before the other descriptors.

const (
	wireVersion = 4
	maxMessage  = 1 << 18 // bytes of an answer; one with its mount table is some 4 KiB
	maxRequest  = 1 << 15 // bytes of a request
	maxInline   = 1 << 14 // bytes of a Spec in a message
	maxSpec     = 16 << 20
	maxFiles    = 250 // SCM_MAX_FD is 253
)

// The kinds of messages.
const (
	opRun     = 'R'
	opExplain = 'E'
	opCancel  = 'X'
	opQuery   = 'Q'
	opCell    = 'I'
	opResult  = 'A'
	opReply   = 'J'
)

type hello struct {
	Version int       `json:"version"`
	Tier    tier.Tier `json:"tier"`
	Key     []byte    `json:"key,omitempty"`   // client to server: the grant key, 32 bytes
	Pool    Pool      `json:"pool,omitzero"`   // client to server
	Build   string    `json:"build,omitempty"` // server to client: what knob.Build says
	Error   *wireErr  `json:"error,omitempty"`
}

type request struct {
	Op string `json:"op,omitempty"` // of a query: "stats" or "expect"
	ID uint64 `json:"id"`

	Network string          `json:"network,omitempty"` // "expect": of calls that come
	Limits  *isolate.Limits `json:"limits,omitempty"`

	// Of a run.
	kind     byte
	grant    []byte
	has      uint8
	operands int
	spec     []byte // empty if it is the first descriptor
}

type reply struct {
	ID     uint64          `json:"id"`
	Result *isolate.Result `json:"result,omitempty"`
	Plan   *Plan           `json:"plan,omitempty"`
	Stats  *Stats          `json:"stats,omitempty"`
	Error  *wireErr        `json:"error,omitempty"`
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
