package store

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/internal/canon"
)

// BenchmarkAppendEvent is one durable event of a tape, from one and from many
// writers: those that wait share a commit.
func BenchmarkAppendEvent(b *testing.B) {
	for _, writers := range []int{1, 8, 64} {
		b.Run(fmt.Sprint("writers=", writers), func(b *testing.B) {
			s := newStore(b)
			r := newRun(b, s)
			payload := []byte(`{"kind":"x","text":"some output of a tool"}`)
			next := make(chan bool, writers)
			var wg sync.WaitGroup
			for range writers {
				wg.Go(func() {
					for range next {
						do(b, s, func(tx *Tx) error { _, err := tx.AppendEvent(r.ID, "k", payload); return err })
					}
				})
			}
			b.ResetTimer()
			for range b.N {
				next <- true
			}
			close(next)
			wg.Wait()
		})
	}
}

// BenchmarkView is one lookup by id.
func BenchmarkView(b *testing.B) {
	s := newStore(b)
	r := newRun(b, s)
	b.ReportAllocs()
	for b.Loop() {
		see(b, s, func(tx *Tx) (*Run, error) { return tx.Run(r.ID) })
	}
}

// BenchmarkOpenFull opens a store with 100,000 past approvals and events, and
// 1,000 artifacts.
func BenchmarkOpenFull(b *testing.B) {
	dir := filepath.Join(b.TempDir(), "store")
	s := openStore(b, dir, Options{})
	r := newRun(b, s)
	for range 100 {
		do(b, s, func(tx *Tx) error {
			for range 1000 {
				a := &Approval{Run: r.ID, Requester: "uid:1", Request: []byte("{}"), Capsule: canon.Sum([]byte("c")), PolicySet: canon.Sum([]byte("p")),
					Expires: time.Now().Add(time.Hour)}
				if err := tx.CreateApproval(a); err != nil {
					return err
				}
				if _, err := tx.ResolveApproval(a.ID, 1, Resolution{State: ApprovalWithdrawn}); err != nil {
					return err
				}
				if _, err := tx.AppendEvent(r.ID, "k", []byte("{}")); err != nil {
					return err
				}
			}
			return nil
		})
	}
	for i := range 1000 {
		if _, err := s.PutArtifact(context.Background(), r.ID, "", strings.NewReader(fmt.Sprint(i))); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		s, err := Open(dir, Options{})
		if err != nil {
			b.Fatal(err)
		}
		if p := see(b, s, func(tx *Tx) ([]Approval, error) {
			return tx.Approvals(ApprovalFilter{States: []ApprovalState{ApprovalPending}}, Page{})
		}); len(p) != 0 {
			b.Fatal("pending ones")
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}
