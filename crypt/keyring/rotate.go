package keyring

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/crypt/seal"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A rotation replaces the attestation key or the log's. The journal says that it happened; the
// files follow:
//
//	keys/att-next.key  the next key, from before it is introduced until it is in force
//	keys/att.json      the history of keys, as far as the files have followed
//	keys/log-next.key  the same for the log's key
//	keys/log.json
//
//	PrepareNext        writes the next key
//	                   (the journal introduces it, and gets its first statement, or the first
//	                   checkpoint that it signs)
//	Publish            writes history and public halves, then puts next in the place of the key
//
// Publish may be done again after a crash at any of its steps. Its caller, and that of
// PrepareNext, holds the state directory's lock for rotations (HoldRotations).
const (
	nextFile       = "att-next.key"
	historyFile    = "att.json"
	logNextFile    = "log-next.key"
	logHistoryFile = "log.json"
)

// The histories in a trust directory.
const (
	HistoryFile    = "keys.json"
	LogHistoryFile = "log-keys.json"
)

// rotateLock is the file, beside keys/, that is locked for rotations, and rotatePatience bounds the
// wait for another process's, which takes some flushes.
const (
	rotateLock     = "rotating"
	rotatePatience = 10 * time.Second
)

// HoldRotations takes the lock of the state directory dir for rotations: until release no other
// process replaces a key.
func HoldRotations(ctx context.Context, dir string) (release func(), err error) {
	g, err := durable.OpenGate(filepath.Join(dir, rotateLock))
	if err != nil {
		return nil, err
	}
	if err := g.Take(ctx, durable.Exclusive, rotatePatience); err != nil {
		_ = g.Close() // it has no lock
		return nil, err
	}
	return func() { _ = g.Close() }, nil // nothing is buffered in it
}

// Next returns the key that is to follow, nil if none is prepared.
func (r *Ring) Next() *AttestationKey { return r.next }

// History returns the history of attestation keys, nil if there was one key only.
func (r *Ring) History() *History { return r.history }

// NextLog returns the log's key that is to follow, nil if none is prepared.
func (r *Ring) NextLog() *LogKey { return r.nextLog }

// LogHistory returns the history of the log's keys, nil if there was one key only.
func (r *Ring) LogHistory() *History { return r.logHistory }

// PrepareNext makes the next attestation key in the state directory dir, durably, sealed as the
// one in force is. step is called after each change.
func (r *Ring) PrepareNext(dir string, step func(string)) (*AttestationKey, error) {
	k, err := newAttestationKey()
	if err != nil {
		return nil, durable.Fault("make attestation key", err)
	}
	return k, prepare(dir, named{nextFile, k.Hint(), k.encode}, r.to, step)
}

// PrepareNextLog is PrepareNext for the log's key. The log keeps its name.
func (r *Ring) PrepareNextLog(dir string, step func(string)) (*LogKey, error) {
	k, err := newLogKey(r.log.origin)
	if err != nil {
		return nil, durable.Fault("make log key", err)
	}
	return k, prepare(dir, named{logNextFile, k.VKey(), func() ([]byte, error) { return k.encode(), nil }}, r.logTo, step)
}

func prepare(dir string, n named, to []*seal.PublicKey, step func(string)) error {
	path := filepath.Join(dir, keysDir, n.file)
	op := fmt.Sprintf("make key %q", path)
	b, err := n.content(to)
	if err != nil {
		return durable.Fault(op, err)
	}
	defer clear(b)
	return durable.Fault(op, durable.WriteFileSteps(path, b, 0o600, func(s string) { step("keys:next:" + s) }))
}

// DropNext removes the next attestation key of the state directory dir, which the journal doesn't
// introduce.
func DropNext(dir string) error { return dropNext(dir, nextFile) }

// DropNextLog is DropNext for the log's key.
func DropNextLog(dir string) error { return dropNext(dir, logNextFile) }

func dropNext(dir, file string) error {
	keys := filepath.Join(dir, keysDir)
	err := os.Remove(filepath.Join(keys, file))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = durable.SyncDir(keys)
	}
	return durable.Fault(fmt.Sprintf("remove prepared key of %q", dir), err)
}

// files are where a history and its keys are in keys/, and whether its key in force is that of r,
// and its next one.
func (r *Ring) files(h *History) (history, key, next string, is, follows bool) {
	now := h.Current()
	if h.OfLog() {
		return logHistoryFile, logFile, logNextFile, now.VKey == r.log.VKey(), r.nextLog != nil && now.VKey == r.nextLog.VKey()
	}
	return historyFile, attFile, nextFile, r.att.Is(now.SPKI), r.next != nil && r.next.Is(now.SPKI)
}

// Publish brings the files of the state directory dir up to h: keys/att.json or keys/log.json, the
// files of trust/, and, if h has the next key in force, that in the place of the key, whose
// private half is gone then. step is called after each change.
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
	historyFile, keyFile, nextFile, is, follows := r.files(h)
	promote := !is
	if promote && !follows {
		return fault.New(fault.Integrity, "key_corrupt", op, errors.New("the journal has another key in force, which isn't here")).
			WithHint("restore keys/ from a backup that was made since")
	}
	put := func(path string, b []byte, perm os.FileMode) error {
		if got, err := durable.ReadRegular(path, maxHistory); err == nil && bytes.Equal(got, b) {
			return nil
		}
		name := filepath.Base(path)
		if strings.HasPrefix(name, "att-") || strings.HasSuffix(name, ".vkey") && name != LogVKeyFile {
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
	files, err := h.publicFiles(b)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	for _, f := range files {
		if err := put(filepath.Join(trust, f.name), f.want, 0o644); err != nil {
			return err
		}
	}
	if !promote {
		return nil
	}
	if err := os.Rename(filepath.Join(keys, nextFile), filepath.Join(keys, keyFile)); err != nil {
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

// publicFiles are those that follow from a history and its encoding, what vouches for the others
// last.
func (h *History) publicFiles(encoded []byte) ([]publicFile, error) {
	var out []publicFile
	for i := range h.Keys {
		t := &h.Keys[i]
		b := []byte(t.VKey + "\n")
		if !h.OfLog() {
			b = encodePublicPEM(t.SPKI)
		}
		out = append(out, publicFile{t.File, b})
	}
	if !h.OfLog() {
		return append(out, publicFile{HistoryFile, encoded}, publicFile{AttestationPublicFile, encodePublicPEM(h.Current().SPKI)}), nil
	}
	root, err := h.TrustedRoot()
	return append(out, publicFile{LogHistoryFile, encoded}, publicFile{TrustedRootFile, root},
		publicFile{LogVKeyFile, []byte(h.Current().VKey + "\n")}), err
}
