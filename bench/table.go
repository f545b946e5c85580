package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// table is rows of text. Columns from left on are numbers and set to the right.
type table struct {
	title string
	head  []string
	left  int // how many columns are words
	rows  [][]string
}

// text prints t with aligned columns.
func (t table) text(w io.Writer) {
	width := make([]int, len(t.head))
	for _, r := range append([][]string{t.head}, t.rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	fmt.Fprintf(w, "\n%s\n", t.title)
	for _, r := range append([][]string{t.head}, t.rows...) {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i < t.left {
				b.WriteString(c + pad + "  ")
			} else {
				b.WriteString(pad + c + "  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// markdown prints t for bench/README.md.
func (t table) markdown(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n| %s |\n|", t.title, strings.Join(t.head, " | "))
	for i := range t.head {
		if i < t.left {
			io.WriteString(w, "---|")
		} else {
			io.WriteString(w, "--:|")
		}
	}
	io.WriteString(w, "\n")
	for _, r := range t.rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, " | "))
	}
}

// tables is everything that was measured.
func tables(r *results) []table {
	var out []table
	for _, s := range []struct{ name, title string }{
		{setCells, "Cells: palyra-cell runs already, the grant is minted"},
		{setCall, "Whole call: decide, seal, intent, run, evidence, sign, result, proof"},
		{setOneShot, "One-shot, from nothing to the end of the process"},
	} {
		t := table{title: s.title, left: 3, head: []string{"program", "arrival", "path", "n", "p50 µs", "p99 µs", "× floor", "bwrap ÷ this"}}
		for _, x := range r.Records {
			if x.Set != s.name {
				continue
			}
			bwrap := "–"
			if x.Bwrap > 0 {
				bwrap = fmt.Sprintf("%.2f", x.Bwrap)
			}
			t.rows = append(t.rows, []string{x.Program, x.Pattern, x.Path, fmt.Sprint(x.N), fmt.Sprintf("%.0f", x.P50),
				fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.2f", x.Ratio), bwrap})
		}
		out = append(out, t)
	}
	for _, p := range r.Parts {
		t := table{title: fmt.Sprintf("Parts of %s, %s, %s, %d calls", p.Path, p.Program, p.Pattern, p.N), left: 1,
			head: []string{"part", "p50 µs", "p99 µs", "share"}}
		for _, x := range p.Rows {
			t.rows = append(t.rows, []string{x.Part, fmt.Sprintf("%.0f", x.P50), fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.1f %%", 100*x.Share)})
		}
		out = append(out, t)
	}
	rate := table{title: "Sustained", left: 2, head: []string{"path", "program", "at once", "s", "calls/s", "p50 µs", "p99 µs", "max µs"}}
	left := table{title: "What sustained runs leave in the kernel", left: 1, head: []string{"path", "at once", "netns before", "peak", "after", "at rest",
		"slab before kB", "peak", "after", "at rest", "rest s", "settled"}}
	for _, x := range r.Sustained {
		rate.rows = append(rate.rows, []string{x.Path, x.Program, fmt.Sprint(x.Concurrency), fmt.Sprintf("%.0f", x.Seconds),
			fmt.Sprintf("%.0f", x.PerSecond), fmt.Sprintf("%.0f", x.P50), fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.0f", x.Max)})
		l, ok := x.Load, "no"
		if l.Settled {
			ok = "yes"
		}
		left.rows = append(left.rows, []string{x.Path, fmt.Sprint(x.Concurrency), fmt.Sprint(l.NetNSBefore), fmt.Sprint(l.NetNSPeak),
			fmt.Sprint(l.NetNSAfter), fmt.Sprint(l.NetNSRest), fmt.Sprint(l.SlabBefore), fmt.Sprint(l.SlabPeak), fmt.Sprint(l.SlabAfter),
			fmt.Sprint(l.SlabRest), fmt.Sprintf("%.1f", l.Rest), ok})
	}
	aims := table{title: "Goals", left: 3, head: []string{"goal", "verdict", "measured"}}
	for _, v := range judge(r) {
		aims.rows = append(aims.rows, []string{v.Goal, v.Verdict, v.Value})
	}
	out = append(out, rate, left, aims)
	if len(r.Absent) > 0 {
		t := table{title: "Not measured", left: 3, head: []string{"path", "program", "why"}}
		for _, a := range r.Absent {
			t.rows = append(t.rows, []string{a.Path, a.Program, a.Why})
		}
		out = append(out, t)
	}
	return out
}

// printText is what a run prints.
func printText(w io.Writer, r *results) {
	fmt.Fprintf(w, "%s, commit %s\n%s\n", r.Time, r.Commit, r.Machine)
	for _, t := range tables(r) {
		if len(t.rows) > 0 {
			t.text(w)
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
		if len(t.rows) > 0 {
			t.markdown(w)
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
