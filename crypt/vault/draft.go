package vault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/durable"
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
}

// Version returns the number that the version gets.
func (d *Draft) Version() uint64 { return d.x.Version }

// Digest returns the digest of the sealed record, the file that Store writes.
func (d *Draft) Digest() canon.Digest { return d.x.Digest }

// Draft seals a value as the secret's next version. A zero expires is never. value stays the
// caller's to wipe. Nothing is written.
func (v *Vault) Draft(ctx context.Context, r Ref, value []byte, expires time.Time) (d *Draft, err error) {
	op := fmt.Sprintf("set secret %q", r)
	switch {
	case r == Ref{}:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("no reference"))
	case len(value) == 0:
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the value is empty"))
	case len(value) > MaxValue:
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("%d bytes, limit %d", len(value), MaxValue))
	}
	err = v.with(ctx, func() error {
		d, err = v.draft(op, r, value, expires)
		return err
	})
	return d, err
}

// DraftAgain seals the value of an older version as the next one, which makes it the newest.
func (v *Vault) DraftAgain(ctx context.Context, r Ref, from uint64) (d *Draft, err error) {
	err = v.with(ctx, func() error {
		x, err := v.version(r, from)
		if err != nil {
			return err
		}
		s, err := v.open(r, x)
		if err != nil {
			return err
		}
		defer s.Wipe()
		d, err = v.draft(fmt.Sprintf("roll back secret %q", r), r, s.Bytes(), time.Time{})
		return err
	})
	return d, err
}

func (v *Vault) draft(op string, r Ref, value []byte, expires time.Time) (*Draft, error) {
	idx := v.idx.clone()
	s, err := idx.room(op, r)
	if err != nil {
		return nil, err
	}
	x := version{Version: s.Last + 1, Generation: v.head.Generation, Record: strings.ToLower(rand.Text()), Size: len(value), Created: time.Now().UTC().Truncate(time.Second)}
	if !expires.IsZero() {
		e := expires.UTC().Truncate(time.Second)
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
	return &Draft{v.head.Vault, v.head.Generation, r, x, b}, nil
}

// room returns the secret's place in the index, which it makes if there is none.
func (i *index) room(op string, r Ref) (*secret, error) {
	at, ok := i.find(r)
	if !ok {
		if len(i.Secrets) >= MaxSecrets {
			return nil, fault.New(fault.Refused, "too_large", op, fmt.Errorf("the vault has %d secrets, its most", MaxSecrets))
		}
		i.Secrets = slices.Insert(i.Secrets, at, secret{Ref: r})
	}
	return &i.Secrets[at], nil
}

// Store makes a draft the secret's newest version. Its record must be the one that has the digest
// want, and no other version or key of the vault may have come since it was drafted.
func (v *Vault) Store(ctx context.Context, d *Draft, want canon.Digest) error {
	op := fmt.Sprintf("set secret %q", d.ref)
	if d.x.Digest != want || canon.Sum(d.record) != want {
		return fault.New(fault.Refused, "invalid_input", op, errors.New("the record is another one than was decided about"))
	}
	return v.with(ctx, func() error {
		idx := v.idx.clone()
		s, err := idx.room(op, d.ref)
		if err != nil {
			return err
		}
		if d.vault != v.head.Vault || d.generation != v.head.Generation || d.x.Version != s.Last+1 {
			return fault.New(fault.Busy, "changed", op, fmt.Errorf("since it was to be version %d the secret got another, or the vault another key", d.x.Version)).
				WithHint("try again")
		}
		if err := durable.WriteFileSteps(v.record(&d.x), d.record, 0o600, func(s string) { v.step("record " + s) }); err != nil {
			return durable.Fault(op, err)
		}
		s.Last = d.x.Version
		s.Versions = append(s.Versions, d.x)
		s.Versions = s.Versions[max(0, len(s.Versions)-MaxVersions):]
		return v.commit(ctx, v.head, idx, v.kek)
	})
}
