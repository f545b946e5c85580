package access

import "testing"

// FuzzScopes: a list of permissions reads as exactly what it names or is
// refused, and is written as it reads.
func FuzzScopes(f *testing.F) {
	f.Add([]byte(`[]`))
	f.Add([]byte(`null`))
	f.Add([]byte(`["` + string(table[0].permission) + `","` + string(table[1].permission) + `"]`))
	f.Add([]byte(`["*"]`))
	f.Add([]byte(`[""]`))
	f.Fuzz(func(t *testing.T, b []byte) {
		var s Set
		if s.UnmarshalJSON(b) != nil {
			if s != 0 {
				t.Errorf("%q is refused and gives %s", b, s)
			}
			return
		}
		text, err := s.MarshalJSON()
		var again Set
		if err != nil || again.UnmarshalJSON(text) != nil || again != s || !s.Within(All()) {
			t.Errorf("%q reads as %s, which is written %s", b, s, text)
		}
	})
}
