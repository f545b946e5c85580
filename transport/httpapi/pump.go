package httpapi

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel/hub"
	"palyra/transport/api"
)

// maxBatch is about how much is written at once, in bytes.
const maxBatch = 64 << 10

// buffer is what a pump writes from; it is used again by the next one.
type buffer struct{ body, out []byte }

// pump writes to one reader what there is, and ends. On an error, and at the end
// of the tape, it ends the reader.
func (s *streams) pump(ctx context.Context, r *reader) {
	b := s.buffers.Get().(*buffer)
	defer s.buffers.Put(b)
	for {
		body, last, behind := r.next(b.body[:0])
		b.body = body[:0]
		if behind > 0 {
			var err error
			if body, err = s.catchUp(ctx, r, body, behind); err != nil {
				s.log.Info("tape not read", "run", r.reel.run, "error", err)
				s.drop(r)
				break
			}
			b.body = body[:0]
		} else if r.tape != nil {
			_ = r.tape.Close()
			r.tape = nil
		}
		if len(body) == 0 && r.head == nil && last == going {
			if r.idle() {
				return
			}
			continue
		}
		if err := s.write(b, r, body, last == ended); err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				s.slow.Add(1)
				s.log.Info("slow reader of a tape cut off", "run", r.reel.run, "caller", r.who.User, "after", r.seq)
			}
			s.drop(r)
			break
		}
		if last != going {
			s.drop(r)
			break
		}
	}
	// The reader is gone; nobody starts another pump for it.
	if r.tape != nil {
		_ = r.tape.Close()
	}
}

// How a tape goes on after what was taken from it.
type ending int

const (
	going  ending = iota
	ended         // the run has ended and everything was taken
	broken        // it cannot be read any more
)

// next takes the events that the reel has for r. behind is not 0 if they are in
// the store only: up to there they can be read without waiting.
func (r *reader) next(body []byte) (_ []byte, last ending, behind uint64) {
	l := r.reel
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.gone:
		return body, broken, 0
	case r.seq < l.hi && (len(l.frames) == 0 || r.seq+1 < l.frames[0].seq):
		return body, going, l.hi
	}
	for i := range l.frames {
		f := &l.frames[i]
		if f.seq <= r.seq {
			continue
		}
		if len(body) > 0 && len(body)+len(f.json) > maxBatch {
			break
		}
		body = r.append(body, f)
	}
	if len(body) == 0 && r.beat {
		body = r.appendBeat(body)
	}
	r.beat = false
	if l.done && r.seq >= l.hi {
		if last = ended; l.err != nil {
			last = broken
		}
	}
	return body, last, 0
}

// idle ends a pump if there is still nothing to do.
func (r *reader) idle() bool {
	l := r.reel
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.gone || r.seq < l.hi || r.beat || l.done {
		return false
	}
	r.running = false
	return true
}

// catchUp reads a batch of events from the store, which has them up to hi.
func (s *streams) catchUp(ctx context.Context, r *reader, body []byte, hi uint64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, s.lim.Write)
	defer cancel()
	if r.tape == nil {
		t, err := s.hub.Tape(ctx, r.who, r.reel.run, r.seq)
		if err != nil {
			return body, err
		}
		r.tape = t
	}
	for r.seq < hi && len(body) < maxBatch {
		ev, err := r.tape.Next(ctx)
		if err != nil {
			return body, err
		}
		f, err := newFrame(ev)
		if err != nil {
			return body, err
		}
		if f.seq != r.seq+1 {
			return body, fault.New(fault.Integrity, "tape_gap", "read tape", errors.New("an event is missing"))
		}
		body = r.append(body, &f)
	}
	return body, nil
}

// append adds an event in the reader's format.
func (r *reader) append(b []byte, f *frame) []byte {
	r.seq = f.seq
	text := f.json
	if f.less != nil && !trusted(r.who) {
		text = f.less
	}
	if !r.sse {
		return append(append(b, text...), '\n')
	}
	b = append(b, "id: "...)
	b = strconv.AppendUint(b, f.seq, 10)
	b = append(b, "\nevent: "...)
	b = append(b, f.kind...)
	b = append(b, "\ndata: "...)
	b = append(b, text...)
	return append(b, '\n', '\n')
}

// appendBeat adds a sign of life: a comment, or an empty line.
func (r *reader) appendBeat(b []byte) []byte {
	if r.sse {
		return append(b, ":\n\n"...)
	}
	return append(b, '\n')
}

// write sends the header, if it was not sent, and body as one chunk (RFC 9112
// §7.1). The last chunk says that the tape ends here; a connection that ends
// without it was cut off.
func (s *streams) write(b *buffer, r *reader, body []byte, end bool) error {
	out := append(b.out[:0], r.head...)
	r.head = nil
	if len(body) > 0 {
		out = strconv.AppendInt(out, int64(len(body)), 16)
		out = append(out, '\r', '\n')
		out = append(out, body...)
		out = append(out, '\r', '\n')
	}
	if end {
		out = append(out, "0\r\n\r\n"...)
	}
	b.out = out[:0]
	if len(out) == 0 {
		return nil
	}
	if err := r.limit(time.Now().Add(s.lim.Write)); err != nil {
		return err
	}
	_, err := r.conn.Write(out)
	return err
}

// readTape takes the connection out of net/http and gives it to streams: a
// request that net/http holds costs two goroutines and two buffers.
func readTape(x *exchange) error {
	media, err := accepts(x.r.Header, api.MediaSSE, api.MediaNDJSON)
	if err != nil {
		return err
	}
	if !x.r.ProtoAtLeast(1, 1) {
		return usage("http_version", "read tape", errors.New("want HTTP/1.1"))
	}
	run, after, err := x.tapeFrom()
	if err != nil {
		return err
	}
	now, err := x.s.cfg.Hub.Run(x.r.Context(), x.caller, run)
	switch {
	case err != nil:
		return err
	case after > now.LastSeq:
		return usage("bad_event_id", "read tape", errors.New("the tape is not that long"))
	case after == now.LastSeq && (now.State == hub.RunDone || now.State == hub.RunFailed || now.State == hub.RunCancelled):
		// An EventSource comes back after every end; 204 tells it not to.
		x.deadline()
		x.w.WriteHeader(204)
		return nil
	case x.r.Method != get:
		x.w.Header().Set("Content-Type", media)
		x.deadline()
		x.w.WriteHeader(200)
		return nil
	}
	return x.stream(run, after, now.LastSeq, media)
}

// stream makes a reader of the request.
func (x *exchange) stream(run string, after, last uint64, media string) error {
	s := x.s.streams
	place, err := s.reserve(x.caller.User)
	if err != nil {
		x.w.Header().Set("Retry-After", "5")
		return err
	}
	tape, err := x.s.cfg.Hub.Tape(x.r.Context(), x.caller, run, after) // whether they may
	if err != nil {
		place.Release()
		return err
	}
	conn, head, err := x.hijack(media)
	if err != nil {
		place.Release()
		return errors.Join(err, tape.Close())
	}
	r := &reader{conn: conn, limit: conn.SetWriteDeadline, sse: media == api.MediaSSE, who: x.caller, place: place, tape: tape,
		seq: after, head: head, until: time.Now().Add(s.lim.StreamAge)}
	if err := s.join(r, run, last); err != nil {
		place.Release()
		_ = tape.Close()
		_ = conn.Close()
	}
	return nil
}

// tapeFrom reads which tape, and from where on.
func (x *exchange) tapeFrom() (run string, after uint64, err error) {
	if run, err = x.id("run", ident.Run); err != nil {
		return "", 0, err
	}
	after = x.number("after")
	ids := x.r.Header.Values("Last-Event-ID")
	if len(ids) == 0 {
		return run, after, nil
	}
	if len(ids) == 1 {
		after, err = parseUint(ids[0])
	}
	if len(ids) > 1 || err != nil {
		return "", 0, usage("bad_event_id", "read Last-Event-ID", errors.New("want one decimal number"))
	}
	return run, after, nil
}

// hijack takes the connection, and makes the response header that net/http would
// have written.
func (x *exchange) hijack(media string) (net.Conn, []byte, error) {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "hijack", "take over connection", err)
	}
	if rec, ok := x.w.(*recorder); ok {
		rec.status = http.StatusOK
	}
	h := x.w.Header()
	h.Set("Content-Type", media)
	h.Set("Connection", "close")
	h.Set("Transfer-Encoding", "chunked")
	h.Set("X-Accel-Buffering", "no") // nginx, which would hold events back
	var b bytes.Buffer
	b.WriteString("HTTP/1.1 200 OK\r\n")
	_ = h.Write(&b) // a Buffer takes everything
	b.WriteString("\r\n")
	return conn, b.Bytes(), nil
}
