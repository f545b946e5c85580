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

// critical is critical.json: which cases do harm beyond the cell if they succeed,
// so that two layers must stand in the way of each, and which have only one. A
// case that ends the cell's own program, takes what everybody has a share of or
// reaches a system call without using it is not among them.
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

// together are knobs that are turned off at once for some cases, to see a layer
// that stands beside another one.
type together struct {
	Knobs string   `json:"knobs"` // "seccomp+nested_userns"
	Cases []string `json:"cases"`
}

// oneLayer are critical cases that were not seen to have a second layer, and why.
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

// knobs returns what attribution turns off, in order: nothing, each mechanism, and
// those together.
func (d *critical) knobs() []string {
	out := append([]string{""}, knob.Names()...)
	for _, t := range d.Together {
		out = append(out, t.Knobs)
	}
	return out
}

// casesOf returns with which cases a knob is tried; none is all.
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

// alone returns why a critical case has one layer at a tier, "" if it is not on
// the list.
func (d *critical) alone(c *attackCase, tier string) string {
	for _, o := range d.OneLayer {
		if matches(o.Tier, tier) && selected(o.Cases, c) {
			return o.Reason
		}
	}
	return ""
}

// shallow compares the recorded attribution with the list: what is wrong with it,
// a line each.
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

// write prints which cases are critical and how deep the defence is.
func (d *critical) write(b *strings.Builder, a *attribution) {
	b.WriteString("## Critical cases\n\nA case is critical if its success does harm beyond the cell. Two layers must stand in the way of each, so that one mistake, ours or the\n" +
		"kernel's, is not enough; a second layer counts if it was seen to stop the case with the first one off. A case with fewer that is not on\n" +
		"the list below fails the tests, and so does one on the list that has two. Not critical are cases that end the cell's own program, that\n" +
		"take more than their share (79 to 87: bounded, and killed), that a grant allows and a receipt tells of (6, 8, 10), and those called\n" +
		"reach-…, which ask whether the filter answers before the kernel does and so have one layer by construction.\n\n")
	b.WriteString("| harm | | cases | tier C: two layers | one | inconclusive | tier B: two layers | one | inconclusive |\n|---|---|---|--:|--:|--:|--:|--:|--:|\n")
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
		cases := strings.Join(h.Cases, ", ")
		if len(h.Except) > 0 {
			cases += " without " + strings.Join(h.Except, ", ")
		}
		fmt.Fprintf(b, "| %s | %s | %s | %d | %d | %d | %d | %d | %d |\n", h.Name, h.Why, cases, n["c"][0], n["c"][1], n["c"][2], n["b"][0], n["b"][1], n["b"][2])
	}
	b.WriteString("\nWith one layer, or with no second one seen:\n\n| tier | cases | why |\n|---|---|---|\n")
	for _, o := range d.OneLayer {
		fmt.Fprintf(b, "| %s | %s | %s |\n", strings.ToUpper(star(o.Tier)), strings.Join(o.Cases, ", "), o.Reason)
	}
	b.WriteString("\n")
}

// parseID takes the id of a case apart.
func parseID(id string) (number int, variant string) {
	n, variant, _ := strings.Cut(id, "/")
	number, _ = strconv.Atoi(n)
	return number, variant
}
