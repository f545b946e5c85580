package local

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"palyra/internal/durable"
	"palyra/internal/fault"
	"palyra/kernel"
)

// brakeFile is the file in the state directory that has the emergency stop.
const brakeFile = "brake"

// mark is the content of the brake's file, as JSON. An unreadable file counts as a stop.
type mark struct {
	Version int  `json:"version"` // 1
	DenyNew bool `json:"deny_new"`
	// Owed is a stop that the journal does not have yet, for the next Open.
	Owed *owed `json:"owed,omitempty"`
}

type owed struct {
	Principal string    `json:"principal"`
	Surface   string    `json:"surface,omitempty"`
	Token     string    `json:"token,omitempty"`
	Time      time.Time `json:"time"`
}

// brake holds whether new runs are denied: in memory, in a file that can be written on a
// full disk, in the store and in the journal. A stop changes memory at once and leaves the
// rest to two goroutines, which go on trying. One writes the file and waits for nothing
// else; the other, scribe, writes store and journal. No request holds a thing that a stop
// needs.
//
//	stop    memory → file → store → journal
//	resume  journal → store → file → memory
//
// So the file denies for as long as any other place might. Wherever a crash comes, the next
// Open denies if the file or the store does.
type brake struct {
	log *slog.Logger
	// allow tells the engine; it waits for nothing.
	allow  func(on bool)
	row    func(ctx context.Context, on bool) error                // writes the store
	record func(ctx context.Context, a kernel.Act) (uint64, error) // writes the journal

	die  context.CancelFunc
	work sync.WaitGroup

	mu     sync.Mutex
	slot   *durable.Slot // used by the marker alone; nil: it could not be made; guarded by mu
	denied bool          // what memory says; guarded by mu
	want   bool          // what is to become durable; guarded by mu
	turn   uint64        // counts the changes of want; guarded by mu
	stops  uint64        // counts the stops, one on top of another too; guarded by mu
	marked goal          // the turn that the file has; guarded by mu
	rowed  goal          // that the store has; guarded by mu
	owed   *owed         // guarded by mu
	inFile mark          // what the file has; guarded by mu
	// unsure: a write is under way or went wrong, so the file may or may not have inFile;
	// guarded by mu.
	unsure bool
	acts   []*stopAct // that the journal does not have, oldest first; guarded by mu
	// changed is closed and made anew with each change, for waiting callers; guarded by mu.
	changed chan struct{}
	// news is the same with each change to write, for the two writers; guarded by mu.
	news chan struct{}
}

// goal is the progress of one place.
type goal struct {
	done  uint64 // this turn is durable there
	tried uint64 // this turn could not be written at least once
	err   error  // why
}

// reached reports whether there is nothing to wait for: turn is there, or was tried.
func (g *goal) reached(turn uint64) bool { return g.done >= turn || g.tried >= turn }

// stopAct is a stop for the journal.
type stopAct struct {
	act   kernel.Act
	index uint64
	done  bool
	tried bool
	owed  *owed // that the file has until the journal has this
}

// maxOwedActs bounds the stops that wait for the journal. More are counted in the
// last one of their principal.
const maxOwedActs = 64

// openBrake reads the file. A file that can't be made is a warning: the store may still
// have room where the root of the state has none.
func openBrake(state string, log *slog.Logger) (*brake, error) {
	b := &brake{log: log, changed: make(chan struct{}), news: make(chan struct{})}
	path := filepath.Join(state, brakeFile)
	first := encode(mark{Version: 1})
	slot, content, err := durable.OpenSlot(path, first)
	if err != nil {
		if fault.KindOf(err) != fault.Unavailable {
			return nil, err
		}
		log.Warn("an emergency stop is not durable on a full disk", "file", path, "error", err)
		return b, nil
	}
	b.slot = slot
	d := json.NewDecoder(bytes.NewReader(content))
	d.DisallowUnknownFields()
	if err := d.Decode(&b.inFile); err != nil || b.inFile.Version != 1 {
		log.Error("read brake: taken for an emergency stop", "file", path, "error", err)
		b.inFile = mark{Version: 1, DenyNew: true}
	}
	b.owed = b.inFile.Owed
	b.denied, b.want = b.inFile.DenyNew, b.inFile.DenyNew
	return b, nil
}

func encode(m mark) []byte {
	line, err := json.Marshal(m)
	if err != nil {
		panic("local: internal error: " + err.Error())
	}
	if line = append(line, '\n'); len(line) > durable.SlotSize { // of a principal with a long name
		m.Owed = nil
		line, _ = json.Marshal(m)
	}
	return line
}

// start lets the brake write. inStore is the store's value.
func (b *brake) start(inStore bool) {
	b.mu.Lock()
	b.turn = 1
	b.denied = b.denied || inStore
	b.want = b.denied
	if b.want == inStore {
		b.rowed.done = 1
	}
	if b.inFile.DenyNew == b.want && b.slot != nil {
		b.marked.done = 1
	}
	if o := b.owed; o != nil {
		b.acts = append(b.acts, &stopAct{owed: o, act: o.act(map[string]string{"all": "true", "deny_new": "true", "recovered": "true", "time": o.Time.Format(time.RFC3339)})})
	}
	b.mu.Unlock()
	ctx, cancel := context.WithCancel(context.Background())
	b.die = cancel
	b.work.Go(func() { b.keep(ctx, b.mark) })
	b.work.Go(func() { b.keep(ctx, b.scribe) })
}

// act returns a stop as the journal has it.
func (o *owed) act(detail map[string]string) kernel.Act {
	d := map[string]string{"surface": o.Surface}
	if o.Token != "" {
		d["token"] = o.Token
	}
	for name, text := range detail {
		d[name] = text
	}
	return kernel.Act{Act: "stop", Principal: o.Principal, Detail: d}
}

// closing bounds close's last try.
const closing = time.Second

// close ends the goroutines, and tries once more.
func (b *brake) close() {
	if b.die != nil {
		b.die()
		b.work.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), closing)
		defer cancel()
		if err := errors.Join(b.mark(ctx), b.scribe(ctx), b.mark(ctx)); err != nil {
			b.log.Error("write down the emergency stop", "error", err)
		}
	}
	if b.slot != nil {
		_ = b.slot.Close() // what was written is durable
	}
}

// keep calls write whenever there is something new, and again after a while if write
// couldn't do everything.
func (b *brake) keep(ctx context.Context, write func(ctx context.Context) error) {
	const least, most = 50 * time.Millisecond, 5 * time.Second
	wait := least
	for {
		b.mu.Lock()
		news := b.news
		b.mu.Unlock()
		var again <-chan time.Time
		if err := write(ctx); err != nil {
			if ctx.Err() == nil {
				b.log.Error("write down the emergency stop", "error", err)
			}
			again = time.After(wait)
			wait = min(2*wait, most)
		} else {
			wait = least
		}
		select {
		case <-news:
		case <-again:
		case <-ctx.Done():
			return
		}
	}
}

// tellLocked wakes the goroutines that wait for a change.
func (b *brake) tellLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// orderLocked is tellLocked with something to write.
func (b *brake) orderLocked() {
	b.tellLocked()
	close(b.news)
	b.news = make(chan struct{})
}

// mark makes the file agree with want. It writes a stop at once, and the end of one only
// when the store has it.
func (b *brake) mark(context.Context) error {
	b.mu.Lock()
	m, turn := mark{Version: 1, DenyNew: b.want, Owed: b.owed}, b.turn
	if !b.want && b.rowed.done < turn {
		m.DenyNew = b.inFile.DenyNew || b.unsure
	}
	slot := b.slot
	same := slot != nil && !b.unsure && m.DenyNew == b.inFile.DenyNew && m.Owed == b.inFile.Owed
	if same && m.DenyNew == b.want && b.marked.done < turn {
		b.marked.done = turn
		b.tellLocked()
	}
	if same || slot == nil {
		if slot == nil && b.marked.tried < turn {
			b.marked.tried, b.marked.err = turn, errors.New("there is no file for it")
			b.tellLocked()
		}
		b.mu.Unlock()
		return nil
	}
	b.inFile, b.unsure = m, true
	b.mu.Unlock()

	err := slot.Write(encode(m))

	b.mu.Lock()
	defer b.mu.Unlock()
	defer b.tellLocked()
	if err != nil {
		b.marked.tried, b.marked.err = turn, err
		return fmt.Errorf("write brake: %w", err)
	}
	b.unsure = false
	if m.DenyNew == b.want && turn == b.turn {
		b.marked.done = turn
	}
	return nil
}

// scribe makes the store agree with want and puts stops into the journal.
func (b *brake) scribe(ctx context.Context) error {
	var errs []error
	var failed uint64 // the turn that the store did not take
	for {
		// Before each act: while stops keep coming there is always one more.
		b.mu.Lock()
		want, turn, done := b.want, b.turn, b.rowed.done
		b.mu.Unlock()
		if done < turn && failed != turn {
			err := b.row(ctx, want)
			b.mu.Lock()
			if err == nil {
				b.rowed.done = turn
				b.orderLocked() // the file may follow
			} else {
				failed = turn
				b.rowed.tried, b.rowed.err = turn, err
				errs = append(errs, err)
				b.tellLocked()
			}
			b.mu.Unlock()
		}
		b.mu.Lock()
		var a *stopAct
		if len(b.acts) > 0 {
			a = b.acts[0]
			b.acts = b.acts[1:] // from here on nothing is added to it
		}
		b.mu.Unlock()
		if a == nil {
			return errors.Join(errs...)
		}
		index, err := b.record(ctx, a.act)
		b.mu.Lock()
		if err != nil {
			a.tried = true
			b.acts = append([]*stopAct{a}, b.acts...)
			errs = append(errs, err)
		} else {
			a.index, a.done = index, true
			if a.owed != nil && b.owed == a.owed {
				b.owed = nil
				b.orderLocked() // the file need not have it
			}
		}
		b.tellLocked()
		b.mu.Unlock()
		if err != nil {
			return errors.Join(errs...)
		}
	}
}

// denies reports whether new runs are denied.
func (b *brake) denies() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.denied
}

// engage denies new runs from now on, and reports whether they weren't denied before. A
// stop on top of another that must not be recorded leaves no trace. engage waits for
// nothing.
func (b *brake) engage(o *owed, record bool) (turn uint64, changed bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	changed = !b.denied || !b.want
	b.denied = true
	b.stops++
	b.allow(false)
	if !b.want {
		b.want = true
		b.turn++
	}
	if changed || record {
		b.owed = o
	}
	b.orderLocked()
	return b.turn, changed
}

// logLater puts a stop into the journal as soon as the journal takes it. deny is true for a
// stop that denies new runs.
func (b *brake) logLater(a *stopAct) *stopAct {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.acts) >= maxOwedActs {
		i := slices.IndexFunc(b.acts, func(x *stopAct) bool { return x.act.Principal == a.act.Principal })
		if i >= 0 {
			last := b.acts[i]
			last.act.Detail["and_more"] = "true"
			if a.owed != nil {
				last.owed = a.owed
			}
			return last
		}
	}
	b.acts = append(b.acts, a)
	b.orderLocked()
	return a
}

// The places in which a stop may not be yet, in hub.Stopped.
const (
	pendingMark    = "brake"   // the file: with the store, what a restart finds
	pendingStore   = "store"   // the row, or ends of runs
	pendingJournal = "journal" // the act
)

// await waits until each place has the turn and the act, or couldn't be written, or ctx is
// done. It returns the places that lack them. A turn of 0 means none.
func (b *brake) await(ctx context.Context, turn uint64, a *stopAct) (pending []string) {
	for {
		b.mu.Lock()
		// The file follows the store when a stop is lifted.
		behind := !b.want && b.rowed.done < turn && b.rowed.tried >= turn
		waits := !b.marked.reached(turn) && !behind || !b.rowed.reached(turn) || a != nil && !a.done && !a.tried
		changed := b.changed
		if !waits || ctx.Err() != nil {
			if b.marked.done < turn {
				pending = append(pending, pendingMark)
			}
			if b.rowed.done < turn {
				pending = append(pending, pendingStore)
			}
			if a != nil && !a.done {
				pending = append(pending, pendingJournal)
			}
			b.mu.Unlock()
			return pending
		}
		b.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

// release lifts the stop: first durably, then in memory. A stop that came after the call of
// since stays in force.
func (b *brake) release(ctx context.Context, since uint64) error {
	const op = "lift emergency stop"
	again := fault.New(fault.Busy, "changed", op, errors.New("another stop came meanwhile")).WithHint("look why, and lift it again")
	b.mu.Lock()
	if b.stops != since {
		b.mu.Unlock()
		return again
	}
	if b.want {
		b.want = false
		b.turn++
	}
	turn := b.turn
	b.orderLocked()
	b.mu.Unlock()
	pending := b.await(ctx, turn, nil)

	b.mu.Lock()
	defer b.mu.Unlock()
	if b.turn != turn {
		return again
	}
	if len(pending) > 0 && (b.rowed.done < turn || b.slot != nil) {
		b.want = true // what is denied in memory is denied after a restart
		b.turn++
		b.orderLocked()
		err := errors.Join(b.rowed.err, b.marked.err)
		return fault.New(fault.Unavailable, "io_error", op, err).WithHint("new runs are still refused; make room on the disk of the state directory")
	}
	b.denied = false
	b.allow(true)
	return nil
}

// since says which stops release may lift: those up to now.
func (b *brake) since() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.stops
}

// indexOf returns the place of a stop in the journal, 0 if it is not there yet.
func (b *brake) indexOf(a *stopAct) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return a.index
}

// hasFile reports whether a stop is durable on a full disk.
func (b *brake) hasFile() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.slot != nil
}
