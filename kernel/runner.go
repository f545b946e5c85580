package kernel

import (
	"context"
	"encoding/json"
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

// runner is a Runner that was given a grant key of ours: a *cell.Client, or a
// test's.
type runner interface {
	isolate.Runner
	Close() error
}

var _ runner = (*cell.Client)(nil)

// startTimeout bounds the start of a palyra-cell, which takes milliseconds.
const startTimeout = 10 * time.Second

// lane is one palyra-cell and the key of the grants for it. A lane is made for a
// tier when that is first needed and replaced when its process has died.
type lane struct {
	key grant.Key // that both sides share; immutable

	ready chan struct{} // closed once the fields below are set

	// Immutable once ready is closed.
	runner runner
	err    error // why there is no runner; what is granted then runs nowhere
}

// lane returns the lane of a tier. It does not wait for its runner.
func (k *Kernel) lane(t tier.Tier) *lane {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lanes[t]
	if l != nil {
		return l
	}
	key := grant.NewKey()
	l = &lane{key: key, ready: make(chan struct{})}
	k.lanes[t] = l
	start := k.cfg.testOnlyStart
	if start == nil {
		start = func(ctx context.Context, t tier.Tier, key grant.Key) (runner, error) {
			return cell.Start(ctx, cell.Config{Path: k.cfg.CellPath, Starter: k.cfg.Starter, Tier: t, Key: key, Pool: k.cfg.Pool, TestOnlyStep: k.cfg.TestOnlyStep})
		}
	}
	// It ends by itself: palyra-cell answers or dies. closeLanes waits for it.
	go func() {
		defer close(l.ready)
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		if l.runner, l.err = start(ctx, t, key); l.err != nil {
			l.runner = nil
		}
	}()
	return l
}

// wait returns why nothing can run here, if that is so. Where there is time until
// then, which the first call has, meanwhile is done.
func (l *lane) wait(meanwhile func()) error {
	select {
	case <-l.ready:
	default:
		meanwhile()
		<-l.ready
	}
	return l.err
}

// prepare does what recording the result would otherwise do first: printing and
// reading types for the first time.
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

func (l *lane) close() {
	<-l.ready
	if l.runner != nil {
		l.runner.Close()
	}
}

// closeLanes ends every palyra-cell and with it whatever still runs.
func (k *Kernel) closeLanes() {
	k.mu.Lock()
	lanes := k.lanes
	k.lanes = nil
	k.mu.Unlock()
	var wg sync.WaitGroup
	for _, l := range lanes {
		wg.Go(l.close)
	}
	wg.Wait()
}

// cellDied reports whether an error says that palyra-cell is gone.
func cellDied(err error) bool { return fault.ReasonOf(err) == "cell_died" }
