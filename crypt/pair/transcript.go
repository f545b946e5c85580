package pair

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"fmt"

	"palyra/internal/canon"
)

// digestOf hashes parts for one purpose: SHA-256 of the label and the parts, each after its
// length in eight bytes.
func digestOf(purpose string, parts ...[]byte) canon.Digest {
	h := sha256.New()
	put := func(b []byte) {
		var n [8]byte
		binary.BigEndian.PutUint64(n[:], uint64(len(b)))
		h.Write(n[:])
		h.Write(b)
	}
	put([]byte(version + purpose))
	for _, p := range parts {
		put(p)
	}
	return canon.Digest(h.Sum(nil))
}

// transcript is what both sides have seen, and in which all that follows is bound.
type transcript canon.Digest

func newTranscript(c *Channel, hello, offer []byte, o *opening) transcript {
	return transcript(digestOf("transcript", c.HubKey, c.Binding, hello, offer, o.bytes()))
}

func (o *opening) bytes() []byte { return encode("opening", o) }

func (o *opening) commitment() canon.Digest { return digestOf("commitment", o.bytes()) }

// digits are the six that people compare: the first eight bytes of a digest, modulo a million.
// Their bias is below 2^-44.
func (t transcript) digits() string {
	d := digestOf("digits", t[:])
	return fmt.Sprintf("%06d", binary.BigEndian.Uint64(d[:])%1_000_000)
}

// signed is what the device signs with its new key. The signature is good for this alone: the
// bytes begin with a label that no certificate, request or TLS handshake begins with.
func (t transcript) signed() canon.Digest { return digestOf("possession", t[:]) }

// The proofs that a side has the code. Each has a purpose of its own, so none can be sent back.
const (
	proofDevice = "device has the code"
	proofHub    = "hub has the code"
	proofAnswer = "hub has approved"
	proofDone   = "device has its certificate"
)

// proof is HMAC-SHA256 with the code's token over a purpose, the transcript and what else the
// message has.
func (t transcript) proof(c *Code, purpose string, more ...[]byte) canon.Digest {
	d := digestOf(purpose, append([][]byte{t[:]}, more...)...)
	m := hmac.New(sha256.New, c.token[:])
	m.Write(d[:])
	return canon.Digest(m.Sum(nil))
}

func same(a, b canon.Digest) bool { return subtle.ConstantTimeCompare(a[:], b[:]) == 1 }

// bytes are those of an answer that its proof covers.
func (a *answer) bytes() []byte {
	c := *a
	c.Proof = canon.Digest{}
	return encode(nameAnswer, &c)
}
