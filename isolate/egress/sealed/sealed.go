// Package sealed passes values of secrets from a palyra to palyra-egress, each for one use in one
// call.
//
//	key, err := sealed.NewKey()                           // palyra-egress, for one session
//	box, err := sealed.Seal(key.Public(), capsule, u, v)  // palyra
//	v, err := key.Open(capsule, u, box)                   // palyra-egress
//
// It's HPKE (RFC 9180): X25519 with HKDF-SHA256, and ChaCha20-Poly1305. The info is the label
// "palyra egress use v1", a newline and canonical JSON of the capsule's digest, the use and its
// placeholder: a value opens for exactly that use of that call.
//
// What it does not protect against: the socket that carries the boxes is this host's, and so is
// palyra-egress's memory. Sealing keeps a value out of what is logged, dumped or mixed up on the
// way, and is no defence against a palyra-egress that was taken over.
package sealed

import (
	"crypto/ecdh"
	"crypto/hpke"
	"fmt"

	"palyra/internal/canon"
	"palyra/isolate/egress/wire"
)

// MaxValue is the longest value, in bytes, that is put into requests.
const MaxValue = 16 << 10

// Overhead is how much longer a box is than its value.
const Overhead = 32 + 16

const label = "palyra egress use v1\n"

// Key opens what was sealed for one session. Make one with NewKey.
type Key struct {
	private hpke.PrivateKey
	public  []byte
}

func kem() hpke.KEM { return hpke.DHKEM(ecdh.X25519()) }

// NewKey returns a new key.
func NewKey() (*Key, error) {
	p, err := kem().GenerateKey()
	if err != nil {
		return nil, fmt.Errorf("make a session's key: %w", err)
	}
	return &Key{p, p.PublicKey().Bytes()}, nil
}

// Public returns the public half, for Seal.
func (k *Key) Public() []byte { return k.public }

// String returns no part of the key.
func (k *Key) String() string { return "sealed.Key" }

// info binds a box to its use.
func info(capsule canon.Digest, u wire.Use) ([]byte, error) {
	b, err := canon.Marshal(struct {
		Capsule     canon.Digest `json:"capsule"`
		Placeholder string       `json:"placeholder"`
		Use         string       `json:"use"`
	}{capsule, u.Placeholder, u.Use})
	return append([]byte(label), b...), err
}

// Seal returns the value in a box that the holder of the key opens for this use in the call of this
// capsule.
func Seal(public []byte, capsule canon.Digest, u wire.Use, value []byte) ([]byte, error) {
	if len(value) == 0 || len(value) > MaxValue {
		return nil, fmt.Errorf("seal a value for a use: it has %d bytes, 1 to %d can be put in", len(value), MaxValue)
	}
	pub, err := kem().NewPublicKey(public)
	if err != nil {
		return nil, fmt.Errorf("palyra-egress's key: %w", err)
	}
	in, err := info(capsule, u)
	if err != nil {
		return nil, err
	}
	box, err := hpke.Seal(pub, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), in, value)
	if err != nil {
		return nil, fmt.Errorf("seal a value for a use: %w", err)
	}
	return box, nil
}

// Open returns the value, of which the caller wipes the memory.
func (k *Key) Open(capsule canon.Digest, u wire.Use, box []byte) ([]byte, error) {
	if len(box) <= Overhead || len(box) > MaxValue+Overhead {
		return nil, fmt.Errorf("open a value for a use: a box of %d bytes", len(box))
	}
	in, err := info(capsule, u)
	if err != nil {
		return nil, err
	}
	value, err := hpke.Open(k.private, hpke.HKDFSHA256(), hpke.ChaCha20Poly1305(), in, box)
	if err != nil {
		return nil, fmt.Errorf("open a value for a use: %w", err)
	}
	return value, nil
}
