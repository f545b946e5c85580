// Package grant is the sealed value that says a capsule may run.
//
// Every package can hold, send and verify a [Grant]; only packages below authz can make one
// that verifies. The zero Grant is refused everywhere.
//
// A grant binds a capsule digest, a Spec digest, a decision id, an expiry and a nonce.
// [Verifier] checks all of them and refuses a nonce it has seen. A grant expires by the
// wall clock. The Verifier forgets its nonce only when the monotonic clock says so, too:
// setting the clock forward and back again brings no grant back.
//
// # What it does not protect against
//
// A clock that is set back to before the end of a grant whose nonce was forgotten. Only the
// holders of the key have the bytes of that grant, and they can mint another.
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

// Key is shared by the granter and the runner that verifies. It lives as long as their
// connection.
type Key = mint.Key

// NewKey returns a random key. The process that starts a runner makes the key and hands it
// to both sides; it never touches a disk.
func NewKey() Key { return mint.NewKey() }

// KeyFromBytes restores a key that came over the start-up channel.
func KeyFromBytes(b [32]byte) Key { return mint.KeyFromBytes(b) }

// The reasons why a grant is refused.
var (
	ErrInvalid  = errors.New("grant: not minted for this runner")
	ErrMismatch = errors.New("grant: bound to another spec")
	ErrExpired  = errors.New("grant: expired")
	ErrReplayed = errors.New("grant: already used")
)

// Verifier checks grants for one runner. Make one with NewVerifier.
type Verifier struct {
	key  Key
	wall func() time.Time
	mono func() time.Duration // since some moment

	mu    sync.Mutex
	used  map[[16]byte]end // by nonce; guarded by mu; swept as they expire
	swept time.Duration    // guarded by mu; when it was, by mono
}

// end is the end of a grant by each of the clocks.
type end struct {
	wall int64 // Unix seconds, the last one in which it is good
	mono time.Duration
}

// sweepEvery is how often Verify looks for expired nonces: thousands may be in force, and
// otherwise each call would look at them all.
const sweepEvery = time.Second

// NewVerifier returns a Verifier for grants minted under key.
func NewVerifier(key Key) *Verifier {
	began := time.Now()
	return &Verifier{key: key, wall: time.Now, mono: func() time.Duration { return time.Since(began) }, used: make(map[[16]byte]end)}
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
	now, mono := v.wall().Round(0), v.mono()
	if now.After(b.NotAfter) {
		return ErrExpired
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.used[b.Nonce]; ok {
		return ErrReplayed
	}
	if mono-v.swept >= sweepEvery {
		v.swept = mono
		for n, e := range v.used {
			if now.Unix() > e.wall && mono > e.mono {
				delete(v.used, n)
			}
		}
	}
	v.used[b.Nonce] = end{b.NotAfter.Unix(), mono + b.NotAfter.Sub(now)}
	return nil
}
