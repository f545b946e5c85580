package kernel

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/built"
	"palyra/internal/canon"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
)

// cellBinary builds palyra-cell once. PALYRA_TEST_CELL names a prebuilt one, for hosts without
// a go command.
var cellBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("PALYRA_TEST_CELL"); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "palyra-kernel-test-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "palyra-cell"), built.Into(dir, "palyra-cell")
})

func cellPath(t testing.TB) string {
	t.Helper()
	path, err := cellBinary()
	if err != nil {
		t.Fatalf("build palyra-cell: %v", err)
	}
	return path
}

// answer is an approver that lets the test act before it answers.
type answer struct {
	yes   bool
	while func(approval.Request)
}

func (a answer) Ask(_ context.Context, q approval.Request) (approval.Answer, error) {
	if a.while != nil {
		a.while(q)
	}
	return approval.Answer{Approved: a.yes, Approver: "tester", Surface: "test"}, nil
}

type house struct {
	*Kernel
	t   testing.TB
	dir string
}

func openHouse(t testing.TB, cfg Config) *house {
	t.Helper()
	if cfg.StateDir == "" {
		cfg.StateDir = filepath.Join(t.TempDir(), "state")
	}
	if cfg.CellPath == "" && cfg.testOnlyStart == nil {
		cfg.CellPath = cellPath(t)
	}
	k, err := Open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() })
	return &house{k, t, cfg.StateDir}
}

// call makes a call and checks the invariants of every outcome.
func (h *house) call(p *Proposal, stdio IO) *Outcome {
	h.t.Helper()
	o, err := h.Call(h.t.Context(), *p, stdio)
	if err != nil {
		h.t.Fatalf("%q: %v", p.Argv, err)
	}
	h.verify(o)
	return o
}

func (h *house) verify(o *Outcome) *receipt.Verified {
	h.t.Helper()
	trust, err := receipt.LoadTrust(filepath.Join(h.dir, "trust"))
	if err != nil {
		h.t.Fatal(err)
	}
	v, err := receipt.Verify(o.Receipt, trust)
	if err != nil {
		h.t.Fatalf("receipt of %s: %v", o.Outcome, err)
	}
	p := v.Statement.Predicate
	c, err := capsule.Parse(o.Capsule)
	switch {
	case err != nil:
		h.t.Errorf("capsule: %v", err)
	case v.Outcome != o.Outcome || p.CallID != o.CallID || v.Index != o.LogIndex:
		h.t.Errorf("receipt is of %s %s %d, outcome of %s %s %d", v.Outcome, p.CallID, v.Index, o.Outcome, o.CallID, o.LogIndex)
	case p.Capsule.Digest != canon.Sum(o.Capsule) || !slices.Equal(p.Capsule.Argv, c.Argv):
		h.t.Errorf("receipt is of another capsule")
	case (o.Error == nil) != (o.Outcome == receipt.Executed) || (p.Error == nil) != (o.Error == nil):
		h.t.Errorf("%s with error %v", o.Outcome, o.Error)
	}
	h.repeat(&p)
	h.fixed(o, v)
	return v
}

func (h *house) repeat(p *receipt.Predicate) {
	h.t.Helper()
	q, err := QuestionOf(p)
	if err != nil {
		h.t.Fatal(err)
	}
	set := h.PolicySet()
	if d := set.Decide(q); set.Digest() == p.Decision.PolicySet && (d.Effect.String() != p.Decision.Effect || d.Reason != p.Decision.Reason ||
		!slices.Equal(d.Policies, p.Decision.Policies)) {
		h.t.Errorf("the recorded question is decided %v %v, the call was %v %v", d.Effect, d.Policies, p.Decision.Effect, p.Decision.Policies)
	}
}

// fixed checks that an outcome and its receipt lead to the same fix, and that the receipt
// itself has none.
func (h *house) fixed(o *Outcome, v *receipt.Verified) {
	h.t.Helper()
	d, set := Decided{Statement: v.Statement}, h.PolicySet()
	effect, fix := d.Statement.Predicate.Decision.Effect, d.Statement.Predicate.Decision.Fix
	if (o.Question == nil) != (effect == "allow") || fix != "" {
		h.t.Errorf("%s: a question: %t, the receipt's fix %q", effect, o.Question != nil, fix)
	}
	if o.Question == nil || set.Digest() != o.Decision.PolicySet || set.Reads("env") {
		return
	}
	none := o.Decision.Reason == policy.ReasonBadRequest || o.Decision.Reason == policy.ReasonPolicyError
	if got, err := d.Fix(set); err != nil || (got == "") != none || got != set.Fix(*o.Question) {
		h.t.Errorf("the record leads to the fix %q (%v), the outcome to %q", got, err, set.Fix(*o.Question))
	}
}

// audit closes the kernel and puts the whole journal through the oracle.
func (h *house) audit() *receipt.AuditReport {
	h.t.Helper()
	if err := h.Close(); err != nil {
		h.t.Fatal(err)
	}
	return audit(h.t, h.dir)
}

func audit(t testing.TB, dir string) *receipt.AuditReport {
	t.Helper()
	trust, err := receipt.LoadTrust(filepath.Join(dir, "trust"))
	if err != nil {
		t.Fatal(err)
	}
	r, err := receipt.Audit(filepath.Join(dir, "journal"), trust)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestAllowed(t *testing.T) {
	h := openHouse(t, Config{Warm: tier.C})
	var out, errs bytes.Buffer
	o := h.call(proposal("/bin/echo", "hello"), IO{Stdout: &out, Stderr: &errs})
	if o.Outcome != receipt.Executed || o.Exit != 0 || out.String() != "hello\n" || errs.Len() != 0 || !o.Delivered {
		t.Fatalf("%s, exit %d, %q, %q, %+v", o.Outcome, o.Exit, out.String(), errs.String(), o.Error)
	}
	v := h.verify(o)
	var e evidence.Evidence
	if err := json.Unmarshal(v.Statement.Predicate.Evidence, &e); err != nil {
		t.Fatal(err)
	}
	if e.Tier != "c" || e.Output.StdoutDigest != canon.Sum([]byte("hello\n")) || e.Output.StdoutBytes != 6 || e.Executable.Digest.IsZero() {
		t.Errorf("evidence: %+v", e)
	}
	if s := v.Statement.Subject; len(s) != 3 || s[1].Digest.SHA256 != canon.Sum([]byte("hello\n")).Hex() {
		t.Errorf("subjects: %+v", s)
	}
	if o := h.call(proposal("false"), IO{}); o.Outcome != receipt.Executed || o.Exit != 1 {
		t.Errorf("false: %s, exit %d", o.Outcome, o.Exit)
	}
	if r := h.audit(); r == nil {
		t.Error("no report")
	}
}

func TestDenied(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	for _, argv := range [][]string{{"/bin/sh", "-c", "true"}, {"env", "true"}} {
		o := h.call(proposal(argv...), IO{})
		if o.Outcome != receipt.Denied || o.Exit != 126 || o.Approval != nil || o.Result != nil || o.Error.Kind != "denied" {
			t.Errorf("%q: %s, exit %d, %+v", argv, o.Outcome, o.Exit, o.Error)
		}
		if !strings.HasPrefix(h.PolicySet().Fix(*o.Question), "--- ") || len(o.Decision.Policies) == 0 {
			t.Errorf("%q: no fix or no policy: %+v", argv, o.Decision)
		}
	}
	script := put(t, t.TempDir()+"/script", "#!/bin/sh\ntrue\n", 0o755)
	if o := h.call(proposal(script), IO{}); o.Outcome != receipt.Denied {
		t.Errorf("a shell script: %s", o.Outcome)
	}
	if r := h.audit(); r.Intents != 0 || r.Outcomes[receipt.Denied] != 3 {
		t.Errorf("audit: %+v", r)
	}
}

// unknown is a program that the default set doesn't list: it needs approval.
func unknown(t *testing.T, of string) string {
	t.Helper()
	b, err := os.ReadFile(of)
	if err != nil {
		t.Fatal(err)
	}
	return put(t, t.TempDir()+"/tool", string(b), 0o755)
}

func TestApproval(t *testing.T) {
	for _, c := range []struct {
		name     string
		approver approval.Approver
		outcome  string
		reason   string
		exit     int
	}{
		{"yes", answer{yes: true}, receipt.Executed, "", 0},
		{"no", answer{}, receipt.NotApproved, "denied", 126},
		{"nobody", nil, receipt.NotApproved, "unreachable", 126},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openHouse(t, Config{Approver: c.approver})
			o := h.call(proposal(unknown(t, "/bin/true")), IO{})
			if o.Outcome != c.outcome || o.Exit != c.exit || o.Approval == nil || o.Error != nil && o.Error.Reason != c.reason {
				t.Fatalf("%s, exit %d, %+v, %+v", o.Outcome, o.Exit, o.Approval, o.Error)
			}
			p := h.verify(o).Statement.Predicate
			if p.Approval == nil || p.Approval.Capsule != o.CapsuleDigest || p.Decision.Effect != "needs_approval" {
				t.Errorf("receipt: %+v", p.Approval)
			}
			if r := h.audit(); r.Intents != b2i(c.outcome == receipt.Executed) || len(r.Orphans) != 0 {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

func TestApprovedIsWhatRuns(t *testing.T) {
	ws := t.TempDir()
	put(t, ws+"/tool", contentAt(t, "/bin/cat"), 0o755)
	put(t, ws+"/in", "approved\n", 0o644)
	evil := contentAt(t, "/bin/echo")
	var asked approval.Request
	h := openHouse(t, Config{Approver: answer{yes: true, while: func(q approval.Request) {
		asked = q
		put(t, ws+"/tool", evil, 0o755)
		put(t, ws+"/in", "changed\n", 0o644)
	}}})
	p := proposal("./tool", "in", "/workspace/in")
	p.Workspace = ws
	var out, errs bytes.Buffer
	o := h.call(p, IO{Stdout: &out, Stderr: &errs})
	if o.Outcome != receipt.Executed || out.String() != "approved\napproved\n" {
		t.Fatalf("%s, %q, %q, %+v", o.Outcome, out.String(), errs.String(), o.Error)
	}
	if asked.Capsule != o.CapsuleDigest || len(asked.Call.Operands) != 2 || asked.Call.Workspace != ws || len(asked.Call.Why) == 0 || asked.Call.Why[0].Reason == "" {
		t.Errorf("asked: %+v", asked)
	}
	if f := h.verify(o).Statement.Predicate.Capsule.Operands; len(f) != 2 || f[0].Pinned != "sealed" || f[1].Pinned != "sealed" {
		t.Errorf("receipt: %+v", f)
	}
	// The host's file has the other's change; the cell's copy doesn't.
	if got := contentAt(t, ws+"/in"); got != "changed\n" {
		t.Errorf("the workspace holds %q", got)
	}
}

func contentAt(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestTimeout(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	p := proposal("sleep", "1000")
	p.Limits.Wall = 300 * time.Millisecond
	start := time.Now()
	o := h.call(p, IO{})
	if d := time.Since(start); o.Outcome != receipt.TimedOut || o.Exit != 124 || o.Error.Kind != "timeout" || d > 20*time.Second {
		t.Errorf("%s, exit %d, %+v after %v", o.Outcome, o.Exit, o.Error, d)
	}
	if o.Result == nil || o.Result.Evidence == nil || !o.Result.Evidence.Exit.TreeDead {
		t.Errorf("evidence: %+v", o.Result)
	}
	if r := h.audit(); r.Intents != 1 || r.Outcomes[receipt.TimedOut] != 1 {
		t.Errorf("audit: %+v", r)
	}
}

func TestCallerGivesUp(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	ctx, cancel := context.WithCancel(t.Context())
	out := writerFunc(func(b []byte) (int, error) { cancel(); return len(b), nil })
	p := proposal(unknown(t, "/usr/bin/yes"))
	o, err := h.Call(ctx, *p, IO{Stdout: out})
	if err != nil {
		t.Fatal(err)
	}
	h.verify(o)
	if o.Outcome != receipt.Killed || o.Exit == 0 {
		t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
	}
	ctx, cancel = context.WithCancel(t.Context())
	h.cfg.Approver = answer{yes: true, while: func(approval.Request) { cancel() }}
	o, err = h.Call(ctx, *p, IO{})
	if err != nil {
		t.Fatal(err)
	}
	h.verify(o)
	if o.Outcome != receipt.NotApproved || o.Error.Reason != "withdrawn" {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
}

// TestGivesUpBeforeIntent: nothing starts for a caller that is gone.
func TestGivesUpBeforeIntent(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cfg := withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) { t.Error("ran"); return nil, nil })
	cfg.TestOnlyStep = func(step string) {
		if step == "granted" {
			cancel()
		}
	}
	h := openHouse(t, cfg)
	o, err := h.Call(ctx, *proposal("true"), IO{})
	if err != nil {
		t.Fatal(err)
	}
	h.verify(o)
	if o.Outcome != receipt.Refused || o.Error.Kind != "canceled" {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
	if r := h.audit(); r.Intents != 0 {
		t.Errorf("audit: %+v", r)
	}
}

func TestFlood(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	var out bytes.Buffer
	p := proposal("seq", "1", "200000")
	p.Limits.Output = 1000
	o := h.call(p, IO{Stdout: &out})
	e := o.Result.Evidence.Output
	if o.Outcome != receipt.Executed || out.Len() != 1000 || e.StdoutBytes != 1000 || e.Cut != 1288895-1000 || e.StdoutDigest != canon.Sum(out.Bytes()) {
		t.Errorf("%s, %d bytes, %+v", o.Outcome, out.Len(), e)
	}
}

func TestStdinReachesTheProgram(t *testing.T) {
	h := openHouse(t, Config{Approver: answer{yes: true}})
	for mode, in := range map[StdinMode]string{StdinNone: "", StdinSealed: "sealed\n", StdinStream: strings.Repeat("stream\n", 100000)} {
		var out bytes.Buffer
		p := proposal("cat")
		p.Stdin = mode
		o := h.call(p, IO{Stdin: strings.NewReader(in), Stdout: &out})
		if o.Outcome != receipt.Executed || out.String() != in {
			t.Errorf("%q: %s, %d bytes, %+v", mode, o.Outcome, out.Len(), o.Error)
		}
	}
}

// TestScriptRuns: a sealed script is read from descriptor 3, and its argv is as execve would
// have made it.
func TestScriptRuns(t *testing.T) {
	dir := t.TempDir()
	policies := t.TempDir()
	put(t, policies+"/all.cedar", "@id(\"all\") permit (principal, action, resource);\n", 0o644)
	os.Chmod(policies, 0o755)
	h := openHouse(t, Config{PolicyDir: policies})
	script := put(t, dir+"/script", "#!/bin/sh -u\necho \"$0 $#\" \"$@\"\n", 0o755)
	var out, errs bytes.Buffer
	o := h.call(proposal(script, "a b", "c"), IO{Stdout: &out, Stderr: &errs})
	if o.Outcome != receipt.Executed || out.String() != "/dev/fd/3 2 a b c\n" {
		t.Errorf("%s, %q, %q, %+v", o.Outcome, out.String(), errs.String(), o.Error)
	}
	if s := h.verify(o).Statement.Predicate.Capsule.Script; s == nil || s.Path != script {
		t.Errorf("receipt: %+v", s)
	}
}

func TestNoReceiptForNonsense(t *testing.T) {
	h := openHouse(t, Config{})
	for _, p := range []*Proposal{proposal(), proposal("no-such-program"), proposal("true", "\x00"), proposal("/etc")} {
		if o, err := h.Call(t.Context(), *p, IO{}); err == nil || o != nil {
			t.Errorf("%q: %+v, %v", p.Argv, o, err)
		}
	}
	p := proposal("true")
	p.Workspace = h.dir
	if _, err := h.Call(t.Context(), *p, IO{}); !says(err, "workspace_unusable: lies inside the state") {
		t.Errorf("state as workspace: %v", err)
	}
	if n := h.state.journal.Size(); n != 0 {
		t.Errorf("%d entries", n)
	}
}

func TestConcurrent(t *testing.T) {
	h := openHouse(t, Config{Warm: tier.C})
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for j := range 4 {
				var out bytes.Buffer
				word := fmt.Sprint(i, j)
				o, err := h.Call(t.Context(), *proposal("echo", word), IO{Stdout: &out})
				if err != nil || o.Outcome != receipt.Executed || out.String() != word+"\n" {
					t.Errorf("%s: %v, %v", word, o, err)
				}
			}
		})
	}
	wg.Wait()
	if r := h.audit(); r.Intents != 32 || r.Outcomes[receipt.Executed] != 32 {
		t.Errorf("audit: %+v", r)
	}
}

// BenchmarkGate measures the whole path without a program, which is Palyra's own cost. It
// reports the median time of each step.
func BenchmarkGate(b *testing.B) {
	some := usual()
	cfg := withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		return &isolate.Result{Outcome: isolate.Exited, Evidence: some}, nil
	})
	took, last := make(map[string][]time.Duration), time.Now()
	cfg.TestOnlyStep = func(step string) {
		switch now := time.Now(); step {
		case "sealed", "decided", "granted", "intent", "executed", "result", "receipt":
			took[step] = append(took[step], now.Sub(last))
			last = now
		}
	}
	benchmarkCall(b, cfg)
	for step, ds := range took {
		slices.Sort(ds)
		b.ReportMetric(float64(ds[len(ds)/2].Microseconds()), "µs-"+step)
	}
}

// usual is evidence of the size of a tier C call's.
func usual() *evidence.Evidence {
	e := &evidence.Evidence{Executor: "sandbox_tier_c_linux_native", Tier: "c"}
	e.Namespaces.Cell, e.Namespaces.Host = make(map[string]uint64), make(map[string]uint64)
	for i, ns := range []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"} {
		e.Namespaces.Cell[ns], e.Namespaces.Host[ns] = uint64(4026531840+i), uint64(4026532840+i)
		e.Namespaces.Fresh = append(e.Namespaces.Fresh, ns)
	}
	e.Limits.Soft, e.Limits.Hard = make(map[string]int64), make(map[string]int64)
	for i := range 12 {
		e.Limits.Soft[fmt.Sprint("limit", i)], e.Limits.Hard[fmt.Sprint("limit", i)] = int64(i)<<20, -1
		e.Landlock.Rules = append(e.Landlock.Rules, fmt.Sprint("rx /usr/", i))
	}
	for i := range 24 {
		e.Mounts.Table = append(e.Mounts.Table, fmt.Sprintf("/usr/share/folder%d ro,nosuid,nodev,relatime ext4", i))
	}
	e.Degraded = []string{strings.Repeat("why this is less than elsewhere; ", 6)}
	return e
}

func BenchmarkCall(b *testing.B) { benchmarkCall(b, Config{Warm: tier.C}) }

func benchmarkCall(b *testing.B, cfg Config) {
	h := openHouse(b, cfg)
	b.ReportAllocs()
	for b.Loop() {
		o, err := h.Call(b.Context(), *proposal("/bin/true"), IO{})
		if err != nil || o.Outcome != receipt.Executed {
			b.Fatal(o, err)
		}
	}
}
