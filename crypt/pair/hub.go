package pair

import (
	"bytes"
	"cmp"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/subtle"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// State is how far a pairing is. The zero State is no pairing's.
type State string

// The states. Those from Completed on are ends.
const (
	Open      State = "open"      // the code is shown, and no device has come
	Begun     State = "begun"     // a device has come with the code
	Pending   State = "pending"   // it has shown its key: its digits can be approved
	Approved  State = "approved"  // its certificate is being made
	Issued    State = "issued"    // the device is being told
	Completed State = "completed" // the device has its certificate
	Refused   State = "refused"   // by an operator
	Cancelled State = "cancelled" // by an operator, or the hub's end
	Expired   State = "expired"
	Failed    State = "failed"
)

// Ended reports whether s is an end.
func (s State) Ended() bool {
	return s == Completed || s == Refused || s == Cancelled || s == Expired || s == Failed
}

// End says why a pairing ended otherwise than Completed.
type End string

// The ends. A device is told the first five; of all others it's told EndOver.
const (
	EndOver     End = "over"     // the code is unknown, or good no longer
	EndOperator End = "operator" // refused
	EndDigits   End = "digits"   // the operator typed others
	EndProof    End = "proof"    // commitment, request, key or code don't fit
	EndIssue    End = "issue"    // the certificate authority made no certificate

	EndStranger    End = "stranger"    // no code has this id
	EndStrangers   End = "strangers"   // MaxStrangers came; further ones aren't told apart
	EndAgain       End = "again"       // a second device came with the code
	EndGone        End = "gone"        // the device's connection ended
	EndUndelivered End = "undelivered" // the device may lack the certificate that was made
	EndTime        End = "time"        // Life or Delivery is over
	EndCancelled   End = "cancelled"
)

// Event says what happened to a pairing. ID is "" for attempts without a code.
type Event struct {
	ID      string
	State   State
	End     End // why it ended
	Request Request
	Key     canon.Digest // of the device's key, from Pending on
}

// View is a pairing as operators see it. The digits aren't in it: they are on the device's
// screen, and an operator who has to read them there can't skip the comparison.
type View struct {
	ID      string
	State   State
	End     End
	Request Request      // what the device asks for, from Begun on
	Key     canon.Digest // of the device's key, from Pending on
	Begun   time.Time    // when the code was made
	Expires time.Time
}

// Wanted is what an approved device gets a certificate for.
type Wanted struct {
	Request Request
	CSR     *x509.CertificateRequest // its signature was checked
	Key     canon.Digest             // SHA-256 of its SubjectPublicKeyInfo
}

// Hub is the hub's side of all pairings.
type Hub struct {
	key []byte // the enrolment key's SubjectPublicKeyInfo

	pairings  map[string]*Exchange       // by id
	codes     map[canon.Digest]*Exchange // by the code's id, while they have not ended
	ended     []string                   // ids of those that have, oldest first
	events    []Event
	strangers int
	since     time.Time // when strangers began to count
}

// Exchange is one pairing at the hub.
type Exchange struct {
	View
	code     Code
	channel  Channel
	identity Identity
	hello    []byte
	request  hello
	offer    []byte
	script   transcript
	csr      *x509.CertificateRequest
	answer   []byte
	gone     bool // the connection ended while the certificate was made
}

// NewHub returns a Hub with this enrolment key: DER of a SubjectPublicKeyInfo.
func NewHub(key []byte) *Hub {
	return &Hub{key: key, pairings: make(map[string]*Exchange), codes: make(map[canon.Digest]*Exchange)}
}

// Events returns what happened since it was called last, oldest first.
func (h *Hub) Events() []Event {
	e := h.events
	h.events = nil
	return e
}

// Waiting reports whether there is a pairing that hasn't ended.
func (h *Hub) Waiting() bool { return len(h.codes) > 0 }

// View returns a pairing, fault.NotFound "not_found" if there is none. The last maxEnded
// that have ended are kept.
func (h *Hub) View(id string, now time.Time) (View, error) {
	x, err := h.find("find pairing", id, now)
	if err != nil {
		return View{}, err
	}
	return x.View, nil
}

// Views returns all pairings, oldest first.
func (h *Hub) Views(now time.Time) []View {
	h.Expire(now)
	views := make([]View, 0, len(h.pairings))
	for _, x := range h.pairings {
		views = append(views, x.View)
	}
	slices.SortFunc(views, func(a, b View) int {
		return cmp.Or(a.Begun.Compare(b.Begun), cmp.Compare(a.ID, b.ID))
	})
	return views
}

func (h *Hub) find(op, id string, now time.Time) (*Exchange, error) {
	h.Expire(now)
	if x := h.pairings[id]; x != nil {
		return x, nil
	}
	return nil, fault.New(fault.NotFound, "not_found", op, nil)
}

// Begin makes a pairing with an id that operators use, and its code. The code isn't kept in a
// form that can be asked for again.
func (h *Hub) Begin(id string, now time.Time) (Code, error) {
	h.Expire(now)
	if h.pairings[id] != nil {
		panic("pair: internal error: an id twice")
	}
	if len(h.codes) >= MaxOpen {
		return Code{}, fault.New(fault.Busy, "too_many", "begin pairing", fmt.Errorf("%d wait", MaxOpen)).
			WithHint("palyra devices pairings lists them, and palyra devices deny ID ends one")
	}
	x := &Exchange{code: NewCode(h.key), View: View{ID: id, State: Open, Begun: now, Expires: now.Add(Life)}}
	h.pairings[id], h.codes[x.code.id()] = x, x
	h.note(x)
	return x.code, nil
}

func (h *Hub) note(x *Exchange) {
	h.events = append(h.events, Event{ID: x.ID, State: x.State, End: x.End, Request: x.Request, Key: x.Key})
}

// end ends a pairing for good.
func (h *Hub) end(x *Exchange, s State, why End) {
	if x.State.Ended() {
		return
	}
	x.State, x.End = s, why
	h.note(x)
	delete(h.codes, x.code.id())
	x.code = Code{}
	h.ended = append(h.ended, x.ID)
	if len(h.ended) > maxEnded {
		delete(h.pairings, h.ended[0])
		h.ended = h.ended[1:]
	}
}

// Expire ends what has waited too long. The other methods do so, too.
func (h *Hub) Expire(now time.Time) {
	for _, x := range h.codes {
		switch {
		case now.Before(x.Expires) || x.State == Approved: // this one ends with Issued or Fail
		case x.State == Issued:
			h.end(x, Failed, EndUndelivered)
		default:
			h.end(x, Expired, EndTime)
		}
	}
}

// Hello takes a device's first message, and returns the exchange that it began with the hub's
// offer. With an error the second result is the refusal to send.
func (h *Hub) Hello(c Channel, i Identity, b []byte, now time.Time) (*Exchange, []byte, error) {
	const op = "take pairing hello"
	h.Expire(now)
	var m hello
	if err := errors.Join(c.check(), decode(b, nameHello, &m)); err != nil {
		h.stranger(EndProof, now)
		return nil, refusal(EndProof), err
	}
	if !bytes.Equal(c.HubKey, h.key) {
		panic("pair: internal error: a channel with another key than the hub's")
	}
	x := h.codes[m.Code]
	if x == nil {
		h.stranger(EndStranger, now)
		return nil, refusal(EndOver), over(op)
	}
	if x.State != Open {
		// Two devices have the code, and one of them shouldn't. Neither gets a certificate by
		// it, unless one was made already.
		if x.State != Approved && x.State != Issued {
			h.end(x, Failed, EndAgain)
		} else {
			h.stranger(EndAgain, now)
		}
		return nil, refusal(EndOver), over(op)
	}
	if err := m.Request.Check(); err != nil || m.Commitment.IsZero() {
		h.end(x, Failed, EndProof)
		return nil, refusal(EndProof), unproven(op, "the request has not the right form")
	}
	x.channel, x.identity, x.hello, x.request, x.Request = c, i, bytes.Clone(b), m, m.Request
	o := offer{Domain: i.Domain, Roots: i.digest()}
	_, _ = rand.Read(o.Nonce[:])
	x.begin(&o)
	h.note(x)
	return x, x.offer, nil
}

func (x *Exchange) begin(o *offer) {
	x.offer, x.State = encode(nameOffer, o), Begun
}

// stranger counts an attempt without a code that is open.
func (h *Hub) stranger(why End, now time.Time) {
	if now.Sub(h.since) >= Life || now.Before(h.since) {
		h.since, h.strangers = now, 0
	}
	switch h.strangers++; {
	case h.strangers < MaxStrangers:
		h.events = append(h.events, Event{State: Failed, End: why})
	case h.strangers == MaxStrangers:
		h.events = append(h.events, Event{State: Failed, End: EndStrangers})
	}
}

func refusal(why End) []byte { return encode(nameAnswer, &answer{End: why}) }

// Refusal returns what a device is told of a pairing that has ended, nil if it hasn't, or has
// well.
func (x *Exchange) Refusal() []byte {
	switch {
	case !x.State.Ended() || x.State == Completed:
		return nil
	case slices.Contains([]End{EndOperator, EndDigits, EndProof, EndIssue}, x.End):
		return refusal(x.End)
	}
	return refusal(EndOver)
}

// Answer returns what Issued made for the device, nil before.
func (x *Exchange) Answer() []byte { return x.answer }

// live returns nil if x is in this state now.
func (h *Hub) live(op string, x *Exchange, s State, now time.Time) error {
	h.Expire(now)
	if x.State == s {
		return nil
	}
	if x.State.Ended() {
		return over(op)
	}
	if x.State == Approved {
		x.gone = true // it ends when its certificate is made
	} else {
		h.end(x, Failed, EndProof)
	}
	return unproven(op, "it is not its turn")
}

// Reveal takes a device's second message. With an error the pairing has ended, and the first
// result is the refusal to send.
func (h *Hub) Reveal(x *Exchange, b []byte, now time.Time) ([]byte, error) {
	const op = "take pairing reveal"
	if err := h.live(op, x, Begun, now); err != nil {
		return x.Refusal(), err
	}
	if err := x.reveal(b); err != nil {
		h.end(x, Failed, EndProof)
		return x.Refusal(), err
	}
	x.State = Pending
	h.note(x)
	return encode(nameWait, &wait{Proof: x.script.proof(&x.code, proofHub)}), nil
}

func (x *Exchange) reveal(b []byte) error {
	const op = "take pairing reveal"
	var m reveal
	if err := decode(b, nameReveal, &m); err != nil {
		return err
	}
	if !same(m.Opening.commitment(), x.request.Commitment) {
		return unproven(op, "it does not open the commitment")
	}
	script := newTranscript(&x.channel, x.hello, x.offer, &m.Opening)
	if !same(m.Proof, script.proof(&x.code, proofDevice)) {
		return unproven(op, "the device does not have the code")
	}
	if len(m.Opening.CSR) > maxCSR || m.Opening.Nonce.IsZero() {
		return unproven(op, "the request is too long, or there is no nonce")
	}
	csr, err := x509.ParseCertificateRequest(m.Opening.CSR)
	if err != nil || csr.SignatureAlgorithm != x509.ECDSAWithSHA256 || csr.CheckSignature() != nil {
		return unproven(op, "the certificate request is not well signed")
	}
	key, ok := csr.PublicKey.(*ecdsa.PublicKey)
	digest := script.signed()
	if !ok || key.Curve != elliptic.P256() || !ecdsa.VerifyASN1(key, digest[:], m.Signature) {
		return unproven(op, "the device does not have the key")
	}
	x.script, x.csr, x.Key = script, csr, canon.Sum(csr.RawSubjectPublicKeyInfo)
	return nil
}

// Approve says that an operator has read these digits on the device's screen. Others end the
// pairing: one of the keys isn't the device's or the hub's. The caller now makes the certificate,
// and calls Issued or Fail.
func (h *Hub) Approve(id, digits string, now time.Time) (*Wanted, error) {
	const op = "approve pairing"
	x, err := h.find(op, id, now)
	switch {
	case err != nil:
		return nil, err
	case x.State == Open || x.State == Begun:
		return nil, fault.New(fault.Busy, "not_ready", op, errors.New("no device waits yet"))
	case x.State != Pending:
		return nil, ended(op, x)
	case subtle.ConstantTimeCompare([]byte(digits), []byte(x.script.digits())) != 1:
		h.end(x, Failed, EndDigits)
		return nil, fault.New(fault.Denied, "pairing_over", op, errors.New("they are not the device's; the pairing has ended")).
			WithHint("if you typed what the device shows, someone is between it and the hub; begin anew with another code")
	}
	x.State = Approved
	h.note(x)
	return &Wanted{Request: x.Request, CSR: x.csr, Key: x.Key}, nil
}

func ended(op string, x *Exchange) error {
	return fault.New(fault.Busy, "version_conflict", op, fmt.Errorf("it is %s", x.State))
}

// Waits reports whether the device of an approved pairing is still there.
func (h *Hub) Waits(id string) bool {
	x := h.pairings[id]
	return x != nil && x.State == Approved && !x.gone
}

// Issued takes the chain that was made for an approved pairing, and returns the answer for the
// device. It's an error if the device has gone: then no one has the certificate.
func (h *Hub) Issued(id string, scopes []string, chain [][]byte, now time.Time) ([]byte, error) {
	const op = "answer pairing"
	x := h.pairings[id]
	switch {
	case x == nil:
		return nil, fault.New(fault.NotFound, "not_found", op, nil)
	case x.State != Approved:
		return nil, ended(op, x)
	case x.gone:
		h.end(x, Failed, EndUndelivered)
		return nil, fault.New(fault.Unavailable, "connection_lost", op, errors.New("the device has gone; no one has the certificate"))
	}
	a := answer{Chain: chain, Roots: x.identity.Roots, Scopes: append([]string{}, scopes...)}
	a.Proof = x.script.proof(&x.code, proofAnswer, a.bytes())
	if x.answer = encode(nameAnswer, &a); len(x.answer) > MaxMessage {
		h.end(x, Failed, EndIssue)
		return nil, fault.New(fault.Internal, "internal", op, errors.New("the chain is too long"))
	}
	x.State, x.Expires = Issued, now.Add(Delivery)
	h.note(x)
	return x.answer, nil
}

// Fail ends an approved pairing for which no certificate was made.
func (h *Hub) Fail(id string) {
	if x := h.pairings[id]; x != nil && x.State == Approved {
		h.end(x, Failed, EndIssue)
	}
}

// Refuse ends a pairing because an operator says no, or doesn't want it any more. One that is
// approved can't be refused: its device is revoked instead.
func (h *Hub) Refuse(id string, now time.Time) (View, error) {
	const op = "deny pairing"
	x, err := h.find(op, id, now)
	switch {
	case err != nil:
		return View{}, err
	case x.State == Open:
		h.end(x, Cancelled, EndCancelled)
	case x.State == Begun || x.State == Pending:
		h.end(x, Refused, EndOperator)
	default:
		return View{}, ended(op, x).(*fault.Error).WithHint("an approved device is revoked: palyra devices revoke ID")
	}
	return x.View, nil
}

// Close ends all pairings with the hub.
func (h *Hub) Close() {
	for _, x := range h.codes {
		h.end(x, Cancelled, EndCancelled)
	}
}

// Gone says that the device's connection has ended.
func (h *Hub) Gone(x *Exchange) {
	switch x.State {
	case Begun, Pending:
		h.end(x, Failed, EndGone)
	case Approved:
		x.gone = true
	case Issued:
		h.end(x, Failed, EndUndelivered)
	}
}

// Done takes a device's last message.
func (h *Hub) Done(x *Exchange, b []byte, now time.Time) error {
	const op = "take pairing done"
	if err := h.live(op, x, Issued, now); err != nil {
		return err
	}
	var m done
	err := decode(b, nameDone, &m)
	if err == nil && !same(m.Proof, x.script.proof(&x.code, proofDone, x.answer)) {
		err = unproven(op, "the device did not send it")
	}
	if err != nil {
		h.end(x, Failed, EndUndelivered)
		return err
	}
	h.end(x, Completed, "")
	return nil
}
