package certify

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/isolate/certify"
)

func TestVerdict(t *testing.T) {
	claim := &certify.Claim{Name: "x", Stopped: []string{"EPERM", certify.Other}, ABI: 4}
	for _, c := range []struct {
		name            string
		control, inside string
		abi             int
		want            Verdict
		reason          string
	}{
		{"stopped", certify.Open, "EPERM", 7, Proven, ""},
		{"stopped without an errno", certify.Open, certify.Other, 4, Proven, ""},
		{"it succeeds", certify.Open, certify.Open, 7, Refuted, ""},
		{"it succeeds in both, control or not", "EPERM", certify.Open, 7, Refuted, ""},
		{"stopped outside, too", "EPERM", "EPERM", 7, Inconclusive, "outside it is stopped"},
		{"the control could not be made", certify.Untold, "EPERM", 7, Inconclusive, "outside it is stopped"},
		{"stopped by luck", certify.Open, "ENOMEM", 7, Inconclusive, "proves nothing"},
		{"not made", certify.Open, certify.Untold, 7, Inconclusive, "proves nothing"},
		{"no answer", certify.Open, "", 7, Inconclusive, "proves nothing"},
		{"an older kernel", certify.Open, "EPERM", 3, Absent, "Landlock ABI 3"},
		{"an older kernel, and it succeeds", certify.Open, certify.Open, 3, Absent, "Landlock ABI 3"},
		{"set outside, too, where another outcome is wanted", certify.Set, certify.Set, 7, Inconclusive, "outside it is stopped"},
	} {
		got := verdict(claim, certify.Result{Outcome: c.control}, certify.Result{Outcome: c.inside}, c.abi)
		if got.Verdict != c.want || !strings.Contains(got.Reason, c.reason) {
			t.Errorf("%s: %v, %q; want %v, %q", c.name, got.Verdict, got.Reason, c.want, c.reason)
		}
	}
}

// TestInherited: what the kernel says of a process that nothing takes back is so
// in every cell; what stops an attempt outside in any other way proves nothing.
func TestInherited(t *testing.T) {
	claim := &certify.Claim{Name: "x", Stopped: []string{certify.Set}}
	for _, c := range []struct {
		control, inside string
		want            Verdict
	}{
		{certify.Open, certify.Set, Proven}, {certify.Set, certify.Set, Inherited}, {certify.Set, certify.Open, Refuted}, {certify.Open, certify.Open, Refuted},
		{certify.Untold, certify.Set, Inconclusive}, {"EPERM", certify.Set, Inconclusive}, {certify.Set, certify.Untold, Inconclusive},
	} {
		if got := verdict(claim, certify.Result{Outcome: c.control}, certify.Result{Outcome: c.inside}, 7); got.Verdict != c.want {
			t.Errorf("outside %s, inside %s: %v, want %v", c.control, c.inside, got.Verdict, c.want)
		}
	}
}

// full is a report with a result for every claim in every kind.
func full(reason string) *Report {
	r := newReport()
	for _, k := range kinds() {
		x := Kind{Kind: k.name, Tier: k.tier.String(), Degraded: []string{reason}}
		for _, c := range certify.Claims() {
			if strings.Contains(c.Tiers, x.Tier) {
				x.Results = append(x.Results, Result{Claim: c.Name, Verdict: Proven, Outcome: "EPERM", Reason: reason})
			}
		}
		r.Kinds = append(r.Kinds, x)
	}
	for _, c := range certify.Claims() {
		r.Controls = append(r.Controls, Control{Claim: c.Name, Tier: "b", Outcome: certify.Open}, Control{Claim: c.Name, Tier: "c", Outcome: certify.Open})
	}
	return r
}

// TestActFits: what is signed stays within what an act may hold, whatever a host
// answers.
func TestActFits(t *testing.T) {
	ring, err := keyring.Open(filepath.Join(t.TempDir(), "state"))
	if err != nil {
		t.Fatal(err)
	}
	r := full(strings.Repeat("ü", 5000))
	for i := range r.Kinds {
		for j := range r.Kinds[i].Results {
			r.Kinds[i].Results[j].Verdict = Refuted
		}
	}
	for _, r := range []*Report{full("because"), r} {
		a := r.Act("uid:0")
		if _, err := receipt.SignAct(ring.Attestation(), receipt.Act{Version: receipt.ActVersion, Act: a.Act, Principal: a.Principal,
			Subject: a.Subject, Detail: a.Detail, Time: "2026-01-02T03:04:05Z"}); err != nil {
			t.Error(err)
		}
	}
}

func TestHolds(t *testing.T) {
	r := full("")
	if !r.Holds("b") || !r.Holds("c") || r.Tier("c") != "proven 68, refuted 0, inconclusive 0, absent 0, inherited 0" || r.Open("b") || r.Open("c") {
		t.Errorf("all proven: b %v, c %v, %q", r.Holds("b"), r.Holds("c"), r.Tier("c"))
	}
	r.Kinds[2].Results[3].Verdict = Refuted
	if !r.Holds("b") || r.Holds("c") || r.Tier("c") != "proven 67, refuted 1, inconclusive 0, absent 0, inherited 0" || r.Open("b") || !r.Open("c") {
		t.Errorf("one refuted: b %v, c %v, %q", r.Holds("b"), r.Holds("c"), r.Tier("c"))
	}
	for v, open := range map[Verdict]bool{Inconclusive: true, Absent: false, Inherited: false} {
		r = full("")
		if r.Kinds[2].Results[3].Verdict = v; r.Open("c") != open || !r.Holds("c") {
			t.Errorf("one %s: open %v, holds %v", v, r.Open("c"), r.Holds("c"))
		}
	}
	r = full("")
	for i := range r.Kinds[1:] {
		r.Kinds[1+i] = Kind{Kind: r.Kinds[1+i].Kind, Tier: "c", Refused: "no user namespace"}
	}
	if !r.Holds("b") || r.Holds("c") || !r.Open("c") || r.Tier("c") != "refused: no user namespace" {
		t.Errorf("refused: b %v, c %v, %q", r.Holds("b"), r.Holds("c"), r.Tier("c"))
	}
	r = full("")
	r.Kinds[2] = Kind{Kind: KindWarm, Tier: "c", Unmade: "no cells wait"}
	if d := r.Act("uid:0").Detail; !r.Holds("c") || r.Open("c") || r.Tier("c") != "proven 51, refuted 0, inconclusive 0, absent 0, inherited 0" || d["unmade.c.warm"] != "no cells wait" ||
		strings.Contains(d["claim.seccomp"], "warm") || d["tape.c.warm"] != "" {
		t.Errorf("no waiting cells: holds %v, open %v, %q, %q", r.Holds("c"), r.Open("c"), r.Tier("c"), d["claim.seccomp"])
	}
	if r := newReport(); r.Holds("c") || r.Holds("b") {
		t.Error("an empty report holds")
	}
}

// TestLateWords: the words of an attempt outside that has ended may be late, on a machine
// that stalls. A process that it leaves behind says them here.
func TestLateWords(t *testing.T) {
	dir := t.TempDir()
	late := filepath.Join(dir, "late")
	if err := os.WriteFile(late, []byte("#!/bin/sh\n(sleep 1.5; echo '{\"outcome\":\"OPEN\"}') &\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	x := &test{o: &Options{Cell: late}, stage: &stage{dir: dir}}
	if res := x.outside(t.Context(), &scene{socket: -1}, nil); res.Outcome != certify.Open {
		t.Errorf("%+v", res)
	}
}
