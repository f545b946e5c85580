package journal

import (
	"bytes"
	"context"
	"testing"
)

// entry of the size that receipts have: a leaf of 489 bytes, an envelope of 6 kB.
func benchEntry() Entry {
	return Entry{Leaf: bytes.Repeat([]byte("l"), 489), Content: bytes.Repeat([]byte("c"), 6000)}
}

func BenchmarkAppend(b *testing.B) {
	j := newHouse(b).open(b, Options{})
	defer j.Close()
	for b.Loop() {
		if _, err := j.Append(context.Background(), benchEntry()); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkAppendParallel(b *testing.B) {
	j := newHouse(b).open(b, Options{})
	defer j.Close()
	b.SetParallelism(8)
	b.RunParallel(func(p *testing.PB) {
		for p.Next() {
			if _, err := j.Append(context.Background(), benchEntry()); err != nil {
				b.Error(err)
				return
			}
		}
	})
}

func BenchmarkProve(b *testing.B) {
	j := newHouse(b).open(b, Options{})
	defer j.Close()
	fill(b, j, 0, 10_000)
	b.Run("newest", func(b *testing.B) {
		for b.Loop() {
			if _, err := j.Prove(b.Context(), 9_999); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("oldest", func(b *testing.B) {
		for b.Loop() {
			if _, err := j.Prove(b.Context(), 0); err != nil {
				b.Fatal(err)
			}
		}
	})
}

// BenchmarkOpenAppendTwiceClose is what one palyra exec does to the journal.
func BenchmarkOpenAppendTwiceClose(b *testing.B) {
	s := newHouse(b)
	for b.Loop() {
		j := s.open(b, Options{})
		for range 2 {
			p, err := j.Append(context.Background(), benchEntry())
			if err != nil {
				b.Fatal(err)
			}
			if _, err := j.Prove(b.Context(), p.Index); err != nil {
				b.Fatal(err)
			}
		}
		if err := j.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpenClose with half a tile in the write-ahead file.
func BenchmarkOpenClose(b *testing.B) {
	s := newHouse(b)
	j := s.open(b, Options{})
	for range 128 {
		if _, err := j.Append(context.Background(), benchEntry()); err != nil {
			b.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if err := s.open(b, Options{}).Close(); err != nil {
			b.Fatal(err)
		}
	}
}
