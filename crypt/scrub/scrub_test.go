package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"strings"
	"testing"
)

// TestSpellings: no encoding of a value passes, wherever it stands and however it's cut.
func TestSpellings(t *testing.T) {
	for _, value := range []string{"correct horse battery", "12345678", "a+b/c=d&e?\"\\<>\n", "grüße 😀 von hier", "\x00\xff\xfe binary \x80", "line one\nline two\n", strings.Repeat("k", 5000)} {
		r := New()
		if err := r.Add("key", []byte(value)); err != nil {
			t.Fatal(err)
		}
		var plain bytes.Buffer
		e := json.NewEncoder(&plain)
		e.SetEscapeHTML(false)
		_ = e.Encode(value)
		texts := map[string]string{
			"raw": value, "crlf": strings.ReplaceAll(value, "\n", "\r\n"), "hex": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
			"query": url.QueryEscape(value), "path": url.PathEscape(value), "trimmed": strings.TrimRight(value, "\n"),
		}
		if strings.ToValidUTF8(value, "") == value {
			b, _ := json.Marshal(value)
			texts["json"], texts["json, plain"] = string(b[1:len(b)-1]), plain.String()[1:plain.Len()-2]
		}
		for name, text := range texts {
			got := r.String("before " + text + " behind")
			if want := "before [secret key] behind"; strings.TrimRight(strings.ReplaceAll(got, "\n", ""), "\r") != want {
				t.Errorf("%q as %s: %q", value, name, got)
			}
		}
		for _, enc := range []*base64.Encoding{base64.StdEncoding, base64.RawStdEncoding, base64.URLEncoding, base64.RawURLEncoding} {
			for lead := range 4 {
				for tail := range 4 {
					got := r.String(enc.EncodeToString([]byte(strings.Repeat("<", lead) + value + strings.Repeat(">", tail))))
					// Of the value at most two characters with bits of others are left.
					if !strings.Contains(got, "[secret key]") || len(got) > len("[secret key]")+4*((lead+2)/3)+4*((tail+2)/3)+4 {
						t.Errorf("%q with %d and %d others in base64: %q", value, lead, tail, got)
					}
				}
			}
		}
		if whole := base64.StdEncoding.EncodeToString([]byte(value)); r.String(whole) != "[secret key]" {
			t.Errorf("%q in base64: %q", value, r.String(whole))
		}
	}
}

// TestShort: a short value stays, and the empty registries change nothing.
func TestShort(t *testing.T) {
	r := New()
	if err := r.Add("pin", []byte("1234567")); err != nil || r.Holds([]byte("1234567")) {
		t.Errorf("%v", err)
	}
	for _, r := range []*Registry{nil, r} {
		b := []byte("text")
		if got := r.Bytes(b); &got[0] != &b[0] || string(r.Stream().Next(b)) != "text" || len(r.Stream().End()) != 0 || r.Add("x", nil) != nil {
			t.Error("changed")
		}
		r.Wipe()
	}
}

// TestBounded: what can't be remembered isn't given out; what is known costs nothing.
func TestBounded(t *testing.T) {
	r := New()
	r.limit = 4 << 20
	value := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
	n := 0
	for ; n < 1000; n++ {
		value[0], value[1] = byte('a'+n%20), byte('a'+n/20)
		if r.Add("large", value) != nil {
			break
		}
	}
	if n == 0 || n == 1000 || r.bytes > r.limit {
		t.Fatalf("%d values, %d bytes", n, r.bytes)
	}
	value[0], value[1] = 'a', 'a'
	if err := r.Add("again", value); err != nil {
		t.Error(err)
	}
	r.Wipe()
	if r.Holds(value) || r.Add("again", value) != nil || !r.Holds(value) {
		t.Error("after Wipe")
	}
}

// TestWriter: what is written is passed on as one.
func TestWriter(t *testing.T) {
	var out bytes.Buffer
	r := New()
	w := r.Writer(&out)
	_ = r.Add("key", []byte("horse battery"))
	if n, err := w.Write([]byte("a horse battery b")); n != 17 || err != nil || out.String() != "a [secret key] b" {
		t.Errorf("%d, %v: %q", n, err, out.String())
	}
}

// TestPrompt: only the beginning of a value waits.
func TestPrompt(t *testing.T) {
	r := New()
	_ = r.Add("key", []byte("horse battery"))
	s := r.Stream()
	for _, c := range []struct{ in, out string }{{"Password: ", "Password: "}, {"the ho", "the "}, {"rse", ""}, {" bat", ""}, {"s", "horse bats"}, {" horse battery", " [secret key]"}, {"h", ""}} {
		if got := string(s.Next([]byte(c.in))); got != c.out {
			t.Errorf("%q: %q, want %q", c.in, got, c.out)
		}
	}
	if got := string(s.End()); got != "h" {
		t.Errorf("at the end %q", got)
	}
}

// naive is Stream by its definition.
func naive(values map[string]string, text string) string {
	var out strings.Builder
	for len(text) > 0 {
		best, mask := 0, ""
		for name, v := range values {
			if len(v) < Min {
				continue
			}
			for _, p := range spellings([]byte(v)) {
				if len(p) > best && strings.HasPrefix(text, string(p)) {
					best, mask = len(p), "[secret "+name+"]"
				}
			}
		}
		if best == 0 {
			best = 1
			mask = text[:1]
		}
		out.WriteString(mask)
		text = text[best:]
	}
	return out.String()
}

// FuzzStream: a stream gives what the naive scrubber does, however the text is cut.
func FuzzStream(f *testing.F) {
	f.Add([]byte("horse battery"), []byte("horse batt"), []byte("a horse battery horse batt b"), uint8(3))
	f.Add([]byte("aaaaaaaa"), []byte("aaaaaaaab"), []byte("aaaaaaaaaaaaaaaabaaaaaaa"), uint8(1))
	f.Add([]byte("12345678"), []byte("87654321"), []byte("MTIzNDU2Nzg=3132333435363738%31%32"), uint8(7))
	f.Add(append(bytes.Repeat([]byte("a"), 90), 'b'), bytes.Repeat([]byte("aab"), 30), append(bytes.Repeat([]byte("a"), 400), bytes.Repeat([]byte("baa"), 300)...), uint8(11))
	f.Add(bytes.Repeat([]byte("a"), 70), bytes.Repeat([]byte("a"), 90), bytes.Repeat([]byte("a"), 511), uint8(5))
	f.Fuzz(func(t *testing.T, one, two, text []byte, step uint8) {
		if len(one)+len(two) > 200 || len(text) > 2000 || bytes.Equal(one, two) {
			return
		}
		r := New()
		values := map[string]string{"v": string(one), "w": string(two)}
		seen := make(map[string]string)
		for _, name := range []string{"v", "w"} {
			if err := r.Add(name, []byte(values[name])); err != nil {
				t.Fatal(err)
			}
			if len(values[name]) < Min {
				continue
			}
			for _, p := range spellings([]byte(values[name])) {
				if other, ok := seen[string(p)]; ok && other != name {
					return // two values with one spelling: either mask is right
				}
				seen[string(p)] = name
			}
		}
		var got []byte
		s := r.Stream()
		for b := text; len(b) > 0; {
			n := min(int(step)%13+1, len(b))
			got = append(got, s.Next(b[:n])...)
			b = b[n:]
			step = step*31 + 7
		}
		got = append(got, s.End()...)
		if want := naive(values, string(text)); string(got) != want {
			t.Fatalf("%q, %q in %q: %q, want %q", one, two, text, got, want)
		}
		if whole := r.String(string(text)); whole != string(got) {
			t.Fatalf("as one: %q, in parts %q", whole, got)
		}
	})
}

func BenchmarkStream(b *testing.B) {
	r := New()
	for _, v := range []string{"correct horse battery staple", "twenty bytes of text", "a value that has as many as forty bytes.."} {
		_ = r.Add("key", []byte(v))
	}
	text := bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog, 1234 times.\n"), 1150)[:64<<10]
	b.SetBytes(int64(len(text)))
	s := r.Stream()
	for b.Loop() {
		s.Next(text)
	}
}
