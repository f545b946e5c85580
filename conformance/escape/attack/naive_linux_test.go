package main

import "testing"

// TestNaive: the control of spellings refuses the host in its usual spelling, or it proves nothing.
func TestNaive(t *testing.T) {
	allow, deny := &fool{allow: "cdn.example"}, &fool{deny: "evil.example"}
	for _, c := range []struct {
		n      *fool
		host   string
		passes bool
	}{
		{allow, "a.cdn.example:13", true},
		{allow, "evil.example:13", false},
		{allow, "evil.example\x00.cdn.example:13", true},
		{allow, "a.cdn.example@evil.example:13", true},
		{allow, "a.xn--cdn-.example:13", true},
		{deny, "other.example:13", true},
		{deny, "evil.example:13", false},
		{deny, "evil.example.:13", true},
		{deny, "EVIL.example:13", true},
		{deny, "10.0.0.5:13", false},
		{deny, "169.254.169.254:13", false},
		{deny, "167772165:13", true},
		{deny, "[::ffff:10.0.0.5]:13", true},
	} {
		if got := c.n.allows(c.host); got != c.passes {
			t.Errorf("%q: %t, want %t", c.host, got, c.passes)
		}
	}
	for text, want := range map[string]string{"167772165": "10.0.0.5", "012.0.0.5": "10.0.0.5", "0xa.5": "10.0.0.5", "10.5": "10.0.0.5", "4462739461": "10.0.0.5", "a.5": "invalid IP"} {
		if got, _ := aton(text); got.String() != want {
			t.Errorf("aton(%q) = %v, want %s", text, got, want)
		}
	}
}
