package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/isolate/certify"
	"palyra/isolate/knob"
)

// What is committed of runs, and the page that is made of it.
const (
	recorded        = "recorded"
	batteryFile     = recorded + "/battery.json"
	attributionFile = recorded + "/attribution.json"
	page            = "../../docs/CONFORMANCE.md"
)

// summary is what is committed of a run of the whole battery.
type summary struct {
	Table  string    `json:"table"` // digest of the case table that was run
	Kernel string    `json:"kernel"`
	Groups []group   `json:"groups"`
	Proofs []nothing `json:"inconclusive"`
}

// group counts one tier, mode and user.
type group struct {
	Tier          string `json:"tier"`
	Mode          string `json:"mode"`
	User          string `json:"user"`
	Run           int    `json:"run"`
	Passed        int    `json:"passed"`
	Inconclusive  int    `json:"inconclusive"`
	Open          int    `json:"open"`
	Hung          int    `json:"hung"`
	Failed        int    `json:"failed"`
	NotApplicable int    `json:"not_applicable"`
}

// nothing is a case whose control did not succeed, so that it proved nothing.
type nothing struct {
	Case  string `json:"case"`
	User  string `json:"user"`
	Where string `json:"where"` // tiers and modes
	Why   string `json:"why"`   // from expect.json; "" if it is not on the list
}

// tableDigest names the table: which cases there are, and what stops each.
func tableDigest(all []attackCase) string {
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintln(&b, c.id(), c.name, c.attack, c.stopped, c.absent)
	}
	return canon.Sum([]byte(b.String())).String()
}

// summarize makes the committed summary of result files, of which later ones count
// where two have the same tier, mode and user.
func summarize(files []string, to string) error {
	expected, err := loadExpect()
	if err != nil {
		return err
	}
	s := summary{Table: tableDigest(cases()), Groups: []group{}, Proofs: []nothing{}}
	latest := make(map[string]record)
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		var r results
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if s.Kernel = r.Kernel; r.Sandbox != "palyra" {
			return fmt.Errorf("%s: a run of %s", name, r.Sandbox)
		}
		if r.Table != s.Table {
			return fmt.Errorf("%s: a run of another table of cases: make conformance", name)
		}
		for _, rec := range r.Records {
			latest[strings.Join([]string{rec.Case, rec.Tier, rec.Mode, rec.User}, " ")] = rec
		}
	}
	for _, tier := range []string{"b", "c"} {
		for _, mode := range []string{modeCold, modeWarm, modeVoid} {
			for _, user := range []string{"root", "unprivileged"} {
				s.group(latest, expected, tier, mode, user)
			}
		}
	}
	return writeJSON(to, &s)
}

func (s *summary) group(latest map[string]record, expected expectations, tier, mode, user string) {
	g := group{Tier: tier, Mode: mode, User: user}
	for _, c := range cases() {
		r, ok := latest[strings.Join([]string{c.id(), tier, mode, user}, " ")]
		if !ok {
			continue
		}
		g.Run++
		switch r.Verdict {
		case passed:
			g.Passed++
		case open:
			g.Open++
		case hung:
			g.Hung++
		case inconclusive:
			g.Inconclusive++
			s.unproven(&r, expected)
		case notApplicable:
			g.NotApplicable++
			g.Run--
		default:
			g.Failed++
		}
	}
	if g.Run > 0 {
		s.Groups = append(s.Groups, g)
	}
}

func (s *summary) unproven(r *record, expected expectations) {
	where := "tier " + r.Tier + " " + r.Mode
	for i := range s.Proofs {
		if p := &s.Proofs[i]; p.Case == r.Case && p.User == r.User {
			p.Where += ", " + where
			return
		}
	}
	why := ""
	for _, e := range expected {
		if (expectations{e}).covers(r) {
			why = e.Reason
		}
	}
	s.Proofs = append(s.Proofs, nothing{Case: r.Case, User: r.User, Where: where, Why: why})
}

// read decodes a committed file, false if there is none.
func read(name string, v any) (bool, error) {
	b, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err == nil {
		err = json.Unmarshal(b, v)
	}
	return err == nil, err
}

// conformancePage prints the page of what is recorded in dir.
func conformancePage(dir string) (string, error) {
	var s summary
	var a attribution
	haveS, err := read(filepath.Join(dir, batteryFile), &s)
	if err != nil {
		return "", err
	}
	haveA, err := read(filepath.Join(dir, attributionFile), &a)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString(`# Conformance

What was run against the sandbox and how it ended. Generated from conformance/escape/recorded/ and conformance/lab/recorded.json; a test
fails if it is not what they say, or if they are of other cases and expectations than the present ones. How each case works, and what the verdicts mean:
[conformance/README.md](../conformance/README.md). To repeat it on your own host:

    palyra sandbox certify                             # seconds; one claim for each mechanism, signed
    make conformance                                   # minutes; every case, every kind of cell, root and not
    make lab                                           # minutes; other kernels, emulated

`)
	writeClaims(&b)
	if haveS {
		s.write(&b)
	} else {
		b.WriteString("## The battery\n\nNo run of the whole battery is recorded yet.\n\n")
	}
	var k kernels
	if have, err := read(filepath.Join(dir, labFile), &k); err != nil {
		return "", err
	} else if have {
		k.write(&b)
	}
	if haveA {
		d, err := loadCritical()
		if err != nil {
			return "", err
		}
		d.write(&b, &a)
		a.write(&b)
	}
	return strings.TrimRight(b.String(), "\n") + "\n", nil
}

func writeClaims(b *strings.Builder) {
	b.WriteString("## The certificate's claims\n\nEach is lost, and no other, when its mechanism is turned off (TestKnobs).\n\n")
	b.WriteString("| claim | a program in a cell cannot | tiers | stopped by |\n|---|---|---|---|\n")
	for _, c := range certify.Claims() {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.Name, c.Says, strings.Join(strings.Split(c.Tiers, ""), ", "), strings.Join(c.Stopped, " "))
	}
	b.WriteString("\n")
}

func (s *summary) write(b *strings.Builder) {
	fmt.Fprintf(b, "## The battery\n\n%d cases, on Linux %s.\n\n", len(cases()), s.Kernel)
	b.WriteString("| tier | mode | user | run | passed | inconclusive | open | hung | failed | not applicable |\n|---|---|---|--:|--:|--:|--:|--:|--:|--:|\n")
	for _, g := range s.Groups {
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d | %d |\n", strings.ToUpper(g.Tier), g.Mode, g.User, g.Run, g.Passed,
			g.Inconclusive, g.Open, g.Hung, g.Failed, g.NotApplicable)
	}
	b.WriteString("\nInconclusive, because the attempt outside did not succeed either:\n\n| case | user | where | why |\n|---|---|---|---|\n")
	for _, p := range s.Proofs {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", p.Case, p.User, p.Where, p.Why)
	}
	b.WriteString("\n")
}

// knobOrder sorts layers as isolate/knob lists them.
func knobOrder(names []string) []string {
	all := knob.Names()
	return slices.SortedFunc(slices.Values(names), func(x, y string) int {
		if d := slices.Index(all, x) - slices.Index(all, y); d != 0 {
			return d
		}
		return strings.Compare(x, y) // several together
	})
}

// write prints which layer stops what. Cases that differ in nothing share a row.
func (a *attribution) write(b *strings.Builder) {
	n := map[string]map[int]int{"b": {}, "c": {}}
	for i := range a.Cases {
		n[a.Cases[i].Tier][a.Cases[i].layers()]++
	}
	fmt.Fprintf(b, `## Which layer stops which case

Each case in a cold cell, as %s on Linux %s, with each layer turned off alone, in binaries built for that: %s; and some together, with the cases
that are critical: %s. Of these, landlock is all of it, outer_pid the PID namespace of palyra-cell, in which that of the cell lies, and
nested_userns the limit of 0 user namespaces in the cell's own. A layer that *opens* a case when it is missing is the only one in its way.
Where another outcome takes its place, a second layer stood behind the first; where it takes several together, each of a smallest such set
stops the case with the others off. Where nothing makes a difference, two stand side by side that were not turned off together, or file
permissions and palyra's own code do. Cases that would take the machine without their limits (79 to 87), those about palyra's own parts
(90) and 10/flood are left out. Without mount a cell sees the host's root, /tmp and /dev/shm, and has no workspace; Landlock's rules
stay what they are, about files of the template.

| tier | two layers or more: one was seen to follow another | no single layer makes a difference | one layer: without it the case is open | inconclusive |
|---|--:|--:|--:|--:|
`, a.User, a.Kernel, strings.Join(knobOrder(a.Knobs), ", "), strings.Join(a.Together, ", "))
	for _, tier := range []string{"b", "c"} {
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d |\n", strings.ToUpper(tier), n[tier][2], n[tier][0], n[tier][1], n[tier][-1])
	}
	b.WriteString("\n### One layer\n\n| tier | the layer | cases |\n|---|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 1 {
			return ""
		}
		return strings.Join(slices.DeleteFunc(knobOrder(c.Opens), func(k string) bool { return strings.Contains(k, "+") }), ", ")
	})
	b.WriteString("\n### Two layers or more\n\n| tier | stopped with all layers → without one | cases |\n|---|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 2 {
			return ""
		}
		var out []string
		for _, k := range knobOrder(slices.Collect(maps.Keys(c.Changes))) {
			out = append(out, "without "+k+" "+c.Changes[k])
		}
		for _, k := range c.Opens {
			out = append(out, "without "+k+" open")
		}
		return c.Inside + " → " + strings.Join(out, ", ")
	})
	b.WriteString("\n### No single layer\n\n| tier | stopped by | cases |\n|---|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 0 {
			return ""
		}
		return c.Inside
	})
}

// rows prints a row for each text that a tier's cases have, in the order of the
// table, with the cases that have it.
func (a *attribution) rows(b *strings.Builder, text func(*traced) string) {
	for _, tier := range []string{"b", "c"} {
		var order []string
		ids := make(map[string][]string)
		for i := range a.Cases {
			c := &a.Cases[i]
			t := text(c)
			if c.Tier != tier || t == "" {
				continue
			}
			if ids[t] == nil {
				order = append(order, t)
			}
			ids[t] = append(ids[t], c.Case)
		}
		for _, t := range order {
			fmt.Fprintf(b, "| %s | %s | %s |\n", strings.ToUpper(tier), t, strings.Join(ids[t], ", "))
		}
	}
}
