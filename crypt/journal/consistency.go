package journal

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// Consistency shows that the log of Size begins with the log of Old: no earlier entry was
// changed.
type Consistency struct {
	Old, Size  uint64
	Hashes     [][32]byte
	Checkpoint []byte // over Size
}

// ProveConsistency returns the proof that the whole log extends the one of size
// old, which must not be 0. ctx is as for Prove.
func (j *Journal) ProveConsistency(ctx context.Context, old uint64) (Consistency, error) {
	op := fmt.Sprintf("prove consistency with size %d", old)
	if err := j.settle(ctx); err != nil {
		return Consistency{}, durable.Fault(op, err)
	}
	j.mu.RLock()
	defer j.mu.RUnlock()
	if j.closed {
		return Consistency{}, errClosed(op)
	}
	c, err := j.tree.consistency(old)
	if err != nil {
		return Consistency{}, durable.Fault(op, err)
	}
	c.Checkpoint = j.note
	return c, nil
}

// consistency checks what it returns, as prove does.
func (t *tree) consistency(old uint64) (Consistency, error) {
	if old == 0 || old > t.size {
		return Consistency{}, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("prove consistency with size %d", old),
			fmt.Errorf("want 1 to %d", t.size))
	}
	tp, err := tlog.ProveTree(int64(t.size), int64(old), t)
	if err != nil {
		return Consistency{}, err
	}
	root, err := t.rootAt(old)
	if err != nil {
		return Consistency{}, err
	}
	if err := tlog.CheckTree(tp, int64(t.size), t.root, int64(old), root); err != nil {
		return Consistency{}, corrupt("tile_corrupt", fmt.Errorf("tiles do not lead from size %d to the root", old))
	}
	c := Consistency{Old: old, Size: t.size, Hashes: make([][32]byte, len(tp))}
	for i, h := range tp {
		c.Hashes[i] = h
	}
	return c, nil
}

// Verify checks that the tree of c.Size and root newRoot extends the one of
// c.Old and oldRoot. The roots come from checkpoints, opened with
// OpenCheckpoint.
func (c *Consistency) Verify(oldRoot, newRoot [32]byte) error {
	if c.Old == 0 || c.Old > c.Size || c.Size > maxSize || len(c.Hashes) > 128 {
		return errors.New("verify consistency: sizes or number of hashes out of range")
	}
	tp := make(tlog.TreeProof, len(c.Hashes))
	for i, h := range c.Hashes {
		tp[i] = h
	}
	if err := tlog.CheckTree(tp, int64(c.Size), newRoot, int64(c.Old), oldRoot); err != nil {
		return fmt.Errorf("verify consistency of size %d with size %d: %w", c.Size, c.Old, err)
	}
	return nil
}

// Text returns the proof as c2sp.org/tlog-proof@v1, a text that other tools
// read. The leaf is not in it.
func (p *Proof) Text() []byte {
	b := fmt.Appendf(nil, "c2sp.org/tlog-proof@v1\nindex %d\n", p.Index)
	for _, h := range p.Hashes {
		b = append(base64.StdEncoding.AppendEncode(b, h[:]), '\n')
	}
	b = append(b, '\n')
	return append(b, p.Checkpoint...)
}
