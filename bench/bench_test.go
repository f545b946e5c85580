package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func us(v ...float64) (out []time.Duration) {
	for _, n := range v {
		out = append(out, time.Duration(n*1e3))
	}
	return out
}

func TestSummarize(t *testing.T) {
	hundred := make([]time.Duration, 100)
	for i := range hundred { // 100 … 1, so that sorting shows
		hundred[i] = time.Duration(100-i) * time.Microsecond
	}
	for _, c := range []struct {
		name    string
		samples []time.Duration
		want    summary
	}{
		{"none", nil, summary{}},
		{"one", us(7), summary{N: 1, P50: 7, P99: 7, Low: 7, High: 7, Max: 7, Total: 7}},
		{"odd", us(300, 100, 200), summary{N: 3, P50: 200, P99: 300, Low: 100, High: 300, Max: 300, Total: 600}},
		{"hundred", hundred, summary{N: 100, P50: 50, P99: 99, Low: 41, High: 61, Max: 100, Total: 5050}},
	} {
		before := slices.Clone(c.samples)
		if got := summarize(c.samples); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if !slices.Equal(before, c.samples) {
			t.Errorf("%s: summarize changed its argument", c.name)
		}
	}
}

// The bounds must hold the true median about 19 times in 20.
func TestMedianBounds(t *testing.T) {
	for n := 1; n <= 200; n++ {
		low, high := medianBounds(n)
		if low < 0 || high >= n || low > high {
			t.Fatalf("medianBounds(%d) = %d, %d", n, low, high)
		}
		// P(low < number of samples below the median ≤ high), binomial(n, 1/2).
		in := 0.0
		for k := low + 1; k <= high; k++ {
			lg := func(x int) float64 { v, _ := math.Lgamma(float64(x) + 1); return v }
			in += math.Exp(lg(n) - lg(k) - lg(n-k) - float64(n)*math.Ln2)
		}
		if n >= 6 && (in < 0.94 || n > 100 && in > 0.98) {
			t.Errorf("medianBounds(%d) = %d, %d holds the median with probability %.3f", n, low, high, in)
		}
	}
}

func TestRecords(t *testing.T) {
	rs := records(setCells, programTrue, pattern8ms, []string{pathFloor, pathBwrap, pathCellC},
		[][]time.Duration{us(300, 100, 200), us(4000, 3000, 5000), us(1000, 800, 900)})
	for i, want := range []record{
		{Path: pathFloor, P50: 200, P99: 300, Ratio: 1, Bwrap: 20, RatioLow: 1, RatioHigh: 1},
		{Path: pathBwrap, P50: 4000, P99: 5000, Ratio: 20, Bwrap: 1, RatioLow: 10, RatioHigh: 50},
		{Path: pathCellC, P50: 900, P99: 1000, Ratio: 4.5, Bwrap: 4000.0 / 900, RatioLow: 800.0 / 300, RatioHigh: 10},
	} {
		want.Set, want.Program, want.Pattern, want.N = setCells, programTrue, pattern8ms, 3
		if rs[i] != want {
			t.Errorf("record %d = %+v, want %+v", i, rs[i], want)
		}
	}
	if rs := records(setCall, programTrue, pattern8ms, []string{pathFloor, pathCall}, [][]time.Duration{us(1), us(2)}); rs[1].Bwrap != 0 {
		t.Errorf("without bwrap its ratio is %v, want 0", rs[1].Bwrap)
	}
}

// counter is a path that takes no time and notes the order of turns.
func counter(name string, turns *[]string) path {
	return path{name: name, once: func() (time.Duration, error) {
		*turns = append(*turns, name)
		return time.Microsecond, nil
	}}
}

func TestInterleave(t *testing.T) {
	var turns []string
	got, err := interleave([]path{counter("a", &turns), counter("b", &turns)}, pattern{block: 10}, 25)
	if err != nil {
		t.Fatal(err)
	}
	if len(got[0]) != 30 || len(got[1]) != 30 {
		t.Errorf("%d and %d samples, want 30 of each: whole blocks", len(got[0]), len(got[1]))
	}
	for i := 0; i < len(turns); i += 20 {
		a, b := turns[i], turns[i+10]
		for j := range 10 {
			if turns[i+j] != a || turns[i+10+j] != b || a == b {
				t.Fatalf("turns %v: no blocks of ten, each path once a round", turns[i:i+20])
			}
		}
	}
	broken := path{name: "c", once: func() (time.Duration, error) { return 0, errors.New("broken") }}
	if _, err := interleave([]path{counter("a", &turns), broken}, pattern{block: 1}, 5); err == nil || !strings.Contains(err.Error(), "measure c: broken") {
		t.Errorf("error of a path: %v", err)
	}
}

func TestStorm(t *testing.T) {
	var now, most atomic.Int64
	p := path{name: "p", once: func() (time.Duration, error) {
		most.Store(max(most.Load(), now.Add(1)))
		defer now.Add(-1)
		return time.Microsecond, nil
	}}
	got, took, err := storm(p, 4, time.Millisecond)
	if err != nil || len(got) == 0 || took < time.Millisecond || most.Load() > 4 {
		t.Errorf("storm: %d samples in %v, %d at once, error %v", len(got), took, most.Load(), err)
	}
	p.once = func() (time.Duration, error) { return 0, errors.New("broken") }
	if _, took, err := storm(p, 4, time.Hour); err == nil || took > time.Minute {
		t.Errorf("storm of a broken path: error %v after %v", err, took)
	}
}

func TestParts(t *testing.T) {
	var good []mark
	for i, s := range stages() {
		good = append(good, mark{s.mark, time.Duration(i+1) * 10 * time.Microsecond})
	}
	p := partsOf(pathCall, programNoop, pattern8ms, [][]mark{good, good[:3], good})
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
	r.end()
	r.step("receipt")
	if p := r.take("", "", ""); p.N != 1 || p.Dropped != 0 {
		t.Errorf("%d calls, %d dropped, want 1 and 0", p.N, p.Dropped)
	}
	r.stop()
	r.begin()
	r.end()
	if p := r.take("", "", ""); p.N+p.Dropped != 0 {
		t.Errorf("%d calls after stop, want none", p.N+p.Dropped)
	}
}

// sample is a small run in which everything has a value.
func sample() *results {
	r := &results{Version: formatVersion, Time: "2026-01-02T03:04:05Z", Commit: "abc", Machine: machine{CPU: "x", Tools: map[string]string{"bwrap": "1"}}}
	for _, set := range []string{setCells, setCall, setOneShot} {
		r.Records = append(r.Records,
			record{Set: set, Path: pathFloor, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 100, P99: 200, Ratio: 1, Bwrap: 30, RatioLow: 1, RatioHigh: 1},
			record{Set: set, Path: pathCellC, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 300, P99: 900, Ratio: 3, Bwrap: 10, RatioLow: 2.9, RatioHigh: 3.1})
	}
	r.Sustained = []sustained{
		{Path: pathCellC, Program: programNoop, Concurrency: sustainedCell, Seconds: 20, Calls: 10, PerSecond: 1500, Load: load{Settled: true, Rest: 2}},
		{Path: pathBwrap, Program: programNoop, Concurrency: sustainedCell, PerSecond: 500},
		{Path: pathCall, Program: programNoop, Concurrency: 1, PerSecond: 200},
		{Path: pathCall, Program: programNoop, Concurrency: callsAtOnce, PerSecond: 900},
	}
	r.Parts = []parts{{Path: pathCall, Rows: []share{{Part: "seal", P50: 1, P99: 2, Share: 0.5}}}}
	r.Absent = []absent{{pathRunc, programTrue, "not installed"}}
	return r
}

func TestJudge(t *testing.T) {
	r := sample()
	want := map[string]string{
		"warm, noop, 8 ms gap: ratio ≤ 1 ×":                                            notMeasured,
		"cold, everything fresh, noop, 8 ms gap: ratio ≤ 4 ×":                          met,
		"cold, everything fresh, noop, burst: ratio ≤ 6 ×":                             notMeasured,
		"cold, everything fresh, noop, 8 ms gap: times faster than bwrap ≥ 4.5 ×":      met,
		"sustained at concurrency 4, fresh netns, noop: calls per second to bwrap's ≥": missed,
		"the same: slab and network namespaces back to the start":                      met,
		"whole call, noop, concurrency 8 to 1":                                         met,
		"waiting cell: memory":                                                         notMeasured,
	}
	for prefix, want := range want {
		i := slices.IndexFunc(judge(r), func(v verdict) bool { return strings.HasPrefix(v.Goal, prefix) })
		if i < 0 {
			t.Errorf("no goal %q", prefix)
		} else if v := judge(r)[i]; v.Verdict != want {
			t.Errorf("%s: %s (%s), want %s", v.Goal, v.Verdict, v.Value, want)
		}
	}
	r.Sustained[0].Load = load{Rest: 30}
	if v := judge(r); !slices.ContainsFunc(v, func(v verdict) bool { return strings.HasPrefix(v.Goal, "the same:") && v.Verdict == missed }) {
		t.Error("a slab that never settled does not miss its goal")
	}
	r.Records = append(r.Records, record{Set: setCells, Path: pathCellWarm, Program: programNoop, Pattern: pattern8ms, N: 50, P50: 90, P99: 100, Ratio: 0.9})
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
	rec := func(n int, ratio, low, high float64) record {
		return record{Set: setCells, Path: pathCellC, Program: programNoop, Pattern: pattern8ms, N: n, Ratio: ratio, RatioLow: low, RatioHigh: high}
	}
	for _, c := range []struct {
		name                         string
		was, is                      record
		slower, faster, same, unsure int
	}{
		{"same", rec(100, 4, 3.9, 4.1), rec(100, 4.1, 4, 4.2), 0, 0, 1, 0},
		{"slower", rec(100, 4, 3.9, 4.1), rec(100, 4.8, 4.7, 4.9), 1, 0, 0, 0},
		{"slower by less than noise", rec(100, 4, 3.9, 4.1), rec(100, 4.5, 4.4, 4.6), 0, 0, 1, 0},
		{"slower within the bounds", rec(100, 4, 3.5, 4.9), rec(100, 4.8, 4.7, 4.9), 0, 0, 1, 0},
		{"faster", rec(100, 4, 3.9, 4.1), rec(100, 3, 2.9, 3.1), 0, 1, 0, 0},
		{"too few", rec(5, 4, 3.9, 4.1), rec(100, 9, 8, 10), 0, 0, 0, 1},
	} {
		got := compare(&results{Records: []record{c.was}}, &results{Records: []record{c.is}})
		if len(got.Slower) != c.slower || len(got.Faster) != c.faster || got.Same != c.same || len(got.Unjudged) != c.unsure {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
	got := compare(&results{Records: []record{rec(100, 4, 4, 4)}}, &results{Records: []record{{Set: setCall, Path: pathCall, N: 100, Ratio: 1}}})
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
}

func TestTables(t *testing.T) {
	var out strings.Builder
	printText(&out, sample())
	for _, want := range []string{
		"program  arrival  path           n  p50 µs  p99 µs  × floor  bwrap ÷ this\n",
		"noop     8ms gap  cell, tier c  50     300     900     3.00         10.00\n",
		"Goals\n", "runc  /bin/true  not installed\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
	var md strings.Builder
	table{title: "T", head: []string{"a", "b"}, left: 1, rows: [][]string{{"x", "1"}}}.markdown(&md)
	if got, want := md.String(), "\n### T\n\n| a | b |\n|---|--:|\n| x | 1 |\n"; got != want {
		t.Errorf("markdown %q, want %q", got, want)
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
	if again, err := document(got, sample()); err != nil || again != got {
		t.Errorf("documented twice differs: %v", err)
	}
	if _, err := document("no marks", sample()); err == nil {
		t.Error("a README without marks: no error")
	}
}

func TestHistogram(t *testing.T) {
	var b bytes.Buffer
	err := histogram(&b, "a <title> & more", []series{{"fast", us(100, 110, 120, 5000)}, {"slow", us(2000, 2000)}, {"none", nil}})
	if err != nil {
		t.Fatal(err)
	}
	text, bars := "", 0
	for d := xml.NewDecoder(&b); ; {
		tok, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch e := tok.(type) {
		case xml.CharData:
			text += string(e) + "\n"
		case xml.StartElement:
			if e.Name.Local == "rect" {
				bars++
			}
			for _, a := range e.Attr {
				if strings.Contains(a.Value, "NaN") || strings.Contains(a.Value, "Inf") || strings.Contains(a.Value, "%!") {
					t.Errorf("%s %s = %q", e.Name.Local, a.Name.Local, a.Value)
				}
			}
		}
	}
	if !strings.Contains(text, "a <title> & more") || !strings.Contains(text, "p50 110 µs, n 4") {
		t.Errorf("text of the picture: %q", text)
	}
	if bars < 4 { // the ground, two bins or more of one series, one of the other
		t.Errorf("%d rectangles", bars)
	}
	if err := histogram(io.Discard, "", []series{{"none", nil}}); err == nil {
		t.Error("no samples: no error")
	}
}

func TestMachineFacts(t *testing.T) {
	const mounts = "/dev/a / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\n/dev/b /tmp/x xfs rw 0 0\n"
	for dir, want := range map[string]string{"/home": "ext4", "/tmp/y": "tmpfs", "/tmp/x/y": "xfs", "/tmpx": "ext4"} {
		if got := fileSystem(mounts, dir); got != want {
			t.Errorf("fileSystem(%q) = %q, want %q", dir, got, want)
		}
	}
	const slabs = "slabinfo - version: 2.1\n# name <active_objs>\nnet_namespace         35     49   4288\n"
	if got := slabObjects(slabs, "net_namespace"); got != 35 {
		t.Errorf("slabObjects = %d, want 35", got)
	}
	if got := slabObjects("", "net_namespace"); got != -1 {
		t.Errorf("slabObjects of nothing = %d, want -1", got)
	}
	start := counts{netns: 30, slab: 100 << 10}
	for _, c := range []struct {
		now  counts
		want bool
	}{{start, true}, {counts{50, 100 << 10}, true}, {counts{90, 100 << 10}, false}, {counts{30, 120 << 10}, false}} {
		if got := settled(start, c.now); got != c.want {
			t.Errorf("settled(%v) = %v", c.now, got)
		}
	}
	if !settled(counts{-1, 0}, counts{-1, 0}) {
		t.Error("a host that does not say how many there are never settles")
	}
}
