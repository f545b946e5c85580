// Package passkeytest is an authenticator and its browser in software, for tests.
package passkeytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"testing"

	"palyra/crypt/passkey"
)

// Key is a passkey and what its browser says. Tests change fields to say something else.
type Key struct {
	Private *ecdsa.PrivateKey
	ID      []byte
	Site    passkey.Site
	Flags   byte   // of authenticator data: UP and UV by default
	Count   uint32 // of the next signature; 0 doesn't count
	Client  string // format of client data, with type, challenge and origin
}

// New returns a passkey of a site.
func New(tb testing.TB, s passkey.Site) *Key {
	tb.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	id := make([]byte, 32)
	_, _ = rand.Read(id)
	return &Key{Private: k, ID: id, Site: s, Flags: 1<<0 | 1<<2, Client: `{"type":%q,"challenge":%q,"origin":%q,"crossOrigin":false}`}
}

// SPKI is the public key as browsers give it.
func (k *Key) SPKI() []byte {
	b, err := x509.MarshalPKIXPublicKey(&k.Private.PublicKey)
	if err != nil {
		panic(err)
	}
	return b
}

func (k *Key) client(kind string, challenge []byte) []byte {
	return fmt.Appendf(nil, k.Client, kind, base64.RawURLEncoding.EncodeToString(challenge), k.Site.Origin)
}

func (k *Key) head(flags byte) []byte {
	host := sha256.Sum256([]byte(k.Site.RP))
	b := binary.BigEndian.AppendUint32(append(host[:], flags), k.Count)
	if k.Count > 0 {
		k.Count++
	}
	return b
}

// Register answers navigator.credentials.create.
func (k *Key) Register(challenge []byte) passkey.Registration {
	d := k.head(k.Flags | 1<<6)
	d = append(d, make([]byte, 16)...)
	d = binary.BigEndian.AppendUint16(d, uint16(len(k.ID)))
	d = append(d, k.ID...)
	x, y := make([]byte, 32), make([]byte, 32)
	point, err := k.Private.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	copy(x, point[1:33])
	copy(y, point[33:])
	d = append(d, 0xa5, 1, 2, 3, 0x26, 0x20, 1, 0x21, 0x58, 0x20)
	d = append(append(append(d, x...), 0x22, 0x58, 0x20), y...)
	return passkey.Registration{ID: k.ID, Key: k.SPKI(), Data: d, Client: k.client("webauthn.create", challenge)}
}

// Sign answers navigator.credentials.get.
func (k *Key) Sign(challenge []byte) passkey.Assertion {
	a := passkey.Assertion{ID: k.ID, Data: k.head(k.Flags), Client: k.client("webauthn.get", challenge)}
	sum := sha256.Sum256(a.Client)
	digest := sha256.Sum256(append(append([]byte(nil), a.Data...), sum[:]...))
	var err error
	if a.Signature, err = ecdsa.SignASN1(rand.Reader, k.Private, digest[:]); err != nil {
		panic(err)
	}
	return a
}
