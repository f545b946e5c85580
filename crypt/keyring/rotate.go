package keyring

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A rotation replaces the attestation key. The journal says that it happened; the files follow:
//
//	keys/att-next.key  the next key, from before it is introduced until it is in force
//	keys/att.json      the history of keys, as far as the files have followed
//
//	PrepareNext        writes the next key
//	                   (the journal introduces it, and gets its first statement)
//	Publish            writes history and public halves, then puts next in the place of att.key
//
// Publish may be done again after a crash at any of its steps. Its caller, and that of
// PrepareNext, holds the state directory's lock for rotations (package kernel).
const (
	nextFile    = "att-next.key"
	historyFile = "att.json"
)

// HistoryFile is the history in a trust directory.
const HistoryFile = "keys.json"

// Next returns the key that is to follow, nil if none is prepared.
func (r *Ring) Next() *AttestationKey { return r.next }

// History returns the history of attestation keys, nil if there was one key only.
func (r *Ring) History() *History { return r.history }

// PrepareNext makes the next attestation key in the state directory dir, durably, sealed as the
// one in force is. step is called after each change.
func (r *Ring) PrepareNext(dir string, step func(string)) (*AttestationKey, error) {
	path := filepath.Join(dir, keysDir, nextFile)
	op := fmt.Sprintf("make key %q", path)
	k, err := newAttestationKey()
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	n := named{nextFile, k.Hint(), k.encode}
	b, err := n.content(r.to)
	if err != nil {
		return nil, durable.Fault(op, err)
	}
	defer clear(b)
	return k, durable.Fault(op, durable.WriteFileSteps(path, b, 0o600, func(s string) { step("keys:next:" + s) }))
}

// DropNext removes the next key of the state directory dir, which the journal doesn't introduce.
func DropNext(dir string) error {
	keys := filepath.Join(dir, keysDir)
	err := os.Remove(filepath.Join(keys, nextFile))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = durable.SyncDir(keys)
	}
	return durable.Fault(fmt.Sprintf("remove prepared key of %q", dir), err)
}

// Publish brings the files of the state directory dir up to h: keys/att.json, the files of
// trust/, and, if h has the next key in force, that in the place of keys/att.key, whose private
// half is gone then. step is called after each change.
func (r *Ring) Publish(dir string, h *History, step func(string)) error {
	keys, trust := filepath.Join(dir, keysDir), filepath.Join(dir, trustDir)
	op := fmt.Sprintf("publish keys of %q", dir)
	b, err := h.Encode()
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if len(b) > maxHistory {
		return fault.New(fault.Unavailable, "too_large", op, fmt.Errorf("a history of %d bytes, limit %d", len(b), maxHistory))
	}
	now := h.Current().SPKI
	promote := !bytes.Equal(now, r.att.spki)
	if promote && (r.next == nil || !bytes.Equal(now, r.next.spki)) {
		return fault.New(fault.Integrity, "key_corrupt", op, errors.New("the journal has another key in force, which isn't here")).
			WithHint("restore keys/ from a backup that was made since")
	}
	put := func(path string, b []byte, perm os.FileMode) error {
		if got, err := durable.ReadRegular(path, maxHistory); err == nil && bytes.Equal(got, b) {
			return nil
		}
		name := filepath.Base(path)
		if strings.HasPrefix(name, "att-") {
			name = "public"
		}
		return durable.Fault(op, durable.WriteFileSteps(path, b, perm, func(s string) { step("keys:" + name + ":" + s) }))
	}
	if err := put(filepath.Join(keys, historyFile), b, 0o600); err != nil {
		return err
	}
	if err := durable.MkdirAll(trust, 0o755); err != nil {
		return durable.Fault(op, err)
	}
	for _, f := range h.publicFiles(b) {
		if err := put(filepath.Join(trust, f.name), f.want, 0o644); err != nil {
			return err
		}
	}
	if !promote {
		return nil
	}
	if err := os.Rename(filepath.Join(keys, nextFile), filepath.Join(keys, attFile)); err != nil {
		return durable.Fault(op, err)
	}
	step("keys:promoted")
	return durable.Fault(op, durable.SyncDir(keys))
}

// publicFile is a file of a trust directory.
type publicFile struct {
	name string
	want []byte
}

// publicFiles are those that follow from a history and its encoding.
func (h *History) publicFiles(encoded []byte) []publicFile {
	var out []publicFile
	for i := range h.Keys {
		out = append(out, publicFile{h.Keys[i].File, encodePublicPEM(h.Keys[i].SPKI)})
	}
	return append(out, publicFile{HistoryFile, encoded}, publicFile{AttestationPublicFile, encodePublicPEM(h.Current().SPKI)})
}
