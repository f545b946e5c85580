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

// OpenCheckpoint parses a signed note and checks that the log with this
// verifier key signed it. Its form is strict: three lines of text in their
// canonical spelling, and exactly one signature. Cosignatures of witnesses are
// kept elsewhere, not inside.
func OpenCheckpoint(msg []byte, vkey string) (Checkpoint, error) {
	v, err := note.NewVerifier(vkey)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("open checkpoint: verifier key: %w", err)
	}
	n, err := note.Open(msg, note.VerifierList(v))
	if ue, ok := errors.AsType[*note.UnverifiedNoteError](err); ok {
		return Checkpoint{}, fmt.Errorf("open checkpoint: signed by %q, not by %q", signers(ue.Note), v.Name())
	}
	if err != nil {
		return Checkpoint{}, fmt.Errorf("open checkpoint: %w", err)
	}
	if len(n.Sigs) != 1 || len(n.UnverifiedSigs) != 0 {
		return Checkpoint{}, errors.New("open checkpoint: want exactly one signature")
	}
	c, err := parseText(n.Text)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("open checkpoint: %w", err)
	}
	if c.Origin != v.Name() {
		return Checkpoint{}, fmt.Errorf("open checkpoint: origin %q, want %q", c.Origin, v.Name())
	}
	// note.Open ignores a repeated signature and reads base64 generously in one
	// place; there is one way to write this note.
	raw, err := base64.StdEncoding.Strict().DecodeString(n.Sigs[0].Base64)
	if err != nil {
		return Checkpoint{}, fmt.Errorf("open checkpoint: signature: %w", err)
	}
	again := n.Text + "\n\u2014 " + c.Origin + " " + base64.StdEncoding.EncodeToString(raw) + "\n"
	if !bytes.Equal([]byte(again), msg) {
		return Checkpoint{}, errors.New("open checkpoint: not in canonical form")
	}
	return c, nil
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
