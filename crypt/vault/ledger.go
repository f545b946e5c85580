package vault

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// ActCommit is the administrative act that tells the journal a root. Its subject is the vault.
const ActCommit = "vault.commit"

// spelled is how ActCommit stands in a payload, which has one spelling.
const spelled = `"act":"` + ActCommit + `"`

// Detail returns the detail of the act.
func (r *Root) Detail() map[string]string {
	return map[string]string{"epoch": strconv.FormatUint(r.Epoch, 10), "root": r.Digest.String()}
}

// Newest returns the last root in entries of a journal and its index, nil if there is none. Each
// must be a leaf that a key of t signed, in force at its place.
func Newest(entries iter.Seq2[journal.Record, error], t *receipt.Trust) (root *Root, at uint64, err error) {
	for rec, err := range entries {
		if err != nil {
			return nil, 0, err
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return nil, 0, err
		}
		if !bytes.Contains(env.Payload, []byte(spelled)) {
			continue
		}
		if _, err := t.Logged(&rec); errors.Is(err, receipt.ErrKeyUnknown) {
			return nil, 0, err // t is older than a rotation, or the key is a stranger's
		} else if err != nil {
			return nil, 0, fault.New(fault.Integrity, "rolled_back", fmt.Sprintf("read entry %d", rec.Index), errors.New("its content isn't what was logged"))
		}
		_, a, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			return nil, 0, err
		}
		if a == nil || a.Act != ActCommit {
			continue // the text is a part of another one
		}
		r := &Root{Vault: a.Subject}
		if r.Epoch, err = strconv.ParseUint(a.Detail["epoch"], 10, 64); err == nil {
			r.Digest, err = canon.ParseDigest(a.Detail["root"])
		}
		if err != nil {
			return nil, 0, fault.New(fault.Integrity, "rolled_back", fmt.Sprintf("read entry %d", rec.Index), err)
		}
		root, at = r, rec.Index
	}
	return root, at, nil
}
