package vault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// Draft is a version that isn't stored yet. It's sealed already, so that a decision can be about
// its digest, which says nothing of the value: the record's key is random.
type Draft struct {
	vault      string
	generation uint64 // of the key that x.Key is sealed under
	ref        Ref
	x          version
	record     []byte
	by         Storer
}

// Version returns the number that the version gets.
func (d *Draft) Version() uint64 { return d.x.Version }

// Digest returns the digest of the sealed record, the file that Store writes.
func (d *Draft) Digest() canon.Digest { return d.x.Digest }

// Draft seals a value as the secret's next version. A zero expires is never. value stays the
// caller's to wipe. Nothing is written.
func (v *Vault) Draft(ctx context.Context, r Ref, value []byte, expires time.Time) (*Draft, error) {
	all, err := v.DraftAll(ctx, []NewValue{{Ref: r, Value: value, Expires: expires}})
	if err != nil {
		return nil, err
	}
	return all[0], nil
}

func checkValue(r Ref, value []byte) error {
	op := fmt.Sprintf("set secret %q", r)
	switch {
	case r == Ref{}:
		return fault.New(fault.Usage, "invalid_input", op, errors.New("no reference"))
	case len(value) == 0:
		return fault.New(fault.Usage, "invalid_input", op, errors.New("the value is empty"))
	case len(value) > MaxValue:
		return fault.New(fault.Usage, "too_large", op, fmt.Errorf("%d bytes, limit %d", len(value), MaxValue))
	}
	return nil
}

// DraftAgain seals the value of an older version as the next one, which makes it the newest. It
// expires when expires says, else when the older one does. An expired one is fault.Refused
// "secret_expired" unless expires says otherwise: nothing comes back by itself.
func (v *Vault) DraftAgain(ctx context.Context, r Ref, from uint64, expires time.Time) (d *Draft, err error) {
	err = v.with(ctx, func() error {
		x, err := v.version(r, from)
		if err != nil {
			return err
		}
		if i := x.info(r); expires.IsZero() && i.Expired() {
			return fault.New(fault.Refused, "secret_expired", fmt.Sprintf("roll back secret %q", r), fmt.Errorf("version %d expired on %s", from, x.Expires.Format(time.RFC3339))).
				WithHint("say until when its value is good: --expires TIME")
		}
		if expires.IsZero() && x.Expires != nil {
			expires = *x.Expires
		}
		s, err := v.open(r, x)
		if err != nil {
			return err
		}
		defer s.Wipe()
		d, err = v.draft(v.idx.clone(), NewValue{Ref: r, Value: s.Bytes(), Expires: expires})
		return err
	})
	return d, err
}

// draft seals a value. It makes room in idx, which no head gets.
func (v *Vault) draft(idx *index, n NewValue) (*Draft, error) {
	r, value := n.Ref, n.Value
	s, err := idx.room(fmt.Sprintf("set secret %q", r), r, n.By)
	if err != nil {
		return nil, err
	}
	x := version{Version: s.Last + 1, Generation: v.head.Generation, Record: strings.ToLower(rand.Text()), Size: len(value), Created: time.Now().UTC().Truncate(time.Second)}
	if !n.Expires.IsZero() {
		e := n.Expires.UTC().Truncate(time.Second)
		x.Expires = &e
	}
	key := seal.NewKey()
	defer key.Wipe()
	b, err := seal.Seal(key, x.context("vault/record", r, x.Generation), value)
	if err != nil {
		return nil, err
	}
	if x.Key, err = seal.Seal(v.kek, x.context("vault/record-key", r, v.head.Generation), key.Bytes()); err != nil {
		return nil, err
	}
	x.Digest = canon.Sum(b)
	s.Versions = append(s.Versions, x) // as place does
	return &Draft{v.head.Vault, v.head.Generation, r, x, b, n.By}, nil
}

// Store makes a draft the secret's newest version. Its record must be the one that has the digest
// want, and no other version or key of the vault may have come since it was drafted.
func (v *Vault) Store(ctx context.Context, d *Draft, want canon.Digest) error {
	return v.StoreAll(ctx, []*Draft{d}, []canon.Digest{want})
}
