package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"palyra/internal/canon"
)

// formatVersion is of the file of results.
const formatVersion = 1

// Names that records, goals and tables share. The first path of each set is the
// floor.
const (
	pathFloor     = "fork+exec"
	pathCellC     = "cell, tier c"
	pathCellB     = "cell, tier b"
	pathCellWarm  = "cell, tier c, warm"
	pathCellVoid  = "cell, tier c, void netns"
	pathCall      = "whole call, tier c"
	pathFsync     = "append + fsync, twice"
	pathExecC     = "palyra exec, tier c"
	pathExecB     = "palyra exec, tier b"
	pathBwrap     = "bwrap"
	pathCrun      = "crun"
	pathRunc      = "runc"
	pathFirejail  = "firejail"
	programNoop   = "noop"
	programTrue   = "/bin/true"
	setCells      = "cells"
	setCall       = "call"
	setOneShot    = "one-shot"
	patternBurst  = "burst"
	pattern8ms    = "8ms gap"
	pattern100ms  = "100ms gap"
	sustainedCell = 4 // concurrency of the sustained runs
	callsAtOnce   = 8 // and of the whole calls that share the journal's groups
)

// results is the file that a run writes and bench-compare reads.
type results struct {
	Version   int         `json:"version"`
	Time      string      `json:"time"`   // RFC 3339, when the run began
	Commit    string      `json:"commit"` // of the source tree, "-dirty" if it was changed
	Full      bool        `json:"full"`   // make bench-full
	Machine   machine     `json:"machine"`
	Records   []record    `json:"records"`
	Sustained []sustained `json:"sustained"`
	Parts     []parts     `json:"parts"`
	Absent    []absent    `json:"absent"` // what was not measured, and why
}

// record is one path, with one program and one arrival pattern.
type record struct {
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

// sustained is one path, run by so many at once for so long.
type sustained struct {
	Path        string  `json:"path"`
	Program     string  `json:"program"`
	Concurrency int     `json:"concurrency"`
	Seconds     float64 `json:"seconds"`
	Calls       int     `json:"calls"`
	PerSecond   float64 `json:"per_s"`
	P50         float64 `json:"p50_us"`
	P99         float64 `json:"p99_us"`
	Max         float64 `json:"max_us"`
	Load        load    `json:"load"`
}

// load is what a sustained run leaves in the kernel. Counts of namespaces are
// objects of the slab cache net_namespace, which holds dead ones until they are
// torn down; -1 where that cannot be read. Slab is that of /proc/meminfo.
type load struct {
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

// absent is something that could not be measured.
type absent struct {
	Path    string `json:"path"`
	Program string `json:"program"`
	Why     string `json:"why"`
}

// records turns the samples of one set into records. names[0] is the floor.
func records(set, program, pattern string, names []string, samples [][]time.Duration) []record {
	sums := make([]summary, len(names))
	var bwrap float64
	for i := range names {
		if sums[i] = summarize(samples[i]); names[i] == pathBwrap {
			bwrap = sums[i].P50
		}
	}
	floor := sums[0]
	var out []record
	for i, s := range sums {
		r := record{Set: set, Path: names[i], Program: program, Pattern: pattern, N: s.N, P50: s.P50, P99: s.P99,
			Ratio: over(s.P50, floor.P50), Bwrap: over(bwrap, s.P50),
			RatioLow: over(s.Low, floor.High), RatioHigh: over(s.High, floor.Low)}
		if i == 0 {
			r.RatioLow, r.RatioHigh = 1, 1
		}
		out = append(out, r)
	}
	return out
}

// find returns the record of a path, nil if it was not measured.
func (r *results) find(set, path, program, pattern string) *record {
	for i := range r.Records {
		x := &r.Records[i]
		if x.Set == set && x.Path == path && x.Program == program && x.Pattern == pattern {
			return x
		}
	}
	return nil
}

// findSustained returns a sustained run, nil if there was none.
func (r *results) findSustained(path, program string, concurrency int) *sustained {
	for i := range r.Sustained {
		x := &r.Sustained[i]
		if x.Path == path && x.Program == program && x.Concurrency == concurrency {
			return x
		}
	}
	return nil
}

func (r *results) write(path string) error {
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, append(b, '\n'), 0o644)
}

// readResults reads a file that write wrote.
func readResults(path string) (*results, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var r results
	if err := canon.Decode(b, &r, canon.Limits{Bytes: 8 << 20}); err != nil {
		return nil, fmt.Errorf("read %q: %w", path, err)
	}
	if r.Version != formatVersion {
		return nil, fmt.Errorf("read %q: version %d, want %d", path, r.Version, formatVersion)
	}
	return &r, nil
}
