package ca

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/internal/fault"
)

const domain = "0123456789abcdef.palyra.local"

var now = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

func state(t testing.TB) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "state")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func unrecorded(map[string]string) error { return nil }

func create(t testing.TB, dir string) *Authority {
	t.Helper()
	a, err := Create(t.Context(), dir, domain, now, Options{}, unrecorded)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func request(t testing.TB, key crypto.Signer, r x509.CertificateRequest) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, &r, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func issue(t testing.TB, a *Authority, kind string) [][]byte {
	t.Helper()
	chain, err := a.Issue(request(t, newKey(t), x509.CertificateRequest{}), Identity{domain, kind, "one"}, now)
	if err != nil {
		t.Fatal(err)
	}
	return chain
}

func refused(t testing.TB, err error, kind fault.Kind, reason string) {
	t.Helper()
	if fault.KindOf(err) != kind || fault.ReasonOf(err) != reason {
		t.Errorf("got %v (%v, %s), want %v, %s", err, fault.KindOf(err), fault.ReasonOf(err), kind, reason)
	}
}

// TestIssue makes a leaf of each kind, which verifies as its kind and as no other, for its day.
func TestIssue(t *testing.T) {
	a := create(t, state(t))
	for _, kind := range kinds {
		chain := issue(t, a, kind)
		for _, want := range kinds {
			leaf, err := Verify(chain, a.Roots(), want, now)
			if kind != want {
				refused(t, err, fault.Denied, "peer_certificate_invalid")
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if leaf.Identity.String() != "spiffe://"+domain+"/"+kind+"/one" || len(leaf.Serial) != 32 {
				t.Errorf("leaf %+v", leaf)
			}
			if !leaf.NotBefore.Equal(now.Add(-5*time.Minute)) || leaf.NotAfter.Sub(leaf.NotBefore) != 24*time.Hour {
				t.Errorf("from %v to %v", leaf.NotBefore, leaf.NotAfter)
			}
		}
		if _, err := Verify(chain, a.Roots(), kind, now.Add(-5*time.Minute)); err != nil {
			t.Error(err)
		}
		for _, at := range []time.Duration{-5*time.Minute - time.Second, 24 * time.Hour} {
			_, err := Verify(chain, a.Roots(), kind, now.Add(at))
			refused(t, err, fault.Denied, "peer_certificate_expired")
		}
	}
	if x, y := issue(t, a, Device), issue(t, a, Device); bytes.Equal(x[0], y[0]) {
		t.Error("two leaves are one")
	}
}

// TestRequestIsOnlyAKey asks for everything, and gets a leaf with the given name.
func TestRequestIsOnlyAKey(t *testing.T) {
	a := create(t, state(t))
	key := newKey(t)
	basic, err := asn1.Marshal(struct{ IsCA bool }{true})
	if err != nil {
		t.Fatal(err)
	}
	csr := request(t, key, x509.CertificateRequest{
		Subject:         pkix.Name{CommonName: "root", Organization: []string{"all"}},
		DNSNames:        []string{"example.com", domain},
		EmailAddresses:  []string{"root@" + domain},
		IPAddresses:     []net.IP{net.IPv4(127, 0, 0, 1)},
		URIs:            []*url.URL{{Scheme: scheme, Host: domain, Path: "/hub/one"}},
		ExtraExtensions: []pkix.Extension{{Id: oidBasic, Critical: true, Value: basic}},
	})
	chain, err := a.Issue(csr, Identity{domain, Device, "laptop"}, now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := Verify(chain, a.Roots(), Device, now)
	if err != nil {
		t.Fatal(err)
	}
	if d, err := KeyDigest(csr); err != nil || d != leaf.KeyDigest || leaf.Identity.ID != "laptop" {
		t.Errorf("%+v, digest %s, %v", leaf, d, err)
	}
}

func TestRequestRefused(t *testing.T) {
	a := create(t, state(t))
	id := Identity{domain, Device, "laptop"}
	good := request(t, newKey(t), x509.CertificateRequest{})
	swapped := bytes.Clone(good)
	swapped[len(swapped)-1] ^= 1
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, csr := range map[string][]byte{
		"nothing": nil, "cut": good[:len(good)-1], "more": append(bytes.Clone(good), 0), "signature": swapped,
		"P-384": request(t, p384, x509.CertificateRequest{}), "RSA": request(t, rsaKey, x509.CertificateRequest{}),
		"SHA-512": request(t, newKey(t), x509.CertificateRequest{SignatureAlgorithm: x509.ECDSAWithSHA512}),
		"large":   request(t, newKey(t), x509.CertificateRequest{Subject: pkix.Name{CommonName: strings.Repeat("a", maxRequest)}}),
	} {
		t.Run(name, func(t *testing.T) {
			_, err := a.Issue(csr, id, now)
			refused(t, err, fault.Usage, "invalid_input")
			_, err = KeyDigest(csr)
			refused(t, err, fault.Usage, "invalid_input")
		})
	}
	for _, id := range []Identity{
		{}, {domain, "", "x"}, {domain, "owner", "x"}, {domain, Device, ""}, {domain, Device, "../hub"}, {domain, Device, "A"},
		{domain, Device, "a/b"}, {domain, Device, "-a"}, {"example.com", Device, "x"}, {"x." + domain, Device, "x"}, {domain, Device, strings.Repeat("a", 65)},
	} {
		_, err := a.Issue(good, id, now)
		refused(t, err, fault.Usage, "invalid_input")
	}
}

// forgery is what a thief of the issuer's key, or of the root's, can sign.
type forgery struct {
	leaf   *x509.Certificate
	pub    any
	issuer *x509.Certificate // what the root signs; nil: the issuer in force
	chain  func([][]byte) [][]byte
}

// TestVerifyRefuses tries chains whose signatures all hold, each wrong in one thing. The first is
// wrong in none: it shows that the others are refused for what they change.
func TestVerifyRefuses(t *testing.T) {
	dir := state(t)
	a := create(t, dir)
	rk, err := a.readKey(rootKey, purposeRoot, a.root.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	names := func(raw ...asn1.RawValue) pkix.Extension {
		b, err := asn1.Marshal(raw)
		if err != nil {
			t.Fatal(err)
		}
		return pkix.Extension{Id: oidNames, Critical: true, Value: b}
	}
	uri := asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tagURI, Bytes: []byte("spiffe://" + domain + "/device/one")}
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	foreign := create(t, state(t))
	for _, c := range []struct {
		name string
		ok   bool
		make func(*forgery)
	}{
		{"as issued", true, func(f *forgery) {}},
		{"name of another domain", false, func(f *forgery) { f.leaf.URIs[0].Host = "example.com" }},
		{"name below the domain", false, func(f *forgery) { f.leaf.URIs[0].Host = "x." + domain }},
		{"name in capitals", false, func(f *forgery) { f.leaf.URIs[0].Host = strings.ToUpper(domain) }},
		{"name with a port", false, func(f *forgery) { f.leaf.URIs[0].Host = domain + ":1" }},
		{"name with a user", false, func(f *forgery) { f.leaf.URIs[0].User = url.User("a") }},
		{"name with a query", false, func(f *forgery) { f.leaf.URIs[0].RawQuery = "a=b" }},
		{"name with a fragment", false, func(f *forgery) { f.leaf.URIs[0].Fragment = "a" }},
		{"name of another scheme", false, func(f *forgery) { f.leaf.URIs[0].Scheme = "https" }},
		{"name with a part more", false, func(f *forgery) { f.leaf.URIs[0].Path += "/x" }},
		{"name with an escape", false, func(f *forgery) { f.leaf.URIs[0].Path = "/device/%6fne" }},
		{"two names", false, func(f *forgery) {
			f.leaf.URIs = append(f.leaf.URIs, &url.URL{Scheme: scheme, Host: domain, Path: "/device/two"})
		}},
		{"no name", false, func(f *forgery) { f.leaf.URIs = nil }},
		{"DNS name", false, func(f *forgery) { f.leaf.DNSNames = []string{domain} }},
		{"DNS name elsewhere", false, func(f *forgery) { f.leaf.DNSNames = []string{"example.com"} }},
		{"address", false, func(f *forgery) { f.leaf.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)} }},
		{"mail address", false, func(f *forgery) { f.leaf.EmailAddresses = []string{"a@" + domain} }},
		{"name of a kind that isn't parsed", false, func(f *forgery) {
			f.leaf.URIs = nil
			f.leaf.ExtraExtensions = []pkix.Extension{names(uri, asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: 8, Bytes: []byte{42, 3}})}
		}},
		{"names that aren't critical", false, func(f *forgery) {
			f.leaf.URIs = nil
			n := names(uri)
			n.Critical = false
			f.leaf.ExtraExtensions = []pkix.Extension{n}
		}},
		{"subject", false, func(f *forgery) { f.leaf.Subject.CommonName = "one" }},
		{"kind hub, used as a client", false, func(f *forgery) {
			f.leaf.URIs[0].Path = "/hub/one"
			f.leaf.DNSNames = []string{domain}
		}},
		{"kind worker", false, func(f *forgery) { f.leaf.URIs[0].Path = "/worker/one" }},
		{"server's use", false, func(f *forgery) { f.leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }},
		{"both uses", false, func(f *forgery) { f.leaf.ExtKeyUsage = append(f.leaf.ExtKeyUsage, x509.ExtKeyUsageServerAuth) }},
		{"any use", false, func(f *forgery) { f.leaf.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageAny} }},
		{"no use", false, func(f *forgery) { f.leaf.ExtKeyUsage = nil }},
		{"unknown use", false, func(f *forgery) { f.leaf.UnknownExtKeyUsage = []asn1.ObjectIdentifier{{1, 2, 3}} }},
		{"key usage more", false, func(f *forgery) { f.leaf.KeyUsage |= x509.KeyUsageKeyEncipherment }},
		{"leaf that certifies", false, func(f *forgery) {
			f.leaf.IsCA = true
			f.leaf.MaxPathLen = -1
		}},
		{"two days", false, func(f *forgery) { f.leaf.NotAfter = f.leaf.NotBefore.Add(48 * time.Hour) }},
		{"24 h and a second", false, func(f *forgery) { f.leaf.NotAfter = f.leaf.NotBefore.Add(24*time.Hour + time.Second) }},
		{"short serial number", false, func(f *forgery) { f.leaf.SerialNumber = big.NewInt(7) }},
		{"long serial number", false, func(f *forgery) { f.leaf.SerialNumber = new(big.Int).Lsh(big.NewInt(1), 140) }},
		{"extension more", false, func(f *forgery) {
			f.leaf.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Value: []byte{5, 0}}}
		}},
		{"critical extension", false, func(f *forgery) {
			f.leaf.ExtraExtensions = []pkix.Extension{{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}}}
		}},
		{"policy", false, func(f *forgery) { f.leaf.Policies = []x509.OID{oid(t, 1, 2, 3)} }},
		{"place to fetch the issuer", false, func(f *forgery) { f.leaf.IssuingCertificateURL = []string{"http://example.com"} }},
		{"RSA key", false, func(f *forgery) { f.pub = &rsaKey.PublicKey }},
		{"P-384 key", false, func(f *forgery) { f.pub = &p384.PublicKey }},
		{"SHA-512", false, func(f *forgery) { f.leaf.SignatureAlgorithm = x509.ECDSAWithSHA512 }},
		{"leaf alone", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return c[:1] } }},
		{"no chain", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return nil } }},
		{"root in the chain", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return append(c, a.root.Raw) } }},
		{"issuer first", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return [][]byte{c[1], c[0]} } }},
		{"issuer as leaf", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return [][]byte{c[1], a.root.Raw} } }},
		{"foreign root", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return issue(t, foreign, Device) } }},
		{"issuer of a foreign root", false, func(f *forgery) { f.chain = func(c [][]byte) [][]byte { return [][]byte{c[0], foreign.issuer.Raw} } }},
		{"issuer anew", true, func(f *forgery) { f.issuer = issuerOf(a) }},
		{"issuer without constraints", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.PermittedURIDomains = nil }},
		{"issuer of any mail domain", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.PermittedEmailAddresses = nil }},
		{"issuer of any address", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.ExcludedIPRanges = nil }},
		{"issuer of a domain more", false, func(f *forgery) {
			f.issuer = issuerOf(a)
			f.issuer.PermittedURIDomains = []string{domain, "example.com"}
		}},
		{"issuer with loose constraints", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.PermittedDNSDomainsCritical = false }},
		{"issuer of another domain", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.URIs[0].Host = "example.com" }},
		{"issuer of issuers", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.MaxPathLenZero, f.issuer.MaxPathLen = false, -1 }},
		{"issuer that signs more", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.KeyUsage |= x509.KeyUsageDigitalSignature }},
		{"issuer that is none", false, func(f *forgery) {
			f.issuer = issuerOf(a)
			f.issuer.IsCA, f.issuer.MaxPathLenZero = false, false
		}},
		{"issuer for ten years", false, func(f *forgery) { f.issuer = issuerOf(a); f.issuer.NotAfter = now.Add(RootLife - time.Hour) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &forgery{pub: &newKey(t).PublicKey, leaf: &x509.Certificate{
				SerialNumber: serial(), NotBefore: now, NotAfter: now.Add(LeafLife), KeyUsage: x509.KeyUsageDigitalSignature,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, BasicConstraintsValid: true,
				URIs: []*url.URL{{Scheme: scheme, Host: domain, Path: "/device/one"}},
			}}
			c.make(f)
			key, issuer := a.key, a.issuer
			if f.issuer != nil {
				key = newKey(t)
				if issuer, err = certify(f.issuer, a.root, &key.PublicKey, rk); err != nil {
					t.Fatal(err)
				}
			}
			der, err := x509.CreateCertificate(rand.Reader, f.leaf, issuer, f.pub, key)
			if err != nil {
				t.Fatal(err)
			}
			chain := [][]byte{der, issuer.Raw}
			if f.chain != nil {
				chain = f.chain(chain)
			}
			_, err = Verify(chain, a.Roots(), Device, now.Add(time.Minute))
			if c.ok {
				if err != nil {
					t.Error(err)
				}
				return
			}
			refused(t, err, fault.Denied, "peer_certificate_invalid")
		})
	}
}

func oid(t *testing.T, n ...uint64) x509.OID {
	t.Helper()
	o, err := x509.OIDFromInts(n)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// issuerOf returns the template of an issuer as newIssuer makes it.
func issuerOf(a *Authority) *x509.Certificate {
	c := a.issuer
	return &x509.Certificate{
		SerialNumber: serial(), Subject: c.Subject, NotBefore: c.NotBefore, NotAfter: c.NotAfter, KeyUsage: c.KeyUsage,
		ExtKeyUsage: c.ExtKeyUsage, BasicConstraintsValid: true, IsCA: true, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true, PermittedDNSDomains: c.PermittedDNSDomains, PermittedURIDomains: c.PermittedURIDomains,
		PermittedEmailAddresses: c.PermittedEmailAddresses, ExcludedIPRanges: c.ExcludedIPRanges,
		URIs: []*url.URL{{Scheme: scheme, Host: domain}},
	}
}

// TestRotate keeps leaves of the old issuer valid, removes its key, and issues with the new one.
func TestRotate(t *testing.T) {
	dir := state(t)
	a := create(t, dir)
	old := issue(t, a, Device)
	later := a.RotateAt()
	if want := a.issuer.NotBefore.Add(60 * 24 * time.Hour); !later.Equal(want) {
		t.Errorf("rotates at %v, want %v", later, want)
	}
	stray := filepath.Join(dir, caDir, "issuer-0123456789abcdef.key") // as a crash leaves it
	if err := os.WriteFile(stray, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := a.Rotate(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	fresh := issue(t, a, Device)
	if bytes.Equal(old[1], fresh[1]) {
		t.Error("the issuer is the old one")
	}
	b, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, chain := range [][][]byte{old, fresh, issue(t, b, Device)} {
		if _, err := Verify(chain, b.Roots(), Device, now.Add(2*time.Hour)); err != nil {
			t.Error(err)
		}
	}
	es, err := os.ReadDir(filepath.Join(dir, caDir))
	if err != nil {
		t.Fatal(err)
	}
	if len(es) != 4 {
		t.Errorf("ca/ holds %v", es)
	}
}

// TestRotateCrash opens the directory as a crash at each step of Rotate leaves it.
func TestRotateCrash(t *testing.T) {
	dir := state(t)
	a := create(t, dir)
	place := filepath.Join(dir, caDir)
	before := files(t, place)
	if err := a.Rotate(t.Context(), now, unrecorded); err != nil {
		t.Fatal(err)
	}
	after := files(t, place)
	for name, b := range after { // the new key is written first
		if _, ok := before[name]; !ok {
			before[name] = b
		}
	}
	for _, cert := range [][]byte{before[issuerCert], after[issuerCert]} {
		for name, b := range before {
			if err := os.WriteFile(filepath.Join(place, name), b, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.WriteFile(filepath.Join(place, issuerCert), cert, 0o600); err != nil {
			t.Fatal(err)
		}
		b, err := Open(dir, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Verify(issue(t, b, Hub), a.Roots(), Hub, now); err != nil {
			t.Error(err)
		}
	}
}

func files(t *testing.T, dir string) map[string][]byte {
	t.Helper()
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	m := make(map[string][]byte)
	for _, e := range es {
		if m[e.Name()], err = os.ReadFile(filepath.Join(dir, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// TestIssueOutOfTime never lets a leaf outlive its issuer, nor an issuer its root.
func TestIssueOutOfTime(t *testing.T) {
	a := create(t, state(t))
	csr := request(t, newKey(t), x509.CertificateRequest{})
	id := Identity{domain, Device, "one"}
	chain, err := a.Issue(csr, id, a.issuer.NotAfter.Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if c, err := x509.ParseCertificate(chain[0]); err != nil || c.NotAfter.After(a.issuer.NotAfter) {
		t.Errorf("leaf until %v, issuer until %v, %v", c.NotAfter, a.issuer.NotAfter, err)
	}
	for _, at := range []time.Time{a.issuer.NotAfter.Add(time.Second), now.Add(-time.Hour)} {
		_, err = a.Issue(csr, id, at)
		refused(t, err, fault.BadState, "peer_certificate_expired")
	}
	if err := a.Rotate(t.Context(), a.root.NotAfter.Add(-24*time.Hour), unrecorded); err != nil {
		t.Fatal(err)
	}
	if a.issuer.NotAfter.After(a.root.NotAfter) {
		t.Error("the issuer outlives the root")
	}
}

func TestFiles(t *testing.T) {
	dir := state(t)
	a := create(t, dir)
	if fmt.Sprintf("%v %+v %#v", a, a, a) != strings.Repeat("ca:"+domain+" ", 2)+"ca:"+domain {
		t.Errorf("prints as %#v", a)
	}
	_, err := Create(t.Context(), dir, domain, now, Options{}, unrecorded)
	refused(t, err, fault.Busy, "exists")
	place := filepath.Join(dir, caDir)
	key, err := issuerKey(&a.key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	good := files(t, place)
	other := files(t, filepath.Join(makeOther(t), caDir))
	for _, c := range []struct {
		name, file string
		b          []byte
		mode       os.FileMode
		kind       fault.Kind
		reason     string
	}{
		{"key that others read", key, good[key], 0o640, fault.BadState, "unsafe_file"},
		{"key of the root in its place", key, good[rootKey], 0o600, fault.Integrity, "key_corrupt"},
		{"key with a line more", key, append(bytes.Clone(good[key]), '\n'), 0o600, fault.Integrity, "key_corrupt"},
		{"empty key", key, nil, 0o600, fault.Integrity, "key_corrupt"},
		{"root of another", rootCert, other[rootCert], 0o600, fault.Integrity, "key_corrupt"},
		{"issuer of another", issuerCert, other[issuerCert], 0o600, fault.Integrity, "key_corrupt"},
		{"issuer for the root", rootCert, good[issuerCert], 0o600, fault.Integrity, "key_corrupt"},
		{"root for the issuer", issuerCert, good[rootCert], 0o600, fault.Integrity, "key_corrupt"},
		{"two certificates", rootCert, append(bytes.Clone(good[rootCert]), good[rootCert]...), 0o600, fault.Integrity, "key_corrupt"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(place, c.file)
			put := func(b []byte, mode os.FileMode) {
				if err := os.Remove(path); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(path, b, mode); err != nil {
					t.Fatal(err)
				}
			}
			put(c.b, c.mode)
			_, err := Open(dir, Options{})
			refused(t, err, c.kind, c.reason)
			put(good[c.file], 0o600)
			if _, err := Open(dir, Options{}); err != nil {
				t.Fatal(err)
			}
		})
	}
	// The key of the root is not read to issue, only to rotate.
	if err := os.Remove(filepath.Join(place, rootKey)); err != nil {
		t.Fatal(err)
	}
	if a, err = Open(dir, Options{}); err != nil {
		t.Fatal(err)
	}
	issue(t, a, Device)
	refused(t, a.Rotate(t.Context(), now, unrecorded), fault.BadState, "state_missing")
}

func makeOther(t *testing.T) string {
	dir := state(t)
	create(t, dir)
	return dir
}

// TestCreateAtOnce lets eight processes' worth of callers race: one makes it, the others see it.
func TestCreateAtOnce(t *testing.T) {
	dir := state(t)
	var wg sync.WaitGroup
	made := make(chan *Authority, 8)
	for range cap(made) {
		wg.Go(func() {
			if a, err := Create(t.Context(), dir, domain, now, Options{}, unrecorded); err == nil {
				made <- a
			}
		})
	}
	wg.Wait()
	if len(made) != 1 {
		t.Errorf("%d made it", len(made))
	}
	es, err := os.ReadDir(dir)
	if err != nil || len(es) != 2 { // and the lock
		t.Errorf("state directory holds %v, %v", es, err)
	}
}

func TestDomain(t *testing.T) {
	for _, d := range []string{"", "local", "A.b", "a..b", "-a.b", "a-.b", "a.b:1", "a b.c", "1.2.3.4", "a.1", "*.a.b", ".a.b", strings.Repeat("a.", 130) + "b", strings.Repeat("a", 64) + ".b"} {
		_, err := Create(t.Context(), state(t), d, now, Options{}, unrecorded)
		refused(t, err, fault.Usage, "invalid_input")
	}
}

func FuzzIdentity(f *testing.F) {
	for _, s := range []string{"spiffe://" + domain + "/device/laptop", "spiffe://a.b/hub/x", "spiffe://a.b/hub/", "spiffe://a.b:1/hub/x", "SPIFFE://a.b/hub/x", "spiffe://a.b/hub/%41"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, err := ParseIdentity(s)
		if err != nil {
			return
		}
		u, err := url.Parse(s)
		if id.String() != s || err != nil || u.String() != s || id.url().String() != s || u.Host != id.Domain || u.Path != "/"+id.Kind+"/"+id.ID {
			t.Errorf("%q parses to %+v, as a URL to %+v, %v", s, id, u, err)
		}
	})
}

// FuzzVerify changes a chain that verifies. A leaf that still verifies is the same leaf: it was
// signed. (Its signature may differ: ECDSA has two for each.)
func FuzzVerify(f *testing.F) {
	a := create(f, state(f))
	chain := issue(f, a, Device)
	want, err := Verify(chain, a.Roots(), Device, now)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(chain[0], chain[1])
	f.Add(chain[1], a.root.Raw)
	f.Fuzz(func(t *testing.T, leaf, issuer []byte) {
		if l, err := Verify([][]byte{leaf, issuer}, a.Roots(), Device, now); err == nil && l != want {
			t.Errorf("another leaf verifies: %+v", l)
		}
	})
}

func FuzzRequest(f *testing.F) {
	f.Add(request(f, newKey(f), x509.CertificateRequest{}))
	f.Add([]byte{0x30, 0x00})
	a := create(f, state(f))
	f.Fuzz(func(t *testing.T, csr []byte) {
		chain, err := a.Issue(csr, Identity{domain, Device, "one"}, now)
		if err != nil {
			return
		}
		leaf, err := Verify(chain, a.Roots(), Device, now)
		if d, derr := KeyDigest(csr); err != nil || derr != nil || d != leaf.KeyDigest {
			t.Errorf("%+v, %v, %v", leaf, err, derr)
		}
	})
}

func BenchmarkIssue(b *testing.B) {
	a := create(b, state(b))
	csr := request(b, newKey(b), x509.CertificateRequest{})
	for b.Loop() {
		if _, err := a.Issue(csr, Identity{domain, Device, "one"}, now); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	a := create(b, state(b))
	chain := issue(b, a, Device)
	roots := a.Roots()
	for b.Loop() {
		if _, err := Verify(chain, roots, Device, now); err != nil {
			b.Fatal(err)
		}
	}
}
