package receipt

import (
	"bytes"
	"encoding/base64"
	"errors"
	"strconv"

	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/internal/canon"
)

// Entry is a signed statement in the two forms that the journal is given, and
// from which its receipt is made. It is immutable.
type Entry struct {
	leaf    []byte
	content []byte // Envelope, encoded
	spki    []byte // of the key that signed
}

// SignEntry is Sign, with the leaf made of the digest that was signed.
func SignEntry(k *keyring.AttestationKey, s Statement) (*Entry, error) {
	payload, err := payloadOf(s)
	if err != nil {
		return nil, err
	}
	env, digest, err := sealDigest(k, payload)
	if err != nil {
		return nil, err
	}
	spki := k.SPKI()
	leaf, err := encodeLeaf(digest, env.Signatures[0].Sig, spki)
	if err != nil {
		return nil, err
	}
	return &Entry{leaf: leaf, content: env.Encode(), spki: spki}, nil
}

// Entry returns the entry of an envelope that k signed.
func (e *Envelope) Entry(k *keyring.AttestationKey) (*Entry, error) {
	spki := k.SPKI()
	leaf, err := leafOf(e, spki)
	if err != nil {
		return nil, err
	}
	return &Entry{leaf: leaf, content: e.Encode(), spki: spki}, nil
}

// Leaf is what the journal hashes. It is not to be changed.
func (e *Entry) Leaf() []byte { return e.leaf }

// Content is what the journal keeps beside it: the envelope. It is not to be
// changed.
func (e *Entry) Content() []byte { return e.content }

// Bundle is the function Bundle for an entry, which is encoded already.
func (e *Entry) Bundle(p journal.Proof, t *Trust) ([]byte, error) {
	if !bytes.Equal(e.spki, t.spki) {
		return nil, broken("key", errors.New("signed by another key than the trusted one"))
	}
	if err := p.Verify(e.leaf); err != nil {
		return nil, broken("inclusion", err)
	}
	return e.bundle(&p, t)
}

// The rest prints the three forms of which a call makes several, piece by piece:
// all but a few texts is base64 and constants, in the order of canonical JSON.
// What these functions print is held by tests to what canon.Marshal prints of
// the types record, Envelope and bundle, and every receipt by Verify.

// encodeEnvelope is canon.Marshal(e); ok is false for what Sign does not make.
func encodeEnvelope(e *Envelope) (_ []byte, ok bool) {
	if e.PayloadType != keyring.StatementType || e.Payload == nil || len(e.Signatures) != 1 || e.Signatures[0].Sig == nil {
		return nil, false
	}
	const a, b, c = `{"payload":"`, `","payloadType":"` + keyring.StatementType + `","signatures":[{"sig":"`, `"}]}`
	sig := e.Signatures[0].Sig
	out := make([]byte, 0, len(a)+len(b)+len(c)+base64.StdEncoding.EncodedLen(len(e.Payload))+base64.StdEncoding.EncodedLen(len(sig)))
	out = base64.StdEncoding.AppendEncode(append(out, a...), e.Payload)
	out = base64.StdEncoding.AppendEncode(append(out, b...), sig)
	return append(out, c...), true
}

// encodeLeaf is canon.Marshal of the record of a signature.
func encodeLeaf(digest [32]byte, sig, spki []byte) ([]byte, error) {
	if sig == nil || spki == nil {
		return canon.Marshal(recordOf(digest, sig, spki)) // null
	}
	const a = `{"apiVersion":"` + leafVersion + `","kind":"` + leafKind + `","spec":{"hashedRekordV002":{"data":{"algorithm":"` + hashAlgorithm + `","digest":"`
	const b = `"},"signature":{"content":"`
	const c = `","verifier":{"keyDetails":"` + keyDetails + `","publicKey":{"rawBytes":"`
	const d = `"}}}}}}`
	out := make([]byte, 0, len(a)+len(b)+len(c)+len(d)+base64.StdEncoding.EncodedLen(len(digest))+
		base64.StdEncoding.EncodedLen(len(sig))+base64.StdEncoding.EncodedLen(len(spki)))
	out = base64.StdEncoding.AppendEncode(append(out, a...), digest[:])
	out = base64.StdEncoding.AppendEncode(append(out, b...), sig)
	out = base64.StdEncoding.AppendEncode(append(out, c...), spki)
	return append(out, d...), nil
}

// bundle is encodeBundle for an entry.
func (e *Entry) bundle(p *journal.Proof, t *Trust) ([]byte, error) {
	note, err := canon.Marshal(string(p.Checkpoint))
	if err != nil {
		return nil, err
	}
	b64 := base64.StdEncoding.AppendEncode
	number := func(out []byte, n uint64) []byte { return append(strconv.AppendUint(append(out, '"'), n, 10), '"') }
	const names = 640 // of all members, the constants, and numbers: rounded up
	out := make([]byte, 0, names+len(e.content)+len(note)+base64.StdEncoding.EncodedLen(len(e.leaf))+47*len(p.Hashes))
	out = append(append(out, `{"dsseEnvelope":`...), e.content...)
	out = append(out, `,"mediaType":"`+mediaType+`","verificationMaterial":{"publicKey":{"hint":"`...)
	out = append(append(out, t.KeyHint()...), `"},"tlogEntries":[{"canonicalizedBody":"`...)
	out = append(b64(out, e.leaf), `","inclusionProof":{"checkpoint":{"envelope":`...)
	out = append(append(out, note...), `},"hashes":[`...)
	for i := range p.Hashes {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(b64(append(out, '"'), p.Hashes[i][:]), '"')
	}
	out = number(append(out, `],"logIndex":`...), p.Index)
	out = append(b64(append(out, `,"rootHash":"`...), p.Root[:]), `","treeSize":`...)
	out = append(number(out, p.Size), `},"integratedTime":"0","kindVersion":{"kind":"`+leafKind+`","version":"`+leafVersion+`"},"logId":{"keyId":"`...)
	out = append(b64(out, t.log.ID[:]), `"},"logIndex":`...)
	return append(number(out, p.Index), `}]}}`...), nil
}
