package vault

import (
	"bytes"
	"errors"
	"fmt"
	"iter"
	"strconv"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
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

// Newest returns the last root in entries of a journal, nil if there is none. Each must be a leaf
// that k signed.
func Newest(entries iter.Seq2[journal.Record, error], k *keyring.AttestationKey) (root *Root, err error) {
	for rec, err := range entries {
		if err != nil {
			return nil, err
		}
		if rec.Erased {
			continue // acts are never erased
		}
		env, err := receipt.ParseEnvelope(rec.Content)
		if err != nil {
			return nil, err
		}
		if !bytes.Contains(env.Payload, []byte(spelled)) {
			continue
		}
		if leaf, err := receipt.Leaf(env, k); err != nil || !bytes.Equal(leaf, rec.Leaf) {
			return nil, fault.New(fault.Integrity, "vault_rolled_back", fmt.Sprintf("read entry %d", rec.Index), errors.New("its content isn't what was logged"))
		}
		_, a, err := receipt.ParsePayload(env.Payload)
		if err != nil {
			return nil, err
		}
		if a == nil || a.Act != ActCommit {
			continue // the text is a part of another one
		}
		r := &Root{Vault: a.Subject}
		if r.Epoch, err = strconv.ParseUint(a.Detail["epoch"], 10, 64); err == nil {
			r.Digest, err = canon.ParseDigest(a.Detail["root"])
		}
		if err != nil {
			return nil, fault.New(fault.Integrity, "vault_rolled_back", fmt.Sprintf("read entry %d", rec.Index), err)
		}
		root = r
	}
	return root, nil
}
