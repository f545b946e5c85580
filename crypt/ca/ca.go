// Package ca is the certificate authority of one installation: it names the hub and its devices.
//
// A root certifies an intermediate, the issuer, and the issuer certifies leaves. The names of
// all three lie in one trust domain, which is the origin of the installation's journal. A leaf
// says who holds its key: an [Identity] such as spiffe://DOMAIN/device/laptop, for a day at most.
//
//	a, err := ca.Open(stateDir, ca.Options{Keys: keeper})        // ca.Create, the first time
//	chain, err := a.Issue(csr, ca.Identity{Domain: a.Domain(), Kind: ca.Device, ID: "laptop"}, time.Now())
//	leaf, err := ca.Verify(chain, a.Roots(), ca.Device, time.Now()) // by whoever is shown the chain
//
// Holders make their keys and keep them: the authority sees a signing request and takes nothing
// from it but the key. The root's key is read to make an issuer and at no other time.
//
// The files, all below the state directory:
//
//	ca/root.key             PKCS #8 in PEM, mode 0600
//	ca/root.crt             certificate in PEM
//	ca/issuer.crt           certificate in PEM
//	ca/root-….{key,crt}     while the root is being replaced; root.go
//	ca/issuer-DIGITS.key    PKCS #8 in PEM, mode 0600; the digits begin the SHA-256 of its public key
//
// ca/ appears in one piece or not at all. issuer.crt says which issuer is in force:
// [Authority.Rotate] writes the next key beside the old one, replaces the certificate, and removes
// the old key. Each change is recorded (a [Record] is called) when its keys are on the disk and
// before it counts. The file certifying of the state directory is locked meanwhile.
//
// A [Keeper] says what the files of keys hold: the PKCS #8, or the same sealed for recipients.
//
// The package doesn't revoke: a leaf that verifies may belong to a device that was revoked since,
// and its caller asks the store. It doesn't protect against a reader of plain keys in ca/, who can
// name any device in this domain and in no other. Parsed keys stay on the heap: the issuer's for as
// long as the authority is open, the root's until the garbage collector takes it. Docs:
// docs/formats/ca.md.
package ca

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"palyra/internal/fault"
)

// The lives of certificates.
const (
	RootLife   = 10 * 365 * 24 * time.Hour
	IssuerLife = 90 * 24 * time.Hour
	LeafLife   = 24 * time.Hour // from NotBefore to NotAfter
	backdating = 5 * time.Minute
)

// maxRequest bounds a signing request, in bytes. One for a P-256 key takes some 300.
const maxRequest = 4096

// Authority is the certificate authority of one state directory. It prints as its domain.
type Authority struct {
	_      [0]func() // not comparable
	dir    string    // STATE/ca
	domain string
	o      Options

	// Written by the holder of the lock for changes alone.
	mu       sync.Mutex
	root     *x509.Certificate // in force; guarded by mu
	next     *x509.Certificate // introduced; nil: none is; guarded by mu
	link     *x509.Certificate // the next root's key, certified by root; guarded by mu
	previous *x509.Certificate // ended; nil: there is none; guarded by mu
	issuer   *x509.Certificate // guarded by mu
	key      *ecdsa.PrivateKey // the issuer's; guarded by mu
}

// Domain returns the trust domain, the host part of every name.
func (a *Authority) Domain() string { return a.domain }

// String returns the trust domain.
func (a *Authority) String() string { return "ca:" + a.domain }

// Format prints the trust domain, whatever the verb.
func (a *Authority) Format(f fmt.State, _ rune) { _, _ = f.Write([]byte(a.String())) }

// Issue certifies the key of a PKCS #10 request for id, and returns the leaf and its issuer in
// DER. It checks the request's signature, so that the asker has the key, and takes nothing else
// of it: names, extensions and attributes are those of id alone. A leaf of kind hub also has the
// trust domain as its DNS name.
//
// Abuse: a caller of it can become any device, worker or hub of this domain. Only the hub's
// enrolment and renewal call it.
func (a *Authority) Issue(csr []byte, id Identity, now time.Time) (chain [][]byte, err error) {
	const op = "issue certificate"
	if err := id.check(); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if id.Domain != a.domain {
		return nil, fault.New(fault.Usage, "invalid_input", op, fmt.Errorf("the name is of %q, the authority of %q", id.Domain, a.domain))
	}
	pub, err := requestKey(csr)
	if err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	notBefore := now.Add(-backdating)
	notAfter := notBefore.Add(LeafLife)
	if now.After(a.issuer.NotAfter) || now.Before(a.issuer.NotBefore) {
		return nil, fault.New(fault.BadState, "peer_certificate_expired", op, errors.New("the issuer is out of its time")).
			WithHint("set the clock right; palyrad replaces its issuer by itself")
	}
	if notBefore.Before(a.issuer.NotBefore) {
		notBefore = a.issuer.NotBefore
	}
	if notAfter.After(a.issuer.NotAfter) {
		notAfter = a.issuer.NotAfter
	}
	t := &x509.Certificate{
		SerialNumber:          serial(),
		NotBefore:             notBefore,
		NotAfter:              notAfter,
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{usageOf(id.Kind)},
		BasicConstraintsValid: true,
		URIs:                  []*url.URL{id.url()},
	}
	if id.Kind == Hub {
		t.DNSNames = []string{a.domain}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.issuer, pub, a.key)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	return [][]byte{der, append([]byte(nil), a.issuer.Raw...)}, nil
}

// requestKey returns the public key of a request that its holder signed.
func requestKey(csr []byte) (*ecdsa.PublicKey, error) {
	if len(csr) > maxRequest {
		return nil, fmt.Errorf("signing request of %d bytes, at most %d", len(csr), maxRequest)
	}
	r, err := x509.ParseCertificateRequest(csr)
	if err != nil {
		return nil, fmt.Errorf("parse signing request: %v", err)
	}
	pub, ok := r.PublicKey.(*ecdsa.PublicKey)
	if !ok || pub.Curve != elliptic.P256() || r.SignatureAlgorithm != x509.ECDSAWithSHA256 {
		return nil, errors.New("signing request: want ECDSA on P-256 with SHA-256")
	}
	if err := r.CheckSignature(); err != nil {
		return nil, fmt.Errorf("signing request: %v", err)
	}
	return pub, nil
}

// KeyDigest returns the SHA-256 of the SubjectPublicKeyInfo that a signing request is for, in
// hexadecimal, after checking the request as Issue does. A device is known by it.
func KeyDigest(csr []byte) (string, error) {
	pub, err := requestKey(csr)
	if err != nil {
		return "", fault.New(fault.Usage, "invalid_input", "read signing request", err)
	}
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", fault.New(fault.Usage, "invalid_input", "read signing request", err)
	}
	return digestOf(spki), nil
}

// A Record makes a change durable in a record of its own before it counts. A change
// that it refuses doesn't happen; one that it took may still not happen, if the process dies.
type Record func(detail map[string]string) error

// Rotate makes a new issuer with a key of its own, certified by the root, and removes the old
// key. Leaves of the old issuer carry its certificate and stay valid until they end, so that
// nothing is cut off.
func (a *Authority) Rotate(ctx context.Context, now time.Time, record Record) error {
	release, err := hold(ctx, filepath.Dir(a.dir))
	if err != nil {
		return err
	}
	defer release()
	return a.rotate(now, record)
}

// RotateAt returns when the issuer has lived two thirds of its life, and Rotate is due.
func (a *Authority) RotateAt() time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	return RenewAt(a.issuer.NotBefore, a.issuer.NotAfter)
}

// RenewAt returns the time at two thirds of a certificate's life, when its holder renews it.
func RenewAt(notBefore, notAfter time.Time) time.Time {
	return notBefore.Add(notAfter.Sub(notBefore) * 2 / 3)
}

// newRoot makes a root's key and its certificate.
func newRoot(domain string, now time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := authorityTemplate(domain, "root", now, RootLife)
	t.MaxPathLen = 1
	cert, err := certify(t, t, &key.PublicKey, key)
	return key, cert, err
}

// newIssuer makes an issuer's key and has the root certify it, for names in domain alone.
//
// Abuse: a caller with the root's key can make any number of issuers of this domain.
func newIssuer(domain string, root *x509.Certificate, rootKey *ecdsa.PrivateKey, now time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	t := authorityTemplate(domain, "issuer", now, IssuerLife)
	t.MaxPathLenZero = true
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}
	t.PermittedDNSDomainsCritical = true
	t.PermittedDNSDomains = []string{domain}
	t.PermittedURIDomains = []string{domain}
	t.PermittedEmailAddresses = []string{domain} // a kind of name without a constraint is free
	t.ExcludedIPRanges = everyIP()
	if t.NotAfter.After(root.NotAfter) {
		t.NotAfter = root.NotAfter
	}
	cert, err := certify(t, root, &key.PublicKey, rootKey)
	return key, cert, err
}

func authorityTemplate(domain, role string, now time.Time, life time.Duration) *x509.Certificate {
	notBefore := now.Add(-backdating)
	n := serial()
	return &x509.Certificate{
		SerialNumber: n,
		// The digits keep two issuers of one domain apart in a verifier's index of names.
		Subject:               pkix.Name{CommonName: fmt.Sprintf("Palyra %s %x", role, n)},
		NotBefore:             notBefore,
		NotAfter:              notBefore.Add(life),
		KeyUsage:              x509.KeyUsageCertSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
		URIs:                  []*url.URL{{Scheme: scheme, Host: domain}},
	}
}

func certify(t, parent *x509.Certificate, pub *ecdsa.PublicKey, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, t, parent, pub, key)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// serial returns a random positive number of exactly 128 bits, as many as fit without a zero byte
// of padding in front: 126 of them are random.
func serial() *big.Int {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails; see crypto/rand.Read
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// everyIP returns the ranges that cover every address.
func everyIP() []*net.IPNet {
	return []*net.IPNet{
		{IP: make(net.IP, net.IPv4len), Mask: make(net.IPMask, net.IPv4len)},
		{IP: make(net.IP, net.IPv6len), Mask: make(net.IPMask, net.IPv6len)},
	}
}

func digestOf(spki []byte) string {
	d := sha256.Sum256(spki)
	return hex.EncodeToString(d[:])
}

// The extensions that our certificates have, and no other.
var (
	oidSubjectKey  = asn1.ObjectIdentifier{2, 5, 29, 14}
	oidKeyUsage    = asn1.ObjectIdentifier{2, 5, 29, 15}
	oidNames       = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidBasic       = asn1.ObjectIdentifier{2, 5, 29, 19}
	oidConstraints = asn1.ObjectIdentifier{2, 5, 29, 30}
	oidAuthority   = asn1.ObjectIdentifier{2, 5, 29, 35}
	oidExtUsage    = asn1.ObjectIdentifier{2, 5, 29, 37}
)
