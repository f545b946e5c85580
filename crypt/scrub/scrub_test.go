package scrub

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"html"
	"net/url"
	"runtime"
	"strings"
	"testing"
	"unicode/utf8"

	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/internal/spelling"
)

var alice, bob = budget.Owner{Name: "alice"}, budget.Owner{Name: "bob"}

// TestSpellings: no encoding of a value passes, wherever it stands and however it's cut.
func TestSpellings(t *testing.T) {
	for _, value := range []string{"correct horse battery", "12345678", "a+b/c=d&e?\"\\<>\n", "it's 100% ~secret~ (really)!*", strings.Repeat("0123456789", 9), "grüße 😀 von hier", "\x00\xff\xfe binary \x80", "line one\nline two\n", strings.Repeat("k", 5000)} {
		all := New()
		if err := all.Add(alice, "key", []byte(value)); err != nil {
			t.Fatal(err)
		}
		r := all.Of(alice.Name)
		var plain bytes.Buffer
		e := json.NewEncoder(&plain)
		e.SetEscapeHTML(false)
		_ = e.Encode(value)
		texts := map[string]string{
			"raw": value, "crlf": strings.ReplaceAll(value, "\n", "\r\n"), "hex": hex.EncodeToString([]byte(value)), "HEX": strings.ToUpper(hex.EncodeToString([]byte(value))),
			"query": url.QueryEscape(value), "path": url.PathEscape(value), "trimmed": strings.TrimRight(value, "\n"),
			"user information": strings.TrimPrefix(url.UserPassword("", value).String(), ":"), "markup": html.EscapeString(value),
			"lines": wrap(base64.StdEncoding.EncodeToString([]byte(value)), 76, "\n"), "PEM": wrap(base64.StdEncoding.EncodeToString([]byte(value)), 64, "\r\n"),
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

func wrap(text string, width int, end string) string {
	var out []string
	for ; len(text) > width; text = text[width:] {
		out = append(out, text[:width])
	}
	return strings.Join(append(out, text), end)
}

// TestEncoders: what programs made of a value with their own encoders isn't left. Each line comes
// from the named one.
func TestEncoders(t *testing.T) {
	const value = `p@ss/w0rd+! it's "100%" a\b&c<d>*`
	r := New()
	if err := r.Add(alice, "key", []byte(value)); err != nil {
		t.Fatal(err)
	}
	for by, text := range map[string]string{
		"JavaScript encodeURIComponent": "p%40ss%2Fw0rd%2B!%20it's%20%22100%25%22%20a%5Cb%26c%3Cd%3E*",
		"JavaScript encodeURI":          "p@ss/w0rd+!%20it's%20%22100%25%22%20a%5Cb&c%3Cd%3E*",
		"JavaScript URLSearchParams":    "p%40ss%2Fw0rd%2B%21+it%27s+%22100%25%22+a%5Cb%26c%3Cd%3E*",
		"Python quote":                  "p%40ss/w0rd%2B%21%20it%27s%20%22100%25%22%20a%5Cb%26c%3Cd%3E%2A",
		"Python quote, safe=''":         "p%40ss%2Fw0rd%2B%21%20it%27s%20%22100%25%22%20a%5Cb%26c%3Cd%3E%2A",
		"Python quote_plus":             "p%40ss%2Fw0rd%2B%21+it%27s+%22100%25%22+a%5Cb%26c%3Cd%3E%2A",
		"Python json.dumps":             `p@ss/w0rd+! it's \"100%\" a\\b&c<d>*`,
		"Python html.escape":            "p@ss/w0rd+! it&#x27;s &quot;100%&quot; a\\b&amp;c&lt;d&gt;*",
		"bash -x":                       `p@ss/w0rd+! it'\''s "100%" a\b&c<d>*`,
		"bash printf %q":                `p@ss/w0rd+\!\ it\'s\ \"100%\"\ a\\b\&c\<d\>\*`,
		"PHP json_encode":               `p@ss\/w0rd+! it's \"100%\" a\\b&c<d>*`,
	} {
		if got := r.Of(alice.Name).String("x" + text + "y"); got != "x[secret key]y" {
			t.Errorf("%s: %q", by, got)
		}
	}
}

// TestShort: a short value stays, and the empty registries change nothing.
func TestShort(t *testing.T) {
	r := New()
	if err := r.Add(alice, "pin", []byte("1234567")); err != nil || r.Of(alice.Name).Holds([]byte("1234567")) {
		t.Errorf("%v", err)
	}
	for _, r := range []*Registry{nil, r} {
		b, v := []byte("text"), r.Of(alice.Name)
		if got := v.Bytes(b); &got[0] != &b[0] || string(v.Stream().Next(b)) != "text" || len(v.Stream().End()) != 0 || r.Add(alice, "x", nil) != nil {
			t.Error("changed")
		}
		r.Wipe()
	}
	var none Values
	if none.Holds([]byte("x")) || none.String("text") != "text" {
		t.Error("the zero Values has some")
	}
}

// TestOwners: a value is its owner's alone, but in what Writer passes on, which takes the longest of
// all.
func TestOwners(t *testing.T) {
	r := New()
	stream := r.Of(bob.Name).Stream() // before there is any
	for _, x := range []struct {
		who   budget.Owner
		name  string
		value string
	}{{alice, "a", "horse battery"}, {bob, "b", "the horse battery staple"}, {alice, "c", "workspace"}} {
		if err := r.Add(x.who, x.name, []byte(x.value)); err != nil {
			t.Fatal(err)
		}
	}
	const text = "the horse battery staple in a workspace, a horse battery"
	if got := r.Of(alice.Name).String(text); got != "the [secret a] staple in a [secret c], a [secret a]" {
		t.Errorf("alice: %q", got)
	}
	if got := r.Of(bob.Name).String(text); got != "[secret b] in a workspace, a horse battery" {
		t.Errorf("bob: %q", got)
	}
	if got := string(stream.Next([]byte(text))) + string(stream.End()); got != "[secret b] in a workspace, a horse battery" {
		t.Errorf("bob's stream: %q", got)
	}
	if got := r.Of("carol").String(text); got != text {
		t.Errorf("carol: %q", got)
	}
	var out bytes.Buffer
	if n, err := r.Writer(&out).Write([]byte(text)); n != len(text) || err != nil || out.String() != "[secret b] in a [secret c], a [secret a]" {
		t.Errorf("%d, %v: %q", n, err, out.String())
	}
}

// TestValueThatIsASpelling: a value that is how another may be spelled has spellings of its own.
func TestValueThatIsASpelling(t *testing.T) {
	const value = "horse battery"
	inner := base64.StdEncoding.EncodeToString([]byte(value))
	r := New()
	for name, v := range map[string]string{"a": value, "b": inner} {
		if err := r.Add(alice, name, []byte(v)); err != nil {
			t.Fatal(err)
		}
	}
	held := r.Pool().Held()
	for _, v := range []string{inner, value} {
		if err := r.Add(alice, "again", []byte(v)); err != nil || r.Pool().Held() != held {
			t.Errorf("again: %v, %d bytes more", err, r.Pool().Held()-held)
		}
	}
	for _, text := range []string{value, inner, hex.EncodeToString([]byte(inner)), base64.StdEncoding.EncodeToString([]byte(inner))} {
		if got := r.Of(alice.Name).String(text); !strings.HasPrefix(got, "[secret ") || strings.ContainsAny(got, "xyz0123456789") {
			t.Errorf("%q: %q", text, got)
		}
	}
}

// TestHoldsBut: a value within a named part of a text isn't one that the text holds.
func TestHoldsBut(t *testing.T) {
	r := New()
	if err := r.Add(alice, "w", []byte("workspace")); err != nil {
		t.Fatal(err)
	}
	v := r.Of(alice.Name)
	const text = `{"workspace":"src"} workspace`
	name := Span{1, 12}
	for _, c := range []struct {
		text string
		but  []Span
		want bool
	}{
		{text, nil, true}, {text, []Span{name}, true}, {text[:19], []Span{name}, false}, {text[:19], []Span{{2, 11}}, false}, {text[:19], []Span{{3, 12}}, true},
		{text[:19], []Span{{1, 10}}, true}, {text, []Span{name, {20, 29}}, false}, {text[:19], []Span{{0, 1}, name}, false},
	} {
		if got := v.Holds([]byte(c.text), c.but...); got != c.want {
			t.Errorf("%q but %v: %v", c.text, c.but, got)
		}
	}
}

// TestBounded: what can't be remembered isn't given out, and one owner's values leave room for
// others'; what is known costs nothing.
func TestBounded(t *testing.T) {
	r := newRegistry(12<<20, 4<<20, 4<<20)
	value := bytes.Repeat([]byte("0123456789abcde\n"), 4096)
	fill := func(o budget.Owner) (n int) {
		t.Helper()
		for ; n < 1000; n++ {
			value[0], value[1] = byte('a'+n%20), byte('a'+n/20)
			if err := r.Add(o, "large", value); err != nil {
				if fault.ReasonOf(err) != "budget" || fault.HintOf(err) == "" || strings.Contains(err.Error(), "01234567") {
					t.Error(err)
				}
				return n
			}
		}
		return n
	}
	for _, o := range []budget.Owner{alice, bob} {
		if n := fill(o); n == 0 || n == 1000 || r.Pool().Held() > 8<<20 {
			t.Fatalf("%s: %d values, %d bytes", o.Name, n, r.Pool().Held())
		}
	}
	if n := fill(budget.Owner{Name: "carol"}); n != 0 {
		t.Errorf("%d values out of the reserve", n)
	}
	if n := fill(budget.Owner{Name: "owner", Reserve: true}); n == 0 {
		t.Error("the owner finds no room")
	}
	value[0], value[1] = 'a', 'a'
	held := r.Pool().Held()
	if err := r.Add(alice, "again", value); err != nil || r.Pool().Held() != held {
		t.Errorf("%v, %d bytes more", err, r.Pool().Held()-held)
	}
	r.Wipe()
	if v := r.Of(alice.Name); v.Holds(value) || r.Pool().Held() != 0 || r.Add(alice, "again", value) != nil || !v.Holds(value) {
		t.Error("after Wipe")
	}
}

// TestAlike: values that repeat themselves, or begin alike, are removed as others are.
func TestAlike(t *testing.T) {
	few := sample.Of(8, 1)
	for name, c := range map[string]struct {
		values int
		value  func(i int) []byte
	}{
		"one that repeats itself":     {1, func(int) []byte { return append(bytes.Repeat([]byte("a"), 64<<10/few-1), '!') }},
		"a thousand that begin alike": {1000 / few, func(i int) []byte { return fmt.Appendf(nil, "ghp_the_same_beginning_of_all_%06d", i) }},
		"each one longer":             {800 / few, func(i int) []byte { return append(bytes.Repeat([]byte("a"), 8+i), '!') }},
	} {
		r := newRegistry(1<<30, 1<<30, 0)
		for i := range c.values {
			if err := r.Add(alice, "key", c.value(i)); err != nil {
				t.Fatal(err)
			}
		}
		if got := r.Of(alice.Name).String(string(c.value(c.values/2)) + "."); got != "[secret key]." {
			t.Errorf("%s: %q", name, got[:min(len(got), 99)])
		}
	}
}

// TestSure: what begins as a long value is removed as far as it agrees.
func TestSure(t *testing.T) {
	long := bytes.Repeat([]byte("0123456789abcdef"), 64)
	r := New()
	for i, end := range []string{" one", " another"} {
		if err := r.Add(alice, fmt.Sprint(i), append(bytes.Clone(long), end...)); err != nil {
			t.Fatal(err)
		}
	}
	v := r.Of(alice.Name)
	for cut, want := range map[int]string{Sure - 1: string(long[:Sure-1]) + "?", Sure: "[secret 1]?", len(long): "[secret 1]?"} {
		s := v.Stream()
		got := string(s.Next(long[:cut/2])) + string(s.Next(long[cut/2:cut])) + string(s.Next([]byte("?"))) + string(s.End())
		if got != want || v.String(string(long[:cut])+"?") != want {
			t.Errorf("%d bytes: %q", cut, got)
		}
	}
	if got := v.String(string(long) + " another."); got != "[secret 1]." {
		t.Errorf("%q", got)
	}
}

// TestPrompt: only the beginning of a value waits.
func TestPrompt(t *testing.T) {
	r := New()
	_ = r.Add(alice, "key", []byte("horse battery"))
	s := r.Of(alice.Name).Stream()
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
			for _, p := range spelling.Of([]byte(v)) {
				n := 0
				for n < len(p) && n < len(text) && p[n] == text[n] {
					n++
				}
				if n > best && (n == len(p) || n >= Sure) {
					best, mask = n, "[secret "+name+"]"
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
		all := New()
		r := all.Of(alice.Name)
		values := map[string]string{"v": string(one), "w": string(two)}
		seen := make(map[string]string)
		for _, name := range []string{"v", "w"} {
			if err := all.Add(alice, name, []byte(values[name])); err != nil {
				t.Fatal(err)
			}
			if len(values[name]) < Min {
				continue
			}
			for _, p := range spelling.Of([]byte(values[name])) {
				p = p[:min(len(p), Sure)]
				if other, ok := seen[string(p)]; ok && other != name {
					return // two values with one spelling, or one beginning: either mask is right
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

// FuzzSpellings: JSON and URLs are as the standard library has them.
func FuzzSpellings(f *testing.F) {
	for _, value := range []string{"correct horse battery", "a\"b\\c/d<e>&\u2028\u2029", "\x00\x1f\x7f\b\f\n\r\t\v", "grüße 😀 \ufffd", "it's 100% ~secret~ (really)!*"} {
		f.Add([]byte(value))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		if len(value) < Min || len(value) > 1000 {
			return
		}
		all := New()
		if err := all.Add(alice, "v", value); err != nil {
			t.Fatal(err)
		}
		table := all.Of(alice.Name).table()
		want := [][]byte{[]byte(url.QueryEscape(string(value))), []byte(url.PathEscape(string(value))), []byte(strings.TrimPrefix(url.UserPassword("", string(value)).String(), ":")),
			[]byte(base64.RawURLEncoding.EncodeToString(value)), []byte(strings.ToUpper(hex.EncodeToString(value)))}
		if utf8.Valid(value) {
			b, err := json.Marshal(string(value))
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, b[1:len(b)-1])
			var plain bytes.Buffer
			e := json.NewEncoder(&plain)
			e.SetEscapeHTML(false)
			if err := e.Encode(string(value)); err != nil {
				t.Fatal(err)
			}
			want = append(want, plain.Bytes()[1:plain.Len()-2])
			if !bytes.ContainsAny(value, "\x00") {
				want = append(want, []byte(html.EscapeString(string(value))))
			}
		}
		for _, p := range want {
			if is, _ := table.Has(p); !is {
				t.Errorf("%q: %q isn't known", value, p)
			}
		}
	})
}

func BenchmarkStream(b *testing.B) {
	alike := func(i int) []byte { return fmt.Appendf(nil, "ghp_the_same_beginning_of_all_%06d", i) }
	longer := func(i int) []byte { return append(bytes.Repeat([]byte("a"), 8+i), '!') }
	words := bytes.Repeat([]byte("The quick brown fox jumps over the lazy dog, 1234 times.\n"), 1150)[:64<<10]
	for _, c := range []struct {
		name   string
		values int
		value  func(int) []byte
		text   []byte
	}{
		{"few", 3, func(i int) []byte {
			return []byte([]string{"correct horse battery staple", "twenty bytes of text", "a value that has as many as forty bytes.."}[i])
		}, words},
		{"many", 10000, alike, words},
		{"many, alike", 10000, alike, bytes.Repeat([]byte("ghp_the_same_beginning_of_all_x"), 2115)[:64<<10]},
		{"worst", 800, longer, bytes.Repeat(append(bytes.Repeat([]byte("a"), Sure-1), '?'), 256)},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRegistry(1<<30, 1<<30, 0)
			for i := range c.values {
				if err := r.Add(alice, "key", c.value(i)); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(c.text)))
			s := r.Of(alice.Name).Stream()
			for b.Loop() {
				s.Next(c.text)
			}
		})
	}
}

// BenchmarkAdd adds ten thousand values that begin alike, and says what they take.
func BenchmarkAdd(b *testing.B) {
	for b.Loop() {
		r := newRegistry(1<<30, 1<<30, 0)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range 10000 {
			if err := r.Add(alice, "key", fmt.Appendf(nil, "ghp_the_same_beginning_of_all_%06d", i)); err != nil {
				b.Fatal(err)
			}
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(r.Pool().Held())/10000, "counted/value")
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/10000, "heap/value")
		r.Wipe()
	}
}

// TestTell: a stream says what it removed, by name, whatever the parts that the text comes in.
func TestTell(t *testing.T) {
	r := NewOwn()
	for name, value := range map[string]string{"one": "the first value", "two": "the second value"} {
		if err := r.Add(budget.Owner{}, name, []byte(value)); err != nil {
			t.Fatal(err)
		}
	}
	text := "a the first value, dGhlIHNlY29uZCB2YWx1ZQ==, the first value"
	for _, part := range []int{1, 7, len(text)} {
		var told []string
		s := r.Of("").Stream()
		s.Tell(func(name string) { told = append(told, name) })
		for rest := text; rest != ""; rest = rest[min(part, len(rest)):] {
			s.Next([]byte(rest[:min(part, len(rest))]))
		}
		s.End()
		if fmt.Sprint(told) != "[one two one]" {
			t.Errorf("in parts of %d: %q", part, told)
		}
	}
}
