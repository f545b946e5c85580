package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

type table func(tool string, input []byte) (*Expansion, error)

func (f table) Expand(_ context.Context, _ policy.Entity, tool string, input []byte) (*Expansion, error) {
	return f(tool, input)
}

// allowTools is a policy directory that permits every tool of the table.
func allowTools(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	put(t, dir+"/tools.cedar", `@id("echo") permit (principal, action, resource == Palyra::Tool::"test.echo");`+"\n"+
		`@id("asked") permit (principal, action, resource == Palyra::Tool::"test.ask") when { context.approved };`+"\n", 0o644)
	return dir
}

// TestTool: a tool's table decides what runs, the capsule names the tool and holds its input,
// and the proposer controls nothing of the command.
func TestTool(t *testing.T) {
	input := []byte(`{"say":"grüße"}`)
	seen := 0
	tools := table(func(tool string, in []byte) (*Expansion, error) {
		seen++
		if !bytes.Equal(in, input) {
			t.Errorf("input %q", in)
		}
		return &Expansion{Argv: []string{"/bin/cat"}, Stdin: in, Limits: isolate.Limits{Wall: 9 * time.Second}, Network: isolate.NetworkVoid,
			Capabilities: []string{policy.CapSecretsRead, policy.CapNetwork, policy.CapNetwork}}, nil
	})
	h := openHouse(t, Config{PolicyDir: allowTools(t), Tools: tools})
	var out bytes.Buffer
	o := h.call(&Proposal{Tool: "test.echo", Input: input, SessionID: "s", RunID: "r", Limits: isolate.Limits{Memory: 64 << 20}}, IO{Stdout: &out})
	if o.Outcome != receipt.Executed || out.String() != string(input) || seen != 1 {
		t.Fatalf("%s, %+v, output %q, expanded %d times", o.Outcome, o.Error, out.String(), seen)
	}
	c, err := capsule.Parse(o.Capsule)
	if err != nil {
		t.Fatal(err)
	}
	if c.Tool != "test.echo" || c.Stdin.Mode != capsule.StdinSealed || c.Stdin.Size != int64(len(input)) || c.Limits.Wall != 9*time.Second ||
		c.Limits.Memory != 64<<20 || c.Network != isolate.NetworkVoid || !slices.Equal(c.Capabilities, []string{"network", "secrets_read"}) {
		t.Errorf("capsule %s", o.Capsule)
	}
	p := h.verify(o).Statement.Predicate
	if p.Tool != "test.echo" || p.SessionID != "s" || p.RunID != "r" || p.Capsule.Network != "void" || len(p.Capsule.Capabilities) != 2 {
		t.Errorf("statement %+v", p)
	}
}

// TestToolDiagnosis: a tool's limits aren't its caller's to change, and the tool explains its own
// errors. The same program without a tool in between is told both.
func TestToolDiagnosis(t *testing.T) {
	var argv []string
	tools := table(func(string, []byte) (*Expansion, error) {
		return &Expansion{Argv: argv, Limits: isolate.Limits{Wall: 300 * time.Millisecond}}, nil
	})
	dir := allowTools(t)
	put(t, dir+"/run.cedar", `@id("run") permit (principal, action, resource == Palyra::Tool::"process.run");`+"\n", 0o644)
	h := openHouse(t, Config{PolicyDir: dir, Tools: tools})
	for _, c := range []struct {
		argv       []string
		tool, own  string // codes
		flag, said string // of the program's own, and in either's text
	}{
		{[]string{"/bin/sleep", "600"}, "time_limit", "time_limit", "--timeout", "300ms"},
		{[]string{"/bin/cat", "/srv/none/x"}, "", "not_shown", "--workspace", ""},
	} {
		argv = c.argv
		got := h.call(&Proposal{Tool: "test.echo", Input: []byte(`{}`)}, IO{}).Diagnosis
		own := h.call(&Proposal{Tool: ToolRun, Argv: argv, Limits: isolate.Limits{Wall: 300 * time.Millisecond}}, IO{}).Diagnosis
		if (got == nil) != (c.tool == "") || got != nil && (got.Code != c.tool || got.Flag+got.Input+got.Config != "" || !strings.Contains(got.Text, c.said)) {
			t.Errorf("%q as a tool: %+v", argv, got)
		}
		if own == nil || own.Code != c.own || own.Flag != c.flag || !strings.Contains(own.Text, c.said) {
			t.Errorf("%q: %+v", argv, own)
		}
	}
}

// TestToolQuestion holds policy's question about a tool.
func TestToolQuestion(t *testing.T) {
	dir := t.TempDir()
	tools := table(func(string, []byte) (*Expansion, error) {
		return &Expansion{Argv: []string{"/bin/cat", "x"}, Workspace: dir, Capabilities: []string{policy.CapSecretsRead}, Sensitive: true}, nil
	})
	k := newKernel(Config{Tools: tools})
	who := Caller{Principal: policy.LocalUser("u"), Device: "d", Channel: "c"}
	q, err := k.Question(t.Context(), who, Proposal{Tool: "test.echo", RunID: "r"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	x := q.Context
	if q.Resource.ID != "test.echo" || !x.Sensitive || x.DeviceID != "d" || x.ChannelID != "c" || x.RunID != "r" ||
		!slices.Equal(x.Capabilities, []string{policy.CapFilesystemWrite, policy.CapSecretsRead}) || x.WorkspaceSource == "" {
		t.Errorf("got %+v", q)
	}
	q, err = k.Question(t.Context(), who, Proposal{Tool: ToolRun, Argv: []string{"cat"}}, nil)
	if err != nil || !slices.Equal(q.Context.Capabilities, []string{policy.CapProcessExec}) || q.Context.Sensitive {
		t.Errorf("got %+v, %v", q, err)
	}
}

// TestToolOperands: arguments that a table declares as text aren't looked up, so nothing in a
// workspace can be mounted over the tool's output.
func TestToolOperands(t *testing.T) {
	dir := t.TempDir()
	put(t, dir+"/x", "content", 0o644)
	for _, leave := range []bool{false, true} {
		s, err := seal(t.Context(), &Proposal{Tool: "test.echo", Argv: []string{"/bin/cat", "path=x", "x"}, Workspace: dir,
			tool: &Expansion{LeaveOperands: leave}}, nil, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(s.capsule.Operands); got != b2i(!leave) {
			t.Errorf("leave %v: %d operands", leave, got)
		}
		s.close()
	}
}

// TestToolRefused: what a proposal may not have beside an input, and what a table may not
// return.
func TestToolRefused(t *testing.T) {
	fine := table(func(string, []byte) (*Expansion, error) { return &Expansion{Argv: []string{"/bin/true"}}, nil })
	for name, c := range map[string]struct {
		tools  Tools
		p      Proposal
		reason string
	}{
		"argv":         {fine, Proposal{Tool: "x", Argv: []string{"id"}}, "invalid_input: the tool says what runs"},
		"env":          {fine, Proposal{Tool: "x", Env: []string{"A=1"}}, "invalid_input: the tool says what runs"},
		"workspace":    {fine, Proposal{Tool: "x", Workspace: "/tmp"}, "invalid_input: the tool says what runs"},
		"cwd":          {fine, Proposal{Tool: "x", Cwd: "/workspace"}, "invalid_input: the tool says what runs"},
		"dir":          {fine, Proposal{Tool: "x", Dir: "/"}, "invalid_input: the tool says what runs"},
		"stdin":        {fine, Proposal{Tool: "x", Stdin: StdinStream}, "invalid_input: the tool says what runs"},
		"network":      {fine, Proposal{Tool: "x", Network: "void"}, "invalid_input: the tool says what runs"},
		"run and both": {fine, Proposal{Tool: ToolRun, Argv: []string{"id"}, Input: json.RawMessage("{}")}, "invalid_input: the tool says what runs"},
		"too large":    {fine, Proposal{Tool: "x", Input: bytes.Repeat([]byte(" "), maxInput+1)}, "too_large: input of "},
		"no table":     {nil, Proposal{Tool: "x"}, "not_found"},
		"table says no": {table(func(string, []byte) (*Expansion, error) { return nil, usage("invalid_input", "x", nil) }),
			Proposal{Tool: "x"}, "invalid_input"},
		"nothing":        {table(func(string, []byte) (*Expansion, error) { return nil, nil }), Proposal{Tool: "x"}, "internal: the table gave nothing to run"},
		"negative limit": {fine, Proposal{Tool: "x", Limits: isolate.Limits{Wall: -1}}, "invalid_input: check limit wall"},
		"refused name": {table(func(string, []byte) (*Expansion, error) {
			return &Expansion{Argv: []string{"true"}, Env: []string{"LD_PRELOAD=x"}}, nil
		}), Proposal{Tool: "x"}, "invalid_input"},
		"unknown network": {table(func(string, []byte) (*Expansion, error) {
			return &Expansion{Argv: []string{"true"}, Network: "none"}, nil
		}), Proposal{Tool: "x"}, "invalid_input: check network"},
	} {
		k := newKernel(Config{Tools: c.tools})
		if _, err := k.Question(t.Context(), Caller{}, c.p, nil); !says(err, c.reason) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// TestToolFloor: a proposal can raise the tool's tier and lower its limits, never the reverse.
func TestToolFloor(t *testing.T) {
	for _, c := range []struct{ tool, asked, want tier.Tier }{
		{tier.None, tier.None, tier.C}, {tier.None, tier.B, tier.C}, {tier.B, tier.None, tier.B}, {tier.B, tier.C, tier.C}, {tier.C, tier.B, tier.C},
	} {
		tools := table(func(string, []byte) (*Expansion, error) {
			return &Expansion{Argv: []string{"true"}, TierFloor: c.tool, Limits: isolate.Limits{PIDs: 5}}, nil
		})
		k := newKernel(Config{Tools: tools})
		p := Proposal{Tool: "x", TierFloor: c.asked, Limits: isolate.Limits{PIDs: 7, Wall: time.Second}}
		if _, err := k.expand(t.Context(), &Caller{Principal: k.cfg.Principal}, &p, nil); err != nil {
			t.Fatal(err)
		}
		if p.TierFloor != c.want || p.Limits.PIDs != 5 || p.Limits.Wall != time.Second || p.Limits.CPU != DefaultLimits().CPU {
			t.Errorf("tool %s, asked %s: tier %s, limits %+v", c.tool, c.asked, p.TierFloor, p.Limits)
		}
	}
}

// TestCallAs: caller and approver come with the call. A caller without a principal is denied.
func TestCallAs(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	p := *proposal("/bin/true")
	for _, c := range []struct {
		who     Caller
		outcome string
	}{
		{Caller{}, receipt.Denied},
		{Caller{Principal: policy.Entity{Type: policy.TypeAgent, ID: "a"}}, receipt.Denied},
		{Caller{Principal: policy.Entity{Type: policy.TypeAgent, ID: "a", Roles: []string{policy.RoleOperator}}}, receipt.Executed},
	} {
		o, err := h.CallAs(t.Context(), c.who, p, IO{})
		if err != nil || o.Outcome != c.outcome {
			t.Fatalf("%+v: %v, %v", c.who, o, err)
		}
		if got := h.verify(o).Statement.Predicate.Principal; got != principal(c.who.Principal) {
			t.Errorf("recorded %s", got)
		}
	}
	// The configured approver isn't this caller's.
	p.Argv = []string{"/usr/bin/mktemp"}
	o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u")}, p, IO{})
	if err != nil || o.Outcome != receipt.NotApproved || o.Approval.Answer != approval.Unreachable {
		t.Errorf("%+v, %v", o, err)
	}
}

// TestObserve: each step is observed once, in order, with its data.
func TestObserve(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	var got []Event
	o := h.call(proposal("/usr/bin/mktemp", "-d"), IO{Observe: func(e Event) { got = append(got, e) }})
	var steps []string
	for _, e := range got {
		steps = append(steps, e.Step)
		if e.CallID != o.CallID || e.Capsule != o.CapsuleDigest {
			t.Errorf("%s of another call", e.Step)
		}
	}
	if want := "sealed decided asked answered intent executed result"; strings.Join(steps, " ") != want {
		t.Fatalf("got %v, want %s", steps, want)
	}
	if got[1].Decision.Effect != policy.NeedsApproval || got[2].Question.Capsule != o.CapsuleDigest || got[3].Approval.Answer != approval.Approved ||
		*got[4].LogIndex != 0 || got[6].Outcome != receipt.Executed || *got[6].LogIndex != o.LogIndex || *o.Intent != 0 {
		t.Errorf("got %+v", got)
	}
	got = nil
	h.call(proposal("/bin/sh"), IO{Observe: func(e Event) { got = append(got, e) }})
	if len(got) != 3 || got[2].Outcome != receipt.Denied {
		t.Errorf("a denied call: %+v", got)
	}
}

// TestReload: the new set decides the next call. A broken one is refused and changes nothing. A
// call that the old set asked about can't run.
func TestReload(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	const asks = "@id(\"p\") permit (principal, action, resource) when { context.approved };\n"
	put(t, dir+"/p.cedar", asks, 0o644)
	var h *house
	reload := func(text string) {
		t.Helper()
		put(t, dir+"/p.cedar", text, 0o644)
		if err := h.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	while := func(approval.Request) {}
	h = openHouse(t, Config{PolicyDir: dir, Approver: answer{yes: true, while: func(q approval.Request) { while(q) }}})
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed {
		t.Fatalf("%s", o.Outcome)
	}
	// The same set again while a person thinks: nothing has changed.
	while = func(approval.Request) { reload(asks) }
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed {
		t.Errorf("after reloading the same: %s, %+v", o.Outcome, o.Error)
	}
	while = func(approval.Request) { reload(asks + "// changed\n") }
	o := h.call(proposal("true"), IO{})
	if o.Outcome != receipt.Refused || o.Error.Reason != "policy_changed" || o.Result != nil || o.Intent != nil {
		t.Errorf("after another set: %s, %+v", o.Outcome, o.Error)
	}
	while = func(approval.Request) {}
	set := h.PolicySet().Digest()
	put(t, dir+"/p.cedar", "permit (", 0o644)
	if err := h.Reload(); err == nil {
		t.Error("a broken set was taken")
	}
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed || o.Decision.PolicySet != set {
		t.Errorf("after a broken set: %s by %s", o.Outcome, o.Decision.PolicySet)
	}
	reload("@id(\"no\") @untested(\"here\") forbid (principal, action, resource);\n")
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Denied || o.Decision.PolicySet == set {
		t.Errorf("after another set: %s", o.Outcome)
	}
}

// TestRecord logs an act and reads the journal through the kernel.
func TestRecord(t *testing.T) {
	h := openHouse(t, Config{})
	h.call(proposal("true"), IO{})
	i, err := h.Record(t.Context(), Act{Act: "policy.reload", Principal: "u", Subject: "policy"})
	if err != nil || i != 2 {
		t.Fatalf("entry %d, %v", i, err)
	}
	b, err := h.Receipt(t.Context(), i)
	if err != nil {
		t.Fatal(err)
	}
	v, err := receipt.Verify(b, h.Trust())
	if err != nil || v.Act == nil || v.Act.Subject != "policy" || v.Act.Seq != 2 || v.Index != 2 {
		t.Errorf("got %+v, %v", v, err)
	}
	if _, err := h.Record(t.Context(), Act{Act: "Bad Name", Principal: "u"}); fault.KindOf(err) != fault.Usage {
		t.Errorf("got %v", err)
	}
	s, err := h.JournalStatus(t.Context())
	if err != nil || s.Size != 3 || len(s.Open) != 0 || s.Checkpoint == "" || s.Origin == "" {
		t.Errorf("status %+v, %v", s, err)
	}
	n := 0
	for rec, err := range h.JournalEntries(1, 100) {
		if err != nil || rec.Index != uint64(n+1) {
			t.Errorf("entry %d, %v", rec.Index, err)
		}
		n++
	}
	p, err := h.JournalProof(t.Context(), 1)
	if err != nil || n != 2 || p.Size != 3 {
		t.Errorf("%d entries, proof %+v, %v", n, p, err)
	}
	if c, err := h.JournalConsistency(t.Context(), 1); err != nil || c.Verify(leafRoot(t, h, 0), p.Root) != nil {
		t.Errorf("consistency: %+v, %v", c, err)
	}
	if err := h.PublishJournal(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, ok := range map[string]bool{"checkpoint": true, "tile/0/000.p/3": true, "tile/entries/000.p/3": true,
		"wal": false, "lock": false, "tile/../wal": false, "../keys/attestation.pem": false, "/etc/passwd": false, "tile": false, "tile/": false} {
		if b, err := h.JournalFile(name); (err == nil && len(b) > 0) != ok || !ok && fault.KindOf(err) != fault.NotFound {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
	}
	if r, err := h.Audit(); err != nil || r.Acts != 1 || r.Results != 1 {
		t.Errorf("audit %+v, %v", r, err)
	}
	h.Close()
	if _, err := h.Record(t.Context(), Act{Act: "x", Principal: "u"}); !says(err, "not_ready: the kernel is closed") {
		t.Errorf("after Close: %v", err)
	}
}

// leafRoot is the root of a log that has only entry i.
func leafRoot(t *testing.T, h *house, i uint64) [32]byte {
	t.Helper()
	for rec, err := range h.JournalEntries(i, i+1) {
		if err != nil {
			t.Fatal(err)
		}
		return journal.LeafHash(rec.Leaf)
	}
	t.Fatalf("no entry %d", i)
	return [32]byte{}
}

// TestCallerLosesTheRight: a call doesn't run if its caller has lost the right when the answer
// comes.
func TestCallerLosesTheRight(t *testing.T) {
	var gone error
	while := func(approval.Request) { gone = fault.New(fault.Denied, "not_a_member", "find role", nil) }
	h := openHouse(t, Config{Approver: answer{yes: true, while: func(q approval.Request) { while(q) }}})
	now := h.cfg.Principal
	who := Caller{Principal: now, Approver: h.cfg.Approver, Still: func() (policy.Entity, error) { return now, gone }}
	if o, err := h.CallAs(t.Context(), who, *proposal("true"), IO{}); err != nil || o.Outcome != receipt.Executed {
		t.Fatalf("%s, %+v, %v", o.Outcome, o.Error, err)
	}
	p := proposal("touch", "x") // needs approval
	p.Workspace = t.TempDir()
	o, err := h.CallAs(t.Context(), who, *p, IO{})
	if err != nil || o.Outcome != receipt.Refused || o.Error.Reason != "not_a_member" || o.Intent != nil || o.Result != nil {
		t.Errorf("%s, %+v, %v", o.Outcome, o.Error, err)
	}
	// Another role, for which policy asks less, or more.
	gone = nil
	while = func(approval.Request) { now.Roles = append(slices.Clone(now.Roles), "admin") }
	if o, err = h.CallAs(t.Context(), who, *p, IO{}); err != nil || o.Outcome != receipt.Executed {
		t.Errorf("with one more role: %s, %+v, %v", o.Outcome, o.Error, err)
	}
	who.Principal = now
	while = func(approval.Request) { now.Roles = nil }
	o, err = h.CallAs(t.Context(), who, *p, IO{})
	if err != nil || o.Outcome != receipt.Refused || o.Error.Reason != "permission_denied" || o.Intent != nil {
		t.Errorf("with no role: %s, %+v, %v", o.Outcome, o.Error, err)
	}
}
