package main

import (
	"fmt"
	"io"

	"palyra/bench/measure"
)

// noise is the rise of a ratio that doesn't count as slower. A rise must also leave the bounds
// of the medians.
const noise = 0.15

// fewest is the number of samples on either side below which a path isn't judged.
const fewest = 20

type finding struct {
	Was, Is measure.Record
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %s, %s, %s: %.2f × the floor, was %.2f (%+.0f %%)", f.Is.Set, f.Is.Path, f.Is.Program, f.Is.Pattern,
		f.Is.Ratio, f.Was.Ratio, 100*(f.Is.Ratio/f.Was.Ratio-1))
}

type comparison struct {
	Slower, Faster []finding
	Same           int
	Unjudged       []string // in one run only, or too few samples
}

// compare judges by the ratio to the floor of the same run, so that a slower or faster day of
// the machine cancels out.
func compare(was, is *results) comparison {
	var c comparison
	for _, x := range is.Records {
		name := fmt.Sprintf("%s: %s, %s, %s", x.Set, x.Path, x.Program, x.Pattern)
		old := was.find(x.Set, x.Path, x.Program, x.Pattern)
		switch {
		case x.Path == pathFloor:
		case old == nil || old.Ratio == 0 || x.Ratio == 0:
			c.Unjudged = append(c.Unjudged, name+": not in the baseline")
		case min(old.N, x.N) < fewest:
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("%s: %d and %d samples, at least %d wanted", name, old.N, x.N, fewest))
		case x.Ratio > old.Ratio*(1+noise) && x.RatioLow > old.RatioHigh:
			c.Slower = append(c.Slower, finding{*old, x})
		case x.Ratio < old.Ratio/(1+noise) && x.RatioHigh < old.RatioLow:
			c.Faster = append(c.Faster, finding{*old, x})
		default:
			c.Same++
		}
	}
	for _, x := range was.Records {
		if is.find(x.Set, x.Path, x.Program, x.Pattern) == nil {
			c.Unjudged = append(c.Unjudged, fmt.Sprintf("%s: %s, %s, %s: not measured this time", x.Set, x.Path, x.Program, x.Pattern))
		}
	}
	return c
}

func (c comparison) print(w io.Writer, was, is *results) {
	fmt.Fprintf(w, "%s (%s) against the baseline %s (%s)\n", is.Commit, is.Time, was.Commit, was.Time)
	if a, b := was.Machine, is.Machine; a.CPU != b.CPU || a.CPUs != b.CPUs || a.Kernel != b.Kernel || a.UID != b.UID || a.StateFS != b.StateFS {
		fmt.Fprintf(w, "another machine: ratios travel badly between machines\n  baseline: %s\n  this run: %s\n", a, b)
	}
	for _, l := range []struct {
		what string
		fs   []finding
	}{{"slower", c.Slower}, {"faster", c.Faster}} {
		for _, f := range l.fs {
			fmt.Fprintf(w, "%s  %s\n", l.what, f)
		}
	}
	for _, u := range c.Unjudged {
		fmt.Fprintln(w, "unjudged", u)
	}
	fmt.Fprintf(w, "%d slower, %d faster, %d within %.0f %% or the bounds of their medians, %d unjudged\n",
		len(c.Slower), len(c.Faster), c.Same, 100*noise, len(c.Unjudged))
}
