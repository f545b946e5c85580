package access

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"strings"

	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

// A token is one line of lower-case ASCII:
//
//	palyra_<id>_<secret>_<check>
//
// id is 32 hexadecimal digits, that of "tok_<id>"; secret is 32 random bytes and check the
// CRC-32 (IEEE, big-endian) of all before its underscore, both in base32 (RFC 4648, lower
// case, no padding). There is one spelling. The check tells us and secret scanners that a
// text is a token and not mistyped; it authenticates nothing.
const (
	tokenMark = "palyra_"
	idLen     = 32
	secretLen = 52 // of 32 bytes
	checkLen  = 7  // of 4 bytes
	tokenLen  = len(tokenMark) + idLen + 1 + secretLen + 1 + checkLen
)

// base32lower refuses bits that do not count when it is asked to re-encode; see
// parse. Immutable: each request with a token uses it.
var base32lower = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// Secret is a token as its holder has it. It prints without its secret part; only Reveal
// returns that.
type Secret struct{ text string }

// Reveal returns the token, to be shown once.
func (s Secret) Reveal() string { return s.text }

// String returns the token's id and dots.
func (s Secret) String() string {
	if s.text == "" {
		return ""
	}
	return s.text[:len(tokenMark)+idLen+1] + "…"
}

// Format prints the result of String, whatever the verb.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, s.String()) }

// MarshalText returns the text of String.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

func (id tokenID) String() string {
	if id == (tokenID{}) {
		return ""
	}
	return ident.Token + "_" + hex.EncodeToString(id[:])
}

// parseTokenID reads "tok_…". "" is the zero id and an error.
func parseTokenID(s string) (id tokenID, err error) {
	text, ok := strings.CutPrefix(s, ident.Token+"_")
	if b, err := hex.DecodeString(text); ok && err == nil && len(b) == len(id) && hex.EncodeToString(b) == text {
		return tokenID(b), nil
	}
	return id, fault.New(fault.Usage, "invalid_input", "parse token id", fmt.Errorf("%.80q", s)).
		WithHint("an id is what the command that lists such things prints, as a whole: ses_..., run_..., apr_..., tok_...")
}

// newSecret makes a token.
func newSecret() (tokenID, [32]byte, Secret) {
	var id tokenID
	var secret [32]byte
	_, _ = rand.Read(id[:]) // never fails; see crypto/rand.Read
	_, _ = rand.Read(secret[:])
	return id, secret, Secret{text: format(id, secret)}
}

func format(id tokenID, secret [32]byte) string {
	b := make([]byte, 0, tokenLen)
	b = append(b, tokenMark...)
	b = append(hex.AppendEncode(b, id[:]), '_')
	b = base32lower.AppendEncode(b, secret[:])
	var check [4]byte
	binary.BigEndian.PutUint32(check[:], crc32.ChecksumIEEE(b))
	return string(base32lower.AppendEncode(append(b, '_'), check[:]))
}

// parse reads a token. Its errors are fault.Denied "unauthenticated" and say nothing about the
// text: it may be a secret of another service.
func parse(text string) (id tokenID, secret [32]byte, err error) {
	bad := func(why string) (tokenID, [32]byte, error) {
		return tokenID{}, [32]byte{}, fault.New(fault.Denied, "unauthenticated", "authenticate", errors.New(why))
	}
	if len(text) != tokenLen || !strings.HasPrefix(text, tokenMark) {
		return bad("it does not have the form of a token")
	}
	rest := text[len(tokenMark):]
	if rest[idLen] != '_' || rest[idLen+1+secretLen] != '_' {
		return bad("it does not have the form of a token")
	}
	b, err1 := hex.DecodeString(rest[:idLen])
	s, err2 := base32lower.DecodeString(rest[idLen+1 : idLen+1+secretLen])
	if err1 != nil || err2 != nil || len(b) != len(id) || len(s) != len(secret) {
		return bad("it does not have the form of a token")
	}
	copy(id[:], b)
	copy(secret[:], s)
	// One spelling: upper case in the id, and the bits that base32 leaves over.
	if subtle.ConstantTimeCompare([]byte(format(id, secret)), []byte(text)) != 1 {
		return bad("its check digits do not fit: it is mistyped or cut")
	}
	return id, secret, nil
}

// Key keys the hashes under which tokens are kept, so that a reader of the database can't
// even tell whether a guess is right. It prints as nothing.
type Key struct{ b [32]byte }

// Format prints no part of the key, whatever the verb.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "access.Key") }

// hash is HMAC-SHA-256 over a label, the id and the secret: the hash of one token doesn't
// fit another's row.
func (k Key) hash(id tokenID, secret [32]byte) (h [32]byte) {
	m := hmac.New(sha256.New, k.b[:])
	m.Write([]byte("palyra/access/token/v1\x00"))
	m.Write(id[:])
	m.Write(secret[:])
	m.Sum(h[:0])
	return h
}

func equal(a, b [32]byte) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// OpenKey reads the key in the file at path, 64 hexadecimal digits and a line end, mode
// 0600, and makes it if there is none. Tokens work only with the key that they were made
// with: back it up, or mint new tokens.
func OpenKey(path string) (k Key, err error) {
	op := fmt.Sprintf("open token key %q", path)
	b, err := durable.ReadPrivate(path, 128)
	if errors.Is(err, fs.ErrNotExist) {
		_, _ = rand.Read(k.b[:]) // never fails; see crypto/rand.Read
		err = durable.WriteFile(path, []byte(hex.EncodeToString(k.b[:])+"\n"), 0o600)
		return k, durable.Fault(op, err)
	}
	if err != nil {
		return Key{}, err
	}
	raw, err := hex.DecodeString(strings.TrimSuffix(string(b), "\n"))
	if err != nil || len(raw) != len(k.b) || hex.EncodeToString(raw)+"\n" != string(b) {
		return Key{}, fault.New(fault.BadState, "key_corrupt", op, errors.New("it is not 64 hexadecimal digits and a line end"))
	}
	copy(k.b[:], raw)
	return k, nil
}
