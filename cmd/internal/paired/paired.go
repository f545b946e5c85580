// Package paired is a hub.Hub at another host, for a device that was paired with it.
//
//	h, err := paired.Dial(paired.Config{Dir: dir, Warn: …})
//
// It speaks TLS 1.3 with a certificate on both sides. The hub's is judged by crypt/ca: of the trust
// domain and for a hub; the address and the host's roots mean nothing. The device's certificate is
// renewed at two thirds of its life, before the request that comes then, for the same key, and put
// in its place in the folder. Processes that share a folder renew it once. With it come the hub's
// roots: the device takes one that it doesn't have only if one that it has certified it
// (ca.Follow).
//
// At each contact the hub proves that its journal extends the one that the device remembers
// (witness.go).
//
// The package doesn't protect the folder from the device's own user, whose programs can all act as
// the device.
package paired

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/transport/client"
	"palyra/transport/peer"
)

// renewPause is how long a renewal that failed isn't tried again.
const renewPause = time.Minute

// renewTime bounds a renewal, so that a hub that hangs doesn't hold up others for long.
const renewTime = 5 * time.Second

// Config says which device calls which hub.
type Config struct {
	// Dir is the device's folder.
	Dir string
	// URL is "https://host:port" of the hub's peer.listen. Default: as the folder says.
	URL string
	// Warn is told why a certificate wasn't renewed, at most once. Requests go on while it's good.
	Warn func(error)
}

// Hub is the other end. It is safe for concurrent use.
type Hub struct {
	cfg Config
	c   *client.Client
	now atomic.Pointer[identity]
	due func(*identity) bool // tests have another

	watch   sync.Mutex // held through a comparison of the journal
	watched time.Time  // when the last one ended well; guarded by watch

	mu     sync.Mutex
	again  time.Time // when a renewal that failed is tried again; guarded by mu
	warned bool      // guarded by mu
}

var _ hub.Hub = (*Hub)(nil)

// Dial opens the device's folder. It does not connect yet.
func Dial(cfg Config) (*Hub, error) {
	id, err := load(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if cfg.URL == "" {
		cfg.URL = id.about.URL
	}
	if err := CheckURL(cfg.URL); err != nil {
		return nil, err
	}
	h := &Hub{cfg: cfg, due: (*identity).due}
	h.now.Store(id)
	h.c, err = client.New(client.Config{URL: cfg.URL, TLS: peer.Client(h.certificate, h.verify)})
	return h, err
}

// CheckURL refuses an address that isn't one of a hub's listener for devices.
func CheckURL(url string) error {
	const op = "find the hub"
	if url == "" {
		return fault.New(fault.Usage, "bad_command", op, errors.New("the device's folder doesn't say where it is")).
			WithHint("name the hub's peer.listen: --url https://HOST:7444")
	}
	if !strings.HasPrefix(url, "https://") {
		return fault.New(fault.Usage, "bad_command", op, fmt.Errorf("%.100q isn't https://HOST:PORT", url)).
			WithHint("devices are served over TLS alone: --url https://HOST:7444")
	}
	return nil
}

func (h *Hub) certificate() (*tls.Certificate, error) {
	id := h.now.Load()
	return &tls.Certificate{Certificate: id.chain, PrivateKey: id.key}, nil
}

// verify judges the hub's chain.
func (h *Hub) verify(chain [][]byte) error {
	id := h.now.Load()
	leaf, err := ca.Verify(chain, id.roots, ca.Hub, time.Now())
	if err == nil && leaf.Identity.Domain != id.about.Domain {
		err = fault.New(fault.Denied, "peer_certificate_invalid", "verify the hub", fmt.Errorf("it's of %q, want %q", leaf.Identity.Domain, id.about.Domain))
	}
	return err
}

// Do implements hub.Hub.
func (h *Hub) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	h.renew(ctx)
	if err := h.witness(ctx, op); err != nil {
		return nil, err
	}
	return h.c.Do(ctx, c, op, in)
}

// Close closes the connections that wait for requests.
func (h *Hub) Close() error { return h.c.Close() }

// due reports whether a certificate is to be renewed.
func (id *identity) due() bool {
	return !time.Now().Before(ca.RenewAt(id.leaf.NotBefore, id.leaf.NotAfter))
}

// renew has a certificate that isn't due, if that can be had.
func (h *Hub) renew(ctx context.Context) {
	if !h.due(h.now.Load()) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Now().Before(h.again) || !h.due(h.now.Load()) {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	if err := h.renewLocked(ctx); err != nil {
		h.again = time.Now().Add(renewPause)
		if !h.warned {
			h.warned = true
			h.cfg.Warn(err)
		}
	}
}

func (h *Hub) renewLocked(ctx context.Context) error {
	g, err := durable.OpenGate(filepath.Join(h.cfg.Dir, lockFile))
	if err != nil {
		return err
	}
	defer g.Close()
	if held, err := g.Try(durable.Exclusive); err != nil || !held {
		return err // another process is at it: this one goes on with what it has
	}
	id, err := load(h.cfg.Dir) // another process may have been at it
	if err != nil {
		return err
	}
	if h.due(id) {
		if err := h.next(ctx, id); err != nil {
			return err
		}
	}
	h.now.Store(id)
	return h.c.Close() // those of the certificate before end with it
}

// next has the hub certify the same key, and keeps the certificate.
func (h *Hub) next(ctx context.Context, id *identity) error {
	const op = "renew the device's certificate"
	csr, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, id.key)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	out, err := hub.RenewDevice.Do(ctx, h.c, hub.Caller{}, hub.DeviceRenewal{ID: id.about.Device, DeviceKeyRequest: hub.DeviceKeyRequest{CSR: csr}})
	if err != nil {
		return err
	}
	leaf, err := id.check(out.Chain)
	if err != nil {
		return fault.New(fault.Denied, "peer_certificate_invalid", op, err)
	}
	roots, err := ca.Follow(id.roots, out.Roots, out.Links)
	if err != nil {
		return err
	}
	next := *id
	next.roots = roots
	if _, err := next.check(out.Chain); err != nil {
		return fault.New(fault.Denied, "peer_certificate_invalid", op, err)
	}
	// A crash between the two leaves a folder that opens, and a device that was told of a root.
	files := []file{{rootsFile, encode(roots)}, {chainFile, encode(out.Chain)}}
	if _, err := next.check(id.chain); err != nil { // a root has ended
		slices.Reverse(files)
	}
	for _, f := range files {
		if err := write(h.cfg.Dir, f.name, f.data); err != nil {
			return err
		}
	}
	id.chain, id.leaf, id.roots = out.Chain, leaf, roots
	return nil
}

// Renew gets the next certificate now, whether it is due or not, and returns when it ends.
func (h *Hub) Renew(ctx context.Context) (time.Time, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	h.mu.Lock()
	defer h.mu.Unlock()
	g, err := durable.OpenGate(filepath.Join(h.cfg.Dir, lockFile))
	if err != nil {
		return time.Time{}, err
	}
	defer g.Close()
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil {
		return time.Time{}, err
	}
	id, err := load(h.cfg.Dir)
	if err != nil {
		return time.Time{}, err
	}
	if err := h.next(ctx, id); err != nil {
		return time.Time{}, err
	}
	h.now.Store(id)
	return id.leaf.NotAfter, h.c.Close()
}
