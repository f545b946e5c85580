package main

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"reflect"
	"regexp"
	"slices"
	"strconv"
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
		// A policy that the loader finds impossible by its types can be in no set.
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
		`action in Palyra::Action::"skill.execute"`, `action == Palyra::Action::"interpreter.run"`, `action == Palyra::Action::"vault.expose"`, `action == Palyra::Action::"vault.use"`)
	if !program {
		action = pick(g, `action`, `action == Palyra::Action::"tool.list"`, `action == Palyra::Action::"vault.get"`,
			`action in [Palyra::Action::"tool.execute", Palyra::Action::"tool.list"]`)
	}
	resource := `resource`
	switch action {
	case `action == Palyra::Action::"tool.execute"`:
		resource = pick(g, `resource`, `resource == Palyra::Tool::"r1"`, `resource is Palyra::Tool`, `resource in Palyra::Tool::"process.run"`)
	case `action == Palyra::Action::"vault.expose"`, `action == Palyra::Action::"vault.use"`:
		resource = pick(g, `resource`, `resource == Palyra::Secret::"vault://global/a"`, `resource is Palyra::Secret`)
	case `action == Palyra::Action::"interpreter.run"`:
		resource = pick(g, `resource`, `resource == Palyra::Executable::"python"`, `resource == Palyra::Executable::"bash"`, `resource is Palyra::Executable`)
	}
	var b strings.Builder
	fmt.Fprintf(&b, `@id(%q) @untested("generated") %s (%s, %s, %s)`, id, pick(g, "permit", "permit", "forbid"), principal, action, resource)
	if g.faulty && program {
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
	held := []string{`principal in Palyra::Permission::"trust.operate"`, `principal in [Palyra::Permission::"run.start", Palyra::Permission::"vault.manage"]`}
	about := "Use"
	if g.rng.IntN(2) == 0 {
		b.WriteString(`action == Palyra::Action::"permission.use", ` +
			pick(g, `resource`, `resource == Palyra::Permission::"run.start"`, `resource is Palyra::Permission`, `resource in Palyra::Permission::"vault.manage"`) + ")")
		held = append(held, `principal in resource`, `resource == Palyra::Permission::"trust.operate"`)
	} else {
		b.WriteString(pick(g, `action == Palyra::Action::"approval.resolve"`, `action in [Palyra::Action::"approval.resolve", Palyra::Action::"approval.self"]`) + ", " +
			pick(g, `resource`, `resource == Palyra::Workspace::"r1"`, `resource is Palyra::Workspace`) + ")")
		held = append(held, `context.requester == context.approver`, `context.approvers >= 2`, `context.passkey`, `context.approved`)
		about = "Answer"
	}
	said := func() string {
		if g.rng.IntN(3) == 0 {
			return pick(g, held...)
		}
		return g.about(about)
	}
	for range g.rng.IntN(3) {
		c := said()
		if g.rng.IntN(3) == 0 {
			c = "(" + c + pick(g, " && ", " || ") + said() + ")"
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
	switch {
	case !program && g.rng.IntN(2) == 0:
		return g.about("Origin")
	case !program || g.rng.IntN(6) == 0:
		return pick(g, `context.approved`, `context has session`, `context.session == context.run`, `principal in Palyra::Role::"admin"`,
			`principal in [Palyra::Role::"owner", Palyra::Role::"admin"]`, `principal is Palyra::Agent`, `principal == Palyra::User::"u1"`)
	case g.rng.IntN(3) != 0:
		return g.about("Call")
	}
	return pick(g, `context.interpreter_permitted`, `context.approved`, `context.approved`, `context.approved`, `context.approved`, `context.executable has path`,
		`context.args == ["x", "-v"]`, `context.limits.memory * 4611686018427387904 < 8`, `context.limits.wall_ms - context.limits.cpu_ms > 0`,
		`context.limits.output >= context.limits.file_size`, `context.limits == context.limits && context.executable.system`,
		`context.workspace == {"source": "", "read_only": true, "staged": false}`, `context.arg_count * 9223372036854775807 > 0`, `resource in [Palyra::Tool::"r1"]`,
		`resource in Palyra::ToolGroup::"reads"`, `(resource in Palyra::ToolGroup::"writes" || resource == Palyra::Tool::"r1")`, `{"a": context.tier}.a == "b"`)
}

func (g *generator) request() policy.Request {
	action := pick(g, policy.ToolExecute, policy.ToolExecute, policy.ToolExecute, policy.SkillExecute, policy.ToolList, policy.VaultGet,
		policy.ApprovalResolve, policy.ApprovalSelf, policy.PermissionUse)
	resource := map[string]string{policy.ToolExecute: policy.TypeTool, policy.SkillExecute: policy.TypeSkill,
		policy.ToolList: policy.TypeWorkspace, policy.VaultGet: policy.TypeSecret, policy.ApprovalResolve: policy.TypeWorkspace,
		policy.ApprovalSelf: policy.TypeWorkspace, policy.PermissionUse: policy.TypePermission}[action]
	r := policy.Request{
		Principal: policy.Entity{Type: pick(g, policy.TypeUser, policy.TypeAgent, policy.TypeDevice), ID: pick(g, "u1", "u2", "u\"\\\u202e"),
			Roles: pick(g, nil, []string{policy.RoleOwner}, []string{policy.RoleAdmin}, []string{policy.RoleOperator},
				[]string{policy.RoleOperator, policy.RoleOwner}),
			Scopes: pick(g, nil, nil, []string{}, []string{"run.start", "vault.manage"}, []string{"trust.operate", "session.read"})},
		Action:   action,
		Resource: policy.Entity{Type: resource, ID: pick(g, "r1", "process.run", "fs.search", "fs.apply_patch")},
	}
	c := &r.Context
	g.fill(reflect.ValueOf(c).Elem(), "")
	// What doesn't fit together is refused.
	if c.Executable.Path == "" {
		c.Executable.Path = "/usr/bin/cat"
	}
	if c.Executable.Interpreter == "" {
		c.LineArgs = nil
	}
	if !slices.Contains(c.EnvNames, "PATH") {
		c.EnvCode = nil
	}
	if action != policy.ToolExecute && action != policy.SkillExecute {
		c.Secrets, c.EgressInspect, c.EgressSecrets = nil, nil, nil
	}
	answer := action == policy.ApprovalResolve || action == policy.ApprovalSelf
	if action == policy.PermissionUse {
		r.Resource.ID = pick(g, "run.start", "trust.operate", "vault.manage", "session.read")
	} else if !answer {
		c.Features = nil
	}
	if c.Answer.Approver = r.Principal.ID; !answer {
		c.Answer = policy.Answer{}
	}
	return r
}

// fill gives every field of a part of a request's context a value; prefix is the
// part's path in JSON.
func (g *generator) fill(v reflect.Value, prefix string) {
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
		path := prefix + name
		switch f := v.Field(i).Addr().Interface().(type) {
		case *string:
			*f = pick(g, append(textsOf(path), "")...)
		case *[]string:
			if *f = nil; g.rng.IntN(2) == 0 {
				*f = g.list(textsOf(path))
			}
		case *bool:
			*f = g.rng.IntN(2) == 0
		case *int64:
			*f = pick(g, numbers...)
		case *time.Duration:
			*f = pick(g, 0, 1500*time.Microsecond, 10*time.Second, time.Minute)
		case *canon.Digest:
			*f = pick(g, canon.Digest{}, canon.Sum([]byte("1")), canon.Sum([]byte("2")))
		default:
			g.fill(v.Field(i), path+".")
		}
	}
}

// list is one or two of texts, in any order.
func (g *generator) list(texts []string) []string {
	out := []string{pick(g, texts...)}
	if other := pick(g, texts...); g.rng.IntN(2) == 0 && other != out[0] {
		out = append(out, other)
	}
	return out
}

var numbers = []int64{0, 0, 1, 2, 3, 64, 1 << 20, 512 << 20}

// texts are values, or elements, of attributes and of what requests have, by their
// paths: those that are told apart, and that policies and requests should both have.
// A path that isn't named here, and has no closed list, has those of "".
var texts = map[string][]string{
	"":                       {"x", "r1", "s1", "é\u202e", "/w", "a*b", "\x00"},
	"executable.path":        {"/usr/bin/cat", "/usr/bin/bash", "/usr/bin/python3.11", "/étude", "/opt/x/jq"},
	"executable.dir":         {"/usr/bin", "/", "/opt/x"},
	"executable.name":        {"cat", "bash", "étude"},
	"executable.family":      {"python", "bash", "cat"},
	"executable.interpreter": {"", "", "/bin/dash"},
	"executable.digest":      {canon.Sum([]byte("1")).String(), canon.Sum([]byte("2")).String()},
	"capsule":                {canon.Sum([]byte("1")).String(), canon.Sum([]byte("2")).String()},
	"argv0":                  {"sh", "/usr/bin/cat", "é\u202e"},
	"args":                   {"-v", "x", "-c x", "a*b", "é\u202e"},
	"line_args":              {"-v", "-c x"},
	"first_arg":              {"-v", "x", "a*b"},
	"env":                    {"CI=1", "PATH=/w", "é=\u202e"},
	"env_names":              {"PATH", "CI"},
	"env_code":               {"PATH"},
	"egress_hosts":           {"a.example:443", "packages.example:443", "packages.example:443 rate:5/s", "packages.example:443 rate:5/s open:4 sent:10MiB", "*.cdn.example:443 rate:600/m", "*.cdn.example:443 received:1GiB time:90s"},
	"egress_unlisted":        {"packages.example:443"},
	"egress_inspect":         {"a.example:443", "GET,HEAD b.example:443/v1/", "b.example:443/v1/live websocket", "POST b.example:443/up body:1MiB answer:1KiB", "c.example:443 pin:sha256/d6qzRu9zOECb90Uez27xWltNsj0e1Md7GkYYkVoZWmM="},
	"egress_secrets": {"T=vault://global/a header:authorization a.example:443", "U=vault://principal:u2/b query:key GET,POST b.example:443/v1/",
		"T=vault://principal:u1/b header:x-key a.example:8443 form:npm_ keep revoke"},
	"use.host":          {"a.example:443", "b.example:443", "a.example:8443"},
	"use.methods":       {"GET", "POST"},
	"use.path":          {"/v1/"},
	"use.place":         {"header:authorization", "query:key", "header:x-key"},
	"secrets":           {"vault://global/a", "vault://principal:u1/b", "vault://principal:u2/b"},
	"secrets_of_others": {"vault://principal:u1/b", "vault://principal:u2/b"},
	"tool":              {"process.run", "fs.write_file"},
	"requester":         {"u1", "u2"},
	"approver":          {"u1", "u2"},
	"channel":           {"cli", "web"},
}

// textsOf are the texts of an attribute, or of what a request has where the attribute
// is from.
func textsOf(path string) []string {
	if t := texts[path]; t != nil {
		return t
	}
	for _, a := range policy.Attributes() {
		switch {
		case a.Path != path && a.From != path:
		case a.Values != nil:
			return a.Values
		case texts[a.Path] != nil:
			return texts[a.Path]
		}
	}
	return texts[""]
}

// about is a condition on one of the attributes that a type of context has.
func (g *generator) about(context string) string {
	a := pick(g, policy.Attributes()...)
	for !slices.Contains(a.Contexts, context) {
		a = pick(g, policy.Attributes()...)
	}
	name := "context." + a.Path
	one := func() string { return quoted(pick(g, textsOf(a.Path)...)) }
	switch a.Type {
	case "Bool":
		return name
	case "Long":
		if g.rng.IntN(12) == 0 {
			return name + " * 4611686018427387904 < 8" // what overflows is an error
		}
		n := strconv.FormatInt(pick(g, numbers...), 10)
		return name + pick(g, " == ", " > ", " + 1 <= ", " - 1 >= ") + n
	case "String":
		return pick(g, name+" == "+one(), name+" == "+one(), name+" != "+one(), "["+one()+", "+one()+"].contains("+name+")",
			name+" like "+pick(g, `"/*"`, `"-*"`, `"*\**"`, `"*e*"`))
	}
	two := "[" + one() + ", " + one() + "]"
	return pick(g, name+".contains("+one()+")", name+".contains("+one()+")", name+".containsAll("+two+")", name+".containsAny("+two+")",
		two+".containsAll("+name+")", name+" == ["+one()+"]", name+".isEmpty()")
}

var quoting = strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\x00", `\0`)

// quoted is a text as Cedar writes it.
func quoted(text string) string { return `"` + quoting.Replace(text) + `"` }
