package main

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing/fstest"
	"time"

	"palyra/authz/policy"
	"palyra/internal/canon"
)

type generator struct {
	rng    *rand.Rand
	faulty bool // the set of the moment has many policies that fail
}

func pick[T any](g *generator, xs ...T) T { return xs[g.rng.IntN(len(xs))] }

// defaultSet asks the set that is built in.
func (g *generator) defaultSet(requests int) batch {
	s := policy.Default()
	b := batch{Policies: make(map[string]string)}
	names, err := fs.Glob(policy.DefaultFS(), "*.cedar")
	if err != nil {
		panic("cedardiff: internal error: " + err.Error()) // the pattern is constant
	}
	for _, name := range names {
		text, err := fs.ReadFile(policy.DefaultFS(), name)
		if err != nil {
			panic("cedardiff: internal error: " + err.Error()) // embedded
		}
		for _, p := range split(string(text)) {
			b.Policies[policyID.FindStringSubmatch(p)[1]] = p
		}
	}
	if len(b.Policies) != len(s.Policies()) {
		panic("cedardiff: internal error: the default set was not taken apart")
	}
	b.ask(g, s, requests)
	return b
}

var (
	policyID = regexp.MustCompile(`(?m)^@id\("([^"]*)"\)`)
	// policyText is a policy as the default set writes it: from its @id at the
	// start of a line to a line that ends it.
	policyText = regexp.MustCompile(`(?ms)^@id\(.*?;$`)
)

func split(text string) []string { return policyText.FindAllString(text, -1) }

// batch makes a set of n policies and asks it.
func (g *generator) batch(n, requests int) (batch, error) {
	b := batch{Policies: make(map[string]string)}
	files := make(fstest.MapFS)
	g.faulty = g.rng.IntN(3) == 0
	for len(b.Policies) < n {
		id := fmt.Sprintf("p%d", len(b.Policies))
		text := g.policy(id, n > 100)
		// What the loader finds impossible by its types is not a policy of any set.
		if _, err := policy.LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(text)}}); err != nil {
			if strings.Contains(err.Error(), "never") {
				continue
			}
			return b, fmt.Errorf("the generator made an invalid policy: %w\n%s", err, text)
		}
		b.Policies[id] = text
		name := fmt.Sprintf("%d.cedar", len(b.Policies)%3)
		if files[name] == nil {
			files[name] = new(fstest.MapFile)
		}
		files[name].Data = append(files[name].Data, text...)
	}
	s, err := policy.LoadFS(files)
	if err != nil {
		return b, err
	}
	b.ask(g, s, requests)
	return b, nil
}

var errorID = regexp.MustCompile(`^policy "([^"]*)": `)

func (b *batch) ask(g *generator, s *policy.Set, requests int) {
	for range requests {
		r := g.request()
		d := s.Decide(r)
		a := asked{Request: r, Kind: policy.Other, Effect: d.Effect, Reason: d.Reason, Policies: d.Policies}
		if slices.Contains([]string{policy.ToolExecute, policy.SkillExecute, policy.ApprovalResolve, policy.ApprovalSelf}, r.Action) {
			a.Kind, a.Family = policy.Classify(r.Context.Executable.Path, r.Context.Executable.Interpreter)
		}
		for _, e := range d.Errors {
			if m := errorID.FindStringSubmatch(e); m != nil {
				a.Errors = append(a.Errors, m[1])
			} else {
				a.Errors = append(a.Errors, e) // no policy's; the script will differ
			}
		}
		slices.Sort(a.Errors)
		b.Asked = append(b.Asked, a)
	}
}

// policy is a valid policy from a small vocabulary, so that scopes and
// conditions collide often; in a large set few are about the same principal.
func (g *generator) policy(id string, large bool) string {
	principal := pick(g, `principal`, `principal == Palyra::User::"u1"`, `principal == Palyra::Agent::"u1"`, `principal is Palyra::User`,
		`principal in Palyra::Role::"admin"`, `principal in Palyra::Role::"operator"`, `principal is Palyra::User in Palyra::Role::"owner"`,
		`principal == Palyra::User::""`, `principal is Palyra::Agent`)
	if large && g.rng.IntN(50) != 0 {
		principal = fmt.Sprintf(`principal == Palyra::User::"u%d"`, g.rng.IntN(300))
	}
	if g.rng.IntN(5) == 0 {
		return g.authority(id, principal)
	}
	program := g.rng.IntN(4) != 0
	action := pick(g, `action == Palyra::Action::"tool.execute"`, `action in [Palyra::Action::"tool.execute", Palyra::Action::"skill.execute"]`,
		`action in Palyra::Action::"skill.execute"`, `action == Palyra::Action::"interpreter.run"`)
	if !program {
		action = pick(g, `action`, `action == Palyra::Action::"tool.list"`, `action == Palyra::Action::"vault.get"`,
			`action in [Palyra::Action::"tool.execute", Palyra::Action::"tool.list"]`)
	}
	resource := `resource`
	switch action {
	case `action == Palyra::Action::"tool.execute"`:
		resource = pick(g, `resource`, `resource == Palyra::Tool::"r1"`, `resource is Palyra::Tool`, `resource in Palyra::Tool::"process.run"`)
	case `action == Palyra::Action::"interpreter.run"`:
		resource = pick(g, `resource`, `resource == Palyra::Executable::"python"`, `resource == Palyra::Executable::"bash"`, `resource is Palyra::Executable`)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `@id(%q) @untested("generated") %s (%s, %s, %s)`, id, pick(g, "permit", "permit", "forbid"), principal, action, resource)
	if g.faulty && action == `action == Palyra::Action::"tool.execute"` {
		b.WriteString(pick(g, ` when { context.arg_count * 4611686018427387904 < 8 }`, ` when { context.arg_count + 9223372036854775807 > 0 }`))
	}
	for range g.rng.IntN(3) {
		fmt.Fprintf(&b, " %s { %s }", pick(g, "when", "unless"), g.condition(2, program))
	}
	return b.String() + ";\n"
}

// authority is a policy about answers and permissions.
func (g *generator) authority(id, principal string) string {
	principal = pick(g, principal, `principal in Palyra::Permission::"run.start"`, `principal in Palyra::Permission::"vault.manage"`, `principal`)
	var b strings.Builder
	fmt.Fprintf(&b, `@id(%q) @untested("generated") %s (%s, `, id, pick(g, "permit", "permit", "forbid"), principal)
	held := []string{`principal in Palyra::Permission::"trust.operate"`, `principal in [Palyra::Permission::"run.start", Palyra::Permission::"vault.manage"]`,
		`context.features.contains("tokens")`, `context.features.containsAll(["http_admin", "tokens"])`, `context.channel == "web"`, `context.sensitive`,
		`context.device != ""`}
	if g.rng.IntN(2) == 0 {
		b.WriteString(`action == Palyra::Action::"permission.use", ` +
			pick(g, `resource`, `resource == Palyra::Permission::"run.start"`, `resource is Palyra::Permission`, `resource in Palyra::Permission::"vault.manage"`) + ")")
		held = append(held, `principal in resource`, `resource == Palyra::Permission::"trust.operate"`)
	} else {
		b.WriteString(pick(g, `action == Palyra::Action::"approval.resolve"`, `action in [Palyra::Action::"approval.resolve", Palyra::Action::"approval.self"]`) + ", " +
			pick(g, `resource`, `resource == Palyra::Workspace::"r1"`, `resource is Palyra::Workspace`) + ")")
		held = append(held, `context.scope == "once"`, `context.scope != "session"`, `context.pattern`, `context.sensitive_call`, `context.approvers >= 2`,
			`context.approvers * 4611686018427387904 < 8`, `context.requester == context.approver`, `context.requester like "u*"`, `context.tool == "process.run"`,
			`context.capabilities.contains("secrets_read")`, `context.egress_hosts.isEmpty()`, `context.executable.kind == "shell"`, `context.executable.system`,
			`context.tier == "c"`, `context.approved`)
	}
	for range g.rng.IntN(3) {
		c := pick(g, held...)
		if g.rng.IntN(3) == 0 {
			c = "(" + c + pick(g, " && ", " || ") + pick(g, held...) + ")"
		}
		fmt.Fprintf(&b, " %s { %s }", pick(g, "when", "unless"), c)
	}
	return b.String() + ";\n"
}

// condition is an expression of type Bool.
func (g *generator) condition(depth int, program bool) string {
	if depth > 0 && g.rng.IntN(3) == 0 {
		a, b := g.condition(depth-1, program), g.condition(depth-1, program)
		switch g.rng.IntN(5) {
		case 0, 1:
			return "(" + a + " && " + b + ")"
		case 2:
			return "(" + a + " || " + b + ")"
		case 3:
			return "!(" + a + ")"
		default:
			return "(if " + g.condition(depth-1, program) + " then " + a + " else " + b + ")"
		}
	}
	if !program || g.rng.IntN(6) == 0 {
		return pick(g, `context.sensitive`, `context.approved`, `context.session == ""`, `context.run like "r*"`, `context.device != "d1"`,
			`["cli", "web"].contains(context.channel)`, `principal in Palyra::Role::"admin"`, `principal in [Palyra::Role::"owner", Palyra::Role::"admin"]`,
			`principal is Palyra::Agent`, `context has session`, `context.session == context.run`, `principal == Palyra::User::"u1"`)
	}
	return pick(g, `context.interpreter_permitted`, `context.tier == "c"`, `context.executable.kind == "shell"`, `context.executable.family == "python"`,
		`context.executable.path == "/usr/bin/cat"`, `context.executable.dir == "/usr/bin"`, `["cat", "bash", "étude"].contains(context.executable.name)`,
		fmt.Sprintf(`context.executable.digest == %q`, canon.Sum([]byte("1"))), fmt.Sprintf(`context.capsule == %q`, canon.Sum([]byte("2"))),
		`context.executable.system`, `context.executable.interpreter != ""`, `context.executable has path`,
		`context.args.contains("-v")`, `context.args.containsAll(["-v", "x"])`, `context.args.containsAny(["-v", "é\u{202e}"])`, `context.args == ["x", "-v"]`,
		`context.first_arg like "-*"`, `context.first_arg like "*\**"`, `context.arg_count > 1`, `context.arg_count + 1 <= 3`,
		`context.egress_hosts.isEmpty()`, `context.egress_hosts.contains("example.org")`, `context.capabilities.contains("network")`,
		`context.capabilities.containsAny(["secrets_read", "filesystem_write"])`, `context.cwd like "/w*"`, `context.stdin == "none"`, `context.network == "void"`, `context.certificate == "none"`,
		`context.env.contains("PATH=/w")`, `["CI=1", "é=\u{202e}"].containsAll(context.env)`, `context.env_names.contains("PATH")`, `context.env_code.isEmpty()`,
		`["PATH"].containsAll(context.env_code)`, `context.unpinned.contains("library")`, `context.unpinned.containsAny(["absent", "directory"])`,
		`context.workspace.read_only`, `context.workspace.source != ""`, `context.limits.memory * 4611686018427387904 < 8`,
		`context.limits.wall_ms - context.limits.cpu_ms > 0`, `context.limits.pids == 64`, `context.limits.output >= context.limits.file_size`,
		`context.limits == context.limits && context.executable.system`, `context.workspace == {"source": "", "read_only": true}`,
		`context.arg_count * 9223372036854775807 > 0`, `resource in [Palyra::Tool::"r1"]`, `{"a": context.tier}.a == "b"`)
}

func (g *generator) request() policy.Request {
	action := pick(g, policy.ToolExecute, policy.ToolExecute, policy.ToolExecute, policy.SkillExecute, policy.ToolList, policy.VaultGet,
		policy.ApprovalResolve, policy.ApprovalSelf, policy.PermissionUse)
	resource := map[string]string{policy.ToolExecute: policy.TypeTool, policy.SkillExecute: policy.TypeSkill,
		policy.ToolList: policy.TypeWorkspace, policy.VaultGet: policy.TypeSecret, policy.ApprovalResolve: policy.TypeWorkspace,
		policy.ApprovalSelf: policy.TypeWorkspace, policy.PermissionUse: policy.TypePermission}[action]
	digest := func() canon.Digest {
		return pick(g, canon.Digest{}, canon.Sum([]byte("1")), canon.Sum([]byte("2")))
	}
	r := policy.Request{
		Principal: policy.Entity{Type: pick(g, policy.TypeUser, policy.TypeAgent, policy.TypeDevice), ID: pick(g, "u1", "u2", "u\"\\\u202e"),
			Roles: pick(g, nil, []string{policy.RoleOwner}, []string{policy.RoleAdmin}, []string{policy.RoleOperator},
				[]string{policy.RoleOperator, policy.RoleOwner}),
			Scopes: pick(g, nil, nil, []string{}, []string{"run.start", "vault.manage"}, []string{"trust.operate", "session.read"})},
		Action:   action,
		Resource: policy.Entity{Type: resource, ID: pick(g, "r1", "process.run")},
		Context: policy.Context{
			CapsuleDigest: digest(),
			Executable: policy.Executable{Path: pick(g, "/usr/bin/cat", "/usr/bin/bash", "/usr/bin/python3.11", "/étude", "/opt/x/jq"), Digest: digest(),
				System: pick(g, true, false), Interpreter: pick(g, "", "", "", "/bin/dash")},
			Args: pick(g, nil, []string{"-v"}, []string{"x", "-v", "x"}, []string{"", "é\u202e"}, []string{"a*b"}),
			Cwd:  pick(g, "", "/w", "/workspace/\x00"), EgressHosts: pick(g, nil, nil, []string{"example.org"}, []string{"a", "b"}),
			Capabilities: pick(g, nil, []string{policy.CapProcessExec}, []string{policy.CapNetwork, policy.CapProcessExec},
				[]string{policy.CapSecretsRead}, []string{policy.CapFilesystemWrite, policy.CapNetwork}),
			Tier: pick(g, "", "a", "b", "c"),
			Limits: policy.Limits{Wall: pick(g, 0, 1500*time.Microsecond, time.Minute), CPU: pick(g, 0, 10*time.Second), Memory: pick[int64](g, 0, 1, 512<<20),
				PIDs: pick[int64](g, 0, 64), Output: pick[int64](g, 0, 1<<20), FileSize: pick[int64](g, 0, 1<<26)},
			WorkspaceSource: pick(g, "", "/w"), WorkspaceReadOnly: pick(g, true, false), Stdin: pick(g, "", "none", "sealed", "stream"),
			Env: pick(g, nil, nil, []string{"CI=1"}, []string{"CI=1", "PATH=/w"}, []string{"é=\u202e"}), EnvNames: pick(g, nil, nil, []string{"PATH"}),
			Unpinned: pick(g, nil, nil, []string{"library"}, []string{"absent", "directory"}),
			Network:  pick(g, "", "fresh", "void"), Certificate: pick(g, "", "none", "proven", "refuted"),
			SessionID: pick(g, "", "s1", "r1"), RunID: pick(g, "", "r1"), DeviceID: pick(g, "", "d1"), ChannelID: pick(g, "", "cli", "web"),
			Sensitive: pick(g, true, false, false),
		},
	}
	if slices.Contains(r.Context.EnvNames, "PATH") {
		r.Context.EnvCode = pick(g, nil, []string{"PATH"})
	}
	switch action {
	case policy.PermissionUse:
		r.Resource.ID = pick(g, "run.start", "trust.operate", "vault.manage", "session.read")
		r.Context.Features = g.features()
	case policy.ApprovalResolve, policy.ApprovalSelf:
		r.Context.Features = g.features()
		r.Context.Answer = policy.Answer{Tool: pick(g, "", "process.run", "fs.write_file"), Requester: pick(g, "", "u1", "u2"), Approver: r.Principal.ID,
			Scope: pick(g, "", policy.ScopeOnce, policy.ScopeSession, policy.ScopeTimed), Sensitive: pick(g, true, false), Pattern: pick(g, true, false),
			Approvers: pick[int64](g, 0, 1, 2, 3)}
	}
	return r
}

func (g *generator) features() []string {
	return pick(g, nil, []string{"tokens"}, []string{"http_admin", "tokens"}, []string{"standing_grants"})
}
