package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

func traceOf(t *testing.T, x Explanation, id string) Trace {
	t.Helper()
	for _, tr := range x.Traces {
		if tr.ID == id {
			return tr
		}
	}
	t.Fatalf("no trace of %s", id)
	return Trace{}
}

func TestExplain(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/jq"
	x := Default().Explain(r)
	if x.Decision.Effect != NeedsApproval || x.Kind != Other {
		t.Fatalf("got %v %s", x.Decision.Effect, x.Kind)
	}
	tr := traceOf(t, x, "read_only_programs")
	if tr.Matched || !tr.Principal || !tr.Resource || tr.File != "15-programs.cedar" || tr.Line == 0 {
		t.Errorf("read_only_programs: %+v", tr)
	}
	last := tr.Conditions[len(tr.Conditions)-1]
	if last.Result != "false" || !strings.Contains(last.Text, "context.executable.name") {
		t.Errorf("the condition that failed is not the last: %+v", last)
	}
	for _, c := range tr.Conditions[:len(tr.Conditions)-1] {
		if c.Result != "true" {
			t.Errorf("earlier condition: %+v", c)
		}
	}
	if tr := traceOf(t, x, "approved_programs"); tr.Matched || tr.Conditions[0] != (Condition{"when", "context.approved", "false"}) {
		t.Errorf("approved_programs: %+v", tr)
	}

	r.Context.Executable.Path = "/usr/bin/python3"
	x = Default().Explain(r)
	if x.Kind != Interpreter || x.Family != "python" {
		t.Errorf("kind %s, family %s", x.Kind, x.Family)
	}
	if tr := traceOf(t, x, "interpreters_unless_permitted"); !tr.Matched {
		t.Errorf("interpreters_unless_permitted: %+v", tr)
	}
	if !slices.ContainsFunc(x.Traces, func(tr Trace) bool { return tr.Question == interpreterRun }) {
		t.Error("the question about the interpreter is not shown")
	}

	r.Principal.Roles = nil
	if tr := traceOf(t, Default().Explain(r), "read_only_programs"); tr.Principal || tr.Matched {
		t.Errorf("scope that does not match: %+v", tr)
	}
	if x := Default().Explain(Request{}); x.Decision.Reason != ReasonBadRequest || x.Traces != nil {
		t.Errorf("bad request: %+v", x)
	}
}

// TestExplainAgreesWithDecide: the policies that matched in Explain determined Decide's answer.
func TestExplainAgreesWithDecide(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for range 300 {
		var b strings.Builder
		for i := range 1 + rng.IntN(8) {
			b.WriteString(randomPolicy(rng, "p"+string(rune('a'+i))))
		}
		s := mustCompile(t, b.String())
		r := randomRequest(rng)
		x := s.Explain(r)
		questions := []string{r.Action}
		for _, ref := range r.Context.Secrets {
			questions = append(questions, vaultExpose+" "+ref)
		}
		for _, u := range r.Context.EgressSecrets {
			questions = append(questions, vaultUse+" "+u)
		}
		allow := true
		for _, q := range questions {
			permits, forbids := 0, 0
			for _, tr := range x.Traces {
				if tr.Matched && tr.Question == q {
					if tr.Effect == "permit" {
						permits++
					} else {
						forbids++
					}
				}
			}
			allow = allow && permits > 0 && forbids == 0
		}
		if x.Decision.Reason == ReasonPolicyError {
			continue
		}
		if allow != (x.Decision.Effect == Allow) {
			t.Fatalf("allowed by the policies that matched: %v, decision %v\n%s", allow, x.Decision.Effect, b.String())
		}
	}
}
