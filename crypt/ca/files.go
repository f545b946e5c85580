package ca

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The names below a state directory.
const (
	caDir      = "ca"
	rootCert   = "root.crt"
	rootKey    = "root.key"
	issuerCert = "issuer.crt"
)

// issuerKey returns the name of an issuer's key, after the public half.
func issuerKey(pub *ecdsa.PublicKey) (string, error) {
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", err
	}
	return "issuer-" + digestOf(spki)[:16] + ".key", nil
}

// Exists reports whether the state directory dir has an authority.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, caDir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Create makes the authority of the trust domain in the state directory dir, root and issuer,
// whole or not at all. The domain is the journal's origin and can't be changed later: it's in
// every name. Errors are fault.BadState (exists, owner, mode) or fault.Usage (the domain).
func Create(dir, domain string, now time.Time) (*Authority, error) {
	op := fmt.Sprintf("create certificate authority in %q", dir)
	if err := checkDomain(domain); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if err := durable.CheckPrivate(dir); err != nil {
		return nil, err
	}
	place := filepath.Join(dir, caDir)
	if Exists(dir) {
		return nil, fault.New(fault.Busy, "exists", op, errors.New("there is one"))
	}
	rk, root, err := newRoot(domain, now)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	ik, issuer, err := newIssuer(domain, root, rk, now)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	tmp := filepath.Join(dir, "."+caDir+"-"+rand.Text())
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, durable.Fault(op, err)
	}
	if err := fill(tmp, rk, root, ik, issuer); err != nil {
		_ = os.RemoveAll(tmp)
		return nil, durable.Fault(op, err)
	}
	if err := os.Rename(tmp, place); err != nil { // fails if another process was first
		_ = os.RemoveAll(tmp)
		return nil, durable.Fault(op, err)
	}
	if err := durable.SyncDir(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	return Open(dir)
}

func fill(dir string, rk *ecdsa.PrivateKey, root *x509.Certificate, ik *ecdsa.PrivateKey, issuer *x509.Certificate) error {
	name, err := issuerKey(&ik.PublicKey)
	if err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, rootKey), rk); err != nil {
		return err
	}
	if err := writeKey(filepath.Join(dir, name), ik); err != nil {
		return err
	}
	if err := writeCertificate(filepath.Join(dir, rootCert), root); err != nil {
		return err
	}
	return writeCertificate(filepath.Join(dir, issuerCert), issuer)
}

// Open opens the authority of the state directory dir. It refuses files that others may read or
// write, that don't parse, don't belong together or aren't in their one spelling. It doesn't
// read the root's key. Errors are fault.BadState or fault.Integrity.
func Open(dir string) (*Authority, error) {
	place := filepath.Join(dir, caDir)
	op := fmt.Sprintf("open certificate authority %q", place)
	if err := durable.CheckPrivate(place); err != nil {
		return nil, err
	}
	root, err := readCertificate(filepath.Join(place, rootCert))
	if err != nil {
		return nil, err
	}
	issuer, err := readCertificate(filepath.Join(place, issuerCert))
	if err != nil {
		return nil, err
	}
	domain, err := together(root, issuer)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, err)
	}
	pub := issuer.PublicKey.(*ecdsa.PublicKey) // form checked it
	name, err := issuerKey(pub)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, err)
	}
	key, err := readKey(filepath.Join(place, name), pub)
	if err != nil {
		return nil, err
	}
	return &Authority{dir: place, domain: domain, root: root, issuer: issuer, key: key}, nil
}

// together checks that both certificates are ours and the root certified the issuer, and returns
// their domain. Times are for Issue to check: an authority of yesteryear opens, and rotates.
func together(root, issuer *x509.Certificate) (domain string, err error) {
	if len(root.URIs) != 1 {
		return "", errors.New("root: names no trust domain")
	}
	domain = root.URIs[0].Host
	if err := checkDomain(domain); err != nil {
		return "", fmt.Errorf("root: %w", err)
	}
	if err := rootForm(root, domain); err != nil {
		return "", fmt.Errorf("root: %w", err)
	}
	if err := root.CheckSignatureFrom(root); err != nil {
		return "", fmt.Errorf("root: %v", err)
	}
	if err := issuerForm(issuer, domain); err != nil {
		return "", fmt.Errorf("issuer: %w", err)
	}
	if err := issuer.CheckSignatureFrom(root); err != nil {
		return "", fmt.Errorf("issuer: %v", err)
	}
	return domain, nil
}

// rotate makes a new issuer and puts it in force. issuer.crt is what counts: a crash before it
// is replaced leaves the old issuer and an unused key, which the next rotation removes.
func rotate(place, domain string, root *x509.Certificate, now time.Time) (*ecdsa.PrivateKey, *x509.Certificate, error) {
	op := fmt.Sprintf("rotate issuer in %q", place)
	rk, err := readKey(filepath.Join(place, rootKey), root.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		return nil, nil, err
	}
	key, issuer, err := newIssuer(domain, root, rk, now)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	name, err := issuerKey(&key.PublicKey)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", op, err)
	}
	if err := writeKey(filepath.Join(place, name), key); err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	if err := writeCertificate(filepath.Join(place, issuerCert), issuer); err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	if err := sweep(place, name); err != nil {
		return nil, nil, durable.Fault(op, err)
	}
	return key, issuer, nil
}

// sweep removes the keys of all issuers but the one in force, and leftovers of interrupted writes.
func sweep(place, keep string) error {
	if err := durable.RemoveTemps(place); err != nil {
		return err
	}
	es, err := os.ReadDir(place)
	if err != nil {
		return err
	}
	for _, e := range es {
		if n := e.Name(); strings.HasPrefix(n, "issuer-") && n != keep {
			if err := os.Remove(filepath.Join(place, n)); err != nil {
				return err
			}
		}
	}
	return durable.SyncDir(place)
}

const (
	pkcs8       = "PRIVATE" + " KEY" // in two pieces: scanners look for the whole
	certificate = "CERTIFICATE"
)

// writeKey is the one place that writes a private key of the authority.
func writeKey(path string, key *ecdsa.PrivateKey) error {
	b, err := encodeKey(key)
	if err != nil {
		return err
	}
	return durable.WriteFile(path, b, 0o600)
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pkcs8, Bytes: der}), nil
}

// readKey is the one place that reads a private key of the authority: the one whose public half
// is pub. Its errors never hold key material.
func readKey(path string, pub *ecdsa.PublicKey) (*ecdsa.PrivateKey, error) {
	op := fmt.Sprintf("read key %q", path)
	b, err := durable.ReadPrivate(path, maxCertificate)
	if err != nil {
		return nil, err
	}
	blk, _ := pem.Decode(b)
	if blk == nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("want one PEM block of PKCS #8"))
	}
	p, err := x509.ParsePKCS8PrivateKey(blk.Bytes)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("PKCS #8 does not parse"))
	}
	key, ok := p.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() || !key.PublicKey.Equal(pub) {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("isn't the key of its certificate"))
	}
	again, err := encodeKey(key)
	if err != nil || !bytes.Equal(again, b) {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("not in its canonical encoding"))
	}
	return key, nil
}

func writeCertificate(path string, c *x509.Certificate) error {
	return durable.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: certificate, Bytes: c.Raw}), 0o600)
}

func readCertificate(path string) (*x509.Certificate, error) {
	op := fmt.Sprintf("read certificate %q", path)
	b, err := durable.ReadPrivate(path, 2*maxCertificate)
	if err != nil {
		return nil, err
	}
	blk, _ := pem.Decode(b)
	if blk == nil || !bytes.Equal(pem.EncodeToMemory(&pem.Block{Type: certificate, Bytes: blk.Bytes}), b) {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, errors.New("want exactly one PEM block of a certificate"))
	}
	c, err := x509.ParseCertificate(blk.Bytes)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, err)
	}
	return c, nil
}
