package console

import (
	"context"
	"io"
	"net/http"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// feedWord is the feed's place behind root.
const feedWord = "feed"

// beat is the time between signs of life of a feed.
const beat = 20 * time.Second

// feed tells an open page what to look at again, as server-sent events: the topics, and nothing
// that is under them. It ends with the browser's token, and when the server does. A browser that
// doesn't read is cut off by the server's deadline of a write; meanwhile its notices become one.
func (t *turn) feed() error {
	if t.c.cfg.Notifier == nil || t.v.Stay == nil {
		return fault.New(fault.NotFound, "not_found", "find page", nil)
	}
	n, err := t.c.cfg.Notifier.Notices(t.v.Caller)
	if err != nil {
		return err
	}
	defer n.Close()
	ctx, w, leave, err := t.v.Stay()
	if err != nil {
		return err
	}
	defer leave()
	secure(w)
	h := w.Header()
	h.Set("Content-Type", hub.MediaSSE)
	h.Set("X-Accel-Buffering", "no") // nginx, which would hold events back
	w.WriteHeader(http.StatusOK)
	if t.r.Method == http.MethodHead {
		return nil
	}
	send := func(text string) bool {
		_, err := io.WriteString(w, text)
		return err == nil && http.NewResponseController(w).Flush() == nil
	}
	// An error has no other way to the browser from here on than the feed's end.
	var p pace
	for ok := send(":\n\n"); ok; {
		wait, cancel := context.WithTimeout(ctx, beat)
		topics, err := n.Next(wait)
		quiet := wait.Err() != nil && ctx.Err() == nil
		cancel()
		switch {
		case t.v.Caller.Token != "" && t.c.stale(t.v.Caller.Token):
			return nil
		case err == nil:
			ok = send("event: look\ndata: "+topics.String()+"\n\n") && p.wait(ctx)
		case quiet:
			ok = send(":\n\n")
		default:
			return nil
		}
	}
	return nil
}

// pace lets a few notices pass at once, and 10 a second on average.
type pace struct{ until time.Time }

const (
	paceGap   = 100 * time.Millisecond
	paceBurst = 4
)

// wait returns when the next notice may be sent, false if ctx ends before.
func (p *pace) wait(ctx context.Context) bool {
	now := time.Now()
	if p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(paceGap)
	late := p.until.Sub(now) - (paceBurst-1)*paceGap
	if late <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(late)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// follows has the topics of a place's pages besides those of the header, which all follow; a page
// of another place follows every topic.
var follows = map[string]hub.Topics{
	"questions": hub.TopicQuestions,
	"runs":      hub.TopicRuns | hub.TopicQuestions,
	"changes":   hub.TopicLayers | hub.TopicRuns,
	"journal":   hub.TopicJournal,
	"policy":    hub.TopicPolicy | hub.TopicJournal, // its decisions
	"access":    hub.TopicAccess,
	"host":      hub.TopicDaemon | hub.TopicPolicy,
}

// followed returns the topics of a place's pages, as their script reads them.
func followed(at string) string {
	t, ok := follows[at]
	if !ok {
		t = hub.EveryTopic
	}
	return (t | hub.TopicQuestions | hub.TopicDaemon).String()
}
