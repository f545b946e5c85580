package journal

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

var errNotNext = errors.New("not the next")

// inOrder lets leafN(i) follow leafN(i-1) alone.
func inOrder(last []byte, next *Entry) error {
	n := -1
	if last != nil {
		if _, err := fmt.Sscanf(string(last), `{"leaf":%d}`, &n); err != nil {
			return err
		}
	}
	if string(next.Leaf) != string(leafN(n+1)) {
		return errNotNext
	}
	return nil
}

// TestFollows: an entry is judged against the newest leaf of the whole log, whoever wrote it and
// wherever it is kept by now.
func TestFollows(t *testing.T) {
	h := newHouse(t)
	a, b := h.open(t, Options{Follows: inOrder}), h.open(t, Options{Follows: inOrder})
	for i := range 3 * tileWidth {
		j := a
		if i%3 == 1 {
			j = b
		}
		if _, err := j.Append(t.Context(), Entry{Leaf: leafN(i + 1)}); err != errNotNext {
			t.Fatalf("leaf %d instead of %d: %v", i+1, i, err)
		}
		if _, err := j.Append(t.Context(), Entry{Leaf: leafN(i)}); err != nil {
			t.Fatalf("leaf %d: %v", i, err)
		}
		if (i+1)%tileWidth == 0 { // the newest leaf goes into a tile
			if err := a.Publish(t.Context()); err != nil {
				t.Fatal(err)
			}
			c := h.open(t, Options{Follows: inOrder})
			if _, err := c.Append(t.Context(), Entry{Leaf: leafN(i)}); err != errNotNext {
				t.Fatalf("leaf %d twice: %v", i, err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	// Of a group's entries each is judged against the one before it.
	var wg sync.WaitGroup
	var mu sync.Mutex
	good := 0
	for range 16 {
		wg.Go(func() {
			if _, err := b.Append(t.Context(), Entry{Leaf: leafN(3 * tileWidth)}); err == nil {
				mu.Lock()
				good++
				mu.Unlock()
			} else if err != errNotNext {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if good != 1 {
		t.Errorf("%d of 16 entries that may follow once", good)
	}
	if err := errors.Join(a.Close(), b.Close()); err != nil {
		t.Fatal(err)
	}
	if r := h.check(t); r.Size != 3*tileWidth+1 {
		t.Errorf("%d entries", r.Size)
	}
}
