package main

import (
	"os"
	"slices"
	"testing"

	"palyra/isolate/knob"
)

// TestPage holds docs/CONFORMANCE.md to what is recorded.
func TestPage(t *testing.T) {
	want, err := conformancePage(".")
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(page)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if string(got) == want {
		return
	}
	if !*update {
		t.Fatalf("%s is not what is recorded; go test ./conformance/escape -update", page)
	}
	if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestRecorded: what is recorded is about the table of today, found nothing open,
// and the attribution tried every layer.
func TestRecorded(t *testing.T) {
	now := tableDigest(cases())
	var s summary
	ok, err := read(batteryFile, &s)
	if err != nil {
		t.Fatal(err)
	}
	if ok {
		if s.Table != now {
			t.Errorf("%s is of another table: make conformance, then go run ./conformance/escape -summarize conformance/results/latest.json", batteryFile)
		}
		for _, g := range s.Groups {
			if g.Open+g.Hung+g.Failed > 0 || g.Passed == 0 || g.Passed+g.Inconclusive != g.Run {
				t.Errorf("%s: %+v", batteryFile, g)
			}
			if n := g.Run + g.NotApplicable; n != len(cases()) {
				t.Errorf("%s: tier %s, %s, %s: %d cases of %d: it is of a part of the battery", batteryFile, g.Tier, g.Mode, g.User, n, len(cases()))
			}
		}
		for _, p := range s.Proofs {
			if p.Why == "" {
				t.Errorf("%s: case %s proved nothing, and nobody says why", batteryFile, p.Case)
			}
		}
	}
	var a attribution
	if ok, err = read(attributionFile, &a); err != nil || !ok {
		t.Fatalf("%s: %v", attributionFile, err)
	}
	if a.Table != now {
		t.Errorf("%s is of another table: go run ./conformance/escape -attribute conformance/escape/%[1]s", attributionFile)
	}
	names := knob.Names()
	slices.Sort(names)
	if !slices.Equal(a.Knobs, names) {
		t.Errorf("%s tried %v of %v", attributionFile, a.Knobs, names)
	}
	d, err := loadCritical()
	if err != nil {
		t.Fatal(err)
	}
	var together []string
	for _, x := range d.Together {
		together = append(together, x.Knobs)
	}
	slices.Sort(together)
	if !slices.Equal(a.Together, together) {
		t.Errorf("%s tried %v together, want %v", attributionFile, a.Together, together)
	}
	for _, c := range cases() {
		for _, tier := range []string{"b", "c"} {
			has := slices.ContainsFunc(a.Cases, func(x traced) bool { return x.Case == c.id() && x.Tier == tier && x.Verdict != "" })
			if want := !untraced(&c) && len(c.stopped[tier]) > 0; has != want {
				t.Errorf("%s: case %s at tier %s: %t, want %t", attributionFile, c.id(), tier, has, want)
			}
		}
	}
}
