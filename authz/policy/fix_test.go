package policy

import (
	"math/rand/v2"
	"strings"
	"testing"

	"palyra/internal/canon"
)

// loadWith is the set with a fix applied, checked as a directory is.
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
			d := Default().Decide(test.r)
			if d.Effect != test.effect {
				t.Fatalf("got %v %s, want %v", d.Effect, d.Reason, test.effect)
			}
			for _, want := range test.text {
				if !strings.Contains(d.Fix, want) {
					t.Errorf("fix lacks %s:\n%s", want, d.Fix)
				}
			}
			if (d.Fix == "") != (d.Effect == Allow) {
				t.Fatalf("fix %q for %v", d.Fix, d.Effect)
			}
			if d.Effect == Allow {
				return
			}
			s := loadWith(t, Default(), d.Fix)
			if got := s.Decide(test.r); got.Effect != test.after {
				t.Errorf("with the fix: got %v, want %v\n%s", got.Effect, test.after, d.Fix)
			}
			// The same with other arguments, where the call has a shape: it is what a person would have to be asked about again and again.
			again := test.r
			again.Context.CapsuleDigest = canon.Sum([]byte("other"))
			again.Context.Args = []string{"--other"}
			if got := s.Decide(again).Effect; runsProgram(again.Action) && got != test.after {
				t.Errorf("the fix is for one capsule: the same with other arguments is %v, want %v\n%s", got, test.after, d.Fix)
			}
			// And no other shape: each of these is decided as it was.
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
					t.Errorf("the fix is too wide: a call with another %s went from %v to %v\n%s", name, want, got, d.Fix)
				}
			}
			if !strings.Contains(d.Fix, "Width: ") && runsProgram(test.r.Action) {
				t.Errorf("the fix does not say how wide it is:\n%s", d.Fix)
			}
		})
	}
}

// A fix that offers Cedar text always does what it says, whatever the set.
func TestFixProperty(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	offered, excepted := 0, 0
	for range 120 {
		var b strings.Builder
		for i := range 1 + rng.IntN(8) {
			b.WriteString(randomPolicy(rng, "p"+string(rune('a'+i))))
		}
		s := mustCompile(t, b.String())
		for range 10 {
			r := randomRequest(rng)
			d := s.Decide(r)
			switch {
			case d.Effect == Allow || d.Reason == ReasonPolicyError:
				if d.Fix != "" {
					t.Fatalf("fix for %v %s: %s", d.Effect, d.Reason, d.Fix)
				}
			case strings.HasPrefix(d.Fix, "//"):
				t.Fatalf("no change for a call that only this set denies: %s\n%s", d.Fix, b.String())
			default:
				offered++
				files, err := s.patched([]byte(d.Fix))
				if err != nil {
					t.Fatalf("the fix does not apply: %v\n%s", err, d.Fix)
				}
				fixed, err := compile(files)
				if err != nil {
					t.Fatal(err)
				}
				if got := fixed.Decide(r); got.Effect <= d.Effect {
					t.Fatalf("fix leaves it at %v\n%s\n%s", got.Effect, d.Fix, b.String())
				}
				if strings.Contains(d.Fix, "--- a/") {
					excepted++
				}
			}
		}
	}
	if offered < 50 || excepted < 50 {
		t.Errorf("%d fixes offered, %d with exceptions: the generator does not reach both", offered, excepted)
	}
}

// TestFixOfPlanted: what other programs will run or obey is let through for one
// content at a time.
func TestFixOfPlanted(t *testing.T) {
	r := benchRequest()
	r.Resource, r.Context.Args, r.Context.WorkspaceReadOnly = Tool("fs.write_file"), []string{"path=.git/hooks/pre-commit", "flag=hook"}, false
	d := Default().Decide(r)
	if d.Effect != NeedsApproval || strings.Contains(d.Fix, "Width: ") || !strings.Contains(d.Fix, "context.capsule == ") {
		t.Errorf("%v\n%s", d.Effect, d.Fix)
	}
	r.Context.Args = []string{"path=a.txt"}
	d = Default().Decide(r)
	if s := loadWith(t, Default(), d.Fix); !strings.Contains(d.Fix, "Width: ") || s.Decide(r).Effect != Allow {
		t.Errorf("%v\n%s", d.Effect, d.Fix)
	} else if r.Context.Args = append(r.Context.Args, "flag=ci"); s.Decide(r).Effect != NeedsApproval {
		t.Errorf("the fix lets a build server's file through:\n%s", d.Fix)
	}
}

// TestFixOfEnvironment: a change offered for one call covers none with another
// environment, and holds no value of a variable.
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
		d := Default().Decide(calls[i])
		s := loadWith(t, Default(), d.Fix)
		if strings.Contains(d.Fix, "zz9") {
			t.Errorf("the fix holds a value:\n%s", d.Fix)
		}
		for j := range calls {
			if before, after := Default().Decide(calls[j]).Effect, s.Decide(calls[j]).Effect; (after > before) != (i == j) {
				t.Errorf("offered for %v: of %v it makes %v from %v\n%s", calls[i].Context.Env, calls[j].Context.Env, after, before, d.Fix)
			}
		}
	}
}

func TestFixFindsFreeID(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/jq"
	s := loadWith(t, Default(), Default().Decide(r).Fix)
	r.Principal.ID = "bob"
	loadWith(t, Default(), Default().Decide(r).Fix) // alone it has the plain id
	if fix := s.Decide(r).Fix; !strings.Contains(fix, `_2")`) || !strings.Contains(fix, `_2.cedar`) {
		t.Errorf("id is not free:\n%s", fix)
	}
}
