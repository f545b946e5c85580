package egress

import (
	"slices"
	"strings"
	"testing"
)

// TestRate: a rule's rate has one spelling, stands behind the host in lists as well, and says
// nothing about which hosts the rule is about.
func TestRate(t *testing.T) {
	for text, want := range map[string]string{
		"packages.example rate:10/s":     "packages.example:443 rate:10/s",
		"*.CDN.example:8443  rate:600/m": "*.cdn.example:8443 rate:600/m",
		"192.0.2.7:22 rate:1/m":          "192.0.2.7:22 rate:1/m",
		"[2001:db8::]/32 rate:1/s":       "",
		"[2001:db8::/32]:443 rate:1/s":   "[2001:db8::/32]:443 rate:1/s",
		"a.example rate:10000/s":         "a.example:443 rate:10000/s",
		"a.example rate:10001/s":         "",
		"a.example rate:0/s":             "",
		"a.example rate:-1/s":            "",
		"a.example rate:+1/s":            "",
		"a.example rate:01/s":            "",
		"a.example rate:1":               "",
		"a.example rate:1/h":             "",
		"a.example rate:1/s ":            "",
		"a.example rate: 1/s":            "",
		"a.example rate:1/s rate:1/s":    "",
		"a.examplerate:1/s":              "",
		"a.example\trate:1/s":            "",
		" rate:1/s":                      "",
		"a.example burst:1/s":            "",
	} {
		r, err := ParseRule(text)
		if r.String() != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, r, err, want)
		}
		if again, err := ParseRule(want); want != "" && (err != nil || again != r || r.Bare().Bounds() != Bounds{} || strings.Contains(r.Bare().String(), "rate")) {
			t.Errorf("%q: %q again, %v", text, again, err)
		}
	}
	rules, err := ParseRules([]string{"a.example rate:2/s", "a.example", "a.example rate:60/m", "a.example:4430", "a.example rate:1/s", "*.b.example rate:5/s", "x.b.example rate:1/m", "10.0.0.0/8:443 rate:3/s", "198.0.0.0/8:443 open:1"})
	if want := []string{"*.b.example:443 rate:5/s", "10.0.0.0/8:443 rate:3/s", "198.0.0.0/8:443 open:1", "a.example:443 rate:1/s", "a.example:4430", "x.b.example:443 rate:1/m"}; err != nil || !slices.Equal(rules.Strings(), want) {
		t.Fatalf("%q, %v, want %q", rules.Strings(), err, want)
	}
	if _, err := ParseCanonical([]string{"a.example:443", "a.example:443 rate:1/s"}); err == nil {
		t.Error("two rules about one host are canonical")
	}
	if !rules.Allows("a.example", 443) || !rules.Allows("x.b.example", 443) || rules.Allows("b.example", 443) {
		t.Error("a rate changes which names are allowed")
	}
	for host, want := range map[string]int{"a.example": 1, "x.b.example": 2, "y.b.example": 1, "c.example": 0, "10.9.0.1": 1, "11.0.0.1": 0, "198.18.0.2": 0, "198.17.0.2": 1} {
		if got := rules.Bounded(host, 443); len(got) != want || len(rules.Bounded(host, 444)) != 0 {
			t.Errorf("%s: %q", host, got)
		}
	}
	in, err := ParseInspection(rules, []string{"a.example:443"}, []string{"T=vault://global/t header:authorization a.example:443"})
	if err != nil || in.Empty() {
		t.Errorf("an inspected host with a rate: %v", err)
	}
}

// TestRateCovers: a list lets calls connect as fast as it says, and no faster.
func TestRateCovers(t *testing.T) {
	var ls Lists
	for name, text := range map[string]string{"one": "a.example rate:60/m\n*.b.example rate:10/s\nfree.example", "two": "a.example\trate:2/s"} {
		l, err := ParseList(name, text)
		if err != nil {
			t.Fatal(err)
		}
		ls.Add(l)
	}
	if _, err := ParseList("x", "a.example\na.example rate:1/s"); err == nil || !strings.Contains(err.Error(), "line 2: a.example:443 is there twice") {
		t.Errorf("one host twice: %v", err)
	}
	for text, want := range map[string]bool{
		"a.example": false, "a.example rate:60/m": true, "a.example rate:1/s": true, "a.example rate:2/s": true, "a.example rate:61/m": false, "a.example rate:3/s": false,
		"x.b.example": false, "x.b.example rate:10/s": true, "x.b.example rate:11/s": false, "x.b.example rate:600/m": false, "b.example rate:1/m": false,
		"free.example": true, "free.example rate:10000/s": true,
	} {
		r, err := ParseRule(text)
		if err != nil || ls.Cover(r) != want {
			t.Errorf("%q is covered: %v, want %v, %v", text, !want, want, err)
		}
	}
}
