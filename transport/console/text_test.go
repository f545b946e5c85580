package console

import (
	"html/template"
	"strings"
	"testing"
	"unicode"
)

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb\tc é 日本 😀":         "a\nb\tc é 日本 😀",
		"x\x1b[2J\r\x00\x7f":     "x⟦U+001B⟧[2J⟦U+000D⟧⟦U+0000⟧⟦U+007F⟧",
		"a\u202egpj.sh":          "a⟦U+202E⟧gpj.sh",
		"\u200b\u2060\ufeff":     "⟦U+200B⟧⟦U+2060⟧⟦U+FEFF⟧",
		"\u00a0\u2003\u3164":     "⟦U+00A0⟧⟦U+2003⟧⟦U+3164⟧",
		"\u2028\ue000\U000e0041": "⟦U+2028⟧⟦U+E000⟧⟦U+E0041⟧",
		"a\xff\xc3":              "a⟦ff⟧⟦c3⟧",
		"\ufe0f\u00ad\u034f":     "⟦U+FE0F⟧⟦U+00AD⟧⟦U+034F⟧",
	} {
		if got := string(visible([]byte(in))); got != want {
			t.Errorf("%+q: got %+q, want %+q", in, got, want)
		}
	}
}

// FuzzVisible: whatever others write, a page with it has no element of theirs and nothing that hides.
func FuzzVisible(f *testing.F) {
	for _, s := range []string{"<script>", "\u202e", "\xff", "a&b", "\"'`", "⟦U+202E⟧"} {
		f.Add(s)
	}
	page := template.Must(template.New("").Parse(`<p title="{{.}}">{{.}}</p>`))
	f.Fuzz(func(t *testing.T, s string) {
		var b strings.Builder
		if err := page.Execute(&b, s); err != nil {
			t.Fatal(err)
		}
		out := string(visible([]byte(b.String())))
		if strings.Count(out, "<") != 2 || strings.Count(out, `"`) != 2 {
			t.Errorf("%+q makes %s", s, out)
		}
		for _, c := range out {
			if c != '\n' && c != '\t' && (unicode.IsControl(c) || unicode.In(c, unicode.Cf, unicode.Zl, unicode.Zp) || c == unicode.ReplacementChar && !strings.Contains(s, "\ufffd") && !strings.Contains(s, "\x00")) {
				t.Errorf("%+q leaves %U", s, c)
			}
		}
	})
}

func TestArgv(t *testing.T) {
	if got := argv([]string{"cp", "a b", "it's", "", "-n=1"}); got != `cp 'a b' 'it'\''s' '' -n=1` {
		t.Error(got)
	}
}

func TestRows(t *testing.T) {
	got := rows("Approval needed\n  capsule     sha256:00\n  environment \"HOME\"\n                \"more\"\n  odd\n")
	want := []row{{"capsule", "sha256:00"}, {"environment", `"HOME"`}, {"", `  "more"`}, {"", "  odd"}}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%q, want %q", got[i], want[i])
		}
	}
}
