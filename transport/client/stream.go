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

// maxEvent bounds one line, in bytes.
const maxEvent = 16 << 20

// stream reads an answer line by line: from a connection, and from another when that breaks.
// Its reader owns it; others may call Close.
type stream struct {
	c      *Client
	op     string          // for errors
	what   func() *request // for what follows the lines that were read
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

var errClosed = errors.New("closed")

// open connects before it returns. The stream lives until Close, not until the ctx that opened
// it ends.
func (s *stream) open(ctx context.Context, c *Client, op string, what func() *request) error {
	s.c, s.op, s.what = c, op, what
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	err := s.connect(ctx)
	if err != nil {
		s.cancel(errClosed)
	}
	return err
}

// connect asks for what follows. ctx bounds the asking only.
func (s *stream) connect(ctx context.Context) error {
	stop := context.AfterFunc(ctx, func() { s.cancel(context.Cause(ctx)) })
	resp, err := s.c.send(s.ctx, s.what().set("Accept", hub.MediaNDJSON))
	if !stop() { // s.ctx has ended
		if err == nil {
			_ = resp.Body.Close()
		}
		return s.c.lost(ctx, s.op, ctx.Err())
	}
	if err != nil {
		return err
	}
	if resp.StatusCode == http.StatusNoContent {
		s.ended = true
		return resp.Body.Close()
	}
	s.body = resp.Body
	s.lines = bufio.NewScanner(resp.Body)
	s.lines.Buffer(make([]byte, 0, 4096), maxEvent)
	return nil
}

// next returns the next line that isn't a heartbeat, until the next call; io.EOF at the end.
func (s *stream) next(ctx context.Context) ([]byte, error) {
	for {
		if err := s.alive(ctx); err != nil {
			return nil, err
		}
		if s.ended {
			return nil, io.EOF
		}
		if s.body == nil {
			if err := s.again(ctx); err != nil {
				return nil, err
			}
			continue
		}
		line, err := s.line(ctx)
		switch {
		case err == nil:
			s.wait = 0
			return line, nil
		case errors.Is(err, io.EOF):
			s.ended = true
		case errors.Is(err, bufio.ErrTooLong):
			return nil, s.bad(fmt.Errorf("a line of more than %d bytes", maxEvent))
		default: // alive says whether it was the caller's will
			s.drop()
		}
	}
}

func (s *stream) drop() {
	_ = s.body.Close()
	s.body = nil
}

func (s *stream) bad(err error) error { return fault.New(fault.Integrity, "bad_answer", s.op, err) }

// alive reports whether the reader still wants to read.
func (s *stream) alive(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return s.c.lost(ctx, s.op, ctx.Err())
	case errors.Is(context.Cause(s.ctx), errClosed):
		return fault.New(fault.Canceled, "canceled", s.op, errClosed)
	}
	return nil
}

// line reads the next line that isn't a heartbeat. It gives up when ctx is done or after
// too long without a sign of life; the connection is useless then.
func (s *stream) line(ctx context.Context) ([]byte, error) {
	body := s.body
	silent := time.AfterFunc(s.c.silence, func() { body.Close() })
	defer silent.Stop()
	stop := context.AfterFunc(ctx, func() { body.Close() })
	defer stop()
	for s.lines.Scan() {
		if b := s.lines.Bytes(); len(bytes.TrimSpace(b)) > 0 {
			return b, nil
		}
		silent.Reset(s.c.silence)
	}
	if err := s.lines.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF // the last chunk: the stream ends here
}

// again waits and connects. A daemon that is full may have a place later, one that doesn't answer
// may have for as long as the client is patient; every other answer is final.
func (s *stream) again(ctx context.Context) error {
	if s.gone.IsZero() {
		s.gone = time.Now()
	}
	asking, cancel := context.WithDeadline(ctx, s.gone.Add(s.c.patience))
	defer cancel()
	if s.wait > 0 {
		timer := time.NewTimer(s.wait)
		defer timer.Stop()
		select {
		case <-ctx.Done():
			return nil // alive says so
		case <-s.ctx.Done():
			return nil
		case <-asking.Done(): // connect finds out
		case <-timer.C:
		}
	}
	s.wait = min(max(2*s.wait, firstWait), lastWait)
	s.c.reconnects.Add(1)
	err := s.connect(asking)
	switch {
	case errors.Is(err, fault.ErrUnreachable), errors.Is(err, fault.ErrConnectionLost):
		s.last = err
		return nil
	case asking.Err() != nil && ctx.Err() == nil:
		return fault.New(fault.Unavailable, cmp.Or(fault.ReasonOf(s.last), "connection_lost"), s.op,
			fmt.Errorf("no answer in %v: %w", s.c.patience, cmp.Or(s.last, asking.Err()))).WithHint(fault.HintOf(s.last))
	}
	s.gone, s.last = time.Time{}, nil
	if fault.KindOf(err) == fault.Unavailable || errors.Is(err, fault.ErrTooMany) {
		return nil
	}
	return err
}

// Close ends the stream, and closes its connection.
func (s *stream) Close() error {
	s.cancel(errClosed)
	return nil
}

// tape implements hub.Tape.
type tape struct {
	stream
	q    hub.TapeQuery
	seq  uint64 // last event that was returned
	of   int    // how many events with this number were; more than one in a view only
	skip int    // how many of them the next connection gives again
}

func (c *Client) tape(ctx context.Context, q hub.TapeQuery) (hub.Tape, error) {
	t := &tape{q: q, seq: q.After}
	err := t.open(ctx, c, hub.ReadTape.Verb(), func() *request {
		after := t.seq
		if t.skip = 0; t.q.View != "" && t.of > 0 { // there may be more with the number of the last one
			after, t.skip = t.seq-1, t.of
		}
		return requestOf(hub.ReadTape.Operation, hub.TapeQuery{Run: t.q.Run, After: after, View: t.q.View})
	})
	if err != nil {
		return nil, err
	}
	return t, nil
}

// Next implements hub.Tape.
func (t *tape) Next(ctx context.Context) (hub.Event, error) {
	for {
		line, err := t.next(ctx)
		if err != nil {
			return hub.Event{}, err
		}
		var ev hub.Event
		if err := json.Unmarshal(line, &ev); err != nil {
			return hub.Event{}, t.bad(err)
		}
		switch again := ev.Seq == t.seq && t.q.View != "" && t.of > 0; {
		case again && t.skip > 0:
			t.skip--
			continue
		case again:
			t.of++
		case ev.Seq <= t.seq || t.q.View == "" && ev.Seq != t.seq+1:
			// An event may stand for nothing in a view.
			return hub.Event{}, t.bad(fmt.Errorf("event %d after %d", ev.Seq, t.seq))
		default:
			t.seq, t.of, t.skip = ev.Seq, 1, 0
		}
		return ev, nil
	}
}

// outputs implements hub.Outputs.
type outputs struct {
	stream
	q hub.OutputQuery // for what follows
}

func (c *Client) outputs(ctx context.Context, q hub.OutputQuery) (hub.Outputs, error) {
	o := &outputs{q: q}
	if err := o.open(ctx, c, hub.ReadOutput.Verb(), func() *request { return requestOf(hub.ReadOutput.Operation, o.q) }); err != nil {
		return nil, err
	}
	return o, nil
}

// Next implements hub.Outputs.
func (o *outputs) Next(ctx context.Context) (p hub.OutputPart, err error) {
	line, err := o.next(ctx)
	if err != nil {
		return p, err
	}
	if err := json.Unmarshal(line, &p); err != nil {
		return p, o.bad(err)
	}
	if p.Step > o.q.Step {
		o.q.Step, o.q.Stdout, o.q.Stderr = p.Step, 0, 0
	}
	at := &o.q.Stdout
	if p.Stream == "stderr" {
		at = &o.q.Stderr
	}
	if p.Step != o.q.Step || uint64(p.From) != *at {
		return p, o.bad(fmt.Errorf("byte %d of %.10q of step %d after byte %d of step %d", p.From, p.Stream, p.Step, *at, o.q.Step))
	}
	*at += uint64(len(p.Bytes()))
	return p, nil
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
