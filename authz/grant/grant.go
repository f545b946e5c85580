// Package grant is the sealed value that says a capsule may run.
//
// Others can hold, send and verify a [Grant]; only packages below authz can
// make one that verifies. The zero Grant is refused everywhere.
//
// A grant binds a capsule digest, a Spec digest, a decision id, an expiry and a
// nonce. [Verifier] checks all of them and refuses a nonce it has seen.
package grant

import (
	"errors"
	"sync"
	"time"

	"palyra/authz/internal/mint"
	"palyra/internal/canon"
)

// Grant is the permission to run one Spec once.
type Grant = mint.Grant

// Key is shared by the one who grants and the runner who verifies. It lives as
// long as their connection.
type Key = mint.Key

// NewKey returns a random key. Whoever starts a runner makes it and hands it to
// both sides; it never touches a disk.
func NewKey() Key { return mint.NewKey() }

// KeyFromBytes restores a key that came over the start-up channel.
func KeyFromBytes(b [32]byte) Key { return mint.KeyFromBytes(b) }

// The ways a grant can be no good.
var (
	ErrInvalid  = errors.New("grant: not minted for this runner")
	ErrMismatch = errors.New("grant: bound to another spec")
	ErrExpired  = errors.New("grant: expired")
	ErrReplayed = errors.New("grant: already used")
)

// Verifier checks grants for one runner. Make one with NewVerifier.
type Verifier struct {
	key Key
	now func() time.Time

	mu    sync.Mutex
	used  map[[16]byte]time.Time // nonce → not-after; swept as they expire
	swept time.Time              // when it was
}

// sweepEvery is how often expired nonces are looked for: thousands may be in
// force, and each call would look at them all.
const sweepEvery = time.Second

// NewVerifier returns a Verifier for grants minted under key.
func NewVerifier(key Key) *Verifier {
	return &Verifier{key: key, now: time.Now, used: make(map[[16]byte]time.Time)}
}

// Verify accepts g once, for the Spec with this capsule and spec digest.
func (v *Verifier) Verify(g Grant, capsule, spec canon.Digest) error {
	if !v.key.Check(g) {
		return ErrInvalid
	}
	b := g.Body()
	if b.Capsule != capsule || b.Spec != spec {
		return ErrMismatch
	}
	now := v.now()
	if now.After(b.NotAfter) {
		return ErrExpired
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.used[b.Nonce]; ok {
		return ErrReplayed
	}
	if now.Sub(v.swept) >= sweepEvery {
		v.swept = now
		for n, t := range v.used {
			if now.After(t) {
				delete(v.used, n)
			}
		}
	}
	v.used[b.Nonce] = b.NotAfter
	return nil
}
