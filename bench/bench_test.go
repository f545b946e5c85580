package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
)

// sample is a small run in which everything has a value.
func sample() *results {
	r := &results{Version: formatVersion, Time: "2026-01-02T03:04:05Z", Commit: "abc", Machine: measure.Machine{CPU: "x", Tools: map[string]string{"bwrap": "1"}}}
	for _, set := range []string{setCells, setCall, setOneShot} {
		r.Records = append(r.Records,
			measure.Record{Set: set, Path: pathFloor, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 100, P99: 200, Ratio: 1, Bwrap: 30, RatioLow: 1, RatioHigh: 1},
			measure.Record{Set: set, Path: pathCellC, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 300, P99: 900, Ratio: 3, Bwrap: 10, RatioLow: 2.9, RatioHigh: 3.1})
	}
	r.Sustained = []measure.Sustained{
		{Path: pathCellC, Program: programNoop, Concurrency: sustainedCell, Seconds: 20, Calls: 10, PerSecond: 1500, Load: measure.Load{Settled: true, Rest: 2}},
		{Path: pathBwrap, Program: programNoop, Concurrency: sustainedCell, PerSecond: 500},
		{Path: pathCall, Program: programNoop, Concurrency: 1, PerSecond: 200},
		{Path: pathCall, Program: programNoop, Concurrency: callsAtOnce, PerSecond: 900, Group: &measure.Waits{N: 20, P50: 300, P99: 900, Max: 5100}},
	}
	r.Waiting = []selfbench.Waiting{{Kind: selfbench.WaitingVoid, Cells: 500, Each: 42.5, Slab: 10000}, {Kind: selfbench.WaitingFresh, Cells: 499, Each: 1}}
	r.Parts = []selfbench.Parts{{Path: pathCall, Rows: []selfbench.Share{{Part: "seal", P50: 1, P99: 2, Share: 0.5}}}}
	r.Absent = []measure.Absent{{Path: pathRunc, Program: programTrue, Why: "not installed"}}
	return r
}

func TestJudge(t *testing.T) {
	r := sample()
	want := map[string]string{
		"warm, noop: ratio ≤ 1 ×":                                       notMeasured,
		"cold, everything fresh, noop: ratio ≤ 4 ×":                     met,
		"cold, everything fresh, noop, burst: ratio ≤ 6 ×":              notMeasured,
		"cold, everything fresh, noop: times faster than bwrap ≥ 4.5 ×": met,
		"sustained, fresh netns, noop: calls/s to bwrap's ≥":            missed,
		"the same: slab and netns back to the start after":              met,
		"whole call, noop, concurrency 8 to 1":                          met,
		"wait of a call for its group ≤ 5 ms":                           missed,
		"waiting cell, of 500: memory":                                  met,
		"waiting cell with its own network namespace, of 500: memory":   notMeasured,
		"cold, pooled netns, noop: ratio":                               notMeasured,
	}
	for prefix, want := range want {
		i := slices.IndexFunc(judge(r), func(v verdict) bool { return strings.HasPrefix(v.Goal, prefix) })
		if i < 0 {
			t.Errorf("no goal %q", prefix)
		} else if v := judge(r)[i]; v.Verdict != want {
			t.Errorf("%s: %s (%s), want %s", v.Goal, v.Verdict, v.Value, want)
		}
	}
	r.Sustained[0].Load = measure.Load{Rest: 30}
	if v := judge(r); !slices.ContainsFunc(v, func(v verdict) bool { return strings.HasPrefix(v.Goal, "the same:") && v.Verdict == missed }) {
		t.Error("a slab that never settled does not miss its goal")
	}
	for _, c := range []struct {
		rate, busy float64
		want       string
	}{{799, 0.94, missed}, {799, 0.96, met}, {800, 0, met}} {
		r.Sustained[3].PerSecond, r.Sustained[3].Busy = c.rate, c.busy
		i := slices.IndexFunc(judge(r), func(v verdict) bool { return strings.HasPrefix(v.Goal, "whole call, noop, concurrency 8 to 1") })
		if v := judge(r)[i]; v.Verdict != c.want || strings.Contains(v.Value, "busy") != (c.busy > 0.95) {
			t.Errorf("%g calls/s to 200, processors %g busy: %+v", c.rate, c.busy, v)
		}
	}
	r.Records = append(r.Records, measure.Record{Set: setCells, Path: pathCellWarm, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 90, P99: 100, Ratio: 0.9})
	if v := judge(r)[0]; v.Verdict != met || v.Value != "0.90 ×" {
		t.Errorf("a warm path of 0.9: %+v", v)
	}
}

func TestWriteRead(t *testing.T) {
	name := filepath.Join(t.TempDir(), "sub", "latest.json")
	want := sample()
	if err := want.write(name); err != nil {
		t.Fatal(err)
	}
	got, err := readResults(name)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("read %+v, want %+v", got, want)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, field := range []string{"path", "program", "pattern", "n", "p50_us", "p99_us", "ratio", "bwrap_ratio"} {
		if !bytes.Contains(b, []byte(`"`+field+`"`)) {
			t.Errorf("no field %s in a record", field)
		}
	}
	for _, bad := range []string{`{}`, `{"version": 2}`, `{"version": 1, "odd": 0}`, `[`} {
		if err := os.WriteFile(name, []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readResults(name); err == nil {
			t.Errorf("read %s: no error", bad)
		}
	}
}

func TestCompare(t *testing.T) {
	rec := func(n int, ratio, low, high float64) measure.Record {
		return measure.Record{Set: setCells, Path: pathCellC, Program: programNoop, Pattern: pattern8ms, N: n, Ratio: ratio, RatioLow: low, RatioHigh: high}
	}
	for _, c := range []struct {
		name                         string
		was, is                      measure.Record
		slower, faster, same, unsure int
	}{
		{"same", rec(100, 4, 3.9, 4.1), rec(100, 4.1, 4, 4.2), 0, 0, 1, 0},
		{"slower", rec(100, 4, 3.9, 4.1), rec(100, 4.8, 4.7, 4.9), 1, 0, 0, 0},
		{"slower by less than noise", rec(100, 4, 3.9, 4.1), rec(100, 4.5, 4.4, 4.6), 0, 0, 1, 0},
		{"slower within the bounds", rec(100, 4, 3.5, 4.9), rec(100, 4.8, 4.7, 4.9), 0, 0, 1, 0},
		{"faster", rec(100, 4, 3.9, 4.1), rec(100, 3, 2.9, 3.1), 0, 1, 0, 0},
		{"too few", rec(5, 4, 3.9, 4.1), rec(100, 9, 8, 10), 0, 0, 0, 1},
	} {
		got := compare(&results{Records: []measure.Record{c.was}}, &results{Records: []measure.Record{c.is}})
		if len(got.Slower) != c.slower || len(got.Faster) != c.faster || got.Same != c.same || len(got.Unjudged) != c.unsure {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	got := compare(&results{Records: []measure.Record{rec(100, 4, 4, 4)}}, &results{Records: []measure.Record{{Set: setCall, Path: pathCall, N: 100, Ratio: 1}}})
	if len(got.Unjudged) != 2 {
		t.Errorf("one path gone and one new: %q", got.Unjudged)
	}
}

func TestRunCompare(t *testing.T) {
	dir := t.TempDir()
	base, latest := filepath.Join(dir, "baseline.json"), filepath.Join(dir, "latest.json")
	r := sample()
	if err := errors.Join(r.write(base), r.write(latest)); err != nil {
		t.Fatal(err)
	}
	if code, err := runCompare(base, latest, io.Discard); code != 0 || err != nil {
		t.Errorf("a run against itself: %d, %v", code, err)
	}
	r.Records[1].Ratio, r.Records[1].RatioLow, r.Records[1].RatioHigh = 4, 3.9, 4.1
	if err := r.write(latest); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if code, err := runCompare(base, latest, &out); code != 3 || err != nil || !strings.Contains(out.String(), "slower  cells: cell, tier c, noop, 8ms gap: 4.00 × the floor, was 3.00 (+33 %)") {
		t.Errorf("a slower run: %d, %v, %s", code, err, &out)
	}
	if _, err := runCompare(filepath.Join(dir, "none"), latest, io.Discard); err == nil {
		t.Error("no baseline: no error")
	}
	// A run from before the baseline can't have become slower than it.
	for at, older := range map[string]bool{"2026-01-02T03:04:04Z": true, "2026-01-02T04:04:04+01:00": true, "2026-01-02T03:04:06Z": false, "2026-01-02T03:04:05+01:00": true} {
		r.Time = at
		if err := r.write(latest); err != nil {
			t.Fatal(err)
		}
		out.Reset()
		code, err := runCompare(base, latest, &out)
		if older && (code != 1 || err == nil || !strings.Contains(err.Error(), "older than the baseline") || !strings.Contains(err.Error(), "hint: run make bench first") || out.Len() > 0) {
			t.Errorf("a run of %s: %d, %v, %s; want no judgement and a hint", at, code, err, &out)
		}
		if !older && (code != 3 || err != nil) {
			t.Errorf("a run of %s: %d, %v; want a judgement", at, code, err)
		}
	}
	if code, err := runCompare(base, filepath.Join(dir, "none"), io.Discard); code != 1 || err == nil || !strings.Contains(err.Error(), "hint: run make bench first") {
		t.Errorf("no run: %d, %v; want the command that makes one", code, err)
	}
	r.Time = "yesterday"
	if err := r.write(latest); err != nil {
		t.Fatal(err)
	}
	if code, err := runCompare(base, latest, io.Discard); code != 1 || err == nil {
		t.Errorf("a run of %s: %d, %v; want an error", r.Time, code, err)
	}
}

func TestTables(t *testing.T) {
	var out strings.Builder
	printText(&out, sample())
	for _, want := range []string{
		"program  arrival  path           n  p50 µs  p99 µs  × floor  bwrap ÷ this\n",
		"noop     8ms gap  cell, tier c  50     300     900     3.00         10.00\n",
		"Goals, with", "runc  /bin/true  not installed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestDocument(t *testing.T) {
	got, err := document("a\n"+markBegin+"\nformer tables\n"+markDone+"\nb\n", sample())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(got, "a\n"+markBegin+"\nMeasured 2026") || !strings.HasSuffix(got, markDone+"\nb\n") || strings.Contains(got, "former tables") {
		t.Errorf("documented:\n%s", got)
	}
	for _, want := range []string{"| noop | cell, tier c | – | 300 (3.00) | – | 900 | 10.00 |\n", "| seal | 1 (50.0) |\n", "| runc | /bin/true | not installed |\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if again, err := document(got, sample()); err != nil || again != got {
		t.Errorf("documented twice differs: %v", err)
	}
	if _, err := document("no marks", sample()); err == nil {
		t.Error("a README without marks: no error")
	}
}
