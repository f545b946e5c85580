package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
)

// TestScansLeaveReaders: however many lists are made, whoever looks something up doesn't wait for
// them.
func TestScansLeaveReaders(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	begun, end, over := make(chan struct{}), make(chan struct{}), make(chan error)
	const scans = 8 // more than there are readers
	for range scans {
		go func() {
			_, err := Scan(t.Context(), s, func(*Tx) (int, error) {
				begun <- struct{}{}
				<-end
				return 0, nil
			})
			over <- err
		}()
	}
	for range cap(s.scans) {
		<-begun
	}
	if _, err := View(t.Context(), s, func(tx *Tx) (int, error) { return tx.OpenSessions("") }); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Scan(ctx, s, func(*Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("a scan began that was called off")
	}
	go func() {
		for range begun {
		}
	}()
	close(end)
	for range scans {
		if err := <-over; err != nil {
			t.Error(err)
		}
	}
	close(begun)
}

// TestLiveRunsByFewRows: the live runs of a principal are found without looking at those that
// ended.
func TestLiveRunsByFewRows(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, f := range []RunFilter{
		{Principal: "uid:1", States: []RunState{RunPending}},
		{Principal: "uid:1", Session: "ses_x", States: []RunState{RunPending, RunInProgress}},
		{Session: "ses_x", States: []RunState{RunAccepted}},
	} {
		var l list
		l.runs(f)
		text, args := l.text(selectRunOnly, "runs", Page{})
		plan, err := View(t.Context(), s, func(tx *Tx) (plan string, err error) {
			var id, parent, other int
			_, err = tx.row("explain", "EXPLAIN QUERY PLAN "+text, args, &id, &parent, &other, &plan)
			return plan, err
		})
		if want := "SCAN runs USING INDEX runs_live"; err != nil || plan != want {
			t.Errorf("%+v: %q, %v, want %q", f, plan, err, want)
		}
	}
}

// TestScansLetLogEnd: scans that overlap without end don't let the write-ahead log grow without
// end.
func TestScansLetLogEnd(t *testing.T) {
	s, err := Open(t.TempDir()+"/store", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.walMost = 4 << 20
	const updates, size = 400, 128 << 10 // 50 MiB
	more := sync.NewCond(new(sync.Mutex))
	written := 0 // guarded by more.L
	var wg sync.WaitGroup
	for at := range 2 { // each goes on for ten updates, and the other begins in the middle of it
		wg.Go(func() {
			for until := 5 + 5*at; until < updates; until += 10 {
				_, err := Scan(t.Context(), s, func(tx *Tx) (int, error) {
					n, err := tx.OpenSessions("")
					more.L.Lock()
					for written < until {
						more.Wait()
					}
					more.L.Unlock()
					return n, err
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	largest := int64(0)
	for i := range updates {
		err := s.Update(t.Context(), func(tx *Tx) error {
			return tx.PutSetting(&Setting{Key: fmt.Sprint("k", i), Value: make([]byte, size)})
		})
		if err != nil {
			t.Error(err)
		}
		if fi, err := os.Stat(filepath.Join(s.dir, dbFile+"-wal")); err != nil {
			t.Error(err)
		} else {
			largest = max(largest, fi.Size())
		}
		more.L.Lock()
		written++
		more.L.Unlock()
		more.Broadcast()
	}
	wg.Wait()
	if most := int64(16 << 20); largest > most {
		t.Errorf("the write-ahead log had %d bytes, want at most %d", largest, most)
	}
}
