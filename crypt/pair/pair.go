// Package pair is the exchange by which a device that shares nothing with a hub but a code gets a
// certificate: two state machines over messages, without IO and without a clock.
// docs/formats/pair.md specifies it.
//
//	code, err := h.Begin(id, now)                      // hub: shown to whoever has the device
//	code, err := pair.ParseCode(text)                  // device
//	d, err := pair.NewDevice(code, channel, key, request)
//	x, offer, err := h.Hello(channel, identity, d.Hello(), now)
//	reveal, err := d.Offer(offer)
//	wait, err := h.Reveal(x, reveal, now)
//	err = d.Wait(wait)                                 // d.Digits() is on the device's screen
//	wanted, err := h.Approve(id, digits, now)          // an operator typed them
//	answer, err := h.Issued(id, scopes, chain, now)
//	done, chain, err := d.Answer(answer, now)
//	err = h.Done(x, done, now)
//
// # Contract
//
// A code is good for one attempt and for five minutes. It names the hub's enrolment key, so the
// device talks with that hub, and has a one-time token of 128 bits, with which each side shows
// the other that it has the code. The device makes its key, commits to it and to a nonce before
// it sees the hub's nonce, and signs the whole transcript with it. Six digits follow from the
// transcript: both keys, both nonces, the channel, the hub's identity and what the device asks
// for. Whoever has changed one of these had to do so before it could know the digits, so they
// agree with a probability of one in a million, and a wrong entry ends the pairing.
//
// Nothing that is sent is secret: the private key stays on the device and the token is used as a
// key only. Every end of a pairing is an [Event], in order, for the hub to journal. What was
// cancelled, refused or has expired is never approved.
//
// # What it does not protect against
//
// An operator who types digits that are on another screen than the device's. A code that is
// replaced before the device reads it pairs the device with another hub, whose digits no one at
// this hub will accept. Whoever reads a code can use up its attempt.
//
// A [Hub], an [Exchange] and a [Device] are not safe for concurrent use.
package pair

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// The bounds of pairings.
const (
	// Life is how long a code is good, and the pairing that began with it may take until it is
	// approved.
	Life = 5 * time.Minute
	// Delivery is how long an approved pairing waits for the device to have its certificate.
	Delivery = time.Minute
	// MaxOpen bounds the pairings that wait at the same time.
	MaxOpen = 8
	// MaxStrangers bounds the attempts without a code that are told apart in Life. The hub
	// refuses the others too, and reports them as one event.
	MaxStrangers = 32
	// MaxMessage bounds a message, in bytes.
	MaxMessage = 32 << 10

	maxDevice = 64
	maxKind   = 16
	maxScopes = 64
	maxDomain = 253
	maxCSR    = 2 << 10
	maxCert   = 4 << 10
	maxChain  = 4 // certificates in a chain, and in the roots
	maxEnded  = 32
)

// Request is what a device asks for. It's part of the transcript.
type Request struct {
	Device string   `json:"device"` // the id it wants: 1 to 64 of a-z, 0-9 and '-', not at an end
	Kind   string   `json:"kind"`   // what it is: 1 to 16 of a-z
	Scopes []string `json:"scopes"` // the permissions it wants, sorted, each once; may be empty
}

// Check returns fault.Usage "invalid_input" unless r has the form that the fields say.
func (r *Request) Check() error {
	bad := func(format string, args ...any) error {
		return fault.New(fault.Usage, "invalid_input", "check pairing request", fmt.Errorf(format, args...))
	}
	switch {
	case !made(r.Device, maxDevice, "0123456789-") || r.Device[0] == '-' || r.Device[len(r.Device)-1] == '-':
		return bad("device %.80q: want 1 to %d of a-z, 0-9 and '-', not at an end", r.Device, maxDevice)
	case !made(r.Kind, maxKind, ""):
		return bad("kind %.80q: want 1 to %d of a-z", r.Kind, maxKind)
	case r.Scopes == nil || len(r.Scopes) > maxScopes:
		return bad("scopes: want a list of at most %d", maxScopes)
	}
	return checkScopes(r.Scopes, bad)
}

func checkScopes(scopes []string, bad func(string, ...any) error) error {
	for i, s := range scopes {
		if !made(s, maxDevice, "._") {
			return bad("scope %.80q: want a permission's name", s)
		}
		if i > 0 && scopes[i-1] >= s {
			return bad("scopes: want them sorted, each once")
		}
	}
	return nil
}

// made reports whether s has 1 to most characters of a-z and also.
func made(s string, most int, also string) bool {
	for _, c := range []byte(s) {
		if (c < 'a' || c > 'z') && !slices.Contains([]byte(also), c) {
			return false
		}
	}
	return s != "" && len(s) <= most
}

// Identity says which hub a device is paired with.
type Identity struct {
	Domain string   // the trust domain: a DNS name in lower case
	Roots  [][]byte // DER of the root certificates that its devices trust
}

// digest is what the offer has of the roots.
func (i *Identity) digest() canon.Digest { return digestOf("roots", i.Roots...) }

// Channel is the TLS connection that carries an exchange, as each side sees it.
type Channel struct {
	HubKey  []byte // DER of the hub's enrolment key: SubjectPublicKeyInfo
	Binding []byte // exported keying material under BindingLabel, BindingSize bytes
}

// What both sides export of their TLS connection (RFC 8446 §7.5).
const (
	BindingLabel = "EXPORTER-palyra-pair-1"
	BindingSize  = 32
)

func (c *Channel) check() error {
	if len(c.HubKey) == 0 || len(c.HubKey) > maxCSR || len(c.Binding) != BindingSize {
		return fault.New(fault.Internal, "internal", "begin pairing", errors.New("the channel has no key or no binding"))
	}
	return nil
}

// Chain is what an approved device gets.
type Chain struct {
	Certificates []*x509.Certificate // its own first
	Roots        []*x509.Certificate
	Scopes       []string // what it may do
	Domain       string   // of the hub
}

// over is the error of whoever comes with a code that isn't good, or is no longer. It says the
// same of all of them; the hub's journal says which.
func over(op string) error {
	return fault.New(fault.Denied, "pairing_over", op, errors.New("the code is unknown, used, cancelled or older than five minutes")).
		WithHint("the hub's operator makes another one: palyra devices pair")
}

// unproven is the error of a message that isn't what the protocol, the code or the key wants.
func unproven(op, format string, args ...any) error {
	return fault.New(fault.Integrity, "pairing_proof", op, fmt.Errorf(format, args...)).
		WithHint("someone may be between device and hub: begin anew with another code")
}
