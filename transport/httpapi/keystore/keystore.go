// Package keystore keeps the idempotency keys of HTTP requests in the working
// state, so that they outlive the daemon:
//
//	httpapi.New(httpapi.Config{Hub: h, Keys: keystore.New(st)})
//
// # Contract
//
// A key that was reserved is reserved on disk before its request does anything,
// and an answer is on disk before Finish returns. A key whose request was under
// way when the process ended stays so until it expires, after a day: nobody
// knows whether it happened, and it does not happen twice.
//
// What it does not protect against: a request that takes longer than a day.
package keystore

import (
	"context"
	"sync"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/kernel/store"
	"palyra/transport/httpapi"
)

// life is how long a key is kept, sweep how often those that are over are removed.
const (
	life  = 24 * time.Hour
	sweep = time.Hour
)

// Keys are httpapi.Keys in a store. They are safe for concurrent use.
type Keys struct {
	store *store.Store

	mu    sync.Mutex
	swept time.Time // guarded by mu
}

var _ httpapi.Keys = (*Keys)(nil)

// New returns the keys of a store.
func New(s *store.Store) *Keys { return &Keys{store: s} }

// Begin implements httpapi.Keys.
func (k *Keys) Begin(ctx context.Context, principal, key string, request canon.Digest) (answer []byte, err error) {
	now := time.Now()
	due := k.due(now)
	err = k.store.Update(ctx, func(tx *store.Tx) error {
		if due {
			if _, err := tx.ExpireIdempotent(); err != nil {
				return err
			}
		}
		had, err := tx.BeginIdempotent(store.Idempotency{Principal: principal, Key: key, Request: request, Created: now, Expires: now.Add(life)})
		switch {
		case err != nil || had == nil:
			return err
		case had.Response == nil:
			return fault.New(fault.Busy, "idempotency_key_in_progress", "begin idempotent request", nil).
				WithHint("the request with this key is under way, or was when palyrad ended; look whether it happened")
		}
		answer = had.Response
		return nil
	})
	return answer, err
}

// due reports whether it is time to sweep, once.
func (k *Keys) due(now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if now.Sub(k.swept) < sweep {
		return false
	}
	k.swept = now
	return true
}

// Finish implements httpapi.Keys.
func (k *Keys) Finish(ctx context.Context, principal, key string, answer []byte) error {
	return k.store.Update(ctx, func(tx *store.Tx) error { return tx.FinishIdempotent(principal, key, answer) })
}

// Abandon implements httpapi.Keys.
func (k *Keys) Abandon(ctx context.Context, principal, key string) error {
	return k.store.Update(ctx, func(tx *store.Tx) error { return tx.AbandonIdempotent(principal, key) })
}
