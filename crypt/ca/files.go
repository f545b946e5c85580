package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
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

	issuerPrefix = "issuer-"
	keySuffix    = ".key"

	newDir   = ".ca-new"    // until it is renamed
	lockFile = "certifying" // beside ca/; whoever changes the authority has it
)

// issuerKey returns the name of an issuer's key, after the public half.
func issuerKey(pub *ecdsa.PublicKey) (string, error) {
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", err
	}
	return issuerPrefix + digestOf(spki)[:16] + keySuffix, nil
}

// Exists reports whether the state directory dir has an authority.
func Exists(dir string) bool {
	_, err := os.Lstat(filepath.Join(dir, caDir))
	return !errors.Is(err, fs.ErrNotExist)
}

// Options are how an authority keeps its keys.
type Options struct {
	Keys Keeper // nil: PlainKeys
	// TestOnlyStep is called after each change to the disk.
	TestOnlyStep func(string)
}

func (o *Options) keys() Keeper {
	if o.Keys == nil {
		return PlainKeys{}
	}
	return o.Keys
}

func (o *Options) step(name string) {
	if o.TestOnlyStep != nil {
		o.TestOnlyStep(name)
	}
}

// patience bounds the wait for another process that changes the authority's files.
const patience = 10 * time.Second

// hold takes the lock for changes of the authority of a state directory.
func hold(ctx context.Context, dir string) (release func(), err error) {
	g, err := durable.OpenGate(filepath.Join(dir, lockFile))
	if err != nil {
		return nil, err
	}
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil {
		_ = g.Close() // it has no lock
		return nil, err
	}
	return func() { _ = g.Close() }, nil // nothing is buffered in it
}

// Create makes the authority of the trust domain in the state directory dir, root and issuer,
// whole or not at all. The domain is the journal's origin and can't be changed later: it's in
// every name. record gets the digests of both certificates. Errors are record's, fault.BadState
// (exists, owner, mode) or fault.Usage (the domain).
func Create(ctx context.Context, dir, domain string, now time.Time, o Options, record Record) (*Authority, error) {
	op := fmt.Sprintf("create certificate authority in %q", dir)
	if err := checkDomain(domain); err != nil {
		return nil, fault.New(fault.Usage, "invalid_input", op, err)
	}
	if err := durable.CheckPrivate(dir); err != nil {
		return nil, err
	}
	release, err := hold(ctx, dir)
	if err != nil {
		return nil, err
	}
	defer release()
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
	tmp := filepath.Join(dir, newDir)
	if err := os.RemoveAll(tmp); err != nil { // of a process that died
		return nil, durable.Fault(op, err)
	}
	if err := os.Mkdir(tmp, 0o700); err != nil {
		return nil, durable.Fault(op, err)
	}
	made := false
	defer func() {
		if !made {
			_ = os.RemoveAll(tmp)
		}
	}()
	a := &Authority{dir: tmp, domain: domain, o: o, root: root, issuer: issuer, key: ik}
	if err := a.fill(rk); err != nil {
		return nil, err
	}
	if err := record(map[string]string{"root": certDigest(root), "issuer": certDigest(issuer)}); err != nil {
		return nil, err
	}
	o.step("create:recorded")
	if err := os.Rename(tmp, filepath.Join(dir, caDir)); err != nil {
		return nil, durable.Fault(op, err)
	}
	made = true
	o.step("create:renamed")
	if err := durable.SyncDir(dir); err != nil {
		return nil, durable.Fault(op, err)
	}
	return Open(dir, o)
}

// fill writes a new authority's files.
func (a *Authority) fill(rk *ecdsa.PrivateKey) error {
	if err := a.writeKey(rootKey, purposeRoot, rk); err != nil {
		return err
	}
	name, err := issuerKey(&a.key.PublicKey)
	if err != nil {
		return err
	}
	if err := a.writeKey(name, purposeIssuer, a.key); err != nil {
		return err
	}
	if err := a.writeCertificate(rootCert, a.root); err != nil {
		return err
	}
	return a.writeCertificate(issuerCert, a.issuer)
}

// Open opens the authority of the state directory dir. It refuses files that others may read or
// write, that don't parse, don't belong together or aren't in their one spelling. It doesn't
// read the root's key. Errors are fault.BadState, fault.Integrity or the keeper's.
func Open(dir string, o Options) (*Authority, error) {
	place := filepath.Join(dir, caDir)
	op := fmt.Sprintf("open certificate authority %q", place)
	if err := durable.CheckPrivate(place); err != nil {
		return nil, err
	}
	a := &Authority{dir: place, o: o}
	behind, err := a.read()
	if err != nil {
		return nil, err
	}
	if behind {
		if err := a.finish(dir); err != nil {
			return nil, err
		}
	}
	pub := a.issuer.PublicKey.(*ecdsa.PublicKey) // form checked it
	name, err := issuerKey(pub)
	if err != nil {
		return nil, fault.New(fault.Integrity, "key_corrupt", op, err)
	}
	if a.key, err = a.readKey(name, purposeIssuer, pub); err != nil {
		return nil, err
	}
	return a, nil
}

// together checks that a root and an issuer are ours and the one certified the other, and returns
// their domain. Times are for Issue to check: an authority of yesteryear opens, and rotates.
func together(root, issuer *x509.Certificate) (domain string, err error) {
	if domain, err = checkRoot(root); err != nil {
		return "", fmt.Errorf("root: %w", err)
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
// is replaced leaves the old issuer and an unused key, which the next change removes. The caller
// holds the lock for changes.
func (a *Authority) rotate(now time.Time, record Record) error {
	op := fmt.Sprintf("rotate issuer in %q", a.dir)
	if err := a.catchUp(); err != nil {
		return err
	}
	if err := a.retire(now); err != nil {
		return durable.Fault(op, err)
	}
	rk, err := a.readKey(rootKey, purposeRoot, a.root.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		return err
	}
	if err := a.putIssuer(a.root, rk, now, record, map[string]string{}); err != nil {
		return err
	}
	return durable.Fault(op, a.sweep())
}

// putIssuer makes an issuer of a root and puts it in force. detail goes to the record with the
// issuer's digest.
func (a *Authority) putIssuer(root *x509.Certificate, rk *ecdsa.PrivateKey, now time.Time, record Record, detail map[string]string) error {
	op := fmt.Sprintf("make issuer in %q", a.dir)
	key, issuer, err := newIssuer(a.domain, root, rk, now)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	name, err := issuerKey(&key.PublicKey)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if err := a.writeKey(name, purposeIssuer, key); err != nil {
		return err
	}
	detail["issuer"] = certDigest(issuer)
	if err := record(detail); err != nil {
		return errors.Join(err, os.Remove(filepath.Join(a.dir, name))) // it may fail at each certificate
	}
	a.o.step("recorded")
	if err := a.writeCertificate(issuerCert, issuer); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.key, a.issuer = key, issuer
	return nil
}

// sweep removes leftovers of interrupted writes and changes, and keys of issuers that aren't in
// force.
func (a *Authority) sweep() error {
	if err := durable.RemoveTemps(a.dir); err != nil {
		return err
	}
	es, err := os.ReadDir(a.dir)
	if err != nil {
		return err
	}
	keep, err := issuerKey(&a.key.PublicKey)
	if err != nil {
		return err
	}
	for _, e := range es {
		n := e.Name()
		gone := strings.HasPrefix(n, issuerPrefix) && n != keep ||
			a.next == nil && (n == nextKey || n == linkCert)
		if !gone {
			continue
		}
		if err := os.Remove(filepath.Join(a.dir, n)); err != nil {
			return err
		}
		a.o.step("sweep:" + stepName(n))
	}
	return durable.SyncDir(a.dir)
}

const certificate = "CERTIFICATE"

// certDigest is how records name a certificate.
func certDigest(c *x509.Certificate) string { return "sha256:" + digestOf(c.Raw) }

func (a *Authority) writeCertificate(name string, c *x509.Certificate) error {
	path := filepath.Join(a.dir, name)
	b := pem.EncodeToMemory(&pem.Block{Type: certificate, Bytes: c.Raw})
	if err := durable.WriteFileSteps(path, b, 0o600, func(s string) { a.o.step(name + ":" + s) }); err != nil {
		return durable.Fault(fmt.Sprintf("write certificate %q", path), err)
	}
	return nil
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
