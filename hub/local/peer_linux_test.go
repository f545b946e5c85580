package local

import (
	"crypto/tls"
	"errors"
	"net"
	"testing"
	"time"

	"palyra/crypt/ca"
	"palyra/hub"
	"palyra/internal/fault"
)

// TestVerifyPeer tries leaves that the authority's own key has signed: for other kinds, for another
// device, without a record.
func TestVerifyPeer(t *testing.T) {
	h := newHouse(t, nil)
	if err := h.VerifyPeer([][]byte{{1}, {2}}); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("before there is an authority: %v", err)
	}
	if _, err := h.PeerCertificate(); fault.ReasonOf(err) != "unauthenticated" || ca.Exists(h.k.StateDir()) {
		t.Errorf("a stranger makes an authority: %v", err)
	}
	_, csr := deviceKey(t)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	if err := h.VerifyPeer(chain); err != nil {
		t.Fatal(err)
	}
	own, err := h.PeerCertificate()
	if err != nil {
		t.Fatal(err)
	}
	if l, err := ca.Verify(own.Certificate, h.devices.roots, ca.Hub, time.Now()); err != nil || l.Identity.ID != hubID {
		t.Errorf("%+v, %v", l, err)
	}
	a, err := ca.Open(h.k.StateDir(), ca.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, id := range []ca.Identity{{Domain: a.Domain(), Kind: ca.Worker, ID: "laptop"}, {Domain: a.Domain(), Kind: ca.Hub, ID: "main"}, {Domain: a.Domain(), Kind: ca.Device, ID: "laptop"}} {
		forged, err := a.Issue(csr, id, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if err := h.VerifyPeer(forged); fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := h.VerifyPeer(own.Certificate); fault.ReasonOf(err) != "peer_certificate_invalid" {
		t.Errorf("the hub's own, as a client: %v", err)
	}
	if _, err := hub.RevokeDevice.Do(t.Context(), h, h.owner, "laptop"); err != nil {
		t.Fatal(err)
	}
	if err := h.VerifyPeer(chain); fault.ReasonOf(err) != "unauthenticated" {
		t.Errorf("revoked: %v", err)
	}
}

// TestPeerCertificateRenews gives connections the next certificate when it's due, and the old one
// until then.
func TestPeerCertificateRenews(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	get := func() *tls.Certificate {
		t.Helper()
		c, err := h.PeerCertificate()
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	first := get()
	if get() != first {
		t.Error("another one, before it's due")
	}
	h.devices.own.renew = time.Now()
	next := get()
	if next == first || get() != next {
		t.Error("not renewed when it was due, or twice")
	}
	if first.Leaf.NotAfter.Sub(first.Leaf.NotBefore) != ca.LeafLife {
		t.Errorf("lives for %v", first.Leaf.NotAfter.Sub(first.Leaf.NotBefore))
	}
}

// TestPeerCertificateWaits: while the authority is busy, one handshake waits for the next
// certificate, and the others get the one that there is.
func TestPeerCertificateWaits(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	first, err := h.PeerCertificate()
	if err != nil {
		t.Fatal(err)
	}
	h.devices.own.renew = time.Now()
	h.devices.changing.Lock()
	const all = 8
	got := make(chan *tls.Certificate, all)
	for range all {
		go func() {
			c, err := h.PeerCertificate()
			if err != nil {
				t.Error(err)
			}
			got <- c
		}()
	}
	late := time.After(30 * time.Second) // a test that hangs fails
	for i := range all - 1 {
		select {
		case c := <-got:
			if c != first {
				t.Error("another one, while the authority is busy")
			}
		case <-late:
			h.devices.changing.Unlock()
			t.Fatalf("%d of %d handshakes wait for the authority", all-i, all)
		}
	}
	h.devices.changing.Unlock()
	next := <-got
	if now, err := h.PeerCertificate(); err != nil || next == first || now != next {
		t.Errorf("the next one isn't used: %v", err)
	}
}

// TestPeerCertificateFails keeps what is good, and doesn't try for each connection.
func TestPeerCertificateFails(t *testing.T) {
	h := newHouse(t, nil)
	_, csr := deviceKey(t)
	h.pair(h.owner, "laptop", csr, false, "run.start")
	first, err := h.PeerCertificate()
	if err != nil {
		t.Fatal(err)
	}
	h.devices.own.renew = time.Now()
	authority := h.devices.authority
	h.devices.authority = nil // a failure
	for range 2 {
		if c, err := h.PeerCertificate(); err != nil || c != first {
			t.Errorf("the good one isn't used: %v", err)
		}
		h.devices.authority = authority
	}
	h.devices.own.renew = time.Now()
	if c, err := h.PeerCertificate(); err != nil || c == first {
		t.Errorf("it isn't tried again: %v", err)
	}
}

// BenchmarkVerifyPeer is what a handshake costs beside TLS: the chain, and whether it's in force.
func BenchmarkVerifyPeer(b *testing.B) {
	h := newHouse(b, nil)
	_, csr := deviceKey(b)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	for b.Loop() {
		if err := h.VerifyPeer(chain); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHandshake is a whole handshake of a device with its hub, both sides in this process, over
// a pipe: with the chain judged alone, and with what the hub asks besides, whether it's revoked. The
// settings are those of transport/peer, which a test of the hub can't import.
func BenchmarkHandshake(b *testing.B) {
	h := newHouse(b, nil)
	key, csr := deviceKey(b)
	_, chain := h.pair(h.owner, "laptop", csr, false, "run.start")
	if _, err := h.PeerCertificate(); err != nil {
		b.Fatal(err)
	}
	roots := h.devices.roots
	judge := func(kind string) func([][]byte) error {
		return func(chain [][]byte) error {
			_, err := ca.Verify(chain, roots, kind, time.Now())
			return err
		}
	}
	settings := func(verify func([][]byte) error) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, SessionTicketsDisabled: true,
			VerifyConnection: func(s tls.ConnectionState) error {
				var chain [][]byte
				for _, c := range s.PeerCertificates {
					chain = append(chain, c.Raw)
				}
				return verify(chain)
			}}
	}
	for _, c := range []struct {
		name   string
		verify func([][]byte) error
	}{{"chain", judge(ca.Device)}, {"chain and revocation", h.VerifyPeer}} {
		b.Run(c.name, func(b *testing.B) {
			server, client := settings(c.verify), settings(judge(ca.Hub))
			server.ClientAuth = tls.RequireAnyClientCert
			server.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return h.PeerCertificate() }
			client.InsecureSkipVerify = true
			client.Certificates = []tls.Certificate{{Certificate: chain, PrivateKey: key}}
			for b.Loop() {
				near, far := net.Pipe()
				served := make(chan error, 1)
				go func() { served <- tls.Server(far, server).HandshakeContext(b.Context()) }()
				conn := tls.Client(near, client)
				if err := errors.Join(conn.HandshakeContext(b.Context()), <-served); err != nil {
					b.Fatal(err)
				}
				if s := conn.ConnectionState(); s.CurveID != tls.X25519MLKEM768 {
					b.Fatalf("key exchange %v", s.CurveID)
				}
				near.Close()
				far.Close()
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "handshakes/s")
		})
	}
}
