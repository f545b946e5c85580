package keyring

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// algEd25519 is the signed-note signature type of Ed25519 (C2SP signed-note).
const algEd25519 = 0x01

const signerPrefix = "PRIVATE+KEY+" // of a signed-note signer key

// LogKey signs checkpoints of one log with Ed25519. It is opaque and prints as
// its verifier key, which is public.
type LogKey struct {
	_      [0]func() // not comparable
	priv   ed25519.PrivateKey
	origin string
}

func newLogKey(origin string) (*LogKey, error) {
	pub, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate log key: %w", err)
	}
	if origin == "" {
		d := sha256.Sum256(pub)
		origin = hex.EncodeToString(d[:8]) + ".palyra.local"
	}
	if err := validOrigin(origin); err != nil {
		return nil, err
	}
	return &LogKey{priv: priv, origin: origin}, nil
}

func (k *LogKey) pub() ed25519.PublicKey { return k.priv.Public().(ed25519.PublicKey) }

// encode writes the signed-note signer key form,
// PRIVATE+KEY+<name>+<hash>+<base64 of type and seed>, and a newline.
func (k *LogKey) encode() []byte {
	return fmt.Appendf(nil, "%s%s+%08x+%s\n", signerPrefix, k.origin, noteHash(k.origin, k.pub()),
		base64.StdEncoding.EncodeToString(append([]byte{algEd25519}, k.priv.Seed()...)))
}

// parseLogKey accepts exactly what encode writes. Its errors never hold key
// material.
func parseLogKey(b []byte) (*LogKey, error) {
	s, ok := strings.CutPrefix(string(b), signerPrefix)
	f := strings.SplitN(strings.TrimSuffix(s, "\n"), "+", 3)
	if !ok || len(f) != 3 {
		return nil, errors.New("log key: want one line PRIVATE+KEY+name+hash+key")
	}
	if err := validOrigin(f[0]); err != nil {
		return nil, fmt.Errorf("log key: name: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 1+ed25519.SeedSize || raw[0] != algEd25519 {
		return nil, errors.New("log key: want the base64 of an Ed25519 seed")
	}
	k := &LogKey{priv: ed25519.NewKeyFromSeed(raw[1:]), origin: f[0]}
	if !bytes.Equal(k.encode(), b) {
		return nil, errors.New("log key: hash or encoding does not match the key")
	}
	return k, nil
}

// Origin returns the log's name, the first line of its checkpoints.
func (k *LogKey) Origin() string { return k.origin }

// KeyID returns the log's identity in Sigstore terms: SHA-256 of
// origin ‖ "\n" ‖ 0x01 ‖ public key. Its first four bytes are the note key hash.
func (k *LogKey) KeyID() [32]byte { return logID(k.origin, k.pub()) }

// VKey returns the public half as a signed-note verifier key.
func (k *LogKey) VKey() string { return vkey(k.origin, k.pub()) }

// SignCheckpoint returns the signed note (C2SP tlog-checkpoint, without
// extension lines) that says: the log of this key's origin has this size and
// this RFC 6962 root. The same tree always gives the same bytes.
//
// Abuse: two roots for one size are a split view. The journal calls it only with trees that
// extend those it signed before, and Signed keeps its signatures of other trees to itself.
func (k *LogKey) SignCheckpoint(size uint64, root [32]byte) []byte {
	text := k.origin + "\n" + strconv.FormatUint(size, 10) + "\n" + base64.StdEncoding.EncodeToString(root[:]) + "\n"
	sig := make([]byte, 4, 4+ed25519.SignatureSize)
	binary.BigEndian.PutUint32(sig, noteHash(k.origin, k.pub()))
	sig = append(sig, ed25519.Sign(k.priv, []byte(text))...)
	return []byte(text + "\n\u2014 " + k.origin + " " + base64.StdEncoding.EncodeToString(sig) + "\n")
}

// Signed reports whether note is the result of SignCheckpoint for this tree. It signs again
// and compares, which takes an eighth of the time of a first verification: Ed25519
// signatures are deterministic (RFC 8032 §5.1.6).
func (k *LogKey) Signed(note []byte, size uint64, root [32]byte) bool {
	return subtle.ConstantTimeCompare(note, k.SignCheckpoint(size, root)) == 1
}

// Public returns the public half.
func (k *LogKey) Public() *LogPublic {
	return &LogPublic{Origin: k.origin, Key: k.pub(), ID: k.KeyID()}
}

// String returns the verifier key.
func (k *LogKey) String() string { return k.VKey() }

// Format prints the verifier key, whatever the verb.
func (k *LogKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }

func logID(origin string, pub ed25519.PublicKey) [32]byte {
	b := make([]byte, 0, len(origin)+2+len(pub))
	b = append(b, origin...)
	b = append(b, '\n', algEd25519)
	return sha256.Sum256(append(b, pub...))
}

func noteHash(origin string, pub ed25519.PublicKey) uint32 {
	id := logID(origin, pub)
	return binary.BigEndian.Uint32(id[:])
}

func vkey(origin string, pub ed25519.PublicKey) string {
	return fmt.Sprintf("%s+%08x+%s", origin, noteHash(origin, pub),
		base64.StdEncoding.EncodeToString(append([]byte{algEd25519}, pub...)))
}

// LogPublic is the public half of a LogKey, parsed from its verifier key.
type LogPublic struct {
	Origin string
	Key    ed25519.PublicKey
	ID     [32]byte // see LogKey.KeyID
}

// ParseVKey parses a signed-note verifier key of an Ed25519 log whose name is a
// bare host name. It refuses any other spelling of the same key.
func ParseVKey(s string) (*LogPublic, error) {
	f := strings.SplitN(s, "+", 3)
	if len(f) != 3 {
		return nil, errors.New("parse verifier key: want name+hash+key")
	}
	if err := validOrigin(f[0]); err != nil {
		return nil, fmt.Errorf("parse verifier key: %w", err)
	}
	raw, err := base64.StdEncoding.DecodeString(f[2])
	if err != nil || len(raw) != 1+ed25519.PublicKeySize || raw[0] != algEd25519 {
		return nil, errors.New("parse verifier key: want the base64 of an Ed25519 public key")
	}
	p := &LogPublic{Origin: f[0], Key: raw[1:]}
	p.ID = logID(p.Origin, p.Key)
	if p.VKey() != s {
		return nil, errors.New("parse verifier key: hash or encoding does not match the key")
	}
	return p, nil
}

// Hint returns the base64 of the log's identity, as logId in bundles and trusted roots has it.
func (p *LogPublic) Hint() string { return base64.StdEncoding.EncodeToString(p.ID[:]) }

// File returns the name that the key has in a trust directory, beside LogVKeyFile for the one in
// force: log-, the log's identity in hexadecimal, .vkey.
func (p *LogPublic) File() string { return "log-" + hex.EncodeToString(p.ID[:]) + ".vkey" }

// VKey is the inverse of ParseVKey.
func (p *LogPublic) VKey() string { return vkey(p.Origin, p.Key) }
