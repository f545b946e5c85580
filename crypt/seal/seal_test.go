package seal

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"palyra/internal/fault"
)

var update = flag.Bool("update", false, "write new sealed values into conformance/vectors/seal")

const vectorDir = "../../conformance/vectors/seal"

var testContext = Context{Purpose: "record", Scope: "principal:uid:1000", Name: "token", Version: 3, Generation: 2}

func testKey(t testing.TB, b byte) *Key {
	t.Helper()
	k, err := ParseKey(bytes.Repeat([]byte{b}, 32))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Wipe)
	return k
}

func mustSeal(t testing.TB, k *Key, c Context, v []byte) []byte {
	t.Helper()
	b, err := Seal(k, c, v)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSealOpen(t *testing.T) {
	k := NewKey()
	defer k.Wipe()
	sizes := map[int]bool{}
	for _, n := range []int{0, 1, 8, 252, 253, 16 << 10, 64 << 10, 1<<20 + 1} {
		v := bytes.Repeat([]byte{'v'}, n)
		b := mustSeal(t, k, testContext, v)
		sizes[len(b)] = true
		got, err := Open(k, testContext, b)
		if err != nil || !bytes.Equal(got.Bytes(), v) {
			t.Fatalf("%d bytes: %v", n, err)
		}
		got.Wipe()
		got.Wipe()
		if len(got.Bytes()) != 0 {
			t.Error("bytes after Wipe")
		}
	}
	if len(sizes) != 5 { // 0, 1, 8 and 252 look the same
		t.Errorf("%d lengths of sealed values, want 5", len(sizes))
	}
	if _, err := Seal(k, testContext, make([]byte, MaxValue+1)); fault.KindOf(err) != fault.Usage {
		t.Errorf("seal too much: %v", err)
	}
}

// TestContextBinds changes each part of the context, and shifts bytes between neighbours.
func TestContextBinds(t *testing.T) {
	k := testKey(t, 1)
	b := mustSeal(t, k, testContext, []byte("value"))
	for name, c := range map[string]func(*Context){
		"purpose": func(c *Context) { c.Purpose = "index" }, "scope": func(c *Context) { c.Scope = "global" },
		"name": func(c *Context) { c.Name = "tokem" }, "version": func(c *Context) { c.Version = 2 },
		"generation": func(c *Context) { c.Generation = 3 },
		"shifted":    func(c *Context) { c.Scope, c.Name = c.Scope+"t", c.Name[1:] },
		"swapped":    func(c *Context) { c.Scope, c.Name = c.Name, c.Scope },
		"numbers":    func(c *Context) { c.Version, c.Generation = c.Generation, c.Version },
	} {
		other := testContext
		c(&other)
		if s, err := Open(k, other, b); !errors.Is(err, ErrSealed) || s != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := Open(testKey(t, 2), testContext, b); !errors.Is(err, ErrSealed) {
		t.Errorf("other key: %v", err)
	}
	for _, b := range [][]byte{nil, []byte("value"), []byte(magic), b[1:], append([]byte("palyra-seal/2\n"), b[len(magic):]...)} {
		if _, err := Open(k, testContext, b); fault.KindOf(err) != fault.Integrity {
			t.Errorf("%d bytes: %v", len(b), err)
		}
	}
}

// TestMasks prints secrets in each way that a log or an error would.
func TestMasks(t *testing.T) {
	const plain = "hunter2hunter2"
	s := NewSecret([]byte(plain))
	k := testKey(t, 'k')
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPassphrase("p", []byte(plain))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	log := slog.New(slog.NewJSONHandler(&out, nil))
	text := slog.New(slog.NewTextHandler(&out, nil))
	secrets := []any{s, *s, k, *k, id, *id, p, *p, struct{ S *Secret }{s}, &struct{ K *Key }{k}, []*Secret{s}, struct{ s Secret }{*s}, struct{ k *Key }{k}, map[string]Secret{"a": *s}}
	for _, v := range secrets {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&out, verb, v)
		}
		b, err := json.Marshal(v)
		out.Write(b)
		if err != nil {
			t.Errorf("%T: %v", v, err)
		}
		log.Info("x", "v", v)
		text.Info("x", "v", v)
	}
	for _, enc := range []string{plain, fmt.Sprintf("%x", plain), fmt.Sprint([]byte(plain)), "kkkk", "107 107", fmt.Sprintf("%x", id.s.Bytes()), fmt.Sprint(id.s.Bytes())} {
		if strings.Contains(out.String(), enc) {
			t.Errorf("printed as %.20q", enc)
		}
	}
	if !strings.Contains(out.String(), Mask) {
		t.Error("no mask was printed")
	}
}

func TestRecipients(t *testing.T) {
	kek := NewKey()
	want := bytes.Clone(kek.Bytes())
	c := Context{Purpose: "key", Scope: "vault", Generation: 1}
	id, err := NewIdentity()
	if err != nil {
		t.Fatal(err)
	}
	other, _ := NewIdentity()
	pub, err := id.Recipient("owner")
	if err != nil {
		t.Fatal(err)
	}
	if pub, err = ParseRecipient("owner", pub.Encode()); err != nil {
		t.Fatal(err)
	}
	if id, err = ParseIdentity(id.Encode()); err != nil {
		t.Fatal(err)
	}
	pass, _ := NewPassphrase("words", []byte("correct horse battery"))
	wrong, _ := NewPassphrase("words", []byte("correct horse batterz"))
	for _, x := range []struct {
		r     Recipient
		mine  Identity
		wrong Identity
		cross Identity
	}{{pub, id, other, pass}, {pass, pass, wrong, id}} {
		s, err := x.r.Wrap(kek, c)
		if err != nil {
			t.Fatal(err)
		}
		got, err := x.mine.Unwrap(s, c)
		if err != nil || !bytes.Equal(got.Bytes(), want) {
			t.Fatalf("%s: %v", s.Type, err)
		}
		for _, i := range []Identity{x.wrong, x.cross} {
			if _, err := i.Unwrap(s, c); !errors.Is(err, ErrOther) {
				t.Errorf("%s: another identity: %v", s.Type, err)
			}
		}
		d := c
		d.Generation = 2
		if _, err := x.mine.Unwrap(s, d); err == nil {
			t.Errorf("%s: unwrapped for another generation", s.Type)
		}
		s.Body[len(s.Body)-1] ^= 1
		if _, err := x.mine.Unwrap(s, c); err == nil {
			t.Errorf("%s: unwrapped although changed", s.Type)
		}
	}
}

// TestCostIsCapped requires that a foreign file makes no reader compute for long.
func TestCostIsCapped(t *testing.T) {
	p, _ := NewPassphrase("words", []byte("correct horse battery"))
	for _, c := range []Cost{{make([]byte, 16), 1000, 64 << 10, 4}, {make([]byte, 16), 3, 1 << 30, 4}, {make([]byte, 16), 3, 64 << 10, 255}, {nil, 3, 64 << 10, 4}, {}, {make([]byte, 16), -1, -1, -1}} {
		if _, err := p.Unwrap(&Stanza{Type: TypePassphrase, Label: "x", Cost: &c, Body: []byte("x")}, Context{}); fault.KindOf(err) != fault.Integrity {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if _, err := NewPassphrase("x", []byte("short")); fault.KindOf(err) != fault.Usage {
		t.Errorf("short passphrase: %v", err)
	}
}

// vectors: a file has header lines, an empty line, and the sealed bytes in base64. The key is 32
// bytes of the same value.
func TestVectors(t *testing.T) {
	if *update {
		writeVectors(t)
	}
	files, err := filepath.Glob(vectorDir + "/*.txt")
	if err != nil || len(files) < 8 {
		t.Fatalf("%d vectors: %v", len(files), err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, body, _ := strings.Cut(string(b), "\n\n")
		h := map[string]string{}
		for line := range strings.SplitSeq(head, "\n") {
			k, v, _ := strings.Cut(line, ": ")
			h[k] = v
		}
		number := func(name string) uint64 {
			n, err := strconv.ParseUint(h[name], 10, 64)
			if err != nil {
				t.Fatalf("%s: %s: %v", f, name, err)
			}
			return n
		}
		sealed, err := base64.StdEncoding.DecodeString(strings.TrimSpace(body))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		c := Context{h["purpose"], h["scope"], h["name"], number("version"), number("generation")}
		s, err := Open(testKey(t, byte(number("key"))), c, sealed)
		got := "refused"
		if err == nil {
			got = fmt.Sprintf("value %q", s.Bytes())
			s.Wipe()
		}
		if got != h["expect"] {
			t.Errorf("%s: %s, want %s: %v", filepath.Base(f), got, h["expect"], err)
		}
	}
}

func writeVectors(t *testing.T) {
	k := testKey(t, 1)
	good := mustSeal(t, k, testContext, []byte("a secret value"))
	changed := func(at int) []byte {
		b := bytes.Clone(good)
		b[at] ^= 1
		return b
	}
	version := testContext
	version.Version = 4
	scope := testContext
	scope.Scope = "principal:uid:1001"
	purpose := testContext
	purpose.Purpose = "index"
	for name, v := range map[string]struct {
		key    int
		c      Context
		expect string
		b      []byte
	}{
		"good":          {1, testContext, `value "a secret value"`, good},
		"good-empty":    {1, testContext, `value ""`, mustSeal(t, k, testContext, nil)},
		"other-key":     {2, testContext, "refused", good},
		"other-version": {1, version, "refused", good},
		"other-scope":   {1, scope, "refused", good},
		"other-purpose": {1, purpose, "refused", good},
		"magic":         {1, testContext, "refused", changed(len(magic) - 2)},
		"commitment":    {1, testContext, "refused", changed(len(magic) + 30)},
		"tag":           {1, testContext, "refused", changed(len(good) - 1)},
		"cut":           {1, testContext, "refused", good[:len(good)-1]},
		"plain":         {1, testContext, "refused", []byte("a secret value")},
	} {
		text := fmt.Sprintf("kind: seal\nexpect: %s\nkey: %d\npurpose: %s\nscope: %s\nname: %s\nversion: %d\ngeneration: %d\nencoding: base64\n\n%s\n",
			v.expect, v.key, v.c.Purpose, v.c.Scope, v.c.Name, v.c.Version, v.c.Generation, base64.StdEncoding.EncodeToString(v.b))
		if err := os.MkdirAll(vectorDir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(vectorDir, name+".txt"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func FuzzOpen(f *testing.F) {
	k := testKey(f, 1)
	f.Add(mustSeal(f, k, testContext, []byte("a secret value")))
	f.Add([]byte(magic))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := Open(k, testContext, b)
		if err == nil {
			s.Wipe()
		} else if s != nil || fault.KindOf(err) != fault.Integrity {
			t.Fatalf("refused with %v", err)
		}
	})
}

// FuzzLines wants that the keys of a file have one spelling.
func FuzzLines(f *testing.F) {
	id, err := NewIdentity()
	if err != nil {
		f.Fatal(err)
	}
	pub, _ := id.Recipient("x")
	f.Add(id.Encode())
	f.Add(pub.Encode())
	f.Fuzz(func(t *testing.T, b []byte) {
		if id, err := ParseIdentity(b); err == nil {
			if !bytes.Equal(id.Encode(), b) {
				t.Fatal("identity of two spellings")
			}
			id.Wipe()
		}
		if p, err := ParseRecipient("x", b); err == nil && !bytes.Equal(p.Encode(), b) {
			t.Fatal("recipient of two spellings")
		}
	})
}

func BenchmarkSealOpen64KiB(b *testing.B) {
	k := NewKey()
	v := make([]byte, 64<<10)
	b.SetBytes(int64(len(v)))
	for b.Loop() {
		s, err := Seal(k, testContext, v)
		if err != nil {
			b.Fatal(err)
		}
		o, err := Open(k, testContext, s)
		if err != nil {
			b.Fatal(err)
		}
		o.Wipe()
	}
}

func BenchmarkUnwrap(b *testing.B) {
	k := NewKey()
	id, _ := NewIdentity()
	pub, _ := id.Recipient("x")
	pass, _ := NewPassphrase("x", []byte("correct horse battery"))
	for name, x := range map[string]struct {
		Recipient
		Identity
	}{TypeHPKE: {pub, id}, TypePassphrase: {pass, pass}} {
		s, err := x.Wrap(k, testContext)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				got, err := x.Unwrap(s, testContext)
				if err != nil {
					b.Fatal(err)
				}
				got.Wipe()
			}
		})
	}
}
