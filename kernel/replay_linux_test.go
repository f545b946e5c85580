package kernel

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"os"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
)

// TestQuestionOf: a call's statement gives back policy's exact question, whatever the call.
func TestQuestionOf(t *testing.T) {
	dir := t.TempDir()
	mount := away(t)
	script := put(t, t.TempDir()+"/script", "#!/bin/cat\n", 0o755)
	tools := table(func(tool string, in []byte) (*Expansion, error) {
		if tool == "m" {
			return &Expansion{Argv: []string{"/bin/cat"}, Exchanges: true, Stdin: in}, nil
		}
		if tool == "d" {
			return &Expansion{Argv: []string{"/bin/cat"}, Workspace: dir, WorkspaceName: "kit", WorkspaceReadOnly: true, Declared: &Declared{Caches: []string{"go"}, Env: []string{"A=1"}}}, nil
		}
		if tool == "b" {
			return &Expansion{Argv: []string{"/bin/cat"}, Background: true}, nil
		}
		return &Expansion{Argv: []string{"/bin/cat", "flag=x"}, Stdin: in, Workspace: dir, Sensitive: true,
			Capabilities: []string{policy.CapSecretsRead}, Limits: isolate.Limits{Memory: 99 << 20}}, nil
	})
	h := openHouse(t, Config{Tools: tools, Vault: vaultWith(t, map[string]string{"vault://global/a": "the first value", "vault://skill:x/b": "the second"})})
	op := Caller{Principal: policy.Entity{Type: policy.TypeAgent, ID: "a\"\\\u202e", Roles: []string{policy.RoleOperator}}, Device: "d", Channel: "http"}
	reader := op
	reader.Read = func() vocabulary.Inputs {
		return vocabulary.Inputs{}.Join(vocabulary.Input{Origin: vocabulary.OriginWeb}, vocabulary.Input{Origin: vocabulary.OriginProject})
	}
	for name, c := range map[string]struct {
		who Caller
		p   Proposal
	}{
		"reader":   {reader, *proposal("true")},
		"program":  {Caller{Principal: policy.LocalUser("u")}, *proposal("true")},
		"denied":   {op, *proposal("/bin/sh", "-c", "true")},
		"stranger": {Caller{Principal: policy.Entity{Type: policy.TypeDevice, ID: "x"}}, *proposal("true")},
		"script":   {op, *proposal(script, "a", "\u00e9")},
		"line":     {op, *proposal(put(t, t.TempDir()+"/line", "#!/bin/cat -c x\n", 0o755), "a")},
		"tool":     {op, Proposal{Tool: "t", Input: []byte(`{}`), SessionID: "s", RunID: "r"}},
		"mcp":      {op, Proposal{Tool: "m", Input: []byte(`{"arguments":{"a=b":"c","long":"` + strings.Repeat("x", 300) + `","n":[1]},"pin":"` + canon.Sum(nil).String() + `","server":"s","tool":"t"}`)}},
		"declared": {op, Proposal{Tool: "d", Input: []byte(`{}`)}},
		"detached": {op, Proposal{Tool: "b", Input: []byte(`{}`)}},
		"loopback": {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, Network: isolate.NetworkLoopback}},
		"hosts":    {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, EgressHosts: []string{"B.example", "a.example:22"}}},
		"signals":  {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true", "--password", "hunter22"}, EgressHosts: []string{"a.example"}}},
		"requests": {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, EgressHosts: []string{"c.example:22"}, EgressInspect: []string{"head,get A.example/v1/"}}},
		"uses": {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, EgressSecrets: []string{"T=vault://global/a header:Authorization GET a.example/v1/ form:npm_",
			"T=vault://global/a header:authorization b.example form:npm_", "U=vault://skill:x/b query:k a.example revoke"}}},
		"session":  {op, Proposal{Tool: ToolRun, Argv: []string{"/bin/true"}, Network: isolate.NetworkSession, SessionID: "s"}},
		"terminal": {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, TTY: &vocabulary.TTY{Rows: 24, Columns: 80, Term: "xterm"}}},
		"staged":   {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Workspace: dir, WorkspaceStaged: true, Layer: "w"}},
		"mount":    {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Mounts: []string{mount}}},
		"secrets":  {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Secrets: []string{"two=vault://skill:x/b", "one=vault://global/a", "again=vault://global/a"}}},
		"cache":    {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Workspace: dir, WorkspaceReadOnly: true, Caches: []string{"two", "one"}}},
		"folder": {op, Proposal{Tool: ToolRun, Argv: []string{"cat"}, Workspace: dir, WorkspaceReadOnly: true, Cwd: "/workspace",
			Stdin: StdinSealed, Network: isolate.NetworkVoid, SessionID: "s"}},
	} {
		t.Run(name, func(t *testing.T) {
			want, err := h.Question(t.Context(), c.who, c.p, strings.NewReader(""))
			if err != nil {
				t.Fatal(err)
			}
			o, err := h.CallAs(t.Context(), c.who, c.p, IO{Stdin: strings.NewReader("")})
			if err != nil {
				t.Fatal(err)
			}
			got, err := QuestionOf(&h.verify(o).Statement.Predicate)
			if err != nil {
				t.Fatal(err)
			}
			if name == "declared" { // values aren't recorded
				want.Context.Env, want.Context.EnvNames = nil, []string{"A", "GOCACHE", "GOTMPDIR"}
			}
			if len(want.Principal.Roles) == 0 {
				want.Principal.Roles = []string{}
			}
			for _, l := range []*[]string{&want.Context.EgressHosts, &want.Context.Args, &got.Context.Args, &got.Context.EgressHosts} {
				if len(*l) == 0 {
					*l = nil
				}
			}
			if !reflect.DeepEqual(got, want) {
				t.Errorf("got  %+v\nwant %+v", got, want)
			}
		})
	}
	if o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u"), Device: strings.Repeat("d", maxAsker)}, *proposal("true"), IO{}); err != nil || o.Outcome != receipt.Executed {
		t.Errorf("a long device stops the call: %v", err)
	} else if v, _ := receipt.Verify(o.Receipt, h.Trust()); v == nil || v.Statement.Predicate.Question != nil {
		t.Error("a long device is recorded")
	} else if _, err := QuestionOf(&v.Statement.Predicate); fault.ReasonOf(err) != "question_not_recorded" {
		t.Errorf("got %v", err)
	}
}

// TestDecisions: newest first, each once, without acts, as far as asked.
func TestDecisions(t *testing.T) {
	h := openHouse(t, Config{})
	var ids []string
	for i := range 4 {
		argv := []string{"true"}
		if i%2 == 1 {
			argv = []string{"/bin/sh"}
		}
		ids = append(ids, h.verify(h.call(proposal(argv...), IO{})).Statement.Predicate.Decision.ID)
		if _, err := h.Record(t.Context(), Act{Act: "test", Principal: "p"}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := h.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for d, err := range Decisions(h.JournalEntries, s.Size, 1000) {
		if err != nil {
			t.Fatal(err)
		}
		if d.Statement.IsIntent() {
			t.Error("the intent of a call that has a result")
		}
		got = append(got, d.ID())
	}
	if len(got) != 4 || got[0] != ids[3] || got[3] != ids[0] {
		t.Errorf("got %v, want %v newest first", got, ids)
	}
	if d, err := FindDecision(h.JournalEntries, s.Size, 1000, ids[1][:12]); err != nil || d.ID() != ids[1] || d.Statement.Predicate.Outcome != receipt.Denied {
		t.Errorf("%v, %v", d.ID(), err)
	} else {
		if fix, err := d.Fix(policy.Default()); err != nil || !strings.HasPrefix(fix, "--- ") {
			t.Errorf("fix %q, %v", fix, err)
		}
		other, err := policy.Default().WithFloor()
		if err != nil {
			t.Fatal(err)
		}
		if fix, err := d.Fix(other); !errors.Is(err, ErrOtherSet) {
			t.Errorf("by another set: fix %q, %v", fix, err)
		}
		// Older records have their own fix, whatever the set.
		d.Statement.Predicate.Decision.Fix = "--- as it was"
		if fix, err := d.Fix(other); err != nil || fix != "--- as it was" {
			t.Errorf("of an older record: fix %q, %v", fix, err)
		}
	}
	for id, reason := range map[string]string{ids[0]: "not_found", "": "invalid_input", "zzzzzzzz": "invalid_input", ids[3] + "00": "invalid_input"} {
		if _, err := FindDecision(h.JournalEntries, s.Size, 3, id); fault.ReasonOf(err) != reason {
			t.Errorf("%q: %v, want %s", id, err, reason)
		}
	}
	broken := func(from, to uint64) iter.Seq2[journal.Record, error] {
		return func(yield func(journal.Record, error) bool) { yield(journal.Record{Content: []byte("x")}, nil) }
	}
	if _, err := FindDecision(broken, 1, 1, ids[0]); fault.KindOf(err) != fault.Integrity {
		t.Errorf("a broken entry: %v", err)
	}
}

// TestReplayIsBounded: a call that would take minutes to match with a candidate's patterns is left out.
func TestReplayIsBounded(t *testing.T) {
	h := openHouse(t, Config{})
	h.call(proposal("true", strings.Repeat("a", 100_000)), IO{})
	h.call(proposal("true", "a"), IO{})
	s, err := h.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for i := range 10 {
		fmt.Fprintf(&b, "@id(\"p%d\") permit (principal, action == Palyra::Action::\"tool.execute\", resource) when { context.first_arg like \"*%sb\" };\n", i, strings.Repeat("a", 50_000))
	}
	to, err := policy.LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(b.String())}})
	if err != nil {
		t.Fatal(err)
	}
	for _, set := range []*policy.Set{to, floored(t, to)} {
		r, err := Replay(t.Context(), h.JournalEntries, s.Size, 10, h.PolicySet(), set)
		if err != nil || r.Decided != 1 || r.Skipped != 1 {
			t.Errorf("%d decided, %d skipped, %v", r.Decided, r.Skipped, err)
		}
	}
}

// TestReplayEnds: the end of the request is the end of reading a journal of many acts and no
// decision.
func TestReplayEnds(t *testing.T) {
	h := openHouse(t, Config{})
	for range 3 * replayChunk {
		if _, err := h.Record(t.Context(), Act{Act: "test.act", Principal: "uid:1"}); err != nil {
			t.Fatal(err)
		}
	}
	s, err := h.JournalStatus(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	count := 0
	read := func(from, to uint64) iter.Seq2[journal.Record, error] {
		count++
		cancel()
		return h.JournalEntries(from, to)
	}
	if _, err := Replay(ctx, read, s.Size, 10, h.PolicySet(), h.PolicySet()); fault.KindOf(err) != fault.Canceled || count != 1 {
		t.Errorf("%v after reading %d times", err, count)
	}
}

func floored(t *testing.T, s *policy.Set) *policy.Set {
	t.Helper()
	f, err := s.WithFloor()
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestDecisionsGoOnDuringReload: the old set decides until a reloaded set of ten thousand
// policies is in force.
func TestDecisionsGoOnDuringReload(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	put(t, dir+"/a.cedar", `@id("all") permit (principal, action, resource);`, 0o644)
	var h *house
	var during, reloading atomic.Int64
	cfg := Config{PolicyDir: dir, TestOnlyStep: func(step string) {
		if step != "loaded" {
			return
		}
		reloading.Add(1)
		for range 100 { // on Reload's own goroutine: a lock that it held would stop the test here
			if d, err := h.Question(t.Context(), Caller{Principal: policy.LocalUser("u")}, *proposal("true"), nil); err != nil {
				t.Error(err)
			} else if a := h.PolicySet().Decide(d); a.Effect == policy.Allow && len(h.PolicySet().Policies()) == 1 {
				during.Add(1)
			}
		}
		if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed || len(o.Decision.Policies) != 1 {
			t.Errorf("a call during a reload: %s by %v", o.Outcome, o.Decision.Policies)
		}
	}}
	h = openHouse(t, cfg)
	old := h.PolicySet().Digest()
	var b strings.Builder
	many := sample.Of(1999, 9999)
	for i := range many {
		fmt.Fprintf(&b, "@id(\"p%d\") permit (principal == Palyra::User::\"u%d\", action == Palyra::Action::\"tool.execute\", resource) when { context.limits.pids < %d };\n", i, i, i)
	}
	text := b.String()
	put(t, dir+"/b.cedar", text[:strings.LastIndex(text[:len(text)/2], "\n")+1], 0o644)
	put(t, dir+"/c.cedar", text[strings.LastIndex(text[:len(text)/2], "\n")+1:], 0o644)
	if err := h.Reload(); err != nil {
		t.Fatal(err)
	}
	if during.Load() != 100 || reloading.Load() != 1 {
		t.Errorf("%d decisions by the old set during %d reloads, want 100 during one", during.Load(), reloading.Load())
	}
	if s := h.PolicySet(); s.Digest() == old || len(s.Policies()) != many+1 {
		t.Errorf("%d policies in force", len(s.Policies()))
	}
	// A set that doesn't load leaves the old one, and never decides.
	put(t, dir+"/d.cedar", `permit;`, 0o644)
	now := h.PolicySet()
	if err := h.Reload(); err == nil || h.PolicySet() != now {
		t.Errorf("a set that does not load: %v", err)
	}
}
