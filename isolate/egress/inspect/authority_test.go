package inspect

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	rule "palyra/call/egress"
)

func hosts(t testing.TB, texts ...string) []rule.Rule {
	t.Helper()
	rules, err := rule.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rules.All()
}

func TestAuthority(t *testing.T) {
	now := time.Now()
	a, err := NewAuthority(hosts(t, "packages.example:443", "packages.example:8443", "*.cdn.example:443"), now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	block, rest := pem.Decode([]byte(a.PEM()))
	if block == nil || len(rest) > 0 {
		t.Fatalf("PEM: %s", a.PEM())
	}
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !root.IsCA || !root.MaxPathLenZero || root.MaxPathLen != 0 || root.NotBefore.Before(now.Add(-6*time.Minute)) || root.NotAfter.After(now.Add(time.Hour)) || root.KeyUsage != x509.KeyUsageCertSign {
		t.Errorf("%+v", root)
	}
	critical := false
	for _, e := range root.Extensions {
		critical = critical || e.Id.Equal(asn1.ObjectIdentifier{2, 5, 29, 30}) && e.Critical
	}
	if !critical || fmt.Sprint(root.PermittedDNSDomains) != "[cdn.example packages.example]" || len(root.ExcludedIPRanges) != 2 {
		t.Errorf("constraints %v, %v, critical %t", root.PermittedDNSDomains, root.ExcludedIPRanges, critical)
	}
	pool := x509.NewCertPool()
	pool.AddCert(root)
	verify := func(c *tls.Certificate, name string) error {
		leaf, err := x509.ParseCertificate(c.Certificate[0])
		if err != nil {
			t.Fatal(err)
		}
		_, err = leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: pool})
		return err
	}
	for _, name := range []string{"packages.example", "a.b.cdn.example"} {
		c, err := a.Leaf(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := verify(c, name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if again, _ := a.Leaf(name); again != c {
			t.Errorf("%s was signed twice", name)
		}
		if verify(c, "other.example") == nil {
			t.Errorf("the certificate of %s is good for another name", name)
		}
	}
	// Even its key can't speak for a host that isn't inspected, nor for an address, nor make authorities.
	c, err := a.Leaf("other.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(c, "other.example"); err == nil || !strings.Contains(err.Error(), "not permitted") {
		t.Errorf("another host: %v", err)
	}
	template := &x509.Certificate{SerialNumber: newSerial(), NotBefore: a.cert.NotBefore, NotAfter: a.until, IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1), net.ParseIP("2001:db8::1")}}
	der, err := x509.CreateCertificate(nil, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	if err := verify(&tls.Certificate{Certificate: [][]byte{der}}, "192.0.2.1"); err == nil {
		t.Error("it speaks for an address")
	}
}

func TestAuthorityRefused(t *testing.T) {
	now := time.Now()
	var long []string
	for i := range 60 {
		label := strings.Repeat("a", 60)
		long = append(long, fmt.Sprintf("a%02d.%s.%s.%s.example", i, label, label, label))
	}
	for name, hs := range map[string][]rule.Rule{"none": nil, "an address": hosts(t, "192.0.2.1"), "too long": hosts(t, long...)} {
		if _, err := NewAuthority(hs, now, now.Add(time.Hour)); err == nil {
			t.Errorf("%s: made", name)
		}
	}
	a, err := NewAuthority(hosts(t, "a.example"), now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewAuthority(hosts(t, "a.example"), now, now.Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if a.cert.Subject.String() == b.cert.Subject.String() || a.key.Equal(b.key) {
		t.Error("two calls have one authority")
	}
}
