package canon

import (
	"strings"
	"testing"
)

func TestDigest(t *testing.T) {
	d := Sum([]byte("abc"))
	const want = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
	if d.String() != want {
		t.Errorf("got %s, want %s", d, want)
	}
	if back, err := ParseDigest(want); err != nil || back != d {
		t.Errorf("ParseDigest: %v, %v", back, err)
	}
	if text, err := d.MarshalText(); err != nil || string(text) != want {
		t.Errorf("MarshalText: %s, %v", text, err)
	}
	if z, err := ParseDigest(""); err != nil || !z.IsZero() || z.String() != "" {
		t.Errorf("zero: %v, %v", z, err)
	}
	for _, bad := range []string{"sha256:", want[:70], want + "0", strings.ToUpper(want), want[7:], "sha512" + want[6:], "sha256:" + strings.Repeat("g", 64)} {
		if _, err := ParseDigest(bad); err == nil {
			t.Errorf("ParseDigest(%q) passed", bad)
		}
	}
}
