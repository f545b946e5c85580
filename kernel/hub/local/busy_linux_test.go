package local

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"palyra/internal/durable"
	"palyra/kernel/hub"
)

// TestStopWhilePublishing: the emergency stop does not wait for a publishing of the
// journal, which waits for another process.
func TestStopWhilePublishing(t *testing.T) {
	h := newHouse(t, nil)
	g, err := durable.OpenGate(filepath.Join(h.base, "state", "journal", "seal"))
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if ok, err := g.Try(durable.Exclusive); !ok || err != nil {
		t.Fatal(ok, err)
	}
	var published time.Time
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := h.JournalCheckpoint(context.Background(), h.owner); err != nil {
			t.Error(err)
		}
		published = time.Now()
	})
	for h.publishing.TryLock() {
		h.publishing.Unlock()
	}
	if _, err := h.Stop(t.Context(), h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Error(err)
	}
	stopped := time.Now()
	g.Release()
	wg.Wait()
	if published.Before(stopped) {
		t.Error("the publishing did not wait")
	}
}
