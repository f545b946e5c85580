// Package selfbench measures the cost of a confined call on this host beside an unconfined one.
//
// A [Lab] makes the paths with Palyra, programs in cells of each kind and whole calls through a
// kernel, and the paths to compare them with: fork and exec of the same program, two flushes,
// and bwrap if it's installed. palyra/bench/measure takes the turns and judges the times. The
// programs are /bin/true and one that only exits, which is made here.
//
// Every call of a cell is checked: it ended with status 0, and its evidence shows the tier, the
// kind of cell and the kind of network that the path is named after. A fast refusal isn't a
// fast call, and a call that found the pool empty doesn't count.
//
//	report, err := selfbench.Run(ctx, selfbench.Options{Cell: "/usr/libexec/palyra/palyra-cell", N: 100})
//
// It doesn't show programs that do real work, other machines, or the cost of larger policies
// and workspaces.
package selfbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"palyra/bench/measure"
)

// The names of paths in records.
const (
	Floor      = "fork+exec"
	CellC      = "cell, tier c"
	CellB      = "cell, tier b"
	CellPooled = "cell, tier c, pooled netns"
	CellVoid   = "cell, tier c, void netns"
	CellWarm   = "cell, tier c, warm"
	Call       = "whole call, tier c"
	CallWarm   = "whole call, tier c, warm"
	Fsync      = "append + fsync, twice"
)

// The names of sets. Paths of one set take turns.
const (
	Cells = "cells"
	Calls = "call"
)

// The names of programs.
const (
	Noop = "noop"
	True = "/bin/true"
)

// Options are the options of Run.
type Options struct {
	Cell string // path of palyra-cell
	N    int    // samples of each path with each program and arrival; default 50
	// Arrivals are names of measure.Patterns. Default: burst and 8 ms.
	Arrivals []string
	// Progress is called before each part; may be nil.
	Progress func(text string)
}

// Report is the result of Run. It serialises; field names are those of bench's files.
type Report struct {
	Version int              `json:"version"` // 1
	Time    string           `json:"time"`    // RFC 3339
	Machine measure.Machine  `json:"machine"`
	Records []measure.Record `json:"records"`
	Parts   []Parts          `json:"parts"`
	Absent  []measure.Absent `json:"absent"`
}

// Run measures all sets with all programs.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if o.N == 0 {
		o.N = 50
	}
	if o.N < 0 {
		return nil, fmt.Errorf("measure %d samples: want a positive number", o.N)
	}
	if len(o.Arrivals) == 0 {
		o.Arrivals = []string{measure.Burst, measure.Gap8ms}
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	l, err := New(o.Cell)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	r := &Report{Version: 1, Time: time.Now().UTC().Format(time.RFC3339), Machine: measure.ReadMachine(l.dir),
		Records: []measure.Record{}, Parts: []Parts{}}
	for _, program := range l.Programs() {
		for _, set := range []string{Cells, Calls} {
			if err := r.set(ctx, l, &o, set, program); err != nil {
				return nil, err
			}
		}
	}
	r.Absent = append([]measure.Absent{}, l.Absent...)
	r.Machine.Cell, r.Machine.Tools, r.Machine.LoadEnd = l.InForce(), l.Tools, measure.LoadAverage()
	return r, nil
}

func (r *Report) set(ctx context.Context, l *Lab, o *Options, name, program string) (err error) {
	s, err := l.Set(name, program)
	if err != nil {
		return err
	}
	defer func() {
		if cerr := measure.Close(s.Paths); err == nil {
			err = cerr
		}
	}()
	if err := s.WarmUp(); err != nil {
		return err
	}
	for i := range s.Paths { // a set takes minutes: ctx ends it after the current call
		once := s.Paths[i].Once
		s.Paths[i].Once = func() (time.Duration, error) {
			if err := context.Cause(ctx); err != nil {
				return 0, err
			}
			return once()
		}
	}
	for _, p := range measure.Patterns() {
		for _, want := range o.Arrivals {
			if p.Name != want {
				continue
			}
			o.Progress(fmt.Sprintf("%s, %s, %s: %d of each of %d paths", name, program, p.Name, o.N, len(s.Paths)))
			s.Forget()
			took, err := measure.Interleave(s.Paths, p, o.N)
			if err != nil {
				return err
			}
			r.Records = append(r.Records, measure.Records(name, program, p.Name, measure.Names(s.Paths), took)...)
			if p.Name == measure.Gap8ms {
				r.Parts = append(r.Parts, s.Parts(program, p.Name)...)
			}
		}
	}
	return nil
}

// Set is paths that take turns. Paths[0] is the floor.
type Set struct {
	Paths []measure.Path

	recorders map[string]*recorder // of whole calls, by path
}

// WarmUp calls every path a few times, for caches, keys, the journal, and the pool, which makes
// nothing before it has seen a call.
func (s *Set) WarmUp() error {
	for _, p := range s.Paths {
		for range 3 {
			if _, err := p.Once(); err != nil && !errors.Is(err, measure.ErrUnfit) {
				return fmt.Errorf("measure %s: %w", p.Name, err)
			}
		}
	}
	return nil
}

// Forget drops the recorded calls.
func (s *Set) Forget() {
	for _, r := range s.recorders {
		r.take("", "", "")
	}
}

// Parts returns the parts of the whole calls since Forget.
func (s *Set) Parts(program, pattern string) []Parts {
	var out []Parts
	for _, p := range s.Paths {
		if r := s.recorders[p.Name]; r != nil {
			if t := r.take(p.Name, program, pattern); t.N > 0 {
				out = append(out, t)
			}
		}
	}
	return out
}

// Stop ends recording, because the marks of concurrent calls can't be told apart.
func (s *Set) Stop() {
	for _, r := range s.recorders {
		r.stop()
	}
}

// WriteText prints a report as tables.
func (r *Report) WriteText(w io.Writer) {
	fmt.Fprintf(w, "%s\n", r.Machine)
	for _, t := range r.tables() {
		t.Text(w)
	}
}

func (r *Report) tables() []measure.Table {
	var out []measure.Table
	for _, s := range []struct{ name, title string }{{Cells, TitleCells}, {Calls, TitleCalls}} {
		var rs []measure.Record
		for _, x := range r.Records {
			if x.Set == s.name {
				rs = append(rs, x)
			}
		}
		if len(rs) > 0 {
			out = append(out, measure.RecordTable(s.title, rs))
		}
	}
	for _, p := range r.Parts {
		out = append(out, p.Table())
	}
	if len(r.Absent) > 0 {
		t := measure.Table{Title: "Not measured", Left: 3, Head: []string{"path", "program", "why"}}
		for _, a := range r.Absent {
			t.Rows = append(t.Rows, []string{a.Path, a.Program, a.Why})
		}
		out = append(out, t)
	}
	return out
}

// The titles of the tables of records.
const (
	TitleCells = "Cells: palyra-cell runs already, the grant is minted"
	TitleCalls = "Whole call: decide, seal, intent, run, evidence, sign, result, proof"
)

// JSON returns the report as one indented document.
func (r *Report) JSON() ([]byte, error) { return json.MarshalIndent(r, "", "  ") }
