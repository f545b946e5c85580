package policy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"palyra/internal/canon"
	"palyra/internal/sample"
)

// loadWith is the set with a fix applied, checked as Load checks a directory.
func loadWith(t testing.TB, s *Set, fix string) *Set {
	t.Helper()
	if strings.HasPrefix(fix, "//") {
		return s
	}
	changed, err := s.Patch([]byte(fix))
	if err != nil {
		t.Fatalf("the fix does not apply: %v\n%s", err, fix)
	}
	return changed
}

func TestFix(t *testing.T) {
	call := func(change func(*Request)) Request {
		r := benchRequest()
		change(&r)
		return r
	}
	exec := func(path string) Request { return call(func(r *Request) { r.Context.Executable.Path = path }) }
	tests := []struct {
		name   string
		r      Request
		effect Effect   // before
		after  Effect   // with the fix added; same as effect: a forbid is named
		text   []string // must appear
	}{
		{"allowed", exec("/usr/bin/cat"), Allow, Allow, nil},
		{"unlisted", exec("/usr/bin/jq"), NeedsApproval, Allow, []string{`action == Palyra::Action::"tool.execute"`, `For this call alone: when { context.capsule == "sha256:`, `+  context.executable.path == "/usr/bin/jq" &&`, "palyra policy init DIR"}},
		{"interpreter", exec("/usr/bin/python3.11"), Deny, NeedsApproval, []string{`"interpreter.run"`, `Palyra::Executable::"python"`, "still needs"}},
		{"a secret, for a stranger", call(func(r *Request) {
			r.Principal.Roles, r.Context.Secrets = nil, []string{"vault://global/token"}
		}), Deny, Allow, []string{`action == Palyra::Action::"vault.expose"`, `Palyra::Secret::"vault://global/token"`, `action == Palyra::Action::"tool.execute"`,
			`context.tool == "process.run" &&`, `context.secrets == ["vault://global/token"]`}},
		{"a secret", call(func(r *Request) { r.Context.Secrets = []string{"vault://global/token"} }), NeedsApproval, Allow,
			[]string{`action == Palyra::Action::"vault.expose"`, `Palyra::Secret::"vault://global/token"`}},
		{"a use of a secret", call(func(r *Request) {
			r.Context.EgressHosts, r.Context.Network, r.Context.Capabilities = []string{"packages.example:443"}, NetworkEgress, []string{CapProcessExec, CapNetwork, CapSecretsUse}
			r.Context.EgressSecrets = []string{"T=vault://global/token header:authorization GET packages.example:443/simple/"}
		}), NeedsApproval, Allow, []string{`action == Palyra::Action::"vault.use"`, `Palyra::Secret::"vault://global/token"`, `context.use.host == "packages.example:443" &&`,
			`context.use.methods == ["GET"] &&`, `context.use.path == "/simple/"`, `context.egress_secrets == ["T=vault://global/token header:authorization GET packages.example:443/simple/"]`}},
		{"script of an unknown interpreter", call(func(r *Request) {
			r.Context.Executable.Path, r.Context.Executable.Interpreter = "/srv/x", "/srv/frob"
		}), Deny, NeedsApproval, []string{`Palyra::Executable::"#!frob"`}},
		{"interpreter for a stranger", call(func(r *Request) {
			r.Context.Executable.Path, r.Principal.Roles = "/usr/bin/bash", nil
		}), Deny, Allow, []string{`"interpreter.run"`, `"tool.execute"`}},
		{"stranger", call(func(r *Request) { r.Principal.Roles = nil }), Deny, Allow, []string{`principal == Palyra::User::"alice"`}},
		{"another tool", call(func(r *Request) { r.Resource = Tool("x") }), Deny, Allow, []string{`Palyra::Tool::"x"`}},
		{"writable workspace", call(func(r *Request) { r.Context.WorkspaceReadOnly = false }), NeedsApproval, Allow,
			[]string{"+++ b/30-sensitive.cedar", `+  context.executable.path == `, `For this call alone: unless { principal == Palyra::User::"alice" && context.capsule == "sha256:`}},
		{"two forbids and no permit", call(func(r *Request) {
			r.Context.WorkspaceReadOnly, r.Context.Sensitive, r.Context.Executable.Path = false, true, "/usr/bin/jq"
		}), NeedsApproval, Allow, []string{"+++ b/30-sensitive.cedar", "+++ b/90-allow_", "-unless { context.approved };", "+unless { context.approved }\n", "+unless {\n+  context has capsule &&\n+  principal =="}},
		{"sensitive, without a capsule", call(func(r *Request) {
			r.Action, r.Resource, r.Context = VaultGet, Entity{Type: TypeSecret, ID: "k"}, Context{Sensitive: true}
		}), Deny, NeedsApproval, []string{`action == Palyra::Action::"vault.get"`, `resource == Palyra::Secret::"k"`}},
		{"an action without capsule", call(func(r *Request) {
			r.Action, r.Resource, r.Context = TrustOperate, Entity{Type: TypeWorkspace, ID: "local"}, Context{}
		}), Deny, Allow, []string{`@id("allow_trust_operate")`}},
		{"a yes", call(func(r *Request) {
			r.Action, r.Resource, r.Principal.Roles = ApprovalResolve, Entity{Type: TypeWorkspace, ID: "local"}, nil
			r.Context.Answer = Answer{Tool: "process.run", Requester: "uid:1", Approver: "alice", Approvers: 1}
		}), Deny, Allow, []string{`action == Palyra::Action::"approval.resolve"`, `context.requester == "uid:1"`, `context.scope == "once"`, `context.executable.digest == "sha256:`}},
		{"hostile names", call(func(r *Request) {
			r.Principal = Entity{Type: TypeAgent, ID: "a\"); permit(principal,action,resource); //\n\u202e\x00*"}
		}), Deny, Allow, []string{`\n`}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			d, fix := Default().Decide(test.r), Default().Fix(test.r)
			if d.Effect != test.effect {
				t.Fatalf("got %v %s, want %v", d.Effect, d.Reason, test.effect)
			}
			for _, want := range test.text {
				if !strings.Contains(fix, want) {
					t.Errorf("fix lacks %s:\n%s", want, fix)
				}
			}
			if (fix == "") != (d.Effect == Allow) {
				t.Fatalf("fix %q for %v", fix, d.Effect)
			}
			if d.Effect == Allow {
				return
			}
			s := loadWith(t, Default(), fix)
			if got := s.Decide(test.r); got.Effect != test.after {
				t.Errorf("with the fix: got %v, want %v\n%s", got.Effect, test.after, fix)
			}
			// If the call has a shape, so is the same call with other arguments: otherwise a
			// person would be asked again and again.
			again := test.r
			again.Context.CapsuleDigest = canon.Sum([]byte("other"))
			again.Context.Args = []string{"--other"}
			if got := s.Decide(again).Effect; runsProgram(again.Action) && got != test.after {
				t.Errorf("the fix is for one capsule: the same with other arguments is %v, want %v\n%s", got, test.after, fix)
			}
			// No other shape is let through: each of these is decided as before.
			for name, change := range map[string]func(r *Request){
				"principal":    func(r *Request) { r.Principal.ID = "mallory" },
				"program":      func(r *Request) { r.Context.Executable.Path += "x" },
				"tier":         func(r *Request) { r.Context.Tier = "b" },
				"workspace":    func(r *Request) { r.Context.WorkspaceSource += "/x" },
				"mode":         func(r *Request) { r.Context.WorkspaceReadOnly = !r.Context.WorkspaceReadOnly },
				"network":      func(r *Request) { r.Context.Network = NetworkVoid },
				"hosts":        func(r *Request) { r.Context.EgressHosts = []string{"example.org"} },
				"capabilities": func(r *Request) { r.Context.Capabilities = []string{CapProcessExec, CapSecretsRead} },
				"bytes":        func(r *Request) { r.Context.Executable.Digest = canon.Sum([]byte("other")) },
				"hook":         func(r *Request) { r.Context.Args = []string{"path=.git/hooks/x", "flag=hook"} },
			} {
				other := test.r
				other.Context.CapsuleDigest = canon.Sum([]byte("other"))
				other.Context.Executable.Interpreter = test.r.Context.Executable.Interpreter
				change(&other)
				switch {
				case !runsProgram(other.Action) && name != "principal" && !(answers(other.Action) && (name == "program" || name == "bytes")):
					continue // policy sees no more of it
				case name == "bytes" && (other.Context.Executable.System || !namesProgram(&other)) && runsProgram(other.Action), name == "program" && runsProgram(other.Action) && !namesProgram(&other),
					name == "hook" && (namesProgram(&other) || !runsProgram(other.Action)):
					continue // the shape leaves it to the system, or to the kernel
				}
				if got, want := s.Decide(other).Effect, Default().Decide(other).Effect; got != want {
					t.Errorf("the fix is too wide: a call with another %s went from %v to %v\n%s", name, want, got, fix)
				}
			}
			if !strings.Contains(fix, "Width: ") && runsProgram(test.r.Action) {
				t.Errorf("the fix does not say how wide it is:\n%s", fix)
			}
		})
	}
}

// TestFixProperty: a fix that offers Cedar text always does as it says, whatever the set.
func TestFixProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	offered, excepted := 0, 0
	for range sample.Of(80, 120) {
		var b strings.Builder
		for i := range 1 + rng.IntN(8) {
			b.WriteString(randomPolicy(rng, "p"+string(rune('a'+i))))
		}
		s := mustCompile(t, b.String())
		for range 10 {
			r := randomRequest(rng)
			d, fix := s.Decide(r), s.Fix(r)
			switch {
			case d.Effect == Allow || d.Reason == ReasonPolicyError:
				if fix != "" {
					t.Fatalf("fix for %v %s: %s", d.Effect, d.Reason, fix)
				}
			case strings.HasPrefix(fix, "//"):
				all, err := addition(`permit (principal, action, resource);`)
				if err != nil {
					t.Fatal(err)
				}
				if s.trial(&r, all).Reason == ReasonPolicyError { // a policy about its secrets, which a permitted call would come to
					continue
				}
				t.Fatalf("no change for a call that only this set denies: %s\n%s", fix, b.String())
			default:
				offered++
				files, err := s.patched([]byte(fix))
				if err != nil {
					t.Fatalf("the fix does not apply: %v\n%s", err, fix)
				}
				fixed, err := compile(files)
				if err != nil {
					t.Fatal(err)
				}
				if got := fixed.Decide(r); got.Effect <= d.Effect {
					t.Fatalf("fix leaves it at %v\n%s\n%s", got.Effect, fix, b.String())
				}
				if strings.Contains(fix, "--- a/") {
					excepted++
				}
			}
		}
	}
	if offered < 50 || excepted < 50 {
		t.Errorf("%d fixes offered, %d with exceptions: the generator does not reach both", offered, excepted)
	}
}

// TestFixOfPlanted: content that other programs will run or obey is let through for one content
// at a time.
func TestFixOfPlanted(t *testing.T) {
	r := benchRequest()
	r.Resource, r.Context.Args, r.Context.WorkspaceReadOnly = Tool("fs.write_file"), []string{"path=.git/hooks/pre-commit", "flag=hook"}, false
	d, fix := Default().Decide(r), Default().Fix(r)
	if d.Effect != NeedsApproval || strings.Contains(fix, "Width: ") || !strings.Contains(fix, "context.capsule == ") {
		t.Errorf("%v\n%s", d.Effect, fix)
	}
	r.Context.Args = []string{"path=a.txt"}
	d, fix = Default().Decide(r), Default().Fix(r)
	if s := loadWith(t, Default(), fix); !strings.Contains(fix, "Width: ") || s.Decide(r).Effect != Allow {
		t.Errorf("%v\n%s", d.Effect, fix)
	} else if r.Context.Args = append(r.Context.Args, "flag=ci"); s.Decide(r).Effect != NeedsApproval {
		t.Errorf("the fix lets a build server's file through:\n%s", fix)
	}
}

// TestFixOfEnvironment: a change offered for one call covers none with another environment, and
// holds no value of a variable.
func TestFixOfEnvironment(t *testing.T) {
	plain := benchRequest()
	plain.Context.Executable.Path = "/usr/bin/jq"
	changed := func(env, code []string) Request {
		r := plain
		r.Context.Env, r.Context.EnvCode = env, code
		r.Context.CapsuleDigest = canon.Sum([]byte(strings.Join(env, " ")))
		return r
	}
	calls := []Request{plain, changed([]string{"HOME=/workspace"}, []string{"HOME"}), changed([]string{"X=zz9"}, nil), changed([]string{"X=zz8"}, nil)}
	for i := range calls {
		fix := Default().Fix(calls[i])
		s := loadWith(t, Default(), fix)
		if strings.Contains(fix, "zz9") {
			t.Errorf("the fix holds a value:\n%s", fix)
		}
		for j := range calls {
			if before, after := Default().Decide(calls[j]).Effect, s.Decide(calls[j]).Effect; (after > before) != (i == j) {
				t.Errorf("offered for %v: of %v it makes %v from %v\n%s", calls[i].Context.Env, calls[j].Context.Env, after, before, fix)
			}
		}
	}
}

func TestFixFindsFreeID(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/jq"
	s := loadWith(t, Default(), Default().Fix(r))
	r.Principal.ID = "bob"
	loadWith(t, Default(), Default().Fix(r)) // alone it has the plain id
	if fix := s.Fix(r); !strings.Contains(fix, `_2")`) || !strings.Contains(fix, `_2.cedar`) {
		t.Errorf("id is not free:\n%s", fix)
	}
}

// TestFixOfName: a fix for a program with several names lets only the called one through.
func TestFixOfName(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path, r.Context.Argv0, r.Context.Args = "/usr/bin/coreutils", "/usr/bin/cat", []string{"x"}
	set := loadWith(t, Default(), Default().Fix(r))
	if d := set.Decide(r); d.Effect != Allow {
		t.Fatalf("%+v", d)
	}
	if r.Context.Argv0 = "rm"; set.Decide(r).Effect == Allow {
		t.Error("another program of the same file is let through")
	}
	r.Context.Executable.Path, r.Context.Argv0 = "/usr/bin/jq", "jq"
	if fix := Default().Fix(r); strings.Contains(fix, "argv0") {
		t.Errorf("a name that is the file's own:\n%s", fix)
	}
}
