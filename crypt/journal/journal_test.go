package journal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"palyra/crypt/keyring"
	"palyra/internal/fault"
)

// house is a state directory with its keys and where its journal goes.
type house struct {
	ring *keyring.Ring
	dir  string
}

func newHouse(t testing.TB) *house {
	t.Helper()
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	ring, err := keyring.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &house{ring: ring, dir: filepath.Join(dir, "journal")}
}

func (s *house) open(t testing.TB, o Options) *Journal {
	t.Helper()
	j, err := Open(s.dir, s.ring.Log(), o)
	if err != nil {
		t.Fatal(err)
	}
	return j
}

func (s *house) check(t testing.TB) *Report {
	t.Helper()
	r, err := Check(s.dir, OneKey(s.ring.Log().VKey()))
	if err != nil {
		t.Fatalf("check: %v", err)
	}
	return r
}

func leafN(i int) []byte    { return fmt.Appendf(nil, `{"leaf":%d}`, i) }
func contentN(i int) []byte { return bytes.Repeat(fmt.Appendf(nil, "content %d;", i), 1+i%40) }

func add(t testing.TB, j *Journal, from, to int) {
	t.Helper()
	for i := from; i < to; i++ {
		p, err := j.Append(context.Background(), Entry{Leaf: leafN(i), Content: contentN(i)})
		if err != nil {
			t.Fatal(err)
		}
		if p.Index != uint64(i) {
			t.Fatalf("index %d, want %d", p.Index, i)
		}
	}
}

// fill is add in as few groups as possible, for tests that need a large log.
func fill(t testing.TB, j *Journal, from, to int) {
	t.Helper()
	j.writer.must()
	defer j.leave()
	if err := j.take(context.Background()); err != nil {
		t.Fatal(err)
	}
	defer j.yield()
	for from < to {
		n := min(maxGroup, to-from)
		var batch []*request
		for i := range n {
			batch = append(batch, &request{entry: Entry{Leaf: leafN(from + i), Content: contentN(from + i)}})
		}
		j.commit(batch)
		for _, r := range batch {
			if r.err != nil {
				t.Fatal(r.err)
			}
		}
		from += n
	}
}

// verifyProof is what a stranger does with a proof.
func verifyProof(t testing.TB, vkey string, p Proof, leaf []byte) {
	t.Helper()
	c, err := OpenCheckpoint(p.Checkpoint, vkey)
	if err != nil {
		t.Fatal(err)
	}
	if c.Size != p.Size || c.Root != p.Root {
		t.Fatalf("checkpoint of size %d for a proof of size %d", c.Size, p.Size)
	}
	if err := p.Verify(leaf); err != nil {
		t.Fatal(err)
	}
}

// TestSizes opens, appends and closes at every boundary, and proves and reads
// old and new entries after each.
func TestSizes(t *testing.T) {
	s := newHouse(t)
	n := 0
	for _, to := range []int{1, 2, 3, 255, 256, 257, 511, 512, 600, 1300, 1536, 1537} {
		j := s.open(t, Options{})
		if got := j.Size(); got != uint64(n) {
			t.Fatalf("size %d after open, want %d", got, n)
		}
		fill(t, j, n, to-1)
		add(t, j, to-1, to)
		n = to
		for _, i := range []int{0, 1, n / 3, n / 2, n - 2, n - 1} {
			if i < 0 || i >= n {
				continue
			}
			p, err := j.Prove(t.Context(), uint64(i))
			if err != nil {
				t.Fatal(err)
			}
			verifyProof(t, s.ring.Log().VKey(), p, leafN(i))
			if c, err := j.Content(uint64(i)); err != nil || !bytes.Equal(c, contentN(i)) {
				t.Fatalf("content %d: %q, %v", i, c, err)
			}
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		r := s.check(t)
		if r.Size != uint64(n) || r.Published != uint64(n) || r.Sealed != uint64(n)/256*256 || r.Torn != 0 || len(r.Notes) != 0 {
			t.Fatalf("report %+v at size %d", r, n)
		}
	}
	// Entries read back as they were appended.
	rd, err := OpenReader(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	i := 0
	for rec, err := range rd.Entries(0, rd.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		if rec.Index != uint64(i) || !bytes.Equal(rec.Leaf, leafN(i)) || !bytes.Equal(rec.Content, contentN(i)) {
			t.Fatalf("record %d is %d: %q", i, rec.Index, rec.Leaf)
		}
		i++
	}
	if i != n {
		t.Fatalf("%d records, want %d", i, n)
	}
}

// TestTreeAgainstReference compares every root with one computed by hand from
// RFC 6962's definition.
func TestTreeAgainstReference(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	defer j.Close()
	var leaves [][]byte
	for i := range 70 {
		add(t, j, i, i+1)
		leaves = append(leaves, leafN(i))
		if got, want := j.tree.root, tlog.Hash(mth(leaves)); got != want {
			t.Fatalf("root of size %d is %v, want %v", i+1, got, want)
		}
	}
}

// mth is MTH of RFC 6962 §2.1, word for word.
func mth(d [][]byte) [32]byte {
	if len(d) == 1 {
		return sum([]byte{0}, d[0])
	}
	k := 1
	for k*2 < len(d) {
		k *= 2
	}
	l, r := mth(d[:k]), mth(d[k:])
	return sum([]byte{1}, l[:], r[:])
}

func TestConcurrentAppends(t *testing.T) {
	s := newHouse(t)
	groups := 0
	j := s.open(t, Options{TestOnlyStep: func(n string) {
		if n == "append:durable" {
			groups++ // the leader is alone
		}
	}})
	const workers, each = 16, 40
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := make(map[uint64]string)
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				leaf := fmt.Sprintf("w%d i%d", w, i)
				p, err := j.Append(context.Background(), Entry{Leaf: []byte(leaf), Content: []byte("c" + leaf)})
				if err != nil {
					t.Error(err)
					return
				}
				proof, err := j.Prove(t.Context(), p.Index)
				if err != nil {
					t.Error(err)
					return
				}
				if err := proof.Verify([]byte(leaf)); err != nil {
					t.Error(err)
				}
				mu.Lock()
				if old, ok := seen[p.Index]; ok {
					t.Errorf("index %d given to %q and %q", p.Index, old, leaf)
				}
				seen[p.Index] = leaf
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if len(seen) != workers*each {
		t.Fatalf("%d entries, want %d", len(seen), workers*each)
	}
	if groups >= workers*each {
		t.Errorf("%d groups for %d entries: nothing was grouped", groups, workers*each)
	}
	s.check(t)
	rd, err := OpenReader(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	for rec, err := range rd.Entries(0, rd.Size()) {
		if err != nil {
			t.Fatal(err)
		}
		if string(rec.Leaf) != seen[rec.Index] {
			t.Errorf("entry %d is %q, want %q", rec.Index, rec.Leaf, seen[rec.Index])
		}
	}
}

// TestReadersBesideWriter reads and checks while entries are appended, sealed
// and published.
func TestReadersBesideWriter(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	add(t, j, 0, 1)
	done := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			var last uint64
			for {
				select {
				case <-done:
					return
				default:
				}
				r, err := Check(s.dir, OneKey(s.ring.Log().VKey()))
				if err != nil {
					t.Error(err)
					return
				}
				if r.Size < last {
					t.Errorf("size %d after %d", r.Size, last)
				}
				last = r.Size
			}
		})
	}
	for i := 1; i < 900; i += 3 {
		fill(t, j, i, i+3)
		if i%50 == 1 {
			if err := j.Publish(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
	close(done)
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAppendRefuses(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	at := func(i uint64) *uint64 { return &i }
	for _, c := range []struct {
		name   string
		e      Entry
		reason string
	}{
		{"empty leaf", Entry{}, "invalid_input"},
		{"long leaf", Entry{Leaf: make([]byte, MaxLeaf+1)}, "invalid_input"},
		{"long content", Entry{Leaf: []byte{1}, Content: make([]byte, MaxContent+1)}, "invalid_input"},
		{"closes nothing", Entry{Leaf: []byte{1}, Closes: at(0)}, "invalid_input"},
		{"closes itself", Entry{Leaf: []byte{1}, Opens: true, Closes: at(0)}, "invalid_input"},
	} {
		_, err := j.Append(context.Background(), c.e)
		if fault.ReasonOf(err) != c.reason || fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v, want %s", c.name, err, c.reason)
		}
	}
	if j.Size() != 0 {
		t.Errorf("size %d after refusals", j.Size())
	}
	if _, err := j.Prove(t.Context(), 0); fault.KindOf(err) != fault.NotFound {
		t.Errorf("prove in an empty log: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := j.Append(ctx, Entry{Leaf: []byte{1}}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("append with a done context: %v", err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := j.Append(context.Background(), Entry{Leaf: []byte{1}}); fault.ReasonOf(err) != "not_ready" {
		t.Errorf("append after close: %v", err)
	}
	if _, err := j.Prove(t.Context(), 0); fault.ReasonOf(err) != "not_ready" {
		t.Errorf("prove after close: %v", err)
	}
}

// TestGiveUpWaiting lets a context end while another group is being written:
// the entry must not appear, and those after it must.
func TestGiveUpWaiting(t *testing.T) {
	s := newHouse(t)
	inside, goOn := make(chan struct{}), make(chan struct{})
	first := true
	j := s.open(t, Options{TestOnlyStep: func(n string) {
		if n == "append:written" && first {
			first = false
			close(inside)
			<-goOn
		}
	}})
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = j.Append(context.Background(), Entry{Leaf: []byte("a")}) })
	<-inside
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if _, err := j.Append(ctx, Entry{Leaf: []byte("never")}); fault.KindOf(err) != fault.Timeout {
		t.Errorf("append: %v, want timeout", err)
	}
	wg.Go(func() {
		if _, err := j.Append(context.Background(), Entry{Leaf: []byte("b")}); err != nil {
			t.Error(err)
		}
	})
	close(goOn)
	wg.Wait()
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if r := s.check(t); r.Size != 2 {
		t.Errorf("size %d, want 2", r.Size)
	}
}

func TestFirstUseFlushes(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(s.dir, checkpointFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty log has a checkpoint: %v", err)
	}
	if r := s.check(t); r.Size != 0 {
		t.Errorf("size %d", r.Size)
	}
}

func sum(parts ...[]byte) [32]byte { return sha256.Sum256(bytes.Join(parts, nil)) }

// TestAppendWhileReading: whoever reads, and takes their time over it, holds up no
// append, and gets what there was when they began.
func TestAppendWhileReading(t *testing.T) {
	h := newHouse(t)
	j := h.open(t, Options{})
	const n = 3 * tileWidth / 2 // in bundles and in the write-ahead file
	fill(t, j, 0, n)
	if err := j.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	next := 0
	for rec, err := range j.Entries(1, 2*n) {
		if err != nil {
			t.Fatal(err)
		}
		if next++; rec.Index != uint64(next) || !bytes.Equal(rec.Leaf, leafN(next)) || !bytes.Equal(rec.Content, contentN(next)) {
			t.Fatalf("entry %d, want %d", rec.Index, next)
		}
		if next%100 != 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		_, err := j.Append(ctx, Entry{Leaf: leafN(n), Content: contentN(n)})
		cancel()
		if err != nil {
			t.Fatalf("while entry %d is read: %v", next, err)
		}
	}
	if next != n-1 {
		t.Errorf("the last entry was %d, want %d", next, n-1)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	for _, err := range j.Entries(0, 1) {
		if fault.ReasonOf(err) != fault.ReasonOf(errClosed("read journal")) {
			t.Errorf("after Close: %v", err)
		}
	}
}
