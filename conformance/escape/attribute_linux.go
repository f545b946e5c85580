package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"palyra/isolate/knob"
)

// attribution says which layer stops which case. Each case runs inside with all layers, and
// with each of them turned off alone, in binaries built for that (isolate/knob). The file
// is committed.
type attribution struct {
	Table  string   `json:"table"` // digest of the case table
	Kernel string   `json:"kernel"`
	User   string   `json:"user"`
	Knobs  []string `json:"knobs"` // those that were tried alone, with every case
	// Together are those of critical.json, "seccomp+nested_userns", that were tried
	// with the cases that it names.
	Together []string `json:"together"`
	Cases    []traced `json:"cases"` // in the order of the table
}

// traced is one case at one tier, in a cold cell.
type traced struct {
	Case    string `json:"case"`
	Name    string `json:"name"`
	Tier    string `json:"tier"`
	Inside  string `json:"inside"`  // outcome with all layers
	Verdict string `json:"verdict"` // with all layers
	// Opens are layers such that without one of them, or without all together, the attempt
	// succeeds.
	Opens []string `json:"opens"`
	// Changes are the outcomes without one or several layers, if another layer stops the
	// attempt.
	Changes  map[string]string `json:"changes,omitempty"`
	Unproven map[string]string `json:"unproven,omitempty"` // what was no verdict without a layer
}

// layers says how many layers are known to stand in the way: 1 if taking one away
// opens the case; 2 if none alone does, and one was seen to be followed by
// another, or it took several together to open the case or to change how it ends
// (each of a smallest such set stops it with the others off); 0 if no knob made any
// difference (file permissions, palyra's own code, or two that were not tried
// together); -1 if the case proves nothing on this host.
func (c *traced) layers() int {
	switch {
	case c.Verdict != passed:
		return -1
	case slices.ContainsFunc(c.Opens, func(k string) bool { return !strings.Contains(k, "+") }):
		return 1
	case len(c.Opens) > 0 || len(c.Changes) > 0:
		return 2
	}
	return 0
}

// untraced are the cases that attribution leaves out: with their limits turned off
// they would take the machine. One makes 100,000 files each time, to no other end
// than 10/git-hook. An exchange during an approval is a race, whose loser says nothing of a layer.
// What stops a call with hosts is palyra-egress, of which nothing can be turned off.
func untraced(c *attackCase) bool {
	return c.alone || c.waits || c.hosts || c.number == 90 || c.id() == "10/flood" || c.name == operandExchange
}

// attribute brings the file up to date for some knobs, "" being none: all layers.
func attribute(c config, path string, knobs []string) error {
	d, err := loadCritical()
	if err != nil {
		return err
	}
	if knobs == nil {
		knobs = d.knobs()
	}
	for _, k := range knobs {
		if !slices.Contains(d.knobs(), k) {
			return fmt.Errorf("no knob %q: want some of %s", k, strings.Join(d.knobs(), ","))
		}
	}
	dir, err := os.MkdirTemp("/var/tmp", "palyra-knobs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-tags", knob.Tag, "-o", dir, "palyra/cmd/palyra", "palyra/cmd/palyra-cell", "palyra/conformance/escape/warm")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build with %s: %w\n%s", knob.Tag, err, out)
	}
	c.palyra, c.warm, c.modes, c.users = filepath.Join(dir, "palyra"), filepath.Join(dir, "warm"), []string{modeCold}, []string{"root"}
	if os.Getuid() != 0 {
		c.users = []string{"unprivileged"}
	}
	b, users, err := setup(c)
	if err != nil {
		return err
	}
	defer os.RemoveAll(b.dir)
	b.kept = make(map[string]map[string]*observation)
	a, err := loadAttribution(path)
	if errors.Is(err, fs.ErrNotExist) {
		a, err = &attribution{}, nil
	}
	if err != nil {
		return err
	}
	a.Table, a.Kernel, a.User = tableDigest(cases()), kernel(), c.users[0]
	for _, k := range knobs {
		// The launcher that approves and has sessions is copied.
		for _, program := range []string{c.palyra, filepath.Join(dir, "palyra-cell"), filepath.Join(b.dir, "warm")} {
			if err := os.WriteFile(program+".knobs", []byte(strings.ReplaceAll(k, "+", "\n")+"\n"), 0o644); err != nil {
				return err
			}
		}
		var jobs []job
		for _, ac := range cases() {
			if selected(c.cases, &ac) && selected(d.casesOf(k), &ac) && !untraced(&ac) {
				jobs = append(jobs, job{ac, users[0]})
			}
		}
		b.bare = slices.Contains(strings.Split(k, "+"), knob.Mount)
		var got []record
		b.work(c.tiers, func(rs []record) { got = append(got, rs...) }, pool{jobs, max(1, c.jobs), true})
		a.take(k, got)
		open := 0
		for i := range got {
			if got[i].Verdict == "open" {
				open++
			}
		}
		fmt.Printf("%q off: %d attempts, %d open\n", k, len(got), open)
		if err := writeJSON(path, a); err != nil {
			return err
		}
	}
	return nil
}

func loadAttribution(path string) (*attribution, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	a := new(attribution)
	return a, json.Unmarshal(b, a)
}

// take adds the observations without one layer, or with all.
func (a *attribution) take(k string, got []record) {
	switch {
	case k == "":
	case slices.Contains(knob.Names(), k):
		a.Knobs = noted(a.Knobs, k)
	default:
		a.Together = noted(a.Together, k)
	}
	byID := make(map[string]*record)
	for i := range got {
		if got[i].Verdict != notApplicable {
			byID[got[i].Case+" "+got[i].Tier] = &got[i]
		}
	}
	old := make(map[string]traced)
	for _, c := range a.Cases {
		old[c.Case+" "+c.Tier] = c
	}
	a.Cases = nil
	for _, ac := range cases() {
		for _, tier := range []string{"b", "c"} {
			id := ac.id() + " " + tier
			c, was := old[id]
			r := byID[id]
			if r == nil && !was {
				continue
			}
			if !was {
				c = traced{Case: ac.id(), Name: ac.name, Tier: tier, Opens: []string{}}
			}
			if r != nil {
				c.note(k, r)
			}
			a.Cases = append(a.Cases, c)
		}
	}
}

// noted returns a sorted list with k in it.
func noted(list []string, k string) []string {
	if !slices.Contains(list, k) {
		list = append(list, k)
		slices.Sort(list)
	}
	return list
}

func (c *traced) note(k string, r *record) {
	if k == "" {
		c.Inside, c.Verdict = r.Inside, r.Verdict
		return
	}
	c.Opens = slices.DeleteFunc(c.Opens, func(s string) bool { return s == k })
	c.Changes, c.Unproven = cloned(c.Changes), cloned(c.Unproven)
	delete(c.Changes, k)
	delete(c.Unproven, k)
	switch {
	case r.Verdict == open:
		c.Opens = append(c.Opens, k)
		slices.Sort(c.Opens)
	case r.Verdict == inconclusive:
	case r.Inside != c.Inside && r.Inside != "" && r.Verdict != hung:
		c.Changes[k] = r.Inside // stopped by something else, which the table need not name
	case r.Verdict != passed:
		c.Unproven[k] = r.Verdict + ": " + clip(r.Detail)
	}
}

func cloned(m map[string]string) map[string]string {
	if m == nil {
		return make(map[string]string)
	}
	return maps.Clone(m)
}
