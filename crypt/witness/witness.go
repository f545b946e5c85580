// Package witness lets a device vouch for its hub's journal.
//
// A witness remembers the last checkpoint that it saw, and the keys by which it knew the log. At
// each contact it's shown the newest one with a proof, and [Memory.Judge] says whether the log that
// it knew is in it: one that was cut off, or forked, is refused for as long as the witness
// remembers. It may cosign what it judged (C2SP tlog-cosignature/v1 with Ed25519, cosignature.go),
// with a key that the hub knows as the device's.
//
//	m, err = m.Judge(origin, view, time.Now())  // the memory to keep, or why not
//	b, err := key.Cosign([]byte(m.Checkpoint), time.Now())
//
// The package links none that holds the journal's keys or writes it: checkpoints and proofs are
// verified here by code of its own, which its tests compare with package journal.
//
// It doesn't protect the first contact, which believes the log's key as that connection shows it,
// nor a witness whose host is the hub's own.
package witness

import (
	"bytes"
	"errors"
	"fmt"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// MemoryVersion is the version of Memory and Conflict.
const MemoryVersion = 1

// maxMemory bounds their encodings: the history of keys is most of it.
const maxMemory = 4 << 20

// Memory is what a witness knows of one log. Its canonical JSON and a newline are a file.
type Memory struct {
	Version int `json:"version"` // MemoryVersion
	// Keys is the hub's trust/log-keys.json, or trust/log.vkey if there is none.
	Keys       []byte    `json:"keys"`
	Checkpoint string    `json:"checkpoint"` // the newest signed note
	Seen       time.Time `json:"seen"`       // when it was shown
	Cosigned   time.Time `json:"cosigned"`   // when the hub got the last cosignature; zero: never
}

// View is what a hub shows a witness.
type View struct {
	Checkpoint string
	Hashes     [][]byte // the proof that it extends the remembered one
	Keys       []byte   // as Memory.Keys; nil: as remembered
}

// Conflict is the proof that a hub has shown two logs, or taken entries back: two checkpoints that
// it signed.
type Conflict struct {
	Version    int       `json:"version"` // MemoryVersion
	Why        string    `json:"why"`
	Remembered string    `json:"remembered"`
	Seen       time.Time `json:"seen"` // when the remembered one was shown
	Shown      string    `json:"shown"`
	At         time.Time `json:"at"` // when that was shown
	Hashes     [][]byte  `json:"hashes"`
	Keys       []byte    `json:"keys"`
}

// ConflictError says that a log isn't the one that a witness knew. Its fault has the reason
// journal_rolled_back or journal_checkpoint_split.
type ConflictError struct {
	Conflict Conflict
	err      error
}

// Error implements error.
func (e *ConflictError) Error() string { return e.err.Error() }

// Unwrap returns the fault.
func (e *ConflictError) Unwrap() error { return e.err }

// Size returns the size of the remembered checkpoint, 0 for a nil memory.
func (m *Memory) Size() (uint64, error) {
	if m == nil {
		return 0, nil
	}
	_, c, err := m.open()
	return c.Size, err
}

// open verifies the memory by itself.
func (m *Memory) open() (Keys, Checkpoint, error) {
	ks, err := parseKeys(m.Keys)
	if err != nil {
		return nil, Checkpoint{}, err
	}
	c, err := ks.Open([]byte(m.Checkpoint))
	return ks, c, err
}

// Encode returns the file.
func (m *Memory) Encode() ([]byte, error) { return encode(m) }

// Encode returns a file, too.
func (c *Conflict) Encode() ([]byte, error) { return encode(c) }

func encode(v any) ([]byte, error) {
	b, err := canon.Marshal(v)
	return append(b, '\n'), err
}

// ParseMemory is the inverse of Encode. It verifies the checkpoint under the keys.
func ParseMemory(b []byte) (*Memory, error) {
	var m Memory
	if err := canon.Decode(b, &m, canon.Limits{Bytes: maxMemory}); err != nil {
		return nil, err
	}
	if m.Version != MemoryVersion {
		return nil, fmt.Errorf("version %d, want %d", m.Version, MemoryVersion)
	}
	_, _, err := m.open()
	return &m, err
}

// ErrKeys says that the newest checkpoint is by a key that the memory hasn't: the view must have
// the hub's keys.
var ErrKeys = errors.New("the log has another key than those remembered")

// Judge returns the memory with what the hub of the log of this origin shows, if that extends it. A
// nil memory believes a view with keys. A *ConflictError has the proof that the hub has two logs;
// ErrKeys asks for a view with keys. Other errors are fault.Integrity "trust_corrupt".
func (m *Memory) Judge(origin string, v View, now time.Time) (*Memory, error) {
	const op = "compare the hub's journal with the one remembered"
	n := &Memory{Version: MemoryVersion, Keys: v.Keys, Checkpoint: v.Checkpoint, Seen: now.UTC().Truncate(time.Second)}
	if m != nil {
		n.Cosigned = m.Cosigned
		if v.Keys == nil {
			n.Keys = m.Keys
		}
	}
	distrust := func(err error) error { return fault.New(fault.Integrity, "trust_corrupt", op, err) }
	ks, err := parseKeys(n.Keys)
	if err != nil {
		return nil, distrust(err)
	}
	c, err := ks.Open([]byte(v.Checkpoint))
	if errors.Is(err, ErrSigner) && v.Keys == nil {
		return nil, ErrKeys
	}
	if err != nil {
		return nil, distrust(err)
	}
	if c.Origin != origin {
		return nil, distrust(fmt.Errorf("its log is called %.200q, want %q", c.Origin, origin))
	}
	if m == nil {
		return n, nil
	}
	known, old, err := m.open()
	if err != nil {
		return nil, distrust(fmt.Errorf("what is remembered: %w", err))
	}
	for i, k := range known {
		if i >= len(ks) || ks[i].VKey != k.VKey || k.To != 0 && ks[i].To != k.To {
			return nil, distrust(errors.New("its keys don't follow from those that are remembered"))
		}
	}
	conflict := func(reason string, err error) error {
		return &ConflictError{Conflict{Version: MemoryVersion, Why: err.Error(), Remembered: m.Checkpoint, Seen: m.Seen, Shown: v.Checkpoint, At: n.Seen,
			Hashes: append([][]byte{}, v.Hashes...), Keys: bytes.Clone(n.Keys)}, fault.New(fault.Integrity, reason, op, err)}
	}
	on := m.Seen.Format(time.RFC3339)
	switch {
	case c.Size < old.Size:
		return nil, conflict("journal_rolled_back", fmt.Errorf("it has %d entries, and had %d on %s", c.Size, old.Size, on))
	case c.Size == old.Size && c.Root != old.Root:
		return nil, conflict("journal_checkpoint_split", fmt.Errorf("its %d entries have another root than they had on %s", c.Size, on))
	case c.Size > old.Size:
		hashes, err := hashesOf(v.Hashes)
		if err == nil {
			err = verifyConsistency(old.Size, c.Size, hashes, old.Root, c.Root)
		}
		if err != nil {
			return nil, conflict("journal_checkpoint_split", fmt.Errorf("no proof that its %d entries begin with the %d of %s: %w", c.Size, old.Size, on, err))
		}
	}
	if _, err := ks.Open([]byte(m.Checkpoint)); err != nil {
		return nil, conflict("journal_checkpoint_split", fmt.Errorf("by its keys the checkpoint of %s isn't its own: %w", on, err))
	}
	return n, nil
}
