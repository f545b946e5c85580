package journal

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"
)

// TestMoveMemory: moving entries out of the write-ahead file holds a few of them in memory,
// however large they are. Two bundles of those here have 32 MiB.
func TestMoveMemory(t *testing.T) {
	const size, most = 64 << 10, 6 << 20
	var m runtime.MemStats
	before, peak := uint64(0), uint64(0)
	o := Options{TestOnlyStep: func(step string) {
		if before > 0 && strings.HasPrefix(step, "seal:") {
			runtime.GC()
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapAlloc)
		}
	}}
	s := newHouse(t)
	j := s.open(t, o)
	content := bytes.Repeat([]byte("c"), size)
	for i := range 2*tileWidth - 1 { // a bundle, and a tail as large
		if _, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: content}); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&m)
	before = m.HeapAlloc
	if err := j.Publish(context.Background()); err != nil {
		t.Fatal(err)
	}
	if peak < before || peak-before > most {
		t.Errorf("the heap grew from %d to %d bytes, want at most %d more", before, peak, most)
	}
	if j.tree.base != tileWidth {
		t.Errorf("%d entries are in tiles, want %d", j.tree.base, tileWidth)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	s.check(t)
}
