package budget

import (
	"errors"
	"runtime"
	"runtime/metrics"
	"sync"
	"time"

	"palyra/internal/fault"
)

// Mark is a height of the process's heap above which only owners with Reserve may begin
// work. It is for what no Pool counts: whatever members' requests hold, they are refused
// before the memory that an owner needs is gone.
//
//	if err := mark.Check(owner); err != nil {
//		return err // fault.Unavailable "budget"
//	}
//
// A heap above the mark may be garbage, so Check has the collector look, at most a tenth
// of the time, and refuses until the collector has found less. Work that was let in before
// can take more: the mark must leave room for that. A nil Mark admits everybody.
type Mark struct {
	height  int64
	heap    func() int64 // bytes of objects, garbage included, and of stacks
	collect func()       // garbage

	mu         sync.Mutex
	next       time.Time // guarded by mu; the heap is read again then
	over       bool      // guarded by mu
	collecting bool      // guarded by mu
	due        time.Time // guarded by mu; the next collection, at the earliest
	refused    uint64    // guarded by mu
}

// markName is the name of a Mark among budgets.
const markName = "memory"

// markEvery is how old a reading of the heap may be: one takes half a microsecond. A
// collection is due as long after the last one as that took, markShare times.
const (
	markEvery = 5 * time.Millisecond
	markShare = 9
)

// NewMark returns a Mark at a height in bytes.
func NewMark(height int64) *Mark {
	return &Mark{height: height, heap: heap, collect: runtime.GC}
}

// heap returns the bytes of objects and stacks, runtime/metrics.
func heap() int64 {
	s := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(s)
	return int64(s[0].Value.Uint64() + s[1].Value.Uint64())
}

// Check returns fault.Unavailable "budget" if the heap is above the mark.
func (m *Mark) Check(o Owner) error {
	if m == nil || o.Reserve || !m.above(time.Now()) {
		return nil
	}
	return fault.New(fault.Unavailable, "budget", "begin work", errors.New("requests hold the memory that is there for them")).
		WithHint("try again later; an owner at the socket can cancel runs that wait")
}

// above reports whether the heap is above the mark, and counts it.
func (m *Mark) above(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if now.After(m.next) {
		m.next = now.Add(markEvery)
		m.over = m.heap() > m.height
	}
	if !m.over {
		return false
	}
	m.refused++
	if !m.collecting && now.After(m.due) {
		m.collecting = true
		go m.clear()
	}
	return true
}

// clear collects garbage.
func (m *Mark) clear() {
	start := time.Now()
	m.collect()
	m.mu.Lock()
	defer m.mu.Unlock()
	took := time.Since(start)
	m.collecting, m.due, m.next = false, start.Add((1+markShare)*took), time.Time{}
}

// Held returns the bytes of the heap, garbage included.
func (m *Mark) Held() int64 { return m.heap() }

// Limits returns the mark as the limit for all, and for each.
func (m *Mark) Limits() Limits { return Limits{Name: markName, Total: m.height, Each: m.height} }

// Refused returns how often Check refused an owner.
func (m *Mark) Refused() uint64 {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.refused
}
