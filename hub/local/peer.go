package local

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"sync"
	"time"

	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/fault"
)

// hubID is the last part of the hub's own name: spiffe://DOMAIN/hub/main.
const hubID = "main"

// ownCertificate is the hub's, with a key that only this process has.
type ownCertificate struct {
	mu     sync.Mutex
	now    *tls.Certificate // nil before the first connection; guarded by mu
	renew  time.Time        // guarded by mu
	ends   time.Time        // guarded by mu
	making chan struct{}    // closed when the next one is made, or isn't; nil: none is under way; guarded by mu
}

const (
	// ownWait is how long a handshake waits for the first certificate.
	ownWait = 5 * time.Second
	// ownPause is how long a renewal that failed isn't tried again.
	ownPause = time.Minute
)

// goodLocked returns the certificate if it can be used.
func (o *ownCertificate) goodLocked(now time.Time) *tls.Certificate {
	if o.now != nil && now.Before(o.ends) {
		return o.now
	}
	return nil
}

// forget has the next connection wait for another certificate.
func (o *ownCertificate) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.now = nil
}

// PeerCertificate returns the hub's certificate for connections with devices. At two thirds of its
// life it makes the next one, with a new key; connections that there are go on. A stranger's
// handshake asks for it, so that only one waits for the authority, which may wait for the journal.
func (h *Hub) PeerCertificate() (*tls.Certificate, error) {
	own := &h.devices.own
	own.mu.Lock()
	now := time.Now()
	good, due, making := own.goodLocked(now), own.now == nil || !now.Before(own.renew), own.making
	if good != nil && (!due || making != nil) {
		own.mu.Unlock()
		return good, nil
	}
	if making == nil {
		own.making = make(chan struct{})
		own.mu.Unlock()
		return h.nextPeerCertificate()
	}
	own.mu.Unlock()
	timer := time.NewTimer(ownWait)
	defer timer.Stop()
	select {
	case <-making:
	case <-timer.C:
	}
	own.mu.Lock()
	defer own.mu.Unlock()
	if good := own.goodLocked(time.Now()); good != nil {
		return good, nil
	}
	return nil, fault.New(fault.Unavailable, "not_ready", "find the hub's certificate", nil)
}

// nextPeerCertificate makes the next certificate, and returns the one to use. The caller has set
// making.
func (h *Hub) nextPeerCertificate() (*tls.Certificate, error) {
	own := &h.devices.own
	cert, err := h.makePeerCertificate()
	now := time.Now()
	own.mu.Lock()
	defer own.mu.Unlock()
	close(own.making)
	own.making = nil
	if err == nil {
		return cert, nil
	}
	if before, ok := h.noise.take("", now); ok {
		h.cfg.Log.Warn("the hub's certificate isn't renewed", "error", err, "until", own.ends, "left_out", before)
	}
	if good := own.goodLocked(now); good != nil {
		own.renew = now.Add(ownPause)
		return good, nil
	}
	return nil, err
}

func (h *Hub) makePeerCertificate() (*tls.Certificate, error) {
	const op = "make the hub's certificate"
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	h.devices.changing.Lock()
	defer h.devices.changing.Unlock()
	if h.devices.authority == nil { // no device was ever paired, so a stranger asks
		return nil, unauthenticated()
	}
	_, chain, _, err := h.issue(context.Background(), hub.Caller{}, csr, ca.Hub, hubID)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fault.New(fault.Internal, "internal", op, err)
	}
	cert := &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}
	own := &h.devices.own // under changing, so that none of a root that was replaced since is put there
	own.mu.Lock()
	defer own.mu.Unlock()
	own.now, own.renew, own.ends = cert, ca.RenewAt(leaf.NotBefore, leaf.NotAfter), leaf.NotAfter
	return cert, nil
}

// VerifyPeer judges the chain that a client showed: that of a device whose certificate is in force.
// It's called for each connection; Authenticate asks again for each request.
func (h *Hub) VerifyPeer(chain [][]byte) error {
	h.devices.mu.RLock()
	roots := h.devices.roots
	h.devices.mu.RUnlock()
	if roots == nil {
		return unauthenticated()
	}
	if _, err := ca.Verify(chain, roots, ca.Device, time.Now()); err != nil {
		return err
	}
	if err := h.authenticateDevice(chain, new(hub.Caller)); err != nil {
		return unauthenticated()
	}
	return nil
}
