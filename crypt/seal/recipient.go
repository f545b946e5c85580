package seal

import (
	"bytes"
	"crypto/hpke"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/argon2"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The types of stanzas.
const (
	TypeHPKE       = "hpke-mlkem768-x25519"
	TypePassphrase = "argon2id"
)

// Stanza is a key wrapped for one recipient. It serialises; its bytes are public.
type Stanza struct {
	Type string `json:"type"`
	// Label is the operator's word for the recipient.
	Label string `json:"label"`
	// ID is the digest of an HPKE recipient's public key, zero for others.
	ID   canon.Digest `json:"id,omitzero"`
	Cost *Cost        `json:"cost,omitempty"` // of a passphrase
	Body []byte       `json:"body"`
}

// Cost is what Argon2id takes (RFC 9106). A stranger's file can't demand more than MaxCost.
type Cost struct {
	Salt    []byte `json:"salt"`
	Passes  int    `json:"passes"`
	Memory  int    `json:"memory"` // KiB
	Threads int    `json:"threads"`
}

// The bounds of Cost. New stanzas take the second choice of RFC 9106.
const (
	saltLen    = 16
	passes     = 3
	kibibytes  = 64 << 10 // KiB
	threads    = 4
	maxPasses  = 10
	maxMemory  = 256 << 10 // KiB
	maxThreads = 8
	maxLabel   = 64
	maxBody    = 4096

	// MinPassphrase is the least length of a new passphrase, in bytes.
	MinPassphrase = 12
	maxPassphrase = 1024
)

// Recipient is whoever a key is wrapped for.
type Recipient interface {
	Wrap(k *Key, c Context) (*Stanza, error)
}

// Identity opens the stanzas of one recipient. Unwrap returns ErrOther for those of others.
type Identity interface {
	Unwrap(s *Stanza, c Context) (*Key, error)
	Wipe()
}

// ErrOther says that a stanza is for another recipient.
var ErrOther = errors.New("wrapped for another recipient")

// Check refuses what no Wrap makes, before anything is computed from it.
func (s *Stanza) Check() error {
	if err := CheckLabel(s.Label); err != nil {
		return err
	}
	if len(s.Body) == 0 || len(s.Body) > maxBody {
		return fmt.Errorf("body of %d bytes", len(s.Body))
	}
	c := s.Cost
	switch {
	case s.Type == TypeHPKE && c == nil && !s.ID.IsZero():
		return nil
	case s.Type != TypePassphrase || c == nil || !s.ID.IsZero():
		return fmt.Errorf("type %q with members of another", s.Type)
	case len(c.Salt) != saltLen || c.Passes < 1 || c.Passes > maxPasses || c.Memory < 8*c.Threads || c.Memory > maxMemory || c.Threads < 1 || c.Threads > maxThreads:
		return errors.New("cost out of bounds")
	}
	return nil
}

// CheckLabel refuses what can't be a recipient's label.
func CheckLabel(label string) error {
	if label == "" || len(label) > maxLabel || strings.ContainsFunc(label, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) {
		return errors.New("label: want 1 to 64 of a-z, 0-9 and -")
	}
	return nil
}

// info is the context of a wrap: the caller's, for another purpose.
func (s *Stanza) info(c Context) Context {
	c.Purpose = "wrap/" + s.Type + "/" + c.Purpose
	return c
}

// PublicKey is the recipient of an [IdentityKey]: HPKE (RFC 9180) in base mode with
// MLKEM768-X25519, HKDF-SHA256 and AES-256-GCM.
type PublicKey struct {
	label string
	pub   hpke.PublicKey
}

// IdentityKey opens what is wrapped for its public key.
type IdentityKey struct {
	masked
	s Secret // the seed
}

var (
	_ Identity  = (*IdentityKey)(nil)
	_ Identity  = (*Passphrase)(nil)
	_ Recipient = (*PublicKey)(nil)
	_ Recipient = (*Passphrase)(nil)
)

// The lines that keys are kept as.
const (
	identityLine  = "palyra-identity-1:"
	recipientLine = "palyra-recipient-1:"
)

func kem() hpke.KEM { return hpke.MLKEM768X25519() }

// NewIdentity makes a key pair.
func NewIdentity() (*IdentityKey, error) {
	priv, err := kem().GenerateKey()
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "make identity", err)
	}
	seed, err := priv.Bytes()
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "make identity", err)
	}
	defer clear(seed)
	return &IdentityKey{s: *NewSecret(seed)}, nil
}

// Encode returns the line that ParseIdentity reads. It is secret; the caller wipes it.
func (k *IdentityKey) Encode() []byte { return encodeLine(identityLine, k.s.Bytes()) }

// ParseIdentity reads an identity's line.
func ParseIdentity(line []byte) (*IdentityKey, error) {
	seed, err := decodeLine(identityLine, line)
	if err == nil {
		_, err = kem().NewPrivateKey(seed)
	}
	defer clear(seed)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", "parse identity", errors.New("not a line of an identity"))
	}
	return &IdentityKey{s: *NewSecret(seed)}, nil
}

func (k *IdentityKey) private() (hpke.PrivateKey, error) { return kem().NewPrivateKey(k.s.Bytes()) }

// Recipient returns the public half, under a label.
func (k *IdentityKey) Recipient(label string) (*PublicKey, error) {
	priv, err := k.private()
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "find public key", err)
	}
	return &PublicKey{label, priv.PublicKey()}, nil
}

// Encode returns the line that ParseRecipient reads.
func (p *PublicKey) Encode() []byte { return encodeLine(recipientLine, p.pub.Bytes()) }

// Label returns the operator's word for it.
func (p *PublicKey) Label() string { return p.label }

// ID returns the digest that stanzas for the key have.
func (p *PublicKey) ID() canon.Digest { return canon.Sum(p.pub.Bytes()) }

// ParseRecipient reads a recipient's line.
func ParseRecipient(label string, line []byte) (*PublicKey, error) {
	b, err := decodeLine(recipientLine, line)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "parse recipient", errors.New("not a line of a recipient"))
	}
	pub, err := kem().NewPublicKey(b)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", "parse recipient", errors.New("not a public key"))
	}
	return &PublicKey{label, pub}, nil
}

func encodeLine(prefix string, b []byte) []byte {
	out := append([]byte(prefix), make([]byte, base64.StdEncoding.EncodedLen(len(b)))...)
	base64.StdEncoding.Encode(out[len(prefix):], b)
	return append(out, '\n')
}

// decodeLine reads the one spelling that encodeLine writes.
func decodeLine(prefix string, line []byte) ([]byte, error) {
	text, ok := bytes.CutPrefix(line, []byte(prefix))
	if !ok || len(text) > maxBody {
		return nil, errors.New("other prefix, or too long")
	}
	b := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(b, bytes.TrimSuffix(text, []byte("\n")))
	if err != nil {
		return nil, errors.New("not base64")
	}
	again := encodeLine(prefix, b[:n])
	defer clear(again)
	if !bytes.Equal(again, line) {
		return nil, errors.New("another spelling")
	}
	return b[:n], nil
}

// Wrap implements Recipient.
func (p *PublicKey) Wrap(k *Key, c Context) (*Stanza, error) {
	s := &Stanza{Type: TypeHPKE, Label: p.label, ID: p.ID()}
	var err error
	if s.Body, err = hpke.Seal(p.pub, hpke.HKDFSHA256(), hpke.AES256GCM(), s.info(c).bytes(), k.s.Bytes()); err != nil {
		return nil, fault.New(fault.Internal, "internal", "wrap key", err)
	}
	return s, s.Check()
}

// Unwrap implements Identity.
func (k *IdentityKey) Unwrap(s *Stanza, c Context) (*Key, error) {
	if err := s.Check(); err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", "unwrap key", err)
	}
	priv, err := k.private()
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "unwrap key", err)
	}
	if s.Type != TypeHPKE || s.ID != canon.Sum(priv.PublicKey().Bytes()) {
		return nil, ErrOther
	}
	b, err := hpke.Open(priv, hpke.HKDFSHA256(), hpke.AES256GCM(), s.info(c).bytes(), s.Body)
	if err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", "unwrap key", ErrSealed)
	}
	return ParseKey(b)
}

// Wipe ends the use of the identity.
func (k *IdentityKey) Wipe() { k.s.Wipe() }

// Passphrase is recipient and identity in one: Argon2id makes a key of it.
type Passphrase struct {
	masked
	label string
	s     Secret
}

// NewPassphrase takes a passphrase, which wraps under a label. The caller wipes p.
func NewPassphrase(label string, p []byte) (*Passphrase, error) {
	if len(p) < MinPassphrase || len(p) > maxPassphrase {
		return nil, fault.New(fault.Usage, "invalid_input", "take passphrase", fmt.Errorf("want %d to %d bytes", MinPassphrase, maxPassphrase))
	}
	return &Passphrase{label: label, s: *NewSecret(p)}, nil
}

func (p *Passphrase) key(c *Cost) (*Key, error) {
	return ParseKey(argon2.IDKey(p.s.Bytes(), c.Salt, uint32(c.Passes), uint32(c.Memory), uint8(c.Threads), 32))
}

// Wrap implements Recipient.
func (p *Passphrase) Wrap(k *Key, c Context) (*Stanza, error) {
	s := &Stanza{Type: TypePassphrase, Label: p.label, Cost: &Cost{Salt: make([]byte, saltLen), Passes: passes, Memory: kibibytes, Threads: threads}}
	_, _ = rand.Read(s.Cost.Salt) // never fails: crypto/rand
	pk, err := p.key(s.Cost)
	if err != nil {
		return nil, err
	}
	defer pk.Wipe()
	if s.Body, err = Seal(pk, s.info(c), k.s.Bytes()); err != nil {
		return nil, err
	}
	return s, s.Check()
}

// Unwrap implements Identity.
func (p *Passphrase) Unwrap(s *Stanza, c Context) (*Key, error) {
	if err := s.Check(); err != nil {
		return nil, fault.New(fault.Integrity, "store_corrupt", "unwrap key", err)
	}
	if s.Type != TypePassphrase {
		return nil, ErrOther
	}
	pk, err := p.key(s.Cost)
	if err != nil {
		return nil, err
	}
	defer pk.Wipe()
	got, err := Open(pk, s.info(c), s.Body)
	if err != nil {
		return nil, ErrOther // another passphrase's, or a wrong one
	}
	defer got.Wipe()
	return ParseKey(got.Bytes())
}

// Wipe ends the use of the passphrase.
func (p *Passphrase) Wipe() { p.s.Wipe() }

// Labeled returns the passphrase as the recipient of another label. It shares the passphrase.
func (p *Passphrase) Labeled(label string) *Passphrase { return &Passphrase{label: label, s: p.s} }
