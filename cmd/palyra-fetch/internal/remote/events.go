package remote

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"palyra/internal/sse"
)

// The bounds of the time before a stream is resumed, which a server chooses.
const (
	leastRetry   = 50 * time.Millisecond
	defaultRetry = time.Second
	mostRetry    = 30 * time.Second
)

// events are a stream's. It has one reader.
type events struct{ *sse.Reader }

func newEvents(r io.Reader, last string) *events { return &events{sse.NewReader(r, maxMessage, last)} }

// next returns the data of the next event of the kind "message" that has some. io.EOF ends the
// stream; what is there of an event by then is dropped.
func (e *events) next() ([]byte, error) {
	for {
		ev, err := e.Next()
		if err != nil || ev.Kind == "message" {
			return ev.Data, err
		}
	}
}

// large reports whether err is that of an event that is too large.
func large(err error) bool {
	_, ok := errors.AsType[sse.ErrLarge](err)
	return ok
}

// wait returns the time before the stream is resumed for the n-th time without an event in between.
// retry is what the server says about it.
func wait(retry time.Duration, n int) time.Duration {
	d := defaultRetry
	if retry != 0 {
		d = min(max(retry, leastRetry), mostRetry)
	}
	return min(d<<min(n, 10), mostRetry)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// follow hands on the events of an answer's stream until m is answered. A stream that ends before
// is resumed, if its events have ids.
func (r *relay) follow(ctx context.Context, m *message, res *http.Response, hand func(*message, []byte) error) error {
	body := res.Body
	defer func() { body.Close() }()
	e := newEvents(body, "")
	session, _ := r.current()
	for tries := 0; ; {
		from := e.Last
		data, err := e.next()
		if err == nil {
			tries = 0
			if err := hand(m, data); err != nil {
				return err
			}
			if answers(data, m.id) {
				return nil
			}
			continue
		}
		lost := func(err error) error { return fmt.Errorf("%s: the answer was lost: %w", m.method, err) }
		if e.Last != from {
			tries = 0 // the server says where to go on, as one that lets clients ask again does
		}
		switch {
		case large(err) || ctx.Err() != nil:
			return lost(err)
		case e.Last == "":
			return lost(fmt.Errorf("its stream ended and can't be resumed: %w", err))
		case tries == maxTries:
			return lost(fmt.Errorf("its stream was resumed %d times and said nothing", maxTries))
		}
		body.Close()
		if err := sleep(ctx, wait(e.Retry, tries)); err != nil {
			return lost(err)
		}
		tries++
		again, _, err := r.stream(ctx, session, e.Last)
		switch {
		case err != nil && ctx.Err() == nil:
			r.say("resume a stream: %v", err)
			body = io.NopCloser(bytes.NewReader(nil))
		case err != nil:
			return lost(err)
		case again.StatusCode != http.StatusOK || mediaType(again) != "text/event-stream":
			again.Body.Close()
			return lost(fmt.Errorf("its stream ended, and the server answered %d when it was to be resumed", again.StatusCode))
		default:
			body = again.Body
		}
		next := newEvents(body, e.Last)
		next.Retry = e.Retry
		e = next
	}
}

// stream asks for a stream of events: the session's, or the rest of the one that had the event
// last.
func (r *relay) stream(ctx context.Context, session, last string) (*http.Response, bool, error) {
	h := r.sessionHeaders(session)
	h.Set("Accept", "text/event-stream")
	if last != "" {
		h.Set("Last-Event-ID", last)
	}
	return r.do(ctx, http.MethodGet, nil, h)
}

// listen hands on what the server says unasked, as long as it has a stream for that. Without one
// everything else works, so nothing about it is an error but a reader that is gone.
func (r *relay) listen(ctx context.Context) error {
	epoch, last, retry := 0, "", time.Duration(0)
	for tries := 0; ctx.Err() == nil; tries++ {
		session, now := r.current()
		if now != epoch {
			epoch, last = now, ""
		}
		res, _, err := r.stream(ctx, session, last)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil:
			r.say("listen: %v", err)
		case res.StatusCode == http.StatusMethodNotAllowed: // it has none
			res.Body.Close()
			return nil
		case res.StatusCode != http.StatusOK || mediaType(res) != "text/event-stream":
			res.Body.Close()
			r.say("listen: the server answered %d", res.StatusCode)
		default:
			e := newEvents(res.Body, last)
			e.Retry = retry
			for err == nil {
				var data []byte
				if data, err = e.next(); err == nil {
					tries = 0
					if err := r.hand(nil, data); err != nil {
						res.Body.Close()
						return err
					}
				}
			}
			res.Body.Close()
			if large(err) {
				return err
			}
			last, retry = e.Last, e.Retry
		}
		if tries >= maxTries {
			r.say("listen: given up after %d tries", tries)
			return nil
		}
		if sleep(ctx, wait(retry, tries)) != nil {
			return nil
		}
	}
	return nil
}
