package policy

import (
	"regexp"
	"strings"
	"testing"
)

// FuzzID holds isID to the pattern that errors quote.
func FuzzID(f *testing.F) {
	for _, s := range []string{"", "a", "A1_.:-", "_a", "a b", "ä", strings.Repeat("x", 128), strings.Repeat("x", 129), "a\n"} {
		f.Add(s)
	}
	pattern := regexp.MustCompile(strings.TrimSuffix(idPattern, "$") + `\z`)
	f.Fuzz(func(t *testing.T, s string) {
		if got, want := isID(s), pattern.MatchString(s); got != want {
			t.Errorf("%q: got %v, want %v", s, got, want)
		}
	})
}
