package selfbench

import (
	"context"
	"fmt"
	"time"

	"palyra/bench/measure"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

const waitingFor = 30 * time.Second

// Waiting measures the memory of n waiting cells.
func (l *Lab) Waiting(name string, n int) (*Waiting, error) {
	k := kind{name: "waiting", tier: tier.C, pool: cell.Pool{Cells: n, MaxAge: time.Hour}}
	if name == WaitingVoid {
		k.network = isolate.NetworkVoid
	}
	idle, err := l.runner(kind{name: "idle", tier: tier.C, network: k.network}, True)
	if err != nil {
		return nil, err
	}
	// The baseline is the same palyra-cell without a pool.
	if _, _, err := idle.call(); err != nil {
		idle.close()
		return nil, err
	}
	before := measure.ReadMemory()
	if err := idle.close(); err != nil {
		return nil, err
	}
	r, err := l.runner(k, True)
	if err != nil {
		return nil, err
	}
	defer r.close()
	if _, _, err := r.call(); err != nil { // the pool makes nothing before it has seen a call
		return nil, err
	}
	var s cell.Stats
	for deadline := time.Now().Add(waitingFor); ; time.Sleep(20 * time.Millisecond) {
		if s, err = r.Stats(context.Background()); err != nil {
			return nil, err
		}
		if s.Waiting >= n {
			return grown(name, s.Waiting, before, measure.ReadMemory()), nil
		}
		if time.Now().After(deadline) {
			return nil, fault.New(fault.Refused, "cell_start", "measure waiting cells", fmt.Errorf("%d of %d were made in %v", s.Waiting, n, waitingFor))
		}
	}
}

func grown(kind string, cells int, before, after measure.Memory) *Waiting {
	w := &Waiting{Kind: kind, Cells: cells, Slab: after.Kernel - before.Kernel, Stacks: after.Stacks - before.Stacks, Other: after.Anonymous - before.Anonymous}
	w.Each = measure.Over(float64(w.Slab+w.Stacks+w.Other), float64(cells))
	return w
}
