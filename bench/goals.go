package main

import (
	"fmt"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
)

// goal is one target of the fast path, and how to read its value.
type goal struct {
	text  string
	limit float64
	least bool // the value must be at least limit; else at most
	unit  string
	value func(*results) (float64, bool) // false: not measured
	// but says why a value beyond the limit still meets the goal; "" if it doesn't; may be nil.
	but func(*results) string
}

type verdict struct {
	Goal, Value, Verdict string
}

// The verdicts.
const (
	met         = "met"
	missed      = "missed"
	notMeasured = "not measured"
)

// goals are the targets of the fast cell. A path without a record gets "not measured".
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
		{"warm, noop: ratio", 1.0, false, "×", ratio(pathCellWarm, programNoop, pattern8ms), nil},
		{"warm, /bin/true: ratio", 1.05, false, "×", ratio(pathCellWarm, programTrue, pattern8ms), nil},
		{"warm, noop, 100 ms gap: ratio", 1.15, false, "×", ratio(pathCellWarm, programNoop, pattern100ms), nil},
		{"warm, noop: p99 to own median", 1.6, false, "×", tail, nil},
		{"cold, everything fresh, noop: ratio", 4, false, "×", ratio(pathCellC, programNoop, pattern8ms), nil},
		{"cold, everything fresh, noop, burst: ratio", 6, false, "×", ratio(pathCellC, programNoop, patternBurst), nil},
		{"cold, everything fresh, noop: times faster than bwrap", 4.5, true, "×", bwrap(pathCellC, pattern8ms), nil},
		{"cold, pooled netns, noop: ratio", 1.75, false, "×", ratio(pathCellPooled, programNoop, pattern8ms), nil},
		{"cold, pooled netns, /bin/true: ratio", 1.3, false, "×", ratio(pathCellPooled, programTrue, pattern8ms), nil},
		{"cold, pooled netns, noop: times faster than bwrap", 10, true, "×", bwrap(pathCellPooled, pattern8ms), nil},
		{"cold, void netns, noop: ratio", 1.75, false, "×", ratio(pathCellVoid, programNoop, pattern8ms), nil},
		{"cold, void netns, /bin/true: ratio", 1.3, false, "×", ratio(pathCellVoid, programTrue, pattern8ms), nil},
		{"cold, void netns, noop: times faster than bwrap", 10, true, "×", bwrap(pathCellVoid, pattern8ms), nil},
		{"sustained, fresh netns, noop: calls/s to bwrap's", 4, true, "×", rate(pathCellC), nil},
		{"the same: slab and netns back to the start after", 30, false, "s", settling, nil},
		{"sustained, void netns, noop: calls/s to bwrap's", 12, true, "×", rate(pathCellVoid), nil},
		{"waiting cell, of 500: memory", 50, false, "KiB", waiting(selfbench.WaitingVoid), nil},
		{"waiting cell with its own network namespace, of 500: memory", 300, false, "KiB", waiting(selfbench.WaitingFresh), nil},
		{"whole call, warm, /bin/true: beyond fork+exec and two fsyncs", 250, false, "µs", beyond(pathCallWarm, programTrue), nil},
		{"whole call, warm, noop: beyond fork+exec and two fsyncs", 250, false, "µs", beyond(pathCallWarm, programNoop), nil},
		{"whole call, noop, concurrency 8 to 1, until the cores are full: calls/s", 4, true, "×", grouped, full},
		{"wait of a call for its group", 5, false, "ms", groupWait, nil},
		{"one-shot palyra exec, tier c, /bin/true: to bwrap", 1.5, false, "×", oneShot, nil},
	}
}

// groupWait is the longest wait of a call's entry, of the calls that shared the journal's
// groups.
func groupWait(r *results) (float64, bool) {
	x := r.findSustained(pathCall, programNoop, callsAtOnce)
	if x == nil || x.Group == nil || x.Group.N == 0 {
		return 0, false
	}
	return x.Group.Max / 1000, true
}

// beyond is the cost of a whole call beyond fork, exec and its two flushes, in µs.
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

// fullFrom is the busy share from which processors count as full: some time is always lost
// between a wake and the run.
const fullFrom = 0.95

// full says that no processor time was left to share.
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

// waiting is the memory of one waiting cell, in KiB. Fewer than 500 cells tell too little.
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

// settling judges long runs only: a short one neither waits long enough to fail nor runs long
// enough to pass.
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
