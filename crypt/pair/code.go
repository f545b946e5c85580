package pair

import (
	"crypto/rand"
	"crypto/subtle"
	"encoding/base32"
	"errors"
	"fmt"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bytes of a code: version, token, hash of the hub's enrolment key, and the beginning of a
// digest of the others, which finds typing errors. They are 56 characters of base32.
const (
	codeVersion = 1
	tokenSize   = 16
	keySize     = 16
	sumSize     = 2
	codeSize    = 1 + tokenSize + keySize + sumSize
	codeGroup   = 4

	// Scheme begins a code as a URI, which QR codes carry.
	Scheme = "palyra-pair:"
)

var codeAlphabet = base32.StdEncoding.WithPadding(base32.NoPadding)

// Code is what hub and device share: a one-time token, and the hash of the hub's enrolment key.
// It formats as a mask; Text and URI reveal it.
type Code struct {
	token [tokenSize]byte
	key   [keySize]byte
}

// NewCode makes a code for the hub with this enrolment key: DER of a SubjectPublicKeyInfo.
func NewCode(hubKey []byte) Code {
	c := Code{key: keyHash(hubKey)}
	_, _ = rand.Read(c.token[:]) // never fails; see crypto/rand.Read
	return c
}

func keyHash(hubKey []byte) (h [keySize]byte) {
	d := digestOf("key", hubKey)
	copy(h[:], d[:])
	return h
}

// ParseCode reads what Text or URI gave. Case, spaces and hyphens between characters don't
// count: people type it.
func ParseCode(s string) (c Code, _ error) {
	const op = "parse pairing code"
	bad := func(text string) (Code, error) {
		return Code{}, fault.New(fault.Usage, "invalid_input", op, errors.New(text)).
			WithHint("a code has fourteen groups of four letters and digits; palyra devices pair shows one")
	}
	if len(s) > 256 {
		return bad("it is too long")
	}
	s = strings.TrimSpace(s)
	if len(s) >= len(Scheme) && strings.EqualFold(s[:len(Scheme)], Scheme) {
		s = s[len(Scheme):]
	}
	s = strings.Map(func(r rune) rune {
		if r == '-' || r == ' ' || r == '\n' || r == '\r' || r == '\t' {
			return -1
		}
		return r
	}, s)
	if s = strings.ToUpper(s); len(s) != codeAlphabet.EncodedLen(codeSize) {
		return bad("it does not have 56 letters and digits")
	}
	b, err := codeAlphabet.DecodeString(s)
	switch {
	case err != nil:
		return bad("it has a character other than A-Z and 2-7")
	case b[0] != codeVersion:
		return bad(fmt.Sprintf("it has version %d, and this program knows %d", b[0], codeVersion))
	}
	copy(c.token[:], b[1:])
	copy(c.key[:], b[1+tokenSize:])
	if subtle.ConstantTimeCompare(c.bytes(), b) != 1 {
		return bad("it has a typing error")
	}
	return c, nil
}

func (c *Code) bytes() []byte {
	b := append([]byte{codeVersion}, c.token[:]...)
	b = append(b, c.key[:]...)
	sum := digestOf("code", b)
	return append(b, sum[:sumSize]...)
}

// Text returns the code in groups of four.
func (c *Code) Text() string {
	s := codeAlphabet.EncodeToString(c.bytes())
	var b strings.Builder
	for i := 0; i < len(s); i += codeGroup {
		if i > 0 {
			b.WriteByte('-')
		}
		b.WriteString(s[i : i+codeGroup])
	}
	return b.String()
}

// URI returns the code as a QR code carries it, in upper case: so it's shorter there.
func (c *Code) URI() string {
	return strings.ToUpper(Scheme) + codeAlphabet.EncodeToString(c.bytes())
}

// Names reports whether the code is one of the hub with this enrolment key. A device calls it
// while it connects, before it says anything.
func (c *Code) Names(hubKey []byte) bool {
	h := keyHash(hubKey)
	return subtle.ConstantTimeCompare(h[:], c.key[:]) == 1
}

// id is what the device sends to say which code it has. The token doesn't follow from it.
func (c *Code) id() canon.Digest { return digestOf("code id", c.token[:]) }

// String returns a mask.
func (Code) String() string { return "[code]" }

// Format implements fmt.Formatter with the mask, for every verb.
func (c Code) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(c.String())) }

// MarshalText implements encoding.TextMarshaler with the mask, and so JSON, too.
func (c Code) MarshalText() ([]byte, error) { return []byte(c.String()), nil }
