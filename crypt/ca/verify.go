package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"time"

	"palyra/internal/fault"
)

// maxCertificate bounds a certificate, in bytes. Ours take less than 900.
const maxCertificate = 4096

// Leaf is a certificate that verified.
type Leaf struct {
	Identity  Identity
	Serial    string // 32 hexadecimal digits
	KeyDigest string // SHA-256 of its SubjectPublicKeyInfo, in hexadecimal
	NotBefore time.Time
	NotAfter  time.Time
}

// Verify checks the chain that a peer showed, leaf first, in DER: that a root of the bundle
// certifies it at the time now, and that it is in each particular a chain that an [Authority]
// makes, for a holder of the kind want. It accepts nothing else, whoever signed it: another key
// type, a longer chain, an extension or a name more, one name out of its domain. An error is
// fault.Denied with the reason peer_certificate_expired or peer_certificate_invalid.
func Verify(chain, roots [][]byte, want string, now time.Time) (Leaf, error) {
	const op = "verify certificate"
	if !slices.Contains(kinds, want) {
		return Leaf{}, fault.New(fault.Internal, "internal", op, fmt.Errorf("unknown kind %q", want))
	}
	if len(chain) != 2 {
		return Leaf{}, fault.New(fault.Denied, "peer_certificate_invalid", op, fmt.Errorf("a chain of %d certificates, want a leaf and its issuer", len(chain)))
	}
	certs, err := parseAll(chain)
	if err != nil {
		return Leaf{}, fault.New(fault.Denied, "peer_certificate_invalid", op, err)
	}
	anchors, err := parseAll(roots)
	if err != nil {
		return Leaf{}, fault.New(fault.Integrity, "trust_corrupt", op, fmt.Errorf("trust bundle: %w", err))
	}
	path, err := buildPath(certs, anchors, usageOf(want), now)
	if err != nil {
		reason := "peer_certificate_invalid"
		if e, ok := errors.AsType[x509.CertificateInvalidError](err); ok && e.Reason == x509.Expired {
			reason = "peer_certificate_expired"
		}
		return Leaf{}, fault.New(fault.Denied, reason, op, err)
	}
	leaf, err := ours(path, want)
	if err != nil {
		return Leaf{}, fault.New(fault.Denied, "peer_certificate_invalid", op, err)
	}
	return leaf, nil
}

func parseAll(ders [][]byte) ([]*x509.Certificate, error) {
	if len(ders) == 0 {
		return nil, errors.New("no certificate")
	}
	certs := make([]*x509.Certificate, len(ders))
	for i, der := range ders {
		if len(der) > maxCertificate {
			return nil, fmt.Errorf("certificate %d has %d bytes, at most %d", i, len(der), maxCertificate)
		}
		c, err := x509.ParseCertificate(der)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %v", i, err)
		}
		certs[i] = c
	}
	return certs, nil
}

// buildPath is what crypto/x509 checks: signatures, times, authority, path length, name
// constraints, extended key usages.
func buildPath(certs, anchors []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) ([]*x509.Certificate, error) {
	o := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(),
		CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	}
	for _, c := range anchors {
		o.Roots.AddCert(c)
	}
	for _, c := range certs[1:] {
		o.Intermediates.AddCert(c)
	}
	paths, err := certs[0].Verify(o)
	if err != nil {
		return nil, err
	}
	// ours compares each certificate, so that any path does; an anchor that is in the bundle
	// twice gives two.
	return paths[0], nil
}

// TestOnlyPath is buildPath for a leaf and any certificates behind it, for cases of others: what it
// accepts isn't yet one of ours.
func TestOnlyPath(chain, roots [][]byte, usage x509.ExtKeyUsage, now time.Time) error {
	certs, err := parseAll(chain)
	if err != nil {
		return err
	}
	anchors, err := parseAll(roots)
	if err != nil {
		return err
	}
	_, err = buildPath(certs, anchors, usage, now)
	return err
}

// ours checks that a path whose signatures hold is one of ours, in each particular.
func ours(path []*x509.Certificate, want string) (Leaf, error) {
	if len(path) != 3 {
		return Leaf{}, fmt.Errorf("a path of %d certificates, want leaf, issuer and root", len(path))
	}
	leaf, issuer, root := path[0], path[1], path[2]
	id, err := leafName(leaf, want)
	if err != nil {
		return Leaf{}, fmt.Errorf("leaf: %w", err)
	}
	if err := issuerForm(issuer, id.Domain); err != nil {
		return Leaf{}, fmt.Errorf("issuer: %w", err)
	}
	if err := rootForm(root, id.Domain); err != nil {
		return Leaf{}, fmt.Errorf("root: %w", err)
	}
	return Leaf{
		Identity: id, Serial: serialText(leaf.SerialNumber), KeyDigest: digestOf(leaf.RawSubjectPublicKeyInfo),
		NotBefore: leaf.NotBefore, NotAfter: leaf.NotAfter,
	}, nil
}

// serialText writes a serial number of 128 bits; leafForm has checked that it is one.
func serialText(n *big.Int) string {
	var b [16]byte
	return hex.EncodeToString(n.FillBytes(b[:]))
}

func leafName(c *x509.Certificate, want string) (Identity, error) {
	if err := form(c, oidKeyUsage, oidExtUsage, oidBasic, oidAuthority, oidNames); err != nil {
		return Identity{}, err
	}
	switch {
	case c.IsCA || !c.BasicConstraintsValid:
		return Identity{}, errors.New("may certify others")
	case c.KeyUsage != x509.KeyUsageDigitalSignature:
		return Identity{}, errors.New("key usage isn't digitalSignature alone")
	case len(c.ExtKeyUsage) != 1 || c.ExtKeyUsage[0] != usageOf(want) || len(c.UnknownExtKeyUsage) != 0:
		return Identity{}, errors.New("extended key usage isn't that of its kind alone")
	case c.NotAfter.Sub(c.NotBefore) > LeafLife:
		return Identity{}, fmt.Errorf("lives longer than %v", LeafLife)
	case !bytes.Equal(c.RawSubject, emptyName):
		return Identity{}, errors.New("has a subject besides its name")
	case len(c.URIs) != 1 || len(c.IPAddresses) != 0 || len(c.EmailAddresses) != 0:
		return Identity{}, errors.New("has names besides one URI")
	}
	id, err := ParseIdentity(c.URIs[0].String())
	if err != nil {
		return Identity{}, err
	}
	if id.Kind != want {
		return Identity{}, fmt.Errorf("is for a %s, want a %s", id.Kind, want)
	}
	var dns []string
	if id.Kind == Hub {
		dns = []string{id.Domain}
	}
	if !slices.Equal(c.DNSNames, dns) {
		return Identity{}, errors.New("has other DNS names than its kind")
	}
	// The extension is compared as a whole: names of a kind that crypto/x509 doesn't parse hide there.
	return id, sameNames(c, id, dns)
}

func issuerForm(c *x509.Certificate, domain string) error {
	if err := form(c, oidKeyUsage, oidExtUsage, oidBasic, oidSubjectKey, oidAuthority, oidNames, oidConstraints); err != nil {
		return err
	}
	one := []string{domain}
	switch {
	case !c.IsCA || c.MaxPathLen != 0 || !c.MaxPathLenZero:
		return errors.New("path length isn't 0")
	case c.KeyUsage != x509.KeyUsageCertSign:
		return errors.New("key usage isn't keyCertSign alone")
	case !c.PermittedDNSDomainsCritical:
		return errors.New("name constraints aren't critical")
	case !slices.Equal(c.PermittedDNSDomains, one) || !slices.Equal(c.PermittedURIDomains, one) ||
		!slices.Equal(c.PermittedEmailAddresses, one) || !slices.EqualFunc(c.ExcludedIPRanges, everyIP(), sameRange) ||
		len(c.PermittedIPRanges)+len(c.ExcludedDNSDomains)+len(c.ExcludedURIDomains)+len(c.ExcludedEmailAddresses) != 0:
		return fmt.Errorf("name constraints aren't those of %q", domain)
	case c.NotAfter.Sub(c.NotBefore) > IssuerLife:
		return fmt.Errorf("lives longer than %v", IssuerLife)
	}
	return authorityName(c, domain)
}

func rootForm(c *x509.Certificate, domain string) error {
	if err := form(c, oidKeyUsage, oidBasic, oidSubjectKey, oidNames); err != nil {
		return err
	}
	return authorityForm(c, domain)
}

// authorityForm checks what a root and a link have in common.
func authorityForm(c *x509.Certificate, domain string) error {
	switch {
	case !c.IsCA || c.MaxPathLen != 1:
		return errors.New("path length isn't 1")
	case c.KeyUsage != x509.KeyUsageCertSign:
		return errors.New("key usage isn't keyCertSign alone")
	}
	return authorityName(c, domain)
}

func authorityName(c *x509.Certificate, domain string) error {
	if len(c.URIs) != 1 || c.URIs[0].String() != scheme+"://"+domain || len(c.DNSNames)+len(c.EmailAddresses)+len(c.IPAddresses) != 0 {
		return fmt.Errorf("isn't of the trust domain %q", domain)
	}
	return nil
}

// form checks what all of our certificates have in common. Each has exactly these extensions.
func form(c *x509.Certificate, extensions ...asn1.ObjectIdentifier) error {
	pub, ok := c.PublicKey.(*ecdsa.PublicKey)
	switch {
	case c.Version != 3:
		return fmt.Errorf("version %d", c.Version)
	case !ok || pub.Curve != elliptic.P256() || c.SignatureAlgorithm != x509.ECDSAWithSHA256:
		return errors.New("isn't ECDSA on P-256 with SHA-256")
	case c.SerialNumber.Sign() <= 0 || c.SerialNumber.BitLen() > 128 || c.SerialNumber.BitLen() < 64:
		return errors.New("serial number isn't random of 128 bits")
	case len(c.Extensions) != len(extensions):
		return fmt.Errorf("%d extensions, want %d", len(c.Extensions), len(extensions))
	case len(c.UnhandledCriticalExtensions) != 0:
		return errors.New("has a critical extension of another kind")
	}
	for _, e := range c.Extensions { // crypto/x509 refuses one that stands twice
		if !slices.ContainsFunc(extensions, e.Id.Equal) {
			return fmt.Errorf("has the extension %v", e.Id)
		}
	}
	return nil
}

// The tags of GeneralName (RFC 5280 §4.2.1.6) that our leaves have.
const (
	tagDNS = 2
	tagURI = 6
)

var emptyName = []byte{0x30, 0x00}

// sameNames compares the extension with that of a leaf which has these names alone.
func sameNames(c *x509.Certificate, id Identity, dns []string) error {
	var names []asn1.RawValue
	for _, d := range dns {
		names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tagDNS, Bytes: []byte(d)})
	}
	names = append(names, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tagURI, Bytes: []byte(id.String())})
	want, err := asn1.Marshal(names)
	if err != nil {
		return err
	}
	for _, e := range c.Extensions {
		if e.Id.Equal(oidNames) {
			if !e.Critical || !bytes.Equal(e.Value, want) {
				return errors.New("alternative names aren't its URI alone, critical")
			}
			return nil
		}
	}
	return errors.New("has no alternative names")
}

func sameRange(a, b *net.IPNet) bool { return a.IP.Equal(b.IP) && bytes.Equal(a.Mask, b.Mask) }
