package policy

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	cedar "github.com/cedar-policy/cedar-go"

	"palyra/authz/policy/internal/policytest"
	"palyra/internal/sample"
)

// asked is Cedar's answer to one question, with ids and errors sorted.
type asked struct {
	allow        bool
	ids, errors  []string
	interpreters []string // permits of interpreter.run, if the answer rests on them
}

// oracle decides by the definition, without Decide's shortcuts: all policies as written, the
// full context, Cedar's own authorizer.
func oracle(s *Set, r Request) Decision {
	e := s.newEvaluation(&r, attrAll)
	m := make(cedar.PolicyMap)
	for _, rule := range s.rules {
		m[cedar.PolicyID(rule.id)] = rule.policy
	}
	ask := func(action cedar.String, res cedar.EntityUID, approved, byName bool) (a asked) {
		dec, diag := cedar.Authorize(m, &e.entities, cedar.Request{
			Principal: uid(r.Principal), Action: cedar.EntityUID{Type: actionType, ID: action}, Resource: res,
			Context: e.facts.record(approved, byName),
		})
		a.allow = dec == cedar.Allow && len(diag.Errors) == 0
		for _, reason := range diag.Reasons {
			a.ids = append(a.ids, string(reason.PolicyID))
		}
		for _, err := range diag.Errors {
			a.errors = append(a.errors, fmt.Sprintf("policy %q: %s", err.PolicyID, err.Message))
		}
		slices.Sort(a.ids)
		slices.Sort(a.errors)
		return a
	}
	answer := func(approved bool) asked {
		var interpreter asked
		if runsProgram(r.Action) && s.want.meets(attrInterpreterPermitted) { // asked if the answer is read
			if k, family := Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter); k.dangerous() {
				interpreter = ask(interpreterRun, cedar.EntityUID{Type: TypeExecutable, ID: cedar.String(family)}, approved, false)
				if len(interpreter.errors) > 0 {
					return interpreter
				}
			}
		}
		a := ask(cedar.String(r.Action), uid(r.Resource), approved, interpreter.allow)
		if n := r.Context.Network; a.allow && runsProgram(r.Action) && (n == "host" || n == "preflight") && !slices.ContainsFunc(a.ids, func(id string) bool {
			text := string(s.byID[id].policy.MarshalCedar())
			return strings.Contains(text, `context.network == "`+n+`"`) || strings.Contains(text, `"`+n+`" == context.network`) ||
				strings.Contains(text, `].contains(context.network)`) && strings.Contains(text, `"`+n+`"`)
		}) {
			return asked{}
		}
		if a.allow && interpreter.allow {
			a.interpreters = interpreter.ids
		}
		for _, ref := range r.Context.Secrets {
			if !a.allow {
				break
			}
			x := ask(vaultExpose, cedar.EntityUID{Type: TypeSecret, ID: cedar.String(ref)}, approved, interpreter.allow)
			if !x.allow {
				return x
			}
			a.ids = append(a.ids, x.ids...)
			slices.Sort(a.ids)
			a.ids = slices.Compact(a.ids)
		}
		for _, text := range r.Context.EgressSecrets {
			if !a.allow {
				break
			}
			_, rest, _ := strings.Cut(text, "=")
			ref, rest, _ := strings.Cut(rest, " ")
			_, rest, _ = strings.Cut(rest, " ") // the place
			var u use
			if methods, to, ok := strings.Cut(rest, " "); ok && !strings.Contains(methods, ":") {
				u.methods, rest = strings.Split(methods, ","), to
			}
			rest, _, _ = strings.Cut(rest, " ")
			host, path, found := strings.Cut(rest, "/")
			if u.host = host; found {
				u.path = "/" + path
			}
			e.facts.about(u)
			x := ask(vaultUse, cedar.EntityUID{Type: TypeSecret, ID: cedar.String(ref)}, approved, interpreter.allow)
			e.facts.about(use{})
			if !x.allow {
				return x
			}
			a.ids = append(a.ids, x.ids...)
			slices.Sort(a.ids)
			a.ids = slices.Compact(a.ids)
		}
		return a
	}
	all := func(lists ...[]string) []string {
		ids := slices.Concat(lists...)
		slices.Sort(ids)
		return slices.Compact(ids)
	}
	plain := answer(false)
	if len(plain.errors) > 0 {
		return Decision{Effect: Deny, Reason: ReasonPolicyError, Errors: plain.errors}
	}
	if plain.allow {
		return Decision{Effect: Allow, Reason: ReasonPermitted, Policies: all(plain.ids, plain.interpreters)}
	}
	approved := answer(true)
	switch {
	case len(approved.errors) > 0:
		return Decision{Effect: Deny, Reason: ReasonPolicyError, Errors: approved.errors}
	case approved.allow:
		// The forbids that approval lifts, and the permits if all of them insist on it.
		d := Decision{Effect: NeedsApproval, Reason: ReasonApprovalRequired, Policies: plain.ids}
		insist := func(id string) bool { return mentions(s.byID[id].ast).meets(attrApproved) }
		if len(plain.ids) == 0 || !slices.ContainsFunc(approved.ids, func(id string) bool { return !insist(id) }) {
			d.Policies = all(plain.ids, approved.ids, approved.interpreters)
		}
		return d
	case len(approved.ids) > 0:
		return Decision{Effect: Deny, Reason: ReasonForbidden, Policies: approved.ids}
	}
	return Decision{Effect: Deny, Reason: ReasonNotPermitted, Policies: plain.ids}
}

// sameAnswer reports whether two decisions agree, for the same reasons.
func sameAnswer(a, b Decision) bool {
	return a.Effect == b.Effect && a.Reason == b.Reason && slices.Equal(a.Policies, b.Policies) && slices.Equal(a.Errors, b.Errors)
}

func pick[T any](rng *rand.Rand, xs ...T) T { return policytest.Pick(rng, xs...) }

func randomPolicy(rng *rand.Rand, id string) string { return policytest.Policy(rng, id) }

func randomRequest(rng *rand.Rand) Request {
	r := benchRequest()
	r.Principal = Entity{Type: pick(rng, TypeUser, TypeAgent), ID: pick(rng, "u1", "u2"),
		Roles: pick(rng, nil, []string{RoleOwner}, []string{RoleAdmin}, []string{RoleOperator}, []string{RoleOperator, RoleOwner})}
	a := pick(rng, ToolExecute, ToolExecute, SkillExecute, ToolList, VaultGet, ApprovalResolve)
	r.Action, r.Resource = a, Entity{Type: resourceType[a], ID: pick(rng, "r1", "process.run", "fs.search", "fs.write_file")}
	c := &r.Context
	c.Sensitive = rng.IntN(2) == 0
	c.Tier = pick(rng, "", "b", "c")
	c.Certificate = pick(rng, "", CertificateProven, CertificateRefuted)
	c.Executable = Executable{Path: pick(rng, "/usr/bin/cat", "/usr/bin/bash", "/usr/bin/python3"), System: rng.IntN(2) == 0,
		Interpreter: pick(rng, "", "", "/bin/dash")}
	c.Argv0 = pick(rng, "", "sh", "/x/cat")
	c.Args = pick(rng, nil, []string{"-v"}, []string{"x", "-v", "x"})
	c.EgressHosts = pick(rng, nil, []string{"example.org"})
	c.Env = pick(rng, nil, []string{"CI=1"}, []string{"CI=1", "PATH=/w"})
	c.EnvNames = pick(rng, nil, []string{"PATH"})
	if len(c.EnvNames) > 0 {
		c.EnvCode = pick(rng, nil, []string{"PATH"})
	}
	c.Unpinned = pick(rng, nil, []string{"absent"}, []string{"directory", "library"})
	c.Capabilities = pick(rng, nil, []string{CapNetwork, CapProcessExec})
	if runsProgram(a) {
		c.Secrets = pick(rng, nil, nil, []string{"vault://global/a"}, []string{"vault://principal:u1/b", "vault://global/a"})
		c.EgressInspect = pick(rng, nil, []string{"GET example.org:443"})
		c.EgressSecrets = pick(rng, nil, nil, []string{"T=vault://global/a header:authorization GET example.org:443/v1/"},
			[]string{"T=vault://global/a header:x example.org:443", "U=vault://principal:u2/b query:key GET,POST example.net:80 form:b_ revoke"})
	}
	c.WorkspaceSource = pick(rng, "", "/w")
	c.WorkspaceReadOnly = rng.IntN(2) == 0
	c.Limits.Memory = pick[int64](rng, 0, 1, 512<<20)
	if a == ApprovalResolve {
		c.Answer = Answer{Tool: "t", Requester: pick(rng, "u1", "u2"), Approver: r.Principal.ID, Scope: pick(rng, "", ScopeOnce, ScopeTimed),
			Pattern: rng.IntN(2) == 0, Sensitive: rng.IntN(2) == 0, Approvers: pick[int64](rng, 0, 1, 2)}
	}
	return r
}

// TestDecideAgainstOracle: index, pruned context and dropped action scopes change nothing;
// neither does the order of policies or of files. A call needs approval exactly if the
// definition says so, so approval lifts no other denial.
func TestDecideAgainstOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	seen := make(map[string]int)
	for range sample.Of(150, 400) {
		n := 1 + rng.IntN(12)
		texts := make([]string, n)
		for i := range texts {
			texts[i] = randomPolicy(rng, "p"+string(rune('a'+i)))
		}
		s := mustCompile(t, strings.Join(texts, ""))
		if err := s.validate(t.Context()); err != nil && !strings.Contains(err.Error(), "never") {
			t.Fatalf("the generator made an invalid policy: %v", err)
		}
		rng.Shuffle(n, func(i, j int) { texts[i], texts[j] = texts[j], texts[i] })
		cut := rng.IntN(n + 1)
		shuffled, err := compile([]file{{"a.cedar", kindPolicy, []byte(strings.Join(texts[:cut], ""))},
			{"b.cedar", kindPolicy, []byte(strings.Join(texts[cut:], ""))}})
		if err != nil {
			t.Fatal(err)
		}
		for range 25 {
			r := randomRequest(rng)
			got, want := s.Decide(r), oracle(s, r)
			if !sameAnswer(got, want) {
				t.Fatalf("got %v %s %q %q, want %v %s %q %q\n%+v\n%s", got.Effect, got.Reason, got.Policies, got.Errors,
					want.Effect, want.Reason, want.Policies, want.Errors, r, strings.Join(texts, ""))
			}
			if other := shuffled.Decide(r); !sameAnswer(other, got) {
				t.Fatalf("order shows: %+v and %+v", got, other)
			}
			if !slices.IsSorted(got.Policies) || !slices.IsSorted(got.Errors) {
				t.Fatalf("not sorted: %q %q", got.Policies, got.Errors)
			}
			seen[got.Reason]++
		}
	}
	for _, reason := range []string{ReasonPermitted, ReasonApprovalRequired, ReasonForbidden, ReasonNotPermitted, ReasonPolicyError} {
		if seen[reason] < sample.Of(3, 20) {
			t.Errorf("reason %s occurred %d times; the generator does not reach it", reason, seen[reason])
		}
	}
}
