package cell

import (
	"testing"
)

// A blank is handed out once, to a call of its shape, and few are kept.
func TestBlanksOnce(t *testing.T) {
	var m blanks
	small, large := shape{disk: 1}, shape{disk: 1, host: true}
	if m.take(small) != nil {
		t.Fatal("one before any was made")
	}
	made := make(map[*blank]bool)
	put := func(k shape) *blank {
		b := &blank{shape: k}
		made[b] = true
		return m.put(b)
	}
	put(large)
	put(small)
	put(small)
	for range 2 {
		b := m.take(small)
		if b == nil || b.shape != small || !made[b] {
			t.Fatalf("took %+v; want one of %+v that was put and not taken", b, small)
		}
		delete(made, b)
	}
	if b := m.take(small); b != nil {
		t.Errorf("took %+v, of another shape or a second time", b)
	}
	gone := 0
	for range 2 * maxBlanks {
		if put(small) != nil {
			gone++
		}
	}
	if want := maxBlanks + 1; gone != want || len(m.list) != maxBlanks || m.take(large) != nil {
		t.Errorf("%d had to go and %d are kept; want %d and %d, the oldest gone first", gone, len(m.list), want, maxBlanks)
	}
}
