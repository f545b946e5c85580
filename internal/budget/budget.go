// Package budget counts what requests hold, so that no request, and no one
// owner's requests together, can hold all there is.
//
// A [Pool] is the account of one resource: sealed bytes, connections, policy work in
// progress. It has a total for the process, a share that bounds each owner, and a reserve
// inside the total that only privileged owners reach. Callers count a resource where they
// take it, and before they take it:
//
//	sealed := budget.New(budget.Limits{Name: "sealed", Total: 512 << 20, Each: 128 << 20, Reserve: 64 << 20})
//	hold, err := sealed.Take(owner, size)
//	if err != nil {
//		return err // fault.Unavailable "budget"
//	}
//	defer hold.Release()
//
// [Pool.Take] answers at once. [Pool.Wait] stands in line until there is room or ctx is
// done. A line is bounded and one owner has at most half of it. What becomes free goes to the
// owners in turn, and to the oldest of an owner's requests that fits, so no owner can block the
// others, even where one owner's share is all there is.
//
// A request can keep a hold until its answer has been written:
//
//	ctx, end := budget.Request(ctx) // around each request of a surface
//	defer end()
//	defer hold.Keep(ctx)()          // where the answer is made
//
// # What it does not protect against
//
// The pool believes the amounts that it's told. It frees no memory and closes no file.
// Owners are names: a caller that can choose its name chooses its share.
package budget

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"palyra/internal/fault"
)

// Limits bound one Pool. All amounts are in the unit of the resource.
type Limits struct {
	Name    string // of the resource, snake_case; errors' texts name it
	Total   int64  // the most that all owners hold together; at least 1
	Each    int64  // the most that one owner holds; 0: Total - Reserve
	Reserve int64  // the part of Total that only privileged owners can use
	Line    int    // how many may stand in line, at most half of them of one owner; 0: Wait is Take
}

// Account is what can be told of a Pool or a Mark.
type Account interface {
	Held() int64
	Limits() Limits
	Refused() uint64
}

// Owner is the principal that pays. Reserve is set for the installation's owner and the
// emergency stop; it lifts neither Total nor Each. With and without it a name has two
// accounts: a token that an owner gave away can't use up what the owner needs.
type Owner struct {
	Name    string
	Reserve bool
}

// Pool is the account of one resource. It is safe for concurrent use.
type Pool struct {
	limits Limits

	mu      sync.Mutex
	held    int64            // guarded by mu
	owners  map[Owner]int64  // guarded by mu; amounts above 0
	line    []*waiter        // guarded by mu; oldest first
	turns   map[Owner]uint64 // guarded by mu; when those in owners and in line got something last
	turn    uint64           // guarded by mu; counts what was got
	refused uint64           // guarded by mu
}

type waiter struct {
	owner Owner
	n     int64
	ready chan struct{} // closed, under Pool.mu, when the amount is taken
}

// Hold is an amount that an owner holds. Release gives it back.
type Hold struct {
	pool  *Pool
	owner Owner

	mu sync.Mutex
	n  int64 // guarded by mu
}

// New returns an empty Pool. It panics if the limits contradict each other, which is our
// bug.
func New(l Limits) *Pool {
	if l.Each == 0 {
		l.Each = l.Total - l.Reserve
	}
	if l.Name == "" || l.Total < 1 || l.Reserve < 0 || l.Reserve >= l.Total || l.Each < 1 || l.Each > l.Total || l.Line < 0 {
		panic(fmt.Sprintf("budget: internal error: limits %+v", l))
	}
	return &Pool{limits: l, owners: make(map[Owner]int64), turns: make(map[Owner]uint64)}
}

// Take takes n for o, or returns fault.Unavailable "budget" and takes
// nothing. n may be 0, for a Hold that grows.
func (p *Pool) Take(o Owner, n int64) (*Hold, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.takeLocked(o, n); err != nil {
		p.refused++
		return nil, err
	}
	return &Hold{pool: p, owner: o, n: n}, nil
}

// Wait is Take, but waits in line while there is no room. It refuses at once an amount that
// can never fit, and when the line is full; a done ctx is fault.Canceled.
func (p *Pool) Wait(ctx context.Context, o Owner, n int64) (*Hold, error) {
	p.mu.Lock()
	err := p.takeLocked(o, n)
	if err == nil {
		p.mu.Unlock()
		return &Hold{pool: p, owner: o, n: n}, nil
	}
	if ctx.Err() != nil {
		p.mu.Unlock()
		return nil, p.left(ctx)
	}
	if !p.admitsLocked(o) || p.limits.most(o) < n {
		p.refused++
		p.mu.Unlock()
		return nil, err
	}
	w := &waiter{owner: o, n: n, ready: make(chan struct{})}
	p.line = append(p.line, w)
	p.mu.Unlock()

	select {
	case <-w.ready:
	case <-ctx.Done():
		p.mu.Lock()
		defer p.mu.Unlock()
		if i := slices.Index(p.line, w); i >= 0 {
			p.line = slices.Delete(p.line, i, i+1)
			p.forgetLocked(o)
			return nil, p.left(ctx)
		}
		// It got the amount meanwhile: the caller sees ctx soon enough.
	}
	return &Hold{pool: p, owner: o, n: n}, nil
}

func (p *Pool) left(ctx context.Context) error {
	return fault.New(fault.Canceled, "canceled", "wait for "+p.limits.Name, context.Cause(ctx))
}

// admitsLocked reports whether o may stand in line.
func (p *Pool) admitsLocked(o Owner) bool {
	mine := 0
	for _, w := range p.line {
		if w.owner == o {
			mine++
		}
	}
	return len(p.line) < p.limits.Line && mine < (p.limits.Line+1)/2
}

// Held returns how much all owners hold.
func (p *Pool) Held() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// Refused returns how often an amount was refused.
func (p *Pool) Refused() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.refused
}

// Limits returns the limits, with Each filled in.
func (p *Pool) Limits() Limits { return p.limits }

// Grow takes n more, or returns the error of Take and takes nothing.
func (h *Hold) Grow(n int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := h.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.takeLocked(h.owner, n); err != nil {
		p.refused++
		return err
	}
	h.n += n
	return nil
}

// Keep leaves h to the request of ctx, whose end gives it back. Without a request the
// returned function gives it back; with one that function does nothing.
func (h *Hold) Keep(ctx context.Context) (release func()) {
	r, _ := ctx.Value(requestKey{}).(*request)
	if r == nil {
		return h.Release
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.over {
		return h.Release
	}
	r.holds = append(r.holds, h)
	return func() {}
}

// request has the holds left to one request.
type request struct {
	mu    sync.Mutex
	holds []*Hold // guarded by mu
	over  bool    // guarded by mu
}

type requestKey struct{}

// Request returns a ctx for one request, and a function to call when its answer has been
// written. The function gives back the holds that [Hold.Keep] left to the request.
func Request(ctx context.Context) (_ context.Context, end func()) {
	r := &request{}
	return context.WithValue(ctx, requestKey{}, r), func() {
		r.mu.Lock()
		holds := r.holds
		r.holds, r.over = nil, true
		r.mu.Unlock()
		for _, h := range holds {
			h.Release()
		}
	}
}

// Release gives back all of it. It may be called again, and on a nil Hold.
func (h *Hold) Release() {
	if h == nil {
		return
	}
	h.mu.Lock()
	n := h.n
	h.n = 0
	h.mu.Unlock()
	if n != 0 {
		h.pool.giveBack(h.owner, n)
	}
}

// most returns the most that o can ever hold.
func (l *Limits) most(o Owner) int64 {
	if o.Reserve {
		return l.Each
	}
	return min(l.Each, l.Total-l.Reserve)
}

func (p *Pool) takeLocked(o Owner, n int64) error {
	if err := p.fitsLocked(o, n); err != nil {
		return err
	}
	if n > 0 {
		p.held += n
		p.owners[o] += n
		p.turn++
		p.turns[o] = p.turn
	}
	return nil
}

func (p *Pool) fitsLocked(o Owner, n int64) error {
	if n < 0 {
		panic("budget: internal error: a negative amount")
	}
	total := p.limits.Total
	if !o.Reserve {
		total -= p.limits.Reserve
	}
	switch {
	case n > p.limits.Each-p.owners[o]:
		return p.full(errors.New("this caller holds its share"), "wait until your other requests have ended, or ask for less")
	case n > total-p.held:
		return p.full(errors.New("all of it is in use"), "try again later")
	}
	return nil
}

func (p *Pool) full(err error, hint string) error {
	return fault.New(fault.Unavailable, "budget", "take "+p.limits.Name, err).WithHint(hint)
}

func (p *Pool) giveBack(o Owner, n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held -= n
	if p.owners[o] -= n; p.owners[o] == 0 {
		delete(p.owners, o)
	}
	for p.nextLocked() {
	}
	p.forgetLocked(o)
}

// forgetLocked forgets an owner's turn who neither holds nor waits for something.
func (p *Pool) forgetLocked(o Owner) {
	if p.owners[o] == 0 && !slices.ContainsFunc(p.line, func(w *waiter) bool { return w.owner == o }) {
		delete(p.turns, o)
	}
}

// nextLocked serves a request in line, if one fits: of the owner who got something the longest time
// ago, or never, its oldest.
func (p *Pool) nextLocked() bool {
	best := -1
	for i, w := range p.line {
		if (best < 0 || p.turns[w.owner] < p.turns[p.line[best].owner]) && p.fitsLocked(w.owner, w.n) == nil {
			best = i
		}
	}
	if best < 0 {
		return false
	}
	w := p.line[best]
	p.line = slices.Delete(p.line, best, best+1)
	_ = p.takeLocked(w.owner, w.n) // it fits
	close(w.ready)
	return true
}
