// Package passkey verifies what passkeys sign (WebAuthn level 3, ES256, no attestation).
//
//	site, err := passkey.SiteOf("http://localhost:7142")
//	cred, err := passkey.Register(site, challenge, registration) // §7.1
//	count, err := passkey.Verify(site, challenge, cred, assertion) // §7.2
//	err := passkey.VerifyYes(signed) // a yes to a question, by itself
//
// # Contract
//
// A registration gives a credential only if the browser says that it made it for this challenge
// and at this origin, not in a frame of another, and the authenticator that it's for this host
// and that it verified the person. Its key is the one in the authenticator's data. An assertion
// holds under the same conditions, with a signature of the credential's key. Whoever asks sees to
// it that a challenge is its own and is used once: [Challenges].
//
// Keys come as SubjectPublicKeyInfo, which browsers have of them, and the key in the
// authenticator's data has one spelling in CTAP2's CBOR, which is compared. So there is no CBOR
// to parse.
//
// # What it does not protect against
//
// A program that makes a key, says that a person was verified and signs: without attestation
// that's a passkey like any other. A member can only say so of its own name, as with a token.
package passkey

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"net/url"

	"palyra/internal/canon"
)

// The bounds of what comes in, in bytes.
const (
	MaxID     = 1023 // of a credential (§7.1)
	maxClient = 1024
	maxMade   = 2048 // authenticator data of a registration
	maxData   = 256  // of an assertion
	maxKey    = 128
	maxDER    = 80 // of a signature: two numbers of 33 bytes in their headers
)

// Site is where passkeys are for: a host by name, and the origin of its pages.
type Site struct {
	RP     string // "localhost"
	Origin string // "http://localhost:7142"
}

// SiteOf returns the site of an address. Browsers make passkeys for names over TLS and for
// localhost, and for no IP address.
func SiteOf(address string) (Site, error) {
	u, err := url.Parse(address)
	if err != nil {
		return Site{}, errors.New("the address is none")
	}
	host := u.Hostname()
	port := u.Port()
	if u.Scheme == "https" && port == "443" || u.Scheme == "http" && port == "80" { // as browsers spell it
		port = ""
	}
	_, isIP := netip.ParseAddr(host)
	switch {
	case host == "" || isIP == nil:
		return Site{}, errors.New("passkeys are for names, and not for IP addresses")
	case u.Scheme != "https" && (u.Scheme != "http" || host != "localhost"):
		return Site{}, errors.New("passkeys are for TLS and for localhost")
	}
	origin := u.Scheme + "://" + host
	if port != "" {
		origin += ":" + port
	}
	return Site{RP: host, Origin: origin}, nil
}

// Credential is a passkey.
type Credential struct {
	ID    []byte
	Key   []byte // SubjectPublicKeyInfo in DER: ECDSA over P-256
	Count uint32 // of signatures, as the authenticator counts; synced passkeys say 0
}

// Registration is what a browser returns for a new credential.
type Registration struct {
	ID     []byte // rawId
	Key    []byte // getPublicKey()
	Data   []byte // getAuthenticatorData()
	Client []byte // clientDataJSON
}

// Assertion is a signature of a credential.
type Assertion struct {
	ID        []byte
	Data      []byte // authenticatorData
	Client    []byte // clientDataJSON
	Signature []byte
}

// Register returns the credential of a registration for challenge.
func Register(s Site, challenge []byte, r Registration) (*Credential, error) {
	if len(r.ID) == 0 || len(r.ID) > MaxID || len(r.Key) > maxKey || len(r.Data) > maxMade {
		return nil, errors.New("id, key or authenticator data are too long, or none")
	}
	if err := checkClient(r.Client, "webauthn.create", s.Origin, challenge); err != nil {
		return nil, err
	}
	key, err := keyOf(r.Key)
	if err != nil {
		return nil, err
	}
	d, err := parseData(r.Data, s.RP)
	if err != nil {
		return nil, err
	}
	if !bytes.Equal(d.id, r.ID) {
		return nil, errors.New("the authenticator data are of another credential")
	}
	spelled, err := coseOf(key)
	if err != nil {
		return nil, err
	}
	if !bytes.HasPrefix(d.rest, spelled) {
		return nil, errors.New("the authenticator data have another key")
	}
	if len(d.rest) > len(spelled) != d.extended {
		return nil, errors.New("the authenticator data don't end with their key")
	}
	return &Credential{ID: bytes.Clone(r.ID), Key: bytes.Clone(r.Key), Count: d.count}, nil
}

// ErrCount is the error of a signature that holds and counts no more than the last.
var ErrCount = errors.New("there may be a copy of the passkey")

// Verify returns the count of signatures in an assertion, which the caller keeps in c if it isn't
// 0. One that isn't more than the last is [ErrCount].
func Verify(s Site, challenge []byte, c *Credential, a Assertion) (count uint32, err error) {
	if !bytes.Equal(a.ID, c.ID) {
		return 0, errors.New("the signature is another credential's")
	}
	if err := checkClient(a.Client, "webauthn.get", s.Origin, challenge); err != nil {
		return 0, err
	}
	d, err := verify(s.RP, c.Key, a.Data, a.Client, a.Signature)
	if err != nil {
		return 0, err
	}
	if (d.count != 0 || c.Count != 0) && d.count <= c.Count {
		return 0, fmt.Errorf("signature %d of a passkey that has made %d: %w", d.count, c.Count, ErrCount)
	}
	return d.count, nil
}

func verify(rp string, key, signed, client, signature []byte) (*data, error) {
	if len(signed) > maxData || len(signature) > maxDER || len(client) > maxClient {
		return nil, errors.New("authenticator data, client data or signature are too long")
	}
	k, err := keyOf(key)
	if err != nil {
		return nil, err
	}
	d, err := parseData(signed, rp)
	if err != nil {
		return nil, err
	}
	if d.id != nil || len(d.rest) > 0 != d.extended {
		return nil, errors.New("the authenticator data are no signature's")
	}
	sum := sha256.Sum256(client)
	digest := sha256.Sum256(append(bytes.Clone(signed), sum[:]...))
	if !ecdsa.VerifyASN1(k, digest[:], signature) {
		return nil, errors.New("the signature isn't the passkey's")
	}
	return d, nil
}

// clientData are the members of the client data that count; browsers may add others (§5.8.1).
type clientData struct{ kind, challenge, origin string }

func parseClient(text []byte) (c clientData, err error) {
	if len(text) > maxClient {
		return c, fmt.Errorf("client data of more than %d bytes", maxClient)
	}
	var all map[string]any
	if err := canon.Decode(text, &all, canon.Limits{Bytes: maxClient, Depth: 4}); err != nil {
		return c, errors.New("the client data are no JSON object")
	}
	c.kind, _ = all["type"].(string)
	c.challenge, _ = all["challenge"].(string)
	c.origin, _ = all["origin"].(string)
	if cross, ok := all["crossOrigin"]; ok && cross != false || all["topOrigin"] != nil {
		return c, errors.New("the page was in a frame of another origin")
	}
	return c, nil
}

func checkClient(text []byte, kind, origin string, challenge []byte) error {
	c, err := parseClient(text)
	switch {
	case err != nil:
		return err
	case c.kind != kind:
		return fmt.Errorf("client data of type %.40q, want %q", c.kind, kind)
	case c.origin != origin:
		return fmt.Errorf("client data of origin %.120q, want %q", c.origin, origin)
	case subtle.ConstantTimeCompare([]byte(c.challenge), []byte(base64.RawURLEncoding.EncodeToString(challenge))) != 1:
		return errors.New("client data for another challenge")
	}
	return nil
}

// data are parsed authenticator data (§6.1).
type data struct {
	count    uint32
	id       []byte // of the credential, nil for a signature's
	rest     []byte // the key, if there is an id, and extensions
	extended bool
}

// The flags of authenticator data.
const (
	present  = 1 << 0
	verified = 1 << 2
	eligible = 1 << 3
	backedUp = 1 << 4
	attested = 1 << 6
	extended = 1 << 7
)

func parseData(b []byte, rp string) (*data, error) {
	host := sha256.Sum256([]byte(rp))
	switch {
	case len(b) < 37:
		return nil, errors.New("authenticator data of fewer than 37 bytes")
	case !bytes.Equal(b[:32], host[:]):
		return nil, fmt.Errorf("authenticator data for another host than %q", rp)
	case b[32]&present == 0:
		return nil, errors.New("no person was there, the authenticator says")
	case b[32]&verified == 0:
		return nil, errors.New("the authenticator didn't verify the person")
	case b[32]&backedUp != 0 && b[32]&eligible == 0:
		return nil, errors.New("authenticator data of a copy that can't be")
	}
	d := &data{count: binary.BigEndian.Uint32(b[33:]), rest: b[37:], extended: b[32]&extended != 0}
	if b[32]&attested == 0 {
		return d, nil
	}
	if len(d.rest) < 18 { // AAGUID, and the length of the id
		return nil, errors.New("authenticator data end early")
	}
	n := int(binary.BigEndian.Uint16(d.rest[16:]))
	if n == 0 || n > MaxID || len(d.rest) < 18+n {
		return nil, errors.New("authenticator data with an id of another length than they say")
	}
	d.id, d.rest = d.rest[18:18+n], d.rest[18+n:]
	return d, nil
}

func keyOf(der []byte) (*ecdsa.PublicKey, error) {
	k, err := x509.ParsePKIXPublicKey(der)
	key, ok := k.(*ecdsa.PublicKey)
	if err != nil || !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("the key isn't one of ECDSA over P-256")
	}
	if again, err := x509.MarshalPKIXPublicKey(key); err != nil || !bytes.Equal(again, der) {
		return nil, errors.New("the key has another spelling than DER's")
	}
	return key, nil
}

// coseOf spells a key as authenticators do: COSE in CTAP2's canonical CBOR, whose order and
// lengths leave no choice.
func coseOf(k *ecdsa.PublicKey) ([]byte, error) {
	point, err := k.Bytes() // 4, x, y
	if err != nil || len(point) != 65 {
		return nil, errors.New("the key isn't a point")
	}
	b := []byte{0xa5, 0x01, 0x02, 0x03, 0x26, 0x20, 0x01, 0x21, 0x58, 0x20} // EC2, ES256, P-256, x
	b = append(b, point[1:33]...)
	b = append(b, 0x22, 0x58, 0x20) // y
	return append(b, point[33:]...), nil
}
