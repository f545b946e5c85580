package measure

import "time"

// Bwrap is the name of the peer's path that records are compared with.
const Bwrap = "bwrap"

// Record is one path, with one program and one arrival pattern.
type Record struct {
	Set       string  `json:"set"` // paths of one set took turns; ratios are within it
	Path      string  `json:"path"`
	Program   string  `json:"program"`
	Pattern   string  `json:"pattern"`
	N         int     `json:"n"`
	P50       float64 `json:"p50_us"`
	P99       float64 `json:"p99_us"`
	Ratio     float64 `json:"ratio"`       // of medians, to the floor of the set
	Bwrap     float64 `json:"bwrap_ratio"` // bwrap's median to this one; 0 if bwrap isn't in the set
	RatioLow  float64 `json:"ratio_low"`   // bounds of Ratio, from the 95 % bounds of both medians
	RatioHigh float64 `json:"ratio_high"`
}

// Sustained is one path, run by several callers at once for some time.
type Sustained struct {
	Path        string  `json:"path"`
	Program     string  `json:"program"`
	Concurrency int     `json:"concurrency"`
	Seconds     float64 `json:"seconds"`
	Calls       int     `json:"calls"`
	PerSecond   float64 `json:"per_s"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Max         float64 `json:"max_us"`
	Busy        float64 `json:"busy"`   // of all processors during the run: 1 is full; 0 is unknown
	CPU         float64 `json:"cpu_us"` // processor time of the whole machine for each call
	// Group is the waits of calls for their group in the journal; absent for paths without one.
	Group *Waits `json:"group,omitempty"`
	Load  Load   `json:"load"`
}

// Waits summarizes the waits of some step for others.
type Waits struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

// Load is the kernel's state around a sustained run. Counts of namespaces are objects of the
// slab cache net_namespace, which holds dead ones until they are torn down; -1 if that can't be
// read. Slab is that of /proc/meminfo.
type Load struct {
	NetNSBefore int     `json:"netns_before"`
	NetNSPeak   int     `json:"netns_peak"`
	NetNSAfter  int     `json:"netns_after"` // after the last call
	NetNSRest   int     `json:"netns_rest"`  // after Rest seconds
	SlabBefore  int64   `json:"slab_before_kb"`
	SlabPeak    int64   `json:"slab_peak_kb"`
	SlabAfter   int64   `json:"slab_after_kb"`
	SlabRest    int64   `json:"slab_rest_kb"`
	Rest        float64 `json:"rest_s"`
	Settled     bool    `json:"settled"` // back to the start within Rest, see settled
}

// Absent is something that could not be measured.
type Absent struct {
	Path    string `json:"path"`
	Program string `json:"program"`
	Why     string `json:"why"`
}

// Records makes records of the samples of one set. names[0] is the floor; the path named Bwrap,
// if any, is the peer. A path without samples has no record.
func Records(set, program, pattern string, names []string, samples [][]time.Duration) []Record {
	sums := make([]Summary, len(names))
	var bwrap float64
	for i := range names {
		if sums[i] = Summarize(samples[i]); names[i] == Bwrap {
			bwrap = sums[i].P50
		}
	}
	floor := sums[0]
	var out []Record
	for i, s := range sums {
		if s.N == 0 {
			continue
		}
		r := Record{Set: set, Path: names[i], Program: program, Pattern: pattern, N: s.N, P50: s.P50, P99: s.P99,
			Ratio: Over(s.P50, floor.P50), Bwrap: Over(bwrap, s.P50),
			RatioLow: Over(s.Low, floor.High), RatioHigh: Over(s.High, floor.Low)}
		if i == 0 {
			r.RatioLow, r.RatioHigh = 1, 1
		}
		out = append(out, r)
	}
	return out
}
