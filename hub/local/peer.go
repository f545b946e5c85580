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
	mu    sync.Mutex
	now   *tls.Certificate // nil before the first connection; guarded by mu
	renew time.Time        // guarded by mu
	ends  time.Time        // guarded by mu
}

// PeerCertificate returns the hub's certificate for connections with devices. At two thirds of its
// life it makes the next one, with a new key; connections that there are go on.
func (h *Hub) PeerCertificate() (*tls.Certificate, error) {
	own := &h.devices.own
	own.mu.Lock()
	defer own.mu.Unlock()
	now := time.Now()
	if own.now != nil && now.Before(own.renew) {
		return own.now, nil
	}
	cert, err := h.makePeerCertificate()
	if err == nil {
		own.now, own.renew, own.ends = cert, ca.RenewAt(cert.Leaf.NotBefore, cert.Leaf.NotAfter), cert.Leaf.NotAfter
		return cert, nil
	}
	if before, ok := h.noise.take("", now); ok {
		h.cfg.Log.Warn("the hub's certificate isn't renewed", "error", err, "until", own.ends, "left_out", before)
	}
	if own.now != nil && now.Before(own.ends) {
		return own.now, nil
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
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
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
