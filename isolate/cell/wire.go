package cell

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// The protocol between palyra and palyra-cell: one SOCK_SEQPACKET connection,
// one JSON document a message. The client's first message is a hello, which the
// server answers with a hello once it can serve. Then the client sends requests
// and the server answers each once, in the order in which the runs end.
//
// A run request carries descriptors (SCM_RIGHTS), the files in the order of
// request.Files. Its runBody is in the message; one that is too large for that,
// since arguments may be, is a sealed memfd before the files.

const (
	wireVersion = 1
	maxMessage  = 1 << 18 // bytes; a reply with its mount table is some 8 KiB
	maxInline   = 1 << 14 // bytes of a body in a message
	maxBody     = 16 << 20
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

	Body   json.RawMessage `json:"body,omitempty"` // a runBody; absent if it is the first descriptor
	memory *os.File        // the client's side of that descriptor

	Network string          `json:"network,omitempty"` // "expect": of calls that come
	Limits  *isolate.Limits `json:"limits,omitempty"`
}

type runBody struct {
	Spec  *isolate.Spec `json:"spec"`
	Grant []byte        `json:"grant"`
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
