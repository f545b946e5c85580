package access

import (
	"go/ast"
	"go/parser"
	"go/printer"
	gotoken "go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/internal/fault"
)

// shown are tokens that differ from a good one in one way each.
func shown(t testing.TB, o *office) map[string]string {
	t.Helper()
	mint := func() (string, Holder) { return o.mint(t, operator, time.Hour, RunStart) }
	good, _ := mint()
	id, secret, err := parse(good)
	if err != nil {
		t.Fatal(err)
	}
	with := func(change func(id *tokenID, secret *[32]byte)) string {
		i, s := id, secret
		change(&i, &s)
		return format(i, s)
	}
	revoked, tok := mint()
	if _, err := o.Revoke(t.Context(), operator, tok.Token); err != nil {
		t.Fatal(err)
	}
	expired, tok := mint()
	tid, err := parseTokenID(tok.Token)
	if err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.tokens[tid].expires = o.tokens[tid].created
	o.mu.Unlock()
	return map[string]string{
		"good":       good,
		"first byte": with(func(_ *tokenID, s *[32]byte) { s[0] ^= 1 }),
		"last byte":  with(func(_ *tokenID, s *[32]byte) { s[31] ^= 1 }),
		"every byte": with(func(_ *tokenID, s *[32]byte) {
			for i := range s {
				s[i] ^= 0xff
			}
		}),
		"unknown id": with(func(i *tokenID, _ *[32]byte) { i[0] ^= 1 }),
		"revoked":    revoked,
		"expired":    expired,
	}
}

// TestOnePathForEveryToken: whatever is wrong with a token that has a token's
// form, it is hashed once and compared once, whole, in this order, and the answer
// to whoever does not know the secret is one and the same.
func TestOnePathForEveryToken(t *testing.T) {
	o := newOffice(t)
	tokens := shown(t, o)
	var did []string
	o.hash = func(k Key, id tokenID, secret [32]byte) [32]byte {
		did = append(did, "hash")
		return k.hash(id, secret)
	}
	o.equal = func(a, b [32]byte) bool {
		did = append(did, "equal")
		return equal(a, b)
	}
	for name, want := range map[string]string{"good": "", "first byte": "unauthenticated", "last byte": "unauthenticated", "every byte": "unauthenticated", "unknown id": "unauthenticated",
		"revoked": "token_revoked", "expired": "token_expired"} {
		did = nil
		_, err := o.Authenticate(tokens[name])
		if got := fault.ReasonOf(err); got != want {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
		if !slices.Equal(did, []string{"hash", "equal"}) {
			t.Errorf("%s: %q", name, did)
		}
		if want == "unauthenticated" {
			_, other := o.Authenticate(tokens["unknown id"])
			if err.Error() != other.Error() {
				t.Errorf("%s says %q, an unknown id %q", name, err, other)
			}
		}
	}
}

// secretNames are what this package calls secrets, their hashes and the text of tokens.
var secretNames = []string{"secret", "hash", "Hash", "want", "got", "key", "text", "b"}

// TestSecretsAreComparedInConstantTime reads the source: no operator and no
// function of the library compares secret bytes but subtle.ConstantTimeCompare,
// and that is what the registry compares with.
func TestSecretsAreComparedInConstantTime(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	compares, seen := 0, 0
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		seen++
		f, err := parser.ParseFile(gotoken.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			if i.Path.Value == `"bytes"` || i.Path.Value == `"reflect"` {
				t.Errorf("%s imports %s, which compares byte by byte", name, i.Path.Value)
			}
		}
		compares += constantTime(f)
		for _, found := range compared(f) {
			if !slices.Contains(harmless, found) {
				t.Errorf("%s compares %s", name, found)
			}
		}
	}
	if compares != 2 || seen < 5 {
		t.Errorf("%d calls of subtle.ConstantTimeCompare in %d files, want that of the hash and that of the spelling", compares, seen)
	}
	// The rule sees what it is for.
	for _, body := range []string{`_ = hash == t.hash`, `_ = string(secret[:]) != s`, `if want[0] == secret[0] {}`, `_ = strings.Compare(text, s)`, `_ = strings.EqualFold(s, text)`,
		`_ = slices.Equal(secret[:], s)`} {
		f, err := parser.ParseFile(gotoken.NewFileSet(), "x.go", "package x\nfunc f() { "+body+" }", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if len(compared(f)) != 1 {
			t.Errorf("the rule does not see %s", body)
		}
	}
}

// harmless are comparisons of what is no secret: is there one at all, does an id
// have its one spelling, is a file what it should be.
var harmless = []string{`s.text == ""`, `len(text) != tokenLen`, `len(b) == len(id)`, `len(b) != len(id)`, `hex.EncodeToString(b) == text`,
	`len(raw) != len(k.b)`, `hex.EncodeToString(raw)+"\n" != string(b)`, `len(s) != len(secret)`,
	"subtle.ConstantTimeCompare([]byte(format(id, secret)), []byte(text)) != 1", "subtle.ConstantTimeCompare(a[:], b[:]) == 1",
	"strings.Compare(a.Principal, b.Principal)", "b == 0"}

// compared lists the comparisons of f that name a secret.
func compared(f *ast.File) (found []string) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch v := n.(type) {
		case *ast.BinaryExpr:
			if (v.Op == gotoken.EQL || v.Op == gotoken.NEQ) && (secretIn(v.X) || secretIn(v.Y)) {
				found = append(found, show(v))
			}
		case *ast.CallExpr:
			if slices.Contains([]string{"bytes.Equal", "bytes.Compare", "slices.Equal", "slices.Compare", "strings.Compare", "strings.EqualFold"}, show(v.Fun)) &&
				slices.ContainsFunc(v.Args, secretIn) {
				found = append(found, show(v))
			}
		}
		return true
	})
	return found
}

func show(e ast.Expr) string {
	var s strings.Builder
	if err := printer.Fprint(&s, gotoken.NewFileSet(), e); err != nil {
		return err.Error()
	}
	return s.String()
}

func secretIn(e ast.Expr) (yes bool) {
	ast.Inspect(e, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok {
			yes = yes || slices.Contains(secretNames, id.Name)
		}
		return !yes
	})
	return yes
}

// constantTime counts the calls of subtle.ConstantTimeCompare.
func constantTime(f *ast.File) (n int) {
	ast.Inspect(f, func(x ast.Node) bool {
		if c, ok := x.(*ast.CallExpr); ok && strings.HasPrefix(show(c), "subtle.ConstantTimeCompare(") {
			n++
		}
		return true
	})
	return n
}

// BenchmarkTiming gives the medians for tokens that are right, and wrong at the
// first byte of the secret, at the last, at all. They take turns, so that what the
// machine does beside it meets all alike. A refusal makes an error; a wrong byte's
// place shows in none.
func BenchmarkTiming(b *testing.B) {
	o := newOffice(b)
	tokens := shown(b, o)
	names := []string{"good", "first byte", "last byte", "every byte", "unknown id"}
	all := make([][]time.Duration, len(names))
	for b.Loop() {
		for i, name := range names {
			start := time.Now()
			_, _ = o.Authenticate(tokens[name])
			all[i] = append(all[i], time.Since(start))
		}
	}
	for i, name := range names {
		slices.Sort(all[i])
		b.ReportMetric(float64(all[i][len(all[i])/2].Nanoseconds()), "ns-p50-"+strings.ReplaceAll(name, " ", "-"))
	}
}
