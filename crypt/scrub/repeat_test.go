package scrub

import (
	"bytes"
	"testing"
)

// TestRepetition: a value that is like itself costs no more for each byte of text the longer it is,
// and is found.
func TestRepetition(t *testing.T) {
	const size = 64 << 10
	for _, unit := range []string{"a", "ab", "the same again, "} {
		value := append(bytes.Repeat([]byte(unit), size/len(unit))[:size-1], '!')
		p := &pattern{text: value, overlaps: overlaps(value)}
		if p.overlaps == nil {
			t.Fatalf("%q: it's compared as a whole", unit)
		}
		// The second text is one byte short of the value at each of its places.
		for _, text := range [][]byte{bytes.Repeat([]byte(unit), 2*size/len(unit)), append(bytes.Clone(value[:size-1]), '?')} {
			s, reach := search{text: text}, 0
			for i := range text {
				got := s.agrees(p, i)
				if want := min(got+1, len(value), len(text)-i); !bytes.Equal(text[i:i+got], value[:got]) || want > got && text[i+got] == value[got] {
					t.Fatalf("%q at %d: %d bytes", unit, i, got)
				}
				if to := s.seen[p].to; to < reach {
					t.Fatalf("%q at %d: compared again from %d, which was known up to %d", unit, i, to, reach)
				} else {
					reach = to
				}
			}
		}
		r := New()
		if err := r.Add("key", value); err != nil {
			t.Fatal(err)
		}
		text := append(bytes.Repeat([]byte(unit), 3), value...)
		if got, want := string(r.Bytes(text)), string(bytes.Repeat([]byte(unit), 3))+"[secret key]"; got != want {
			t.Errorf("%q: %d bytes, want %q", unit, len(got), want)
		}
	}
	if overlaps(bytes.Repeat([]byte("0123456789abcdef"), 8)) != nil || overlaps(bytes.Repeat([]byte("k"), short)) != nil {
		t.Error("a pattern that costs little has overlaps")
	}
}
