package hub

// Key is an attestation key: the public half of one that signed this installation's statements.
type Key struct {
	Hint string `json:"hint"` // receipts name it so
	File string `json:"file"` // in the trust directory
	// State is "introduced", "in_force" or "ended".
	State string `json:"state"`
	// From is the first entry of the journal that may be its, and To the first that may not any
	// more; without it there is none yet.
	From uint64  `json:"from"`
	To   *uint64 `json:"to,omitempty"`
	// Start and End are those entries' times, in RFC 3339.
	Start string `json:"start"`
	End   string `json:"end,omitempty"`
}

// KeyRotation asks for another attestation key.
type KeyRotation struct {
	IntroduceOnly bool `json:"introduce_only,omitempty"` // put it in force by another rotation
}

// Attestation keys.
var (
	ListKeys = define[None, Page[Key]]("keys.listKeys", "GET /keys", "journal.read",
		"List the attestation keys, oldest first")
	// RotateKey returns the keys as ListKeys does.
	RotateKey = define[KeyRotation, Page[Key]]("keys.rotateKey", "POST /keys/rotate", "trust.operate",
		"Replace the attestation key", Operation{Doc: "The journal introduces the new key and gets its first statement; calls " +
			"go on. Verifiers want the trust directory again.", Effect: Mends})
)
