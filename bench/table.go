package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"palyra/bench/measure"
	"palyra/bench/selfbench"
)

func eachSet(r *results, f func(title string, rs []measure.Record)) {
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
		f(s.title, rs)
	}
}

func tables(r *results) []measure.Table {
	var out []measure.Table
	eachSet(r, func(title string, rs []measure.Record) { out = append(out, measure.RecordTable(title, rs)) })
	for _, p := range r.Parts {
		out = append(out, p.Table())
	}
	return append(out, others(r)...)
}

func others(r *results) []measure.Table {
	var out []measure.Table
	rate := measure.Table{Title: "Sustained", Left: 2, Head: []string{"path", "program", "at once", "s", "calls/s", "p50 µs", "p99 µs", "max µs", "processors busy %", "processor µs each"}}
	left := measure.Table{Title: "What sustained runs leave in the kernel: before→peak→after→at rest", Left: 1,
		Head: []string{"path", "at once", "netns", "slab kB", "rest s", "settled"}}
	for _, x := range r.Sustained {
		rate.Rows = append(rate.Rows, []string{x.Path, x.Program, fmt.Sprint(x.Concurrency), fmt.Sprintf("%.0f", x.Seconds),
			fmt.Sprintf("%.0f", x.PerSecond), fmt.Sprintf("%.0f", x.P50), fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.0f", x.Max),
			known(x.Busy, "%.0f", 100), known(x.CPU, "%.0f", 1)})
		l, ok := x.Load, "no"
		if l.Settled {
			ok = "yes"
		}
		left.Rows = append(left.Rows, []string{x.Path, fmt.Sprint(x.Concurrency),
			fmt.Sprintf("%d→%d→%d→%d", l.NetNSBefore, l.NetNSPeak, l.NetNSAfter, l.NetNSRest),
			fmt.Sprintf("%d→%d→%d→%d", l.SlabBefore, l.SlabPeak, l.SlabAfter, l.SlabRest), fmt.Sprintf("%.1f", l.Rest), ok})
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
	aims := measure.Table{Title: "Goals, with a gap of 8 ms unless another is named", Left: 3, Head: []string{"goal", "verdict", "measured"}}
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

// known prints x times by, and a dash if x is 0, which means unknown.
func known(x float64, format string, by float64) string {
	if x == 0 {
		return "–"
	}
	return fmt.Sprintf(format, x*by)
}

func printText(w io.Writer, r *results) {
	fmt.Fprintf(w, "%s, commit %s\n%s\n", r.Time, r.Commit, r.Machine)
	for _, t := range tables(r) {
		if len(t.Rows) > 0 {
			t.Text(w)
		}
	}
}

// printMarkdown prints the generated part of bench/README.md.
func printMarkdown(w io.Writer, r *results) {
	kind := "`make bench`"
	if r.Full {
		kind = "`make bench-full`"
	}
	fmt.Fprintf(w, "Measured %s by %s at commit %s.\n\n%s.\n", r.Time, kind, r.Commit, r.Machine)
	for _, t := range append(wide(r), others(r)...) {
		if len(t.Rows) > 0 {
			t.Markdown(w)
		}
	}
}

// wide returns the tables of records and parts with a row for each path and part, and a column
// for each arrival and kind of call.
func wide(r *results) []measure.Table {
	var out []measure.Table
	eachSet(r, func(title string, rs []measure.Record) {
		t := measure.Table{Title: title + ": p50 µs (× floor)", Left: 2, Head: []string{"program", "path"}}
		for _, p := range measure.Patterns() {
			t.Head = append(t.Head, p.Name)
		}
		t.Head = append(t.Head, measure.Gap8ms+": p99 µs", "bwrap ÷ this")
		for _, x := range rs {
			i := slices.IndexFunc(t.Rows, func(row []string) bool { return row[0] == x.Program && row[1] == x.Path })
			if i < 0 {
				i = len(t.Rows)
				t.Rows = append(t.Rows, []string{x.Program, x.Path, "–", "–", "–", "–", "–"})
			}
			row := t.Rows[i]
			row[slices.Index(t.Head, x.Pattern)] = fmt.Sprintf("%.0f (%.2f)", x.P50, x.Ratio)
			if x.Pattern == measure.Gap8ms {
				row[5] = fmt.Sprintf("%.0f", x.P99)
				if x.Bwrap > 0 {
					row[6] = fmt.Sprintf("%.2f", x.Bwrap)
				}
			}
		}
		out = append(out, t)
	})
	if len(r.Parts) == 0 {
		return out
	}
	t := measure.Table{Title: "Parts of whole calls, " + r.Parts[0].Pattern + ": p50 µs (share of all calls' time in %)", Left: 1, Head: []string{"part"}}
	for i, p := range r.Parts {
		t.Head = append(t.Head, fmt.Sprintf("%s, %s, %d calls", strings.TrimPrefix(p.Path, "whole call, "), p.Program, p.N))
		for _, x := range p.Rows {
			j := slices.IndexFunc(t.Rows, func(row []string) bool { return row[0] == x.Part })
			if j < 0 {
				j = len(t.Rows)
				t.Rows = append(t.Rows, append([]string{x.Part}, slices.Repeat([]string{"–"}, len(r.Parts))...))
			}
			t.Rows[j][i+1] = fmt.Sprintf("%.0f (%.1f)", x.P50, 100*x.Share)
		}
	}
	t.Rows = slices.DeleteFunc(t.Rows, func(row []string) bool {
		return !slices.ContainsFunc(row[1:], func(cell string) bool { return cell != "0 (0.0)" })
	})
	return append(out, t)
}

// The marks around the generated part.
const (
	markBegin = "<!-- measured: written by go run ./bench -document from baseline.json -->"
	markDone  = "<!-- /measured -->"
)

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
