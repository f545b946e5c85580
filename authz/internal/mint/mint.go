// Package mint makes grants. It is internal to authz: nobody else can import
// it, so nobody else can make a grant that verifies.
//
// A grant is a MAC under a key that lives as long as one pair of kernel and
// runner. The runner holds the same key: it is the one who would be deceived,
// so it gains nothing by forging.
package mint

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"time"

	"palyra/internal/canon"
)

const label = "palyra/grant/v1\x00"

// Grant is the sealed permission to run one Spec once. The zero Grant verifies
// nowhere. It is exported to the rest of the program as authz/grant.Grant.
type Grant struct {
	body Body
	mac  [sha256.Size]byte
}

// Body is what a grant binds.
type Body struct {
	Capsule  canon.Digest
	Spec     canon.Digest
	Decision [16]byte  // decision id
	NotAfter time.Time // wall clock, second precision
	Nonce    [16]byte
}

// Key is the key that a minter and its runner share.
type Key struct{ k [32]byte }

// NewKey returns a random key.
func NewKey() Key {
	var k Key
	rand.Read(k.k[:])
	return k
}

// KeyFromBytes restores a key that came over the start-up channel.
func KeyFromBytes(b [32]byte) Key { return Key{b} }

// Bytes returns the key for the start-up channel.
func (k Key) Bytes() [32]byte { return k.k }

// String does not print the key.
func (k Key) String() string { return "grant key" }

func (b *Body) encode() []byte {
	out := append([]byte(label), b.Capsule[:]...)
	out = append(out, b.Spec[:]...)
	out = append(out, b.Decision[:]...)
	out = binary.BigEndian.AppendUint64(out, uint64(b.NotAfter.Unix()))
	return append(out, b.Nonce[:]...)
}

func (k Key) mac(b *Body) (m [sha256.Size]byte) {
	h := hmac.New(sha256.New, k.k[:])
	h.Write(b.encode())
	h.Sum(m[:0])
	return m
}

// Mint returns a grant with a fresh nonce.
func Mint(k Key, capsule, spec canon.Digest, decision [16]byte, notAfter time.Time) Grant {
	g := Grant{body: Body{Capsule: capsule, Spec: spec, Decision: decision, NotAfter: notAfter.Truncate(time.Second)}}
	rand.Read(g.body.Nonce[:])
	g.mac = k.mac(&g.body)
	return g
}

// Check reports whether g was minted under k. The zero Grant never was.
func (k Key) Check(g Grant) bool {
	if g.body.Capsule.IsZero() || g.body.Spec.IsZero() {
		return false
	}
	want := k.mac(&g.body)
	return hmac.Equal(want[:], g.mac[:])
}

// Body returns what the grant binds.
func (g Grant) Body() Body { return g.body }

// MarshalBinary returns the wire form: 136 bytes (two digests, decision,
// not-after seconds, nonce, MAC).
func (g Grant) MarshalBinary() ([]byte, error) {
	return append(g.body.encode()[len(label):], g.mac[:]...), nil
}

// UnmarshalBinary is the inverse of MarshalBinary. The result is worth nothing
// until Check says so.
func (g *Grant) UnmarshalBinary(b []byte) error {
	const n = 32 + 32 + 16 + 8 + 16 + 32
	if len(b) != n {
		return errLength
	}
	copy(g.body.Capsule[:], b)
	copy(g.body.Spec[:], b[32:])
	copy(g.body.Decision[:], b[64:])
	g.body.NotAfter = time.Unix(int64(binary.BigEndian.Uint64(b[80:])), 0)
	copy(g.body.Nonce[:], b[88:])
	copy(g.mac[:], b[104:])
	return nil
}
