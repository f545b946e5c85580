package kernel

import (
	"strings"
	"testing"

	"palyra/isolate/evidence"
)

// TestFirstWord: ./npm of a workspace isn't shown as npm.
func TestFirstWord(t *testing.T) {
	for argv0, want := range map[string]string{"npm": "npm", "./npm": "./npm", "/usr/bin/npm": "/usr/bin/npm",
		strings.Repeat("x", 63) + "ä": strings.Repeat("x", 63) + "…"} {
		if got := firstWord(argv0); got != want {
			t.Errorf("%q is shown as %q, want %q", argv0, got, want)
		}
	}
}

// TestRuleFor: what is proposed of a denial, and why it was denied.
func TestRuleFor(t *testing.T) {
	for _, c := range []struct {
		host      string
		port      uint32
		why       string
		rule, was string // "": none
	}{
		{"a.example", 0, evidence.DenyNotListed, "a.example:443", evidence.DenyNotListed},
		{"a.example", 8443, evidence.DenyForbidden, "a.example:8443", evidence.DenyForbidden},
		{"8.8.8.8", 53, evidence.DenyNotListed, "8.8.8.8:53", evidence.DenyNotListed},
		{"2606:4700::1111", 443, evidence.DenyNotListed, "[2606:4700::1111]:443", evidence.DenyNotListed},
		{"169.254.169.254", 80, evidence.DenyNotListed, "169.254.169.254:80", evidence.DenyForbidden},
		{"127.0.0.1", 22, evidence.DenyNotListed, "127.0.0.1:22", evidence.DenyForbidden},
		{"fd00::1", 443, evidence.DenyNotListed, "[fd00::1]:443", evidence.DenyForbidden},
		{"64:ff9b::a00:1", 443, evidence.DenyNotListed, "[64:ff9b::a00:1]:443", evidence.DenyForbidden},
		{"*.a.example/x", 443, evidence.DenyNotListed, "", ""},
		{"a.example", 443, evidence.DenyRequest, "", ""},
	} {
		rule, why, ok := RuleFor(evidence.Denial{Host: c.host, Port: c.port, Why: c.why})
		if ok != (c.rule != "") || ok && (rule != c.rule || why != c.was) {
			t.Errorf("%+v: %q, %q, %t", c, rule, why, ok)
		}
	}
}
