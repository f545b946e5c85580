package kernel

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"palyra/authz/grant"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// runner is a Runner with a grant key of ours: a *cell.Client, or a test's.
type runner interface {
	isolate.Runner
	Close() error
	Died() <-chan struct{} // closed when the runner dies; nil if it can't
}

var _ runner = (*cell.Client)(nil)

// aging is a runner with the host's mounts from when it was started.
type aging interface {
	// Past reports whether they have changed in a workspace, or for all calls.
	Past(folders ...string) bool
}

var _ aging = (*cell.Client)(nil)

// startTimeout bounds the start of a palyra-cell, which takes milliseconds.
const startTimeout = 10 * time.Second

// lane is one palyra-cell and the key of its grants. A lane is made for a tier on first use and
// replaced when its process has died.
type lane struct {
	// Immutable.
	tier     tier.Tier
	key      grant.Key       // shared by both sides
	spent    *grant.Verifier // of the grants of exchanges, which palyra-cell doesn't get
	expected []expected      // from before the lane was made

	once   sync.Once
	closed chan struct{} // closed when no call may use the lane any more
	ready  chan struct{} // closed when the fields below are set

	// Immutable once ready is closed.
	runner runner
	err    error // why there is no runner; grants for this lane then run nowhere
}

// lane returns the lane of a tier. It doesn't wait for its runner.
func (k *Kernel) lane(t tier.Tier) *lane {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.lanes[t]; l != nil && !l.over() {
		return l
	}
	return k.startLocked(t)
}

// laneFor is lane for a sealed call: as far as is known, its runner has the mounts that the
// call was sealed with. Calls in an outdated lane finish there.
func (k *Kernel) laneFor(s *sealed) *lane {
	l := k.lane(s.capsule.TierFloor)
	select {
	case <-l.ready:
	default:
		return l // it is starting
	}
	var folders []string
	if w := s.capsule.Workspace; w != nil {
		folders = append(folders, w.Source)
	}
	for _, m := range s.capsule.Mounts {
		folders = append(folders, m.Source)
	}
	if a, ok := l.runner.(aging); ok && a.Past(folders...) {
		k.dismiss(l)
		return k.lane(s.capsule.TierFloor)
	}
	return l
}

func (l *lane) over() bool {
	select {
	case <-l.ready:
	default:
		return false
	}
	if l.err != nil {
		return true
	}
	select {
	case <-l.runner.Died():
		return true
	default:
		return false
	}
}

// startLocked makes a lane in place of the present one, which is over.
func (k *Kernel) startLocked(t tier.Tier) *lane {
	if old := k.lanes[t]; old != nil {
		k.dying.Go(old.close)
	}
	key := grant.NewKey()
	l := &lane{tier: t, key: key, spent: grant.NewVerifier(key), closed: make(chan struct{}), ready: make(chan struct{})}
	if t == k.cfg.Warm {
		l.expected = slices.Clone(k.keep.expected)
	}
	k.lanes[t] = l
	start := k.cfg.testOnlyStart
	if start == nil {
		start = func(ctx context.Context, t tier.Tier, key grant.Key) (runner, error) {
			return cell.Start(ctx, cell.Config{Path: k.cfg.CellPath, Starter: k.cfg.Starter, Tier: t, Key: key, Pool: k.cfg.Pool, TestOnlyStep: k.cfg.TestOnlyStep})
		}
	}
	// It ends when the lane is closed or its palyra-cell has died.
	k.dying.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		if l.runner, l.err = start(ctx, t, l.key); l.err != nil {
			l.runner = nil
		}
		cancel()
		close(l.ready)
		k.tend(l)
	})
	return l
}

// tend stays with a lane until its palyra-cell has died, and then starts the next one if the
// tier is to be kept warm.
func (k *Kernel) tend(l *lane) {
	began := time.Now()
	if l.err == nil {
		l.expectAgain()
		select {
		case <-l.runner.Died():
		case <-l.closed:
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lanes == nil || k.cfg.Once || l.tier != k.cfg.Warm {
		return // the next call starts a palyra-cell
	}
	if l.err != nil || time.Since(began) < steady {
		k.keep.wait = min(max(2*k.keep.wait, firstWait), maxWait)
	} else {
		k.keep.wait = 0
	}
	if k.keep.timer != nil {
		k.keep.timer.Stop()
	}
	k.keep.timer = time.AfterFunc(k.keep.wait, func() {
		k.mu.Lock()
		defer k.mu.Unlock()
		if now, open := k.lanes[l.tier], k.lanes != nil; open && (now == nil || now == l) { // no call was faster
			k.startLocked(l.tier)
		}
	})
}

// The wait before a warm palyra-cell that died is replaced: none if it lived for steady, else
// doubling from firstWait to maxWait. A call doesn't wait for that: it starts one itself.
const (
	steady    = 10 * time.Second
	firstWait = 10 * time.Millisecond
	maxWait   = time.Minute
)

// keep is the state that keeps a palyra-cell warm.
type keep struct {
	expected []expected    // see expect.go
	wait     time.Duration // before the last start
	timer    *time.Timer   // of the next one; nil before the first death
}

// wait waits for the runner. It returns an error if there is none, or if ctx is done first. If
// it has to wait, as for the first call, it calls meanwhile.
func (l *lane) wait(ctx context.Context, meanwhile func()) error {
	select {
	case <-l.ready:
		return l.err
	default:
		meanwhile()
	}
	select {
	case <-l.ready:
		return l.err
	case <-ctx.Done():
		return fault.New(fault.Canceled, "canceled", "wait for palyra-cell", context.Cause(ctx))
	}
}

// prepare does the one-time work of recording a result ahead: printing and reading types for
// the first time.
func prepare() {
	receipt.Prepare()
	_, _ = (&isolate.Spec{}).Digest()
	if b, err := canon.Marshal(evidence.Evidence{}); err == nil {
		_ = json.Unmarshal(b, new(evidence.Evidence))
	}
}

// retire takes a lane out of use, so that the next call starts another.
func (k *Kernel) retire(dead *lane) {
	k.remove(dead)
	dead.close()
}

// dismiss is retire in the background. Close waits for it.
func (k *Kernel) dismiss(done *lane) {
	k.remove(done)
	k.dying.Go(done.close)
}

func (k *Kernel) remove(lane *lane) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for t, l := range k.lanes {
		if l == lane {
			delete(k.lanes, t)
		}
	}
}

// close ends the lane's palyra-cell. It may be called again.
func (l *lane) close() {
	l.once.Do(func() { close(l.closed) })
	<-l.ready
	if l.runner != nil {
		l.runner.Close()
	}
}

// closeLanes ends every palyra-cell and the calls in it.
func (k *Kernel) closeLanes() {
	k.mu.Lock()
	lanes := k.lanes
	k.lanes = nil
	if k.keep.timer != nil {
		k.keep.timer.Stop() // if it fires all the same it finds no lanes
	}
	k.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(l.close)
	}
	wg.Wait()
}
