package policy

import (
	"fmt"
	"hash/fnv"
	"slices"
)

// cedar-go keeps a set in a map by the elements' FNV-1 hashes, without a seed, and puts an element
// whose place is taken into the next free one. A requester can choose arguments that want the same
// places: 12,000 of them took an evaluation 0.9 s, in which nothing ends it, and the time grows
// with the square of their number. Texts that aren't chosen so have almost no such steps.
const (
	uncrowded = 1 << 10 // elements that need no look: at worst some milliseconds
	maxSteps  = 64      // for each element, on average
)

// checkSets refuses a request with a list that would take an evaluation too long to make a set of.
func (g *given) checkSets() error {
	c := g.Context
	if max(len(g.LineArgs)+len(c.Args), len(c.EgressHosts), len(c.EgressInspect), len(c.EgressSecrets), len(c.Capabilities), len(c.Mounts), len(c.Caches), len(c.Secrets),
		len(c.MCP.Arguments), len(c.Env)+len(c.EnvNames), len(c.EnvCode), len(c.Unpinned), len(c.Inputs), len(c.Signals), len(c.Features)) <= uncrowded {
		return nil
	}
	for i := range attributes {
		a := &attributes[i]
		if a.set != nil && crowded(a.set(g)) {
			return fmt.Errorf("context.%s has texts that are chosen to make policies slow", a.path)
		}
	}
	return nil
}

// crowded reports whether the texts want much the same places in a set. The sum of the steps to
// free places doesn't depend on the order of insertion.
func crowded(texts []string) bool {
	if len(texts) <= uncrowded {
		return false
	}
	texts = distinct(texts)
	hashes := make([]uint64, len(texts))
	for i, s := range texts {
		h := fnv.New64()
		h.Write([]byte(s))
		hashes[i] = h.Sum64()
	}
	slices.Sort(hashes)
	free, steps := uint64(0), uint64(0)
	for _, h := range hashes {
		free = max(free, h)
		steps += free - h
		if free++; free == 0 || steps > uint64(maxSteps*len(texts)) { // the last place, by chance, is as rare
			return true
		}
	}
	return false
}

// distinct returns each text once. A copy would take as many steps as the text itself.
func distinct(texts []string) []string { return slices.Compact(slices.Sorted(slices.Values(texts))) }
