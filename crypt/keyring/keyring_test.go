package keyring

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/internal/fault"
)

func private(t testing.TB) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "state")
}

func open(t testing.TB, dir string) *Ring {
	t.Helper()
	r, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestOpenTwice(t *testing.T) {
	dir := private(t)
	a := open(t, dir)
	b := open(t, dir)
	if a.Log().VKey() != b.Log().VKey() || a.Attestation().Hint() != b.Attestation().Hint() {
		t.Error("the second Open has other keys")
	}
	if !strings.HasSuffix(a.Log().Origin(), ".palyra.local") {
		t.Errorf("origin %q", a.Log().Origin())
	}
	if open(t, private(t)).Log().Origin() == a.Log().Origin() {
		t.Error("two installations share an origin")
	}
	es, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(es) != 3 || es[0].Name() != "journal" || es[1].Name() != "keys" || es[2].Name() != "trust" {
		t.Errorf("state directory holds %v", es)
	}
	for name, want := range map[string]os.FileMode{".": 0o700, "journal": 0o700, "keys": 0o700, "keys/att.key": 0o600, "keys/log.key": 0o600,
		"trust": 0o755, "trust/att.pub": 0o644, "trust/log.vkey": 0o644, "trust/trusted_root.json": 0o644} {
		fi, err := os.Stat(filepath.Join(dir, name))
		if err != nil || fi.Mode().Perm() != want {
			t.Errorf("%s: %v, %v; want %o", name, fi.Mode(), err, want)
		}
	}
}

func TestOpenAtOnce(t *testing.T) {
	dir := private(t)
	var wg sync.WaitGroup
	keys := make([]string, 8)
	for i := range keys {
		wg.Go(func() {
			r, err := Open(dir)
			if err != nil {
				t.Error(err)
				return
			}
			keys[i] = r.Log().VKey()
		})
	}
	wg.Wait()
	for _, k := range keys {
		if k != keys[0] {
			t.Fatalf("two openers have keys %s and %s", keys[0], k)
		}
	}
}

func TestOrigin(t *testing.T) {
	dir := private(t)
	r, err := OpenOptions(dir, Options{Origin: "log.example.org"})
	if err != nil {
		t.Fatal(err)
	}
	if r.Log().Origin() != "log.example.org" {
		t.Errorf("origin %q", r.Log().Origin())
	}
	if _, err := OpenOptions(dir, Options{Origin: "other.example.org"}); fault.ReasonOf(err) != "key_corrupt" || !strings.Contains(err.Error(), "the log is called") {
		t.Errorf("another origin: %v", err)
	}
	for _, bad := range []string{"a b", "a:1", "a/b", "A.example", "-a", "a..b", ".", "a+b", strings.Repeat("a", 64), "ä.example"} {
		if _, err := OpenOptions(private(t), Options{Origin: bad}); err == nil {
			t.Errorf("origin %q is accepted", bad)
		}
	}
}

// TestRefuses damages a state directory in one way each.
func TestRefuses(t *testing.T) {
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(p384)
	if err != nil {
		t.Fatal(err)
	}
	otherCurve := pem.EncodeToMemory(&pem.Block{Type: pkcs8, Bytes: der})
	edit := func(name string, f func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	chmod := func(name string, mode os.FileMode) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.Chmod(filepath.Join(dir, name), mode); err != nil {
				t.Fatal(err)
			}
		}
	}
	remove := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			if err := os.RemoveAll(filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	link := func(name string) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			if err := os.Rename(path, path+".real"); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path+".real", path); err != nil {
				t.Fatal(err)
			}
		}
	}
	flip := func(b []byte) []byte { b[len(b)/2] ^= 1; return b }
	for _, c := range []struct {
		name   string
		do     func(*testing.T, string)
		kind   fault.Kind
		reason string
	}{
		{"state open to the group", chmod(".", 0o750), fault.BadState, "unsafe_file: mode is 0750"},
		{"keys open to others", chmod("keys", 0o701), fault.BadState, "unsafe_file: mode is 0701"},
		{"att.key readable", chmod("keys/att.key", 0o644), fault.BadState, "unsafe_file: mode is 0644"},
		{"log.key writable", chmod("keys/log.key", 0o620), fault.BadState, "unsafe_file: mode is 0620"},
		{"att.key missing", remove("keys/att.key"), fault.BadState, "state_missing: /att.key\": no such file"},
		{"log.key missing", remove("keys/log.key"), fault.BadState, "state_missing: /log.key\": no such file"},
		{"att.key is a link", link("keys/att.key"), fault.BadState, "bad_file"},
		{"keys is a link", link("keys"), fault.BadState, "bad_file"},
		{"att.key flipped", edit("keys/att.key", flip), fault.Integrity, "key_corrupt"},
		{"log.key flipped", edit("keys/log.key", flip), fault.Integrity, "key_corrupt"},
		{"att.key empty", edit("keys/att.key", func([]byte) []byte { return nil }), fault.Integrity, "key_corrupt"},
		{"log.key empty", edit("keys/log.key", func([]byte) []byte { return nil }), fault.Integrity, "key_corrupt"},
		{"att.key on another curve", edit("keys/att.key", func([]byte) []byte { return otherCurve }), fault.Integrity, "key_corrupt"},
		{"att.key with text after", edit("keys/att.key", func(b []byte) []byte { return append(b, "x\n"...) }), fault.Integrity, "key_corrupt"},
		{"log.key renamed", edit("keys/log.key", func(b []byte) []byte { return bytes.Replace(b, []byte("palyra"), []byte("palyrb"), 1) }), fault.Integrity, "key_corrupt"},
		{"log.key huge", edit("keys/log.key", func([]byte) []byte { return make([]byte, 1<<20) }), fault.BadState, "too_large"},
		{"att.pub of another", edit("trust/att.pub", flip), fault.Integrity, "trust_corrupt: does not belong"},
		{"log.vkey of another", edit("trust/log.vkey", flip), fault.Integrity, "trust_corrupt: does not belong"},
		{"trusted_root of another", edit("trust/trusted_root.json", flip), fault.Integrity, "trust_corrupt: does not belong"},
		{"keys gone, journal there", remove("keys"), fault.BadState, "state_missing: a journal but no keys"},
		{"journal gone, keys there", remove("journal"), fault.BadState, "state_missing: keys but no journal"},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := private(t)
			open(t, dir)
			c.do(t, dir)
			_, err := Open(dir)
			reason, text, _ := strings.Cut(c.reason, ": ") // of one reason there are several
			if fault.KindOf(err) != c.kind || fault.ReasonOf(err) != reason || !strings.Contains(err.Error(), text) {
				t.Fatalf("open: %v (%s), want %s", err, fault.ReasonOf(err), c.reason)
			}
			key, _ := os.ReadFile(filepath.Join(dir, "keys", "log.key"))
			// PRIVATE+KEY+name+hash+base64, and base64 has a plus of its own.
			if f := strings.SplitN(strings.TrimSpace(string(key)), "+", 5); len(f) == 5 && strings.Contains(err.Error(), f[4]) {
				t.Errorf("the error holds the key: %v", err)
			}
		})
	}
}

// TestMissingTrust: public halves are made again.
func TestMissingTrust(t *testing.T) {
	dir := private(t)
	r := open(t, dir)
	if err := os.RemoveAll(filepath.Join(dir, "trust")); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
	b, err := os.ReadFile(filepath.Join(dir, "trust", "log.vkey"))
	if err != nil || string(b) != r.Log().VKey()+"\n" {
		t.Errorf("log.vkey %q, %v", b, err)
	}
}

// TestOwner opens another user's directory.
func TestOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: gives a file away")
	}
	dir := private(t)
	open(t, dir)
	for _, name := range []string{"keys/att.key", "keys", "."} {
		if err := os.Chown(filepath.Join(dir, name), 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(dir); fault.ReasonOf(err) != "unsafe_file" {
			t.Errorf("%s belongs to another user: %v", name, err)
		}
		if err := os.Chown(filepath.Join(dir, name), 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKeysDoNotPrint: no verb shows the private half.
func TestKeysDoNotPrint(t *testing.T) {
	r := open(t, private(t))
	seed := r.log.priv.Seed()
	d, err := r.att.priv.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		for _, k := range []any{r.att, r.log} {
			s := fmt.Sprintf(verb, k)
			for _, secret := range [][]byte{seed, d} {
				if strings.Contains(s, fmt.Sprintf("%x", secret[:8])) || strings.Contains(s, fmt.Sprint(secret[:8])[1:20]) {
					t.Errorf("%s of %T shows the key", verb, k)
				}
			}
		}
	}
	if b, err := json.Marshal([]any{r.log, r.att}); err == nil && bytes.Contains(b, []byte("priv")) {
		t.Errorf("JSON shows %s", b)
	}
}

func TestSignStatementRefuses(t *testing.T) {
	k := open(t, private(t)).Attestation()
	for _, p := range []string{"", "hello", `{"subject":[]}`, ` {"_type":"https://in-toto.io/Statement/v1",`, `{"_type":"https://in-toto.io/Statement/v0.1","x":1}`} {
		if _, _, err := k.SignStatement([]byte(p)); err == nil {
			t.Errorf("signed %q", p)
		}
	}
	payload := []byte(`{"_type":"https://in-toto.io/Statement/v1","a":1}`)
	sig, _, err := k.SignStatement(payload)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := k.SignStatement(payload)
	if err != nil || !bytes.Equal(sig, again) {
		t.Errorf("signatures differ: %v", err)
	}
	if !VerifyStatement(k.SPKI(), payload, sig) {
		t.Error("own signature does not verify")
	}
	if VerifyStatement(k.SPKI(), append(payload, ' '), sig) || VerifyStatement(k.SPKI()[1:], payload, sig) {
		t.Error("verifies what was not signed")
	}
}

// TestPAE is the example of the DSSE specification.
func TestPAE(t *testing.T) {
	got := PAEDigest("http://example.com/HelloWorld", []byte("hello world"))
	if want := sha256.Sum256([]byte("DSSEv1 29 http://example.com/HelloWorld 11 hello world")); got != want {
		t.Errorf("PAE's digest is %x, want %x", got, want)
	}
}

func FuzzLogKey(f *testing.F) {
	k, err := newLogKey("log.example.org")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(k.encode())
	f.Add([]byte("PRIVATE+KEY" + "+a+00000000+AQ==\n"))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if k, err := parseLogKey(b); err == nil && !bytes.Equal(k.encode(), b) {
			t.Fatalf("%q parses and is written as %q", b, k.encode())
		}
	})
}

func FuzzVKey(f *testing.F) {
	k, err := newLogKey("log.example.org")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(k.VKey())
	f.Add("a+00000000+AQ==")
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := ParseVKey(s); err == nil && p.VKey() != s {
			t.Fatalf("%q parses and is written as %q", s, p.VKey())
		}
	})
}

func FuzzPublicPEM(f *testing.F) {
	k, err := newAttestationKey()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(k.PublicPEM())
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if spki, err := ParsePublicPEM(b); err == nil && !bytes.Equal(encodePublicPEM(spki), b) {
			t.Fatalf("%q is not the one form of this key", b)
		}
	})
}

// TestSigned: exactly the note of this tree by this key.
func TestSigned(t *testing.T) {
	k, other := open(t, private(t)).Log(), open(t, private(t)).Log()
	root := [32]byte{1}
	note := k.SignCheckpoint(7, root)
	if !k.Signed(note, 7, root) {
		t.Error("does not know its own note")
	}
	changed := bytes.Clone(note)
	changed[len(changed)-9] ^= 1
	for name, got := range map[string]bool{
		"another size": k.Signed(note, 8, root), "another root": k.Signed(note, 7, [32]byte{2}), "another key": other.Signed(note, 7, root),
		"another signature": k.Signed(changed, 7, root), "a byte more": k.Signed(append(bytes.Clone(note), '\n'), 7, root), "nothing": k.Signed(nil, 7, root),
	} {
		if got {
			t.Errorf("takes the note of %s for its own", name)
		}
	}
}

func BenchmarkSignStatement(b *testing.B) {
	k := open(b, private(b)).Attestation()
	payload := append([]byte(statementStart), bytes.Repeat([]byte("x"), 4500)...)
	for b.Loop() {
		if _, _, err := k.SignStatement(payload); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkSignCheckpoint(b *testing.B) {
	k := open(b, private(b)).Log()
	for b.Loop() {
		k.SignCheckpoint(1234567, [32]byte{1})
	}
}

func BenchmarkOpen(b *testing.B) {
	dir := private(b)
	open(b, dir)
	for b.Loop() {
		open(b, dir)
	}
}
