package lint

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/cedar-policy/cedar-go/types"

	"palyra/authz/policy"
)

// verdict of a search. The zero verdict is that it was given up.
type satisfiable uint8

const (
	unknown satisfiable = iota
	never               // nothing that the schema allows satisfies it
	perhaps             // nothing is known that excludes it
)

// maxSteps bounds a search. The formulas of real policies take dozens.
const maxSteps = 50000

// solve asks whether a request with the reader's action can satisfy f.
func (x reader) solve(f ...formula) satisfiable {
	s := &search{steps: maxSteps, domains: domains(x.action)}
	found := s.try(slices.Clone(f), nil)
	switch {
	case found:
		return perhaps
	case s.steps <= 0:
		return unknown
	}
	return never
}

// implies reports whether every request that satisfies a satisfies b.
func (x reader) implies(a, b formula) bool { return x.solve(a, not{b}) == never }

// closed are the attributes with a closed list of values. Immutable.
var closed = sync.OnceValue(func() map[string][]string {
	m := make(map[string][]string)
	for _, a := range policy.Attributes() {
		if a.Type == "String" && a.Values != nil {
			m["context."+a.Path] = a.Values
			if a.Absent == "" { // a request may leave it out
				m["context."+a.Path] = append(a.Values, "")
			}
		}
	}
	return m
})

// domains are the terms with a closed list of values.
func domains(a policy.Action) map[string][]string {
	m := maps.Clone(closed())
	m[typeOf("principal")] = []string{policy.TypeUser, policy.TypeDevice, policy.TypeAgent}
	m[typeOf("resource")] = []string{a.Resource}
	return m
}

// search looks for a set of literals that do not exclude each other.
type search struct {
	steps   int
	domains map[string][]string
}

// fact is an atom or its opposite.
type fact struct {
	atom formula
	yes  bool
}

func (s *search) try(todo []formula, facts []fact) bool {
	for len(todo) > 0 {
		if s.steps--; s.steps <= 0 {
			return false
		}
		f := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		yes := true
		for {
			n, ok := f.(not)
			if !ok {
				break
			}
			f, yes = n.f, !yes
		}
		switch v := f.(type) {
		case constant:
			if bool(v) != yes {
				return false
			}
		case and:
			if yes {
				todo = append(todo, v...)
				continue
			}
			return s.branch(v, yes, todo, facts)
		case or:
			if !yes {
				for _, g := range v {
					todo = append(todo, not{g})
				}
				continue
			}
			return s.branch(v, yes, todo, facts)
		default:
			facts = append(slices.Clip(facts), fact{f, yes})
			if !s.consistent(facts) {
				return false
			}
		}
	}
	return true
}

func (s *search) branch(parts []formula, yes bool, todo []formula, facts []fact) bool {
	for _, g := range parts {
		if !yes {
			g = not{g}
		}
		if s.try(append(slices.Clone(todo), g), facts) {
			return true
		}
	}
	return false
}

// consistent reports whether facts do not exclude each other, as far as can be
// told from one term at a time.
func (s *search) consistent(facts []fact) bool {
	truths := make(map[string]bool)
	low, high := make(map[string]int64), make(map[string]int64)
	terms := make(map[string]bool)
	for _, f := range facts {
		switch a := f.atom.(type) {
		case truth:
			if was, ok := truths[a.text]; ok && was != f.yes {
				return false
			}
			truths[a.text] = f.yes
		case empty:
			if was, ok := truths["∅"+a.term]; ok && was != f.yes {
				return false
			}
			truths["∅"+a.term] = f.yes
		case like:
			key := a.term + " like " + a.text
			if was, ok := truths[key]; ok && was != f.yes {
				return false
			}
			truths[key] = f.yes
			terms[a.term] = true
		case below:
			if f.yes {
				if was, ok := high[a.term]; !ok || a.n < was {
					high[a.term] = a.n
				}
			} else if was, ok := low[a.term]; !ok || a.n > was {
				low[a.term] = a.n
			}
		case among:
			terms[a.term] = true
			if entity, ok := strings.CutPrefix(a.term, typeOf("")); ok {
				terms[entity] = true
			}
		}
	}
	for term, n := range high {
		if l, ok := low[term]; ok && l >= n {
			return false
		}
	}
	return rolesFit(truths) && setsFit(truths) && s.termsFit(slices.Collect(maps.Keys(terms)), facts)
}

// rolesFit: owner holds admin, admin holds operator.
func rolesFit(truths map[string]bool) bool {
	order := []string{policy.RoleOwner, policy.RoleAdmin, policy.RoleOperator}
	held := false
	for _, r := range order {
		yes, known := truths["principal∈"+r]
		if held && known && !yes {
			return false
		}
		held = held || yes
	}
	return true
}

// setsFit: an empty set holds nothing.
func setsFit(truths map[string]bool) bool {
	for key, yes := range truths {
		if term, _, ok := strings.Cut(key, "∋"); ok && yes && truths["∅"+term] {
			return false
		}
	}
	return true
}

// termsFit looks for a value of each term that has finitely many.
func (s *search) termsFit(terms []string, facts []fact) bool {
	for _, term := range terms {
		values, finite := s.domains[term], s.domains[term] != nil
		for _, f := range facts {
			a, ok := f.atom.(among)
			if !ok || a.term != term || !f.yes {
				continue
			}
			if !finite {
				values, finite = a.values, true
				continue
			}
			values = slices.DeleteFunc(slices.Clone(values), func(v string) bool { return !slices.Contains(a.values, v) })
		}
		if finite && !slices.ContainsFunc(values, func(v string) bool { return fits(term, v, facts) }) {
			return false
		}
	}
	return true
}

// fits reports whether term can have a value under the facts about that term.
func fits(term, value string, facts []fact) bool {
	for _, f := range facts {
		switch a := f.atom.(type) {
		case among:
			if a.term == term && slices.Contains(a.values, value) != f.yes {
				return false
			}
			if a.term == typeOf(term) && slices.Contains(a.values, entityType(value)) != f.yes {
				return false
			}
		case like:
			if a.term == term && a.pattern.Match(types.String(value)) != f.yes {
				return false
			}
		}
	}
	return true
}

// entityType is the type in an entity's text, "" if it is none.
func entityType(value string) string {
	i := strings.LastIndex(value, `::"`)
	if i < 0 {
		return ""
	}
	if _, err := strconv.QuotedPrefix(value[i+2:]); err != nil {
		return ""
	}
	return value[:i]
}
