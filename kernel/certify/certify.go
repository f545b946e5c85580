// Package certify tests the sandbox on this host, from both sides, and says what
// the test proved.
//
// For each claim of palyra/isolate/certify the package makes the same attempt once outside,
// as this user, where it must succeed, and once in a cell of each kind, where it must be
// stopped in a way that the claim names. A verdict comes from the host if the host can see
// the effect (a datagram arrived, a program outlived its time), and otherwise from the
// attempt.
//
//	report, err := certify.Run(ctx, certify.Options{Cell: "/usr/libexec/palyra/palyra-cell"})
//	index, err := k.Record(ctx, report.Act("uid:1000"))
//
// proven: the control succeeded and the attempt was stopped. refuted: it succeeded inside.
// inconclusive: the control didn't succeed, or the attempt couldn't be made, so that
// nothing follows; the reason says why. absent: this kernel is older than the mechanism,
// and nothing is claimed. inherited: the kernel says the same of the testing process and
// lets no process take it back, so it holds in every cell, whichever process set it:
// no_new_privs alone. A tier that can't be served here is refused, with the missing
// control, and claims nothing.
//
// Cells, controls and the test itself inherit this process's user, capabilities, system
// calls and cgroup. So a certificate is about palyra-cells that are started like this
// process; deploy/systemd has a unit for it that equals palyra-cell's.
//
// The package doesn't prove that other attempts fail. conformance/escape has some four
// hundred; this has one for each mechanism, and takes seconds.
package certify

import (
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"palyra/internal/canon"
	"palyra/isolate/certify"
	"palyra/isolate/knob"
	"palyra/kernel"
)

// Act is the name of the administrative act that a certificate is.
const Act = kernel.CertifyAct

// Options configure Run.
type Options struct {
	Cell     string // path of palyra-cell
	Program  string // path of the program that asks, for its digest
	Progress func(text string)
	Claims   []string // only these, by name; empty: all
	Kinds    []string // only these, of Kinds; empty: all
}

// Verdict is the conclusion from a control and an attempt. The zero Verdict is
// Inconclusive.
type Verdict string

// The verdicts; see the package comment.
const (
	Inconclusive Verdict = ""
	Proven       Verdict = "proven"
	Refuted      Verdict = "refuted"
	Absent       Verdict = "absent"
	Inherited    Verdict = "inherited"
)

// MarshalText spells Inconclusive out.
func (v Verdict) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// String returns "proven", "refuted" or "inconclusive".
func (v Verdict) String() string {
	if v == Inconclusive {
		return "inconclusive"
	}
	return string(v)
}

// The kinds of tested cells.
const (
	KindB    = "b"      // tier B
	KindCold = "c.cold" // tier C, built for the call
	KindWarm = "c.warm" // tier C, waiting ahead
	KindVoid = "c.void" // tier C, in the shared network namespace
	KindLoop = "c.loop" // tier C, with a loopback interface that is up
)

// Kinds returns the kinds of cells.
func Kinds() []string { return []string{KindB, KindCold, KindWarm, KindVoid, KindLoop} }

// Report has the findings of Run. It serialises.
type Report struct {
	BootID  string       `json:"boot_id"`
	Kernel  string       `json:"kernel"`  // uname -r
	Machine string       `json:"machine"` // uname -m
	UID     int          `json:"uid"`
	Program canon.Digest `json:"palyra"`      // SHA-256 of the program that asked
	Cell    canon.Digest `json:"palyra_cell"` // and of palyra-cell
	Build   string       `json:"test_build"`  // of isolate/knob; "" for one that may be shipped
	TookNS  int64        `json:"took_ns"`
	// Process is what the kernel says of the process that tested, whose palyra-cells
	// are started with it: "cap_eff", "cap_bnd", "no_new_privs", "seccomp", "apparmor".
	Process  map[string]string `json:"process"`
	Kinds    []Kind            `json:"kinds"`
	Controls []Control         `json:"controls"`
}

// Kind has the findings in one kind of cell.
type Kind struct {
	Kind     string   `json:"kind"`
	Tier     string   `json:"tier"`
	Refused  string   `json:"refused"` // why there are no such cells; "" if there are
	Unmade   string   `json:"unmade"`  // why no call gets such a cell here; "" if they do
	Tape     string   `json:"tape"`    // digest of the system calls that built them
	Seccomp  string   `json:"seccomp"` // digest of the filter, without its cookie
	Landlock int      `json:"landlock_abi"`
	Cgroup   string   `json:"cgroup"` // "enforced", or why there is none
	Degraded []string `json:"degradations"`
	Results  []Result `json:"results"`
}

// Control is how an attempt ended outside.
type Control struct {
	Claim   string `json:"claim"`
	Tier    string `json:"tier"` // whose attempt it is
	Outcome string `json:"outcome"`
	Detail  string `json:"detail"`
}

// Result is one claim in one kind of cell.
type Result struct {
	Claim   string  `json:"claim"`
	Verdict Verdict `json:"verdict"`
	Outcome string  `json:"outcome"` // of the attempt inside; "" if there was none
	Reason  string  `json:"reason"`
}

// Count returns how many results have a verdict.
func (k *Kind) Count(v Verdict) int {
	n := 0
	for _, r := range k.Results {
		if r.Verdict == v {
			n++
		}
	}
	return n
}

// Tier says in a line how a tier did: "proven 17, refuted 0, inconclusive 0,
// absent 0, inherited 0" over all its kinds, or "refused: " and why.
func (r *Report) Tier(t string) string {
	var n [5]int
	why, served := "not tried", false
	for i := range r.Kinds {
		k := &r.Kinds[i]
		switch {
		case k.Tier != t, k.Unmade != "":
		case k.Refused != "":
			why = k.Refused
		default:
			served = true
			for j, v := range []Verdict{Proven, Refuted, Inconclusive, Absent, Inherited} {
				n[j] += k.Count(v)
			}
		}
	}
	if !served {
		return "refused: " + why
	}
	return fmt.Sprintf("proven %d, refuted %d, inconclusive %d, absent %d, inherited %d", n[0], n[1], n[2], n[3], n[4])
}

// Open reports whether a claim about a tier is refuted or inconclusive, or the host can't
// give a kind of its cells.
func (r *Report) Open(t string) bool {
	for i := range r.Kinds {
		if k := &r.Kinds[i]; k.Tier == t && (k.Refused != "" || k.Count(Refuted)+k.Count(Inconclusive) > 0) {
			return true
		}
	}
	return false
}

// Holds reports whether the host gives cells of a tier and no claim about any of them is
// refuted.
func (r *Report) Holds(t string) bool {
	some := false
	for i := range r.Kinds {
		k := &r.Kinds[i]
		if k.Tier == t && (k.Refused != "" || k.Count(Refuted) > 0) {
			return false
		}
		some = some || k.Tier == t && k.Count(Proven) > 0
	}
	return some
}

// Act returns the report as the act that is signed and journaled. Boot id and
// time are added there.
func (r *Report) Act(principal string) kernel.Act {
	d := map[string]string{
		"kernel": r.Kernel, "machine": r.Machine, "uid": strconv.Itoa(r.UID), "palyra": r.Program.String(), "palyra-cell": r.Cell.String(),
		"tier.b": r.Tier("b"), "tier.c": r.Tier("c"), "took_ms": strconv.FormatInt(r.TookNS/1e6, 10),
	}
	if r.Build != "" {
		d["test_build"] = r.Build
	}
	claims := make(map[string][]string)
	for i := range r.Kinds {
		k := &r.Kinds[i]
		if k.Refused != "" {
			d["refused."+k.Kind] = short(k.Refused)
			continue
		}
		if k.Unmade != "" {
			d["unmade."+k.Kind] = short(k.Unmade)
			continue
		}
		d["tape."+k.Kind], d["seccomp."+k.Kind] = k.Tape, k.Seccomp
		// An act holds 64 members: what equals a cold cell's stands there once.
		for name, text := range map[string]string{"cgroup.": k.Cgroup, "degraded.": strings.Join(k.Degraded, "; ")} {
			if cold, ok := d[name+KindCold]; !ok || k.Tier != "c" || cold != short(text) {
				d[name+k.Kind] = short(text)
			}
		}
		for _, res := range k.Results {
			text := k.Kind + " " + res.Verdict.String()
			if res.Outcome != "" {
				text += " " + res.Outcome
			}
			if res.Verdict != Proven {
				text += ": " + clip(res.Reason, 200)
			}
			claims[res.Claim] = append(claims[res.Claim], text)
		}
	}
	for name, value := range r.Process {
		d["process."+name] = short(value)
	}
	for name, texts := range claims {
		d["claim."+name] = short(strings.Join(texts, "; "))
	}
	for _, c := range r.Controls {
		name := "control." + c.Claim
		text := c.Tier + " " + c.Outcome
		if d[name] != "" {
			text = d[name] + "; " + text
		}
		d[name] = short(text)
	}
	return kernel.Act{Act: Act, Principal: principal, Subject: "palyra-cell", Detail: d}
}

// short cuts a text to the length that an act takes.
func short(s string) string { return clip(s, 4000) }

func clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

// Text prints the report for people.
func (r *Report) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "linux %s %s, uid %d, boot %s\n", r.Kernel, r.Machine, r.UID, r.BootID)
	if r.Build != "" {
		fmt.Fprintf(&b, "test build %s: this proves nothing\n", r.Build)
	}
	var served []*Kind
	fmt.Fprintf(&b, "  %-18s", "claim")
	for i := range r.Kinds {
		if k := &r.Kinds[i]; k.Refused == "" && k.Unmade == "" {
			served = append(served, k)
			fmt.Fprintf(&b, "%-14s", k.Kind)
		}
	}
	b.WriteString("a program cannot\n")
	for _, c := range certify.Claims() {
		row, any := "", false
		for _, k := range served {
			cell := "-"
			if i := slices.IndexFunc(k.Results, func(x Result) bool { return x.Claim == c.Name }); i >= 0 {
				cell, any = k.Results[i].Verdict.String(), true
			}
			row += fmt.Sprintf("%-14s", cell)
		}
		if any {
			fmt.Fprintf(&b, "  %-18s%s%s\n", c.Name, row, c.Says)
		}
	}
	for i := range r.Kinds {
		k := &r.Kinds[i]
		if k.Refused != "" {
			fmt.Fprintf(&b, "  %s is refused: %s\n", k.Kind, k.Refused)
		}
		if k.Unmade != "" {
			fmt.Fprintf(&b, "  %s is not made here: %s\n", k.Kind, k.Unmade)
		}
		for _, res := range k.Results {
			if res.Verdict != Proven {
				fmt.Fprintf(&b, "  %s %s: %s: %s\n", k.Kind, res.Claim, res.Verdict, res.Reason)
			}
		}
	}
	for _, t := range []string{"b", "c"} {
		fmt.Fprintf(&b, "tier %s: %s\n", t, r.Tier(t))
	}
	return b.String()
}

func wanted(list []string, name string) bool { return len(list) == 0 || slices.Contains(list, name) }

// newReport returns an empty report about this build.
func newReport() *Report {
	return &Report{Build: knob.Build, Machine: runtime.GOARCH, Process: map[string]string{}, Kinds: []Kind{}, Controls: []Control{}}
}
