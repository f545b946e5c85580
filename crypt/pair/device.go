package pair

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"palyra/internal/fault"
)

// Device is the device's side. Each method takes the message that the one before waits for;
// after an error it's of no more use.
type Device struct {
	code    Code
	channel Channel
	key     crypto.Signer
	request Request
	opening opening

	next   string // the message it waits for; "" at the end
	hello  []byte
	offer  offer
	script transcript
}

// NewDevice begins an exchange on a channel for a key that the caller has made and keeps: ECDSA
// on P-256. It's an error if the channel isn't one to the hub that the code names.
func NewDevice(code Code, channel Channel, key crypto.Signer, r Request) (*Device, error) {
	const op = "begin pairing"
	if err := errors.Join(r.Check(), channel.check()); err != nil {
		return nil, err
	}
	if !code.Names(channel.HubKey) {
		return nil, unproven(op, "the other side has another key than the code names")
	}
	if p, ok := key.Public().(*ecdsa.PublicKey); !ok || p.Curve != elliptic.P256() {
		return nil, fault.New(fault.Usage, "invalid_input", op, errors.New("the key is not ECDSA on P-256"))
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: r.Device}, SignatureAlgorithm: x509.ECDSAWithSHA256}, key)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "sign certificate request", err)
	}
	o := opening{CSR: csr}
	_, _ = rand.Read(o.Nonce[:])
	return newDevice(code, channel, key, r, o), nil
}

func newDevice(code Code, channel Channel, key crypto.Signer, r Request, o opening) *Device {
	d := &Device{code: code, channel: channel, key: key, request: r, opening: o, next: nameOffer}
	d.hello = encode(nameHello, &hello{Code: code.id(), Commitment: o.commitment(), Request: r})
	return d
}

// Hello returns the first message.
func (d *Device) Hello() []byte { return d.hello }

// Digits returns what the device's screen shows, after Wait.
func (d *Device) Digits() string {
	if d.next != nameAnswer {
		return ""
	}
	return d.script.digits()
}

// take decodes the message that is next. An answer that refuses may come at any time.
func (d *Device) take(b []byte, name string, m any) error {
	if d.next != name {
		return unproven("read pairing message "+name, "it is not its turn")
	}
	d.next = ""
	var a answer
	if name != nameAnswer && decode(b, nameAnswer, &a) == nil && a.End != "" {
		return refused(a.End)
	}
	return decode(b, name, m)
}

// refused is the device's error after a refusal. The words are ours: what the other side sent is
// a code of a list.
func refused(why End) error {
	const op = "pair with hub"
	switch why {
	case EndOperator:
		return fault.New(fault.NotApproved, "not_approved", op, errors.New("the hub's operator said no"))
	case EndDigits:
		return fault.New(fault.Denied, "pairing_over", op, errors.New("the digits that the operator typed are not the hub's")).
			WithHint("if they were typed as this device showed them, someone is between device and hub")
	case EndProof:
		return unproven(op, "the hub does not accept this device's messages")
	case EndIssue:
		return fault.New(fault.Unavailable, "pairing_over", op, errors.New("the hub could not make the certificate"))
	}
	return over(op)
}

// Offer takes the hub's offer and returns what opens the commitment.
func (d *Device) Offer(b []byte) ([]byte, error) {
	if err := d.take(b, nameOffer, &d.offer); err != nil {
		return nil, err
	}
	if err := d.offer.check(); err != nil {
		return nil, err
	}
	d.script = newTranscript(&d.channel, d.hello, b, &d.opening)
	digest := d.script.signed()
	sig, err := d.key.Sign(rand.Reader, digest[:], crypto.SHA256)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", "sign pairing", err)
	}
	d.next = nameWait
	return encode(nameReveal, &reveal{Opening: d.opening, Proof: d.script.proof(&d.code, proofDevice), Signature: sig}), nil
}

func (o *offer) check() error {
	labels := strings.Split(o.Domain, ".")
	bad := len(o.Domain) > maxDomain || o.Nonce.IsZero() || o.Roots.IsZero()
	for _, l := range labels {
		bad = bad || !made(l, 63, "0123456789-")
	}
	if bad {
		return unproven("read pairing message offer", "it names no hub")
	}
	return nil
}

// Wait takes the hub's proof that it has the code, too. From now on Digits has the digits.
func (d *Device) Wait(b []byte) error {
	var w wait
	if err := d.take(b, nameWait, &w); err != nil {
		return err
	}
	if !same(w.Proof, d.script.proof(&d.code, proofHub)) {
		return unproven("read pairing message wait", "the hub does not have the code")
	}
	d.next = nameAnswer
	return nil
}

// Answer takes the hub's answer: a chain for the device's key, which it verifies, or an error
// that says why there is none. The message that it returns tells the hub that it arrived.
func (d *Device) Answer(b []byte, now time.Time) ([]byte, *Chain, error) {
	const op = "read pairing message answer"
	var a answer
	if err := d.take(b, nameAnswer, &a); err != nil {
		return nil, nil, err
	}
	if a.End != "" {
		return nil, nil, refused(a.End)
	}
	if !same(a.Proof, d.script.proof(&d.code, proofAnswer, a.bytes())) {
		return nil, nil, unproven(op, "the hub did not make it")
	}
	if digestOf("roots", a.Roots...) != d.offer.Roots {
		return nil, nil, unproven(op, "it has other roots than the offer")
	}
	c, err := d.verify(&a, now)
	if err != nil {
		return nil, nil, unproven(op, "%v", err)
	}
	return encode(nameDone, &done{Proof: d.script.proof(&d.code, proofDone, b)}), c, nil
}

// verify holds a chain to the key, the roots and what was asked for.
func (d *Device) verify(a *answer, now time.Time) (*Chain, error) {
	c := &Chain{Scopes: a.Scopes, Domain: d.offer.Domain}
	var err error
	if c.Certificates, err = parseAll(a.Chain); err != nil {
		return nil, fmt.Errorf("chain: %v", err)
	}
	if c.Roots, err = parseAll(a.Roots); err != nil {
		return nil, fmt.Errorf("roots: %v", err)
	}
	leaf := c.Certificates[0]
	if p, ok := leaf.PublicKey.(*ecdsa.PublicKey); !ok || !p.Equal(d.key.Public()) {
		return nil, errors.New("the certificate has another key than the device's")
	}
	if want := "spiffe://" + c.Domain + "/device/" + d.request.Device; len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
		return nil, errors.New("the certificate has another name than the device's")
	}
	o := x509.VerifyOptions{Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, r := range c.Roots {
		o.Roots.AddCert(r)
	}
	for _, i := range c.Certificates[1:] {
		o.Intermediates.AddCert(i)
	}
	if _, err := leaf.Verify(o); err != nil {
		return nil, err
	}
	for _, s := range a.Scopes {
		if !slices.Contains(d.request.Scopes, s) {
			return nil, fmt.Errorf("scope %.80q was not asked for", s)
		}
	}
	return c, nil
}

func parseAll(ders [][]byte) (list []*x509.Certificate, _ error) {
	if len(ders) == 0 || len(ders) > maxChain {
		return nil, fmt.Errorf("want 1 to %d certificates", maxChain)
	}
	for _, der := range ders {
		if len(der) > maxCert {
			return nil, fmt.Errorf("a certificate is longer than %d bytes", maxCert)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, err
		}
		list = append(list, c)
	}
	return list, nil
}
