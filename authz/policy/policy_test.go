package policy

import (
	"encoding/json"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/schema/resolved"
	"github.com/cedar-policy/cedar-go/x/exp/schema/validate"

	"palyra/internal/canon"
	"palyra/internal/sample"
)

func defaultWith(tb testing.TB, more map[string]string) fstest.MapFS {
	tb.Helper()
	files, err := readFS(DefaultFS())
	if err != nil {
		tb.Fatal(err)
	}
	fsys := make(fstest.MapFS)
	for _, f := range files {
		fsys[f.name] = &fstest.MapFile{Data: f.data}
	}
	for name, text := range more {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

func mustLoad(tb testing.TB, files map[string]string) *Set {
	tb.Helper()
	fsys := make(fstest.MapFS)
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	s, err := LoadFS(fsys)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// mustCompile skips validation and policy tests.
func mustCompile(tb testing.TB, text string) *Set {
	tb.Helper()
	s, err := compile([]file{{"a.cedar", kindPolicy, []byte(text)}})
	if err != nil {
		tb.Fatalf("%v\n%s", err, text)
	}
	return s
}

// TestDefaultPassesLoad makes the checks of Default that the program skips.
func TestDefaultPassesLoad(t *testing.T) {
	s, err := LoadFS(DefaultFS())
	if err != nil {
		t.Fatal(err)
	}
	if s.Digest() != Default().Digest() {
		t.Error("Default and LoadFS(DefaultFS) differ in digest")
	}
	results := Default().RunTests()
	if len(results) < 25 {
		t.Errorf("%d policy tests ran, want at least 25", len(results))
	}
	for _, r := range results {
		if !r.Passed {
			t.Errorf("%s: %s: got %s, want %s", r.File, r.Name, r.Got, r.Want)
		}
	}
	for _, p := range Default().Policies() {
		if p.Effect == "forbid" && p.Reason == "" {
			t.Errorf("default forbid %s has no @reason for the approval card", p.ID)
		}
	}
}

// TestDefaultSet is the contract for the local user on which kernel and CLI build.
func TestDefaultSet(t *testing.T) {
	base := func(path string) Request {
		return Request{Principal: LocalUser("alice"), Action: ToolExecute, Resource: Tool("process.run"),
			Context: Context{CapsuleDigest: canon.Sum([]byte(path)), Tier: "c", Capabilities: []string{CapProcessExec},
				Executable: Executable{Path: path, System: true}}}
	}
	with := func(path string, change func(*Request)) Request {
		r := base(path)
		change(&r)
		return r
	}
	tests := []struct {
		name   string
		r      Request
		effect Effect
		reason string
	}{
		{"true", base("/bin/true"), Allow, ReasonPermitted},
		{"ls", base("/bin/ls"), Allow, ReasonPermitted},
		{"id", base("/usr/bin/id"), Allow, ReasonPermitted},
		{"cat", base("/usr/bin/cat"), Allow, ReasonPermitted},
		{"grep", base("/usr/bin/grep"), Allow, ReasonPermitted},
		{"sha256sum", base("/usr/bin/sha256sum"), Allow, ReasonPermitted},
		{"read-only workspace", with("/usr/bin/cat", func(r *Request) {
			r.Context.WorkspaceSource, r.Context.WorkspaceReadOnly = "/srv", true
		}), Allow, ReasonPermitted},
		{"writable workspace", with("/usr/bin/cat", func(r *Request) { r.Context.WorkspaceSource = "/srv" }), NeedsApproval, ReasonApprovalRequired},
		{"sort, which starts what --compress-program names", base("/usr/bin/sort"), NeedsApproval, ReasonApprovalRequired},
		{"unlisted", base("/usr/bin/jq"), NeedsApproval, ReasonApprovalRequired},
		{"listed name elsewhere", base("/usr/local/bin/cat"), NeedsApproval, ReasonApprovalRequired},
		{"listed name, not root's", with("/usr/bin/cat", func(r *Request) { r.Context.Executable.System = false }), NeedsApproval, ReasonApprovalRequired},
		{"egress", with("/usr/bin/cat", func(r *Request) { r.Context.EgressHosts = []string{"example.org"} }), NeedsApproval, ReasonApprovalRequired},
		{"bash", base("/usr/bin/bash"), Deny, ReasonForbidden},
		{"busybox as sh", base("/usr/bin/busybox"), Deny, ReasonForbidden},
		{"python", base("/usr/bin/python3.11"), Deny, ReasonForbidden},
		{"loader", base("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"), Deny, ReasonForbidden},
		{"script by its interpreter", with("/srv/tool", func(r *Request) { r.Context.Executable.Interpreter = "/usr/bin/dash" }), Deny, ReasonForbidden},
		{"script by an unknown interpreter", with("/srv/tool", func(r *Request) { r.Context.Executable.Interpreter = "/usr/bin/frobnicate" }), Deny, ReasonForbidden},
		{"no role", with("/bin/true", func(r *Request) { r.Principal.Roles = nil }), Deny, ReasonNotPermitted},
		{"another tool", with("/bin/true", func(r *Request) { r.Resource = Tool("process.kill") }), Deny, ReasonNotPermitted},

		{"zero request", Request{}, Deny, ReasonBadRequest},
		{"unknown action", with("/bin/true", func(r *Request) { r.Action = "tool.explode" }), Deny, ReasonBadRequest},
		{"interpreter.run is ours to ask", with("/bin/true", func(r *Request) { r.Action = interpreterRun }), Deny, ReasonBadRequest},
		{"wrong resource type", with("/bin/true", func(r *Request) { r.Resource = Entity{Type: TypeSecret, ID: "x"} }), Deny, ReasonBadRequest},
		{"wrong principal type", with("/bin/true", func(r *Request) { r.Principal = Tool("x") }), Deny, ReasonBadRequest},
		{"principal without id", with("/bin/true", func(r *Request) { r.Principal.ID = "" }), Deny, ReasonBadRequest},
		{"unknown role", with("/bin/true", func(r *Request) { r.Principal.Roles = []string{"root"} }), Deny, ReasonBadRequest},
		{"roles on a resource", with("/bin/true", func(r *Request) { r.Resource.Roles = []string{RoleOwner} }), Deny, ReasonBadRequest},
		{"unknown tier", with("/bin/true", func(r *Request) { r.Context.Tier = "d" }), Deny, ReasonBadRequest},
		{"unknown certificate", with("/bin/true", func(r *Request) { r.Context.Certificate = "good" }), Deny, ReasonBadRequest},
		{"unknown network", with("/bin/true", func(r *Request) { r.Context.Network = "none" }), Deny, ReasonBadRequest},
		{"unknown stdin", with("/bin/true", func(r *Request) { r.Context.Stdin = "pipe" }), Deny, ReasonBadRequest},
		{"unknown capability", with("/bin/true", func(r *Request) { r.Context.Capabilities = []string{"root"} }), Deny, ReasonBadRequest},
		{"relative executable", with("/bin/true", func(r *Request) { r.Context.Executable.Path = "true" }), Deny, ReasonBadRequest},
		{"unresolved executable", with("/bin/true", func(r *Request) { r.Context.Executable.Path = "/usr/bin/../bin/true" }), Deny, ReasonBadRequest},
		{"no executable", with("/bin/true", func(r *Request) { r.Context.Executable.Path = "" }), Deny, ReasonBadRequest},
		{"argument not UTF-8", with("/bin/true", func(r *Request) { r.Context.Args = []string{"\xff"} }), Deny, ReasonBadRequest},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d := Default().Decide(test.r)
			if d.Effect != test.effect || d.Reason != test.reason {
				t.Fatalf("got %v %s %q %q, want %v %s", d.Effect, d.Reason, d.Policies, d.Errors, test.effect, test.reason)
			}
			if d.PolicySet != Default().Digest() || d.Capsule != test.r.Context.CapsuleDigest || d.ID == [16]byte{} {
				t.Errorf("decision is not bound: %+v", d)
			}
			if (d.Reason == ReasonBadRequest) != (len(d.Errors) == 1) {
				t.Errorf("errors %q with reason %s", d.Errors, d.Reason)
			}
		})
	}
}

// TestOpeningUp tries the documented ways to open up: three lines for everything, one policy
// for an interpreter by name.
func TestOpeningUp(t *testing.T) {
	python := benchRequest()
	python.Context.Executable.Path = "/usr/bin/python3.12"

	all := mustLoad(t, map[string]string{"all.cedar": "@id(\"allow_everything\")\npermit (principal, action, resource);\n"})
	if d := all.Decide(python); d.Effect != Allow || !slices.Equal(d.Policies, []string{"allow_everything"}) {
		t.Errorf("allow_everything: %v %v", d.Effect, d.Policies)
	}

	byName := `@id("python_for_operators")
		permit (principal in Palyra::Role::"operator", action == Palyra::Action::"interpreter.run",
			resource == Palyra::Executable::"python");`
	s, err := LoadFS(defaultWith(t, map[string]string{"50-local.cedar": byName}))
	if err != nil {
		t.Fatal(err)
	}
	d := s.Decide(python)
	if want := []string{"approved_programs", "python_for_operators"}; d.Effect != NeedsApproval || !slices.Equal(d.Policies, want) {
		t.Errorf("python by name: got %v %q, want needs_approval %q", d.Effect, d.Policies, want)
	}
	script := benchRequest()
	script.Context.Executable.Path, script.Context.Executable.Interpreter = "/srv/job", "/usr/bin/python3.12"
	if d := s.Decide(script); d.Effect != NeedsApproval {
		t.Errorf("python script: got %v", d.Effect)
	}
	for _, path := range []string{"/usr/bin/perl", "/usr/bin/bash", "/usr/bin/env"} {
		r := python
		r.Context.Executable.Path = path
		if d := s.Decide(r); d.Effect != Deny {
			t.Errorf("%s: got %v though only python is permitted by name", path, d.Effect)
		}
	}
	python.Principal.Roles = nil
	if d := s.Decide(python); d.Effect != Deny {
		t.Errorf("stranger runs python: %v", d.Effect)
	}
}

func TestEvaluationErrorDenies(t *testing.T) {
	const scope = `(principal, action == Palyra::Action::"tool.execute", resource)`
	const overflow = `context.limits.memory * 9223372036854775807 > 0`
	for name, text := range map[string]string{
		"forbid": `@id("overflows") forbid ` + scope + ` when { ` + overflow + ` };`,
		"permit": `@id("overflows") permit ` + scope + ` when { ` + overflow + ` };`,
		"approved only": `@id("overflows") permit ` + scope + ` when { context.approved && ` + overflow + ` };
			@id("ask") forbid (principal, action, resource) unless { context.approved };`,
		"interpreter": `@id("overflows") permit (principal, action == Palyra::Action::"interpreter.run", resource) when { ` + overflow + ` };
			@id("ask") forbid ` + scope + ` when { !context.interpreter_permitted && context.limits.memory != 0 };`,
	} {
		t.Run(name, func(t *testing.T) {
			s := mustCompile(t, text+`@id("all") permit (principal, action, resource);`)
			r := benchRequest()
			r.Context.Executable.Path = "/usr/bin/bash"
			d := s.Decide(r)
			if d.Effect != Deny || d.Reason != ReasonPolicyError || len(d.Errors) == 0 || !strings.Contains(d.Errors[0], `"overflows"`) {
				t.Fatalf("got %v %s %q, want a recorded policy_error", d.Effect, d.Reason, d.Errors)
			}
			r.Context.Limits.Memory = 0
			if d := s.Decide(r); d.Reason == ReasonPolicyError {
				t.Errorf("control without overflow: %q", d.Errors)
			}
		})
	}
}

func TestDigest(t *testing.T) {
	base := map[string]string{"a.cedar": `@id("a") permit (principal, action, resource);`}
	with := func(name, text string) map[string]string {
		m := maps.Clone(base)
		m[name] = text
		return m
	}
	d := mustLoad(t, base).Digest()
	for name, same := range map[string]struct {
		files map[string]string
		same  bool
	}{
		"again":         {base, true},
		"a test":        {with("t.test.json", `{"version": 1, "tests": []}`), true},
		"the schema":    {with("palyra.cedarschema", Schema()), true},
		"README":        {with("README.md", "hello"), true},
		"another byte":  {map[string]string{"a.cedar": base["a.cedar"] + " "}, false},
		"another name":  {map[string]string{"b.cedar": base["a.cedar"]}, false},
		"an empty file": {with("b.cedar", ""), false},
	} {
		if got := mustLoad(t, same.files).Digest() == d; got != same.same {
			t.Errorf("%s: same digest is %v, want %v", name, got, same.same)
		}
	}
}

func TestEffect(t *testing.T) {
	var d Decision
	if d.Effect != Deny || d.Effect.String() != "deny" {
		t.Error("the zero decision does not deny")
	}
	for _, e := range []Effect{Deny, NeedsApproval, Allow} {
		b, err := json.Marshal(e)
		var back Effect
		if err != nil || json.Unmarshal(b, &back) != nil || back != e {
			t.Errorf("%v does not survive JSON: %s", e, b)
		}
	}
	if _, err := ParseEffect("ALLOW"); err == nil {
		t.Error("ParseEffect is not strict")
	}
	if Effect(7).String() != "deny" {
		t.Error("an unknown effect does not read as deny")
	}
}

// TestContextFitsSchema: Decide builds the context that policies were checked against.
func TestContextFitsSchema(t *testing.T) {
	v := validate.New(resolvedSchema())
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		r := randomRequest(rng)
		e := Default().newEvaluation(&r, attrAll)
		req := cedar.Request{Principal: uid(r.Principal), Action: cedar.EntityUID{Type: actionType, ID: cedar.String(r.Action)},
			Resource: uid(r.Resource), Context: e.facts.record(rng.IntN(2) == 0, rng.IntN(2) == 0)}
		if err := v.Request(req); err != nil {
			t.Fatal(err)
		}
		if err := v.Entity(e.entities.principal); err != nil {
			t.Fatal(err)
		}
	}
	if err := v.Entities(roleEntities); err != nil {
		t.Error(err)
	}
}

func TestSchemaAgreesWithCode(t *testing.T) {
	actions := make(map[string]string)
	for uid, a := range resolvedSchema().Actions {
		if len(a.AppliesTo.Resources) != 1 || len(a.AppliesTo.Principals) != 3 {
			t.Errorf("%s applies to %v and %v", uid, a.AppliesTo.Principals, a.AppliesTo.Resources)
			continue
		}
		actions[string(uid.ID)] = string(a.AppliesTo.Resources[0])
	}
	if actions[interpreterRun] != TypeExecutable {
		t.Errorf("interpreter.run applies to %s", actions[interpreterRun])
	}
	delete(actions, interpreterRun)
	if actions[vaultExpose] != TypeSecret {
		t.Errorf("vault.expose applies to %s", actions[vaultExpose])
	}
	delete(actions, vaultExpose)
	if actions[vaultUse] != TypeSecret {
		t.Errorf("vault.use applies to %s", actions[vaultUse])
	}
	delete(actions, vaultUse)
	if !maps.Equal(actions, resourceType) {
		t.Errorf("schema has %v, code has %v", actions, resourceType)
	}
	call := resolved.RecordType{}
	for _, a := range []cedar.String{ToolExecute, ApprovalResolve} {
		maps.Copy(call, resolvedSchema().Actions[cedar.EntityUID{Type: actionType, ID: a}].AppliesTo.Context)
	}
	for name := range call {
		if attrNames[string(name)].isEmpty() {
			t.Errorf("context.%s is not in attrNames", name)
		}
	}
	for name := range attrNames {
		top, _, _ := strings.Cut(name, ".")
		if _, ok := call[cedar.String(top)]; !ok {
			t.Errorf("attrNames has %s, the schema does not", name)
		}
	}
}

// TestMentions: no attribute that a policy reads is left out of its context.
func TestMentions(t *testing.T) {
	for cond, want := range map[string]attr{
		`context.sensitive`:                              attrsOf("sensitive"),
		`context["sensitive"]`:                           attrsOf("sensitive"),
		`context has approved`:                           attrApproved,
		`context.executable.kind == "shell"`:             attrsOf("executable.kind"),
		`context.executable has path`:                    attrsOf("executable.path"),
		`context.executable == context.executable`:       attrExecutable,
		`context.limits.memory > 1`:                      attrsOf("limits.memory"),
		`context.limits == {"memory": 1}`:                attrsOf("limits"),
		`context.workspace.source != context.cwd`:        attrsOf("workspace.source", "cwd"),
		`context == {"session": ""}`:                     attrAll,
		`[context].contains({"session": ""})`:            attrAll,
		`(if true then context else context).tier == ""`: attrAll,
		`context.later == 1`:                             attrAll,
		`context.requester == context.approver`:          attrsOf("requester", "approver"),
		`context.approvers < 2`:                          attrsOf("approvers"),
		`context.executable.later == 1`:                  attrExecutable,
		`principal == resource`:                          {},
		`"context.tier" == ""`:                           {},
	} {
		s := mustCompile(t, `@id("x") permit (principal, action, resource) unless { `+cond+` };`)
		if s.want != want {
			t.Errorf("%s: got %b, want %b", cond, s.want, want)
		}
	}
}

func TestConcurrentUse(t *testing.T) {
	s := Default()
	want, fixes := make(map[string]Decision), make(map[string]string)
	requests := make(map[string]Request)
	for _, path := range []string{"/usr/bin/cat", "/usr/bin/jq", "/usr/bin/bash"} {
		r := benchRequest()
		r.Context.Executable.Path = path
		requests[path], want[path], fixes[path] = r, s.Decide(r), s.Fix(r)
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range sample.Of(15, 50) {
				for path, r := range requests {
					d := s.Decide(r)
					if w := want[path]; d.Effect != w.Effect || s.Fix(r) != fixes[path] || !slices.Equal(d.Policies, w.Policies) {
						t.Errorf("%s: %v, want %v", path, d, w)
					}
					s.Explain(r)
				}
			}
		})
	}
	wg.Wait()
}
