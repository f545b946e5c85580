package run

import (
	"bytes"
	"context"
	"errors"
	"io"
	"sync"
	"time"
	"unicode/utf8"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// live is what the step under way has written. It is read while it grows, from any byte on:
// a reader takes bytes from where they are kept anyway, and nothing is queued for it.
type live struct {
	e    *Engine
	j    *job
	step int
	out  [2]*capture // stdout and stderr

	mu    sync.Mutex
	more  chan struct{} // closed when there is something new; nil: no reader waits; guarded by mu
	wrote bool          // the program has written; guarded by mu
	late  bool          // the step has been running for flushAfter; guarded by mu
	said  bool          // the tape mentions the output, or is about to have all of it; guarded by mu
}

// goLive begins the output of the step that is on record as running. That of the step before
// is on record, and read from there.
func (e *Engine) goLive(j *job) *live {
	l := &live{e: e, j: j, step: j.current.Index}
	for i := range l.out {
		l.out[i] = &capture{live: l}
	}
	e.setLive(j, l)
	e.tapes.ring(j.id)
	return l
}

// setLive replaces the live output of a run. nil removes it.
func (e *Engine) setLive(j *job, l *live) {
	e.mu.Lock()
	old := j.live
	j.live = l
	e.mu.Unlock()
	if old != nil {
		old.drop()
	}
}

func (e *Engine) liveOf(run string) *live {
	e.mu.Lock()
	defer e.mu.Unlock()
	if j := e.jobs[run]; j != nil {
		return j.live
	}
	return nil
}

// listen returns what is closed when there is something new.
func (l *live) listen() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more == nil {
		l.more = make(chan struct{})
	}
	return l.more
}

// news wakes the readers.
func (l *live) news(wrote bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.more != nil {
		close(l.more)
		l.more = nil
	}
	if wrote && !l.wrote {
		l.wrote = true
		if l.mentionLocked() {
			time.AfterFunc(0, func() { l.e.flush(l.j) })
		}
	}
}

// tardy says that the step has been running for flushAfter.
func (l *live) tardy() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.late = true
	l.mentionLocked()
}

// mentionLocked has the tape mention the output of a step that takes long, once.
func (l *live) mentionLocked() bool {
	if l.said || !l.wrote || !l.late {
		return false
	}
	l.said = true
	l.j.note(hub.EventStepOutput, hub.StepOutput{Step: l.step})
	return true
}

// close ends both streams and returns what they had. It stays there for readers.
func (l *live) close() (stdout, stderr hub.Output) {
	stdout, stderr = l.out[0].close(), l.out[1].close()
	l.mu.Lock()
	l.said = true // step.ended comes next
	l.mu.Unlock()
	l.news(false)
	return stdout, stderr
}

// drop gives back what the readers had.
func (l *live) drop() {
	for _, c := range l.out {
		c.drop()
	}
	l.news(false)
}

// capture takes one stream of a call: the beginning stays in memory, and as soon
// as there is more the whole goes into an artifact of the run. It never fails:
// what cannot be kept is counted, and the result says that it was lost.
type capture struct {
	live *live

	mu    sync.Mutex
	head  []byte       // at most hub.MaxInline bytes; guarded by mu
	size  int64        // guarded by mu
	draft *store.Draft // nil: everything is in head, or lost; guarded by mu
	lost  error        // why the draft is no more; guarded by mu
	over  bool         // closed; guarded by mu
	gone  bool         // dropped; guarded by mu
}

// Write implements io.Writer.
func (c *capture) Write(p []byte) (int, error) {
	j := c.live.j
	if j.left.n.Add(-int64(len(p))) < 0 {
		j.cancel(&Stop{State: "failed", Reason: ReasonBytes})
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.over { // the gate has given this writer up
		return len(p), nil
	}
	c.keepLocked(p)
	c.size += int64(len(p))
	c.live.news(true)
	return len(p), nil
}

// keepLocked puts p where it belongs.
func (c *capture) keepLocked(p []byte) {
	room := hub.MaxInline - len(c.head)
	if c.draft == nil && c.lost == nil && len(p) > room {
		mediaType := "application/octet-stream"
		if utf8.Valid(c.head) {
			mediaType = "text/plain; charset=utf-8"
		}
		if c.draft, c.lost = c.live.e.store.Draft(context.WithoutCancel(c.live.j.ctx), c.live.j.id, mediaType); c.lost == nil {
			_, c.lost = c.draft.Write(c.head)
		}
	}
	c.head = append(c.head, p[:min(len(p), room)]...)
	if c.draft != nil && c.lost == nil {
		_, c.lost = c.draft.Write(p)
	}
	if c.lost != nil {
		c.discardLocked()
	}
}

func (c *capture) discardLocked() {
	if c.draft != nil {
		_ = c.draft.Close()
		c.draft = nil
	}
}

// close returns what was captured. An artifact is durable then.
func (c *capture) close() hub.Output {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	o := hub.Output{Size: c.size}
	var text []byte
	if c.draft != nil {
		var a *store.Artifact
		if a, c.lost = c.draft.Commit(context.WithoutCancel(c.live.j.ctx)); c.lost == nil {
			o.Artifact = a.Digest
		} else {
			c.discardLocked()
		}
	}
	if c.lost != nil {
		o.Lost, o.LostWhy = true, reasonOf(c.lost)
		c.live.e.cfg.Log.Warn("keep output", "run", c.live.j.id, "error", c.lost)
	}
	if text = c.head; c.size > int64(len(text)) {
		text = whole(text)
	}
	if isText(text) {
		o.Text = string(text)
	} else {
		o.Base64 = c.head
	}
	return o
}

func (c *capture) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over, c.gone, c.head = true, true, nil
	c.discardLocked()
}

// readAt implements source.
func (l *live) readAt(_ context.Context, i int, b []byte, off int64) (int, bool, error, error) {
	return l.out[i].readAt(b, off)
}

// size implements source.
func (l *live) size(i int) int64 {
	c := l.out[i]
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.size
}

var errDropped = errors.New("output is on record")

// readAt reads what there is from a byte on. It waits for nothing. over says that nothing
// follows what it read, for the reason lost if that isn't nil.
func (c *capture) readAt(b []byte, off int64) (n int, over bool, lost, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return 0, false, nil, errDropped
	}
	b = b[:max(0, min(int64(len(b)), c.size-off))]
	switch {
	case off < int64(len(c.head)):
		n = copy(b, c.head[off:])
	case c.draft != nil && len(b) > 0:
		n, err = c.draft.ReadAt(b, off)
	}
	if c.lost != nil && off+int64(n) >= int64(len(c.head)) {
		return n, true, c.lost, err
	}
	return n, c.over && off+int64(n) >= c.size, nil, err
}

// whole cuts off the beginning of a character at the end.
func whole(b []byte) []byte {
	for i := 1; i < utf8.UTFMax && i <= len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return b[:len(b)-i]
			}
			break
		}
	}
	return b
}

// begun cuts off the end of a character at the beginning.
func begun(b []byte) []byte {
	for i := 0; i < utf8.UTFMax && i < len(b); i++ {
		if utf8.RuneStart(b[i]) {
			return b[i:]
		}
	}
	return b
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// partSize bounds the bytes of one part, and so the memory of a reader.
const partSize = 16 << 10

// gather is the least time between small parts of a live step: what a reader of a model's answer,
// who wants each piece as it comes, waits for one at most.
const gather = time.Millisecond

// OutputReader reads what the steps of a run write. It implements hub.Outputs.
type OutputReader struct {
	e     *Engine
	run   string
	until string
	tail  int64 // of the first step; 0: all
	open  OpenArtifact

	step  int
	at    [2]int64  // where the next parts begin
	cut   [2]bool   // that may be within a character
	told  [2]bool   // the stream has no more parts
	first int       // the stream that is looked at first
	last  time.Time // of a part
	large [2]bool   // the last part of the stream was half a part or more: more waits
	buf   []byte
	ended *endedStep // of step; nil: it is live, or not looked for yet

	close sync.Once
}

// OpenArtifact opens an artifact whose content was checked.
type OpenArtifact func(context.Context, canon.Digest) (io.ReadSeekCloser, error)

var _ hub.Outputs = (*OutputReader)(nil)

// Output reads what the steps of a run write, from a place on: what there is, and then more
// as it comes. The caller closes it. It has a place among the readers of tapes; too many
// are fault.Busy "too_many".
func (e *Engine) Output(q hub.OutputQuery, open OpenArtifact) (*OutputReader, error) {
	const most = 1 << 62 // of bytes, so that no sum overflows
	if q.Step < 0 || q.Stdout > most || q.Stderr > most || q.Tail > most {
		return nil, fault.New(fault.Usage, "invalid_input", "read output", errors.New("no such place"))
	}
	if err := e.tapes.enter("read output"); err != nil {
		return nil, err
	}
	return &OutputReader{e: e, run: q.Run, until: q.Until, tail: int64(q.Tail), open: open, step: q.Step, at: [2]int64{int64(q.Stdout), int64(q.Stderr)}}, nil
}

// Next implements hub.Outputs.
func (r *OutputReader) Next(ctx context.Context) (hub.OutputPart, error) {
	if err := r.rest(ctx); err != nil {
		return hub.OutputPart{}, err
	}
	for {
		// The bell first: steps that begin or end after the look ring it.
		b, err := r.e.tapes.listen(r.run)
		if err != nil {
			return hub.OutputPart{}, err
		}
		p, more, err := r.look(ctx)
		if err == nil && p == nil {
			if r.until == hub.UntilNow {
				err = io.EOF
			} else {
				select {
				case <-b.rung:
				case <-more:
				case <-ctx.Done():
					err = ctx.Err()
				}
			}
		}
		r.e.tapes.leave(r.run, b)
		switch {
		case err != nil:
			return hub.OutputPart{}, err
		case p != nil:
			r.last = time.Now()
			return *p, nil
		}
	}
}

// rest lets small parts of a live step come together: a program that writes byte by byte would
// have each of its readers send one part a byte.
func (r *OutputReader) rest(ctx context.Context) error {
	left := gather - time.Since(r.last)
	if left <= 0 || r.until == hub.UntilNow || r.ended != nil || r.large[0] || r.large[1] {
		return nil
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// look returns the next part, or nil if it isn't there yet. Then more, unless nil, is closed when
// it may be. The error is io.EOF if no further part will come.
func (r *OutputReader) look(ctx context.Context) (p *hub.OutputPart, more <-chan struct{}, err error) {
	for {
		var from source
		if l := r.e.liveOf(r.run); r.ended == nil && l != nil && l.step == r.step {
			more, from = l.listen(), l
		} else if r.ended == nil {
			if r.ended, err = r.e.stepEnd(ctx, r.run, r.step, r.open); err != nil || r.ended == nil {
				return nil, nil, err
			}
			r.first = 0
		}
		if r.ended != nil {
			from = r.ended
		}
		r.skip(from)
		p, over, err := r.part(ctx, from)
		switch {
		case errors.Is(err, errDropped):
			more = nil
			continue
		case err != nil || p != nil || !over:
			return p, more, err
		}
		r.next()
	}
}

// next goes on with the step that follows.
func (r *OutputReader) next() {
	r.letGo()
	r.step++
	r.at, r.cut, r.told, r.large = [2]int64{}, [2]bool{}, [2]bool{}, [2]bool{}
}

// skip passes over what is before the end that is wanted of the first step.
func (r *OutputReader) skip(from source) {
	if r.tail == 0 {
		return
	}
	for i := range r.at {
		if begin := from.size(i) - r.tail; begin > r.at[i] {
			r.at[i], r.cut[i] = begin, true
		}
	}
	r.tail = 0
}

func (r *OutputReader) letGo() {
	if r.ended != nil {
		r.ended.close()
		r.ended = nil
	}
}

// source is what a step has written: a live one, or one on record.
type source interface {
	// readAt reads one of two streams as capture.readAt does.
	readAt(ctx context.Context, stream int, b []byte, off int64) (n int, over bool, lost, err error)
	// size returns how much there is of a stream.
	size(stream int) int64
}

var (
	_ source = (*live)(nil)
	_ source = (*endedStep)(nil)
)

// streamNames are the streams' in an OutputPart.
var streamNames = [2]string{"stdout", "stderr"}

// part reads the next part of the streams. Those of a live step take turns. over: there will
// be none.
func (r *OutputReader) part(ctx context.Context, from source) (_ *hub.OutputPart, over bool, err error) {
	if r.buf == nil {
		r.buf = make([]byte, partSize)
	}
	over = true
	for k := range 2 {
		i := r.first ^ k
		if r.told[i] {
			continue
		}
		n, end, lost, err := from.readAt(ctx, i, r.buf, r.at[i])
		if err != nil {
			return nil, false, err
		}
		b := r.buf[:n]
		if r.cut[i] && n > 0 {
			b = begun(b)
			r.at[i] += int64(n - len(b))
			r.cut[i] = false
		}
		if !end {
			b = whole(b) // the rest of a character comes
		}
		r.told[i] = end
		over = over && end
		if len(b) == 0 && lost == nil {
			r.large[i] = false
			continue
		}
		p := &hub.OutputPart{Step: r.step, Stream: streamNames[i], From: r.at[i]}
		if isText(b) {
			p.Text = string(b)
		} else {
			p.Base64 = bytes.Clone(b)
		}
		if lost != nil {
			p.Lost = reasonOf(lost)
		}
		r.at[i] += int64(len(b))
		r.large[i] = len(b) >= partSize/2
		if r.ended == nil {
			r.first = 1 - i
		}
		return p, false, nil
	}
	return nil, over, nil
}

// Close ends the reader. A Next that waits goes on until its ctx is done.
func (r *OutputReader) Close() error {
	r.close.Do(func() {
		r.letGo()
		r.e.tapes.exit()
	})
	return nil
}

// endedStep is what a step wrote, as it is on record.
type endedStep struct {
	out  [2]hub.Output
	open OpenArtifact
	file io.ReadSeekCloser // the artifact that is being read; nil: none
	of   int               // the stream that it is
}

// stepEnd returns a step's output, nil if the step hasn't ended yet, io.EOF if it will never
// begin.
func (e *Engine) stepEnd(ctx context.Context, run string, step int, open OpenArtifact) (*endedStep, error) {
	return store.View(ctx, e.store, func(tx *store.Tx) (*endedStep, error) {
		row, err := tx.StepHead(run, step)
		switch {
		case fault.KindOf(err) == fault.NotFound:
			r, err := tx.RunHead(run)
			if err == nil && r.State.Terminal() {
				err = io.EOF
			}
			return nil, err
		case err != nil || row.State == store.StepRunning:
			return nil, err
		}
		s, err := stepOf(row)
		if err != nil {
			return nil, err
		}
		return &endedStep{out: [2]hub.Output{s.Stdout, s.Stderr}, open: open}, nil
	})
}

// size implements source.
func (s *endedStep) size(i int) int64 { return s.out[i].Size }

// readAt implements source.
func (s *endedStep) readAt(ctx context.Context, i int, b []byte, off int64) (n int, over bool, lost, err error) {
	o := &s.out[i]
	b = b[:max(0, min(int64(len(b)), o.Size-off))]
	head := o.Base64
	if head == nil {
		head = []byte(o.Text)
	}
	switch {
	case off < int64(len(head)):
		n = copy(b, head[off:])
	case len(b) == 0:
	case o.Artifact.IsZero():
		lost = fault.New(fault.Unavailable, o.LostWhy, "read output", nil)
	default:
		if n, err = s.read(ctx, i, b, off); fault.KindOf(err) == fault.NotFound { // its session has ended
			lost, err = err, nil
		}
	}
	return n, lost != nil || off+int64(n) >= o.Size, lost, err
}

// read reads b from the artifact of a stream.
func (s *endedStep) read(ctx context.Context, i int, b []byte, off int64) (n int, err error) {
	if s.file == nil || s.of != i {
		s.close()
		if s.file, err = s.open(ctx, s.out[i].Artifact); err != nil {
			s.file = nil
			return 0, err
		}
		s.of = i
	}
	if _, err = s.file.Seek(off, io.SeekStart); err == nil {
		n, err = io.ReadFull(s.file, b)
	}
	if err != nil {
		err = fault.New(fault.Unavailable, "io_error", "read output", err)
	}
	return n, err
}

func (s *endedStep) close() {
	if s.file != nil {
		_ = s.file.Close()
		s.file = nil
	}
}
