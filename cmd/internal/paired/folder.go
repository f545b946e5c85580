package paired

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"palyra/crypt/ca"
	"palyra/internal/canon"
	"palyra/internal/durable"
	"palyra/internal/fault"
)

// The files of a paired device.
const (
	KeyFile   = "key.pem"   // PKCS #8, mode 0600
	chainFile = "chain.pem" // its certificate first
	rootsFile = "roots.pem"
	hubFile   = "hub.json" // About
	lockFile  = "lock"     // whoever changes the others has it
)

// maxFile bounds each of them, in bytes.
const maxFile = 64 << 10

// patience is how long a pairing waits for a renewal in the same folder.
const patience = 2 * renewTime

const again = "pair the device again: palyra pair --replace"

// About says what a device was paired with.
type About struct {
	Device string   `json:"device"`
	Domain string   `json:"domain"`
	Scopes []string `json:"scopes"`
	URL    string   `json:"url,omitempty"` // where the hub serves devices
}

// Write puts a device's things into a folder that there is. The key comes last: a folder with a
// key has its certificates, and until then an older key has none of its own that this one replaced.
func Write(ctx context.Context, dir string, about About, key *ecdsa.PrivateKey, chain, roots []*x509.Certificate) error {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return fault.New(fault.Internal, "internal", "encode key", err)
	}
	about.Scopes = append([]string{}, about.Scopes...) // never null
	a, err := canon.Marshal(about)
	if err != nil {
		return err
	}
	g, err := durable.OpenGate(filepath.Join(dir, lockFile))
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Take(ctx, durable.Exclusive, patience); err != nil {
		return err
	}
	w, err := durable.OpenGate(filepath.Join(dir, watchFile))
	if err != nil {
		return err
	}
	defer w.Close()
	if err := w.Take(ctx, durable.Exclusive, patience); err != nil { // a comparison under way remembers before that is forgotten
		return err
	}
	if err := forget(dir); err != nil {
		return err
	}
	for _, f := range []file{{rootsFile, encode(raw(roots))}, {chainFile, encode(raw(chain))}, {hubFile, append(a, '\n')},
		{KeyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})}} {
		if err := write(dir, f.name, f.data); err != nil {
			return err
		}
	}
	return nil
}

type file struct {
	name string
	data []byte
}

func write(dir, name string, data []byte) error {
	path := filepath.Join(dir, name)
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return durable.Fault(fmt.Sprintf("write %q", path), err)
	}
	return nil
}

func raw(list []*x509.Certificate) [][]byte {
	out := make([][]byte, len(list))
	for i, c := range list {
		out[i] = c.Raw
	}
	return out
}

func encode(ders [][]byte) []byte {
	var b bytes.Buffer
	for _, der := range ders {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der}) // a Buffer takes all
	}
	return b.Bytes()
}

// identity is what a folder held when it was read.
type identity struct {
	about        About
	key          *ecdsa.PrivateKey
	chain, roots [][]byte // DER
	leaf         ca.Leaf
}

// load reads a folder, and holds its parts to each other. It says when a certificate has ended.
func load(dir string) (*identity, error) {
	op := fmt.Sprintf("open device directory %q", dir)
	key, err := durable.ReadPrivate(filepath.Join(dir, KeyFile), maxFile)
	if err != nil {
		if errors.Is(err, fault.ErrStateMissing) {
			return nil, fault.New(fault.Usage, "bad_file", op, errors.New("it has no key")).WithHint("palyra pair --device DIR makes one, with a code of the hub's")
		}
		return nil, err
	}
	damaged := func(name string, err error) error {
		return fault.New(fault.BadState, "bad_file", op, fmt.Errorf("%s: %w", name, err)).WithHint(again)
	}
	id := &identity{}
	b, _ := pem.Decode(key)
	if b == nil {
		return nil, damaged(KeyFile, errors.New("want PKCS #8 in PEM"))
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, damaged(KeyFile, errors.New("PKCS #8 doesn't parse")) // with none of the key
	}
	ok := false
	if id.key, ok = k.(*ecdsa.PrivateKey); !ok {
		return nil, damaged(KeyFile, errors.New("want a key for ECDSA"))
	}
	if id.roots, err = readCertificates(dir, rootsFile); err != nil {
		return nil, damaged(rootsFile, err)
	}
	if id.chain, err = readCertificates(dir, chainFile); err != nil {
		return nil, damaged(chainFile, err)
	}
	about, err := durable.ReadPrivate(filepath.Join(dir, hubFile), maxFile)
	if err != nil {
		return nil, damaged(hubFile, err)
	}
	if err := canon.Decode(about, &id.about, canon.Limits{Bytes: maxFile}); err != nil {
		return nil, damaged(hubFile, err)
	}
	if id.leaf, err = id.check(id.chain); err != nil {
		if errors.Is(err, fault.ErrCertificateExpired) {
			return nil, fault.New(fault.Denied, "peer_certificate_expired", op, err).WithHint("compare the clock; " + again)
		}
		return nil, damaged(chainFile, err)
	}
	return id, nil
}

// check judges a chain as this device's.
func (id *identity) check(chain [][]byte) (ca.Leaf, error) {
	leaf, err := ca.Verify(chain, id.roots, ca.Device, time.Now())
	if err != nil {
		return ca.Leaf{}, err
	}
	if want := (ca.Identity{Domain: id.about.Domain, Kind: ca.Device, ID: id.about.Device}); leaf.Identity != want {
		return ca.Leaf{}, fmt.Errorf("the certificate names %q, want %q", leaf.Identity, want)
	}
	spki, err := x509.MarshalPKIXPublicKey(id.key.Public())
	if err != nil {
		return ca.Leaf{}, err
	}
	if sum := sha256.Sum256(spki); leaf.KeyDigest != hex.EncodeToString(sum[:]) {
		return ca.Leaf{}, errors.New("the certificate has another key than the device's")
	}
	return leaf, nil
}

func readCertificates(dir, name string) (ders [][]byte, _ error) {
	b, err := durable.ReadPrivate(filepath.Join(dir, name), maxFile)
	if err != nil {
		return nil, err
	}
	for len(bytes.TrimSpace(b)) > 0 {
		var block *pem.Block
		if block, b = pem.Decode(b); block == nil || block.Type != "CERTIFICATE" {
			return nil, errors.New("want certificates in PEM, and nothing else")
		}
		ders = append(ders, block.Bytes)
	}
	return ders, nil
}
