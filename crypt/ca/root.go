package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A root is replaced in two steps, with time between them for devices to learn of it.
//
//		ca/root-next.key      the next root's key
//		ca/root-next.crt      the next root
//		ca/root-link.crt      the next root's key and names, certified by the root in force
//		ca/root-previous.crt  the root before
//
//	 1. Introduce makes the next root. From then on [Authority.Roots] has both, and devices that
//	    renew keep both: they believe the link, since their root signed it.
//	 2. Begin makes an issuer of the next root. issuer.crt counts: the root that certified it is in
//	    force. The files follow, the old root's key is gone, and Roots has the new one alone.
//
// Any leaf of the old root has ended a day after Begin. Until then [Authority.Accepted] has it.
const (
	nextCert     = "root-next.crt"
	nextKey      = "root-next.key"
	linkCert     = "root-link.crt"
	previousCert = "root-previous.crt"
)

// maxRoots bounds a trust bundle.
const maxRoots = 4

// Roots returns the trust bundle: the DER of the certificates that peers check chains against, the
// one in force first.
func (a *Authority) Roots() [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ders(a.root, a.next)
}

// Accepted returns the roots whose leaves can still be good at the time now.
func (a *Authority) Accepted(now time.Time) [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	if now.Before(a.overAt()) {
		return ders(a.root, a.next, a.previous)
	}
	return ders(a.root, a.next)
}

// Links returns what makes holders of an older bundle believe Roots; see [Follow].
func (a *Authority) Links() [][]byte {
	a.mu.Lock()
	defer a.mu.Unlock()
	return ders(a.link)
}

func ders(certs ...*x509.Certificate) [][]byte {
	out := [][]byte{}
	for _, c := range certs {
		if c != nil {
			out = append(out, bytes.Clone(c.Raw))
		}
	}
	return out
}

// overAt returns when the last leaf of the previous root has ended: a day after the first issuer of
// its successor was made, or of a newer one. The caller holds mu or the lock for changes.
func (a *Authority) overAt() time.Time { return a.issuer.NotBefore.Add(backdating + LeafLife) }

// retire removes the root before the one in force once its leaves have ended: before another issuer
// is made, since that one's time would count. The caller holds the lock for changes.
func (a *Authority) retire(now time.Time) error {
	if a.previous == nil || now.Before(a.overAt()) {
		return nil
	}
	if err := os.Remove(filepath.Join(a.dir, previousCert)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.previous = nil
	return nil
}

// BeginAt returns from when on all good leaves are from holders that have been told of the next
// root; ok is false if none is introduced.
func (a *Authority) BeginAt() (at time.Time, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.next == nil {
		return time.Time{}, false
	}
	return beginAt(a.next), true
}

// beginAt is a day after a root was introduced, at most backdating after it was made.
func beginAt(next *x509.Certificate) time.Time { return next.NotBefore.Add(backdating + LeafLife) }

// Root is a root certificate of an authority.
type Root struct {
	Digest    string // "sha256:" and that of its DER
	State     string // "in_force", "introduced" or "previous"
	NotBefore time.Time
	NotAfter  time.Time
}

// States returns the roots that count at the time now, oldest first.
func (a *Authority) States(now time.Time) (out []Root) {
	a.mu.Lock()
	defer a.mu.Unlock()
	add := func(c *x509.Certificate, state string) {
		out = append(out, Root{certDigest(c), state, c.NotBefore, c.NotAfter})
	}
	if a.previous != nil && now.Before(a.overAt()) {
		add(a.previous, "previous")
	}
	add(a.root, "in_force")
	if a.next != nil {
		add(a.next, "introduced")
	}
	return out
}

// Introduce makes the next root. It is not in force before Begin. record gets the digests of both.
func (a *Authority) Introduce(ctx context.Context, now time.Time, record Record) error {
	op := fmt.Sprintf("introduce root in %q", a.dir)
	release, err := hold(ctx, filepath.Dir(a.dir))
	if err != nil {
		return err
	}
	defer release()
	if a.next != nil {
		return fault.New(fault.Busy, "exists", op, errors.New("the next root is introduced already"))
	}
	if err := a.catchUp(); err != nil {
		return err
	}
	if err := errors.Join(a.retire(now), a.sweep()); err != nil {
		return durable.Fault(op, err)
	}
	started := time.Now()
	old, err := a.readKey(rootKey, purposeRoot, a.root.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		return err
	}
	key, next, err := newRoot(a.domain, now)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	link, err := newLink(next, a.root, old)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	if err := a.writeKey(nextKey, purposeRoot, key); err != nil {
		return err
	}
	if err := record(map[string]string{"root": certDigest(next), "previous": certDigest(a.root)}); err != nil {
		return err
	}
	a.o.step("recorded")
	if time.Since(started) > backdating { // BeginAt counts from when it was made
		return fault.New(fault.Unavailable, "not_ready", op, errors.New("it took too long")).WithHint("try again")
	}
	if err := a.writeCertificate(linkCert, link); err != nil {
		return err
	}
	if err := a.writeCertificate(nextCert, next); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.next, a.link = next, link
	return nil
}

// Begin puts the introduced root in force, and removes the old one's key. Peers that weren't told
// of the new one don't believe its chains: before BeginAt these are all that haven't renewed since
// Introduce. record gets the digests of the roots and the issuer.
func (a *Authority) Begin(ctx context.Context, now time.Time, record Record) error {
	op := fmt.Sprintf("replace root in %q", a.dir)
	release, err := hold(ctx, filepath.Dir(a.dir))
	if err != nil {
		return err
	}
	defer release()
	if a.next == nil {
		return fault.New(fault.BadState, "state_missing", op, errors.New("no root is introduced"))
	}
	rk, err := a.readKey(nextKey, purposeRoot, a.next.PublicKey.(*ecdsa.PublicKey))
	if err != nil {
		return err
	}
	detail := map[string]string{"root": certDigest(a.next), "previous": certDigest(a.root)}
	if err := a.putIssuer(a.next, rk, now, record, detail); err != nil {
		return err
	}
	a.mu.Lock()
	a.previous, a.root, a.next, a.link = a.root, a.next, nil, nil
	a.mu.Unlock()
	if err := a.catchUp(); err != nil {
		return err
	}
	return durable.Fault(op, a.sweep())
}

// catchUp has the files follow an issuer of the next root. Each step can be done again:
// root-next.crt, which says that something is left to do, goes last. The caller holds the lock for
// changes.
func (a *Authority) catchUp() error {
	op := fmt.Sprintf("replace root in %q", a.dir)
	if _, err := os.Lstat(filepath.Join(a.dir, nextCert)); errors.Is(err, fs.ErrNotExist) || a.next != nil {
		return nil
	}
	for _, m := range [][2]string{{rootCert, previousCert}, {nextKey, rootKey}, {nextCert, rootCert}} {
		err := os.Rename(filepath.Join(a.dir, m[0]), filepath.Join(a.dir, m[1]))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			a.o.step("moved:" + m[0])
			err = durable.SyncDir(a.dir)
		}
		if err != nil {
			return durable.Fault(op, err)
		}
	}
	return nil
}

// read reads the certificates, and says whether the files are behind issuer.crt.
func (a *Authority) read() (behind bool, err error) {
	op := fmt.Sprintf("open certificate authority %q", a.dir)
	var root *x509.Certificate
	a.next, a.previous, a.link = nil, nil, nil
	for _, f := range []struct {
		name string
		to   **x509.Certificate
	}{{issuerCert, &a.issuer}, {nextCert, &a.next}, {rootCert, &root}, {previousCert, &a.previous}, {linkCert, &a.link}} {
		c, err := readCertificate(filepath.Join(a.dir, f.name))
		if errors.Is(err, fault.ErrStateMissing) && f.name != issuerCert {
			continue
		}
		if err != nil {
			return false, err
		}
		*f.to = c
	}
	if a.next != nil && a.issuer.CheckSignatureFrom(a.next) == nil {
		if root != nil {
			a.previous = root
		}
		root, a.next, behind = a.next, nil, true
	}
	if root == nil {
		return false, fault.New(fault.BadState, "state_missing", op, errors.New("there is no root.crt"))
	}
	if a.domain, err = together(root, a.issuer); err != nil {
		return false, fault.New(fault.Integrity, "key_corrupt", op, err)
	}
	a.root = root
	for _, c := range []*x509.Certificate{a.next, a.previous} {
		if c == nil {
			continue
		}
		if d, err := checkRoot(c); err != nil || d != a.domain {
			return false, fault.New(fault.Integrity, "key_corrupt", op, errors.Join(errors.New("another root isn't one of ours"), err))
		}
	}
	if a.next == nil {
		a.link = nil // left over
	} else if err := checkLink(a.link, a.next, a.root); err != nil {
		return false, fault.New(fault.Integrity, "key_corrupt", op, fmt.Errorf("root-link.crt: %w", err))
	}
	return behind, nil
}

// finish does what a killed process left of Begin.
func (a *Authority) finish(dir string) error {
	release, err := hold(context.Background(), dir)
	if err != nil {
		return err
	}
	defer release()
	behind, err := a.read() // another process may have done it
	if err != nil || !behind {
		return err
	}
	return a.catchUp()
}

// checkRoot checks a root by itself, and returns its domain.
func checkRoot(c *x509.Certificate) (domain string, err error) {
	if len(c.URIs) != 1 {
		return "", errors.New("names no trust domain")
	}
	domain = c.URIs[0].Host
	if err := checkDomain(domain); err != nil {
		return "", err
	}
	if err := rootForm(c, domain); err != nil {
		return "", err
	}
	if err := c.CheckSignatureFrom(c); err != nil {
		return "", fmt.Errorf("%v", err)
	}
	return domain, nil
}

// newLink certifies another root's key and names by a root, as a proof for holders of that root. No
// chain can use it: a path over it is longer than a root allows.
//
// Abuse: a caller with a root's key can have devices take another root.
func newLink(next, root *x509.Certificate, key *ecdsa.PrivateKey) (*x509.Certificate, error) {
	t := authorityTemplate(root.URIs[0].Host, "root", next.NotBefore, 0)
	t.SerialNumber, t.RawSubject, t.SubjectKeyId = next.SerialNumber, next.RawSubject, next.SubjectKeyId
	t.NotBefore, t.NotAfter, t.MaxPathLen = next.NotBefore, next.NotAfter, 1
	return certify(t, root, next.PublicKey.(*ecdsa.PublicKey), key)
}

// checkLink checks that root certified the key and the names of next.
func checkLink(link, next, root *x509.Certificate) error {
	switch {
	case link == nil:
		return errors.New("is missing")
	case !bytes.Equal(link.RawSubject, next.RawSubject) || !bytes.Equal(link.RawSubjectPublicKeyInfo, next.RawSubjectPublicKeyInfo) ||
		!link.NotBefore.Equal(next.NotBefore) || !link.NotAfter.Equal(next.NotAfter) || link.SerialNumber.Cmp(next.SerialNumber) != 0:
		return errors.New("is for another root")
	}
	if err := form(link, oidKeyUsage, oidBasic, oidSubjectKey, oidAuthority, oidNames); err != nil {
		return err
	}
	if err := authorityForm(link, root.URIs[0].Host); err != nil {
		return err
	}
	if err := link.CheckSignatureFrom(root); err != nil {
		return fmt.Errorf("%v", err)
	}
	return nil
}

// Follow returns the trust bundle that the holder of roots has next, when its hub offers others:
// each is one that it has, or one that such a root certified in a link. An error is fault.Denied
// "peer_certificate_invalid", and the holder keeps what it has.
func Follow(roots, offered, links [][]byte) ([][]byte, error) {
	const op = "follow roots"
	no := func(err error) ([][]byte, error) {
		return nil, fault.New(fault.Denied, "peer_certificate_invalid", op, err)
	}
	if len(offered) > maxRoots || len(links) > maxRoots {
		return no(fmt.Errorf("%d roots with %d links, at most %d", len(offered), len(links), maxRoots))
	}
	have, err := parseAll(roots)
	if err != nil {
		return nil, fault.New(fault.Integrity, "trust_corrupt", op, fmt.Errorf("trust bundle: %w", err))
	}
	next, err := parseAll(offered)
	if err != nil {
		return no(err)
	}
	var proofs []*x509.Certificate
	if len(links) > 0 {
		if proofs, err = parseAll(links); err != nil {
			return no(err)
		}
	}
	for _, n := range next {
		if slices.ContainsFunc(have, n.Equal) {
			continue
		}
		domain, err := checkRoot(n)
		if err != nil {
			return no(err)
		}
		known := slices.ContainsFunc(have, func(h *x509.Certificate) bool {
			d, err := checkRoot(h)
			return err == nil && d == domain && slices.ContainsFunc(proofs, func(p *x509.Certificate) bool { return checkLink(p, n, h) == nil })
		})
		if !known {
			return no(errors.New("a root that none of those before certified"))
		}
	}
	return ders(next...), nil
}
