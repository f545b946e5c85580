package cell_test

import (
	"testing"
	"time"

	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// TestHiddenTime: a program that ignores the end of its children has the kernel reap them, and
// their time is in no rusage. Only a cgroup sees it; without one the evidence doesn't claim to
// have observed the time.
func TestHiddenTime(t *testing.T) {
	for _, tr := range []tier.Tier{tier.C, tier.B} {
		c := start(t, tr)
		s := benchSpec("/usr/bin/dash", isolate.NetworkFresh)
		if s.Tier = tr; tr == tier.B {
			s.Cwd = "/"
		}
		const work = "i=0; while [ $i -lt 400000 ]; do i=$((i+1)); done"
		used := func(script string) (time.Duration, *evidence.Evidence) {
			e, _ := shell(t, c, s, script)
			return time.Duration(e.Usage.UserNS + e.Usage.SystemNS), e
		}
		seen, _ := used("(" + work + ") & wait")
		hidden, e := used("trap '' CHLD; (" + work + "; echo) | cat >/dev/null")
		if seen < 50*time.Millisecond {
			t.Fatalf("tier %s: the work took %v: this proves nothing", tr, seen)
		}
		switch {
		case e.Usage.Basis == evidence.Observed && hidden < seen/2:
			t.Errorf("tier %s: %v observed of some %v", tr, hidden, seen)
		case e.Usage.Basis != evidence.Observed && e.Usage.Basis != evidence.Reported, (e.Cgroup.State == "enforced") != (e.Usage.Basis == evidence.Observed):
			t.Errorf("tier %s, cgroup %q: the basis is %q", tr, e.Cgroup.State, e.Usage.Basis)
		}
	}
}
