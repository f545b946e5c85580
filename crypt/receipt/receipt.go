// Package receipt makes and checks receipts: signed statements of what was
// asked, who allowed it, what ran and what the kernel was seen to enforce, each
// with the proof that it is in the journal.
//
// A [Statement] is an in-toto Statement v1. [SignEntry] puts it into a DSSE envelope.
// [Entry.Leaf] goes into the journal for it: a Rekor v2 hashedrekord 0.0.2
// entry, the digest and the signature but not the statement. [Entry.Bundle] joins
// envelope and proof into a Sigstore bundle v0.3, which verifiers that are not
// ours check offline.
//
//	e, err := receipt.SignEntry(ring.Attestation(), statement)
//	pos, err := j.Append(ctx, journal.Entry{Leaf: e.Leaf(), Content: e.Content()})
//	proof, err := j.Prove(ctx, pos.Index)
//	bundle, err := e.Bundle(proof, trust)
//
//	v, err := receipt.Verify(bundle, trust)
//
// [Verify] accepts one byte sequence per receipt: after checking it encodes
// what it understood and compares. So a receipt has one digest, and no byte of
// it can be changed without the receipt being refused.
//
// # Green is not good
//
// A receipt that verifies says that this installation signed it and logged it.
// It may say that the call was denied, failed or was killed: look at
// [Verified]. A statement is as true as the host that made it: whoever holds
// the keys, root on that host, can sign anything. What they cannot do is change
// what was logged before a checkpoint that somebody else has seen.
//
// The formats, with examples: docs/formats/receipt.md.
package receipt

import (
	"errors"
	"fmt"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The names of other people's formats that a receipt is made of.
const (
	statementType = "https://in-toto.io/Statement/v1"
	mediaType     = "application/vnd.dev.sigstore.bundle.v0.3+json"
	leafKind      = "hashedrekord"
	leafVersion   = "0.0.2"
	keyDetails    = "PKIX_ECDSA_P256_SHA_256"
	hashAlgorithm = "SHA2_256"
)

// MaxBundle bounds a receipt in bytes.
const MaxBundle = 1 << 21

// maxPayload bounds a statement: its envelope must fit into the journal.
const maxPayload = journal.MaxContent * 11 / 16

// Envelope is a DSSE envelope with exactly one signature, as JSON in canonical
// form what the journal keeps as content.
type Envelope struct {
	Payload     []byte      `json:"payload"` // canonical JSON of a Statement
	PayloadType string      `json:"payloadType"`
	Signatures  []Signature `json:"signatures"`
}

// Signature is one signature in an envelope: ECDSA in ASN.1 over the DSSE
// pre-authentication encoding.
type Signature struct {
	Sig []byte `json:"sig"`
}

// payloadOf checks a statement and returns its canonical JSON.
func payloadOf(s Statement) ([]byte, error) {
	if err := s.check(); err != nil {
		return nil, fault.New(fault.Internal, "internal", "sign receipt", err)
	}
	payload, err := canon.Marshal(&s)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "sign receipt", err)
	}
	return payload, nil
}

// seal signs the canonical JSON of a checked statement.
func seal(k *keyring.AttestationKey, payload []byte) (*Envelope, error) {
	e, _, err := sealDigest(k, payload)
	return e, err
}

// ErrTooLarge is in the error for a statement that is too long to be signed.
var ErrTooLarge = errors.New("the statement is too large")

// sealDigest is seal that also returns the digest that was signed.
func sealDigest(k *keyring.AttestationKey, payload []byte) (_ *Envelope, digest [32]byte, err error) {
	if len(payload) > maxPayload {
		return nil, digest, fault.New(fault.Usage, "too_large", "sign receipt", fmt.Errorf("%w: %d bytes, limit %d", ErrTooLarge, len(payload), maxPayload))
	}
	sig, digest, err := k.SignStatement(payload)
	if err != nil {
		return nil, digest, fault.New(fault.Internal, "internal", "sign receipt", err)
	}
	return &Envelope{Payload: payload, PayloadType: keyring.StatementType, Signatures: []Signature{{Sig: sig}}}, digest, nil
}

// Prepare makes ready what signing the first statement of a process would have to
// work out about types. It is for a process that waits for something else.
func Prepare() {
	_, _ = canon.Marshal(Statement{}) // for what it leaves behind
}

// Encode returns the envelope as canonical JSON.
func (e *Envelope) Encode() []byte {
	b, err := canon.Marshal(e)
	if err != nil {
		panic("receipt: internal error: an envelope is base64 and a constant: " + err.Error())
	}
	return b
}

// ParseEnvelope is the inverse of Encode. It refuses any other spelling and
// checks no signature.
func ParseEnvelope(b []byte) (*Envelope, error) {
	var e Envelope
	if err := decodeExactly(b, &e, journal.MaxContent); err != nil {
		return nil, broken("envelope", err)
	}
	if err := e.check(); err != nil {
		return nil, broken("envelope", err)
	}
	return &e, nil
}

func (e *Envelope) check() error {
	switch {
	case e.PayloadType != keyring.StatementType:
		return fmt.Errorf("payload type %q, want %q", e.PayloadType, keyring.StatementType)
	case len(e.Signatures) != 1:
		return fmt.Errorf("%d signatures, want 1", len(e.Signatures))
	case len(e.Signatures[0].Sig) == 0 || len(e.Signatures[0].Sig) > 80:
		return fmt.Errorf("signature of %d bytes", len(e.Signatures[0].Sig))
	case len(e.Payload) > maxPayload:
		return fmt.Errorf("statement of %d bytes, limit %d", len(e.Payload), maxPayload)
	}
	return nil
}

// record is the hashedrekord 0.0.2 entry of Rekor v2 in the JSON form of its
// protocol buffer. Canonical JSON of it is the leaf, byte for byte what
// sigstore-go rebuilds from a bundle.
type record struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Spec       recordSpec `json:"spec"`
}

type recordSpec struct {
	V002 hashed `json:"hashedRekordV002"`
}

type hashed struct {
	Data      recordData      `json:"data"`
	Signature recordSignature `json:"signature"`
}

type recordData struct {
	Algorithm string `json:"algorithm"`
	Digest    []byte `json:"digest"`
}

type recordSignature struct {
	Content  []byte         `json:"content"`
	Verifier recordVerifier `json:"verifier"`
}

type recordVerifier struct {
	KeyDetails string    `json:"keyDetails"`
	PublicKey  recordKey `json:"publicKey"`
}

type recordKey struct {
	RawBytes []byte `json:"rawBytes"`
}

// Leaf returns the journal leaf of an envelope that k signed.
func Leaf(e *Envelope, k *keyring.AttestationKey) ([]byte, error) { return leafOf(e, k.SPKI()) }

func leafOf(e *Envelope, spki []byte) ([]byte, error) {
	if err := e.check(); err != nil {
		return nil, broken("envelope", err)
	}
	return leafFor(keyring.PAEDigest(e.PayloadType, e.Payload), e.Signatures[0].Sig, spki)
}

// leafFor is the leaf of a signature.
func leafFor(digest [32]byte, sig, spki []byte) ([]byte, error) {
	return canon.Marshal(record{APIVersion: leafVersion, Kind: leafKind, Spec: recordSpec{hashed{
		Data: recordData{Algorithm: hashAlgorithm, Digest: digest[:]},
		Signature: recordSignature{Content: sig,
			Verifier: recordVerifier{KeyDetails: keyDetails, PublicKey: recordKey{RawBytes: spki}}},
	}}})
}

// broken is the error for everything that does not check.
func broken(reason string, err error) error {
	return fault.New(fault.Integrity, "receipt_"+reason, "verify receipt", err)
}
