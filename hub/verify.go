package hub

import "palyra/internal/canon"

// MaxVerified bounds the entries of a journal that VerifyJournal reads.
const MaxVerified = 50000

// JournalAudit is what verifying a sound journal found.
type JournalAudit struct {
	Origin   string         `json:"origin"`
	Size     uint64         `json:"size"`
	Root     canon.Digest   `json:"root"`
	Intents  int            `json:"intents"`
	Results  int            `json:"results"`
	Outcomes map[string]int `json:"outcomes"` // results by outcome
	Acts     int            `json:"acts"`
	Orphans  []uint64       `json:"orphans"`  // never null; intents without a result: the call runs now, or its outcome isn't known
	Keys     []JournalKey   `json:"keys"`     // never null; that sign receipts, oldest first
	LogKeys  []JournalKey   `json:"log_keys"` // never null; that sign checkpoints
	Notes    []string       `json:"notes"`    // never null; harmless oddities
}

// JournalKey is a key of a journal.
type JournalKey struct {
	Hint string `json:"hint"`
	From uint64 `json:"from"` // its first entry
}
