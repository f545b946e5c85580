package keyring

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/internal/canon"
)

// HistoryVersion is the version of History.
const HistoryVersion = 1

// MaxTerms bounds the attestation keys of one state directory.
const MaxTerms = 64

// maxHistory bounds a history's file, in bytes.
const maxHistory = 1 << 20

// History lists every attestation key that signed statements of one log, oldest first, or every
// key of the log itself, which signed its checkpoints. Its canonical JSON and a newline are
// trust/keys.json and trust/log-keys.json, which exist from the first rotation on.
// package receipt checks the receipts in it; ParseHistory checks its form alone.
type History struct {
	Version int    `json:"version"` // HistoryVersion
	Keys    []Term `json:"keys"`
}

// Term is the time of one key in a log.
type Term struct {
	SPKI []byte `json:"spki,omitempty"` // SubjectPublicKeyInfo of an attestation key
	VKey string `json:"vkey,omitempty"` // verifier key of a log
	Hint string `json:"hint"`           // see HintOf and LogPublic.Hint
	File string `json:"file"`           // in a trust directory; see PublicName and LogPublic.File
	// From is the index of the first entry that may be the key's, and To of the first that may
	// not any more. Without a To there is none yet. A log's key puts itself in force at From; the
	// last checkpoint that may be its has the size To.
	From uint64  `json:"from"`
	To   *uint64 `json:"to,omitempty"`
	// ValidFor has the times of those entries, as their statements claim.
	ValidFor Period `json:"validFor"`
	// Introduced is the receipt of the act by which the key before named this one, and Begun
	// that of the first statement that this one signed. The first key has neither; a key
	// without Begun is introduced and not in force.
	Introduced json.RawMessage `json:"introduced,omitempty"`
	Begun      json.RawMessage `json:"begun,omitempty"`
}

// Period is a time in the form that Sigstore's trusted roots have.
type Period struct {
	Start string `json:"start"` // RFC 3339
	End   string `json:"end,omitempty"`
}

// Epoch starts the first key's period: its log states no time.
const Epoch = "1970-01-01T00:00:00Z"

// NewHistory returns the history of a log whose only key has this SubjectPublicKeyInfo.
func NewHistory(spki []byte) *History {
	return &History{Version: HistoryVersion, Keys: []Term{newTerm(spki, 0, Epoch)}}
}

// NewLogHistory returns the history of a log that has had this key only.
func NewLogHistory(p *LogPublic) *History {
	return &History{Version: HistoryVersion, Keys: []Term{newLogTerm(p, 0, Epoch)}}
}

func newTerm(spki []byte, from uint64, start string) Term {
	return Term{SPKI: bytes.Clone(spki), Hint: HintOf(spki), File: PublicName(spki), From: from, ValidFor: Period{Start: start}}
}

func newLogTerm(p *LogPublic, from uint64, start string) Term {
	return Term{VKey: p.VKey(), Hint: p.Hint(), File: p.File(), From: from, ValidFor: Period{Start: start}}
}

// Signs says what the keys sign: "statements" or "checkpoints".
func (h *History) Signs() string {
	if h.OfLog() {
		return "checkpoints"
	}
	return "statements"
}

// OfLog reports whether the keys are a log's.
func (h *History) OfLog() bool { return h.Keys[0].VKey != "" }

// PublicName returns the name that a key has in a trust directory, beside AttestationPublicFile
// for the one in force: att-, the SHA-256 of its SubjectPublicKeyInfo in hexadecimal, .pub.
func PublicName(spki []byte) string {
	d := sha256.Sum256(spki)
	return "att-" + hex.EncodeToString(d[:]) + ".pub"
}

// Introduce returns h with a key that the entry at this index introduced, in the place of one that
// was introduced and never begun.
func (h *History) Introduce(spki []byte, index uint64, start string, receipt []byte) *History {
	return h.introduce(newTerm(spki, index+1, start), receipt)
}

// IntroduceLog is Introduce for the history of a log's keys.
func (h *History) IntroduceLog(p *LogPublic, index uint64, start string, receipt []byte) *History {
	return h.introduce(newLogTerm(p, index+1, start), receipt)
}

func (h *History) introduce(t Term, receipt []byte) *History {
	t.Introduced = bytes.Clone(receipt)
	keys := slices.Clone(h.Keys)
	if h.Pending() != nil {
		keys = keys[:len(keys)-1]
	}
	return &History{Version: h.Version, Keys: append(keys, t)}
}

// Begin returns h with the introduced key in force from the entry at this index on.
func (h *History) Begin(index uint64, start string, receipt []byte) *History {
	n := &History{Version: h.Version, Keys: slices.Clone(h.Keys)}
	last := len(n.Keys) - 1
	old, now := &n.Keys[last-1], &n.Keys[last]
	old.To, old.ValidFor.End = &index, start
	now.From, now.ValidFor.Start, now.Begun = index, start, bytes.Clone(receipt)
	return n
}

// Current returns the key in force.
func (h *History) Current() *Term {
	last := len(h.Keys) - 1
	if last > 0 && h.Keys[last].Begun == nil {
		last--
	}
	return &h.Keys[last]
}

// StateOf returns what became of a key of h: "introduced", "in_force" or "ended".
func (h *History) StateOf(t *Term) string {
	switch {
	case t.To != nil:
		return "ended"
	case t == h.Pending():
		return "introduced"
	}
	return "in_force"
}

// FileOf returns the file that has a key of h in a trust directory.
func (h *History) FileOf(t *Term) string {
	if len(h.Keys) == 1 { // the history and the other files come with the first rotation
		if h.OfLog() {
			return LogVKeyFile
		}
		return AttestationPublicFile
	}
	return t.File
}

// Pending returns the key that is introduced and not in force, nil if there is none.
func (h *History) Pending() *Term {
	if last := len(h.Keys) - 1; last > 0 && h.Keys[last].Begun == nil {
		return &h.Keys[last]
	}
	return nil
}

// Encode returns the file.
func (h *History) Encode() ([]byte, error) {
	b, err := canon.Marshal(h)
	return append(b, '\n'), err
}

// ParseHistory is the inverse of Encode. It refuses another spelling and terms that contradict
// each other.
func ParseHistory(b []byte) (*History, error) {
	var h History
	if err := canon.Decode(b, &h, canon.Limits{Bytes: maxHistory}); err != nil {
		return nil, err
	}
	if err := h.check(); err != nil {
		return nil, err
	}
	again, err := h.Encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, errors.New("not in its canonical spelling")
	}
	return &h, nil
}

// parseHistoryOf is ParseHistory for one kind of keys.
func parseHistoryOf(b []byte, log bool) (*History, error) {
	h, err := ParseHistory(b)
	if err == nil && h.OfLog() != log {
		return nil, errors.New("it is of the other kind of keys")
	}
	return h, err
}

func (h *History) check() error {
	if h.Version != HistoryVersion || len(h.Keys) == 0 || len(h.Keys) > MaxTerms {
		return fmt.Errorf("version %d with %d keys", h.Version, len(h.Keys))
	}
	for i := range h.Keys {
		t := &h.Keys[i]
		bad := func(what string) error { return fmt.Errorf("key %d: %s", i, what) }
		want, err := h.term(t)
		if err != nil {
			return bad(err.Error())
		}
		last := i == len(h.Keys)-1
		switch {
		case t.Hint != want.Hint || t.File != want.File:
			return bad("hint or file is another key's")
		case slices.ContainsFunc(h.Keys[:i], func(o Term) bool { return o.Hint == t.Hint }):
			return bad("it was in force before")
		case i == 0 && (t.From != 0 || t.ValidFor.Start != Epoch || t.Introduced != nil || t.Begun != nil):
			return bad("the first one is in force from the beginning")
		case i > 0 && (t.Introduced == nil || t.Begun == nil && !last || t.From <= h.Keys[i-1].From):
			return bad("it wasn't introduced, or not in force, or before the one before it")
		case (t.To == nil) != (t.ValidFor.End == ""):
			return bad("its end has no time, or a time and no place")
		}
		if next := i + 1; next < len(h.Keys) && h.Keys[next].Begun != nil {
			if t.To == nil || *t.To != h.Keys[next].From || t.ValidFor.End != h.Keys[next].ValidFor.Start {
				return bad("its end isn't the beginning of the next")
			}
		} else if t.To != nil {
			return bad("it ended without a successor")
		}
		for _, s := range []string{t.ValidFor.Start, t.ValidFor.End} {
			if _, err := time.Parse(time.RFC3339, s); s != "" && err != nil {
				return bad("a time that isn't RFC 3339")
			}
		}
	}
	return nil
}

// term returns what follows from a key of h alone.
func (h *History) term(t *Term) (Term, error) {
	if !h.OfLog() {
		if t.VKey != "" {
			return Term{}, errors.New("it is a log's")
		}
		if _, err := ParseAttestationPublic(t.SPKI); err != nil {
			return Term{}, err
		}
		return newTerm(t.SPKI, 0, ""), nil
	}
	p, err := ParseVKey(t.VKey)
	if err != nil {
		return Term{}, err
	}
	if len(t.SPKI) != 0 || !strings.HasPrefix(h.Keys[0].VKey, p.Origin+"+") {
		return Term{}, errors.New("it is another log's")
	}
	return newLogTerm(p, 0, ""), nil
}
