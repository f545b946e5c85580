package main

import (
	"fmt"

	"palyra/internal/measure"
	"palyra/kernel/selfbench"
)

// goal is one line of what the fast path is to reach, with where to look.
type goal struct {
	text  string
	limit float64
	least bool // the value is to be at least limit; else at most
	unit  string
	value func(*results) (float64, bool) // false: not measured
	but   func(*results) string          // why a value that misses the limit does not miss the goal; "" if it does, nil: nothing can
}

// verdict is a goal beside what was measured.
type verdict struct {
	Goal, Value, Verdict string
}

// What a verdict says.
const (
	met         = "met"
	missed      = "missed"
	notMeasured = "not measured"
)

// goals are those of the fast cell. A path that does not exist yet has no record,
// and its goals are then "not measured".
func goals() []goal {
	ratio := func(path, program, pattern string) func(*results) (float64, bool) {
		return func(r *results) (float64, bool) {
			x := r.find(setCells, path, program, pattern)
			if x == nil {
				return 0, false
			}
			return x.Ratio, true
		}
	}
	bwrap := func(path, pattern string) func(*results) (float64, bool) {
		return func(r *results) (float64, bool) {
			x := r.find(setCells, path, programNoop, pattern)
			if x == nil || x.Bwrap == 0 {
				return 0, false
			}
			return x.Bwrap, true
		}
	}
	rate := func(path string) func(*results) (float64, bool) {
		return func(r *results) (float64, bool) {
			a, b := r.findSustained(path, programNoop, sustainedCell), r.findSustained(pathBwrap, programNoop, sustainedCell)
			if a == nil || b == nil {
				return 0, false
			}
			return measure.Over(a.PerSecond, b.PerSecond), true
		}
	}
	tail := func(r *results) (float64, bool) {
		x := r.find(setCells, pathCellWarm, programNoop, pattern8ms)
		if x == nil {
			return 0, false
		}
		return measure.Over(x.P99, x.P50), true
	}
	return []goal{
		{"warm, noop, 8 ms gap: ratio", 1.0, false, "×", ratio(pathCellWarm, programNoop, pattern8ms), nil},
		{"warm, /bin/true, 8 ms gap: ratio", 1.05, false, "×", ratio(pathCellWarm, programTrue, pattern8ms), nil},
		{"warm, noop, 100 ms gap: ratio", 1.15, false, "×", ratio(pathCellWarm, programNoop, pattern100ms), nil},
		{"warm, noop, 8 ms gap: p99 to own median", 1.6, false, "×", tail, nil},
		{"cold, everything fresh, noop, 8 ms gap: ratio", 4, false, "×", ratio(pathCellC, programNoop, pattern8ms), nil},
		{"cold, everything fresh, noop, burst: ratio", 6, false, "×", ratio(pathCellC, programNoop, patternBurst), nil},
		{"cold, everything fresh, noop, 8 ms gap: times faster than bwrap", 4.5, true, "×", bwrap(pathCellC, pattern8ms), nil},
		{"cold, pooled netns, noop, 8 ms gap: ratio", 1.75, false, "×", ratio(pathCellPooled, programNoop, pattern8ms), nil},
		{"cold, pooled netns, /bin/true, 8 ms gap: ratio", 1.3, false, "×", ratio(pathCellPooled, programTrue, pattern8ms), nil},
		{"cold, pooled netns, noop, 8 ms gap: times faster than bwrap", 10, true, "×", bwrap(pathCellPooled, pattern8ms), nil},
		{"cold, void netns, noop, 8 ms gap: ratio", 1.75, false, "×", ratio(pathCellVoid, programNoop, pattern8ms), nil},
		{"cold, void netns, /bin/true, 8 ms gap: ratio", 1.3, false, "×", ratio(pathCellVoid, programTrue, pattern8ms), nil},
		{"cold, void netns, noop, 8 ms gap: times faster than bwrap", 10, true, "×", bwrap(pathCellVoid, pattern8ms), nil},
		{"sustained at concurrency 4, fresh netns, noop: calls per second to bwrap's", 4, true, "×", rate(pathCellC), nil},
		{"the same: slab and network namespaces back to the start within 30 s, seconds", 30, false, "s", settling, nil},
		{"sustained at concurrency 4, void netns, noop: calls per second to bwrap's", 12, true, "×", rate(pathCellVoid), nil},
		{"waiting cell, of 500: memory", 50, false, "KiB", waiting(selfbench.WaitingVoid), nil},
		{"waiting cell with its own network namespace, of 500: memory", 300, false, "KiB", waiting(selfbench.WaitingFresh), nil},
		{"whole call, warm, /bin/true, 8 ms gap: beyond fork+exec and two fsyncs", 250, false, "µs", beyond(pathCallWarm, programTrue), nil},
		{"whole call, warm, noop, 8 ms gap: beyond fork+exec and two fsyncs", 250, false, "µs", beyond(pathCallWarm, programNoop), nil},
		{"whole call, noop, concurrency 8 to 1, until the cores are full: calls per second", 4, true, "×", grouped, full},
		{"wait of a call for its group", 5, false, "ms", groupWait, nil},
		{"one-shot palyra exec, tier c, /bin/true, 8 ms gap: to bwrap", 1.5, false, "×", oneShot, nil},
	}
}

// groupWait is the longest that an entry of a call waited, of those whose calls
// shared the journal's groups.
func groupWait(r *results) (float64, bool) {
	x := r.findSustained(pathCall, programNoop, callsAtOnce)
	if x == nil || x.Group == nil || x.Group.N == 0 {
		return 0, false
	}
	return x.Group.Max / 1000, true
}

// beyond is what the whole call costs besides fork and exec and the two flushes
// that it cannot do without.
func beyond(path, program string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		call, floor, flush := r.find(setCall, path, program, pattern8ms), r.find(setCall, pathFloor, program, pattern8ms), r.find(setCall, pathFsync, program, pattern8ms)
		if call == nil || floor == nil || flush == nil {
			return 0, false
		}
		return call.P50 - floor.P50 - flush.P50, true
	}
}

func grouped(r *results) (float64, bool) {
	one, many := r.findSustained(pathCall, programNoop, 1), r.findSustained(pathCall, programNoop, callsAtOnce)
	if one == nil || many == nil {
		return 0, false
	}
	return measure.Over(many.PerSecond, one.PerSecond), true
}

// fullFrom is the share of the processors' time from which they are full: some of
// it is always lost between a wake and the run.
const fullFrom = 0.95

// full says that there was nothing left to share.
func full(r *results) string {
	if x := r.findSustained(pathCall, programNoop, callsAtOnce); x != nil && x.Busy >= fullFrom {
		return fmt.Sprintf("processors %.0f %% busy", 100*x.Busy)
	}
	return ""
}

func oneShot(r *results) (float64, bool) {
	x := r.find(setOneShot, pathExecC, programTrue, pattern8ms)
	if x == nil || x.Bwrap == 0 {
		return 0, false
	}
	return 1 / x.Bwrap, true
}

// waiting is the memory of one waiting cell; fewer than 500 tell too little.
func waiting(kind string) func(*results) (float64, bool) {
	return func(r *results) (float64, bool) {
		for _, x := range r.Waiting {
			if x.Kind == kind && x.Cells >= 500 {
				return x.Each, true
			}
		}
		return 0, false
	}
}

// settling is judged by long runs only: a short one does not wait long enough to
// say no, nor run long enough to say yes.
func settling(r *results) (float64, bool) {
	x := r.findSustained(pathCellC, programNoop, sustainedCell)
	if x == nil || x.Seconds < 19 {
		return 0, false
	}
	if !x.Load.Settled {
		return max(x.Load.Rest, 30.1), true
	}
	return x.Load.Rest, true
}

// judge puts every goal beside what was measured.
func judge(r *results) []verdict {
	var out []verdict
	for _, g := range goals() {
		v := verdict{Goal: fmt.Sprintf("%s ≤ %g %s", g.text, g.limit, g.unit), Value: "–", Verdict: notMeasured}
		if g.least {
			v.Goal = fmt.Sprintf("%s ≥ %g %s", g.text, g.limit, g.unit)
		}
		if x, ok := g.value(r); ok {
			v.Value, v.Verdict = fmt.Sprintf("%.2f %s", x, g.unit), missed
			if x <= g.limit && !g.least || x >= g.limit && g.least {
				v.Verdict = met
			} else if g.but != nil {
				if why := g.but(r); why != "" {
					v.Value, v.Verdict = v.Value+", "+why, met
				}
			}
		}
		out = append(out, v)
	}
	return out
}
