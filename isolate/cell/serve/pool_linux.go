package serve

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
	"palyra/isolate/tier"
)

// quiet is the time without calls before the pool makes anything, so that callers don't feel
// it.
const quiet = time.Millisecond

// maxKinds bounds the kinds of calls that cells wait for: those last seen.
const maxKinds = 8

// forgetAfter times the maximal age is how long a kind without calls keeps getting cells.
const forgetAfter = 10

// pool holds things made ahead of calls. Besides its kind, a cell depends on the template, the
// filters and the files that every cell may reach. None of them changes while palyra-cell
// lives, and policy decides before a call comes here. So a palyra-cell is one generation, and
// its pool dies with it. One goroutine fills the pool, one thing at a time, while nothing runs.
// A nil pool is empty.
type pool struct {
	s   *server
	max wire.Pool

	active atomic.Int64  // calls under way
	idle   chan struct{} // a call has ended; holds one
	nets   chan network  // holds at most max.Networks
	maker  *launcher     // makes network namespaces; it clones nothing

	making sync.Mutex // held while one thing is made
	mu     sync.Mutex
	kinds  []expected          // guarded by mu: the calls last seen, latest first
	cells  map[kind][]*waiting // guarded by mu; oldest first
	count  wire.Stats          // guarded by mu
}

type expected struct {
	kind
	last time.Time
}

// startPool starts to fill a pool, if the tier has one and max allows it.
func (s *server) startPool(max wire.Pool) {
	if s.tier != tier.C || max.Cells <= 0 && max.Networks <= 0 {
		return
	}
	if max.MaxAge <= 0 {
		max.MaxAge = time.Minute
	}
	p := &pool{s: s, max: max, idle: make(chan struct{}, 1),
		nets: make(chan network, max.Networks), cells: make(map[kind][]*waiting)}
	s.pool = p
	go p.fill()
}

func (p *pool) begin() {
	if p != nil {
		p.active.Add(1)
	}
}

func (p *pool) end() {
	if p != nil && p.active.Add(-1) == 0 {
		p.wake()
	}
}

func (p *pool) wake() {
	select {
	case p.idle <- struct{}{}:
	default:
	}
}

// network takes a network namespace; its file is nil if there is none.
func (p *pool) network() network {
	if p == nil {
		return network{}
	}
	select {
	case n := <-p.nets:
		return n
	default:
		return network{}
	}
}

// take takes a waiting cell that fits a call, or returns nil. From now on the pool expects
// calls of its kind.
func (p *pool) take(spec *isolate.Spec, f *files) *waiting {
	if p == nil || p.max.Cells == 0 {
		return nil
	}
	k, ok := p.s.kindOf(spec)
	if r := (&run{spec: spec, files: f}); !ok || !r.executable() {
		return nil
	}
	for {
		w := p.pop(k, func(w *waiting) bool { return w.fits(spec, f) })
		if w == nil || w.alive() {
			return w
		}
		w.discard()
	}
}

// pop takes the cell of a kind that has waited longest, but not too long. If the call doesn't
// fit that one, it fits no other. Cells that are too old are left to fill, because discarding
// them takes longer than doing without.
func (p *pool) pop(k kind, fits func(*waiting) bool) *waiting {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.expect(k)
	list := p.cells[k]
	i := slices.IndexFunc(list, func(w *waiting) bool { return !p.tooOld(w) })
	if i < 0 || !fits(list[i]) {
		p.count.Cold++
		return nil
	}
	w := list[i]
	p.cells[k] = slices.Delete(list, i, i+1)
	p.count.Warm++
	p.count.Waiting--
	return w
}

func (p *pool) tooOld(w *waiting) bool { return time.Since(w.since) > p.max.MaxAge }

// place returns how many kinds were seen later, or -1 if the kind isn't expected. mu is held.
func (p *pool) place(k kind) int {
	return slices.IndexFunc(p.kinds, func(e expected) bool { return e.kind == k })
}

// expect notes that calls of a kind come. mu is held.
func (p *pool) expect(k kind) {
	if i := p.place(k); i >= 0 {
		p.kinds = slices.Delete(p.kinds, i, i+1)
	}
	p.kinds = slices.Insert(p.kinds, 0, expected{k, time.Now()})
	p.kinds = p.kinds[:min(len(p.kinds), maxKinds)]
}

func (p *pool) fill() {
	p.making.Lock()
	err := p.prepare()
	p.making.Unlock()
	if err != nil {
		return // every call is then made as without a pool
	}
	age := time.NewTicker(p.max.MaxAge/4 + time.Millisecond)
	defer age.Stop()
	calm := time.NewTimer(quiet)
	defer calm.Stop()
	for {
		select {
		case <-p.idle:
			calm.Reset(quiet)
			continue
		case <-age.C:
		case <-calm.C:
		}
		p.expire()
		for p.active.Load() == 0 && p.one() {
		}
	}
}

// prepare makes the thread that makes network namespaces, and moves the launcher thread into
// the void one: from another it couldn't return to the host's. making is held. It may be called
// again.
func (p *pool) prepare() (err error) {
	if p.maker != nil {
		return nil
	}
	p.s.launch.run(func(t *thread) { err = t.enterVoid() })
	if err != nil {
		return err
	}
	p.maker, err = p.s.newLauncher(func() error { return sys.Nice(10) })
	return err
}

// one makes one missing thing, and reports whether more may be missing.
func (p *pool) one() bool {
	p.making.Lock()
	defer p.making.Unlock()
	if len(p.nets) < cap(p.nets) {
		n, err := p.makeNetwork()
		if err != nil {
			return false
		}
		p.nets <- n // no other goroutine sends
		return true
	}
	k, surplus, ok := p.missing()
	if surplus != nil {
		surplus.discard()
	}
	return ok && p.arm(k) == nil // an error ends filling until the next call
}

// arm adds a cell, while no call is under way. making is held. Unlike network namespaces, cells
// are made at palyra-cell's own priority: a child inherits the niceness of the thread that
// clones it, and without CAP_SYS_NICE over the host no process could raise it again, so the
// call would run slower.
func (p *pool) arm(k kind) error {
	var n network
	if k.network == isolate.NetworkFresh {
		var err error
		if n, err = p.makeNetwork(); err != nil {
			return err
		}
	}
	p.s.keepMemory()
	w, err := p.s.arm(k, n)
	if err != nil {
		return err
	}
	_ = p.s.reader.Forget() // it only saves memory, and time at the cell's end
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cells[k] = append(p.cells[k], w)
	p.count.Armed++
	p.count.Waiting++
	return nil
}

// ensure returns when a cell of the kind waits.
func (p *pool) ensure(k kind) error {
	p.making.Lock()
	defer p.making.Unlock()
	if p.max.Cells == 0 {
		return nil // every call is made as without a pool
	}
	if err := p.prepare(); err != nil {
		return err
	}
	p.mu.Lock()
	p.expect(k)
	have := len(p.cells[k]) > 0
	p.mu.Unlock()
	defer p.wake() // for the other cells that fit
	if have {
		return nil
	}
	return p.arm(k)
}

// missing returns the kind of cell to make next, and a cell that must make room for it. The
// kinds last seen share the pool equally, the latest first.
func (p *pool) missing() (next kind, surplus *waiting, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.kinds) == 0 || p.max.Cells == 0 {
		return kind{}, nil, false
	}
	share := max(1, p.max.Cells/len(p.kinds))
	i := slices.IndexFunc(p.kinds, func(e expected) bool { return len(p.cells[e.kind]) < share })
	if i < 0 {
		return kind{}, nil, false
	}
	if p.count.Waiting < p.max.Cells {
		return p.kinds[i].kind, nil, true
	}
	for k, list := range p.cells {
		if at := p.place(k); len(list) > share || len(list) > 0 && (at < 0 || at > i && len(list) == share && share == 1) {
			p.cells[k] = list[1:]
			p.count.Waiting--
			return p.kinds[i].kind, list[0], true
		}
	}
	return kind{}, nil, false
}

// makeNetwork makes a network namespace. making is held.
func (p *pool) makeNetwork() (n network, err error) {
	p.maker.run(func(t *thread) {
		if err = sys.UnshareNetwork(); err == nil {
			n.file, n.id, err = sys.Network()
			// The thread must not keep a cell's namespace alive.
			t.void = false
			err = errors.Join(err, t.enterVoid())
		}
	})
	return n, err
}

func (p *pool) expire() {
	for _, w := range p.expired() {
		w.discard()
	}
}

// expired forgets the kinds that no call has had for long, and takes out the cells to discard.
func (p *pool) expired() (old []*waiting) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kinds = slices.DeleteFunc(p.kinds, func(e expected) bool { return time.Since(e.last) > forgetAfter*p.max.MaxAge })
	for k, list := range p.cells {
		known := p.place(k) >= 0
		for len(list) > 0 && (!known || p.tooOld(list[0])) {
			old = append(old, list[0])
			list = list[1:]
		}
		p.cells[k] = list
		if len(list) == 0 {
			delete(p.cells, k)
		}
	}
	p.count.Waiting -= len(old)
	p.count.Expired += uint64(len(old))
	return old
}

func (p *pool) stats() wire.Stats {
	if p == nil {
		return wire.Stats{}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.count
	c.Networks = len(p.nets)
	return c
}
