package hub

// Key is the public half of a key that signed this installation's statements, or the checkpoints of
// its journal.
type Key struct {
	// Signs is "statements" for an attestation key and "checkpoints" for one of the log.
	Signs string `json:"signs"`
	Hint  string `json:"hint"` // receipts name it so
	File  string `json:"file"` // in the trust directory
	// State is "introduced", "in_force" or "ended".
	State string `json:"state"`
	// From is the first entry of the journal that may be its, and To the first that may not any
	// more; without it there is none yet. A checkpoint counts as its newest entry.
	From uint64  `json:"from"`
	To   *uint64 `json:"to,omitempty"`
	// Start and End are those entries' times, in RFC 3339.
	Start string `json:"start"`
	End   string `json:"end,omitempty"`
}

// KeyRotation asks for another attestation key, or another key of the log.
type KeyRotation struct {
	Log           bool `json:"log,omitempty"`            // the key that signs checkpoints
	IntroduceOnly bool `json:"introduce_only,omitempty"` // put it in force by another rotation
}

// Signing keys.
var (
	ListKeys = define[None, Page[Key]]("keys.listKeys", "GET /keys", "journal.read",
		"List the attestation keys and then those of the log, each oldest first")
	// RotateKey returns the keys as ListKeys does.
	RotateKey = define[KeyRotation, Page[Key]]("keys.rotateKey", "POST /keys/rotate", "trust.operate",
		"Replace the attestation key or the log's", Operation{Doc: "The journal introduces the new key and gets its first statement, " +
			"or its first checkpoint; calls go on. Verifiers want the trust directory again.", Effect: Mends})
)
