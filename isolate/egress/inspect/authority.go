package inspect

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"sync"
	"time"

	rule "palyra/call/egress"
	"palyra/isolate/egress/wire"
)

// early is how long before its making an authority is valid: clocks of what runs in a cell may be
// the host's of another moment.
const early = 5 * time.Minute

// Authority is the certificate authority of one call. Programs of the call trust it, and it can
// speak for the inspected hosts alone: its certificate says so, critically. Make one with
// NewAuthority.
type Authority struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	pem   []byte
	until time.Time

	leafKey *ecdsa.PrivateKey // of all leaves

	mu     sync.Mutex
	leaves map[string]*tls.Certificate // guarded by mu
}

// NewAuthority makes an authority for the names of rules, valid until a time.
func NewAuthority(hosts []rule.Rule, now, until time.Time) (*Authority, error) {
	var names []string
	for _, h := range hosts {
		name, _ := h.Name() // a constraint has the names below it, too
		if name == "" {
			return nil, fmt.Errorf("make an authority: %q is no name", h)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, errors.New("make an authority: no names")
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	leafKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	serial := newSerial()
	template := &x509.Certificate{
		SerialNumber: serial,
		// The number makes it another authority than that of each other call.
		Subject:               pkix.Name{Organization: []string{"Palyra"}, CommonName: fmt.Sprintf("Palyra inspection %x", serial)},
		NotBefore:             now.Add(-early),
		NotAfter:              until,
		KeyUsage:              x509.KeyUsageCertSign,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true, IsCA: true, MaxPathLen: 0, MaxPathLenZero: true,
		PermittedDNSDomainsCritical: true,
		PermittedDNSDomains:         names,
		ExcludedIPRanges: []*net.IPNet{
			{IP: make(net.IP, net.IPv4len), Mask: make(net.IPMask, net.IPv4len)},
			{IP: make(net.IP, net.IPv6len), Mask: make(net.IPMask, net.IPv6len)},
		},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("make an authority: %w", err)
	}
	a := &Authority{cert: cert, key: key, leafKey: leafKey, until: until, leaves: make(map[string]*tls.Certificate),
		pem: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
	if len(a.pem) > wire.MaxAuthority {
		return nil, fmt.Errorf("make an authority: the names of the inspected hosts are too long together: a certificate of %d bytes, at most %d pass", len(a.pem), wire.MaxAuthority)
	}
	return a, nil
}

func newSerial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b)  // never fails
	b[0] &= 0x7f  // positive
	b[15] |= 0x01 // not zero
	return new(big.Int).SetBytes(b)
}

// PEM returns the certificate.
func (a *Authority) PEM() string { return string(a.pem) }

// mostLeaves bounds the certificates that are kept; more names than that of one call are signed
// anew for each connection.
const mostLeaves = 1024

// Leaf returns a certificate for an inspected name.
func (a *Authority) Leaf(name string) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if c := a.leaves[name]; c != nil {
		return c, nil
	}
	template := &x509.Certificate{
		SerialNumber: newSerial(),
		Subject:      pkix.Name{Organization: []string{"Palyra"}}, // some software compares a common name with the constraints
		NotBefore:    a.cert.NotBefore, NotAfter: a.until,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
		DNSNames:              []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, a.leafKey.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("certificate for %q: %w", name, err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("certificate for %q: %w", name, err)
	}
	c := &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: a.leafKey, Leaf: leaf}
	if len(a.leaves) < mostLeaves {
		a.leaves[name] = c
	}
	return c, nil
}
