package local

import (
	"context"
	"runtime"
	"sync"

	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
)

// pools are the budgets of the hub's own work for requests. Each is for the process, with a
// share for each principal; the kernel has those of calls.
type pools struct {
	reads   *budget.Pool // bytes of lists and look-ups, until their answers are written
	policy  *budget.Pool // sets of policies that are checked, tested or compared
	explain *budget.Pool // questions of how a call would be decided
	proofs  *budget.Pool // receipts, entries and proofs of the journal that are made, artifacts that are hashed: they need a processor
	layers  *budget.Pool // layers that are read: what their programs put there may take long, and every other answer needs a place among proofs
	applies *budget.Pool // calls that bring layers to their workspaces, each of which holds its list while a question waits
	probe   *budget.Pool // examinations of the host
	secrets *budget.Pool // bytes of values that requests bring or get
}

func newPools() *pools {
	processors := max(1, int64(runtime.GOMAXPROCS(0))-1) // one is for the stop
	return &pools{
		reads:   budget.New(budget.Limits{Name: "reads", Total: 80 << 20, Each: 24 << 20, Reserve: 16 << 20, Line: 256}),
		policy:  budget.New(budget.Limits{Name: "policy", Total: 2, Each: 1, Reserve: 1, Line: 8}),
		explain: budget.New(budget.Limits{Name: "explain", Total: 5, Each: 2, Reserve: 1, Line: 64}),
		proofs:  budget.New(budget.Limits{Name: "proofs", Total: 1 + processors, Each: max(1, processors/2), Reserve: 1, Line: 256}),
		layers:  budget.New(budget.Limits{Name: "layers", Total: 2, Each: 1, Reserve: 1, Line: 64}),
		applies: budget.New(budget.Limits{Name: "applies", Total: 5, Each: 2, Reserve: 1}),
		probe:   budget.New(budget.Limits{Name: "probe", Total: 1, Line: 64}),
		secrets: vaultBudget(),
	}
}

func (p *pools) all() []budget.Account {
	return []budget.Account{p.reads, p.policy, p.explain, p.proofs, p.layers, p.applies, p.probe, p.secrets}
}

// errStopped is the cause of a ctx that a stop has ended.
var errStopped = fault.New(fault.Canceled, "stopped", "work", nil).WithHint("an emergency stop came; ask again")

// works are the requests, besides runs, that work: they hash, test or read much, and should
// leave the processors to an emergency stop.
type works struct {
	mu   sync.Mutex
	next uint64          // guarded by mu
	all  map[uint64]work // guarded by mu
}

type work struct {
	user   string
	cancel context.CancelCauseFunc
}

// begin returns a ctx that a stop ends, and a function to call at the end of the work.
func (w *works) begin(ctx context.Context, c hub.Caller) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all == nil {
		w.all = make(map[uint64]work)
	}
	id := w.next
	w.next++
	w.all[id] = work{c.User, cancel}
	return ctx, func() {
		cancel(nil)
		w.mu.Lock()
		defer w.mu.Unlock()
		delete(w.all, id)
	}
}

// stop ends the works of a user, "" of all.
func (w *works) stop(user string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range w.all {
		if user == "" || x.user == user {
			x.cancel(errStopped)
		}
	}
}
