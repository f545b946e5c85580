// Package keystore keeps the idempotency keys of HTTP requests in the working
// state, so that they outlive the daemon:
//
//	httpapi.New(httpapi.Config{Hub: h, Keys: keystore.New(st, h.MayAdd)})
//
// # Contract
//
// A key that was reserved is reserved on disk before its request does anything, and an
// answer is on disk before Finish returns. A key whose request was under way when the
// process ended stays so until it expires, after a day: it is unknown whether the request
// took effect, and it must not do so twice.
//
// The package doesn't protect against a request that takes longer than a day.
package keystore

import (
	"context"
	"errors"
	"sync"
	"time"

	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/transport/httpapi"
)

// life is how long a key is kept, sweep how often expired keys are removed, and batch how
// many of them with one request, which waits for it: some 5 ms.
const (
	life  = 24 * time.Hour
	sweep = time.Hour
	batch = 1000
)

// Keys are httpapi.Keys in a store. They are safe for concurrent use.
type Keys struct {
	store  *store.Store
	mayAdd func(principal string) error

	mu    sync.Mutex
	swept time.Time // all that were over then are gone; guarded by mu
}

var _ httpapi.Keys = (*Keys)(nil)

// New returns the keys of a store. mayAdd says why a principal may add nothing more; it
// waits for nothing.
func New(s *store.Store, mayAdd func(principal string) error) *Keys {
	return &Keys{store: s, mayAdd: mayAdd}
}

// Begin implements httpapi.Keys.
func (k *Keys) Begin(ctx context.Context, principal, key string, request canon.Digest) (answer []byte, err error) {
	now := time.Now()
	if k.due(now) {
		if err := k.sweep(ctx, now); err != nil {
			return nil, err
		}
	}
	err = k.store.Update(ctx, func(tx *store.Tx) error {
		had, err := tx.BeginIdempotent(store.Idempotency{Principal: principal, Key: key, Request: request, Created: now, Expires: now.Add(life)})
		switch {
		case err != nil:
			return err
		case had == nil:
			return k.mayAdd(principal) // its error undoes it
		case had.Response == nil:
			return fault.New(fault.Busy, "locked", "begin idempotent request", errors.New("a request with the key is under way")).
				WithHint("the request with this key is under way, or was when palyrad ended; look whether it happened")
		}
		answer = had.Response
		return nil
	})
	return answer, err
}

// due reports whether it is time to sweep, or to go on sweeping.
func (k *Keys) due(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return now.Sub(k.swept) >= sweep
}

// sweep removes a batch of expired keys. If the batch was full, the next request removes
// another: requests remove more keys than they bring.
func (k *Keys) sweep(ctx context.Context, now time.Time) error {
	var n int
	err := k.store.Update(ctx, func(tx *store.Tx) (err error) {
		n, err = tx.ExpireIdempotent(batch)
		return err
	})
	if err == nil && n < batch {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.swept = now
	}
	return err
}

// Finish implements httpapi.Keys.
func (k *Keys) Finish(ctx context.Context, principal, key string, answer []byte) error {
	return k.store.Update(ctx, func(tx *store.Tx) error { return tx.FinishIdempotent(principal, key, answer) })
}

// Abandon implements httpapi.Keys.
func (k *Keys) Abandon(ctx context.Context, principal, key string) error {
	return k.store.Update(ctx, func(tx *store.Tx) error { return tx.AbandonIdempotent(principal, key) })
}
