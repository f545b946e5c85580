package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The committed run met today's expectations.
func TestRecorded(t *testing.T) {
	b, err := os.ReadFile("recorded.json")
	if err != nil {
		t.Fatal(err)
	}
	var s summary
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatal(err)
	}
	now, err := expectDigest("expect")
	if err != nil {
		t.Fatal(err)
	}
	if s.Expect != now {
		t.Error("recorded.json is of other expectations: make lab, then go run ./conformance/lab -summarize conformance/results/lab.json")
	}
	if len(s.Machines) != len(machines)+1 {
		t.Errorf("%d machines", len(s.Machines))
	}
	for _, m := range s.Machines {
		if m.Failed > 0 || m.Run == 0 || m.Passed+m.Unsure != m.Run || len(m.Proofs) != m.Unsure {
			t.Errorf("%+v", m)
		}
	}
}

// A run that is no whole one, or in which something failed, is not summed up.
func TestSummarize(t *testing.T) {
	whole := report{Version: 1, Machines: []played{{Machine: "archive", Verdict: "ok", Run: 1, Passed: 1}}}
	for _, m := range machines {
		whole.Machines = append(whole.Machines, played{Machine: m.name, Verdict: "ok", Run: 2, Passed: 1, Unsure: 1,
			Checks: []record{{Check: "a", Verdict: "passed"}, {Check: "b", Verdict: "inconclusive", Reason: "no control"}}})
	}
	try := func(change func(*report)) (*summary, error) {
		r := whole
		r.Machines = append([]played(nil), whole.Machines...)
		change(&r)
		b, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		from := filepath.Join(t.TempDir(), "lab.json")
		if err := os.WriteFile(from, b, 0o644); err != nil {
			t.Fatal(err)
		}
		return summarize([]string{from}, "expect")
	}
	s, err := try(func(*report) {})
	if err != nil || len(s.Machines) != len(machines)+1 || len(s.Machines[1].Proofs) != 1 || !strings.HasPrefix(s.Expect, "sha256:") {
		t.Fatalf("%+v, %v", s, err)
	}
	for name, change := range map[string]func(*report){
		"a machine less":      func(r *report) { r.Machines = r.Machines[1:] },
		"one that failed":     func(r *report) { r.Machines[1].Verdict = "fail" },
		"one not checked":     func(r *report) { r.Machines[1].Verdict = "not checked" },
		"a failed check":      func(r *report) { r.Machines[2].Failed = 1 },
		"a check not run":     func(r *report) { r.Machines[2].Missing = []string{"c"} },
		"nothing was checked": func(r *report) { r.Machines[0].Run = 0 },
	} {
		if s, err := try(change); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
