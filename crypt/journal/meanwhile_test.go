package journal

import (
	"context"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"palyra/internal/fault"
)

// TestMeanwhile: what is to be done meanwhile is done after the entry was written
// and before it is durable, and the proof that it is given is the one that Prove
// gives afterwards.
func TestMeanwhile(t *testing.T) {
	s := newHouse(t)
	var steps []string // of the append that is looked at
	j := s.open(t, Options{TestOnlyStep: func(n string) {
		if strings.HasPrefix(n, "append:") {
			steps = append(steps, n)
		}
	}})
	defer j.Close()
	one := func(n int) {
		t.Helper()
		steps = nil
		var early Proof
		pos, err := j.AppendMeanwhile(context.Background(), Entry{Leaf: leafN(n), Content: contentN(n)}, func(prove func() (Proof, error)) {
			steps = append(steps, "meanwhile")
			var err error
			if early, err = prove(); err != nil {
				t.Error(err)
			}
		})
		if err != nil || pos.Index != uint64(n) {
			t.Fatal(pos, err)
		}
		if got := strings.Join(steps, " "); got != "append:begin append:written meanwhile append:durable" {
			t.Fatalf("steps %s", got)
		}
		late, err := j.Prove(t.Context(), pos.Index)
		if err != nil || !reflect.DeepEqual(early, late) {
			t.Fatalf("proof %+v, afterwards %+v, %v", early, late, err)
		}
		verifyProof(t, j.Key(), early, leafN(n))
	}
	for n := range 5 {
		one(n)
	}
	fill(t, j, 5, tileWidth-1)
	one(tileWidth - 1)
	one(tileWidth)
	if err := j.Publish(t.Context()); err != nil { // from here on hashes are in tiles
		t.Fatal(err)
	}
	one(tileWidth + 1)
	one(tileWidth + 2)
}

// TestMeanwhileAlone: the other callers of a group don't wait for one caller's meanwhile.
func TestMeanwhileAlone(t *testing.T) {
	writing, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	j := newHouse(t).open(t, Options{TestOnlyStep: func(name string) {
		if name == "append:written" {
			once.Do(func() { close(writing); <-release })
		}
	}})
	defer j.Close()
	var called atomic.Int32
	var wg sync.WaitGroup
	put := func() {
		if _, err := j.AppendMeanwhile(context.Background(), benchEntry(), func(func() (Proof, error)) { called.Add(1) }); err != nil {
			t.Error(err)
		}
	}
	wg.Go(put)
	<-writing
	for range 3 {
		wg.Go(put)
	}
	for n := 0; n < 3; runtime.Gosched() {
		j.queue.mu.Lock()
		n = len(j.queue.waiting)
		j.queue.mu.Unlock()
	}
	close(release)
	wg.Wait()
	if n := called.Load(); n != 1 {
		t.Errorf("called %d times, want once, by the first", n)
	}
	// An entry that is not admitted has nothing done for it.
	none := uint64(99)
	if _, err := j.AppendMeanwhile(context.Background(), Entry{Leaf: []byte("x"), Closes: &none}, func(func() (Proof, error)) { called.Add(1) }); err == nil || called.Load() != 1 {
		t.Errorf("%v, called %d times", err, called.Load())
	}
}

// lazy is a write-ahead file whose next flush fails.
type lazy struct {
	storage
	fail bool
	hint int64
}

func (l *lazy) StartWriting(off, n int64) { l.hint = n }

func (l *lazy) Sync() error {
	if l.fail {
		l.fail = false
		return syscall.EIO
	}
	return l.storage.Sync()
}

// TestMeanwhileFails: an entry whose flush fails is not in the log, whatever was
// done meanwhile, and the next takes its place.
func TestMeanwhileFails(t *testing.T) {
	j := newHouse(t).open(t, Options{})
	defer j.Close()
	add(t, j, 0, 3)
	d := &lazy{storage: j.wal.file, fail: true}
	j.wal.file = d
	var early Proof
	_, err := j.AppendMeanwhile(context.Background(), Entry{Leaf: []byte("lost")}, func(prove func() (Proof, error)) { early, _ = prove() })
	if fault.KindOf(err) != fault.Unavailable || j.Size() != 3 {
		t.Errorf("size %d, %v", j.Size(), err)
	}
	if early.Index != 3 || d.hint == 0 {
		t.Errorf("proof of entry %d, hint of %d bytes", early.Index, d.hint)
	}
	add(t, j, 3, 4)
	if p, err := j.Prove(t.Context(), 3); err != nil || p.Root == early.Root {
		t.Errorf("the entry that failed is in the log: %v", err)
	}
}
