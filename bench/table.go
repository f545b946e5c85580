package main

import (
	"fmt"
	"io"
	"strings"

	"palyra/internal/measure"
	"palyra/kernel/selfbench"
)

// tables is everything that was measured.
func tables(r *results) []measure.Table {
	var out []measure.Table
	for _, s := range []struct{ name, title string }{
		{setCells, selfbench.TitleCells},
		{setCall, selfbench.TitleCalls},
		{setOneShot, "One-shot, from nothing to the end of the process"},
	} {
		var rs []measure.Record
		for _, x := range r.Records {
			if x.Set == s.name {
				rs = append(rs, x)
			}
		}
		out = append(out, measure.RecordTable(s.title, rs))
	}
	for _, p := range r.Parts {
		out = append(out, p.Table())
	}
	rate := measure.Table{Title: "Sustained", Left: 2, Head: []string{"path", "program", "at once", "s", "calls/s", "p50 µs", "p99 µs", "max µs", "processors busy", "processor µs each"}}
	left := measure.Table{Title: "What sustained runs leave in the kernel", Left: 1, Head: []string{"path", "at once", "netns before", "peak", "after", "at rest",
		"slab before kB", "peak", "after", "at rest", "rest s", "settled"}}
	for _, x := range r.Sustained {
		rate.Rows = append(rate.Rows, []string{x.Path, x.Program, fmt.Sprint(x.Concurrency), fmt.Sprintf("%.0f", x.Seconds),
			fmt.Sprintf("%.0f", x.PerSecond), fmt.Sprintf("%.0f", x.P50), fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.0f", x.Max),
			known(x.Busy, "%.0f %%", 100), known(x.CPU, "%.0f", 1)})
		l, ok := x.Load, "no"
		if l.Settled {
			ok = "yes"
		}
		left.Rows = append(left.Rows, []string{x.Path, fmt.Sprint(x.Concurrency), fmt.Sprint(l.NetNSBefore), fmt.Sprint(l.NetNSPeak),
			fmt.Sprint(l.NetNSAfter), fmt.Sprint(l.NetNSRest), fmt.Sprint(l.SlabBefore), fmt.Sprint(l.SlabPeak), fmt.Sprint(l.SlabAfter),
			fmt.Sprint(l.SlabRest), fmt.Sprintf("%.1f", l.Rest), ok})
	}
	group := measure.Table{Title: "Wait for a group of the journal", Left: 2, Head: []string{"path", "program", "at once", "entries", "p50 µs", "p99 µs", "max µs"}}
	for _, x := range r.Sustained {
		if g := x.Group; g != nil {
			group.Rows = append(group.Rows, []string{x.Path, x.Program, fmt.Sprint(x.Concurrency), fmt.Sprint(g.N),
				fmt.Sprintf("%.0f", g.P50), fmt.Sprintf("%.0f", g.P99), fmt.Sprintf("%.0f", g.Max)})
		}
	}
	memory := measure.Table{Title: "Memory of cells that wait", Left: 1, Head: []string{"kind", "cells", "KiB each", "slab", "stacks and page tables", "other"}}
	for _, x := range r.Waiting {
		per := func(kb int64) string { return fmt.Sprintf("%.1f", measure.Over(float64(kb), float64(x.Cells))) }
		memory.Rows = append(memory.Rows, []string{x.Kind, fmt.Sprint(x.Cells), fmt.Sprintf("%.1f", x.Each), per(x.Slab), per(x.Stacks), per(x.Other)})
	}
	aims := measure.Table{Title: "Goals", Left: 3, Head: []string{"goal", "verdict", "measured"}}
	for _, v := range judge(r) {
		aims.Rows = append(aims.Rows, []string{v.Goal, v.Verdict, v.Value})
	}
	out = append(out, rate, left)
	if len(group.Rows) > 0 {
		out = append(out, group)
	}
	out = append(out, memory, aims)
	if len(r.Absent) > 0 {
		t := measure.Table{Title: "Not measured", Left: 3, Head: []string{"path", "program", "why"}}
		for _, a := range r.Absent {
			t.Rows = append(t.Rows, []string{a.Path, a.Program, a.Why})
		}
		out = append(out, t)
	}
	return out
}

// known is x times by, unless x is 0, which says that nobody could tell.
func known(x float64, format string, by float64) string {
	if x == 0 {
		return "–"
	}
	return fmt.Sprintf(format, x*by)
}

// printText is what a run prints.
func printText(w io.Writer, r *results) {
	fmt.Fprintf(w, "%s, commit %s\n%s\n", r.Time, r.Commit, r.Machine)
	for _, t := range tables(r) {
		if len(t.Rows) > 0 {
			t.Text(w)
		}
	}
}

// printMarkdown is the generated part of bench/README.md.
func printMarkdown(w io.Writer, r *results) {
	kind := "`make bench`"
	if r.Full {
		kind = "`make bench-full`"
	}
	fmt.Fprintf(w, "Measured %s by %s at commit %s.\n\n%s.\n", r.Time, kind, r.Commit, r.Machine)
	for _, t := range tables(r) {
		if len(t.Rows) > 0 {
			t.Markdown(w)
		}
	}
}

// The marks around the generated part.
const (
	markBegin = "<!-- measured: written by go run ./bench -document from baseline.json -->"
	markDone  = "<!-- /measured -->"
)

// document puts the tables of r between the marks of a README.
func document(readme string, r *results) (string, error) {
	head, rest, ok := strings.Cut(readme, markBegin)
	_, tail, ok2 := strings.Cut(rest, markDone)
	if !ok || !ok2 {
		return "", fmt.Errorf("write README: no marks %q and %q in it", markBegin, markDone)
	}
	var b strings.Builder
	printMarkdown(&b, r)
	return head + markBegin + "\n" + b.String() + "\n" + markDone + tail, nil
}
