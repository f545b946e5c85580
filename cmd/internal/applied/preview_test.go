package applied

import "testing"

// TestUntab: a line has as many columns as characters, and looks the same.
func TestUntab(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "ab": "ab", "  | \tx": "  |     x", "1234567\tx": "1234567 x", "12345678\tx": "12345678        x", "\t\tx": "                x",
	} {
		if got := untab(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
