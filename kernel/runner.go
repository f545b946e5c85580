package kernel

import (
	"context"
	"sync"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// runner is a Runner that shares a grant key with us: a *cell.Client, or a
// test's.
type runner interface {
	isolate.Runner
	Key() grant.Key
	Close() error
}

var _ runner = (*cell.Client)(nil)

// startTimeout bounds the start of a palyra-cell, which takes milliseconds.
const startTimeout = 30 * time.Second

// lane is one palyra-cell and the authority that grants for it. A lane is made
// for a tier when that is first needed and replaced when its process has died.
type lane struct {
	ready chan struct{} // closed once the fields below are set

	// Immutable once ready is closed.
	runner runner
	auth   *authz.Authority
	err    error // why there is no runner; auth then grants for nobody
}

// lane returns the lane of a tier. It does not wait for its runner.
func (k *Kernel) lane(t tier.Tier) *lane {
	k.mu.Lock()
	defer k.mu.Unlock()
	l := k.lanes[t]
	if l != nil {
		return l
	}
	l = &lane{ready: make(chan struct{})}
	k.lanes[t] = l
	start := k.cfg.testOnlyStart
	if start == nil {
		start = func(ctx context.Context, t tier.Tier) (runner, error) {
			return cell.Start(ctx, cell.Config{Path: k.cfg.CellPath, Tier: t, TestOnlyStep: k.cfg.TestOnlyStep})
		}
	}
	// It ends by itself: palyra-cell answers or dies. closeLanes waits for it.
	go func() {
		defer close(l.ready)
		key := grant.NewKey() // of nobody: what is granted under it runs nowhere
		ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
		defer cancel()
		l.runner, l.err = start(ctx, t)
		if l.err != nil {
			l.runner = nil
		} else {
			key = l.runner.Key()
		}
		l.auth = authz.New(k.set, key)
	}()
	return l
}

// authority waits for the lane and returns what decides for it. There is one
// even if nothing can run: a denial needs no runner, and a refusal is recorded
// with the decision that preceded it.
func (l *lane) authority() *authz.Authority {
	<-l.ready
	return l.auth
}

// wait returns why nothing can run here, if that is so.
func (l *lane) wait() error {
	<-l.ready
	return l.err
}

// retire takes a lane out of use, so that the next call starts another.
func (k *Kernel) retire(dead *lane) {
	k.mu.Lock()
	for t, l := range k.lanes {
		if l == dead {
			delete(k.lanes, t)
		}
	}
	k.mu.Unlock()
	dead.close()
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
