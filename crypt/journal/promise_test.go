package journal

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// TestOpenEntries follows intents and results through groups, seals and opens.
func TestOpenEntries(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	app := func(e Entry) uint64 {
		t.Helper()
		e.Leaf = []byte(rand.Text())
		p, err := j.Append(context.Background(), e)
		if err != nil {
			t.Fatal(err)
		}
		return p.Index
	}
	long := app(Entry{Opens: true})
	for range 300 {
		i := app(Entry{Opens: true})
		app(Entry{Closes: &i})
	}
	late := app(Entry{Opens: true})
	want := fmt.Sprint([]uint64{long, late})
	for range 2 {
		if got := fmt.Sprint(j.OpenEntries()); got != want {
			t.Fatalf("open %s, want %s", got, want)
		}
		if err := j.Close(); err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(s.check(t).Open); got != want {
			t.Fatalf("check: open %s, want %s", got, want)
		}
		j = s.open(t, Options{})
	}
	app(Entry{Closes: &long})
	if _, err := j.Append(context.Background(), Entry{Leaf: []byte("x"), Closes: &long}); !errors.Is(err, ErrNotOpen) {
		t.Errorf("second result for one intent: %v", err)
	}
	app(Entry{Closes: &late})
	if got := j.OpenEntries(); len(got) != 0 {
		t.Errorf("open %v, want none", got)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFlushes counts what the claims in the package comment promise.
func TestFlushes(t *testing.T) {
	s := newHouse(t)
	flushes, names := 0, ""
	o := Options{TestOnlyStep: func(n string) {
		if n == "append:durable" || strings.HasSuffix(n, ":synced") || strings.HasSuffix(n, ":durable") || n == "recover:cut" {
			flushes++
		}
		names += n + " "
	}}
	j := s.open(t, o)
	add(t, j, 0, 1)
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	flushes, names = 0, ""
	j = s.open(t, o)
	if flushes != 0 {
		t.Errorf("open flushed %d times: %s", flushes, names)
	}
	add(t, j, 1, 3)
	if _, err := j.Prove(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if flushes != 2 {
		t.Errorf("open, two appends, prove and close flushed %d times, want 2: %s", flushes, names)
	}
	// The 256th entry makes a complete tile: bundle, contents, two tiles,
	// checkpoint and write-ahead file, each with its folder.
	j = s.open(t, o)
	add(t, j, 3, 256)
	flushes = 0
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if flushes > 14 {
		t.Errorf("sealing a tile flushed %d times", flushes)
	}
	t.Logf("sealing one tile: %d flushes", flushes)
}

func TestConsistency(t *testing.T) {
	s := newHouse(t)
	j := s.open(t, Options{})
	roots := make(map[uint64][32]byte)
	for n := 1; n < 700; n += 37 {
		fill(t, j, int(j.Size()), n)
		roots[uint64(n)] = j.tree.root
	}
	if err := j.Publish(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := j.tree.root
	for n, root := range roots {
		c, err := j.ProveConsistency(t.Context(), n)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Verify(root, now); err != nil {
			t.Errorf("size %d: %v", n, err)
		}
		root[0] ^= 1
		if c.Verify(root, now) == nil {
			t.Errorf("size %d: another root verifies", n)
		}
	}
	for _, n := range []uint64{0, j.Size() + 1} {
		if _, err := j.ProveConsistency(t.Context(), n); fault.KindOf(err) != fault.Usage {
			t.Errorf("size %d: %v, want usage", n, err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
}

// TestFlushesAfterDeath: what a dead writer may not have flushed, since it left no
// word that it had, is flushed before it is proved, published or built upon, and
// only then.
func TestFlushesAfterDeath(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(*Journal) error
		want int
	}{
		{"prove", func(j *Journal) error { _, err := j.Prove(t.Context(), 0); return err }, 1},
		{"checkpoint", func(j *Journal) error { _, err := j.Checkpoint(t.Context()); return err }, 1},
		{"close", func(*Journal) error { return nil }, 1},
		{"append", func(j *Journal) error {
			_, err := j.Append(context.Background(), Entry{Leaf: []byte("x")})
			return err
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, _ := written(t)
			if err := os.Truncate(filepath.Join(s.dir, lockFile), 0); err != nil {
				t.Fatal(err)
			}
			j := s.open(t, Options{})
			d := &counting{storage: j.wal.file}
			j.wal.file = d
			if err := c.do(j); err != nil {
				t.Fatal(err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
			if d.syncs != c.want {
				t.Errorf("%d flushes, want %d", d.syncs, c.want)
			}
			j = s.open(t, Options{})
			d = &counting{storage: j.wal.file}
			j.wal.file = d
			if _, err := j.Prove(t.Context(), 0); err != nil || d.syncs != 0 {
				t.Errorf("after a clean close: %d flushes, %v", d.syncs, err)
			}
			if err := j.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestWordOfTheDead: a writer that was killed after its flush had left word of it,
// which saves the next one a flush. A word about another file, of less, or that is
// damaged counts for nothing.
func TestWordOfTheDead(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(b []byte)
		want   int
	}{
		{"as it is", func([]byte) {}, 0},
		{"another file", func(b []byte) { b[4] ^= 1; binary.BigEndian.PutUint32(b[20:], crcOf(b[:20])) }, 1},
		{"less", func(b []byte) { b[19]--; binary.BigEndian.PutUint32(b[20:], crcOf(b[:20])) }, 1},
		{"damaged", func(b []byte) { b[12] ^= 1 }, 1},
		{"no word", func(b []byte) { clear(b) }, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, _, _ := written(t)
			lock := filepath.Join(s.dir, lockFile)
			b, err := os.ReadFile(lock)
			if err != nil || len(b) != wordLen {
				t.Fatalf("word %x, %v", b, err)
			}
			c.change(b)
			if err := os.WriteFile(lock, b, 0o600); err != nil {
				t.Fatal(err)
			}
			j := s.open(t, Options{})
			defer j.Close()
			d := &counting{storage: j.wal.file}
			j.wal.file = d
			if _, err := j.Prove(t.Context(), 0); err != nil || d.syncs != c.want {
				t.Errorf("%d flushes, want %d, %v", d.syncs, c.want, err)
			}
		})
	}
}

// counting is a write-ahead file that counts its flushes.
type counting struct {
	storage
	syncs int
}

func (c *counting) Sync() error { c.syncs++; return c.storage.Sync() }
