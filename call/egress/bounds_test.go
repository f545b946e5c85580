package egress

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// TestRuleBounds: each bound has one spelling, they have one order, and a rule has each once.
func TestRuleBounds(t *testing.T) {
	for text, want := range map[string]string{
		"open:4": "open:4", "open:1024": "open:1024", "open:1025": "", "open:0": "", "open:-1": "", "open:+1": "", "open:01": "", "open:": "", "open": "", "open:1s": "", "open:1KiB": "",
		"connections:1048576": "connections:1048576", "connections:1048577": "",
		"sent:1": "sent:1", "sent:1024": "sent:1KiB", "sent:1536": "sent:1536", "sent:1536KiB": "sent:1536KiB", "sent:2048KiB": "sent:2MiB", "sent:1024TiB": "sent:1024TiB", "sent:1025TiB": "",
		"sent:9223372036854775807": "", "sent:9007199254740993KiB": "", "sent:99999999999999999999": "", "sent:1M": "", "sent:1mib": "", "sent:1.5MiB": "", "sent:KiB": "", "sent: 1": "",
		"received:10MiB": "received:10MiB", "received:10MB": "",
		"time:30s": "time:30s", "time:90s": "time:90s", "time:60s": "time:1m", "time:3600s": "time:1h", "time:24h": "time:24h", "time:25h": "", "time:86401s": "", "time:1": "", "time:1m30s": "", "time:1ms": "",
		"rate:1/s":                            "rate:1/s",
		"time:1m sent:1KiB  rate:2/m open:1":  "rate:2/m open:1 sent:1KiB time:1m",
		"received:2 connections:9 sent:1":     "connections:9 sent:1 received:2",
		"sent:1 sent:1":                       "",
		"sent:1 rate:1/s sent:2":              "",
		"sent:1 ":                             "",
		"names:1":                             "",
		"body:1":                              "",
		"sent:1 answer:1":                     "",
		"sent:1\treceived:1":                  "",
		"sent:1 443":                          "",
		"open:1,connections:2":                "",
		"open:1\x00":                          "",
		"connections:1 open:1 time:1s burst:": "",
	} {
		r, err := ParseRule("a.example " + text)
		bounds, _ := strings.CutPrefix(r.String(), "a.example:443 ")
		if bounds != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v, want %q", text, bounds, err, want)
		}
		if want == "" {
			continue
		}
		if again, err := ParseCanonical([]string{r.String()}); err != nil || again.All()[0] != r || r.Bare().String() != "a.example:443" {
			t.Errorf("%q: %q again, %v", text, again.Strings(), err)
		}
		var words []string
		for _, b := range r.Bounds().Split() {
			words = append(words, b.Text)
			if _, number, _ := strings.Cut(b.Text, ":"); !strings.Contains(b.String(), number) {
				t.Errorf("%q is said as %q", b.Text, b)
			}
		}
		if strings.Join(words, " ") != want {
			t.Errorf("%q is split into %q", text, words)
		}
	}
	for _, bad := range []string{"", "sent", "sent:1024", "sent:0", "rate:1", "sent:1 open:1", " sent:1", "sent:1 ", "x:1"} {
		if b, err := ParseBound(bad); err == nil || b != (Bound{}) {
			t.Errorf("%q is the bound %q, %v", bad, b, err)
		}
	}
}

// TestBoundsTogether: rules about one host become one, with the narrowest of each bound.
func TestBoundsTogether(t *testing.T) {
	rules, err := ParseRules([]string{"a.example sent:2MiB open:4", "a.example:4430 open:9", "a.example open:7 received:1KiB rate:2/s", "a.example", "a.example rate:60/m sent:1MiB time:1h"})
	if want := []string{"a.example:443 rate:60/m open:4 sent:1MiB received:1KiB time:1h", "a.example:4430 open:9"}; err != nil || !slices.Equal(rules.Strings(), want) {
		t.Fatalf("%q, %v, want %q", rules.Strings(), err, want)
	}
	if got := rules.Bounded("a.example", 443); len(got) != 1 || got[0].Bounds() != (Bounds{Rate: Rate{60, time.Minute}, Open: 4, Sent: 1 << 20, Received: 1 << 10, Time: time.Hour}) {
		t.Errorf("%+v", got)
	}
}

// TestBoundsWithin: a list covers a rule that is bounded as its own is or more, in each bound, and
// what two sets of bounds become is within both.
func TestBoundsWithin(t *testing.T) {
	l, err := ParseList("x", "a.example open:4 sent:1MiB\n*.b.example time:1m")
	if err != nil {
		t.Fatal(err)
	}
	var ls Lists
	ls.Add(l)
	for text, want := range map[string]bool{
		"a.example": false, "a.example open:4": false, "a.example sent:1MiB": false, "a.example open:4 sent:1MiB": true, "a.example open:3 sent:1KiB time:1s": true, "a.example open:5 sent:1MiB": false,
		"a.example open:4 sent:1025KiB": false, "x.b.example": false, "x.b.example time:60s": true, "x.b.example time:2m": false, "x.b.example time:1s received:1": true,
	} {
		r, err := ParseRule(text)
		if err != nil || ls.Cover(r) != want {
			t.Errorf("a list covers %q: %v, want %v (%v)", text, !want, want, err)
		}
		if got := slices.ContainsFunc(l.Rules, func(o Rule) bool { return o.Covers(r) }); got != want {
			t.Errorf("a rule of the list covers %q: %v, want %v", text, got, want)
		}
	}
	random := rand.New(rand.NewPCG(1, 2))
	draw := func() (b Bounds) {
		for _, x := range numbers {
			*x.at(&b) = random.Int64N(3)
		}
		return b
	}
	for range 2000 {
		a, b := draw(), draw()
		both := a.tighter(b)
		if !both.within(a) || !both.within(b) || both != b.tighter(a) || a.within(b) && both != a {
			t.Fatalf("%+v and %+v become %+v", a, b, both)
		}
	}
}
