package call

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// TestInputsOnlyGrow: whatever is joined in whatever order, no origin goes and no entry changes,
// and the result is sorted and has each origin once.
func TestInputsOnlyGrow(t *testing.T) {
	all := Origins()
	if !slices.IsSorted(all) || len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Fatalf("origins %q", all)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var in Inputs
		first := make(map[string]Input)
		for step := range 12 {
			var more []Input
			for range r.IntN(4) {
				more = append(more, Input{Origin: all[r.IntN(len(all))], Tool: "t", Step: step*10 + len(more)})
			}
			was := slices.Clone(in)
			got := in.Join(more...)
			if !slices.Equal(in, was) {
				t.Fatalf("join changed %v, which was %v", in, was)
			}
			for _, m := range more {
				if _, ok := first[m.Origin]; !ok {
					first[m.Origin] = m
				}
			}
			in = got
			names := in.Origins()
			if !slices.IsSorted(names) || len(names) != len(first) || !in.Has(was.Origins()...) {
				t.Fatalf("%q after %q and %v", names, was.Origins(), more)
			}
			for _, e := range in {
				if e != first[e.Origin] {
					t.Fatalf("entry %v, which was %v", e, first[e.Origin])
				}
			}
			if Untrusted(names) != (len(in.Outside()) > 0) || Untrusted(was.Origins()) && !Untrusted(names) {
				t.Fatalf("untrusted by %q, after %q", names, was.Origins())
			}
		}
	}
}

func TestUntrusted(t *testing.T) {
	for _, o := range Origins() {
		want := o == OriginTool || o == OriginWeb
		if got := Untrusted([]string{OriginModel, o}); got != want {
			t.Errorf("%s: got %v, want %v", o, got, want)
		}
	}
	if Untrusted(nil) {
		t.Error("nothing is untrusted")
	}
}
