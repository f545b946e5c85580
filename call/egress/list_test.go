package egress

import (
	"strings"
	"testing"

	"palyra/internal/canon"
)

func TestParseList(t *testing.T) {
	l, err := ParseList("npm", "# the registry\n\n packages.example\t# as the manual says\r\n*.CDN.example:8443\n10.1.0.0/16:5432")
	if err != nil || l.Name != "npm" || len(l.Rules) != 3 {
		t.Fatalf("%+v, %v", l, err)
	}
	for i, want := range []string{"packages.example:443", "*.cdn.example:8443", "10.1.0.0/16:5432"} {
		if got := l.Rules[i].String(); got != want {
			t.Errorf("rule %d is %s, want %s", i, got, want)
		}
	}
	var many strings.Builder
	for i := range MaxListed + 1 {
		many.WriteString("packages.example:" + string(rune('1'+i%9)) + strings.Repeat("0", i%3) + "\n")
	}
	for text, want := range map[string]string{
		"":                                      "no rule",
		"# nothing":                             "no rule",
		"a.example\nb.example:0":                "line 2",
		"a.example\n\nA.example:443":            "line 3: a.example:443 is there twice",
		"a.example b.example":                   "line 1",
		"version 0\na.example":                  "line 1: \"version 0\": version \"0\"",
		"version 01\na.example":                 "line 1",
		"version 1000000\na.example":            "line 1",
		"version 1\nversion 2\na.example":       "line 2",
		"a.example\nversion 1":                  "line 2",
		"version 1":                             "no rule",
		"@npm":                                  "line 1",
		"*":                                     "line 1",
		"https://a.example/":                    "line 1",
		many.String():                           "twice",
		"a.example\x00":                         "line 1",
		"a.example\xff#":                        "line 1",
		strings.Repeat("a", 1<<16) + ".example": "line 1",
	} {
		if l, err := ParseList("x", text); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 400 {
			t.Errorf("%.40q: %+v, %v, want %q", text, l, err, want)
		}
	}
}

// TestListVersion: a version is the operator's, and the digest follows it and the rules, in whatever
// order and spelling they stand.
func TestListVersion(t *testing.T) {
	read := func(text string) List {
		t.Helper()
		l, err := ParseList("npm", text)
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		return l
	}
	one := read("# npm\nversion 7 # of the registry\nb.example\nA.example:443\n")
	if one.Version != 7 || len(one.Rules) != 2 {
		t.Errorf("%+v", one)
	}
	if want := canon.Sum([]byte("version 7\na.example:443\nb.example:443\n")); one.Digest() != want {
		t.Errorf("digest %s, want %s", one.Digest(), want)
	}
	if same := read("version 7\na.example\nb.example"); same.Digest() != one.Digest() {
		t.Error("another digest for the same rules")
	}
	for _, text := range []string{"version 8\na.example\nb.example", "a.example\nb.example", "version 7\na.example", "version 7\na.example rate:1/s\nb.example"} {
		if read(text).Digest() == one.Digest() {
			t.Errorf("the same digest for %q", text)
		}
	}
	for text, want := range map[string]string{
		"":                                "version 1\n",
		"a.example\n":                     "a.example\n",
		"# x\n\nversion 7 # y\na.example": "# x\n\nversion 8 # y\na.example",
		"version 999999\na.example":       "version 999999\na.example",
		"# version 1\n":                   "# version 1\n",
	} {
		if got := NextVersion(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestListName(t *testing.T) {
	for name, want := range map[string]bool{"npm": true, "npm-2": true, "0": true, strings.Repeat("a", 32): true,
		"": false, "-a": false, "a-": false, "Npm": false, "a.b": false, "a/b": false, "ä": false, strings.Repeat("a", 33): false} {
		if ListName(name) != want {
			t.Errorf("%q: %v", name, !want)
		}
	}
}

func TestCovers(t *testing.T) {
	for _, x := range []struct {
		rule, of string
		want     bool
	}{
		{"a.example", "a.example:443", true},
		{"a.example", "a.example:8443", false},
		{"a.example", "b.example", false},
		{"a.example", "x.a.example", false},
		{"*.a.example", "x.a.example", true},
		{"*.a.example", "x.y.a.example", true},
		{"*.a.example", "*.x.a.example", true},
		{"*.a.example", "*.a.example", true},
		{"*.a.example", "a.example", false},
		{"*.a.example", "*.example.net", false},
		{"*.a.example", "x.a.example:80", false},
		{"*.a.example", "xa.example", false},
		{"x.a.example", "*.a.example", false},
		{"10.0.0.0/8:443", "10.1.0.0/16:443", false},
		{"10.0.0.0/8:443", "10.0.0.0/8:443", true},
		{"*.a.example", "192.0.2.7", false},
	} {
		r, err := ParseRule(x.rule)
		if err != nil {
			t.Fatal(err)
		}
		of, err := ParseRule(x.of)
		if err != nil {
			t.Fatal(err)
		}
		var lists Lists
		lists.Add(List{Name: "other", Rules: []Rule{{name: "z.example", port: 443}}})
		lists.Add(List{Name: "list", Rules: []Rule{r}})
		if r.Covers(of) != x.want || lists.Cover(of) != x.want {
			t.Errorf("%s covers %s: %v, in a list %v", x.rule, x.of, r.Covers(of), lists.Cover(of))
		}
		// What it covers it allows, where that is a name.
		if name, below := of.Name(); name != "" && !below && x.want && !(Rules{all: []Rule{r}}).Allows(name, of.Port()) {
			t.Errorf("%s covers %s and doesn't allow it", x.rule, x.of)
		}
	}
	if (Rule{}).Covers(Rule{name: "a.example", port: 443}) {
		t.Error("the zero rule covers one")
	}
	var none *Lists
	if new(Lists).Cover(Rule{name: "a.example", port: 443}) || none.Cover(Rule{}) {
		t.Error("no lists cover a rule")
	}
}
