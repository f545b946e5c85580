package way

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// another returns an authority's certificate in PEM.
func another(t *testing.T) []byte {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	of := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err2 := x509.CreateCertificate(rand.Reader, of, of, key.Public(), key)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// TestAuthority: of a file of roots the last one alone is trusted, as the call's own.
func TestAuthority(t *testing.T) {
	s := httptest.NewTLSServer(http.NotFoundHandler())
	defer s.Close()
	own := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	other := another(t)
	file := filepath.Join(t.TempDir(), "roots.pem")
	for _, c := range []struct {
		text  string
		trust bool
	}{{string(other) + string(own), true}, {string(own) + string(other), false}, {string(own), true}} {
		if err := os.WriteFile(file, []byte(c.text), 0o600); err != nil {
			t.Fatal(err)
		}
		client := (&Way{}).Client(authority(file))
		res, err := client.Get(s.URL)
		if err == nil {
			res.Body.Close()
		}
		if (err == nil) != c.trust {
			t.Errorf("%d bytes: %v; trusted: %v", len(c.text), err, c.trust)
		}
		client.CloseIdleConnections()
	}
	if authority(filepath.Join(t.TempDir(), "none")) != nil {
		t.Error("without a file")
	}
}
