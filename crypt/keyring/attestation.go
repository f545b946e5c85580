package keyring

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"strconv"
)

// StatementType is the DSSE payload type of everything that an AttestationKey
// signs.
const StatementType = "application/vnd.in-toto+json"

// statementStart is how the canonical JSON of every in-toto Statement v1 begins:
// "_type" sorts before the other members.
const statementStart = `{"_type":"https://in-toto.io/Statement/v1",`

// AttestationKey signs in-toto statements with ECDSA P-256. It is opaque and
// prints as its fingerprint.
type AttestationKey struct {
	_    [0]func() // not comparable
	priv *ecdsa.PrivateKey
	spki []byte
}

func newAttestationKey() (*AttestationKey, error) {
	p, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate attestation key: %w", err)
	}
	return attestationKey(p)
}

func attestationKey(p *ecdsa.PrivateKey) (*AttestationKey, error) {
	spki, err := x509.MarshalPKIXPublicKey(&p.PublicKey)
	if err != nil {
		return nil, fmt.Errorf("encode public key: %w", err)
	}
	return &AttestationKey{priv: p, spki: spki}, nil
}

func (k *AttestationKey) encode() ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k.priv)
	if err != nil {
		return nil, fmt.Errorf("encode attestation key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pkcs8, Bytes: der}), nil
}

const pkcs8 = "PRIVATE" + " KEY" // in two pieces: scanners look for the whole

// parseAttestationKey accepts exactly what encode writes. Its errors never hold
// key material.
func parseAttestationKey(b []byte) (*AttestationKey, error) {
	blk, rest := pem.Decode(b)
	if blk == nil || blk.Type != pkcs8 || len(rest) != 0 || len(blk.Headers) != 0 {
		return nil, errors.New("attestation key: want one PEM block of PKCS #8")
	}
	p, err := x509.ParsePKCS8PrivateKey(blk.Bytes)
	if err != nil {
		return nil, errors.New("attestation key: PKCS #8 does not parse")
	}
	ec, ok := p.(*ecdsa.PrivateKey)
	if !ok || ec.Curve != elliptic.P256() {
		return nil, errors.New("attestation key: want ECDSA on P-256")
	}
	k, err := attestationKey(ec)
	if err != nil {
		return nil, err
	}
	again, err := k.encode()
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(again, b) {
		return nil, errors.New("attestation key: not in its canonical encoding")
	}
	return k, nil
}

// SignStatement signs the canonical JSON of an in-toto Statement v1 and returns the
// signature (ASN.1) over its DSSE pre-authentication encoding, and that encoding's PAEDigest.
// It refuses all else, so that a signature of the key can't be mistaken for another kind.
//
// Abuse: a caller of it can attest that any call was allowed and ran. Only the kernel room
// holds it. The nonce is deterministic (RFC 6979): a bad random generator can't give the
// key away.
func (k *AttestationKey) SignStatement(payload []byte) (sig []byte, digest [32]byte, err error) {
	if !bytes.HasPrefix(payload, []byte(statementStart)) {
		return nil, digest, errors.New("sign statement: not the canonical JSON of an in-toto Statement v1")
	}
	digest = PAEDigest(StatementType, payload)
	if sig, err = k.priv.Sign(nil, digest[:], crypto.SHA256); err != nil {
		return nil, digest, fmt.Errorf("sign statement: %w", err)
	}
	return sig, digest, nil
}

// VerifyStatement reports whether sig is a signature by the key with this
// SubjectPublicKeyInfo over payload as a statement.
func VerifyStatement(spki, payload, sig []byte) bool {
	pub, err := ParseAttestationPublic(spki)
	if err != nil || !bytes.HasPrefix(payload, []byte(statementStart)) {
		return false
	}
	d := PAEDigest(StatementType, payload)
	return ecdsa.VerifyASN1(pub, d[:], sig)
}

// ParseAttestationPublic parses a SubjectPublicKeyInfo, which must be ECDSA on
// P-256 in its canonical encoding.
func ParseAttestationPublic(spki []byte) (*ecdsa.PublicKey, error) {
	p, err := x509.ParsePKIXPublicKey(spki)
	if err != nil {
		return nil, fmt.Errorf("parse public key: %v", err)
	}
	pub, ok := p.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() {
		return nil, errors.New("parse public key: want ECDSA on P-256")
	}
	again, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil || !bytes.Equal(again, spki) {
		return nil, errors.New("parse public key: not in its canonical encoding")
	}
	return pub, nil
}

// PAEDigest returns the SHA-256 of DSSE's pre-authentication encoding (DSSE v1.0.2):
// "DSSEv1" SP len(type) SP type SP len(body) SP body.
func PAEDigest(payloadType string, payload []byte) (d [32]byte) {
	h := sha256.New()
	h.Write(appendHead(make([]byte, 0, 96), payloadType, payload))
	h.Write(payload)
	h.Sum(d[:0])
	return d
}

// appendHead appends the part before the payload.
func appendHead(b []byte, payloadType string, payload []byte) []byte {
	b = append(b, "DSSEv1 "...)
	b = strconv.AppendInt(b, int64(len(payloadType)), 10)
	b = append(b, ' ')
	b = append(b, payloadType...)
	b = append(b, ' ')
	b = strconv.AppendInt(b, int64(len(payload)), 10)
	return append(b, ' ')
}

// SPKI returns the public half as DER SubjectPublicKeyInfo.
func (k *AttestationKey) SPKI() []byte { return bytes.Clone(k.spki) }

// Is reports whether the public half has this SubjectPublicKeyInfo.
func (k *AttestationKey) Is(spki []byte) bool { return bytes.Equal(k.spki, spki) }

// PublicPEM returns the public half as trust/att.pub holds it.
func (k *AttestationKey) PublicPEM() []byte { return encodePublicPEM(k.spki) }

func encodePublicPEM(spki []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: spki})
}

// ParsePublicPEM is the inverse of PublicPEM. It returns the
// SubjectPublicKeyInfo and refuses any other spelling.
func ParsePublicPEM(b []byte) ([]byte, error) {
	blk, rest := pem.Decode(b)
	if blk == nil || len(rest) != 0 || !bytes.Equal(encodePublicPEM(blk.Bytes), b) {
		return nil, errors.New("parse public key: want exactly one PEM block PUBLIC KEY")
	}
	if _, err := ParseAttestationPublic(blk.Bytes); err != nil {
		return nil, err
	}
	return blk.Bytes, nil
}

// Hint returns the key hint that bundles carry: the base64 of the SHA-256 of
// the SubjectPublicKeyInfo, as cosign writes it.
func (k *AttestationKey) Hint() string { return HintOf(k.spki) }

// HintOf returns the key hint for a SubjectPublicKeyInfo.
func HintOf(spki []byte) string {
	d := sha256.Sum256(spki)
	return base64.StdEncoding.EncodeToString(d[:])
}

// String returns the key's fingerprint.
func (k *AttestationKey) String() string { return "att:" + k.Hint() }

// Format prints the fingerprint, whatever the verb: %+v and %#v would otherwise
// walk into the private half.
func (k *AttestationKey) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(k.String())) }
