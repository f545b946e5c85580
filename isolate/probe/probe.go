// Package probe finds out what this host can enforce, by trying it.
//
// [Controls] is the table: each kernel control with the kernel that brought it, how to try
// it, what its absence costs and what helps. [Run] starts one child of the helper program
// for each control, in the namespaces that the control needs; the child makes the call and
// says yes, no or couldn't tell. The package compares no versions and believes no
// configuration.
//
//	r, err := probe.Run(ctx, "/usr/libexec/palyra-cell")
//	missing := r.Missing(tier.C) // names of what tier C needs and the host has not
//
// The helper is palyra-cell: as "palyra-cell probe-child NAME ..." it hands its arguments
// to [Main].
//
// # What it does not protect against
//
// Later changes: a probe says what worked a moment ago for this user. Every run of a cell
// checks its own confinement again, at the gate.
package probe

import (
	"slices"

	"palyra/isolate/tier"
)

// Answer is the outcome of a probe. The zero Answer is Unknown.
type Answer uint8

// The answers.
const (
	Unknown Answer = iota // the probe itself did not work
	No
	Yes
)

// String returns "yes", "no" or "unknown".
func (a Answer) String() string {
	switch a {
	case Yes:
		return "yes"
	case No:
		return "no"
	}
	return "unknown"
}

// MarshalText implements encoding.TextMarshaler.
func (a Answer) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler. It reads an unknown word as Unknown.
func (a *Answer) UnmarshalText(b []byte) error {
	*a = Unknown
	switch string(b) {
	case "yes":
		*a = Yes
	case "no":
		*a = No
	}
	return nil
}

// Control is one row of the table.
type Control struct {
	Name   string      // stable, snake_case
	Since  string      // first kernel that has it
	How    string      // what is tried
	Cost   string      // what its absence costs
	Hint   string      // what a person can do
	Needed []tier.Tier // tiers that cannot be enforced without it

	namespaces uint64 // CLONE_NEW* of the child
	nobody     bool   // the child gives up root first
}

// Finding is the outcome for one control.
type Finding struct {
	Name   string      `json:"name"`
	Answer Answer      `json:"answer"`
	Detail string      `json:"detail"` // version or value if yes; the call and its errno if no
	Since  string      `json:"since"`
	How    string      `json:"how"`
	Needed []tier.Tier `json:"needed"`         // tiers
	Cost   string      `json:"cost,omitempty"` // unless yes
	Hint   string      `json:"hint,omitempty"` // unless yes
}

// Report lists the controls that a host can enforce, for the user who asked.
type Report struct {
	Kernel   string    `json:"kernel"`
	Machine  string    `json:"machine"`
	UID      int       `json:"uid"`
	Findings []Finding `json:"findings"` // in the order of the table
}

// Find returns the finding of a control; it is Unknown if there is none.
func (r *Report) Find(name string) Finding {
	for _, f := range r.Findings {
		if f.Name == name {
			return f
		}
	}
	return Finding{Name: name}
}

// Missing returns the controls that the tier needs and that the probes didn't see working,
// in the order of the table. If none is missing, the host can enforce the tier; an unknown
// tier misses itself.
func (r *Report) Missing(t tier.Tier) []string {
	missing, known := []string{}, false
	for _, c := range Controls() {
		if !slices.Contains(c.Needed, t) {
			continue
		}
		known = true
		if r.Find(c.Name).Answer != Yes {
			missing = append(missing, c.Name)
		}
	}
	if !known {
		missing = append(missing, "tier_"+t.String())
	}
	return missing
}
