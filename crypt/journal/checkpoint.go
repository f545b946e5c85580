package journal

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

// Checkpoint is the statement that a log signs: at this size it had this root.
type Checkpoint struct {
	Origin string
	Size   uint64
	Root   [32]byte
}

// maxSize keeps sizes and indexes within what JSON numbers and tlog can hold.
const maxSize = 1 << 53

// Key is the public half of a key of the log.
type Key struct {
	VKey string
	// To is the size of the last checkpoint that it may sign; 0: any. The key in force may sign
	// checkpoints from before its time, since the tree of then is in that of now.
	To uint64
}

// Keys are the keys of a log, all of one name. A log keeps its name when its key is replaced.
type Keys []Key

// OneKey is a log that has had a single key, with this verifier key.
func OneKey(vkey string) Keys { return Keys{{VKey: vkey}} }

// ErrSigner is in the error for a checkpoint that none of the keys signed.
var ErrSigner = errors.New("not signed by a key of the log")

// OpenCheckpoint parses a signed note and checks that the log with this
// verifier key signed it. Its form is strict: three lines of text in their
// canonical spelling, and exactly one signature. Cosignatures of witnesses are
// kept elsewhere, not inside.
func OpenCheckpoint(msg []byte, vkey string) (Checkpoint, error) {
	c, _, err := OneKey(vkey).Open(msg)
	return c, err
}

// Open is OpenCheckpoint for a log with several keys, one of which must have signed in its time.
// It returns which.
func (ks Keys) Open(msg []byte) (Checkpoint, *Key, error) {
	var known []note.Verifier
	for i := range ks {
		v, err := note.NewVerifier(ks[i].VKey)
		if err != nil {
			return Checkpoint{}, nil, fmt.Errorf("open checkpoint: verifier key: %w", err)
		}
		known = append(known, v)
	}
	n, err := note.Open(msg, note.VerifierList(known...))
	if ue, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
		return Checkpoint{}, nil, fmt.Errorf("open checkpoint: %w: signed by %q, not by %q", ErrSigner, signers(ue.Note), ks.name())
	}
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 {
		return Checkpoint{}, nil, errors.New("open checkpoint: want exactly one signature")
	}
	c, err := parseText(n.Text)
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("open checkpoint: %w", err)
	}
	if c.Origin != n.Sigs[0].Name {
		return Checkpoint{}, nil, fmt.Errorf("open checkpoint: origin %q, want %q", c.Origin, n.Sigs[0].Name)
	}
	// note.Open ignores a repeated signature and reads base64 generously in one
	// place; there is one way to write this note.
	raw, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	if err != nil {
		return Checkpoint{}, nil, fmt.Errorf("open checkpoint: signature: %w", err)
	}
	again := n.Text + "\n\u2014 " + c.Origin + " " + base64.StdEncoding.EncodeToString(raw) + "\n"
	if !bytes.Equal([]byte(again), msg) {
		return Checkpoint{}, nil, errors.New("open checkpoint: not in canonical form")
	}
	for i, v := range known {
		if v.KeyHash() != n.Sigs[0].Hash {
			continue
		}
		if to := ks[i].To; to != 0 && c.Size > to {
			return Checkpoint{}, nil, fmt.Errorf("open checkpoint: its key ended at size %d, and this is size %d", to, c.Size)
		}
		return c, &ks[i], nil
	}
	panic("journal: internal error: a note that verifies under no key")
}

func (ks Keys) name() string {
	if len(ks) == 0 {
		return ""
	}
	name, _, _ := strings.Cut(ks[0].VKey, "+")
	return name
}

func signers(n *note.Note) string {
	var names []string
	for _, s := range n.UnverifiedSigs {
		names = append(names, fmt.Sprintf("%s+%08x", s.Name, s.Hash))
	}
	return strings.Join(names, ", ")
}

func parseText(text string) (Checkpoint, error) {
	l := strings.Split(text, "\n")
	if len(l) != 4 || l[3] != "" {
		return Checkpoint{}, errors.New("want the lines origin, size and root, and no others")
	}
	size, err := strconv.ParseUint(l[1], 10, 64)
	if err != nil || size > maxSize || strconv.FormatUint(size, 10) != l[1] {
		return Checkpoint{}, errors.New("size is no decimal number in canonical form")
	}
	c := Checkpoint{Origin: l[0], Size: size}
	root, err := base64.StdEncoding.Strict().DecodeString(l[2])
	if err != nil || len(root) != len(c.Root) {
		return Checkpoint{}, errors.New("root is no base64 of a SHA-256 digest")
	}
	copy(c.Root[:], root)
	return c, nil
}

// LeafHash returns the RFC 6962 hash of a leaf.
func LeafHash(leaf []byte) [32]byte { return tlog.RecordHash(leaf) }

// Verify checks that leaf is at p.Index in the tree of p.Size and p.Root. It
// does not look at the checkpoint: open that with OpenCheckpoint and compare.
func (p *Proof) Verify(leaf []byte) error {
	if p.Size > maxSize || p.Index >= p.Size || len(p.Hashes) > 64 {
		return errors.New("verify inclusion: index, size or number of hashes out of range")
	}
	rp := make(tlog.RecordProof, len(p.Hashes))
	for i, h := range p.Hashes {
		rp[i] = h
	}
	if err := tlog.CheckRecord(rp, int64(p.Size), p.Root, int64(p.Index), LeafHash(leaf)); err != nil {
		return fmt.Errorf("verify inclusion of entry %d in size %d: %w", p.Index, p.Size, err)
	}
	return nil
}
