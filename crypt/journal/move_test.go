package journal

import (
	"context"
	"sync"
	"testing"
)

// TestMove: while complete tiles are moved out of the write-ahead file, appends
// and proofs go on, whatever the mover is at; what was appended meanwhile is in
// the new one.
func TestMove(t *testing.T) {
	for step, base := range map[string]uint64{"seal:tile:begin": 0, "seal:checkpoint:begin": 0, "seal:wal:synced": 0, "seal:swept": maxBacklog} {
		t.Run(step, func(t *testing.T) { testMove(t, step, base) })
	}
}

// testMove has the mover stand still at a step, when the file begins at base.
func testMove(t *testing.T, step string, base uint64) {
	s := newHouse(t)
	reached, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j := s.open(t, Options{TestOnlyStep: func(name string) {
		if name == step {
			once.Do(func() { close(reached); <-release })
		}
	}})
	p, err := j.Append(context.Background(), Entry{Leaf: leafN(0), Content: contentN(0), Opens: true})
	if err != nil || p.Index != 0 {
		t.Fatal(p, err)
	}
	fill(t, j, 1, maxBacklog)
	<-reached
	// More than a tile, with the mover standing still.
	fill(t, j, maxBacklog, maxBacklog+290)
	add(t, j, maxBacklog+290, maxBacklog+300)
	if _, err := j.Prove(t.Context(), 7); err != nil {
		t.Error(err)
	}
	var zero uint64
	if _, err := j.Append(context.Background(), Entry{Leaf: []byte("result"), Closes: &zero}); err != nil {
		t.Error(err)
	}
	if got := j.tree.base; got != base {
		t.Errorf("moved up to %d at %s, want %d", got, step, base)
	}
	s.check(t)
	close(release)
	j.movers.Wait()
	if base := j.tree.base; base != maxBacklog {
		t.Errorf("moved up to %d, want %d", base, maxBacklog)
	}
	if len(j.retired) != 0 {
		t.Error("the write-ahead file that was replaced is still open")
	}
	if open := j.OpenEntries(); len(open) != 0 {
		t.Errorf("open entries %v", open)
	}
	size := j.Size()
	if _, err := j.Prove(t.Context(), size-1); err != nil {
		t.Error(err)
	}
	if r := s.check(t); r.Size != size || r.Sealed != maxBacklog {
		t.Errorf("after the move: %+v", r)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := s.check(t); r.Size != size || r.Sealed != maxBacklog+tileWidth || r.Published != size || len(r.Notes) > 0 || len(r.Open) > 0 {
		t.Errorf("after Close: %+v", r)
	}
	j = s.open(t, Options{})
	defer j.Close()
	if c, err := j.Content(maxBacklog + 3); err != nil || string(c) != string(contentN(maxBacklog+3)) {
		t.Errorf("content %q, %v", c, err)
	}
}

// TestMoveUnderLoad appends from several sides over many moves, publishes among
// them and closes while one may run.
func TestMoveUnderLoad(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	const each, sides = 700, 4
	var wg sync.WaitGroup
	for range sides {
		wg.Go(func() {
			for range each {
				if _, err := j.Append(context.Background(), Entry{Leaf: []byte("leaf"), Content: []byte("content")}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() {
		for range 3 {
			if err := j.Publish(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := s.check(t); r.Size != each*sides || r.Published != each*sides || r.Sealed != each*sides/tileWidth*tileWidth {
		t.Errorf("%+v", r)
	}
}
