package main

import (
	"fmt"
	"io"

	"palyra/internal/measure"
)

// noise is how much a ratio may rise before it is called slower. It must also
// leave the bounds within which the medians are known.
const noise = 0.15

// fewest is the number of samples on either side below which nothing is said.
const fewest = 20

// finding is a path whose ratio to the floor of its own run has changed.
type finding struct {
	Was, Is measure.Record
}

func (f finding) String() string {
	return fmt.Sprintf("%s: %s, %s, %s: %.2f × the floor, was %.2f (%+.0f %%)", f.Is.Set, f.Is.Path, f.Is.Program, f.Is.Pattern,
		f.Is.Ratio, f.Was.Ratio, 100*(f.Is.Ratio/f.Was.Ratio-1))
}

// comparison is two runs beside each other.
type comparison struct {
	Slower, Faster []finding
	Same           int
	Unjudged       []string // in one run only, or too few samples
}

// compare judges by the ratio to the floor measured in the same run, so that the
// two runs may have had different days.
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
