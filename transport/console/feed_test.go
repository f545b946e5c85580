package console

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"palyra/hub"
)

// TestPace: a few notices pass at once, then ten a second, and after a pause a few again. The end of
// its ctx ends a wait.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		count := func(over time.Duration) (n int) {
			ctx, cancel := context.WithTimeout(t.Context(), over)
			defer cancel()
			for p.wait(ctx) {
				n++
			}
			return n
		}
		begun := time.Now()
		for range paceBurst - 1 {
			if !p.wait(t.Context()) {
				t.Fatal("not let pass")
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the first took %v", took)
		}
		if n := count(10 * time.Second); n < 99 || n > 100 {
			t.Errorf("%d in 10 s", n)
		}
		<-time.After(time.Minute)
		begun = time.Now()
		if p.wait(t.Context()); time.Since(begun) != 0 {
			t.Errorf("after a pause, one took %v", time.Since(begun))
		}
		over, cancel := context.WithCancel(t.Context())
		cancel()
		for range 2 * paceBurst {
			if p.wait(over) {
				t.Error("passed after the end")
			}
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the end took %v", took)
		}
	})
}

// TestFollowed: each page follows what its header shows, and one of a place that has no topics of its
// own follows all.
func TestFollowed(t *testing.T) {
	if got, want := followed("journal"), (hub.TopicJournal | hub.TopicQuestions | hub.TopicDaemon).String(); got != want {
		t.Errorf("journal follows %q, want %q", got, want)
	}
	if got := followed("elsewhere"); got != hub.EveryTopic.String() {
		t.Errorf("another place follows %q", got)
	}
}
