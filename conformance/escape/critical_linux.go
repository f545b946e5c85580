package main

import (
	"bytes"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"palyra/isolate/knob"
)

//go:embed critical.json
var criticalJSON []byte

// critical is critical.json: the cases that do harm beyond the cell if they succeed, so
// that two layers must stand in the way of each, and those with only one. A case that ends
// the cell's own program, takes what everybody has a share of or reaches a system call
// without using it isn't among them.
type critical struct {
	Harms    []harm     `json:"harms"`
	Together []together `json:"together"`
	OneLayer []oneLayer `json:"one_layer"`
}

// harm is a kind of damage. Cases are numbers, which stand for all variants, or
// ids.
type harm struct {
	Name   string   `json:"name"`
	Why    string   `json:"why"`
	Cases  []string `json:"cases"`
	Except []string `json:"except,omitempty"`
}

// together are knobs that are turned off at once for some cases, to see one layer beside
// another.
type together struct {
	Knobs string   `json:"knobs"` // "seccomp+nested_userns"
	Cases []string `json:"cases"`
}

// oneLayer are critical cases without a known second layer, and the reason.
type oneLayer struct {
	Cases  []string `json:"cases"`
	Tier   string   `json:"tier"` // "b", "c" or "*"
	Reason string   `json:"reason"`
}

func loadCritical() (*critical, error) {
	d := new(critical)
	dec := json.NewDecoder(bytes.NewReader(criticalJSON))
	dec.DisallowUnknownFields()
	if err := dec.Decode(d); err != nil {
		return nil, fmt.Errorf("parse critical.json: %w", err)
	}
	for _, t := range d.Together {
		for k := range strings.SplitSeq(t.Knobs, "+") {
			if !slices.Contains(knob.Names(), k) && !slices.Contains(knob.Behind(), k) {
				return nil, fmt.Errorf("critical.json: no knob %q", k)
			}
		}
	}
	return d, nil
}

// knobs returns the knobs that attribution turns off, in order: none, each mechanism, and
// those together.
func (d *critical) knobs() []string {
	out := append([]string{""}, knob.Names()...)
	for _, t := range d.Together {
		out = append(out, t.Knobs)
	}
	return out
}

// casesOf returns the cases that a knob is tried with; none means all.
func (d *critical) casesOf(knobs string) []string {
	for _, t := range d.Together {
		if t.Knobs == knobs {
			return t.Cases
		}
	}
	return nil
}

// harmOf returns the name of the harm that a case does, "" if it is not critical.
func (d *critical) harmOf(c *attackCase) string {
	for _, h := range d.Harms {
		if selected(h.Cases, c) && (len(h.Except) == 0 || !selected(h.Except, c)) {
			return h.Name
		}
	}
	return ""
}

// alone returns the reason why a critical case has one layer at a tier, "" if it isn't on
// the list.
func (d *critical) alone(c *attackCase, tier string) string {
	for _, o := range d.OneLayer {
		if matches(o.Tier, tier) && selected(o.Cases, c) {
			return o.Reason
		}
	}
	return ""
}

// shallow compares the recorded attribution with the list, and returns a line for each
// difference.
func (d *critical) shallow(a *attribution) []string {
	var wrong []string
	found := make(map[string]*traced)
	for i := range a.Cases {
		found[a.Cases[i].Case+" "+a.Cases[i].Tier] = &a.Cases[i]
	}
	for _, c := range cases() {
		for _, tier := range []string{"b", "c"} {
			t, why := found[c.id()+" "+tier], d.alone(&c, tier)
			switch {
			case t == nil || t.Verdict != passed:
				continue
			case d.harmOf(&c) == "" && why != "":
				wrong = append(wrong, fmt.Sprintf("%s is on the list of those with one layer, and not critical", c.id()))
			case d.harmOf(&c) != "" && why == "" && t.layers() < 2:
				wrong = append(wrong, fmt.Sprintf("%s at tier %s (%s): fewer than two layers are seen, and the list does not say why", c.id(), tier, d.harmOf(&c)))
			case why != "" && t.layers() >= 2:
				wrong = append(wrong, fmt.Sprintf("%s at tier %s is on the list of those with one layer, and has two", c.id(), tier))
			}
		}
	}
	return wrong
}

// write prints the critical cases and the depth of the defence.
func (d *critical) write(b *strings.Builder, a *attribution) {
	b.WriteString(`## Critical cases

A case is critical if its success harms more than the cell. Two layers must stand in the way of each,
so that one mistake, ours or the kernel's, isn't enough; a second layer counts if it was seen to stop
the case with the first one off. The tests fail for a case with fewer that isn't listed below, and for
a listed one that has two. Not critical are cases that end the cell's own program, that take too much
(79 to 87: bounded and killed), that a grant allows and a receipt reports (6, 8, 10), and reach-…,
which have one layer by construction.

| harm | | cases | C: two layers | one | inconclusive | B: two layers | one | inconclusive |
|---|---|---|--:|--:|--:|--:|--:|--:|
`)
	var all []string
	for _, c := range cases() {
		if !strings.HasPrefix(c.variant, "reach-") {
			all = append(all, c.id())
		}
	}
	for _, h := range d.Harms {
		n := map[string][3]int{}
		for i := range a.Cases {
			t := &a.Cases[i]
			c := attackCase{}
			c.number, c.variant = parseID(t.Case)
			if d.harmOf(&c) != h.Name {
				continue
			}
			v := n[t.Tier]
			switch l := t.layers(); {
			case l >= 2:
				v[0]++
			case l >= 0:
				v[1]++
			default:
				v[2]++
			}
			n[t.Tier] = v
		}
		var ids []string
		for _, c := range cases() {
			if d.harmOf(&c) == h.Name {
				ids = append(ids, c.id())
			}
		}
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d |\n", h.Name, h.Why, short(ids, all), n["c"][0], n["c"][1], n["c"][2], n["b"][0], n["b"][1], n["b"][2])
	}
	b.WriteString("\nWith one layer, or no second one seen (the tier in brackets, if not both):\n\n")
	for _, o := range d.OneLayer {
		var ids []string
		for _, c := range cases() {
			if selected(o.Cases, &c) {
				ids = append(ids, c.id())
			}
		}
		tier := ""
		if o.Tier != "*" {
			tier = " (" + strings.ToUpper(o.Tier) + ")"
		}
		fmt.Fprintf(b, "- %s%s: %s\n", short(ids, all), tier, o.Reason)
	}
	b.WriteString("\n")
}

// parseID takes the id of a case apart.
func parseID(id string) (number int, variant string) {
	n, variant, _ := strings.Cut(id, "/")
	number, _ = strconv.Atoi(n)
	return number, variant
}
