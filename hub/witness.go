package hub

// JournalWatch is a witness's question: has the journal grown from what it was?
type JournalWatch struct {
	Old uint64 `json:"old,omitempty" in:"query" doc:"the size that the witness remembers; without it, the answer has the log's keys"`
}

// JournalView is what a witness judges. The hub says nothing that the checkpoint and the hashes
// don't prove.
type JournalView struct {
	Checkpoint string   `json:"checkpoint"` // the newest signed note
	Hashes     [][]byte `json:"hashes"`     // RFC 6962 §2.1.2, if the old size is smaller
	// Keys is trust/log-keys.json, or trust/log.vkey where the key was never replaced.
	Keys []byte `json:"keys,omitempty"`
}

// Cosignature is a device's, as a witness of the journal.
type Cosignature struct {
	VKey string `json:"vkey"` // verifier key of type 0x04, under the device's name
	Note string `json:"note"` // the checkpoint with one cosignature behind the log's signature
}

// Witnesses of the journal: devices.
var (
	WatchJournal = define[JournalWatch, JournalView]("journal.watchJournal", "GET /journal/watch", Authenticated,
		"Show a witness the newest checkpoint, and prove that it extends an older one")
	// CosignJournal keeps the newest cosignature of each device.
	CosignJournal = define[Cosignature, None]("journal.cosignJournal", "POST /journal/cosignatures", Authenticated,
		"Keep a device's cosignature of a checkpoint", Operation{Doc: "Over a connection with the device's certificate. Its first key is the " +
			"device's for good, and an entry of the journal.", Status: 204, Effect: Mends})
)
