package run

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
)

// tapeBatch is how many events a reader takes from the store at once: all that
// it ever holds.
const tapeBatch = 16

// tapes tells readers that there is something new. It holds no events: readers
// take them from the store, each at its own pace.
type tapes struct {
	store *store.Store
	max   int

	mu      sync.Mutex
	readers int              // guarded by mu
	bells   map[string]*bell // by run, while somebody waits; guarded by mu
	closed  bool             // guarded by mu
}

// bell rings once.
type bell struct {
	rung    chan struct{} // closed when there is something new
	waiting int           // guarded by tapes.mu
}

func newTapes(s *store.Store, limit int) *tapes {
	return &tapes{store: s, max: limit, bells: make(map[string]*bell)}
}

// ring wakes the readers of a run. What they are woken for is durable.
func (t *tapes) ring(run string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b := t.bells[run]; b != nil {
		close(b.rung)
		delete(t.bells, run)
	}
}

// listen returns the bell that rings next. Whoever listens must leave.
func (t *tapes) listen(run string) (*bell, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, fault.New(fault.Unavailable, "not_ready", "read tape", errEnding)
	}
	b := t.bells[run]
	if b == nil {
		b = &bell{rung: make(chan struct{})}
		t.bells[run] = b
	}
	b.waiting++
	return b, nil
}

func (t *tapes) leave(run string, b *bell) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.waiting--; b.waiting == 0 && t.bells[run] == b {
		delete(t.bells, run)
	}
}

// close wakes everybody, for good.
func (t *tapes) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for run, b := range t.bells {
		close(b.rung)
		delete(t.bells, run)
	}
}

func (t *tapes) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.readers
}

// Reader is one reader of a tape. It implements hub.Tape.
type Reader struct {
	tapes *tapes
	run   string

	after uint64      // of what Next returned
	batch []hub.Event // what comes next, read already
	over  bool        // the batch ends with the end of the run

	close sync.Once
}

var _ hub.Tape = (*Reader)(nil)

// Tape reads the events of a run with Seq > after. The caller closes it. Too
// many readers are fault.Busy "too_many".
func (e *Engine) Tape(run string, after uint64) (*Reader, error) {
	if err := e.tapes.enter("read tape"); err != nil {
		return nil, err
	}
	return &Reader{tapes: e.tapes, run: run, after: after}, nil
}

// enter takes the place of a reader.
func (t *tapes) enter(op string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.closed:
		return fault.New(fault.Unavailable, "not_ready", op, errEnding)
	case t.readers >= t.max:
		return fault.New(fault.Busy, "too_many", op, errors.New("as many read as may")).WithHint("close other readers of tapes")
	}
	t.readers++
	return nil
}

// exit gives the place of a reader back.
func (t *tapes) exit() {
	t.mu.Lock()
	t.readers--
	t.mu.Unlock()
}

// Next implements hub.Tape.
func (r *Reader) Next(ctx context.Context) (hub.Event, error) {
	for len(r.batch) == 0 {
		if r.over {
			return hub.Event{}, io.EOF
		}
		if err := r.wait(ctx); err != nil {
			return hub.Event{}, err
		}
	}
	ev := r.batch[0]
	r.batch[0] = hub.Event{} // let it go although the array stays
	r.batch = r.batch[1:]
	r.after = ev.Seq
	return ev, nil
}

// wait returns when there is a batch, or the end.
func (r *Reader) wait(ctx context.Context) error {
	// The bell first: what comes after the look into the store rings it.
	b, err := r.tapes.listen(r.run)
	if err != nil {
		return err
	}
	defer r.tapes.leave(r.run, b)
	if err := r.fill(ctx); err != nil || len(r.batch) > 0 || r.over {
		return err
	}
	select {
	case <-b.rung:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// fill reads the next batch. An ended run has no events after the one that says so.
func (r *Reader) fill(ctx context.Context) error {
	type page struct {
		events []store.Event
		over   bool
	}
	p, err := store.View(ctx, r.tapes.store, func(tx *store.Tx) (p page, err error) {
		if p.events, err = tx.Events(r.run, r.after, tapeBatch); err != nil || len(p.events) == tapeBatch {
			return p, err
		}
		run, err := tx.RunHead(r.run)
		if err != nil || !run.State.Terminal() {
			return p, err
		}
		last, seen := uint64(0), r.after
		if len(p.events) > 0 {
			seen = p.events[len(p.events)-1].Seq
		}
		if last, err = tx.LastEvent(r.run); err == nil { // a batch ends early where events are large
			p.over = seen >= last
		}
		return p, err
	})
	if err != nil {
		return err
	}
	r.over, r.batch = p.over, make([]hub.Event, 0, len(p.events))
	for _, ev := range p.events {
		r.batch = append(r.batch, hub.Event{Run: ev.Run, Seq: ev.Seq, Kind: ev.Kind, Time: ev.Time, Data: ev.Payload})
	}
	return nil
}

// Close ends the reader. A Next that waits goes on until its ctx is done.
func (r *Reader) Close() error {
	r.close.Do(r.tapes.exit)
	return nil
}

// event puts v on the tape of a run.
func event(tx *store.Tx, run, kind string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fault.New(fault.Internal, "internal", "append event", err)
	}
	_, err = tx.AppendEvent(run, kind, b)
	return err
}
