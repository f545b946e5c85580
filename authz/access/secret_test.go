package access

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

func TestTokenForm(t *testing.T) {
	id, secret := tokenID{0xde, 0xad}, [32]byte{0xbe, 0xef}
	const want = "palyra_dead0000000000000000000000000000_x3xqaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa_"
	got := format(id, secret)
	if !strings.HasPrefix(got, want) || len(got) != tokenLen || tokenLen != 100 {
		t.Errorf("%q, %d characters", got, len(got))
	}
	gotID, gotSecret, err := parse(got)
	if err != nil || gotID != id || gotSecret != secret {
		t.Errorf("%v %v %v", gotID, gotSecret, err)
	}
	if !looksLikeToken(got) || looksLikeToken(want) {
		t.Error("looksLikeToken is wrong")
	}
}

// TestTypos changes each character to each other one: no token results.
func TestTypos(t *testing.T) {
	_, _, s := newSecret()
	text := s.Reveal()
	for i := range len(text) {
		for _, c := range []byte("_0289abzAZ \n\x00\xff") {
			if c == text[i] {
				continue
			}
			if bad := text[:i] + string([]byte{c}) + text[i+1:]; looksLikeToken(bad) {
				t.Errorf("%q passes for a token", bad)
			}
		}
		if i > 0 && text[i] != text[i-1] {
			if bad := text[:i-1] + string([]byte{text[i], text[i-1]}) + text[i+1:]; looksLikeToken(bad) {
				t.Errorf("with two swapped: %q passes for a token", bad)
			}
		}
	}
}

// TestSecretsDoNotPrint: neither a token nor the key gets into a log by accident.
func TestSecretsDoNotPrint(t *testing.T) {
	_, secret, s := newSecret()
	k := Key{b: secret}
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		out := fmt.Sprintf(verb+verb, s, k) + fmt.Sprintf(verb, &s) + fmt.Sprintf(verb, struct{ X any }{s})
		if strings.Contains(out, s.Reveal()[len(tokenMark)+idLen+1:][:20]) || strings.Contains(out, fmt.Sprintf("%x", secret[:8])) {
			t.Errorf("%s prints %s", verb, out)
		}
	}
	if b, err := json.Marshal(s); err != nil || strings.Contains(string(b), s.Reveal()[len(tokenMark)+idLen+1:][:20]) {
		t.Errorf("as JSON: %s, %v", b, err)
	}
	if b, err := json.Marshal(Token{Hash: secret}); err != nil || strings.Contains(strings.ToLower(string(b)), "hash") {
		t.Errorf("a token's hash as JSON: %s, %v", b, err)
	}
}

func TestKey(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	a, err := OpenKey(path)
	if fault.KindOf(err) == fault.Unsupported {
		t.Skip("needs linux: the owner of a file")
	}
	must(t, err)
	b, err := OpenKey(path)
	if err != nil || a != b || a == (Key{}) {
		t.Fatalf("second time: %v", err)
	}
	id, secret, _ := newSecret()
	if a.hash(id, secret) == (Key{}).hash(id, secret) {
		t.Error("the hash does not depend on the key")
	}
	other := id
	other[0]++
	if a.hash(id, secret) == a.hash(other, secret) {
		t.Error("the hash does not depend on the id")
	}
	good, err := os.ReadFile(path)
	must(t, err)
	for _, bad := range []string{"", string(good[1:]), strings.ToUpper(string(good)), string(good) + "\n", "zz" + string(good[2:])} {
		if bad == string(good) {
			continue
		}
		must(t, os.WriteFile(path, []byte(bad), 0o600))
		if _, err := OpenKey(path); fault.ReasonOf(err) != "key_corrupt" && fault.ReasonOf(err) != "too_large" {
			t.Errorf("%q: %v", bad, err)
		}
	}
	must(t, os.Chmod(path, 0o644))
	_, err = OpenKey(path)
	wants(t, err, fault.BadState, "unsafe_file")
}

// FuzzParseToken: what parses has one spelling, and errors tell nothing.
func FuzzParseToken(f *testing.F) {
	id, secret := tokenID{1, 2, 3}, [32]byte{4, 5, 6}
	good := format(id, secret)
	for _, s := range []string{good, "", "palyra_", good[:50], good + "\n", strings.ToUpper(good), strings.Replace(good, "a", "\n", 1),
		strings.Repeat("_", tokenLen), "palyra_" + strings.Repeat("a", 93)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		id, secret, err := parse(s)
		if err != nil {
			if fault.KindOf(err) != fault.Denied || fault.ReasonOf(err) != "unauthenticated" {
				t.Errorf("%v", err)
			}
			if len(s) > 10 && strings.Contains(err.Error(), s[7:]) {
				t.Errorf("the error repeats the input: %v", err)
			}
			return
		}
		if format(id, secret) != s {
			t.Errorf("%q has a second spelling", s)
		}
	})
}

// FuzzPrincipal: what is accepted has one spelling under the changes that
// people and systems make to names.
func FuzzPrincipal(f *testing.F) {
	for _, s := range []string{"uid:0", "user:ada", "UID:0", "uid:00", "user: a", "device:x@y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if CheckPrincipal(s) != nil {
			return
		}
		if strings.ToLower(s) != s || strings.TrimSpace(s) != s || strings.ToValidUTF8(s, "") != s || len(s) > 120 {
			t.Errorf("%q is accepted", s)
		}
		for _, alias := range []string{" " + s, s + " ", strings.ToUpper(s), strings.Replace(s, ":", ":0", 1) + "\x00"} {
			if alias != s && CheckPrincipal(alias) == nil {
				t.Errorf("%q and %q are both accepted", s, alias)
			}
		}
	})
}

func BenchmarkAuthenticate(b *testing.B) {
	o := newOffice(b)
	text, _ := o.mint(b, operator, time.Hour, RunStart)
	b.ReportAllocs()
	for b.Loop() {
		h, err := o.Authenticate(text)
		if err != nil || o.Allow(h, RunStart) != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen is a start with 10,000 members and 100,000 tokens.
func BenchmarkOpen(b *testing.B) {
	mem := newMemory()
	for i := range 10_000 {
		p := fmt.Sprint("uid:", i)
		mem.members[p] = Member{Principal: p, Role: []Role{Owner, Operator}[min(i, 1)]}
	}
	key := Key{}
	for i := range 100_000 {
		id, secret, _ := newSecret()
		mem.state.Tokens = append(mem.state.Tokens, Token{ID: id.String(), Principal: fmt.Sprint("uid:", i%10_000), Name: fmt.Sprint("token ", i),
			Hash: key.hash(id, secret), Scopes: 1, Created: time.Now().UTC(), Expires: time.Now().UTC().Add(time.Hour)})
	}
	heap := func() float64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return float64(m.HeapAlloc)
	}
	before := heap()
	var r *Registry
	for b.Loop() {
		var err error
		if r, err = Open(context.Background(), Config{Storage: mem, Key: key}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric((heap()-before)/float64(len(r.tokens)), "B/token")
}

// looksLikeToken reports whether text is a token by form and check digits.
func looksLikeToken(text string) bool {
	_, _, err := parse(text)
	return err == nil
}
