package console

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"palyra/hub"
	"palyra/transport/behind"
)

// TestPace: a few notices pass at once, then ten a second, and after a pause a few again.
func TestPace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p pace
		for round := range 2 {
			for i := range paceBurst {
				if !p.take() {
					t.Errorf("round %d: %d at once don't pass", round, i+1)
				}
			}
			for begun, n := time.Now(), 0; n < 100; n++ {
				if p.take() {
					t.Fatalf("round %d: one more passed", round)
				}
				<-time.After(p.left())
				if !p.take() {
					t.Fatalf("round %d: it doesn't pass when it may", round)
				}
				if want := time.Duration(n+1) * paceGap; time.Since(begun) != want {
					t.Fatalf("round %d: %d took %v, want %v", round, n+1, time.Since(begun), want)
				}
			}
			<-time.After(time.Minute)
		}
	})
}

// source is Notices that tell of topics once in every, and of nothing with 0.
type source struct {
	topics hub.Topics
	every  time.Duration
	open   int
}

func (s *source) Notices(hub.Caller) (hub.Notices, error) {
	s.open++
	return s, nil
}

func (s *source) Next(ctx context.Context) (hub.Topics, error) {
	var tick <-chan time.Time
	if s.every > 0 {
		tick = time.After(s.every)
	}
	select {
	case <-tick:
		return s.topics, nil
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *source) Close() error {
	s.open--
	return nil
}

// client takes a feed, until it has had enough.
type client struct {
	head         http.Header
	looks, beats int
	enough       int // writes; 0: no bound
}

func (c *client) Write(b []byte) (int, error) {
	switch {
	case strings.HasPrefix(string(b), "event: look\ndata: "):
		c.looks++
	case string(b) == beat:
		c.beats++
	}
	if c.looks+c.beats == c.enough {
		return 0, os.ErrDeadlineExceeded
	}
	return len(b), nil
}

func (c *client) Header() http.Header { return c.head }
func (c *client) WriteHeader(int)     {}
func (c *client) FlushError() error   { return nil }

// TestFeed: however much happens, a browser is told ten times a second, of questions besides as
// often; while nothing does, it has signs of life. A browser that takes nothing more is let go, and
// its place is given back in any case.
func TestFeed(t *testing.T) {
	for name, c := range map[string]struct {
		source       source
		enough       int
		looks, beats int // in a minute
	}{
		"much":                {source: source{topics: hub.TopicRuns, every: time.Millisecond}, looks: 10*60 + paceBurst, beats: 1},
		"questions":           {source: source{topics: hub.TopicQuestions, every: time.Millisecond}, looks: 2 * (10*60 + paceBurst), beats: 1},
		"now and then":        {source: source{topics: hub.TopicRuns, every: time.Second}, looks: 59, beats: 1},
		"nothing":             {looks: 0, beats: 3},
		"a slow one":          {source: source{topics: hub.TopicRuns, every: time.Millisecond}, enough: 5, looks: 4, beats: 1},
		"a slow one at night": {enough: 2, looks: 0, beats: 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := 0
				w := &client{head: make(http.Header), enough: c.enough}
				minute, cancel := context.WithTimeout(t.Context(), time.Minute-time.Millisecond/2)
				defer cancel()
				r := httptest.NewRequest(http.MethodGet, root+feedWord, nil)
				v := &behind.Visitor{Stay: func() (context.Context, http.ResponseWriter, func(), error) {
					held++
					return minute, w, func() { held-- }, nil
				}}
				con := &Console{cfg: Config{Notifier: &c.source}}
				begun := time.Now()
				if err := con.Page(w, r, v); err != nil {
					t.Fatal(err)
				}
				if slow := c.enough > 0; slow != (time.Since(begun) < 59*time.Second) {
					t.Errorf("it ended after %v", time.Since(begun))
				}
				if off := w.looks - c.looks; off < -2 || off > 1 || w.beats != c.beats {
					t.Errorf("%d notices and %d signs of life, want %d and %d", w.looks, w.beats, c.looks, c.beats)
				}
				if held != 0 || c.source.open != 0 {
					t.Errorf("%d places and %d sources left", held, c.source.open)
				}
			})
		})
	}
}

// TestFeedIdle: a feed is no click, and ends with a browser that had none for too long.
func TestFeedIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		con := &Console{cfg: Config{Notifier: &source{topics: hub.TopicRuns, every: time.Minute}}, used: make(map[string]time.Time)}
		w := &client{head: make(http.Header)}
		v := &behind.Visitor{Caller: hub.Caller{Token: "t"}, Stay: func() (context.Context, http.ResponseWriter, func(), error) {
			return t.Context(), w, func() {}, nil
		}}
		begun := time.Now()
		con.touch("t")
		if err := con.Page(w, httptest.NewRequest(http.MethodGet, root+feedWord, nil), v); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took < idle || took > idle+2*time.Minute {
			t.Errorf("it ended after %v, want %v", took, idle)
		}
		if !con.stale("t") {
			t.Error("the feed counts as a click")
		}
	})
}

// TestFollowed: each page follows what its header shows, and one of a place that has no topics of
// its own follows all.
func TestFollowed(t *testing.T) {
	if got, want := followed("journal"), (hub.TopicJournal | hub.TopicQuestions | hub.TopicDaemon).String(); got != want {
		t.Errorf("journal follows %q, want %q", got, want)
	}
	if got := followed("elsewhere"); got != hub.EveryTopic.String() {
		t.Errorf("another place follows %q", got)
	}
}
