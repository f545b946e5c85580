package vault

import (
	"context"
	"errors"
	"fmt"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Find describes a version of a secret, 0 for the newest, and returns the digest of its record,
// which says nothing of the value. Nothing is opened.
func (v *Vault) Find(ctx context.Context, r Ref, n uint64) (i Info, record canon.Digest, err error) {
	err = v.with(ctx, func() error {
		x, err := v.version(r, n)
		if err == nil {
			i, record = x.info(r), x.Digest
		}
		return err
	})
	return i, record, err
}

// GetRecord is Get for the version that has this record, and no other.
func (v *Vault) GetRecord(ctx context.Context, r Ref, n uint64, record canon.Digest) (s *seal.Secret, err error) {
	err = v.with(ctx, func() error {
		x, err := v.version(r, n)
		if err != nil {
			return err
		}
		if n == 0 || x.Digest != record {
			return fault.New(fault.Refused, "changed", fmt.Sprintf("open secret %q", r), errors.New("its record is another one than was decided about"))
		}
		s, _, err = v.get(r, n)
		return err
	})
	return s, err
}
