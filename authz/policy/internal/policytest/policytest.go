// Package policytest makes policies for tests: at random, and as deep as Cedar's
// syntax lets them be without a bracket.
package policytest

import (
	"math/rand/v2"
	"strings"
)

// Pick returns one of xs.
func Pick[T any](rng *rand.Rand, xs ...T) T { return xs[rng.IntN(len(xs))] }

// Policy is a valid policy from a small vocabulary, so that scopes and
// conditions collide often.
func Policy(rng *rand.Rand, id string) string {
	program := Pick(rng, true, true, false)
	principal := Pick(rng, "principal", `principal == Palyra::User::"u1"`, `principal == Palyra::Agent::"u1"`, `principal is Palyra::User`,
		`principal in Palyra::Role::"admin"`, `principal in Palyra::Role::"operator"`, `principal is Palyra::User in Palyra::Role::"owner"`)
	action := Pick(rng, `action == Palyra::Action::"tool.execute"`, `action in [Palyra::Action::"tool.execute", Palyra::Action::"skill.execute"]`,
		`action in Palyra::Action::"skill.execute"`, `action == Palyra::Action::"interpreter.run"`, `action == Palyra::Action::"vault.expose"`, `action == Palyra::Action::"vault.use"`)
	conds := []string{`context.sensitive`, `context.approved`, `context.interpreter_permitted`, `context.tier == "c"`,
		`context.executable.kind == "shell"`, `context.executable.family == "python"`, `context.args.contains("-v")`,
		`context.first_arg like "-*"`, `context.argv0 == "sh"`, `context.egress_hosts.isEmpty()`, `context.workspace.read_only`, `context.workspace.source != ""`,
		`context.limits.memory * 4611686018427387904 < 8`, `context.capabilities.contains("network")`, `context.arg_count > 1`,
		`principal in Palyra::Role::"admin"`, `context.cwd like "/w*"`, `resource == Palyra::Tool::"r1"`, `resource in Palyra::ToolGroup::"reads"`,
		`(resource in Palyra::ToolGroup::"writes" || resource == Palyra::Tool::"r1")`,
		`["cat", "bash"].contains(context.executable.name)`, `context.capabilities.containsAny(["network", "secrets_read"])`,
		`(if context.sensitive then context.executable.system else context.arg_count < 2)`, `context.limits.memory < 2`,
		`context.executable has path && context.executable.dir == "/usr/bin"`, `context.executable.interpreter != ""`,
		`[context.tier, context.session].containsAll(["c", "ses_1"])`, `context.stdin == "none"`, `context.tool == "r1"`, `context.secrets.contains("vault://global/a")`, `context.use.host == "example.org:443"`, `context.use.methods.contains("GET")`, `context.use.path == ""`, `context.egress_secrets.isEmpty()`, `context.egress_inspect.isEmpty()`, `context.network == "void"`, `context.certificate == "proven"`, `context.env.contains("CI=1")`,
		`["PATH"].containsAll(context.env_names)`, `!context.env_code.isEmpty()`, `context.unpinned.contains("absent")`, `context.inputs.untrusted`, `context.inputs.origins.contains("web")`, `context.limits == context.limits && context.executable.system`}
	if !program {
		action = Pick(rng, "action", `action == Palyra::Action::"tool.list"`, `action == Palyra::Action::"vault.get"`)
		conds = []string{`context.sensitive`, `context.approved`, `context.session == ""`, `principal in Palyra::Role::"admin"`}
	}
	resource := "resource"
	if action == `action == Palyra::Action::"tool.execute"` {
		resource = Pick(rng, "resource", `resource == Palyra::Tool::"r1"`, `resource is Palyra::Tool`, `resource in Palyra::Tool::"process.run"`,
			`resource in Palyra::ToolGroup::"reads"`, `resource is Palyra::Tool in Palyra::ToolGroup::"writes"`)
	}
	if action == `action == Palyra::Action::"vault.expose"` || action == `action == Palyra::Action::"vault.use"` {
		resource = Pick(rng, "resource", `resource == Palyra::Secret::"vault://global/a"`)
	}
	var b strings.Builder
	b.WriteString(`@id("` + id + `") ` + Pick(rng, "permit", "permit", "forbid") + " (" + principal + ", " + action + ", " + resource + ")")
	for range rng.IntN(3) {
		c := Pick(rng, conds...)
		if rng.IntN(3) == 0 {
			c = "(" + c + Pick(rng, " && ", " || ") + Pick(rng, conds...) + ")"
		}
		b.WriteString(" " + Pick(rng, "when", "unless") + " { " + c + " }")
	}
	return b.String() + ";\n"
}

// Chain is something that a policy can nest without brackets.
type Chain struct{ Name, Begin, Each, End string }

// Forbid is a policy of size bytes that has the chain as its condition.
func (c *Chain) Forbid(size int) string {
	head := `@id("x") @untested("deep") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { ` + c.Begin
	return head + strings.Repeat(c.Each, (size-len(head)-len(c.End))/len(c.Each)) + c.End + " };"
}

// Rows reports whether the chain is one of names, which are bounded by themselves.
func (c *Chain) Rows() bool {
	return c.Name == "member" || c.Name == "spaced" || c.Name == "has" || c.Name == "path"
}

// Chains are what a policy can nest without brackets, as often as it likes: begin,
// then each so many times, then end.
var Chains = []Chain{
	{"not", "", "!", "true"},
	{"minus", "0 == ", "-", "context.arg_count"},
	{"plus", "0 == 1", "+1", ""},
	{"times", "0 == context.arg_count", "*1", ""},
	{"and", "context.sensitive", "&&context.sensitive", ""},
	{"or", "context.sensitive", "||context.sensitive", ""},
	{"else", "", "if context.sensitive then false else ", "false"},
	{"word", "", "if principal has a then false else ", "principal has a"},
	{"member", "context", ".a", ""},
	{"index", "context", `["a"]`, ""},
	{"call", "context", `.isIpv4()`, ""},
	{"has", "context has a", ".a", ""},
	{"spaced", "context", " . // .\n a", ""},
	{"path", "resource is Palyra", "::A", ""},
}
