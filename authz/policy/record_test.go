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

// TestDecideAllocations holds a decision among about ten policies to its goal.
func TestDecideAllocations(t *testing.T) {
	s, r := Default(), benchRequest()
	if n := testing.AllocsPerRun(200, func() { s.Decide(r) }); n > 12 {
		t.Errorf("%v allocations, want at most 12", n)
	}
	// And in the long run varied calls, like those of people at work. One memo in fifty has an
	// unlucky seed, with which a few of their texts collide.
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

// TestQuickAgainstOracle: scopes that share another scope's number in the index, and rules that
// read attributes that the context lacks, are decided as written. No directory with them loads,
// but fuzzing and Default get this far.
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

// TestMemoIsNotSeen: records that a Set keeps never show in another call's answer. Many
// goroutines ask one Set and get the answers of fresh Sets.
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
	for i := range s.memo.texts[attrsOf("cwd").bit()] {
		if kept := s.memo.texts[attrsOf("cwd").bit()][i].Load(); kept != nil && len(kept.text) > memoLongest {
			t.Errorf("keeps %d bytes", len(kept.text))
		}
	}
	for bit := range s.memo.texts {
		for i := range s.memo.texts[bit] {
			if !attrAt(bit).meets(attrRecurring) && s.memo.texts[bit][i].Load() != nil {
				t.Errorf("keeps a text of %v", attributes[bit].path)
			}
		}
	}
}
