// Package wire is the protocol between isolate/cell and isolate/cell/serve. Both sides are
// built together; [Version] tells whether they were.
//
// The connection is one SOCK_SEQPACKET socket, blocking on both sides. The client's first
// message is a hello, in JSON; the server answers with a hello when it can serve. Then the
// client sends requests. The server answers each once, in the order in which the runs end, and
// sends nothing else.
//
// A message begins with its kind. A run's request and its answer have a fixed layout
// (codec.go); all others are JSON after the kind.
//
//	'R' id has more grant spec       run; has says which descriptors come with it, more how many others
//	'E' id has more grant spec       explain: a run up to the clone, with no grant
//	'X' id                           cancel, not answered
//	'Q' json                         stats, expect
//	'A' id result                    the Result of a run that had no error
//	'J' json                         any other answer
//
// A run carries descriptors (SCM_RIGHTS): exec, stdout, stderr, then those of has, then the
// operands, the mounts and the caches. A run with a terminal has a connection on which the
// terminal's master is sent, in place of stdout and stderr; one with egress has the connection to
// palyra-egress, and the certificate of its authority if it has one. The grant is followed by the
// canonical JSON of the Spec, to whose digest it is bound. Arguments can make a Spec too large for
// a message; it's then a sealed memfd before the other descriptors.
//
// It doesn't protect one side against the other. Checks of messages turn bugs into errors; they
// don't keep attackers out.
package wire

import (
	"encoding/json"
	"fmt"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// Bounds of the protocol.
const (
	MaxMessage = 1 << 18 // bytes of an answer; a Result is some 4 KiB
	MaxRequest = 1 << 15 // bytes of a request
	MaxInline  = 1 << 14 // bytes of a Spec in a message
	MaxSpec    = 16 << 20
	MaxFiles   = 250 // SCM_MAX_FD is 253
)

// The kinds of messages.
const (
	OpRun     = 'R'
	OpExplain = 'E'
	OpCancel  = 'X'
	OpQuery   = 'Q'
	OpResult  = 'A'
	OpReply   = 'J'
)

// Hello is the first message of either side.
type Hello struct {
	Version int            `json:"version"`
	Tier    tier.Tier      `json:"tier"`
	Key     []byte         `json:"key,omitempty"`   // client to server: the grant key, 32 bytes
	Pool    Pool           `json:"pool,omitzero"`   // client to server
	Build   string         `json:"build,omitempty"` // server to client: knob.Build
	Error   *fault.Message `json:"error,omitempty"`
}

// Request is a run, a question or a cancellation.
type Request struct {
	Op string `json:"op,omitempty"` // of a query: "stats" or "expect"
	ID uint64 `json:"id"`

	Network string          `json:"network,omitempty"` // "expect": of the announced calls
	Limits  *isolate.Limits `json:"limits,omitempty"`

	// Of a run.
	Kind  byte   `json:"-"`
	Grant []byte `json:"-"`
	Has   uint8  `json:"-"`
	More  int    `json:"-"` // descriptors of operands, mounts and caches
	Spec  []byte `json:"-"` // empty if it's the first descriptor
}

// Reply is an answer that isn't a plain Result.
type Reply struct {
	ID     uint64          `json:"id"`
	Result *isolate.Result `json:"result,omitempty"`
	Plan   *Plan           `json:"plan,omitempty"`
	Stats  *Stats          `json:"stats,omitempty"`
	Error  *fault.Message  `json:"error,omitempty"`
}

// Decode reads a JSON message, or a JSON part of one.
func Decode(data []byte, v any) error {
	if err := json.Unmarshal(data, v); err != nil {
		return fmt.Errorf("decode cell message: %w", err)
	}
	return nil
}
