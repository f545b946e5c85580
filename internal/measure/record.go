package measure

import "time"

// Bwrap is the name of the path of the peer that records are compared with.
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
	Bwrap     float64 `json:"bwrap_ratio"` // of medians, bwrap's to this; 0 if bwrap is not in the set
	RatioLow  float64 `json:"ratio_low"`   // bounds of Ratio, from the 95 % bounds of both medians
	RatioHigh float64 `json:"ratio_high"`
}

// Sustained is one path, run by so many at once for so long.
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
	Busy        float64 `json:"busy"`            // of all processors, while it ran: 1 is full; 0 is unknown
	CPU         float64 `json:"cpu_us"`          // processor time of the whole machine for each call
	Group       *Waits  `json:"group,omitempty"` // of calls for their group in the journal; absent for paths without one
	Load        Load    `json:"load"`
}

// Waits is how long some step had to wait for others.
type Waits struct {
	N   int     `json:"n"`
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	Max float64 `json:"max_us"`
}

// Load is what a sustained run leaves in the kernel. Counts of namespaces are
// objects of the slab cache net_namespace, which holds dead ones until they are
// torn down; -1 where that cannot be read. Slab is that of /proc/meminfo.
type Load struct {
	NetNSBefore int     `json:"netns_before"`
	NetNSPeak   int     `json:"netns_peak"`
	NetNSAfter  int     `json:"netns_after"` // when the last call had ended
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

// Records turns the samples of one set into records. names[0] is the floor, and
// the path named Bwrap, if there is one, the peer that all are compared with.
// A path without samples has no record.
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
