package main

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// observation has the results of one run of a probe, from the probe and from the host.
type observation struct {
	started bool   // the probe said so itself
	outcome string // of the probe: OPEN, an errno's name, a signal's, TIMEOUT, NONE
	detail  string
	exit    int  // exit status; 128+n for a signal
	hung    bool // still there at the battery's deadline
	canary  bool // the host can see whether it succeeded
	tripped bool // it did
	seen    string
	broken  error // the battery's own failure
	took    time.Duration
}

// open reports whether the attempt succeeded: by the host if it can see.
func (o *observation) open() bool {
	if o.canary {
		return o.tripped
	}
	return o.outcome == "OPEN"
}

func (o *observation) String() string {
	var b strings.Builder
	b.WriteString(o.outcome)
	if o.detail != "" {
		fmt.Fprintf(&b, " (%s)", clip(o.detail))
	}
	if o.canary {
		fmt.Fprintf(&b, ", canary tripped: %t", o.tripped)
		if o.seen != "" {
			fmt.Fprintf(&b, " (%s)", clip(o.seen))
		}
	}
	if o.exit != 0 {
		fmt.Fprintf(&b, ", exit %d", o.exit)
	}
	return b.String()
}

// clip shortens foreign text and makes it printable.
func clip(s string) string {
	if len(s) > 300 {
		s = s[:300] + "…"
	}
	q := fmt.Sprintf("%q", s)
	return q[1 : len(q)-1]
}

// The verdicts.
const (
	passed        = "passed"
	open          = "open"
	hung          = "hung"
	failed        = "failed"
	inconclusive  = "inconclusive"
	notApplicable = "not_applicable"
)

// refused is the outcome of a run that palyra declined before the program ran.
const refused = "REFUSED"

// judge compares the control outside with the attempt inside.
//
//  1. An attempt that the battery couldn't make is failed.
//  2. A control that did not succeed makes the rest inconclusive, except that
//     an attempt that succeeds inside is open whatever the control did.
//  3. Not ended in time is hung, even if nothing was reached.
//  4. A probe that never ran proves nothing: failed, except where the table
//     says that the call must be refused.
//  5. Stopped otherwise than the table says is failed: it may be luck.
func judge(control, inside *observation, accept []string) (verdict, detail string) {
	switch {
	case control.broken != nil:
		return failed, "control: " + control.broken.Error()
	case inside.broken != nil:
		return failed, "inside: " + inside.broken.Error()
	case inside.open():
		return open, "inside: " + inside.String()
	case inside.hung:
		return hung, "inside: " + inside.String()
	case !control.open():
		return inconclusive, "control: " + control.String()
	case !inside.started && !strings.HasPrefix(inside.outcome, refused):
		return failed, "the probe did not run: " + inside.String()
	case !slices.Contains(accept, inside.outcome):
		return failed, fmt.Sprintf("stopped by %s, the table has %s", inside, strings.Join(accept, " "))
	}
	return passed, inside.String()
}
