package policy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"sync"
	"testing"
)

// What the goal of issue 3 says of a decision among about ten policies.
func TestDecideAllocations(t *testing.T) {
	s, r := Default(), benchRequest()
	if n := testing.AllocsPerRun(200, func() { s.Decide(r) }); n > 12 {
		t.Errorf("%v allocations, want at most 12", n)
	}
	// And in the long run for calls that differ as those of people at work do. One
	// memo in fifty has an unlucky seed, with which a few of their texts meet.
	all, i, least := variedRequests(), 0, math.Inf(1)
	for range 3 {
		one := *s
		one.memo = newMemo()
		least = min(least, testing.AllocsPerRun(3*len(all), func() { one.Decide(all[i%len(all)]); i++ }))
	}
	if least > 12 {
		t.Errorf("%v allocations on average over %d calls that differ, want at most 12", least, len(all))
	}
}

// Scopes that the index files under the number of something else, and rules
// that read what the context does not have, are decided as written. No
// directory with them loads; fuzzing and Default come this far.
func TestQuickAgainstOracle(t *testing.T) {
	for _, text := range []string{
		`permit (principal == Palyra::User::"", action, resource);`,
		`permit (principal == Palyra::Role::"operator", action, resource);`,
		`permit (principal in Palyra::Role::"", action, resource);`,
		`permit (principal is Palyra::Agent in Palyra::Role::"operator", action, resource);`,
		`permit (principal, action, resource == Palyra::Tool::"");`,
		`permit (principal, action, resource == Palyra::Role::"operator");`,
		`permit (principal, action, resource) when { context.tier == "c" };`,
		`permit (principal, action, resource) when { context.nothing };`,
		`permit (principal, action, resource) when { context.executable.nothing };`,
		`permit (principal, action, resource) when { context.executable == context.executable };`,
		`permit (principal, action, resource) when { context.executable has digest };`,
		`permit (principal, action, resource) when { context has tier };`,
		`permit (principal, action, resource) when { context.tier.v == "c" };`,
		`permit (principal, action, resource) when { context.tier < 3 };`,
		`permit (principal, action, resource) when { context.limits.wall_ms > 5 && {"a": context.args}.a.contains("--") };`,
		`permit (principal, action, resource) when { action in [Palyra::Action::"tool.execute"] };`,
		`permit (principal, action, resource) when { context.session == "ses_1" || context.tier.x };`,
	} {
		s := mustCompile(t, `@id("x") `+text+` @id("y") permit (principal, action, resource) when { !context.sensitive };`)
		for _, action := range []string{ToolExecute, ToolList} {
			for _, kind := range []string{TypeUser, TypeAgent} {
				r := benchRequest()
				r.Principal.Type, r.Action, r.Resource.Type = kind, action, resourceType[action]
				if got, want := s.Decide(r), oracle(s, r); !sameAnswer(got, want) {
					t.Errorf("%s\n%s by %s: got %v %s %q %q, want %v %s %q %q", text, action, kind,
						got.Effect, got.Reason, got.Policies, got.Errors, want.Effect, want.Reason, want.Policies, want.Errors)
				}
			}
		}
	}
}

// What a Set keeps from call to call never shows in another call's answer: many
// goroutines ask one Set and get what fresh Sets answer.
func TestMemoIsNotSeen(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	var text strings.Builder
	for i := range 30 {
		text.WriteString(randomPolicy(rng, fmt.Sprintf("p%d", i)))
	}
	s := mustCompile(t, text.String())
	var requests []Request
	for i := range 200 {
		r := randomRequest(rng)
		r.Context.Cwd = fmt.Sprintf("/w%d%s", i, strings.Repeat("x", i*5)) // more than are kept, and longer
		requests = append(requests, r)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range requests {
				r := requests[(i*(g+1)+g)%len(requests)]
				if got, want := s.Decide(r), oracle(s, r); !sameAnswer(got, want) {
					t.Errorf("got %+v, want %+v", got, want)
				}
			}
		})
	}
	wg.Wait()
	e := s.memo.evaluation()
	if e.all = nil; !reflect.ValueOf(e).Elem().IsZero() {
		t.Errorf("a finished evaluation still holds a call: %+v", e.request)
	}
	for i := range s.memo.texts[attrCwd.bit()] {
		if kept := s.memo.texts[attrCwd.bit()][i].Load(); kept != nil && len(kept.text) > memoLongest {
			t.Errorf("keeps %d bytes", len(kept.text))
		}
	}
	for bit := range s.memo.texts {
		for i := range s.memo.texts[bit] {
			if attr(1)<<bit&attrRecurring == 0 && s.memo.texts[bit][i].Load() != nil {
				t.Errorf("keeps a text of %v", leaves[bit])
			}
		}
	}
}
