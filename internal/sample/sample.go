// Package sample says how much of an exhaustive test runs. make test passes -short: then a test
// that kills a process at each of a hundred steps, or tries each of a thousand inputs, takes a few,
// the same ones each time. make exhaustive runs the same tests without -short, whole.
//
//	for _, i := range sample.Steps(steps) {
//		kill(t, steps[i])
//	}
//
// It's for tests alone. make exhaustive finds the tests by their calls of this package, so those
// stand in the Test function itself; conformance/arch holds that.
package sample

import (
	"regexp"
	"testing"
)

// Of returns few with -short, and all without.
func Of(few, all int) int {
	if testing.Short() {
		return few
	}
	return all
}

var number = regexp.MustCompile(`[0-9]+`)

// Steps returns the indexes of the steps to try, in order: with -short one of every fourth kind,
// without it all. Names that differ in numbers alone are of one kind. Of the first such kind it's
// the first step, of the next one the second, and so on around: a sample of early and late ones.
func Steps(names []string) []int {
	var kinds []string
	of := make(map[string][]int)
	for i, name := range names {
		kind := number.ReplaceAllString(name, "")
		if of[kind] == nil {
			kinds = append(kinds, kind)
		}
		of[kind] = append(of[kind], i)
	}
	take := make([]bool, len(names))
	for i := 0; i < len(kinds); i += 4 {
		steps := of[kinds[i]]
		take[steps[i/4%len(steps)]] = true
	}
	var some []int
	for i := range names {
		if take[i] || !testing.Short() {
			some = append(some, i)
		}
	}
	return some
}
