package journal

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
)

// TestWaitersLeave: whoever gives up leaves, whatever stands in the middle of the
// write that it waits for.
func TestWaitersLeave(t *testing.T) {
	for _, at := range []string{"publish:checkpoint:begin", "append:written"} {
		t.Run(at, func(t *testing.T) {
			stopped, goOn := make(chan struct{}), make(chan struct{})
			var armed bool // written before the goroutine that reads it starts
			var once sync.Once
			j := newHouse(t).open(t, Options{TestOnlyStep: func(name string) {
				if armed && name == at {
					once.Do(func() { close(stopped); <-goOn })
				}
			}})
			defer j.Close()
			ctx := t.Context()
			if _, err := j.Append(ctx, Entry{Leaf: leafN(0), Content: contentN(0)}); err != nil {
				t.Fatal(err)
			}
			armed = true
			var wg sync.WaitGroup
			wg.Go(func() {
				var err error
				if at == "append:written" {
					_, err = j.Append(ctx, Entry{Leaf: leafN(1), Content: contentN(1)})
				} else {
					err = j.Publish(ctx)
				}
				if err != nil {
					t.Error(err)
				}
			})
			<-stopped
			j.mu.Lock()
			j.unsynced = true // as after the entry of a process that died before its flush
			j.mu.Unlock()
			var waiters sync.WaitGroup
			done := make(chan struct{}) // closed when all have left
			for name, wait := range map[string]func(context.Context) error{
				"append":      func(ctx context.Context) error { _, err := j.Append(ctx, Entry{Leaf: leafN(2)}); return err },
				"refresh":     j.look,
				"publish":     j.Publish,
				"prove":       func(ctx context.Context) error { _, err := j.Prove(ctx, 0); return err },
				"checkpoint":  func(ctx context.Context) error { _, err := j.Checkpoint(ctx); return err },
				"consistency": func(ctx context.Context) error { _, err := j.ProveConsistency(ctx, 1); return err },
			} {
				waiters.Go(func() {
					ctx, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
					defer cancel()
					if err := wait(ctx); fault.KindOf(err) != fault.Timeout || !errors.Is(err, durable.ErrGaveUp) {
						t.Errorf("%s: got %v", name, err)
					}
				})
			}
			go func() { waiters.Wait(); close(done) }()
			select {
			case <-done:
			case <-time.After(time.Minute):
				t.Error("who gave up did not leave")
			}
			close(goOn)
			wg.Wait()
			<-done
			if _, err := j.Append(ctx, Entry{Leaf: leafN(3)}); err != nil {
				t.Error(err)
			}
		})
	}
}
