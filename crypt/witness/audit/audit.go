// Package audit holds a journal to what its witnesses saw (package witness).
//
//	rep, err := receipt.Audit(journalDir, trust)  // first: it verifies every entry
//	ws, err := audit.Read(stateDir, trust)
//
// It doesn't protect against a writer of the state directory who removes what witnesses left
// there: the witnesses remember.
package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/crypt/witness"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// maxRecord bounds the file of a witness, in bytes.
const maxRecord = 1 << 16

// The acts about devices that count here, as palyra/hub/local writes them.
const (
	actEnrol  = "device.enrol"
	actRevoke = "device.revoke"
	actRemove = "device.remove" // of one that has expired
)

// Witness is what a device saw of a journal.
type Witness struct {
	Device     string    `json:"device"`
	VKey       string    `json:"vkey,omitempty"`
	Registered uint64    `json:"registered,omitempty"` // the entry that names its key
	Size       uint64    `json:"size,omitempty"`       // how many entries it saw
	Time       time.Time `json:"time,omitzero"`        // when, by its clock
	// Ended is the entry by which the device was revoked, replaced or removed since. nil: it wasn't.
	Ended *uint64 `json:"ended,omitempty"`
	// Problem says why it counts for nothing, "" if it counts.
	Problem string `json:"problem,omitempty"`
}

// registration is an entry that names a witness's key.
type registration struct {
	device, vkey, key string
	ended             *uint64
}

// Read returns what the witnesses of a state directory saw of its journal, whose entries
// receipt.Audit has verified. An error is fault.Integrity if one of them, with a key that the
// journal names, saw more entries or others: journal_rolled_back and journal_checkpoint_split.
func Read(state string, t *receipt.Trust) ([]Witness, error) {
	dir := filepath.Join(state, witness.Folder)
	files, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return []Witness{}, nil
	}
	if err != nil {
		return nil, durable.Fault(fmt.Sprintf("read witnesses in %q", dir), err)
	}
	r, err := journal.OpenReader(filepath.Join(state, "journal"))
	if err != nil {
		return nil, err
	}
	defer r.Close()
	known, err := registrations(r)
	if err != nil {
		return nil, err
	}
	var keys witness.Keys
	for _, k := range t.LogKeys() {
		keys = append(keys, witness.LogKey(k))
	}
	ws := []Witness{}
	for _, f := range files {
		device, ok := strings.CutSuffix(f.Name(), ".json")
		if !ok {
			continue // a temporary file of a process that was killed
		}
		b, err := durable.ReadRegular(filepath.Join(dir, f.Name()), maxRecord)
		if err != nil {
			return nil, err
		}
		w, err := look(device, b, known, keys, r)
		if err != nil {
			return nil, err
		}
		ws = append(ws, w)
	}
	return ws, nil
}

// registrations returns the witnesses that a journal names, by the index of the entry.
func registrations(r *journal.Reader) (map[uint64]*registration, error) {
	out := make(map[uint64]*registration)
	for rec, err := range r.Entries(0, r.Size()) {
		if err != nil {
			return nil, err
		}
		e, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return nil, err
		}
		_, a, err := receipt.ParsePayload(e.Payload)
		if err != nil {
			return nil, err
		}
		switch {
		case a == nil:
		case a.Act == witness.ActRegister:
			out[rec.Index] = &registration{device: a.Subject, vkey: a.Detail["vkey"], key: a.Detail["key"]}
		case a.Act == actRevoke || a.Act == actRemove || a.Act == actEnrol:
			for _, x := range out {
				if x.device == a.Subject && x.ended == nil {
					x.ended = &rec.Index
				}
			}
		}
	}
	return out, nil
}

func look(device string, b []byte, known map[uint64]*registration, keys witness.Keys, r *journal.Reader) (Witness, error) {
	w := Witness{Device: device}
	problem := func(format string, args ...any) (Witness, error) {
		w.Problem = fmt.Sprintf(format, args...)
		return w, nil
	}
	rec, err := witness.ParseRecord(b)
	if err != nil || rec.Device != device {
		return problem("its file is damaged, or of another device")
	}
	w.VKey, w.Registered = rec.VKey, rec.Registered
	reg := known[rec.Registered]
	if reg == nil || reg.device != device || reg.vkey != rec.VKey || reg.key != rec.Key.String() {
		return problem("the journal doesn't name its key")
	}
	w.Ended = reg.ended
	p, err := witness.ParseVKey(rec.VKey)
	if err != nil {
		return problem("%v", err)
	}
	c, err := p.Open([]byte(rec.Cosigned), keys)
	if errors.Is(err, witness.ErrSigner) {
		return problem("it saw a key of the log that the trust directory doesn't have: fetch that again")
	}
	if err != nil {
		return problem("%v", err)
	}
	w.Size, w.Time = c.Size, c.Time
	const op = "compare journal with witnesses"
	saw := fmt.Sprintf("%s saw %d entries on %s", device, c.Size, c.Time.Format(time.RFC3339))
	if c.Size > r.Size() {
		return w, fault.New(fault.Integrity, "journal_rolled_back", op, fmt.Errorf("%s, and there are %d", saw, r.Size()))
	}
	root, err := r.RootAt(c.Size)
	if err != nil {
		return w, err
	}
	if root != c.Root {
		return w, fault.New(fault.Integrity, "journal_checkpoint_split", op, fmt.Errorf("%s, and those here are others", saw))
	}
	return w, nil
}
