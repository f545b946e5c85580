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
	"strconv"
	"strings"

	"palyra/internal/canon"
	"palyra/isolate/certify"
	"palyra/isolate/knob"
)

// The committed records of runs, and the page made of them.
const (
	recorded        = "recorded"
	batteryFile     = recorded + "/battery.json"
	attributionFile = recorded + "/attribution.json"
	page            = "../../docs/CONFORMANCE.md"
)

// summary is the committed record of a run of the whole battery.
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

// tableDigest names the table: which cases there are, and what stops each. A case described
// in other words is the same case.
func tableDigest(all []attackCase) string {
	var b strings.Builder
	for _, c := range all {
		fmt.Fprintln(&b, c.id(), c.name, c.stopped)
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
		for _, mode := range modes {
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

The recorded runs against the sandbox, generated from conformance/escape/recorded/ and
conformance/lab/recorded.json. A test fails if this page differs from them, or if they are of other
cases and expectations than today's. [conformance/README.md](../conformance/README.md) explains the
verdicts, [CASES.md](../conformance/CASES.md) lists the cases. 66 stands for each case of that number,
"1 but stat" for each but 1/stat, "7/open mknod" for 7/open and 7/mknod. To repeat it on your host:

    palyra sandbox certify   # seconds; one claim for each mechanism, signed
    make conformance         # minutes; every case, every kind of cell, root and not
    make lab                 # minutes; other kernels, emulated

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
	b.WriteString("## The certificate's claims\n\nWith its mechanism turned off a claim is lost, and no other (TestKnobs). A program in a cell cannot\n\n")
	for _, c := range certify.Claims() {
		at := ""
		if c.Tiers == "c" {
			at = " (tier C)"
		}
		fmt.Fprintf(b, "- %s: %s%s; %s\n", c.Name, c.Says, at, strings.Join(c.Stopped, " "))
	}
	b.WriteString("\n")
}

// everywhere shortens a list of tiers and modes: all of them are nothing. Staged, session, tty,
// egress and gateway, in which few cases run, stand only where the others aren't all there.
func everywhere(where string) string {
	list := strings.Split(where, ", ")
	whole := slices.DeleteFunc(slices.Clone(list), func(w string) bool {
		return slices.ContainsFunc([]string{modeStaged, modeSession, modeTTY, modeEgress, modePreflight, modeGateway}, func(m string) bool { return strings.HasSuffix(w, " "+m) })
	})
	switch strings.Join(whole, ", ") {
	case "tier b cold, tier c cold, tier c warm, tier c void, tier c loop":
		return ""
	case "tier c cold, tier c warm, tier c void, tier c loop":
		return "tier C"
	case "tier b cold, tier c cold, tier c void, tier c loop":
		return "all but warm"
	}
	return where
}

func (s *summary) write(b *strings.Builder) {
	fmt.Fprintf(b, "## The battery\n\n%d cases, on Linux %s.\n\n", len(cases()), s.Kernel)
	b.WriteString("| tier | mode | user | run | passed | inconclusive | open, hung, failed | not applicable |\n|---|---|---|--:|--:|--:|--:|--:|\n")
	for _, g := range s.Groups {
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %d | %d | %d |\n", strings.ToUpper(g.Tier), g.Mode, g.User, g.Run, g.Passed,
			g.Inconclusive, g.Open+g.Hung+g.Failed, g.NotApplicable)
	}
	b.WriteString("\nInconclusive, because the attempt outside didn't succeed either (user and mode in brackets, if not all):\n\n")
	users := make(map[nothing][]string) // of a case
	for _, p := range s.Proofs {
		k := nothing{Case: p.Case, Where: everywhere(p.Where), Why: p.Why}
		users[k] = append(users[k], p.User)
	}
	var all []string
	var order []nothing
	same := make(map[nothing][]string)
	for _, c := range cases() {
		all = append(all, c.id())
	}
	for _, p := range s.Proofs {
		k := nothing{Case: p.Case, Where: everywhere(p.Where), Why: p.Why}
		user := ""
		if len(users[k]) == 1 {
			user = p.User
		}
		k.User, k.Case = user, ""
		if same[k] == nil {
			order = append(order, k)
		}
		if !slices.Contains(same[k], p.Case) {
			same[k] = append(same[k], p.Case)
		}
	}
	for _, k := range order {
		var only []string
		for _, s := range []string{k.User, k.Where} {
			if s != "" {
				only = append(only, s)
			}
		}
		where := ""
		if only != nil {
			where = " (" + strings.Join(only, ", ") + ")"
		}
		fmt.Fprintf(b, "- %s%s: %s\n", short(same[k], all), where, k.Why)
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

Each case ran in a cold cell, as %s on Linux %s, with each layer turned off alone, in binaries built
for that: %s; critical cases also with several off: %s.
landlock is all of Landlock, outer_pid palyra-cell's PID namespace around the cell's, nested_userns the
limit of 0 user namespaces in the cell's own. Without mount a cell sees the host's root, /tmp and
/dev/shm, and has no workspace; Landlock's rules still name files of the template. Left out are cases
that would take the machine without their limits (79 to 87, 101 to 103), those about palyra's own
parts (90, 104), and 10/flood. Without a letter before them, cases are of both tiers.

- *One layer*: without it the case is open.
- *Two or more*: without one another stopped the case, with its own outcome (in
  recorded/attribution.json); or several must go before it opens.
- *No single layer*: two weren't turned off together, or file permissions or palyra's own code stop it.

| tier | two layers or more | no single layer | one layer | inconclusive |
|---|--:|--:|--:|--:|
`, a.User, a.Kernel, strings.Join(knobOrder(a.Knobs), ", "), strings.Join(a.Together, ", "))
	for _, tier := range []string{"b", "c"} {
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d |\n", strings.ToUpper(tier), n[tier][2], n[tier][0], n[tier][1], n[tier][-1])
	}
	b.WriteString("\n### One layer\n\n| the layer | cases |\n|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 1 {
			return ""
		}
		return strings.Join(slices.DeleteFunc(knobOrder(c.Opens), func(k string) bool { return strings.Contains(k, "+") }), ", ")
	})
	b.WriteString("\n### Two layers or more\n\n| stopped otherwise without | open without | cases |\n|---|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 2 {
			return ""
		}
		// Several layers off that do no more than some of them are left out.
		more := func(k string, list []string) bool {
			return !slices.ContainsFunc(list, func(o string) bool { return o != k && inside(o, k) })
		}
		changes := knobOrder(slices.Collect(maps.Keys(c.Changes)))
		var other, opens []string
		for _, k := range changes {
			if more(k, changes) {
				other = append(other, k)
			}
		}
		for _, k := range c.Opens {
			if more(k, c.Opens) {
				opens = append(opens, k)
			}
		}
		return strings.Join(other, ", ") + " | " + strings.Join(opens, ", ")
	})
	b.WriteString("\n### No single layer\n\n| stopped by | cases |\n|---|---|\n")
	a.rows(b, func(c *traced) string {
		if c.layers() != 0 {
			return ""
		}
		return c.Inside
	})
}

// inside reports whether all layers of x are among those of y.
func inside(x, y string) bool {
	all := strings.Split(y, "+")
	for k := range strings.SplitSeq(x, "+") {
		if !slices.Contains(all, k) {
			return false
		}
	}
	return true
}

// rows prints a row for each text that cases have, in the order of the table, with those
// that have it at both tiers or at one.
func (a *attribution) rows(b *strings.Builder, text func(*traced) string) {
	var order []string
	var all []string
	ids := make(map[string]map[string][]string)
	for i := range a.Cases {
		c := &a.Cases[i]
		if !slices.Contains(all, c.Case) {
			all = append(all, c.Case)
		}
		t := text(c)
		if t == "" {
			continue
		}
		if ids[t] == nil {
			order, ids[t] = append(order, t), make(map[string][]string)
		}
		ids[t][c.Tier] = append(ids[t][c.Tier], c.Case)
	}
	for _, t := range order {
		var cells []string
		in := func(tier string) func(string) bool {
			return func(id string) bool { return slices.Contains(ids[t][tier], id) }
		}
		not := func(f func(string) bool) func(string) bool { return func(id string) bool { return !f(id) } }
		if both := slices.DeleteFunc(slices.Clone(ids[t]["b"]), not(in("c"))); len(both) > 0 {
			cells = append(cells, short(both, all))
		}
		if only := slices.DeleteFunc(slices.Clone(ids[t]["b"]), in("c")); len(only) > 0 {
			cells = append(cells, "B: "+short(only, all))
		}
		if only := slices.DeleteFunc(slices.Clone(ids[t]["c"]), in("b")); len(only) > 0 {
			cells = append(cells, "C: "+short(only, all))
		}
		fmt.Fprintf(b, "| %s | %s |\n", t, strings.Join(cells, "; "))
	}
}

// short writes a list of cases, of all that there are: a number for all its cases, "1 but
// stat", "7/open mknod", and one word for all that only ask whether the filter answers.
func short(ids, all []string) string {
	reach := func(id string) bool { return strings.Contains(id, "/reach-") }
	every := slices.ContainsFunc(all, reach) && !slices.ContainsFunc(all, func(id string) bool { return reach(id) && !slices.Contains(ids, id) })
	of := func(list []string) (numbers []int, variants map[int][]string) {
		variants = make(map[int][]string)
		for _, id := range list {
			if every && reach(id) {
				continue
			}
			n, v := parseID(id)
			if variants[n] == nil {
				numbers = append(numbers, n)
			}
			variants[n] = append(variants[n], v)
		}
		return numbers, variants
	}
	numbers, have := of(ids)
	_, total := of(all)
	slices.Sort(numbers)
	var out []string
	for _, n := range numbers {
		without := slices.DeleteFunc(slices.Clone(total[n]), func(v string) bool { return slices.Contains(have[n], v) })
		if !slices.ContainsFunc(have[n], func(v string) bool { return strings.HasPrefix(v, "reach-") }) {
			if rest := slices.DeleteFunc(slices.Clone(without), func(v string) bool { return strings.HasPrefix(v, "reach-") }); len(rest) < len(without) {
				without = append(rest, "reach-…")
			}
		}
		switch {
		case len(without) == 0:
			out = append(out, strconv.Itoa(n))
		case len(without) < len(have[n]):
			out = append(out, fmt.Sprintf("%d but %s", n, strings.Join(without, " ")))
		default:
			out = append(out, fmt.Sprintf("%d/%s", n, strings.Join(have[n], " ")))
		}
	}
	if every {
		out = append(out, "each reach-…")
	}
	return strings.Join(out, ", ")
}
