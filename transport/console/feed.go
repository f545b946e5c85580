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

// beatEvery is the time between signs of life of a feed. They are events, so that the page sees
// whether they come.
const (
	beatEvery = 20 * time.Second
	beat      = "event: beat\ndata: .\n\n"
)

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
	var due hub.Topics
	var all, questions pace
	for ok := send(beat); ok; {
		limit := beatEvery
		if due != 0 {
			limit = all.left()
		}
		wait, cancel := context.WithTimeout(ctx, limit)
		more, err := n.Next(wait)
		late := wait.Err() != nil && ctx.Err() == nil
		cancel()
		due |= more
		switch {
		case err != nil && !late, t.v.Caller.Token != "" && t.c.stale(t.v.Caller.Token):
			return nil
		case due == 0:
			ok = send(beat)
		case due&hub.TopicQuestions != 0 && questions.take() || all.take():
			ok = send("event: look\ndata: " + due.String() + "\n\n")
			due = 0
		}
	}
	return nil
}

// pace lets 10 notices a second pass on average, a few of them at once. Those that tell of
// questions have one of their own: a person waits for them, and the call that asks makes half a
// dozen others.
type pace struct{ until time.Time }

const (
	paceGap   = 100 * time.Millisecond
	paceBurst = 4
)

// left returns how long it is until the next may pass; not above 0: it may now.
func (p *pace) left() time.Duration { return max(0, time.Until(p.until)) - (paceBurst-1)*paceGap }

// take lets one pass, if it may now.
func (p *pace) take() bool {
	if p.left() > 0 {
		return false
	}
	if now := time.Now(); p.until.Before(now) {
		p.until = now
	}
	p.until = p.until.Add(paceGap)
	return true
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
