package witness

import (
	"bytes"
	"errors"
	"fmt"

	"palyra/internal/canon"
)

// Folder is the folder of a state directory that has a Record of each witness, named RecordFile.
const Folder = "witnesses"

// ActRegister is the act with which the journal names the key of a witness. Its subject is the
// device; its details are vkey and key, the digest of the device's own key.
const ActRegister = "witness.register"

// RecordFile returns the name of a device's Record in Folder.
func RecordFile(device string) string { return device + ".json" }

// Record is what a hub keeps of a witness: canonical JSON and a newline.
type Record struct {
	Version    int          `json:"version"` // MemoryVersion
	Device     string       `json:"device"`
	Key        canon.Digest `json:"key"` // of the device's own key
	VKey       string       `json:"vkey"`
	Registered uint64       `json:"registered"` // index of the ActRegister
	Cosigned   string       `json:"cosigned"`   // the newest checkpoint with its cosignature
}

// Encode returns the file.
func (r *Record) Encode() ([]byte, error) { return encode(r) }

// ParseRecord is the inverse of Encode. It verifies no signature.
func ParseRecord(b []byte) (*Record, error) {
	var r Record
	if err := canon.Decode(b, &r, canon.Limits{Bytes: 1 << 16}); err != nil {
		return nil, err
	}
	if r.Version != MemoryVersion {
		return nil, fmt.Errorf("version %d, want %d", r.Version, MemoryVersion)
	}
	if again, err := r.Encode(); err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("not in its canonical spelling")
	}
	return &r, nil
}
