package vault

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"palyra/crypt/seal"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// each is how many records a change seals under new keys besides what it's for: a MiB at most.
const each = 16

// RotateValues is RotateKey that gives each value a new key, too: who had a key of before can open
// neither the records to come nor those that are. It is one head for the vault's key, and one for
// each 16 records. If ctx is done in between, left records keep their keys until later changes,
// which seal 16 each, have come to them; both kinds open. A record that is damaged keeps its own.
func (v *Vault) RotateValues(ctx context.Context, drop ...string) (left int, err error) {
	if err := v.rotate(ctx, true, drop); err != nil {
		return 0, err
	}
	for left = v.idx.stale(); left > 0 && ctx.Err() == nil; {
		err = v.with(ctx, func() error {
			before := v.idx.stale()
			if before > 0 {
				if err := v.commit(ctx, v.head, v.idx.clone(), v.kek); err != nil {
					return err
				}
			}
			left = v.idx.stale()
			if left == before {
				return errNoProgress
			}
			return nil
		})
		if err == errNoProgress {
			return left, nil
		}
		if err != nil {
			break
		}
	}
	if ctx.Err() != nil {
		err = nil // what was begun goes on by itself
	}
	return left, err
}

var errNoProgress = errors.New("what is left is damaged")

// Stale returns how many records wait for new keys.
func (v *Vault) Stale() int { return v.idx.stale() }

func (i *index) stale() (n int) {
	for _, s := range i.Secrets {
		for _, x := range s.Versions {
			if x.Generation < i.Renew {
				n++
			}
		}
	}
	return n
}

// renew seals some of an index's records under new keys. The index is to be that of a head of this
// generation, whose key is k; the vault still has the state before. Called with the lock.
func (v *Vault) renew(generation uint64, idx *index, k *seal.Key) error {
	done, left := 0, 0
	for i := range idx.Secrets {
		s := &idx.Secrets[i]
		for j := range s.Versions {
			x := &s.Versions[j]
			if x.Generation >= idx.Renew {
				continue
			}
			if done == each {
				left++
				continue
			}
			ok, err := v.renewOne(s.Ref, x, generation, k)
			if err != nil {
				return err
			}
			if ok {
				done++
			} else {
				left++
			}
		}
	}
	if left == 0 {
		idx.Renew = 0
	}
	return nil
}

// renewOne seals a version's value under a new key, into a new file. ok is false if it can't be
// read.
func (v *Vault) renewOne(r Ref, x *version, generation uint64, k *seal.Key) (ok bool, err error) {
	was, err := v.version(r, x.Version)
	if err != nil {
		return false, err
	}
	value, err := v.open(r, was)
	if fault.KindOf(err) == fault.Integrity {
		return false, nil // Check says so
	}
	if err != nil {
		return false, err
	}
	defer value.Wipe()
	next := *x
	next.Generation, next.Record = generation, strings.ToLower(rand.Text())
	key := seal.NewKey()
	defer key.Wipe()
	b, err := seal.Seal(key, next.context("vault/record", r, generation), value.Bytes())
	if err != nil {
		return false, err
	}
	if next.Key, err = seal.Seal(k, next.context("vault/record-key", r, generation), key.Bytes()); err != nil {
		return false, err
	}
	next.Digest = canon.Sum(b)
	if err := durable.WriteFileSteps(v.record(&next), b, 0o600, func(s string) { v.step("renew " + s) }); err != nil {
		return false, durable.Fault(fmt.Sprintf("write a record of %q", r), err)
	}
	*x = next
	return true, nil
}
