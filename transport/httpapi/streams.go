package httpapi

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// streams are the readers of tapes. A reader that has seen everything is a connection in a
// set: it has no goroutine and no buffer. For each run with readers one goroutine waits for
// events (reel.follow). An event or a heartbeat starts a goroutine for each reader (pump),
// which writes what there is, with a deadline, and ends. So a slow reader holds up no
// other, and 10,000 silent ones cost only their sockets.
//
// Locks are taken in the order streams.mu, reel.mu.
type streams struct {
	hub   hub.Hub
	check func(hub.Caller) error // nil: see Config.Check
	lim   Limits
	log   *slog.Logger

	places *budget.Pool  // readers, by principal
	large  *budget.Pool  // writes that may be large, by principal
	slow   atomic.Uint64 // readers that were cut off
	// buffers spares 10,000 readers of one event 10,000 allocations.
	buffers sync.Pool
	wg      sync.WaitGroup // follow and pump; ends before run does
	nudge   chan struct{}  // tells run that there is a reader again; never closed

	mu     sync.Mutex
	ctx    context.Context                 // guarded by mu; of run, nil while it does not run
	reels  map[string]*reel                // guarded by mu; by run
	slots  [beatSlots]map[*reader]struct{} // guarded by mu
	serial int                             // guarded by mu
}

// beatSlots spreads heartbeats: every reader has its turn once in Limits.Heartbeat.
const beatSlots = 8

// reel is shared by the readers of one run: it has the newest events, ready to be sent.
type reel struct {
	run    string
	cancel context.CancelFunc

	mu      sync.Mutex
	frames  []frame              // guarded by mu; without gaps, the last is hi
	bytes   int                  // guarded by mu; of frames
	hi      uint64               // guarded by mu; the newest sequence number that is known
	done    bool                 // guarded by mu; there will be no more
	err     error                // guarded by mu; the tape broke
	readers map[*reader]struct{} // guarded by mu
}

// frame is one event, encoded.
type frame struct {
	seq  uint64
	kind string
	json []byte // one line
	less []byte // for readers who may not read policy; nil: the same
}

// The bounds of a reel. A reader that is further behind, or at a larger event, reads from the
// store.
const (
	maxFrames     = 256
	maxFrameBytes = 256 << 10
)

// reader is one client that follows a run.
type reader struct {
	conn  io.WriteCloser
	limit func(time.Time) error // sets the write deadline
	sse   bool
	who   hub.Caller // for reading again from the store
	place *budget.Hold
	owner budget.Owner
	reel  *reel
	slot  int
	until time.Time

	// Owned by the pump, of which there is one at a time.
	view *hub.ToolView // what it is shown instead of the events; nil: these
	tape hub.Tape      // reads from the store; nil: nothing to read there
	seq  uint64        // the last event that was written
	head []byte        // the response header, until it is written

	running bool // guarded by reel.mu; there is a pump
	beat    bool // guarded by reel.mu; a heartbeat is due
	gone    bool // guarded by reel.mu
}

func newStreams(h hub.Hub, check func(hub.Caller) error, lim Limits, log *slog.Logger) *streams {
	s := &streams{hub: h, check: check, lim: lim, log: log, nudge: make(chan struct{}, 1), reels: make(map[string]*reel),
		places: budget.New(budget.Limits{Name: "streams", Total: int64(lim.Streams), Each: int64(min(lim.StreamsPerCaller, lim.Streams)), Reserve: int64(lim.Streams / ownersPart)}),
		// A large write holds some 4 MiB: events up to the size of a request's body as they
		// were read, rendered and framed.
		large:   budget.New(budget.Limits{Name: "tapes", Total: 24, Each: 6, Reserve: 4, Line: 2 * lim.Streams}),
		buffers: sync.Pool{New: func() any { return new(buffer) }}}
	for i := range s.slots {
		s.slots[i] = make(map[*reader]struct{})
	}
	return s
}

// begin lets readers come, until run ends. It returns what ends them.
func (s *streams) begin(ctx context.Context) context.CancelFunc {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ctx = ctx
	return cancel
}

// run sends heartbeats until stop is closed, then cuts off all readers with cancel and waits
// for their goroutines.
func (s *streams) run(cancel context.CancelFunc, stop <-chan struct{}) {
	var tick, look <-chan time.Time // nil while there are no readers
	var ticker, looker *time.Ticker
	for turn := 0; ; {
		select {
		case <-s.nudge:
			if tick == nil {
				ticker = time.NewTicker(s.lim.Heartbeat / beatSlots)
				tick = ticker.C
				if s.check != nil {
					looker = time.NewTicker(lookEvery)
					look = looker.C
				}
			}
		case <-look:
			s.look()
		case <-tick:
			s.beats(turn)
			turn = (turn + 1) % beatSlots
			if s.count() == 0 {
				ticker.Stop()
				if looker != nil {
					looker.Stop()
				}
				tick, look = nil, nil
				s.nudgeIfAny() // a reader may have come since count
			}
		case <-stop:
			if ticker != nil {
				ticker.Stop()
			}
			if looker != nil {
				looker.Stop()
			}
			s.mu.Lock()
			s.ctx = nil // no reader comes any more
			s.mu.Unlock()
			cancel()
			s.cutIf(func(*reader) bool { return true })
			s.wg.Wait()
			return
		}
	}
}

func (s *streams) nudgeIfAny() {
	if s.count() > 0 {
		s.wakeRun()
	}
}

func (s *streams) wakeRun() {
	select {
	case s.nudge <- struct{}{}:
	default:
	}
}

// count returns the places that readers have.
func (s *streams) count() int64 { return s.places.Held() }

// readerSize is the memory of a reader, for which it has one place: 0.03 MiB were
// measured with 512 readers.
const readerSize = 32 << 10

// reserve takes the places of a reader that keeps extra bytes, or says why there are
// none. Go holds up to twice what it was asked for. No reader needs more than all
// places of its principal.
func (s *streams) reserve(who budget.Owner, extra int64) (*budget.Hold, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		return nil, fault.New(fault.Unavailable, "not_ready", "read tape", errors.New("the server does not serve"))
	}
	l := s.places.Limits()
	place, err := s.places.Take(who, min(1+2*extra/readerSize, l.Each, l.Total-l.Reserve))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "too_many", "read tape", err).WithHint("close a reader of a tape and try again")
	}
	return place, nil
}

// while returns a ctx that ends with a reader's request, or when readers are cut off.
func (s *streams) while(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		cancel()
		return ctx, cancel
	}
	stop := context.AfterFunc(s.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// join adds a reader with a reserved place to the readers of a run whose newest
// event is last or a later one, and starts to write to it.
func (s *streams) join(r *reader, run string, last uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ctx == nil {
		return fault.New(fault.Unavailable, "not_ready", "read tape", errors.New("the server does not serve"))
	}
	l := s.reels[run]
	if l == nil {
		ctx, cancel := context.WithCancel(s.ctx)
		l = &reel{run: run, hi: last, cancel: cancel, readers: make(map[*reader]struct{})}
		s.reels[run] = l
		who := r.who
		s.wg.Go(func() { s.follow(ctx, l, who, last) })
	}
	r.reel, r.slot = l, s.serial%beatSlots
	s.serial++
	s.slots[r.slot][r] = struct{}{}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.readers[r] = struct{}{}
	s.wakeLocked(s.ctx, r)
	s.wakeRun()
	return nil
}

// wakeLocked starts the reader's pump unless there is one; reel.mu is held. A
// pump that is there looks again before it ends.
func (s *streams) wakeLocked(ctx context.Context, r *reader) {
	if r.running || r.gone {
		return
	}
	r.running = true
	s.wg.Go(func() { s.pump(ctx, r) })
}

// follow reads the tape of a run for all its readers.
func (s *streams) follow(ctx context.Context, l *reel, who hub.Caller, after uint64) {
	err := s.read(ctx, l, who, after)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = true
	if !errors.Is(err, io.EOF) {
		l.err = err
		if ctx.Err() == nil {
			s.log.Error("tape broken off", "run", l.run, "error", err)
		}
	}
	for r := range l.readers {
		s.wakeLocked(ctx, r)
	}
}

func (s *streams) read(ctx context.Context, l *reel, who hub.Caller, after uint64) error {
	t, err := hub.ReadTape.Do(ctx, s.hub, who, hub.TapeQuery{Run: l.run, After: after})
	if err != nil {
		return err
	}
	defer t.Close()
	for {
		ev, err := t.Next(ctx)
		if err != nil {
			return err
		}
		f, err := newFrame(ev)
		if err != nil {
			return err
		}
		l.mu.Lock()
		l.addLocked(f)
		for r := range l.readers {
			s.wakeLocked(ctx, r)
		}
		l.mu.Unlock()
	}
}

func (l *reel) addLocked(f frame) {
	l.frames = append(l.frames, f)
	l.bytes += f.size()
	l.hi = f.seq
	for len(l.frames) > maxFrames || l.bytes > maxFrameBytes {
		l.bytes -= l.frames[0].size()
		l.frames[0] = frame{} // let it go although the array stays
		l.frames = l.frames[1:]
	}
}

func newFrame(ev hub.Event) (frame, error) {
	b, err := encode(ev)
	if err != nil {
		return frame{}, err
	}
	f := frame{seq: ev.Seq, kind: ev.Kind, json: b[:len(b)-1]}
	if data, ok := redactEvent(ev); ok {
		ev.Data = data
		if b, err = encode(ev); err != nil {
			return frame{}, err
		}
		f.less = b[:len(b)-1]
	}
	return f, nil
}

// size returns the memory of a frame, in bytes.
func (f *frame) size() int { return len(f.json) + len(f.less) }

// beats makes heartbeats due for the readers whose turn it is, and cuts off
// those whose time is over.
func (s *streams) beats(turn int) {
	now := time.Now()
	s.mu.Lock()
	ctx := s.ctx
	due := make([]*reader, 0, len(s.slots[turn]))
	for r := range s.slots[turn] {
		due = append(due, r)
	}
	s.mu.Unlock()
	for _, r := range due {
		if now.After(r.until) {
			s.drop(r)
			continue
		}
		r.reel.mu.Lock()
		r.beat = true
		s.wakeLocked(ctx, r)
		r.reel.mu.Unlock()
	}
}

// lookEvery is how often the server checks that readers may go on: a token's tapes end
// within a second of its revocation, on whatever surface.
const lookEvery = 500 * time.Millisecond

// look cuts off the readers that may read no more.
func (s *streams) look() {
	s.mu.Lock()
	rs := make([]*reader, 0, s.count())
	for _, slot := range s.slots {
		for r := range slot {
			rs = append(rs, r)
		}
	}
	s.mu.Unlock()
	for _, r := range rs {
		if s.check(r.who) != nil {
			s.drop(r)
		}
	}
}

// cut cuts off the readers of a principal, whose rights have changed.
func (s *streams) cut(principal string) {
	s.cutIf(func(r *reader) bool { return r.who.User == principal })
}

func (s *streams) cutIf(which func(*reader) bool) {
	var rs []*reader
	s.mu.Lock()
	for _, slot := range s.slots {
		for r := range slot {
			if which(r) {
				rs = append(rs, r)
			}
		}
	}
	s.mu.Unlock()
	for _, r := range rs {
		s.drop(r)
	}
}

// drop ends a reader: it closes the connection, which also ends a write under way. A second
// drop does nothing. The last reader of a run takes its reel along.
func (s *streams) drop(r *reader) {
	if s.remove(r) {
		_ = r.conn.Close() // TLS may want to say goodbye: not under a lock
	}
}

func (s *streams) remove(r *reader) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := r.reel
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.gone {
		return false
	}
	r.gone = true
	delete(l.readers, r)
	delete(s.slots[r.slot], r)
	r.place.Release()
	if len(l.readers) == 0 && s.reels[l.run] == l {
		delete(s.reels, l.run)
		l.cancel()
	}
	return true
}
