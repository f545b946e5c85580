package receipt

import (
	"palyra/crypt/journal"
	"palyra/crypt/keyring"
)

// Entry is a signed statement in the two forms that the journal is given, and
// from which its receipt is made. It is immutable but for Sign.
type Entry struct {
	leaf     []byte
	envelope *Envelope
	content  []byte // envelope, encoded
	spki     []byte // of the key that signed
}

// SignEntry checks a statement and signs it.
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
	leaf, err := leafFor(digest, env.Signatures[0].Sig, spki)
	if err != nil {
		return nil, err
	}
	return &Entry{leaf: leaf, envelope: env, content: env.Encode(), spki: spki}, nil
}

// Entry returns the entry of an envelope that k signed.
func (e *Envelope) Entry(k *keyring.AttestationKey) (*Entry, error) {
	spki := k.SPKI()
	leaf, err := leafOf(e, spki)
	if err != nil {
		return nil, err
	}
	return &Entry{leaf: leaf, envelope: e, content: e.Encode(), spki: spki}, nil
}

// Leaf is what the journal hashes. It is not to be changed.
func (e *Entry) Leaf() []byte { return e.leaf }

// Content is what the journal keeps beside it: the envelope. It is not to be
// changed.
func (e *Entry) Content() []byte { return e.content }

// SignedBy reports whether k signed the statement.
func (e *Entry) SignedBy(k *keyring.AttestationKey) bool { return k.Is(e.spki) }

// Sign signs the statement again, with another key. No other goroutine may use e meanwhile.
func (e *Entry) Sign(k *keyring.AttestationKey) error {
	env, digest, err := sealDigest(k, e.envelope.Payload)
	if err != nil {
		return err
	}
	spki := k.SPKI()
	leaf, err := leafFor(digest, env.Signatures[0].Sig, spki)
	if err == nil {
		*e = Entry{leaf: leaf, envelope: env, content: env.Encode(), spki: spki}
	}
	return err
}

// Bundle joins the entry and its proof into a receipt. It checks that the proof is one for this
// entry; the signatures, which were made a moment ago by keys in this process, are left to Verify.
func (e *Entry) Bundle(p journal.Proof, t *Trust) ([]byte, error) {
	if _, err := t.at(e.spki, p.Index); err != nil {
		return nil, broken("key", err)
	}
	if err := p.Verify(e.leaf); err != nil {
		return nil, broken("inclusion", err)
	}
	log, err := t.signer(p.Checkpoint)
	if err != nil {
		return nil, broken("checkpoint", err)
	}
	return encodeBundle(e.envelope, p, e.leaf, keyring.HintOf(e.spki), log)
}
