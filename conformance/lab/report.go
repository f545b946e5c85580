package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// report is the output of a run of the lab for other programs; README.md has its form.
type report struct {
	Version  int      `json:"version"` // 1
	Machines []played `json:"machines"`
}

// played is one machine and its results.
type played struct {
	Machine string `json:"machine"`
	Suite   string `json:"suite"`
	Arch    string `json:"arch"`
	Package string `json:"package"`         // of the kernel, with its version
	Kernel  string `json:"kernel"`          // what it says of itself
	Init    string `json:"init"`            // "lab" or "systemd"
	Verdict string `json:"verdict"`         // "ok", "fail" or "not checked"
	Error   string `json:"error,omitempty"` // why it failed or was not checked
	// Boot is the time until it was up; under systemd, until the first check.
	Boot    float64  `json:"boot_seconds"`
	Seconds float64  `json:"machine_seconds"`   // from its start to its end
	Run     int      `json:"run"`               // checks
	Passed  int      `json:"passed"`            // of these, as expected
	Unsure  int      `json:"inconclusive"`      // as expected, but a part of it proved nothing
	Failed  int      `json:"failed"`            // otherwise than expected, or missing
	Checks  []record `json:"checks"`            // in the order in which they ran
	Missing []string `json:"missing,omitempty"` // expected, and did not run
}

// record is one check.
type record struct {
	Check   string  `json:"check"`
	User    string  `json:"user,omitempty"` // "root" or "unprivileged", where it is played by both
	Verdict string  `json:"verdict"`        // "passed", "inconclusive" or "failed"
	Got     string  `json:"got"`
	Want    string  `json:"want,omitempty"`   // where it differs
	Reason  string  `json:"reason,omitempty"` // of what is inconclusive
	Seconds float64 `json:"seconds"`
}

// count makes records of results.
func (p *played) count(got []result, want map[string]string) {
	seen := make(map[string]bool)
	for _, r := range got {
		seen[r.Check] = true
		rec := record{Check: r.Check, Verdict: "passed", Got: r.Got, Reason: unsure(r)}
		took, _, _ := strings.Cut(r.Note, " s")
		rec.Seconds, _ = strconv.ParseFloat(took, 64) // not there: 0
		switch r.Check[strings.LastIndex(r.Check, "/")+1:] {
		case "root":
			rec.User = "root"
		case "user":
			rec.User = "unprivileged"
		}
		if r.Check == "facts/kernel" {
			p.Kernel = r.Got
		}
		p.Run++
		w, known := want[r.Check]
		switch {
		case strings.HasPrefix(r.Got, "failed: ") || w != r.Got && !strings.HasPrefix(r.Check, "battery/") || !known && !strings.HasPrefix(r.Check, "battery/"):
			rec.Verdict, rec.Want = "failed", w
			p.Failed++
		case rec.Reason != "":
			rec.Verdict = "inconclusive"
			p.Unsure++
		default:
			p.Passed++
		}
		p.Checks = append(p.Checks, rec)
	}
	for _, c := range sorted(want) {
		if !seen[c] {
			p.Missing = append(p.Missing, c)
		}
	}
}

// unsure lists the parts of a check that proved nothing: skipped tests, and cases of the
// battery whose control didn't succeed.
func unsure(r result) string {
	if _, what, ok := strings.Cut(r.Got, "; inconclusive: "); ok && what != "" {
		return what
	}
	if _, what, ok := strings.Cut(r.Got, "ok, "); ok {
		if _, why, ok := strings.Cut(r.Note, "; "); ok {
			return what + ": " + why
		}
		return what
	}
	return ""
}

// print tells a person of a machine: in all, by user, and what is inconclusive.
func (p *played) print() {
	if p.Verdict == "not checked" {
		fmt.Printf("%-18s NOT CHECKED: the archive cannot be reached: %s\n", p.Machine, p.Error)
		return
	}
	fmt.Printf("%-18s %-4s %3d run, %3d passed, %d inconclusive, %d failed; first word after %.0f s, booted for %.0f s\n", p.Machine, p.Verdict, p.Run, p.Passed,
		p.Unsure, p.Failed, p.Boot, p.Seconds)
	for _, user := range []string{"root", "unprivileged"} {
		n := make(map[string]int)
		for _, c := range p.Checks {
			if c.User == user {
				n[c.Verdict]++
			}
		}
		if len(n) > 0 {
			fmt.Printf("    as %-14s %3d passed, %d inconclusive, %d failed\n", user, n["passed"], n["inconclusive"], n["failed"])
		}
	}
	for _, c := range p.Checks {
		if c.Verdict == "inconclusive" {
			fmt.Printf("    inconclusive       %s: %s\n", c.Check, c.Reason)
		}
	}
}

// print adds all machines up.
func (r *report) print() {
	var n played
	ok := 0
	for _, p := range r.Machines {
		n.Run, n.Passed, n.Unsure, n.Failed = n.Run+p.Run, n.Passed+p.Passed, n.Unsure+p.Unsure, n.Failed+p.Failed
		n.Missing = append(n.Missing, p.Missing...)
		if p.Verdict == "ok" {
			ok++
		}
	}
	fmt.Printf("%d run, %d passed, %d inconclusive, %d failed, %d missing; %d of %d machines ok\n", n.Run, n.Passed, n.Unsure, n.Failed, len(n.Missing), ok, len(r.Machines))
}

// write puts the records beside those of the battery.
func (r *report) write(file string) error {
	b, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o644)
}
