package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"math/big"
	"net"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/transport/api/apitest"
	"palyra/transport/httpapi"
)

// TestTLS: calls and tapes, which leave net/http, go through TLS too.
func TestTLS(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)

	h := apitest.NewHub()
	s, err := httpapi.New(httpapi.Config{Hub: h, Limits: httpapi.Limits{Drain: time.Second}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	server := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	go func() { done <- s.Serve(ctx, httpapi.Listener{Listener: l, TLS: server}) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	url, me := "https://"+l.Addr().String(), hub.Caller{}
	c := dial(t, Config{URL: url, Token: apitest.OwnerToken, TLS: &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots}})
	ses := must[hub.Session](t)(hub.CreateSession.Do(ctx, c, me, hub.NewSession{}))
	run := must[hub.Run](t)(hub.StartRun.Do(ctx, c, me, hub.NewRun{Session: ses.ID, Steps: []hub.Step{{Tool: apitest.ToolWait}}}))
	tape := must[hub.Tape](t)(hub.ReadTape.Do(ctx, c, me, hub.TapeQuery{Run: run.ID}))
	defer tape.Close()
	must[hub.Event](t)(tape.Next(ctx))
	h.Finish(run.ID)
	must[hub.Event](t)(tape.Next(ctx))
	if _, err := tape.Next(ctx); err != io.EOF {
		t.Errorf("end of the tape: %v", err)
	}
	if _, err := hub.GetStatus.Do(ctx, dial(t, Config{URL: url, Token: apitest.OwnerToken}), me, hub.None{}); fault.KindOf(err) == fault.Internal || err == nil {
		t.Errorf("a certificate that nobody vouches for: %v", err)
	}
}
