package local

import (
	"context"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"palyra/hub"
	"palyra/internal/durable"
	"palyra/internal/fault"
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
		if _, err := hub.GetCheckpoint.Do(context.Background(), h, h.owner, hub.None{}); err != nil {
			t.Error(err)
		}
		published = time.Now()
	})
	for len(h.publishing) == 0 {
		runtime.Gosched()
	}
	if _, err := hub.Stop.Do(t.Context(), h, h.owner, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		t.Error(err)
	}
	// A caller that waits behind it and gives up leaves the line.
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := hub.GetCheckpoint.Do(short, h, h.owner, hub.None{}); fault.KindOf(err) != fault.Canceled {
		t.Errorf("behind it: %v", err)
	}
	stopped := time.Now()
	g.Release()
	wg.Wait()
	if published.Before(stopped) {
		t.Error("the publishing did not wait")
	}
}
