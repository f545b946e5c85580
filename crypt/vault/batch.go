package vault

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// NewValue is a value that a secret is to get. It's its owner's to wipe.
type NewValue struct {
	Ref     Ref
	Value   []byte
	Expires time.Time // zero: never
	By      Storer
}

// DraftAll is Draft for several secrets, each once, all of one state of the vault.
func (v *Vault) DraftAll(ctx context.Context, values []NewValue) (out []*Draft, err error) {
	seen := make(map[Ref]bool, len(values))
	for i := range values {
		x := &values[i]
		if err := checkValue(x.Ref, x.Value); err != nil {
			return nil, err
		}
		if seen[x.Ref] {
			return nil, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("set secret %q", x.Ref), errors.New("it comes twice"))
		}
		seen[x.Ref] = true
	}
	err = v.with(ctx, func() error {
		idx := v.idx.clone()
		for i := range values {
			d, err := v.draft(idx, values[i])
			if err != nil {
				return err
			}
			out = append(out, d)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Info describes the version that the draft becomes.
func (d *Draft) Info() Info { return d.x.info(d.ref) }

// StoreAll is Store for several drafts, all or none: one new head names their records.
func (v *Vault) StoreAll(ctx context.Context, drafts []*Draft, want []canon.Digest) error {
	if len(drafts) == 0 || len(drafts) != len(want) {
		return fault.New(fault.Usage, "invalid_input", "set secrets", fmt.Errorf("%d records for %d digests", len(drafts), len(want)))
	}
	for i, d := range drafts {
		if d.x.Digest != want[i] || canon.Sum(d.record) != want[i] {
			return fault.New(fault.Refused, "invalid_input", fmt.Sprintf("set secret %q", d.ref), errors.New("the record is another one than was decided about"))
		}
	}
	return v.with(ctx, func() error {
		idx := v.idx.clone()
		for _, d := range drafts {
			if err := v.place(idx, d); err != nil {
				return err
			}
		}
		// Files that no head names are removed by the next change.
		for _, d := range drafts {
			if err := durable.WriteFileSteps(v.record(&d.x), d.record, 0o600, func(s string) { v.step("record " + s) }); err != nil {
				return durable.Fault(fmt.Sprintf("set secret %q", d.ref), err)
			}
		}
		return v.commit(ctx, v.head, idx, v.kek)
	})
}

// place enters a draft as its secret's newest version.
func (v *Vault) place(idx *index, d *Draft) error {
	op := fmt.Sprintf("set secret %q", d.ref)
	s, err := idx.room(op, d.ref, d.by)
	if err != nil {
		return err
	}
	if d.vault != v.head.Vault || d.generation != v.head.Generation || d.x.Version != s.Last+1 {
		return fault.New(fault.Busy, "changed", op, fmt.Errorf("since it was to be version %d the secret got another, or the vault another key", d.x.Version)).
			WithHint("try again")
	}
	s.Last = d.x.Version
	s.Versions = append(s.Versions, d.x)
	s.Versions = slices.Clone(s.Versions[max(0, len(s.Versions)-MaxVersions):])
	return nil
}
