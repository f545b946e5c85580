package programs

import (
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestTTL(t *testing.T) {
	for s, want := range map[string]time.Duration{
		"1s": time.Second, "12h": 12 * time.Hour, "30d": 30 * 24 * time.Hour, "400d": 400 * 24 * time.Hour, "9600h": 400 * 24 * time.Hour,
		"401d": 0, "0d": 0, "-1d": 0, "d": 0, "": 0, "1": 0, "999ms": 0, "9601h": 0, "-213503d": 0, "-427007d": 0,
	} {
		got, err := parseTTL(s)
		if d, _ := got.(time.Duration); d != want || (err == nil) != (want > 0) {
			t.Errorf("%q: %v, %v, want %v", s, got, err, want)
		}
	}
}

// FuzzFlags: what the flags of the operator's commands take is in the bounds
// that their errors name.
func FuzzFlags(f *testing.F) {
	for _, s := range []string{"1s", "30d", "-213503d", "400d", "24h", "once", "session", "same", "content", "within=1,2", "within=", "within=0",
		"sha256:00112233", "0123456789abcdef", "sha256:SHA256:00112233"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if v, err := parseTTL(s); err == nil {
			d := v.(time.Duration)
			if d < time.Second || d > 400*24*time.Hour {
				t.Errorf("ttl %q is %s", s, d)
			}
			if days, ok := strings.CutSuffix(s, "d"); ok {
				if n, err := strconv.Atoi(days); err != nil || d/(24*time.Hour) != time.Duration(n) {
					t.Errorf("ttl %q is %s", s, d)
				}
			}
		}
		if v, err := parseFor(s); err == nil && (v.(time.Duration) < time.Second || v.(time.Duration) > 24*time.Hour) {
			t.Errorf("time %q is %s", s, v)
		}
		if v, err := parsePattern(s); err == nil {
			for _, i := range v.(Pattern).Within {
				if i < 1 || i > 10000 {
					t.Errorf("pattern %q has argument %d", s, i)
				}
			}
		}
		if v, err := parseDigest(s); err == nil {
			if d := v.(string); len(d) != 64 || strings.Trim(d, "0123456789abcdef") != "" {
				t.Errorf("digest %q is %q", s, d)
			}
		}
	})
}
