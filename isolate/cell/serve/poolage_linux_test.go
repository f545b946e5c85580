package serve

import (
	"testing"
	"testing/synctest"
	"time"

	"palyra/isolate"
	"palyra/isolate/cell/wire"
)

func agingPool(cells int) (*pool, kind) {
	k := kind{network: isolate.NetworkVoid}
	p := &pool{max: wire.Pool{Cells: cells, MaxAge: time.Minute}, cells: make(map[kind][]*waiting)}
	for range cells {
		p.cells[k] = append(p.cells[k], &waiting{kind: k, since: time.Now()})
	}
	p.count.Waiting = cells
	return p, k
}

func anyCall(*waiting) bool { return true }

// TestPopAge: no call gets a cell that is too old, even before expire has run.
func TestPopAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, k := agingPool(3)
		old := p.cells[k][0]
		<-time.After(time.Minute)
		if w := p.pop(k, anyCall); w != old {
			t.Errorf("a cell that has waited for as long as it may was not taken: %v", w)
		}
		<-time.After(time.Nanosecond)
		if w := p.pop(k, anyCall); w != nil {
			t.Error("a cell was taken that had waited for too long")
		}
		fresh := &waiting{kind: k, since: time.Now()}
		p.cells[k] = append(p.cells[k], fresh)
		p.count.Waiting++
		if w := p.pop(k, anyCall); w != fresh {
			t.Errorf("%v was taken, want the cell behind those that are too old", w)
		}
		if got := p.stats(); got.Warm != 2 || got.Cold != 1 || got.Waiting != 2 {
			t.Errorf("%+v, want two warm calls, a cold one, and two cells left", got)
		}
		if got := p.expired(); len(got) != 2 || p.stats().Waiting != 0 || p.stats().Expired != 2 {
			t.Errorf("%d expired, %+v, want the two", len(got), p.stats())
		}
		if next, _, ok := p.missing(); !ok || next != k {
			t.Error("no cell is made in their place")
		}
	})
}

// TestKindIsForgotten: the pool stops making cells for calls that don't come.
func TestKindIsForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, k := agingPool(0)
		other := kind{network: isolate.NetworkFresh}
		p.max.Cells = 2
		p.expect(other)
		<-time.After(time.Second)
		p.expect(k)
		<-time.After(forgetAfter * p.max.MaxAge)
		p.cells[other] = []*waiting{{kind: other, since: time.Now()}}
		p.count.Waiting = 1
		if old := p.expired(); len(old) != 1 || old[0].kind != other {
			t.Errorf("%d cells go, want the one whose kind is forgotten", len(old))
		}
		if next, _, ok := p.missing(); !ok || next != k {
			t.Errorf("%v, %+v is made next, want the kind that is not forgotten yet", ok, next)
		}
		<-time.After(time.Nanosecond)
		p.expired()
		if next, _, ok := p.missing(); ok {
			t.Errorf("a cell for %+v is made, of which no call has come for long", next)
		}
		p.pop(k, anyCall)
		if _, _, ok := p.missing(); !ok {
			t.Error("the kind is not expected again after a call")
		}
	})
}
