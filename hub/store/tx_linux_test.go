package store

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"palyra/internal/fault"
)

// TestUpdateIsAtomic: what fails leaves nothing, and does not touch the others
// that share its commit.
func TestUpdateIsAtomic(t *testing.T) {
	s := newStore(t)
	ctx := context.Background()
	mine := errors.New("mine")
	put := func(tx *Tx, k string) error { return tx.PutSetting(&Setting{Key: k}) }
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			k := fmt.Sprint("k", i)
			defer func() {
				if p := recover(); (p != nil) != (i%4 == 3) || p != nil && p != k {
					t.Errorf("%s: panic %v", k, p)
				}
			}()
			err := s.Update(ctx, func(tx *Tx) error {
				if err := put(tx, k); err != nil {
					return err
				}
				switch i % 4 {
				case 1:
					return mine
				case 2: // an error of SQLite that f swallows is f's business
					_ = tx.CreateSession(&Session{Principal: "x", State: "bad"})
				case 3:
					panic(k)
				}
				return nil
			})
			if (err != nil) != (i%4 == 1) || err != nil && !errors.Is(err, mine) {
				t.Errorf("%s: %v", k, err)
			}
		})
	}
	wg.Wait()
	for i := range 40 {
		_, err := View(ctx, s, func(tx *Tx) (*Setting, error) { return tx.Setting(fmt.Sprint("k", i)) })
		if want := i%4 == 0 || i%4 == 2; (err == nil) != want {
			t.Errorf("k%d: %v", i, err)
		}
	}
	if _, err := View(ctx, s, func(tx *Tx) (bool, error) { return true, put(tx, "v") }); err == nil {
		t.Error("a view wrote")
	}
	var kept *Tx
	do(t, s, func(tx *Tx) error { kept = tx; return nil })
	if err := put(kept, "late"); err == nil {
		t.Error("a transaction that has ended wrote")
	}
	check(t, s)
}

// TestUpdateCancel: a context ends the wait for the turn, not a commit.
func TestUpdateCancel(t *testing.T) {
	s := newStore(t)
	in, out := make(chan bool), make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Update(context.Background(), func(tx *Tx) error { in <- true; <-out; return nil }); err != nil {
			t.Error(err)
		}
	})
	<-in
	ctx, cancel := context.WithCancel(context.Background())
	ran := false
	wg.Go(func() {
		wants(t, s.Update(ctx, func(tx *Tx) error { ran = true; return nil }), fault.Canceled, "canceled")
	})
	cancel()
	wg.Go(func() {
		if err := s.Update(context.Background(), func(tx *Tx) error { return tx.PutSetting(&Setting{Key: "after"}) }); err != nil {
			t.Error(err)
		}
	})
	out <- true
	wg.Wait()
	if ran {
		t.Error("an update whose context had ended ran")
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	wants(t, s.Update(context.Background(), func(*Tx) error { return nil }), fault.Busy, "not_ready")
	_, err := View(context.Background(), s, func(*Tx) (int, error) { return 0, nil })
	wants(t, err, fault.Busy, "not_ready")
}

// TestNoTemporaryFiles: no connection puts anything into files outside of the
// store. What happens otherwise shows in cmd/palyrad's TestCellKillUnderLoad.
func TestNoTemporaryFiles(t *testing.T) {
	s := openStore(t, filepath.Join(t.TempDir(), "store"), Options{Readers: 2})
	const memory = 2 // https://www.sqlite.org/pragma.html#pragma_temp_store
	ask := func(tx *Tx) (n int, err error) {
		_, err = tx.row("ask for temp_store", `PRAGMA temp_store`, nil, &n)
		return n, err
	}
	for range 4 {
		if n := see(t, s, ask); n != memory {
			t.Errorf("a reader has temp_store %d", n)
		}
	}
	err := s.Update(t.Context(), func(tx *Tx) error {
		n, err := ask(tx)
		if n != memory {
			t.Errorf("the writer has temp_store %d", n)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}
