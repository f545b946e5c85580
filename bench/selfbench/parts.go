package selfbench

import (
	"fmt"
	"slices"
	"sync"
	"time"

	"palyra/bench/measure"
)

// Parts shows how the time of whole calls is spent.
type Parts struct {
	Path    string  `json:"path"`
	Program string  `json:"program"`
	Pattern string  `json:"pattern"`
	N       int     `json:"n"`       // calls that passed all marks in order
	Dropped int     `json:"dropped"` // calls that did not; they aren't in the table
	Rows    []Share `json:"rows"`
}

// Share is one part.
type Share struct {
	Part  string  `json:"part"`
	P50   float64 `json:"p50_us"`
	P99   float64 `json:"p99_us"`
	Share float64 `json:"share"` // of the time of all calls, 0 to 1
}

type stage struct{ mark, part string }

// We set markEnd when Call has returned; the other marks are steps of kernel, journal and cell.
const markEnd = "end"

func stages() []stage {
	return []stage{
		{"sealed", "seal: open, hash and pin what is named"},
		{"decided", "decide: question, policy"},
		{"granted", "spec, grant"},
		{"append:begin", "intent: statement, sign, leaf"},
		{"append:durable", "intent: write and fsync, pipes meanwhile"},
		{"intent", "intent: into the tree"},
		{"run_sent", "recheck, send to palyra-cell"},
		{"run_answered", "cell: build, run, evidence, reap"},
		{"executed", "drain output"},
		{"append:begin", "result: evidence, sign, leaf"},
		{"append:durable", "result: write and fsync, proof and bundle meanwhile"},
		{"result", "result: into the tree"},
		{"receipt", "proof and bundle where others shared the group"},
		{markEnd, "clean up"},
	}
}

type mark struct {
	name string
	at   time.Duration // since the call began
}

// recorder takes the marks of one call at a time. It drops marks outside of begin and end, and
// those that no stage names.
type recorder struct {
	known map[string]bool // immutable

	mu    sync.Mutex
	off   bool      // guarded by mu; set when several calls run at once, whose marks can't be told apart
	on    bool      // guarded by mu
	start time.Time // guarded by mu
	now   []mark    // guarded by mu
	calls [][]mark  // guarded by mu

	waits []time.Duration // guarded by mu: waits for groups of the journal, on or not
}

func newRecorder() *recorder {
	r := &recorder{known: make(map[string]bool)}
	for _, s := range stages() {
		r.known[s.mark] = true
	}
	return r
}

// step is a kernel's Config.TestOnlyStep.
func (r *recorder) step(name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on && r.known[name] {
		r.now = append(r.now, mark{name, time.Since(r.start)})
	}
}

// waited is a kernel's Config.JournalWaited.
func (r *recorder) waited(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waits = append(r.waits, d)
}

func (r *recorder) takeWaits() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waits
	r.waits = nil
	return w
}

func (r *recorder) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.on, r.now, r.start = !r.off, nil, time.Now()
}

func (r *recorder) end(counts bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on && counts {
		r.calls = append(r.calls, r.now)
	}
	r.on = false
}

func (r *recorder) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.off = true
}

// take returns the table of the calls recorded so far and forgets them.
func (r *recorder) take(path, program, pattern string) Parts {
	r.mu.Lock()
	defer r.mu.Unlock()
	calls := r.calls
	r.calls = nil
	return partsOf(path, program, pattern, calls)
}

func partsOf(path, program, pattern string, calls [][]mark) Parts {
	order := stages()
	out := Parts{Path: path, Program: program, Pattern: pattern}
	took := make([][]time.Duration, len(order))
	for _, c := range calls {
		if !slices.EqualFunc(c, order, func(m mark, s stage) bool { return m.name == s.mark }) {
			out.Dropped++
			continue
		}
		out.N++
		var last time.Duration
		for i, m := range c {
			took[i] = append(took[i], m.at-last)
			last = m.at
		}
	}
	if out.N == 0 {
		return out
	}
	var total float64
	for i, s := range order {
		x := measure.Summarize(took[i])
		total += x.Total
		out.Rows = append(out.Rows, Share{Part: s.part, P50: x.P50, P99: x.P99, Share: x.Total})
	}
	for i := range out.Rows {
		out.Rows[i].Share = measure.Over(out.Rows[i].Share, total)
	}
	return out
}

// Table returns the parts as a table.
func (p Parts) Table() measure.Table {
	t := measure.Table{Title: fmt.Sprintf("Parts of %s, %s, %s, %d calls", p.Path, p.Program, p.Pattern, p.N), Left: 1,
		Head: []string{"part", "p50 µs", "p99 µs", "share"}}
	for _, x := range p.Rows {
		t.Rows = append(t.Rows, []string{x.Part, fmt.Sprintf("%.0f", x.P50), fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.1f %%", 100*x.Share)})
	}
	return t
}
