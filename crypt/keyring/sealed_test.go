package keyring

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/seal"
	"palyra/internal/fault"
)

// owner makes an identity, how to open with it, and its recipient.
func owner(t *testing.T, label string) (Unlock, *seal.PublicKey) {
	t.Helper()
	id, err := seal.NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	p, err := id.Recipient(label)
	if err != nil {
		t.Fatal(err)
	}
	line := id.Encode()
	return func() (seal.Identity, error) { return seal.ParseIdentity(line) }, p
}

func sealedHouse(t *testing.T) (dir string, unlock Unlock, to *seal.PublicKey, r *Ring) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "state")
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	unlock, to = owner(t, "owner")
	if got := fmt.Sprint(r.Plain()); got != "[att.key log.key]" {
		t.Errorf("plain: %s", got)
	}
	if err := r.Seal(dir, []*seal.PublicKey{to}, func(string) {}); err != nil {
		t.Fatal(err)
	}
	return dir, unlock, to, r
}

// TestSealed: sealed keys open for a recipient alone, are the same keys, and unseal to the same
// bytes.
func TestSealed(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "state")
	if _, err := Open(plain); err != nil {
		t.Fatal(err)
	}
	dir, unlock, to, was := sealedHouse(t)
	for _, name := range []string{attFile, logFile} {
		b, err := os.ReadFile(filepath.Join(dir, keysDir, name))
		if err != nil || bytes.Contains(b, []byte("PRIVATE")) || !isSealed(b) {
			t.Errorf("%s: %q, %v", name, b[:min(len(b), 60)], err)
		}
		if fi, err := os.Stat(filepath.Join(dir, keysDir, name)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}
	r, err := OpenOptions(dir, Options{Unlock: unlock})
	if err != nil {
		t.Fatal(err)
	}
	if r.att.Hint() != was.att.Hint() || r.log.VKey() != was.log.VKey() || len(r.Plain()) != 0 || len(r.Recipients()) != 1 || r.Recipients()[0].ID() != to.ID() {
		t.Errorf("opened %v %v, plain %v, for %v", r.att, r.log, r.Plain(), r.Recipients())
	}
	other, _ := owner(t, "other")
	for name, o := range map[string]Options{"no identity": {}, "a stranger": {Unlock: other}} {
		if _, err := OpenOptions(dir, o); fault.ReasonOf(err) != "keys_locked" || fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	// The next key is sealed as this one.
	next, err := r.PrepareNext(dir, func(string) {})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(dir, keysDir, nextFile)); err != nil || !isSealed(b) {
		t.Errorf("next key: %v", err)
	}
	if r, err = OpenOptions(dir, Options{Unlock: unlock}); err != nil || r.Next() == nil || r.Next().Hint() != next.Hint() {
		t.Fatalf("next key: %v", err)
	}
	// Promoted, it opens in its new place.
	if err := os.Rename(filepath.Join(dir, keysDir, nextFile), filepath.Join(dir, keysDir, attFile)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenOptions(dir, Options{Unlock: unlock}); fault.ReasonOf(err) != "trust_corrupt" { // which alone is behind
		t.Errorf("promoted key: %v", err)
	}
	if err := r.Seal(dir, nil, func(string) {}); err != nil {
		t.Fatal(err)
	}
	a, _ := os.ReadFile(filepath.Join(dir, keysDir, attFile))
	if want, err := was.att.encode(); err != nil || !bytes.Equal(a, want) {
		t.Errorf("unsealed: %v", err)
	}
}

// TestSealedRefused: a sealed key in another's place, and every changed byte.
func TestSealedRefused(t *testing.T) {
	dir, unlock, to, was := sealedHouse(t)
	path := filepath.Join(dir, keysDir, attFile)
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	try := func(b []byte) error {
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenOptions(dir, Options{Unlock: unlock})
		return err
	}
	if err := try(good); err != nil {
		t.Fatalf("control: %v", err)
	}
	stranger, err := newAttestationKey()
	if err != nil {
		t.Fatal(err)
	}
	plain, err := stranger.encode()
	if err != nil {
		t.Fatal(err)
	}
	lie, err := SealFile(purposeAttestation, was.att.Hint(), plain, []*seal.PublicKey{to})
	if err != nil {
		t.Fatal(err)
	}
	log, err := os.ReadFile(filepath.Join(dir, keysDir, logFile))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{
		"another key under this name": lie,
		"the log's key":               log,
		"space":                       append([]byte(" "), good...),
		"space inside":                bytes.Replace(good, []byte(`{"name"`), []byte(`{ "name"`), 1),
		"another version":             bytes.Replace(good, []byte(`"version":1}`), []byte(`"version":2}`), 1),
		"cut":                         good[:len(good)-1],
		"empty":                       {},
		"a brace":                     []byte("{"),
		"another label":               bytes.Replace(good, []byte(`"label":"owner"`), []byte(`"label":"ownes"`), 1),
		"another name":                bytes.Replace(good, []byte(was.att.Hint()), []byte(stranger.Hint()), 1),
	} {
		if bytes.Equal(b, good) {
			t.Errorf("%s: changes nothing", name)
		}
		if err := try(b); fault.ReasonOf(err) != "key_corrupt" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for i := range 200 { // one character of base64 or of a name each
		at := len(good) * i / 200
		b := bytes.Clone(good)
		if b[at] ^= 1; b[at] == '\n' {
			continue
		}
		err := try(b)
		if r := fault.ReasonOf(err); r != "key_corrupt" && r != "keys_locked" {
			t.Errorf("byte %d changed: %v", at, err)
		}
		if err != nil && strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("byte %d changed: the error tells the key", at)
		}
	}
	if _, err := SealFile(purposeAttestation, "n", plain, nil); err == nil {
		t.Error("sealed for no one")
	}
	if _, err := SealFile(purposeAttestation, "n", plain, []*seal.PublicKey{to, to}); err == nil {
		t.Error("sealed for one recipient twice")
	}
}

// FuzzSealedKey: no file of a key makes Open panic, and none but the sealed one opens.
func FuzzSealedKey(f *testing.F) {
	id, err := seal.NewIdentity()
	if err != nil {
		f.Fatal(err)
	}
	to, err := id.Recipient("owner")
	if err != nil {
		f.Fatal(err)
	}
	k, err := newAttestationKey()
	if err != nil {
		f.Fatal(err)
	}
	plain, err := k.encode()
	if err != nil {
		f.Fatal(err)
	}
	good, err := SealFile(purposeAttestation, k.Hint(), plain, []*seal.PublicKey{to})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"name":"","recipients":[],"value":"","version":1}` + "\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, _, _, err := unsealKey("keys/"+attFile, purposeAttestation, b, id)
		if (err == nil) != bytes.Equal(b, good) {
			t.Errorf("opened %d bytes: %v", len(got), err)
		}
	})
}
