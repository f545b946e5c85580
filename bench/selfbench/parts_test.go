package selfbench

import (
	"math"
	"testing"
	"time"

	"palyra/bench/measure"
)

func TestParts(t *testing.T) {
	var good []mark
	for i, s := range stages() {
		good = append(good, mark{s.mark, time.Duration(i+1) * 10 * time.Microsecond})
	}
	p := partsOf(Call, Noop, measure.Gap8ms, [][]mark{good, good[:3], good})
	if p.N != 2 || p.Dropped != 1 || len(p.Rows) != len(stages()) {
		t.Fatalf("parts: %d calls, %d dropped, %d rows", p.N, p.Dropped, len(p.Rows))
	}
	total := 0.0
	for _, r := range p.Rows {
		total += r.Share
		if r.P50 != 10 {
			t.Errorf("%s: p50 %v, want 10", r.Part, r.P50)
		}
	}
	if math.Abs(total-1) > 1e-9 {
		t.Errorf("shares add up to %v", total)
	}
}

func TestRecorder(t *testing.T) {
	r := newRecorder()
	r.step("sealed") // no call
	r.begin()
	for _, s := range stages()[:len(stages())-1] {
		r.step(s.mark)
		r.step("append:written") // no stage of ours
	}
	r.step(markEnd)
	r.end(true)
	r.step("receipt")
	if p := r.take("", "", ""); p.N != 1 || p.Dropped != 0 {
		t.Errorf("%d calls, %d dropped, want 1 and 0", p.N, p.Dropped)
	}
	r.stop()
	r.begin()
	r.step(markEnd)
	r.end(true)
	if p := r.take("", "", ""); p.N+p.Dropped != 0 {
		t.Errorf("%d calls after stop, want none", p.N+p.Dropped)
	}
}
