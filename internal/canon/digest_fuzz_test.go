package canon

import "testing"

// FuzzDigest: a digest has one spelling, and what is refused leaves none.
func FuzzDigest(f *testing.F) {
	f.Add("")
	f.Add(Sum([]byte("x")).String())
	f.Add("sha256:" + Sum(nil).Hex()[1:] + "F")
	f.Add("sha256:0000000000000000000000000000000000000000000000000000000000000000")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		if err != nil {
			if !d.IsZero() {
				t.Errorf("%q is refused and gives %s", s, d)
			}
			return
		}
		// The digest of all zeros stands for none, so its hexadecimal form is the one exception.
		if got := d.String(); got != s && !(d.IsZero() && got == "") {
			t.Errorf("%q reads as %q", s, got)
		}
	})
}
