// Package seal is the one envelope in which Palyra keeps secrets, and the type that holds a
// secret in memory. docs/formats/seal.md specifies it.
//
//	kek := seal.NewKey()
//	sealed, err := seal.Seal(kek, seal.Context{Purpose: "record", …}, value)
//	secret, err := seal.Open(kek, seal.Context{Purpose: "record", …}, sealed)
//	defer secret.Wipe()
//
//	stanza, err := recipient.Wrap(kek, context) // recipient.go: HPKE, or a passphrase
//	kek, err := identity.Unwrap(stanza, context)
//
// A [Key] seals values for a [Context]: purpose, scope, name, version and generation. Each part
// is authenticated with its length, so a sealed value opens for its own context alone: swapped
// names, older versions and other purposes are refused. The encryption commits to the key
// (package cobblestone) and hides the value's length up to a power of two.
//
// A [Secret] formats as a mask in package fmt, JSON and logs. Its bytes are locked outside the
// heap on Linux, where neither swap nor core dumps have them, until Wipe.
//
// # What it does not protect against
//
// Wiping is the best that Go can do: the runtime, package crypto and every reader of Bytes may
// have copied what they saw, in registers and on stacks too. Where the lock is refused
// (RLIMIT_MEMLOCK) and on other systems a secret may be swapped. Nothing here keeps an older
// sealed value from being put back under the same context: crypt/vault does.
package seal

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"palyra/crypt/seal/cobblestone"
	"palyra/internal/fault"
)

const (
	// magic begins what is sealed: the format and its version.
	magic = "palyra-seal/1\n"
	// label begins the context.
	label = "palyra.dev/seal/v1"

	// MaxValue bounds a sealed value, in bytes.
	MaxValue = 8 << 20
	minPad   = 256
	lengthOf = 4 // bytes of the length before the value
)

// ErrSealed is what Open wraps for anything that it can't open.
var ErrSealed = errors.New("seal: " + cobblestone.ErrOpen.Error())

// Context says what a sealed value is. All of it is authenticated, none of it is in the sealed
// bytes.
type Context struct {
	Purpose    string // the use of the value: each format has its own words
	Scope      string
	Name       string
	Version    uint64
	Generation uint64 // of the key
}

// bytes returns the one spelling of the context: each part with its length before it.
func (c Context) bytes() []byte {
	var b []byte
	for _, s := range []string{label, c.Purpose, c.Scope, c.Name} {
		b = binary.BigEndian.AppendUint32(b, uint32(len(s)))
		b = append(b, s...)
	}
	b = binary.BigEndian.AppendUint64(b, c.Version)
	return binary.BigEndian.AppendUint64(b, c.Generation)
}

// Key seals and opens. It is random, prints as a mask and can't be compared.
type Key struct {
	masked
	s Secret
}

// NewKey makes a key of random bytes.
func NewKey() *Key {
	k := &Key{s: *newSecret(cobblestone.KeySize)}
	_, _ = rand.Read(k.s.Bytes()) // never fails: crypto/rand
	return k
}

// ParseKey takes a key from bytes that it was kept as, and wipes them.
func ParseKey(b []byte) (*Key, error) {
	defer clear(b)
	if len(b) != cobblestone.KeySize {
		return nil, fmt.Errorf("key of %d bytes, want %d", len(b), cobblestone.KeySize)
	}
	return &Key{s: *NewSecret(b)}, nil
}

// Bytes returns the key's own bytes, to be kept in something that is sealed.
func (k *Key) Bytes() []byte { return k.s.Bytes() }

// Wipe ends the use of the key.
func (k *Key) Wipe() {
	if k != nil {
		k.s.Wipe()
	}
}

// padded returns the length that a value of n bytes is sealed as: a power of two, so that the
// length of what is sealed tells little.
func padded(n int) int {
	size := minPad
	for size < lengthOf+n {
		size *= 2
	}
	return size
}

// Seal seals value under k for c.
func Seal(k *Key, c Context, value []byte) ([]byte, error) {
	if len(value) > MaxValue {
		return nil, fault.New(fault.Usage, "too_large", "seal value", fmt.Errorf("%d bytes, limit %d", len(value), MaxValue))
	}
	frame := make([]byte, padded(len(value)))
	defer clear(frame)
	binary.BigEndian.PutUint32(frame, uint32(len(value)))
	copy(frame[lengthOf:], value)
	b, err := cobblestone.Seal(k.s.Bytes(), c.bytes(), frame)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "seal value", err)
	}
	return append([]byte(magic), b...), nil
}

// Open opens what Seal returned for the same key and context. It accepts one spelling alone.
func Open(k *Key, c Context, sealed []byte) (*Secret, error) {
	op := fmt.Sprintf("open sealed %s", c.Purpose)
	if len(sealed) < len(magic) || string(sealed[:len(magic)]) != magic {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("no sealed value of this version"))
	}
	if len(sealed) > len(magic)+cobblestone.Sealed(padded(MaxValue)) {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("longer than any"))
	}
	frame, err := cobblestone.Open(k.s.Bytes(), c.bytes(), sealed[len(magic):])
	if err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, ErrSealed)
	}
	defer clear(frame)
	if len(frame) < lengthOf {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("no frame"))
	}
	n := int(binary.BigEndian.Uint32(frame))
	if n > MaxValue || len(frame) != padded(n) || slices.ContainsFunc(frame[lengthOf+n:], func(b byte) bool { return b != 0 }) {
		return nil, fault.New(fault.Integrity, "store_corrupt", op, errors.New("wrong padding"))
	}
	return NewSecret(frame[lengthOf : lengthOf+n]), nil
}
