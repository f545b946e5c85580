package inspect

import (
	"bytes"
	"encoding/base32"
	"encoding/base64"
	"encoding/hex"
	"strings"
	"testing"

	rule "palyra/call/egress"
)

// spelled are ways in which a program may send a placeholder.
func spelled(p string) map[string]string {
	b := []byte(p)
	return map[string]string{
		"plain":                p,
		"without its form":     p[len(p)-rule.Drawn:],
		"in capitals":          strings.ToUpper(p),
		"hexadecimal":          hex.EncodeToString(b),
		"hexadecimal, upper":   strings.ToUpper(hex.EncodeToString(b)),
		"base64":               base64.StdEncoding.EncodeToString(b),
		"base64, one ahead":    base64.URLEncoding.EncodeToString([]byte("x" + p)),
		"base64, two ahead":    base64.RawStdEncoding.EncodeToString([]byte("xy" + p + "z")),
		"basic":                base64.StdEncoding.EncodeToString([]byte("user:" + p)),
		"base32":               base32.StdEncoding.EncodeToString(b),
		"base32, lower":        strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString([]byte("xyz" + p + "q"))),
		"base32, extended":     base32.HexEncoding.EncodeToString([]byte("xyzw" + p)),
		"percent":              percent(p),
		"capitals, base64":     base64.StdEncoding.EncodeToString(bytes.ToUpper(b)),
		"within other letters": "aaaa" + p + "bbbb",
	}
}

func percent(s string) string {
	var b strings.Builder
	for _, c := range []byte(s) {
		b.WriteString("%" + strings.ToUpper(hex.EncodeToString([]byte{c})))
	}
	return b.String()
}

func TestWatch(t *testing.T) {
	for _, form := range []string{"", "npm_", "sk-"} {
		p, other := rule.NewPlaceholder(form), rule.NewPlaceholder(form)
		w := newWatch([]string{"OTHER", "TOKEN"}, []string{other, p})
		for how, s := range spelled(p) {
			text := []byte("head " + s + " tail")
			if got := w.In(text); got != "TOKEN" {
				t.Errorf("%q %s: found %q in %s", form, how, got, text)
			}
			for _, size := range []int{1, 2, 7, len(text) - 1, len(text)} {
				st, got := w.Stream(), ""
				for part := range chunks(text, size) {
					if name := st.Next(part); name != "" {
						got = name
						break
					}
				}
				if got != "TOKEN" {
					t.Errorf("%q %s, in parts of %d: found %q", form, how, size, got)
				}
			}
		}
		for _, clean := range []string{"", "x", p[:len(p)-1], strings.Repeat(p[:len(p)-1]+" ", 30), rule.NewPlaceholder(form)} {
			st := w.Stream()
			if w.In([]byte(clean)) != "" || !strings.Contains(clean, " ") && w.InName(clean) != "" || st.Next([]byte(clean)) != "" || st.Next([]byte("!")) != "" {
				t.Errorf("%q is taken for a placeholder", clean)
			}
		}
	}
	var none *Watch
	if none.In([]byte("x")) != "" || none.InName("x") != "" || none.Stream().Next([]byte("x")) != "" {
		t.Error("a nil Watch finds something")
	}
}

func chunks(b []byte, size int) func(func([]byte) bool) {
	return func(yield func([]byte) bool) {
		for len(b) > 0 {
			n := min(size, len(b))
			if !yield(b[:n]) {
				return
			}
			b = b[n:]
		}
	}
}

func TestWatchNames(t *testing.T) {
	p := rule.NewPlaceholder("npm_")
	w := newWatch([]string{"TOKEN"}, []string{p})
	tail := p[len(p)-rule.Drawn:]
	for _, name := range []string{
		p + ".evil.example", tail[:20] + "." + tail[20:] + ".evil.example", tail[:5] + "." + tail[5:9] + "-" + tail[9:] + ".evil.example",
		strings.ToUpper(tail) + ".evil.example", hex.EncodeToString([]byte(tail))[:50] + "." + hex.EncodeToString([]byte(tail))[50:] + ".evil.example",
		strings.ToLower(base32.StdEncoding.EncodeToString([]byte(tail)))[:40] + "." + strings.ToLower(base32.StdEncoding.EncodeToString([]byte(tail)))[40:] + ".evil.example",
		base64.RawURLEncoding.EncodeToString([]byte(tail)) + ".evil.example",
	} {
		if got := w.InName(name); got != "TOKEN" {
			t.Errorf("%s: %q", name, got)
		}
	}
	if got := w.InName("packages.example"); got != "" {
		t.Errorf("a plain name: %q", got)
	}
}

// FuzzWatch: a stream finds what one look at all of the text finds, wherever it's cut.
func FuzzWatch(f *testing.F) {
	p := rule.NewPlaceholder("npm_")
	w := newWatch([]string{"TOKEN"}, []string{p})
	f.Add([]byte("head"), []byte("tail"), uint8(3), uint8(0))
	f.Add([]byte(p[:30]), []byte(p), uint8(1), uint8(20))
	f.Fuzz(func(t *testing.T, head, tail []byte, size, cut uint8) {
		text := append(append(bytes.Clone(head), p[min(int(cut), len(p)):]...), tail...)
		want, got := w.In(text), ""
		st := w.Stream()
		for part := range chunks(text, int(size)+1) {
			if name := st.Next(part); name != "" {
				got = name
				break
			}
			if len(st.held) > 1024 {
				t.Fatalf("%d bytes are held", len(st.held))
			}
		}
		if got != want {
			t.Errorf("in parts of %d: %q, as a whole %q", int(size)+1, got, want)
		}
	})
}

func BenchmarkWatch(b *testing.B) {
	var names, ps []string
	for range 16 {
		names, ps = append(names, "TOKEN"), append(ps, rule.NewPlaceholder(""))
	}
	st := newWatch(names, ps).Stream()
	text := bytes.Repeat([]byte("GET /simple/index.html HTTP/1.1 some ordinary text of a request 0123456789 "), 900)
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		if st.Next(text) != "" {
			b.Fatal("found")
		}
	}
}
