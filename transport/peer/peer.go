// Package peer has the TLS between a hub and its paired devices: 1.3 alone, with a certificate on
// both sides, one protocol and no resumption.
//
//	hub:    httpapi.Listener{Listener: l, TLS: peer.Server(h.PeerCertificate, h.VerifyPeer), Devices: true}
//	device: peer.Client(certificate, verify)
//
// The key exchange is X25519MLKEM768, which crypto/tls prefers, wherever the other side is ours: a
// quantum computer of later doesn't read what was recorded today. The host's roots and the name
// that was dialled mean nothing here: the given functions say who may be at the other end, for each
// connection. The hub asks once more for each request (transport/httpapi), and cuts the connections
// of a device that has lost its authority.
//
// The package doesn't protect against a device that hands its key on.
package peer

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"

	"palyra/internal/fault"
)

// Protocol is what both sides must name in ALPN. net/http closes a connection with one that it
// doesn't know; pairing has another, so that no connection ends up at the other.
const Protocol = "http/1.1"

// Server returns the hub's side. certificate is asked for each connection, so that a renewed one
// serves the next; verify judges the chain that the client showed, leaf first, in DER, after it has
// proved that it has the key.
func Server(certificate func() (*tls.Certificate, error), verify func(chain [][]byte) error) *tls.Config {
	c := both(verify)
	c.ClientAuth = tls.RequireAnyClientCert
	c.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate() }
	return c
}

// Client returns the device's side.
func Client(certificate func() (*tls.Certificate, error), verify func(chain [][]byte) error) *tls.Config {
	c := both(verify)
	c.InsecureSkipVerify = true // crypto/tls would look for the address in it; verify judges it
	c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return certificate() }
	return c
}

func both(verify func(chain [][]byte) error) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{Protocol},
		SessionTicketsDisabled: true, // a resumed connection wouldn't show a certificate
		VerifyConnection: func(s tls.ConnectionState) error {
			const op = "connect with peer"
			switch {
			case s.Version != tls.VersionTLS13 || s.DidResume:
				return fault.New(fault.Denied, "peer_certificate_invalid", op, errors.New("want a new connection of TLS 1.3"))
			case s.NegotiatedProtocol != Protocol:
				return fault.New(fault.Denied, "peer_certificate_invalid", op, fmt.Errorf("protocol %.40q, want %q", s.NegotiatedProtocol, Protocol))
			}
			return verify(Chain(s.PeerCertificates))
		},
	}
}

// Chain returns certificates in DER.
func Chain(certs []*x509.Certificate) [][]byte {
	chain := make([][]byte, len(certs))
	for i, c := range certs {
		chain[i] = c.Raw
	}
	return chain
}
