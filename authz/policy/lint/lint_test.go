package lint

import (
	"fmt"
	"math/rand/v2"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"palyra/authz/policy"
	"palyra/authz/policy/internal/policytest"
	"palyra/internal/sample"
)

// TestDefaultSetIsClean: no finding of lint, and no mutant that the policy tests
// do not notice but those that are explained.
func TestDefaultSetIsClean(t *testing.T) {
	findings, err := LintFS(policy.DefaultFS())
	if err != nil || len(findings) > 0 {
		t.Errorf("%v %+v", err, findings)
	}
	m, err := Mutate(policy.Default())
	if err != nil || m.Counts[MutantSurvived] > 0 || len(m.Unproven) > 0 || m.Counts[MutantKilled] < 50 {
		t.Errorf("%v, %v, unproven %q", err, m.Counts, m.Unproven)
	}
	for _, x := range m.Mutants {
		if x.State == MutantSurvived {
			t.Errorf("%s: %s: %s", x.ID, x.Change, x.Cedar)
		}
	}
	c, err := Cover(policy.Default())
	if err != nil || c.Matched != len(c.Policies) || c.Exercised < c.Clauses-1 {
		t.Errorf("%v: %d of %d policies, %d of %d clauses", err, c.Matched, len(c.Policies), c.Exercised, c.Clauses)
	}
}

// TestPresetsAreClean: every preset loads, passes its tests, has no finding of lint and no
// mutant that its tests do not notice.
func TestPresetsAreClean(t *testing.T) {
	for _, name := range policy.Presets() {
		files, ok := policy.PresetFiles(name)
		fsys := fstest.MapFS{}
		for file, data := range files {
			fsys[file] = &fstest.MapFile{Data: data, Mode: 0o644}
		}
		s, err := policy.LoadFS(fsys)
		if err != nil || !ok || len(files) < 8 {
			t.Errorf("%s: %d files, %v", name, len(files), err)
			continue
		}
		if findings, err := LintFS(fsys); err != nil || len(findings) > 0 {
			t.Errorf("%s: %v %+v", name, err, findings)
		}
		m, err := Mutate(s)
		if err != nil || m.Counts[MutantSurvived] > 0 || len(m.Unproven) > 0 || m.Counts[MutantKilled] < 20 {
			t.Errorf("%s: %v, %v, unproven %q", name, err, m.Counts, m.Unproven)
		}
		for _, x := range m.Mutants {
			if x.State == MutantSurvived {
				t.Errorf("%s: %s: %s: %s", name, x.ID, x.Change, x.Cedar)
			}
		}
	}
	if files, ok := policy.PresetFiles("none"); ok || files != nil {
		t.Error("a preset of no name")
	}
}

// TestLint plants one thing at a time beside a sound policy and its test.
func TestLint(t *testing.T) {
	const sound = `@id("base") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"base")
		when { context.tier == "c" && context.executable.kind == "other" && context.limits.pids < 100 };` + "\n"
	const tests = `{"version": 1, "tests": [{"name": "base", "effect": "allow", "request": {
		"principal": {"type": "Palyra::User", "id": "a", "roles": ["owner"]}, "action": "tool.execute",
		"resource": {"type": "Palyra::Tool", "id": "base"}, "context": {"tier": "c"}}}]}`
	call := func(conditions string) string {
		return `@id("p") @untested("here") permit (principal, action == Palyra::Action::"tool.execute", resource) ` + conditions + ";"
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":                    {``, ""},
		"two tiers":                  {call(`when { context.tier == "b" } when { context.tier == "c" }`), "never_matches"},
		"a tier and no tier":         {call(`when { context.tier == "b" && !(["b", "c"].contains(context.tier)) }`), "never_matches"},
		"none of all kinds":          {call(`when { !(["shell", "interpreter", "loader", "wrapper", "other"].contains(context.executable.kind)) }`), "never_matches"},
		"all kinds":                  {call(`when { ["shell", "interpreter", "loader", "wrapper", "other"].contains(context.executable.kind) }`), "always_true shadowed"},
		"x or not x":                 {call(`when { context.sensitive || !context.sensitive }`), "always_true shadowed"},
		"unless x and not x":         {call(`unless { context.sensitive && !context.sensitive }`), "always_false shadowed"},
		"unless what when asks":      {call(`when { context.cwd == "/w" } unless { context.cwd == "/w" }`), "never_matches"},
		"unless true":                {call(`unless { context.arg_count < 3 || context.arg_count >= 3 }`), "never_matches"},
		"has what is always there":   {call(`when { context has tier }`), "always_true shadowed"},
		"empty interval":             {call(`when { context.arg_count > 3 && context.arg_count < 4 }`), "never_matches"},
		"one of an interval":         {call(`when { context.arg_count > 3 && context.arg_count < 5 && context.args.contains("x") }`), ""},
		"holds and empty":            {call(`when { context.args.isEmpty() && context.args.contains("-v") }`), "never_matches"},
		"a path that is not like it": {call(`when { context.executable.path == "/bin/cat" && context.executable.path like "/usr/*" }`), "never_matches"},
		"a path that is":             {call(`when { context.executable.path == "/usr/bin/cat" && context.executable.path like "/usr/*" }`), ""},
		"owner and no operator":      {call(`when { principal in Palyra::Role::"owner" } unless { principal in Palyra::Role::"operator" }`), "never_matches"},
		"operator and no owner":      {call(`when { principal in Palyra::Role::"operator" } unless { principal in Palyra::Role::"owner" }`), ""},
		"two tools":                  {call(`when { resource == Palyra::Tool::"x" && resource == Palyra::Tool::"y" }`), "never_matches"},
		"a tool of another group":    {call(`when { resource in Palyra::ToolGroup::"reads" && resource == Palyra::Tool::"fs.write_file" }`), "never_matches"},
		"a tool of the group":        {call(`when { resource in Palyra::ToolGroup::"writes" && resource == Palyra::Tool::"fs.write_file" }`), ""},
		"two groups":                 {call(`when { resource in Palyra::ToolGroup::"reads" && resource in Palyra::ToolGroup::"writes" }`), "never_matches"},
		"an opaque expression twice": {call(`when { context.limits.memory * 2 > 7 && !(context.limits.memory * 2 > 7) }`), "never_matches"},
		"two opaque expressions":     {call(`when { context.limits.memory * 2 > 7 && !(context.limits.memory * 3 > 7) }`), ""},
		"both branches": {call(`when { if context.sensitive then context.tier == "b" else context.tier == "c" }
			when { context.tier == "a" }`), "never_matches"},
		"narrower than base": {`@id("p") @untested("here") permit (principal in Palyra::Role::"admin", action == Palyra::Action::"tool.execute",
			resource == Palyra::Tool::"base") when { context.tier == "c" && context.executable.kind == "other" && context.limits.pids <= 50 };`, "shadowed"},
		"not narrower: more processes": {`@id("p") @untested("here") permit (principal in Palyra::Role::"admin", action == Palyra::Action::"tool.execute",
			resource == Palyra::Tool::"base") when { context.tier == "c" && context.executable.kind == "other" && context.limits.pids <= 100 };`, ""},
		"a permit that a forbid takes back": {`@id("p") @untested("here") permit (principal, action == Palyra::Action::"vault.get", resource) when { context.run != "" };
			@id("q") @untested("here") forbid (principal, action in [Palyra::Action::"vault.get"], resource) unless { context.run == "" };`, "overruled"},
		"a permit that a forbid narrows": {`@id("p") @untested("here") permit (principal, action == Palyra::Action::"vault.get", resource);
			@id("q") @untested("here") forbid (principal, action == Palyra::Action::"vault.get", resource) unless { context.approved };`, ""},
		"without a test": {`@id("p") permit (principal, action == Palyra::Action::"tool.list", resource);`, "untested"},
		"forbid without": {`@id("p") forbid (principal, action == Palyra::Action::"tool.list", resource);`, "policy_untested"},
		"no such attribute, no such role, types": {`@id("p") permit (principal, action == Palyra::Action::"tool.list", resource) when { context.tier == "c" };
			@id("q") permit (principal in Palyra::Role::"boss", action, resource);
			@id("r") permit (principal, action == Palyra::Action::"tool.list", resource is Palyra::Tool);`,
			"policy_invalid policy_invalid policy_never_matches untested untested untested"},
		"not Cedar": {`permit;`, "policy_invalid"},
	} {
		t.Run(name, func(t *testing.T) {
			findings, err := LintFS(fstest.MapFS{"a.cedar": {Data: []byte(sound + c.text)}, "a.test.json": {Data: []byte(tests)}})
			if err != nil {
				t.Fatal(err)
			}
			var codes []string
			for _, f := range findings {
				codes = append(codes, f.Code)
			}
			slices.Sort(codes)
			if got := strings.Join(codes, " "); got != c.want {
				t.Errorf("got %q, want %q: %+v", got, c.want, findings)
			}
		})
	}
}

// TestLogicIsSound: what the logic says of two policies is so for every request
// that is tried. It may miss things; it must say nothing that is wrong.
func TestLogicIsSound(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	never, within, requests := 0, 0, make([]policy.Request, 100)
	for i := range requests {
		requests[i] = randomRequest(rng)
	}
	for range sample.Of(10, 25) {
		var b strings.Builder
		for i := range 6 {
			b.WriteString(policytest.Policy(rng, fmt.Sprintf("p%d", i)))
		}
		d, why, err := policy.ReadDraftFS(fstest.MapFS{"a.cedar": {Data: []byte(b.String())}})
		if err != nil || why != nil {
			t.Fatal(err, why)
		}
		rules := d.Rules()
		l := newLogic(rules)
		matches := make(map[string][]bool)
		for _, r := range rules {
			matches[r.ID] = matched(d, r, requests)
		}
		for _, r := range rules {
			dead := slices.ContainsFunc(l.clauses(r), func(f Finding) bool { return f.Code == LintNeverMatches })
			if dead {
				never++
			}
			if i := slices.Index(matches[r.ID], true); dead && i >= 0 {
				t.Fatalf("said to match never:\n%s\nof\n%s\nmatches at %d", r.ID, &b, i)
			}
			for _, o := range rules {
				if o.ID == r.ID || !l.within(r.AST, o.AST) {
					continue
				}
				within++
				for i, yes := range matches[r.ID] {
					if yes && !matches[o.ID][i] {
						t.Fatalf("%s is said to match only with %s of\n%s\nand matches at %d", r.ID, o.ID, &b, i)
					}
				}
			}
		}
	}
	if least := sample.Of(1, 3); never < least || within < least {
		t.Errorf("%d policies never match, %d are within others: the generator does not reach both", never, within)
	}
}

// matched evaluates one policy as Cedar would for each question of each request.
func matched(d *policy.Draft, r policy.Rule, requests []policy.Request) (out []bool) {
	for i := range requests {
		for _, q := range d.Questions(requests[i]) {
			_, _, yes := q.Ask(r)
			out = append(out, yes)
		}
	}
	return out
}

// randomRequest is a request from the vocabulary of policytest.Policy.
func randomRequest(rng *rand.Rand) policy.Request {
	pick := func(xs ...string) string { return policytest.Pick(rng, xs...) }
	list := func(xs ...[]string) []string { return policytest.Pick(rng, xs...) }
	flip := func() bool { return rng.IntN(2) == 0 }
	action := policytest.Pick(rng, policy.Actions()...)
	for action.Name == "interpreter.run" || action.Name == "vault.expose" || action.Name == "vault.use" || action.Name == policy.PermissionUse { // Decide's own questions; a permission's name
		action = policytest.Pick(rng, policy.Actions()...)
	}
	if flip() {
		action = policy.Action{Name: policy.ToolExecute, Resource: policy.TypeTool}
	}
	r := policy.Request{Action: action.Name,
		Principal: policy.Entity{Type: pick(policy.TypeUser, policy.TypeAgent), ID: pick("u1", "u2"),
			Roles: list(nil, []string{policy.RoleOwner}, []string{policy.RoleAdmin}, []string{policy.RoleOperator})},
		Resource: policy.Entity{Type: action.Resource, ID: pick("r1", "process.run", "fs.search", "fs.write_file")}}
	c := &r.Context
	c.Sensitive, c.Tier, c.Certificate = flip(), pick("", "b", "c"), pick("", policy.CertificateProven, policy.CertificateRefuted)
	c.Executable = policy.Executable{Path: pick("/usr/bin/cat", "/usr/bin/bash", "/usr/bin/python3"), System: flip(), Interpreter: pick("", "", "/bin/dash")}
	c.Argv0 = pick("", "sh", "/usr/bin/cat")
	c.Args = list(nil, []string{"-v"}, []string{"x", "-v", "x"})
	c.EgressHosts = list(nil, []string{"example.org"})
	c.Env = list(nil, []string{"CI=1"}, []string{"CI=1", "PATH=/w"})
	c.Unpinned = list(nil, []string{"absent"}, []string{"directory", "library"})
	c.Capabilities = list(nil, []string{policy.CapNetwork, policy.CapProcessExec})
	c.WorkspaceSource, c.WorkspaceReadOnly, c.Cwd = pick("", "/w"), flip(), pick("/w", "/tmp")
	if action.Name == policy.ToolExecute {
		c.Secrets = list(nil, nil, []string{"vault://global/a"})
		c.EgressSecrets = list(nil, nil, []string{"T=vault://global/a header:authorization GET example.org:443"})
	}
	c.SessionID, c.Stdin, c.Network = pick("", "ses_1"), pick("", "none", "stream"), pick("", policy.NetworkVoid)
	c.Limits.Memory = policytest.Pick[int64](rng, 0, 1, 512<<20)
	return r
}

// TestDepth: no policy drives what examines policies so deep that a stack ends. What
// ends would be the process: nothing could recover it.
func TestDepth(t *testing.T) {
	// A quarter of what a process has: callers have frames, too.
	defer debug.SetMaxStack(debug.SetMaxStack(256 << 20))
	const permitAll = `@id("all") permit (principal, action, resource);` + "\n"
	sizes := []int{1<<20 - 200, 60 << 10}
	few := sample.Of(3, 1)
	for i, c := range policytest.Chains {
		if i%few != few-1 { // the policy package's own test takes others
			continue
		}
		for k := range sample.Of(1, 2) {
			size := sizes[(i+k)%2]
			files := fstest.MapFS{"a.cedar": {Data: []byte(permitAll + c.Forbid(size))}}
			if _, err := LintFS(files); err != nil {
				t.Errorf("%s: lint of %d bytes: %v", c.Name, size, err)
			}
			if s, err := policy.LoadFS(files); err == nil {
				if _, err := Cover(s); err != nil {
					t.Errorf("%s: coverage of %d bytes: %v", c.Name, size, err)
				}
			}
		}
	}
}

// TestMutate: a weak set whose survivors are known, all of them and no others.
func TestMutate(t *testing.T) {
	s, err := policy.LoadFS(fstest.MapFS{
		"a.cedar": {Data: []byte(`@id("run") @survivor("drop when 2: nobody minds; widen principal: wrong")
			permit (principal in Palyra::Role::"operator", action in [Palyra::Action::"tool.execute", Palyra::Action::"skill.execute"], resource)
			when { context.executable.system && (context.tier == "b" || context.tier == "c") }
			unless { context.sensitive };
			@id("no_net") forbid (principal, action == Palyra::Action::"tool.execute", resource is Palyra::Tool) when { context.capabilities.contains("network") };`)},
		"a.test.json": {Data: []byte(`{"version": 1,
			"base": {"principal": {"type": "Palyra::User", "id": "a", "roles": ["operator"]}, "action": "tool.execute",
				"resource": {"type": "Palyra::Tool", "id": "t"}, "context": {"executable": {"path": "/bin/x", "system": true}, "tier": "c"}},
			"tests": [
				{"name": "runs", "request": {}, "effect": "allow"},
				{"name": "no network", "request": {"context": {"capabilities": ["network"]}}, "effect": "deny", "policies": ["no_net"]},
				{"name": "not mine", "request": {"context": {"executable": {"path": "/bin/x", "system": false}}}, "effect": "deny"},
				{"name": "nobody", "request": {"principal": {"type": "Palyra::User", "id": "a", "roles": []}}, "effect": "deny"}]}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	rep, err := Mutate(s)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string][]string)
	for _, m := range rep.Mutants {
		got[m.State] = append(got[m.State], m.ID+" "+m.Change)
		if (m.By != "") != (m.State == MutantKilled) {
			t.Errorf("%+v", m)
		}
	}
	for state, want := range map[string][]string{
		MutantSurvived:   {"run drop action skill.execute", "run drop when 2 part 1", "run drop unless 1"},
		MutantExplained:  {"run drop when 2"},
		MutantEquivalent: {"no_net widen action", "no_net widen resource"}, // only one action has a resource that is a Tool
		MutantInvalid:    {"run widen action"},
		MutantKilled: {"no_net drop policy", "no_net drop when 1", "run drop policy", "run widen principal", "run drop action tool.execute",
			"run drop when 1", "run drop when 2 part 2"},
	} {
		slices.Sort(want)
		slices.Sort(got[state])
		if !slices.Equal(got[state], want) {
			t.Errorf("%s: got %q, want %q", state, got[state], want)
		}
	}
	if !slices.Equal(rep.Unproven, []string{"run: widen principal"}) {
		t.Errorf("unproven: %q", rep.Unproven)
	}
}

func TestCoverage(t *testing.T) {
	s, err := policy.LoadFS(fstest.MapFS{
		"a.cedar": {Data: []byte(`@id("a") permit (principal, action == Palyra::Action::"tool.list", resource) when { context.run == "r" && context.session == "s" };
			@id("b") permit (principal is Palyra::Agent, action == Palyra::Action::"tool.list", resource) when { context.approved };
			@id("c") permit (principal, action == Palyra::Action::"vault.get", resource) unless { context.sensitive };`)},
		"a.test.json": {Data: []byte(`{"version": 1,
			"base": {"principal": {"type": "Palyra::Agent", "id": "a"}, "action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}, "context": {}},
			"tests": [{"name": "asks", "request": {}, "effect": "needs_approval"}, {"name": "runs", "request": {"context": {"run_id": "r", "session_id": "s"}}, "effect": "allow"}]}`)},
	})
	if err != nil {
		t.Fatal(err)
	}
	c, err := Cover(s)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%d %d %d/%d", c.Tests, c.Matched, c.Exercised, c.Clauses)
	for _, p := range c.Policies {
		got += fmt.Sprintf(" %s:%d/%d", p.ID, p.Matched, p.Asked)
		for _, x := range p.Clauses {
			got += fmt.Sprintf(" %d+%d-", x.True, x.False)
		}
	}
	// "asks" is asked twice, without approval and with; "runs" once.
	if want := "2 2 2/4 a:1/3 1+2- 1+0- b:1/3 1+2- c:0/0 0+0-"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
