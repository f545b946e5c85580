package ca

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// A Keeper says what the file of a private key holds. The purpose is of the key's kind alone, and
// the name is "sha256:" and the digest of its SubjectPublicKeyInfo.
type Keeper interface {
	// Seal returns the content for a plain one.
	Seal(purpose, name string, plain []byte) ([]byte, error)
	// Open returns the plain content, which the caller wipes, and the name that it was sealed
	// under, "" if it wasn't.
	Open(path, purpose string, content []byte) (plain []byte, name string, err error)
}

// PlainKeys keeps keys as they are, for everyone who may read the file.
type PlainKeys struct{}

var _ Keeper = PlainKeys{}

// Seal implements Keeper.
func (PlainKeys) Seal(_, _ string, plain []byte) ([]byte, error) { return bytes.Clone(plain), nil }

// Open implements Keeper.
func (PlainKeys) Open(path, _ string, content []byte) ([]byte, string, error) {
	if isSealed(content) {
		return nil, "", fault.New(fault.Denied, "keys_locked", fmt.Sprintf("read key %q", path), errors.New("it is sealed, and no identity was given")).
			WithHint("name the identity: palyra --key FILE, palyrad keys.identity")
	}
	return bytes.Clone(content), "", nil
}

// isSealed tells the JSON of a sealed key from PEM.
func isSealed(b []byte) bool { return bytes.HasPrefix(b, []byte("{")) }

// The purposes under which keys are sealed.
const (
	purposeRoot   = "keys/ca-root"
	purposeIssuer = "keys/ca-issuer"
)

// purposeOf returns the purpose of a key's file.
func purposeOf(name string) string {
	if strings.HasPrefix(name, issuerPrefix) {
		return purposeIssuer
	}
	return purposeRoot
}

// stepName names a key's file in the steps of crash tests, where an issuer's digits differ each
// time.
func stepName(name string) string {
	if strings.HasPrefix(name, issuerPrefix) {
		return "issuer" + keySuffix
	}
	return name
}

// maxKeyFile bounds a key's file, which may be sealed, in bytes.
const maxKeyFile = 128 << 10

const pkcs8 = "PRIVATE" + " KEY" // in two pieces: scanners look for the whole

// writeKey is the one place that writes a new private key of the authority.
func (a *Authority) writeKey(name, purpose string, key *ecdsa.PrivateKey) error {
	path := filepath.Join(a.dir, name)
	op := fmt.Sprintf("write key %q", path)
	plain, err := encodeKey(key)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	defer clear(plain)
	public, err := keyName(&key.PublicKey)
	if err != nil {
		return fault.New(fault.Internal, "internal", op, err)
	}
	b, err := a.o.keys().Seal(purpose, public, plain)
	if err != nil {
		return err
	}
	defer clear(b)
	return durable.Fault(op, durable.WriteFileSteps(path, b, 0o600, func(s string) { a.o.step(stepName(name) + ":" + s) }))
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	defer clear(der)
	return pem.EncodeToMemory(&pem.Block{Type: pkcs8, Bytes: der}), nil
}

func keyName(pub *ecdsa.PublicKey) (string, error) {
	spki, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return "", err
	}
	return "sha256:" + digestOf(spki), nil
}

// readKey reads a private key of the authority to use it: the one whose public half is pub.
func (a *Authority) readKey(name, purpose string, pub *ecdsa.PublicKey) (*ecdsa.PrivateKey, error) {
	path := filepath.Join(a.dir, name)
	key, _, plain, err := openKey(path, purpose, a.o.keys())
	clear(plain)
	if err != nil {
		return nil, err
	}
	if !key.PublicKey.Equal(pub) {
		return nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("read key %q", path), errors.New("isn't the key of its certificate"))
	}
	return key, nil
}

// openKey is the one place that reads a private key of the authority. It returns the key's name and
// its plain content, too, which the caller wipes. Its errors never hold key material.
func openKey(path, purpose string, keys Keeper) (key *ecdsa.PrivateKey, name string, plain []byte, err error) {
	b, err := durable.ReadPrivate(path, maxKeyFile)
	if err != nil {
		return nil, "", nil, err
	}
	defer clear(b)
	plain, sealed, err := keys.Open(path, purpose, b)
	if err != nil {
		return nil, "", nil, err
	}
	if key, err = parseKey(plain); err == nil {
		name, err = keyName(&key.PublicKey)
	}
	if err == nil && sealed != "" && sealed != name {
		err = errors.New("it is sealed under the name of another key")
	}
	if err != nil {
		clear(plain)
		return nil, "", nil, fault.New(fault.Integrity, "key_corrupt", fmt.Sprintf("read key %q", path), err)
	}
	return key, name, plain, nil
}

// parseKey reads the one spelling that encodeKey writes.
func parseKey(b []byte) (*ecdsa.PrivateKey, error) {
	blk, _ := pem.Decode(b)
	if blk == nil {
		return nil, errors.New("want one PEM block of PKCS #8")
	}
	defer clear(blk.Bytes)
	p, err := x509.ParsePKCS8PrivateKey(blk.Bytes)
	if err != nil {
		return nil, errors.New("PKCS #8 does not parse")
	}
	key, ok := p.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("want ECDSA on P-256")
	}
	again, err := encodeKey(key)
	defer clear(again)
	if err != nil || !bytes.Equal(again, b) {
		return nil, errors.New("not in its canonical encoding")
	}
	return key, nil
}

// keyFiles returns the names of the files of private keys below ca/, sorted; none if there is no
// authority.
func keyFiles(dir string) (names []string, err error) {
	es, err := os.ReadDir(filepath.Join(dir, caDir))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for _, e := range es { // sorted by name
		if n := e.Name(); strings.HasSuffix(n, keySuffix) && !durable.IsTemp(n) {
			names = append(names, n)
		}
	}
	return names, err
}

// Plain returns the files of the state directory dir that hold a private key of the authority
// plain, as paths below it, sorted. One that can't be read counts as plain.
func Plain(dir string) []string {
	names, err := keyFiles(dir)
	if err != nil {
		return []string{caDir}
	}
	plain := slices.DeleteFunc(names, func(n string) bool {
		b, err := durable.ReadPrivate(filepath.Join(dir, caDir, n), maxKeyFile)
		defer clear(b)
		return err == nil && isSealed(b) || errors.Is(err, fs.ErrNotExist) // an issuer's was replaced meanwhile
	})
	for i, n := range plain {
		plain[i] = caDir + "/" + n
	}
	return plain
}

// Reseal writes the private keys of the authority of the state directory dir as keys keeps them
// now, one file after the other; without an authority it does nothing. A crash leaves some as they
// were, which open all the same. The plain keys may stay on the disk's free blocks, in snapshots
// and in backups. step is called after each change.
func Reseal(ctx context.Context, dir string, keys Keeper, step func(string)) error {
	release, err := hold(ctx, dir) // first: Create may have written keys that aren't there yet
	if err != nil {
		return err
	}
	defer release()
	names, err := keyFiles(dir)
	if err != nil {
		return durable.Fault("list the authority's keys", err)
	}
	for _, n := range names {
		if err := reseal(filepath.Join(dir, caDir, n), keys, func(s string) { step("seal:" + stepName(n) + ":" + s) }); err != nil {
			return err
		}
	}
	return nil
}

func reseal(path string, keys Keeper, step func(string)) error {
	purpose := purposeOf(filepath.Base(path))
	_, name, plain, err := openKey(path, purpose, keys)
	if err != nil {
		return err
	}
	defer clear(plain)
	b, err := keys.Seal(purpose, name, plain)
	if err != nil {
		return err
	}
	defer clear(b)
	return durable.Fault(fmt.Sprintf("write key %q", path), durable.WriteFileSteps(path, b, 0o600, step))
}
