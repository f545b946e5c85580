package hub

import (
	"encoding/json"

	"palyra/internal/canon"
)

// ReceiptCheck has a receipt that may be another palyrad's, or changed.
type ReceiptCheck struct {
	Receipt json.RawMessage `json:"receipt" doc:"the Sigstore bundle, as GET /receipts/{index} gives it"`
}

// ReceiptAccount is what a receipt that verifies says. Palyrad has checked its form, the signature
// and that the key was in force at the entry's place, the leaf, the inclusion proof, the
// checkpoint, and the statement.
type ReceiptAccount struct {
	Origin  string       `json:"origin"` // of the log
	Index   uint64       `json:"index"`  // in it
	Size    uint64       `json:"size"`   // of the log when the receipt was made
	Root    canon.Digest `json:"root"`   // of its tree then
	Key     string       `json:"key"`    // that signed: its hint
	CallID  string       `json:"call_id,omitempty"`
	Outcome string       `json:"outcome,omitempty"` // "" for an intent, and for an act
	Rows    []ReceiptRow `json:"rows"`              // never null
}

// ReceiptRow is a line of an account. Its part says what it is about: what became of the call, what
// was seen in force, what it reached, what it left, what was asked for, and who allowed it.
type ReceiptRow struct {
	Part  string `json:"part" enum:"ending controls egress left request decision"`
	Name  string `json:"name"`            // "": it goes on with the row before
	Text  string `json:"text"`            // printable ASCII: the rest is escaped
	Basis string `json:"basis,omitempty"` // of what was seen in force: "verified", "observed" or "reported"
}
