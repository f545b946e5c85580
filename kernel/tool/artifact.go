package tool

import (
	"context"
	"crypto/sha256"
	"fmt"
	"io"

	"palyra/authz/policy"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
	"palyra/kernel"
)

// maxArtifact bounds the bytes hashed for one call.
const maxArtifact = 1 << 30

// expandArtifact reads the requested part and puts it behind the input. The cell sees that
// part and nothing of the store.
func expandArtifact(ctx context.Context, t *Table, e *entry, who policy.Entity, input any) (*kernel.Expansion, error) {
	in := input.(*toolproto.ArtifactReadInput)
	d, err := canon.ParseDigest(in.Digest)
	if err != nil {
		return nil, usage("invalid_input", "read digest", err)
	}
	part, size, err := t.part(ctx, who, d, in.Offset, in.Limit)
	if err != nil {
		return nil, err
	}
	in.Size = size
	x, err := expandPlain(ctx, t, e, who, in)
	if err != nil {
		return nil, err
	}
	x.Stdin = append(append(x.Stdin, '\n'), part...)
	return x, nil
}

// part reads an artifact to its end, because only then is its digest known, and returns a
// part of it.
func (t *Table) part(ctx context.Context, who policy.Entity, d canon.Digest, offset, limit int64) ([]byte, int64, error) {
	op := fmt.Sprintf("read artifact %s", d)
	r, size, err := t.cfg.Artifacts.Open(ctx, who, d)
	if err != nil {
		return nil, 0, err
	}
	defer r.Close()
	if size > maxArtifact {
		return nil, 0, fault.New(fault.Refused, "too_large", op, fmt.Errorf("%d bytes, limit %d", size, int64(maxArtifact)))
	}
	var part []byte
	h, at := sha256.New(), int64(0)
	for buf := make([]byte, 128<<10); ; {
		if ctx.Err() != nil {
			return nil, 0, fault.New(fault.Canceled, "canceled", op, context.Cause(ctx))
		}
		n, err := r.Read(buf)
		h.Write(buf[:n])
		if lo, hi := max(offset-at, 0), min(offset+limit-at, int64(n)); lo < hi {
			part = append(part, buf[lo:hi]...)
		}
		if at += int64(n); at > maxArtifact || err != nil && err != io.EOF {
			return nil, 0, fault.New(fault.Unavailable, "io_error", op, err)
		}
		if err == io.EOF {
			break
		}
	}
	if at != size || canon.Digest(h.Sum(nil)) != d {
		return nil, 0, fault.New(fault.Integrity, "store_corrupt", op, fmt.Errorf("its content has another digest"))
	}
	return part, size, nil
}
