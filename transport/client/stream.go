package client

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/fault"
)

// maxEvent bounds one event, in bytes.
const maxEvent = 16 << 20

// tape implements hub.Tape: it reads from a connection and makes another when that breaks.
// Its reader owns it; others may call Close.
type tape struct {
	c      *Client
	q      hub.TapeQuery
	seq    uint64 // last event that was returned
	of     int    // how many events with this number were; more than one in a view only
	skip   int    // how many of them the next connection gives again
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.ReadCloser // nil: not connected
	lines  *bufio.Scanner
	wait   time.Duration // before the next attempt to connect
	gone   time.Time     // since when palyrad has not answered; zero: it has
	last   error         // of the attempts since then; nil: none
	ended  bool
}

// The waits before connecting again, which double from the first to the last.
const (
	firstWait = 100 * time.Millisecond
	lastWait  = 5 * time.Second
)

var errClosed = errors.New("tape closed")

// tape connects before it returns.
func (c *Client) tape(ctx context.Context, q hub.TapeQuery) (hub.Tape, error) {
	t := &tape{c: c, q: q, seq: q.After}
	// It lives until Close, not until the ctx that opened it ends.
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	if err := t.connect(ctx); err != nil {
		t.cancel(errClosed)
		return nil, err
	}
	return t, nil
}

// connect asks for the events after the last one. ctx bounds the asking only.
func (t *tape) connect(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { t.cancel(context.Cause(ctx)) })
	after := t.seq
	if t.skip = 0; t.q.View != "" && t.of > 0 { // there may be more with the number of the last one
		after, t.skip = t.seq-1, t.of
	}
	r := requestOf(hub.ReadTape.Operation, hub.TapeQuery{Run: t.q.Run, After: after, View: t.q.View}).set("Accept", hub.MediaNDJSON)
	resp, err := t.c.send(t.ctx, r)
	if !stop() { // t.ctx has ended
		if err == nil {
			_ = resp.Body.Close()
		}
		return t.c.lost(ctx, r.op, ctx.Err())
	}
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNoContent {
		t.ended = true
		return resp.Body.Close()
	}
	t.body = resp.Body
	t.lines = bufio.NewScanner(resp.Body)
	t.lines.Buffer(make([]byte, 0, 4096), maxEvent)
	return nil
}

// Next implements hub.Tape.
func (t *tape) Next(ctx context.Context) (hub.Event, error) {
	for {
		if err := t.alive(ctx); err != nil {
			return hub.Event{}, err
		}
		if t.ended {
			return hub.Event{}, io.EOF
		}
		if t.body == nil {
			if err := t.again(ctx); err != nil {
				return hub.Event{}, err
			}
			continue
		}
		line, err := t.line(ctx)
		switch {
		case errors.Is(err, io.EOF):
			t.ended = true
			continue
		case errors.Is(err, bufio.ErrTooLong):
			return hub.Event{}, fault.New(fault.Integrity, "bad_answer", "read tape", fmt.Errorf("an event of more than %d bytes", maxEvent))
		case err != nil: // alive says whether it was the caller's will
			t.drop()
			continue
		}
		var ev hub.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			return hub.Event{}, fault.New(fault.Integrity, "bad_answer", "read tape", err)
		}
		t.wait = 0
		switch again := ev.Seq == t.seq && t.q.View != "" && t.of > 0; {
		case again && t.skip > 0:
			t.skip--
			continue
		case again:
			t.of++
		case ev.Seq <= t.seq || t.q.View == "" && ev.Seq != t.seq+1:
			// An event may stand for nothing in a view.
			return hub.Event{}, fault.New(fault.Integrity, "bad_answer", "read tape", fmt.Errorf("event %d after %d", ev.Seq, t.seq))
		default:
			t.seq, t.of, t.skip = ev.Seq, 1, 0
		}
		return ev, nil
	}
}

// alive reports whether the reader still wants to read.
func (t *tape) alive(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return t.c.lost(ctx, "read tape", ctx.Err())
	case errors.Is(context.Cause(t.ctx), errClosed):
		return fault.New(fault.Canceled, "canceled", "read tape", errClosed)
	}
	return nil
}

// line reads the next line that isn't a heartbeat. It gives up when ctx is done or after
// too long without a sign of life; the connection is useless then.
func (t *tape) line(ctx context.Context) ([]byte, error) {
	body := t.body
	silent := time.AfterFunc(t.c.silence, func() { body.Close() })
	defer silent.Stop()
	stop := context.AfterFunc(ctx, func() { body.Close() })
	defer stop()
	for t.lines.Scan() {
		if b := t.lines.Bytes(); len(bytes.TrimSpace(b)) > 0 {
			return b, nil
		}
		silent.Reset(t.c.silence)
	}
	if err := t.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF // the last chunk: the tape ends here
}

// again waits and connects. A daemon that is full may have a place later, one that doesn't answer
// may have for as long as the client is patient; every other answer is final.
func (t *tape) again(ctx context.Context) error {
	if t.gone.IsZero() {
		t.gone = time.Now()
	}
	asking, cancel := context.WithDeadline(ctx, t.gone.Add(t.c.patience))
	defer cancel()
	if t.wait > 0 {
		timer := time.NewTimer(t.wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil // alive says so
		case <-t.ctx.Done():
			return nil
		case <-asking.Done(): // connect finds out
		case <-timer.C:
		}
	}
	t.wait = min(max(2*t.wait, firstWait), lastWait)
	t.c.reconnects.Add(1)
	err := t.connect(asking)
	switch reason := fault.ReasonOf(err); {
	case reason == "daemon_unreachable" || reason == "connection_lost":
		t.last = err
		return nil
	case asking.Err() != nil && ctx.Err() == nil:
		return fault.New(fault.Unavailable, cmp.Or(fault.ReasonOf(t.last), "connection_lost"), "read tape",
			fmt.Errorf("no answer in %v: %w", t.c.patience, cmp.Or(t.last, asking.Err()))).WithHint(fault.HintOf(t.last))
	}
	t.gone, t.last = time.Time{}, nil
	if fault.KindOf(err) == fault.Unavailable || fault.ReasonOf(err) == "too_many_readers" {
		return nil
	}
	return err
}

func (t *tape) drop() {
	_ = t.body.Close()
	t.body = nil
}

// Close implements hub.Tape.
func (t *tape) Close() error {
	t.cancel(errClosed) // which closes the connection
	return nil
}

// artifact implements hub.Artifact by ranges.
type artifact struct {
	c    *Client
	ctx  context.Context // of the request that opened it
	req  *request
	info hub.ArtifactInfo
	at   int64
	body io.ReadCloser // positioned at at; nil: not open
}

// artifact opens one. Reads of it end with ctx.
func (c *Client) artifact(ctx context.Context, r *request) (hub.Artifact, error) {
	a := &artifact{c: c, ctx: ctx, req: r}
	resp, err := c.send(ctx, a.req)
	if err != nil {
		return nil, err
	}
	created, err := time.Parse(time.RFC3339Nano, resp.Header.Get(hub.HeaderCreated))
	if err != nil || resp.ContentLength < 0 {
		_ = resp.Body.Close()
		return nil, fault.New(fault.Integrity, "bad_answer", a.req.op, errors.New("no length or no time"))
	}
	a.body = resp.Body
	a.info = hub.ArtifactInfo{Digest: strings.Trim(resp.Header.Get("ETag"), `"`), Size: resp.ContentLength,
		MediaType: resp.Header.Get(hub.HeaderMediaType), Created: created}
	return a, nil
}

// Info implements hub.Artifact.
func (a *artifact) Info() hub.ArtifactInfo { return a.info }

// Read implements io.Reader.
func (a *artifact) Read(b []byte) (int, error) {
	if a.at >= a.info.Size {
		return 0, io.EOF
	}
	if a.body == nil {
		r := *a.req
		r.header = nil
		resp, err := a.c.send(a.ctx, r.set("Range", "bytes="+strconv.FormatInt(a.at, 10)+"-"))
		if err != nil {
			return 0, err
		}
		if resp.StatusCode != http.StatusPartialContent {
			_ = resp.Body.Close()
			return 0, fault.New(fault.Integrity, "bad_answer", a.req.op, fmt.Errorf("answer %s to a range", resp.Status))
		}
		a.body = resp.Body
	}
	n, err := a.body.Read(b)
	a.at += int64(n)
	if err != nil && (!errors.Is(err, io.EOF) || a.at < a.info.Size) {
		if errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return n, a.c.lost(a.ctx, a.req.op, err)
	}
	return n, err
}

// Seek implements io.Seeker.
func (a *artifact) Seek(offset int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		offset += a.at
	case io.SeekEnd:
		offset += a.info.Size
	}
	if offset < 0 || whence < 0 || whence > 2 {
		return a.at, fault.New(fault.Usage, "invalid_input", "seek in artifact", errors.New("outside of the artifact"))
	}
	if offset != a.at && a.body != nil {
		_ = a.body.Close()
		a.body = nil
	}
	a.at = offset
	return offset, nil
}

// Close implements io.Closer.
func (a *artifact) Close() error {
	if a.body == nil {
		return nil
	}
	return a.body.Close()
}
