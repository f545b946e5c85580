package remote

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"time"
)

// The bounds of the time before a stream is resumed, which a server chooses.
const (
	leastRetry   = 50 * time.Millisecond
	defaultRetry = time.Second
	mostRetry    = 30 * time.Second
)

var errLarge = fmt.Errorf("an event has more than %d bytes", maxMessage)

// events reads a stream of server-sent events (HTML § 9.2). It has one reader.
type events struct {
	b     *bufio.Reader
	begun bool
	cr    bool          // the last line ended with CR, which LF may follow
	last  string        // the id of the last event that has one; "" for none
	retry time.Duration // 0: the server names none
}

func newEvents(r io.Reader, last string) *events {
	return &events{b: bufio.NewReader(r), last: last}
}

// next returns the data of the next event of the kind "message" that has some. io.EOF ends the
// stream; what is there of an event by then is dropped.
func (e *events) next() ([]byte, error) {
	var data []byte
	kind, some, size := "", false, 0
	for {
		line, err := e.line(maxMessage - size)
		if err != nil {
			return nil, err
		}
		if len(line) == 0 {
			if some && len(data) > 0 && (kind == "" || kind == "message") {
				return data, nil
			}
			data, kind, some, size = nil, "", false, 0
			continue
		}
		size += len(line) + 1
		field, value, _ := bytes.Cut(line, []byte(":")) // a comment's field is ""
		value = bytes.TrimPrefix(value, []byte(" "))
		switch string(field) {
		case "data":
			if some {
				data = append(data, '\n')
			}
			data, some = append(data, value...), true
		case "event":
			kind = string(value)
		case "id":
			// One that no header can hold can't be resumed from.
			if id := string(value); len(id) <= maxSession && visible(id, ' ') {
				e.last = id
			}
		case "retry":
			if ms, err := strconv.ParseUint(string(value), 10, 31); err == nil {
				e.retry = min(max(time.Duration(ms)*time.Millisecond, leastRetry), mostRetry)
			}
		}
	}
}

// line reads a line that LF, CR or both end, of at most most bytes.
func (e *events) line(most int) ([]byte, error) {
	if !e.begun {
		e.begun = true
		if b, err := e.b.Peek(3); err == nil && string(b) == "\ufeff" {
			e.b.Discard(3)
		}
	}
	var line []byte
	for {
		c, err := e.b.ReadByte()
		if err != nil {
			return nil, err
		}
		cr := e.cr
		e.cr = c == '\r'
		switch {
		case c == '\n' && cr && len(line) == 0: // the rest of CR LF
		case c == '\n' || c == '\r':
			return line, nil
		case len(line) >= most:
			return nil, errLarge
		default:
			line = append(line, c)
		}
	}
}

// wait returns the time before the stream is resumed for the n-th time without an event in between.
func (e *events) wait(n int) time.Duration {
	d := e.retry
	if d == 0 {
		d = defaultRetry
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
		from := e.last
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
		if e.last != from {
			tries = 0 // the server says where to go on, as one that lets clients ask again does
		}
		switch {
		case errors.Is(err, errLarge) || ctx.Err() != nil:
			return lost(err)
		case e.last == "":
			return lost(fmt.Errorf("its stream ended and can't be resumed: %w", err))
		case tries == maxTries:
			return lost(fmt.Errorf("its stream was resumed %d times and said nothing", maxTries))
		}
		body.Close()
		if err := sleep(ctx, e.wait(tries)); err != nil {
			return lost(err)
		}
		tries++
		again, _, err := r.stream(ctx, session, e.last)
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
		next := newEvents(body, e.last)
		next.retry = e.retry
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
			e.retry = retry
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
			if errors.Is(err, errLarge) {
				return err
			}
			last, retry = e.last, e.retry
		}
		if tries >= maxTries {
			r.say("listen: given up after %d tries", tries)
			return nil
		}
		if sleep(ctx, (&events{retry: retry}).wait(tries)) != nil {
			return nil
		}
	}
	return nil
}
