package httpapi

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// maxBatch is about the size of one write, in bytes.
const maxBatch = 64 << 10

// buffer is a pump's; the next pump uses it again.
type buffer struct {
	frames    []frame
	body, out []byte
}

// pump writes the events that are there to one reader, and ends. On an error, and at the
// end of the tape, it ends the reader.
func (s *streams) pump(ctx context.Context, r *reader) {
	b := s.buffers.Get().(*buffer)
	defer s.buffers.Put(b)
	for {
		frames, beat, last, behind := r.next(b.frames[:0])
		large, err := s.roomFor(ctx, b, r, frames, behind)
		var body []byte
		if err == nil {
			body, err = s.render(ctx, r, b.body[:0], frames, behind)
		}
		clear(frames) // what it holds is the reel's
		b.frames, b.body = frames[:0], body[:0]
		if err != nil {
			large.Release()
			s.log.Info("tape not read", "run", r.reel.run, "error", err)
			s.drop(r)
			break
		}
		if len(body) == 0 && beat {
			body = r.appendBeat(body)
		}
		if len(body) == 0 && r.head == nil && last == going {
			large.Release()
			if r.idle() {
				return
			}
			continue
		}
		err = s.write(b, r, body, last == ended)
		if large != nil { // its place was for all of this
			b.frames, b.body, b.out = nil, nil, nil
			r.forget()
			large.Release()
		}
		if err != nil {
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
	r.forget() // the reader is gone; no other pump starts for it
}

// roomFor takes a place for a write that may be large, waiting for it in line: one of
// events from the store, which come several at once, or of a large event. A client that
// doesn't read keeps it until its write is late.
func (s *streams) roomFor(ctx context.Context, b *buffer, r *reader, frames []frame, behind uint64) (*budget.Hold, error) {
	size := 0
	for i := range frames {
		size += len(frames[i].json)
	}
	if behind == 0 && (len(frames) == 0 || size <= maxBatch && r.view == nil) {
		return nil, nil
	}
	if err := s.write(b, r, nil, false); err != nil { // its client needn't wait for the header
		return nil, err
	}
	return s.large.Wait(ctx, r.owner, 1)
}

// forget closes what the reader reads from the store.
func (r *reader) forget() {
	if r.tape != nil {
		_ = r.tape.Close()
		r.tape = nil
	}
}

// The ways in which a tape goes on after the events taken from it.
type ending int

const (
	going  ending = iota
	ended         // the run has ended and everything was taken
	broken        // it cannot be read any more
)

// next adds to frames the events that the reel has for r. behind isn't 0 if they are only
// in the store: up to there r can read them without waiting. beat says that a sign of life
// is due.
func (r *reader) next(frames []frame) (_ []frame, beat bool, last ending, behind uint64) {
	l := r.reel
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case r.gone:
		return frames, false, broken, 0
	case r.seq < l.hi && (len(l.frames) == 0 || r.seq+1 < l.frames[0].seq):
		return frames, false, going, l.hi
	}
	seq, size := r.seq, 0
	for i := range l.frames {
		f := &l.frames[i]
		if f.seq <= seq {
			continue
		}
		if size += len(f.json); len(frames) > 0 && size > maxBatch {
			break
		}
		frames, seq = append(frames, *f), f.seq
	}
	beat, r.beat = r.beat, false
	if l.done && seq >= l.hi {
		if last = ended; l.err != nil {
			last = broken
		}
	}
	return frames, beat, last, 0
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

// render adds the frames to body or, if behind isn't 0, a batch of events from the store,
// which has them up to there.
func (s *streams) render(ctx context.Context, r *reader, body []byte, frames []frame, behind uint64) (_ []byte, err error) {
	if behind == 0 {
		r.forget()
	}
	if behind == 0 && len(frames) == 0 {
		return body, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.lim.Write)
	defer cancel()
	for i := range frames {
		if body, err = r.append(ctx, body, &frames[i]); err != nil {
			return body, err
		}
	}
	if behind == 0 {
		return body, nil
	}
	return s.catchUp(ctx, r, body, behind)
}

func (s *streams) catchUp(ctx context.Context, r *reader, body []byte, hi uint64) ([]byte, error) {
	if r.tape == nil {
		t, err := hub.ReadTape.Do(ctx, s.hub, r.who, hub.TapeQuery{Run: r.reel.run, After: r.seq})
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
			return body, fault.New(fault.Integrity, "bad_answer", "read tape", errors.New("an event is missing"))
		}
		if body, err = r.append(ctx, body, &f); err != nil {
			return body, err
		}
	}
	return body, nil
}

// append adds an event as the reader may see it.
func (r *reader) append(ctx context.Context, b []byte, f *frame) ([]byte, error) {
	text := f.json
	if f.less != nil && !r.who.ReadsPolicy {
		text = f.less
	}
	if r.view == nil {
		b = r.appendOne(b, f.seq, f.kind, text)
		r.seq = f.seq
		return b, nil
	}
	var ev hub.Event
	if err := json.Unmarshal(text, &ev); err != nil {
		return b, fault.New(fault.Integrity, "bad_answer", "read tape", err)
	}
	shown, err := r.view.Of(ctx, ev)
	if err != nil {
		return b, fault.New(fault.Integrity, "bad_answer", "read tape", err)
	}
	for i := range shown {
		text, err := encode(shown[i])
		if err != nil {
			return b, err
		}
		id := f.seq
		if i < len(shown)-1 { // who comes back after this one must get the others, too
			id = 0
		}
		b = r.appendOne(b, id, shown[i].Kind, text[:len(text)-1])
	}
	r.seq = f.seq
	return b, nil
}

// appendOne adds one event in the reader's format. It has no id if seq is 0.
func (r *reader) appendOne(b []byte, seq uint64, kind string, text []byte) []byte {
	if !r.sse {
		return append(append(b, text...), '\n')
	}
	if seq != 0 {
		b = append(b, "id: "...)
		b = strconv.AppendUint(b, seq, 10)
		b = append(b, '\n')
	}
	b = append(b, "event: "...)
	b = append(b, kind...)
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
	media, err := accepts(x.r.Header, hub.MediaSSE, hub.MediaNDJSON)
	if err != nil {
		return err
	}
	if !x.r.ProtoAtLeast(1, 1) {
		return answered(505, "read tape", errors.New("want HTTP/1.1"))
	}
	q, err := x.tapeQuery()
	if err != nil {
		return err
	}
	now, err := hub.GetRun.Do(x.r.Context(), x.s.cfg.Hub, x.caller, q.Run)
	switch {
	case err != nil:
		return err
	case q.After > now.LastSeq:
		return usage("invalid_input", "read tape", errors.New("the tape is not that long"))
	case q.After == now.LastSeq && (now.State == hub.RunDone || now.State == hub.RunFailed || now.State == hub.RunCancelled):
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
	return x.stream(q, now, media)
}

// stream makes a reader of the request.
func (x *exchange) stream(q hub.TapeQuery, now hub.Run, media string) error {
	s := x.s.streams
	var kept int64
	if q.View == hub.ViewTools {
		for i := range now.Steps {
			kept += int64(len(now.Steps[i].Input))
		}
	}
	place, err := s.reserve(x.payer(), kept)
	if err != nil {
		x.w.Header().Set("Retry-After", "5")
		return err
	}
	// Check that the reader may.
	tape, err := hub.ReadTape.Do(x.r.Context(), x.s.cfg.Hub, x.caller, hub.TapeQuery{Run: q.Run, After: q.After})
	if err != nil {
		place.Release()
		return err
	}
	conn, head, err := x.hijack(media)
	if err != nil {
		place.Release()
		return errors.Join(err, tape.Close())
	}
	r := &reader{owner: x.payer(), conn: conn, limit: conn.SetWriteDeadline, sse: media == hub.MediaSSE, who: x.caller, place: place, tape: tape,
		seq: q.After, head: head, until: time.Now().Add(s.lim.StreamAge)}
	if q.View == hub.ViewTools {
		r.view = &hub.ToolView{Hub: s.hub, Caller: x.caller, Run: q.Run, Receipts: x.may(permJournalRead) && x.caller.ReadsPolicy}
	}
	if err := s.join(r, q.Run, now.LastSeq); err != nil {
		place.Release()
		_ = tape.Close()
		_ = conn.Close()
	}
	return nil
}

// tapeQuery reads the tape's run, its first event and its view.
func (x *exchange) tapeQuery() (q hub.TapeQuery, err error) {
	in, err := x.input()
	if err != nil {
		return q, err
	}
	q = in.(hub.TapeQuery)
	ids := x.r.Header.Values("Last-Event-ID")
	if len(ids) == 0 {
		return q, nil
	}
	if len(ids) == 1 {
		q.After, err = parseUint(ids[0])
	}
	if len(ids) > 1 || err != nil {
		return q, usage("invalid_input", "read Last-Event-ID", errors.New("want one decimal number"))
	}
	return q, nil
}

// hijack takes the connection, and makes the response header that net/http would
// have written.
func (x *exchange) hijack(media string) (net.Conn, []byte, error) {
	conn, _, err := http.NewResponseController(x.w).Hijack()
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "internal", "take over connection", err)
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
