package canon

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// Digest is a SHA-256 digest. Its text form is "sha256:" and 64 lower-case
// hexadecimal digits. The zero Digest means "none" and has the empty text form.
type Digest [sha256.Size]byte

// Sum returns the digest of b.
func Sum(b []byte) Digest { return sha256.Sum256(b) }

// ParseDigest is the inverse of String. It refuses any other spelling.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if s == "" {
		return d, nil
	}
	h, ok := strings.CutPrefix(s, "sha256:")
	if !ok || len(h) != 2*len(d) || h != strings.ToLower(h) {
		return d, fmt.Errorf("parse digest %q: want sha256: and 64 lower-case hex digits", s)
	}
	if _, err := hex.Decode(d[:], []byte(h)); err != nil {
		return Digest{}, fmt.Errorf("parse digest %q: %v", s, err)
	}
	return d, nil
}

// IsZero reports whether d is the zero Digest.
func (d Digest) IsZero() bool { return d == Digest{} }

// Hex returns the 64 hexadecimal digits without the prefix.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// String returns the text form.
func (d Digest) String() string {
	if d.IsZero() {
		return ""
	}
	return "sha256:" + d.Hex()
}

// MarshalText implements encoding.TextMarshaler.
func (d Digest) MarshalText() ([]byte, error) { return d.AppendText(nil) }

// AppendText implements encoding.TextAppender.
func (d Digest) AppendText(b []byte) ([]byte, error) {
	if d.IsZero() {
		return b, nil
	}
	return hex.AppendEncode(append(b, "sha256:"...), d[:]), nil
}

// UnmarshalText implements encoding.TextUnmarshaler.
func (d *Digest) UnmarshalText(b []byte) (err error) {
	*d, err = ParseDigest(string(b))
	return err
}
