package journal

import (
	"bytes"
	"slices"
	"testing"
)

// TestFaded tells the damage of a power failure to an unflushed file from a deliberate
// change.
func TestFaded(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 100) // three sectors and a piece
	zeroed := func(from, to int) []byte {
		b := slices.Clone(want)
		clear(b[from:to])
		return b
	}
	for name, c := range map[string]struct {
		b    []byte
		fade bool
	}{
		"the same":         {want, false},
		"empty":            {nil, true},
		"ends early":       {want[:1000], true},
		"all zero":         {make([]byte, len(want)), true},
		"first sector":     {zeroed(0, 512), true},
		"last piece":       {zeroed(1536, 1600), true},
		"middle, cut":      {zeroed(512, 1024)[:1200], true},
		"part of a sector": {zeroed(512, 600), false},
		"two halves":       {zeroed(256, 768), false},
		"longer":           {append(slices.Clone(want), 0), false},
		"a bit":            {append([]byte{want[0] ^ 1}, want[1:]...), false},
	} {
		if got := faded(c.b, want); got != c.fade {
			t.Errorf("%s: %v, want %v", name, got, c.fade)
		}
	}
}
