package budget

import (
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"palyra/internal/fault"
)

// TestMark: above the mark only owners get in, until a collection has found less; and the
// collector runs for a tenth of the time.
func TestMark(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var live, garbage, collections atomic.Int64
		live.Store(50)
		m := NewMark(100)
		m.heap = func() int64 { return live.Load() + garbage.Load() }
		m.collect = func() {
			<-time.After(100 * time.Millisecond)
			garbage.Store(0)
			collections.Add(1)
		}
		member, owner := Owner{Name: "member"}, Owner{Name: "owner", Reserve: true}
		check := func(o Owner, want string) {
			t.Helper()
			<-time.After(2 * markEvery)
			if err := m.Check(o); fault.ReasonOf(err) != want || err != nil && fault.KindOf(err) != fault.Unavailable {
				t.Errorf("at %d of 100: %s gets %v, want %q", m.Held(), o.Name, err, want)
			}
		}
		check(member, "")

		garbage.Store(60)
		check(owner, "")
		if collections.Load() > 0 {
			t.Error("a collection for an owner")
		}
		check(member, "budget")
		<-time.After(100 * time.Millisecond)
		check(member, "")
		if n := collections.Load(); n != 1 {
			t.Errorf("%d collections, want 1", n)
		}

		live.Store(101)
		for range 1000 {
			check(member, "budget")
		}
		check(owner, "")
		if n, most := collections.Load()-1, 1+int64(1001*2*markEvery/time.Second); n > most || n < most-2 {
			t.Errorf("%d collections of 100 ms in %v", n, 1001*2*markEvery)
		}
		<-time.After(time.Second)
		live.Store(99)
		check(member, "")
		if m.Refused() != 1001 {
			t.Errorf("%d refused, want 1001", m.Refused())
		}
	})
	if err := (*Mark)(nil).Check(Owner{}); err != nil {
		t.Errorf("no mark: %v", err)
	}
}

// TestMarkReadsTheHeap: a mark below what the process holds refuses, one far above doesn't.
func TestMarkReadsTheHeap(t *testing.T) {
	b := make([]byte, 64<<20)
	if m := NewMark(32 << 20); m.Check(Owner{}) == nil {
		t.Error("64 MiB aren't above a mark of 32")
	}
	if m := NewMark(1 << 40); m.Check(Owner{}) != nil {
		t.Error("the heap is above a TiB")
	}
	runtime.KeepAlive(b)
}

func BenchmarkMark(b *testing.B) {
	m := NewMark(1 << 40)
	for b.Loop() {
		m.next = time.Time{}
		_ = m.Check(Owner{})
	}
}
