// Package cobblestone is C2SP's chunked encryption with AES-256-GCM and SHA-512, Cobblestone-256
// (https://c2sp.org/chunked-encryption): authenticated encryption that commits to its key.
//
//	sealed, err := cobblestone.Seal(key, context, message)
//	message, err := cobblestone.Open(key, context, sealed)
//
// A message is sealed whole and opened whole. Each gets its own salt, from which HKDF-Expand
// derives the key and base nonce of AES-256-GCM and a commitment. Open compares the commitment
// before it decrypts a byte, so a sealed message opens under one input key and context alone.
//
// # What it does not protect against
//
// It hides neither the length of a message nor that two sealed messages are different ones. It
// isn't a FIPS 140 module. Package seal adds the context and padding of Palyra; use that.
package cobblestone

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha512"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes.
const (
	KeySize  = 32
	saltSize = 24
	commit   = 32
	header   = saltSize + commit
	nonce    = 12
	tag      = 16
	chunk    = 16 << 10
)

// label begins the info of HKDF-Expand.
const label = "c2sp.org/chunked-encryption@v1+AEAD_AES_256_GCM\x00"

// ErrOpen is all that Open says about a sealed message that it can't open: another key, another
// context and a changed byte are the same to it.
var ErrOpen = errors.New("sealed under another key or for another context, or changed")

// Sealed returns the length of a sealed message of n bytes.
func Sealed(n int) int { return header + n + (n/chunk+1)*tag }

// Seal returns message sealed under key for context. The key has KeySize random bytes.
func Seal(key, context, message []byte) ([]byte, error) {
	var salt [saltSize]byte
	_, _ = rand.Read(salt[:]) // never fails: crypto/rand
	return sealWith(key, &salt, context, message)
}

// sealWith is Seal with a given salt. A salt must not come twice under one key.
func sealWith(key []byte, salt *[saltSize]byte, context, message []byte) ([]byte, error) {
	d, err := derive(key, salt[:], context)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, Sealed(len(message)))
	out = append(append(out, salt[:]...), d.commitment...)
	for n := uint64(0); ; n++ {
		part := message[:min(len(message), chunk)]
		message = message[len(part):]
		out = d.aead.Seal(out, d.nonce(n), part, nil)
		if len(part) < chunk { // the last chunk is a short one, if need be an empty one
			return out, nil
		}
	}
}

// Open returns the message in sealed. On any error it returns no part of it.
func Open(key, context, sealed []byte) ([]byte, error) {
	if len(key) != KeySize {
		return nil, errKey(key)
	}
	if len(sealed) < header+tag {
		return nil, ErrOpen
	}
	d, err := derive(key, sealed[:saltSize], context)
	if err != nil {
		return nil, err
	}
	if subtle.ConstantTimeCompare(d.commitment, sealed[saltSize:header]) != 1 {
		return nil, ErrOpen
	}
	rest := sealed[header:]
	out := make([]byte, 0, len(rest))
	for n := uint64(0); ; n++ {
		part := rest[:min(len(rest), chunk+tag)]
		rest = rest[len(part):]
		opened, err := d.aead.Open(out, d.nonce(n), part, nil)
		if err != nil {
			clear(out[:cap(out)])
			return nil, ErrOpen
		}
		out = opened
		if len(part) == chunk+tag {
			continue // a full chunk is never the last one: the next may be empty, but is there
		}
		return out, nil // the part is short, so nothing is behind it
	}
}

// derived is what a key, a salt and a context become.
type derived struct {
	aead       cipher.AEAD
	base       [nonce]byte
	commitment []byte
}

func derive(key, salt, context []byte) (*derived, error) {
	if len(key) != KeySize {
		return nil, errKey(key)
	}
	b, err := hkdf.Expand(sha512.New, key, label+string(salt)+string(context), KeySize+nonce+commit)
	if err != nil {
		return nil, fmt.Errorf("derive message key: %w", err)
	}
	block, err := aes.NewCipher(b[:KeySize])
	clear(b[:KeySize])
	if err != nil {
		return nil, fmt.Errorf("derive message key: %w", err)
	}
	d := &derived{base: [nonce]byte(b[KeySize:]), commitment: b[KeySize+nonce:]}
	d.aead, err = cipher.NewGCM(block)
	return d, err
}

// nonce returns the nonce of the n-th chunk: the base nonce with n in its last bytes.
func (d *derived) nonce(n uint64) []byte {
	b := d.base
	binary.BigEndian.PutUint64(b[nonce-8:], binary.BigEndian.Uint64(b[nonce-8:])^n)
	return b[:]
}

func errKey(key []byte) error { return fmt.Errorf("key of %d bytes, want %d", len(key), KeySize) }
