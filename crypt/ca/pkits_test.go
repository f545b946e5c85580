package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"net/url"
	"testing"
	"time"
)

// The cases of NIST's PKITS (Public Key Interoperability Test Suite, version 1.0.1) that apply to a
// path of ours, made anew from our own certificates under their numbers and names. Not here: 4.4, 4.14
// and 4.15, revocation lists, which we have none of; 4.8 to 4.12, policies, which a path is found
// without unless its caller asks for one; constraints on directory names of 4.13, which crypto/x509
// refuses as a critical extension that it doesn't know.

// pkitsChain is what a case changes: our root, issuer and hub's leaf before they are signed.
type pkitsChain struct {
	root, issuer, leaf *x509.Certificate
	// more are authorities between issuer and leaf, in that order.
	more []*x509.Certificate
	// sign changes a certificate, 0 for the root, after it was signed.
	sign func(i int, der []byte) []byte
	// issuedBy has another name for the issuer of a certificate.
	issuedBy func(i int) *pkix.Name
}

func extension(critical bool) pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{2, 16, 840, 1, 101, 2, 1, 12, 2}, Critical: critical, Value: []byte{0x05, 0x00}}
}

func spoil(at int) func(int, []byte) []byte {
	return func(i int, der []byte) []byte {
		if i == at {
			der[len(der)-1] ^= 1
		}
		return der
	}
}

// selfIssued is an authority of the same name with another key.
func selfIssued(c *x509.Certificate) *x509.Certificate {
	n := *c
	n.SerialNumber = serial()
	return &n
}

func TestPKITS(t *testing.T) {
	uri := func(host string) []*url.URL { return []*url.URL{{Scheme: scheme, Host: host, Path: "/hub/one"}} }
	day := 24 * time.Hour
	plain := func(c *pkitsChain) { // no constraints, so that a case sets its own
		c.issuer.PermittedDNSDomains, c.issuer.PermittedURIDomains, c.issuer.PermittedEmailAddresses, c.issuer.ExcludedIPRanges = nil, nil, nil, nil
	}
	for _, c := range []struct {
		name    string
		valid   bool // as PKITS says
		differs bool // crypto/x509 says otherwise
		change  func(*pkitsChain)
	}{
		{"4.1.1 Valid Signatures Test1", true, false, func(*pkitsChain) {}},
		{"4.1.2 Invalid CA Signature Test2", false, false, func(c *pkitsChain) { c.sign = spoil(1) }},
		{"4.1.3 Invalid EE Signature Test3", false, false, func(c *pkitsChain) { c.sign = spoil(2) }},
		{"4.2.1 Invalid CA notBefore Date Test1", false, false, func(c *pkitsChain) { c.issuer.NotBefore = now.Add(day) }},
		{"4.2.2 Invalid EE notBefore Date Test2", false, false, func(c *pkitsChain) { c.leaf.NotBefore = now.Add(day) }},
		{"4.2.5 Invalid CA notAfter Date Test5", false, false, func(c *pkitsChain) { c.issuer.NotAfter = now.Add(-time.Second) }},
		{"4.2.6 Invalid EE notAfter Date Test6", false, false, func(c *pkitsChain) { c.leaf.NotAfter = now.Add(-time.Second) }},
		{"4.2.8 Valid GeneralizedTime notAfter Date Test8", true, false, func(c *pkitsChain) { c.leaf.NotAfter = time.Date(2050, 1, 1, 12, 1, 0, 0, time.UTC) }},
		{"4.3.1 Invalid Name Chaining EE Test1", false, false, func(c *pkitsChain) {
			c.issuedBy = func(i int) *pkix.Name { return map[bool]*pkix.Name{true: {CommonName: "Another"}}[i == 2] }
		}},
		{"4.5.1 Valid Basic Self-Issued Old With New Test1", true, false, func(c *pkitsChain) {
			c.root.MaxPathLen, c.issuer.MaxPathLen, c.issuer.MaxPathLenZero = -1, -1, false
			c.more = append(c.more, selfIssued(c.issuer))
		}},
		{"4.6.1 Invalid Missing basicConstraints Test1", false, false, func(c *pkitsChain) { c.issuer.BasicConstraintsValid = false }},
		{"4.6.2 Invalid cA False Test2", false, false, func(c *pkitsChain) { c.issuer.IsCA, c.issuer.MaxPathLen, c.issuer.MaxPathLenZero = false, -1, false }},
		{"4.6.5 Invalid pathLenConstraint Test5", false, false, func(c *pkitsChain) { c.more = append(c.more, authorityTemplate(domain, "sub", now, day)) }},
		{"4.6.6 Invalid pathLenConstraint Test6", false, false, func(c *pkitsChain) {
			sub := authorityTemplate(domain, "sub", now, day)
			sub.MaxPathLenZero = true
			c.more = append(c.more, sub)
		}},
		{"4.6.7 Valid pathLenConstraint Test7", true, false, func(*pkitsChain) {}}, // an issuer of length 0 and a leaf
		{"4.6.13 Valid pathLenConstraint Test13", true, false, func(c *pkitsChain) {
			c.root.MaxPathLen, c.issuer.MaxPathLen, c.issuer.MaxPathLenZero = 6, 1, false
			sub := authorityTemplate(domain, "sub", now, day)
			sub.MaxPathLenZero = true
			c.more = append(c.more, sub)
		}},
		// RFC 5280 doesn't count self-issued authorities; crypto/x509 does.
		{"4.6.15 Valid Self-Issued pathLenConstraint Test15", true, true, func(c *pkitsChain) { c.more = append(c.more, selfIssued(c.issuer)) }},
		{"4.7.1 Invalid keyUsage Critical keyCertSign False Test1", false, false, func(c *pkitsChain) { c.issuer.KeyUsage = x509.KeyUsageCRLSign }},
		{"4.13.21 Valid RFC822 nameConstraints Test21", true, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedEmailAddresses, c.leaf.EmailAddresses = []string{".testcertificates.gov"}, []string{"Test21EE@mailserver.testcertificates.gov"}
		}},
		{"4.13.22 Invalid RFC822 nameConstraints Test22", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedEmailAddresses, c.leaf.EmailAddresses = []string{".testcertificates.gov"}, []string{"Test22EE@testcertificates.gov"}
		}},
		{"4.13.23 Valid RFC822 nameConstraints Test23", true, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedEmailAddresses, c.leaf.EmailAddresses = []string{"testcertificates.gov"}, []string{"Test23EE@testcertificates.gov"}
		}},
		// For mail and URIs, too, crypto/x509 takes a constraint without a period for the domain and all
		// below it. Verify compares the names whole.
		{"4.13.24 Invalid RFC822 nameConstraints Test24", false, true, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedEmailAddresses, c.leaf.EmailAddresses = []string{"testcertificates.gov"}, []string{"Test24EE@mailserver.testcertificates.gov"}
		}},
		{"4.13.25 Valid RFC822 nameConstraints Test25", true, true, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedEmailAddresses, c.leaf.EmailAddresses = []string{"testcertificates.gov"}, []string{"Test25EE@mailserver.testcertificates.gov"}
		}},
		{"4.13.26 Invalid RFC822 nameConstraints Test26", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedEmailAddresses, c.leaf.EmailAddresses = []string{"testcertificates.gov"}, []string{"Test26EE@testcertificates.gov"}
		}},
		{"4.13.30 Valid DNS nameConstraints Test30", true, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedDNSDomains, c.leaf.DNSNames = []string{"testcertificates.gov"}, []string{"testserver.testcertificates.gov"}
		}},
		{"4.13.31 Invalid DNS nameConstraints Test31", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedDNSDomains, c.leaf.DNSNames = []string{"testcertificates.gov"}, []string{"testserver.invalidcertificates.gov"}
		}},
		{"4.13.32 Valid DNS nameConstraints Test32", true, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedDNSDomains, c.leaf.DNSNames = []string{"invalidcertificates.gov"}, []string{"testserver.testcertificates.gov"}
		}},
		{"4.13.33 Invalid DNS nameConstraints Test33", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedDNSDomains, c.leaf.DNSNames = []string{"invalidcertificates.gov"}, []string{"testserver.invalidcertificates.gov"}
		}},
		{"4.13.34 Valid URI nameConstraints Test34", true, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedURIDomains, c.leaf.URIs = []string{".testcertificates.gov"}, uri("testserver.testcertificates.gov")
		}},
		{"4.13.35 Invalid URI nameConstraints Test35", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedURIDomains, c.leaf.URIs = []string{".testcertificates.gov"}, uri("testcertificates.gov")
		}},
		{"4.13.36 Valid URI nameConstraints Test36", true, true, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedURIDomains, c.leaf.URIs = []string{"testcertificates.gov"}, uri("testserver.testcertificates.gov")
		}},
		{"4.13.37 Invalid URI nameConstraints Test37", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.ExcludedURIDomains, c.leaf.URIs = []string{"testcertificates.gov"}, uri("testcertificates.gov")
		}},
		{"4.13.38 Invalid DNS nameConstraints Test38", false, false, func(c *pkitsChain) {
			plain(c)
			c.issuer.PermittedDNSDomains, c.leaf.DNSNames = []string{"testcertificates.gov"}, []string{"mytestcertificates.gov"}
		}},
		{"4.16.1 Valid Unknown Not Critical Certificate Extension Test1", true, false, func(c *pkitsChain) { c.leaf.ExtraExtensions = append(c.leaf.ExtraExtensions, extension(false)) }},
		{"4.16.2 Invalid Unknown Critical Certificate Extension Test2", false, false, func(c *pkitsChain) { c.leaf.ExtraExtensions = append(c.leaf.ExtraExtensions, extension(true)) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			chain, root := pkitsCase(t, c.change)
			err := TestOnlyPath(chain, [][]byte{root}, x509.ExtKeyUsageServerAuth, now)
			if want := c.valid != c.differs; (err == nil) != want {
				t.Errorf("accepted %v, want %v: %v", err == nil, want, err)
			}
			// As they are, only those that change nothing are ours.
			_, err = Verify(chain, [][]byte{root}, Hub, now)
			if ours := c.name[:5] == "4.1.1" || c.name[:5] == "4.6.7"; (err == nil) != ours {
				t.Errorf("it's one of ours: %v, want %v: %v", err == nil, ours, err)
			}
		})
	}
}

// pkitsCase signs our chain as a case has it.
func pkitsCase(t *testing.T, change func(*pkitsChain)) (chain [][]byte, root []byte) {
	t.Helper()
	// The templates are what the authority signs.
	a := create(t, state(t))
	c := &pkitsChain{sign: func(_ int, der []byte) []byte { return der }, issuedBy: func(int) *pkix.Name { return nil }}
	template := func(c *x509.Certificate) *x509.Certificate {
		n := *c
		n.Raw, n.RawSubject, n.Extensions, n.SubjectKeyId, n.AuthorityKeyId = nil, nil, nil, nil, nil
		return &n
	}
	leaf, err := x509.ParseCertificate(issue(t, a, Hub)[0])
	if err != nil {
		t.Fatal(err)
	}
	c.root, c.issuer, c.leaf = template(a.root), template(a.issuer), template(leaf)
	change(c)
	all := append([]*x509.Certificate{c.root, c.issuer}, c.more...)
	all = append(all, c.leaf)
	parent, key := c.root, newKey(t)
	for i, tmpl := range all {
		own := key
		if i > 0 {
			own = newKey(t)
		}
		at := i
		if i == len(all)-1 {
			at = 2
		}
		by := *parent
		by.PublicKey = &key.PublicKey
		if n := c.issuedBy(at); n != nil {
			by.Subject, by.RawSubject = *n, nil
		}
		der := signed(t, tmpl, &by, own, key)
		der = c.sign(at, der)
		if parent, err = x509.ParseCertificate(der); err != nil {
			t.Fatal(err)
		}
		chain, key = append([][]byte{der}, chain...), own
	}
	root = chain[len(chain)-1]
	return chain[:len(chain)-1], bytes.Clone(root)
}

func signed(t *testing.T, tmpl, parent *x509.Certificate, own, key *ecdsa.PrivateKey) []byte {
	t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &own.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}
