package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/cmd/internal/connect"
	"palyra/cmd/internal/programs"
	"palyra/hub"
	"palyra/hub/place"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// fake is a daemon in memory: it answers what a test gave it, and says no to the rest.
type fake struct {
	run       hub.Run
	events    []hub.Event
	view      string // of the tape that was asked for
	approvals []hub.Approval
	calls     []string
	answer    hub.Answer
	version   int64
	err       error
	gone      error // with which tapes end; nil: io.EOF
	parts     []hub.OutputPart
	broken    error         // after the parts; nil: io.EOF
	read      chan struct{} // closed at the end of parts; tapes end then; nil: at once
	hidden    bool
	runs      []hub.Run
	doctor    hub.Doctor
	fix       string // of every decision; "": no caller may read them
	void      string // of every preview
	passkey   bool   // so
}

// Do implements hub.Hub.
func (f *fake) Do(ctx context.Context, c hub.Caller, op *hub.Operation, in any) (any, error) {
	return hub.NewTable(
		hub.GetDoctor.By(f.getDoctor), hub.GetStatus.By(f.getStatus), hub.ListRuns.By(f.listRuns), hub.CreateSession.By(f.createSession),
		hub.EndSession.By(f.endSession), hub.StartRun.By(f.startRun), hub.Call.By(f.call), hub.GetRun.By(f.getRun),
		hub.CancelRun.By(f.cancelRun), hub.ReadTape.By(f.readTape), hub.GetApproval.By(f.getApproval), hub.ResolveApproval.By(f.resolveApproval),
		hub.PreviewApproval.By(f.previewApproval), hub.ListGrants.By(f.listGrants), hub.RevokeGrant.By(f.revokeGrant), hub.GetReceipt.By(f.getReceipt),
		hub.GetDecision.By(f.getDecision), hub.ReadOutput.By(f.readOutput),
	).Do(ctx, c, op, in)
}

func (f *fake) getDoctor(context.Context, hub.Caller, hub.None) (hub.Doctor, error) {
	return f.doctor, f.err
}

func (f *fake) getDecision(_ context.Context, _ hub.Caller, id string) (hub.DecisionReport, error) {
	f.note("why " + id)
	if f.fix == "" {
		return hub.DecisionReport{}, fault.New(fault.Denied, "permission_denied", "why", nil)
	}
	return hub.DecisionReport{Denial: hub.Denial{DecisionID: id, Fix: f.fix}}, nil
}

func (f *fake) note(s string) { f.calls = append(f.calls, s) }

func (f *fake) getStatus(context.Context, hub.Caller, hub.None) (hub.Status, error) {
	f.note("status")
	if f.hidden {
		return hub.Status{Version: "v1", Mode: "normal", Hidden: true, Caller: hub.Caller{User: "uid:7"}}, f.err
	}
	return hub.Status{Version: "v1\x1b[2J", Mode: "normal", StatusDetail: &hub.StatusDetail{Profile: "local", Uptime: time.Hour}}, f.err
}

func (f *fake) listRuns(_ context.Context, _ hub.Caller, q hub.RunQuery) (hub.Page[hub.Run], error) {
	f.note("runs after " + q.After)
	if q.After == "" {
		return hub.Page[hub.Run]{Items: f.runs, Next: "more"}, f.err
	}
	return hub.Page[hub.Run]{Items: []hub.Run{{ID: "run_cc000000000000000000000000000000"}}}, f.err
}

func (f *fake) createSession(_ context.Context, _ hub.Caller, n hub.NewSession) (hub.Session, error) {
	f.note("create session " + n.Title)
	return hub.Session{ID: "ses_1", State: hub.SessionOpen}, f.err
}

func (f *fake) endSession(_ context.Context, _ hub.Caller, in hub.SessionChange) (hub.Session, error) {
	f.note("end " + in.ID)
	return hub.Session{ID: in.ID, State: hub.SessionEnded}, nil
}

func (f *fake) startRun(_ context.Context, _ hub.Caller, n hub.NewRun) (hub.Run, error) {
	f.note("start in " + n.Session + " " + n.Steps[0].Tool + " " + string(n.Steps[0].Input) + map[bool]string{true: " beside others"}[n.Parallel])
	return f.run, f.err
}

func (f *fake) call(_ context.Context, _ hub.Caller, n hub.NewCall) (hub.Run, error) {
	f.note("call " + n.IdempotencyKey)
	return f.run, f.err
}

func (f *fake) getRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	if f.runs != nil {
		return hub.Run{ID: id}, f.err
	}
	return f.run, f.err
}

func (f *fake) cancelRun(_ context.Context, _ hub.Caller, id string) (hub.Run, error) {
	f.note("cancel " + id)
	return f.run, nil
}

func (f *fake) readTape(_ context.Context, _ hub.Caller, q hub.TapeQuery) (hub.Tape, error) {
	f.view = q.View
	return &fakeTape{f.events, f.gone, f.read}, nil
}

func (f *fake) readOutput(context.Context, hub.Caller, hub.OutputQuery) (hub.Outputs, error) {
	return &fakeOutputs{f.parts, f.broken, f.read}, nil
}

type fakeOutputs struct {
	parts  []hub.OutputPart
	broken error
	read   chan struct{}
}

func (o *fakeOutputs) Next(context.Context) (hub.OutputPart, error) {
	if len(o.parts) == 0 {
		if o.read != nil {
			close(o.read)
		}
		return hub.OutputPart{}, cmp.Or(o.broken, io.EOF)
	}
	p := o.parts[0]
	o.parts = o.parts[1:]
	return p, nil
}

func (o *fakeOutputs) Close() error { return nil }

func (f *fake) getApproval(_ context.Context, _ hub.Caller, id string) (hub.Approval, error) {
	for _, a := range f.approvals {
		if a.ID == id {
			return a, nil
		}
	}
	return hub.Approval{}, fault.New(fault.NotFound, "unknown_approval", "approval", nil)
}

func (f *fake) resolveApproval(_ context.Context, _ hub.Caller, in hub.Resolution) (hub.Approval, error) {
	f.note("resolve " + in.ID)
	f.answer, f.version = in.Answer, in.Version
	state := hub.ApprovalDenied
	if in.Answer.Approve {
		state = hub.ApprovalApproved
	}
	return hub.Approval{ID: in.ID, State: state}, nil
}

func (f *fake) previewApproval(_ context.Context, _ hub.Caller, _ hub.PreviewQuery) (hub.Preview, error) {
	return hub.Preview{Void: f.void, Passkey: f.passkey, Text: "the pattern\n", Looked: 9, Refused: []hub.PreviewCall{{Approval: "apr_0", State: "denied", Argv: []string{"x\x1b[2J"}}}}, nil
}

func (f *fake) listGrants(context.Context, hub.Caller, hub.None) (hub.Page[hub.StandingGrant], error) {
	return hub.Page[hub.StandingGrant]{Items: []hub.StandingGrant{{ID: "grt_1", Scope: "timed", Approvers: []string{"uid:0"}, Pattern: canon.Sum([]byte("pattern")), Uses: 2, MaxUses: 5}}}, nil
}

func (f *fake) revokeGrant(_ context.Context, _ hub.Caller, id string) (hub.StandingGrant, error) {
	f.note("revoke " + id)
	return hub.StandingGrant{ID: id}, nil
}

func (f *fake) getReceipt(_ context.Context, _ hub.Caller, index uint64) ([]byte, error) {
	return []byte("bundle"), nil
}

type fakeTape struct {
	events []hub.Event
	gone   error
	wait   chan struct{} // before the end; nil: it comes at once
}

func (t *fakeTape) Next(ctx context.Context) (hub.Event, error) {
	if ctx.Err() != nil {
		return hub.Event{}, ctx.Err()
	}
	if len(t.events) == 0 && t.wait != nil {
		select {
		case <-t.wait:
		case <-ctx.Done():
			return hub.Event{}, ctx.Err()
		}
	}
	if len(t.events) == 0 {
		return hub.Event{}, cmp.Or(t.gone, io.EOF)
	}
	e := t.events[0]
	t.events = t.events[1:]
	return e, nil
}

func (t *fakeTape) Close() error { return nil }

// try runs one command line against f.
func try(t *testing.T, ctx context.Context, f *fake, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	a := &app{stdin: strings.NewReader(`{"from":"stdin"}`), stdout: &out, stderr: &errs, getenv: func(string) string { return "" },
		terminal: filepath.Join(t.TempDir(), "no-tty"), dial: func(connect.Target) (hub.Hub, error) { return f, nil }}
	status = a.run(ctx, args)
	return status, out.String(), errs.String()
}

// TestGroupHelp: the first word of several commands has help.
func TestGroupHelp(t *testing.T) {
	status, out, errs := try(t, t.Context(), &fake{}, "members", "--help")
	if status != 0 || !strings.Contains(out, "\n  members ls ") || !strings.Contains(out, "\n  members set ") || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

// TestTable: every command of the table has a function, every function is in the
// table, and every example parses.
func TestTable(t *testing.T) {
	table := programs.Table(programs.Client)
	seen := map[string]bool{}
	for _, c := range table.Commands {
		seen[c.Name] = true
		if commands[c.Name] == nil {
			t.Errorf("%s has no function", c.Name)
		}
		if len(c.Examples) == 0 || c.Short == "" {
			t.Errorf("%s has no example or no description", c.Name)
		}
	}
	for name := range commands {
		if !seen[name] {
			t.Errorf("%s is not in the table", name)
		}
	}
}

func executed(exit int, out string) hub.Run {
	return hub.Run{ID: "run_1", State: hub.RunDone, Steps: []hub.StepResult{{Outcome: "executed", Exit: exit, Stdout: hub.Output{Size: int64(len(out)), Text: out}}}}
}

func TestCall(t *testing.T) {
	denied := hub.Run{ID: "run_1", State: hub.RunDone, Steps: []hub.StepResult{{Outcome: "denied", Denial: &hub.Denial{Layer: "policy", Reason: "forbidden\x1b", Policies: []string{"p1"}, Fix: "permit"}}}}
	tests := []struct {
		name   string
		run    hub.Run
		args   []string
		status int
		out    string
		calls  []string
	}{
		{"tool's own output and status", executed(7, "hi\x1b\n"), []string{"call", "palyra.echo", `{"text":"x"}`}, 7, "hi\x1b\n",
			[]string{"create session palyra call", `start in ses_1 palyra.echo {"text":"x"}`, "end ses_1"}},
		{"input from stdin, own session", executed(0, ""), []string{"call", "--session", "ses_9", "fs.read_file", "-"}, 0, "",
			[]string{`start in ses_9 fs.read_file {"from":"stdin"}`}},
		{"beside others", executed(0, ""), []string{"call", "--session", "ses_9", "--parallel", "palyra.echo", `{"text":"x"}`}, 0, "",
			[]string{`start in ses_9 palyra.echo {"text":"x"} beside others`}},
		{"key without session", executed(0, ""), []string{"call", "--key", "k1", "palyra.echo"}, 0, "", []string{"call k1"}},
		{"denied", denied, []string{"call", "process.run"}, 126, "", nil},
		{"not JSON", executed(0, ""), []string{"call", "palyra.echo", "{"}, 2, "", []string{}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := &fake{run: test.run}
			status, out, errs := try(t, t.Context(), f, test.args...)
			if status != test.status || out != test.out {
				t.Errorf("status %d, output %q, want %d, %q; %s", status, out, test.status, test.out, errs)
			}
			if test.calls != nil && !slices.Equal(f.calls, test.calls) && len(f.calls)+len(test.calls) > 0 {
				t.Errorf("asked %q, want %q", f.calls, test.calls)
			}
			if strings.ContainsRune(errs, 0x1b) {
				t.Errorf("escape sequence on standard error: %q", errs)
			}
		})
	}
}

// TestCallLost: palyrad that doesn't answer any more during a call is asked nothing else. The call
// may have run, and the command says where that will be told.
func TestCallLost(t *testing.T) {
	for _, reason := range []string{"daemon_unreachable", "connection_lost"} {
		f := &fake{run: hub.Run{ID: "run_1"}, gone: fault.New(fault.Unavailable, reason, "read tape", nil)}
		status, _, errs := try(t, t.Context(), f, "call", "palyra.echo")
		if want := []string{"create session palyra call", "start in ses_1 palyra.echo "}; status != 75 || !slices.Equal(f.calls, want) {
			t.Errorf("%s: status %d, asked %q, want 75, %q", reason, status, f.calls, want)
		}
		if !strings.Contains(errs, "it may have run: palyra runs show run_1") {
			t.Errorf("%s: %s", reason, errs)
		}
	}
}

// TestCallDenied: a denial is printed with the change that would have allowed the
// call, which is asked for by the decision's id; who is told no policies doesn't ask.
func TestCallDenied(t *testing.T) {
	for name, c := range map[string]struct {
		set   canon.Digest
		fix   string
		shown bool // the change
		asked []string
	}{
		"a diff":            {canon.Sum(nil), "--- /dev/null\n+++ b/x\x1b.cedar\n", true, []string{"why 0123"}},
		"no answer":         {canon.Sum(nil), "", false, []string{"why 0123"}},
		"told no policies":  {canon.Digest{}, "--- /dev/null\n", false, nil},
		"in the denial yet": {canon.Digest{}, "", true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := &hub.Denial{DecisionID: "0123", Layer: hub.LayerPolicy, Reason: "forbidden", PolicySet: c.set}
			if c.shown && c.fix == "" {
				d.Fix = "--- /dev/null\n+++ b/x.cedar\n"
			}
			f := &fake{fix: c.fix, run: hub.Run{ID: "run_1", State: hub.RunFailed, Steps: []hub.StepResult{{Outcome: "denied", Denial: d}}}}
			status, _, errs := try(t, t.Context(), f, "call", "--session", "ses_1", "palyra.echo")
			asked := slices.DeleteFunc(f.calls, func(s string) bool { return !strings.HasPrefix(s, "why ") })
			if status != 126 || strings.Contains(errs, "+++ b/x") != c.shown || strings.Contains(errs, "palyra policy try --fix 0123") != c.shown ||
				!strings.Contains(errs, "palyra policy why 0123") || strings.ContainsRune(errs, 0x1b) || !slices.Equal(asked, c.asked) {
				t.Errorf("status %d, asked %q\n%s", status, asked, errs)
			}
			if status, out, _ := try(t, t.Context(), f, "call", "--json", "--session", "ses_1", "palyra.echo"); status != 126 || strings.Contains(out, "+++ b/x") != c.shown {
				t.Errorf("the document: status %d\n%s", status, out)
			}
			d.Fix = ""
			status, out, errs := try(t, t.Context(), f, "runs", "show", "run_00000000000000000000000000000000")
			if status != 0 || strings.Contains(out, "palyra policy why 0123") != !c.set.IsZero() {
				t.Errorf("runs show: status %d\n%s%s", status, out, errs)
			}
		})
	}
}

// TestCallLive: output is printed while the tool runs, and what the reader of it missed at the
// end, once. With --json nothing is printed before the end.
func TestCallLive(t *testing.T) {
	step := hub.StepResult{Outcome: "executed", Stdout: hub.Output{Size: 8, Text: "one\ntwo\n"}, Stderr: hub.Output{Size: 4, Base64: []byte("e\xff\x00\n")}}
	for name, c := range map[string]struct {
		parts  []hub.OutputPart
		broken error
	}{
		"all":    {[]hub.OutputPart{{Stream: "stdout", Text: "one\n"}, {Stream: "stderr", Base64: []byte("e\xff\x00\n")}, {Stream: "stdout", From: 4, Text: "two\n"}}, nil},
		"some":   {[]hub.OutputPart{{Stream: "stdout", Text: "one\nt"}}, fault.New(fault.Unavailable, "connection_lost", "read output", nil)},
		"no one": {nil, fault.New(fault.Unavailable, "too_many", "read output", nil)},
	} {
		t.Run(name, func(t *testing.T) {
			f := &fake{run: hub.Run{ID: "run_1", State: hub.RunDone, Steps: []hub.StepResult{step}}, parts: c.parts, broken: c.broken, read: make(chan struct{}),
				events: []hub.Event{{Run: "run_1", Seq: 1, Kind: hub.EventStepOutput}}}
			if status, out, errs := try(t, t.Context(), f, "call", "--session", "ses_1", "x"); status != 0 || out != "one\ntwo\n" || errs != "e\xff\x00\n" {
				t.Errorf("status %d, %q, %q", status, out, errs)
			}
		})
	}
	f := &fake{run: hub.Run{ID: "run_1", State: hub.RunDone, Steps: []hub.StepResult{step}}, events: []hub.Event{{Run: "run_1", Seq: 1, Kind: hub.EventStepOutput}}}
	if status, out, _ := try(t, t.Context(), f, "call", "--json", "--session", "ses_1", "x"); status != 0 || !json.Valid([]byte(out)) {
		t.Errorf("--json: status %d, %q", status, out)
	}
}

// full is a reader of output that has left.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, syscall.EPIPE }

// TestCallUnread: when the reader of a tool's output has left, the call ends.
func TestCallUnread(t *testing.T) {
	f := &fake{run: executed(0, "x"), parts: []hub.OutputPart{{Stream: "stdout", Text: "x"}}, read: make(chan struct{}),
		events: []hub.Event{{Run: "run_1", Seq: 1, Kind: hub.EventStepOutput}}}
	var errs bytes.Buffer
	a := &app{stdin: strings.NewReader(""), stdout: full{}, stderr: &errs, getenv: func(string) string { return "" },
		dial: func(connect.Target) (hub.Hub, error) { return f, nil }}
	if status := a.run(t.Context(), []string{"call", "--session", "ses_1", "x"}); status == 0 || !slices.Contains(f.calls, "cancel run_1") || !strings.Contains(errs.String(), "write standard output") {
		t.Errorf("status %d, %q, %q", status, f.calls, errs.String())
	}
}

// TestRunsOutput: each stream goes to its own, and what is lost is an error after the rest.
func TestRunsOutput(t *testing.T) {
	f := &fake{parts: []hub.OutputPart{{Stream: "stdout", Text: "one\n"}, {Stream: "stdout", From: 4, Lost: "disk_full"}, {Stream: "stderr", Text: "two\x1b\n"}}}
	if status, out, errs := try(t, t.Context(), f, "runs", "output", "--follow", "run_1"); status != 75 || out != "one\n" || !strings.HasPrefix(errs, "two\x1b\n") ||
		!strings.Contains(errs, "disk_full") {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
	f.parts = f.parts[2:]
	if status, out, errs := try(t, t.Context(), f, "runs", "output", "--json", "run_1"); status != 0 || !strings.Contains(out, `"stream":"stderr"`) || errs != "" {
		t.Errorf("status %d, %q, %q", status, out, errs)
	}
}

// TestDiagnosis: palyra call and palyra runs show say why a program may have failed.
func TestDiagnosis(t *testing.T) {
	run := executed(1, "")
	run.Steps[0].Diagnosis = &hub.Diagnosis{Code: "read_only", Basis: "guess", Text: "only this\x1b is so", Flag: "--workspace", Input: "read_only", Config: "workspaces.NAME.read_only"}
	const note = `only this\x1b is so; read_only in the tool's input changes it, within workspaces.NAME.read_only of palyrad.toml`
	f := &fake{run: run}
	if status, _, errs := try(t, t.Context(), f, "call", "--session", "ses_1", "process.run"); status != 1 || errs != "palyra: note: "+note+"\n" {
		t.Errorf("call: status %d, %q", status, errs)
	}
	if status, out, _ := try(t, t.Context(), f, "call", "--json", "--session", "ses_1", "process.run"); status != 1 || !strings.Contains(out, `"code": "read_only"`) {
		t.Errorf("call --json: status %d, %s", status, out)
	}
	if status, out, _ := try(t, t.Context(), f, "runs", "show", "run_00000000000000000000000000000000"); status != 0 || !strings.Contains(out, note) {
		t.Errorf("runs show: status %d, %s", status, out)
	}
	run.Steps[0].Diagnosis = nil
	if status, _, errs := try(t, t.Context(), f, "call", "--session", "ses_1", "process.run"); status != 1 || errs != "" {
		t.Errorf("without a diagnosis: status %d, %q", status, errs)
	}
}

// TestCallReceipt: --receipt writes what the daemon gives, for its owner only.
func TestCallReceipt(t *testing.T) {
	f := &fake{run: executed(0, "")}
	index := uint64(4)
	f.run.Steps[0].LogIndex = &index
	path := filepath.Join(t.TempDir(), "r.json")
	if status, _, errs := try(t, t.Context(), f, "call", "--receipt", path, "palyra.echo"); status != 0 {
		t.Fatalf("status %d: %s", status, errs)
	}
	b, err := os.ReadFile(path)
	fi, serr := os.Stat(path)
	if err != nil || serr != nil || string(b) != "bundle" || fi.Mode().Perm() != 0o600 {
		t.Errorf("receipt %q, %v, %v", b, err, fi.Mode())
	}
}

// TestCallCanceled: an interrupt cancels the run, and the session ends with it.
func TestCallCanceled(t *testing.T) {
	f := &fake{run: hub.Run{ID: "run_1", State: hub.RunCancelled, Steps: []hub.StepResult{{Outcome: ""}}}}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	status, _, _ := try(t, ctx, f, "call", "palyra.sleep")
	if want := []string{"create session palyra call", "start in ses_1 palyra.sleep ", "cancel run_1", "end ses_1"}; !slices.Equal(f.calls, want) || status != 130 {
		t.Errorf("asked %q, status %d", f.calls, status)
	}
}

func TestApprove(t *testing.T) {
	capsule := canon.Sum([]byte("capsule"))
	digest := capsule.Hex()
	pending := hub.Approval{ID: "apr_1", State: hub.ApprovalPending, Version: 3, Capsule: capsule, Text: "rm -rf\x1b[0m"}
	for _, test := range []struct {
		name   string
		state  string
		args   []string
		status int
		asked  bool
	}{
		{"all of it", hub.ApprovalPending, []string{"approvals", "approve", "--capsule", digest, "apr_1"}, 0, true},
		{"with prefix", hub.ApprovalPending, []string{"approvals", "approve", "--capsule", "sha256:" + digest, "apr_1"}, 0, true},
		{"other digits", hub.ApprovalPending, []string{"approvals", "approve", "--capsule", strings.Repeat("00", 32), "apr_1"}, 5, false},
		{"a part of it", hub.ApprovalPending, []string{"approvals", "approve", "--capsule", digest[:8], "apr_1"}, 2, false},
		{"nobody to ask", hub.ApprovalPending, []string{"approvals", "approve", "apr_1"}, 2, false},
		{"answered before", hub.ApprovalDenied, []string{"approvals", "approve", "--capsule", digest, "apr_1"}, 75, false},
		{"deny needs no digits", hub.ApprovalPending, []string{"approvals", "deny", "apr_1"}, 0, true},
		{"unknown", hub.ApprovalPending, []string{"approvals", "approve", "apr_2"}, 1, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pending
			p.State = test.state
			f := &fake{approvals: []hub.Approval{p}}
			status, _, errs := try(t, t.Context(), f, test.args...)
			if asked := len(f.calls) == 1; status != test.status || asked != test.asked {
				t.Fatalf("status %d, asked %q; %s", status, f.calls, errs)
			}
			if test.asked && f.answer.Approve != (test.args[1] == "approve") {
				t.Errorf("answer %+v", f.answer)
			}
			if test.asked && f.answer.Approve && (f.version != 3 || f.answer.Capsule != pending.Capsule.String()) {
				t.Errorf("answered version %d, capsule %s, not what was shown", f.version, f.answer.Capsule)
			}
		})
	}
	others := pending
	others.Reduced, others.Text = true, ""
	if status, _, errs := try(t, t.Context(), &fake{approvals: []hub.Approval{others}}, "approvals", "approve", "--capsule", digest, "apr_1"); status != 4 {
		t.Errorf("a yes to what is not shown: status %d, %s", status, errs)
	}
	f := &fake{approvals: []hub.Approval{pending}, run: hub.Run{Steps: []hub.StepResult{{Input: json.RawMessage(`{"content":"what is \u202e written"}`)}}}}
	status, out, _ := try(t, t.Context(), f, "approvals", "show", "apr_1")
	if status != 0 || !strings.Contains(out, `rm -rf\x1b`) || !strings.Contains(out, `"content": "what is \u202e written"`) {
		t.Errorf("shown as %q", out)
	}
	// Without the input, as of a run that is too large to be read, the card says so.
	f = &fake{approvals: []hub.Approval{pending}, run: hub.Run{ID: "run_1"}}
	status, out, _ = try(t, t.Context(), f, "approvals", "show", "apr_1")
	if status != 0 || !strings.Contains(out, `rm -rf\x1b`) || !strings.Contains(out, "NOT SHOWN: read run: it has no input of step 0") {
		t.Errorf("shown as %q", out)
	}
	if out := cardText(&pending, nil, fault.New(fault.Busy, "budget", "read run", errors.New("no\nroom\x1b"))); !strings.Contains(out, `NOT SHOWN: read run: no room\x1b`) {
		t.Errorf("shown as %q", out)
	}
}

// TestApproveForMore: what a wider yes would let through is shown before it is
// given, on the terminal or beside the answer.
func TestApproveForMore(t *testing.T) {
	capsule := canon.Sum([]byte("capsule"))
	digest := capsule.Hex()
	for _, test := range []struct {
		args   string
		status int
		want   hub.Answer
	}{
		{"--scope session", 0, hub.Answer{Approve: true, Scope: "session"}},
		{"--for 10m --uses 3", 0, hub.Answer{Approve: true, Scope: "timed", For: 10 * time.Minute, Uses: 3}},
		{"--for 10m --pattern within=2,3 --pattern content", 0, hub.Answer{Approve: true, Scope: "timed", For: 10 * time.Minute,
			Pattern: &hub.Pattern{Within: []int{2, 3}, Content: true}}},
		{"--scope session --pattern same", 0, hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{}}},
		{"--scope once", 0, hub.Answer{Approve: true}},
		{"--scope always", 2, hub.Answer{}},
		{"--scope session --for 10m", 2, hub.Answer{}},
		{"--pattern same", 2, hub.Answer{}},
		{"--uses 3", 2, hub.Answer{}},
		{"--for 25h", 2, hub.Answer{}},
		{"--for 10m --pattern within=0", 2, hub.Answer{}},
		{"--for 10m --pattern *", 2, hub.Answer{}},
	} {
		f := &fake{approvals: []hub.Approval{{ID: "apr_1", State: hub.ApprovalPending, Version: 1, Capsule: capsule}}}
		args := append([]string{"approvals", "approve", "--capsule", digest}, append(strings.Fields(test.args), "apr_1")...)
		status, _, errs := try(t, t.Context(), f, args...)
		if test.status == 0 {
			test.want.Capsule = "sha256:" + digest
		}
		if status != test.status || !reflect.DeepEqual(f.answer, test.want) {
			t.Errorf("%s: status %d, answer %+v; %s", test.args, status, f.answer, errs)
		}
		if wider := test.want.Scope != ""; wider != strings.Contains(errs, "1 of the last 9") || strings.Contains(errs, "\x1b") {
			t.Errorf("%s: shown %q", test.args, errs)
		}
	}
	f := &fake{approvals: []hub.Approval{{ID: "apr_1", State: hub.ApprovalPending, Capsule: capsule}}}
	if status, out, _ := try(t, t.Context(), f, "approvals", "approve", "--for", "10m", "--preview", "apr_1"); status != 0 || len(f.calls) > 0 || !strings.Contains(out, "the pattern") {
		t.Errorf("preview: %d, %q, %q", status, f.calls, out)
	}
	if status, out, _ := try(t, t.Context(), f, "approvals", "grants"); status != 0 || !strings.Contains(out, "grt_1") || !strings.Contains(out, "2 of 5") {
		t.Errorf("grants: %d, %q", status, out)
	}
	if status, _, _ := try(t, t.Context(), f, "approvals", "revoke", "grt_1"); status != 0 || !slices.Equal(f.calls, []string{"revoke grt_1"}) {
		t.Errorf("revoke: %d, %q", status, f.calls)
	}
}

func TestErrorsAndJSON(t *testing.T) {
	f := &fake{err: fault.New(fault.Denied, "permission_missing", "status", errors.New("needs config.read")).WithHint("ask an owner")}
	status, out, errs := try(t, t.Context(), f, "status", "--json")
	var doc struct {
		Schema string `json:"schema"`
		OK     bool   `json:"ok"`
		Error  struct{ Reason string }
	}
	if err := json.Unmarshal([]byte(out), &doc); err != nil || doc.Schema != "palyra.status/v1" || doc.OK || doc.Error.Reason != "permission_missing" {
		t.Errorf("document %s, %v", out, err)
	}
	if status != 4 || !strings.HasSuffix(errs, "hint: ask an owner\n") {
		t.Errorf("status %d, %q", status, errs)
	}
	status, out, _ = try(t, t.Context(), &fake{}, "status")
	if status != 0 || strings.ContainsRune(out, 0x1b) {
		t.Errorf("status %d, %q", status, out)
	}
	for _, args := range [][]string{{"nothing"}, {"status", "--nothing"}, {"runs", "start", "x.json"}, {"stop"}, {"token", "create", "x"}, {"backup", "create", "f"}} {
		if status, _, errs := try(t, t.Context(), &fake{}, args...); status != 2 || !strings.Contains(errs, "palyra: ") {
			t.Errorf("%q: status %d, %q", args, status, errs)
		}
	}
}

// TestConnect: where the daemon is looked for, and which mixtures are refused.
func TestConnect(t *testing.T) {
	dir := t.TempDir()
	token := filepath.Join(dir, "token")
	os.WriteFile(token, []byte("palyra_x\n"), 0o600)
	open := filepath.Join(dir, "open")
	os.WriteFile(open, []byte("palyra_x\n"), 0o644)
	own := filepath.Join(dir, "palyra", "palyrad.sock")
	os.MkdirAll(filepath.Dir(own), 0o700)
	if l, err := net.Listen("unix", own); err != nil {
		t.Fatal(err)
	} else {
		defer l.Close()
	}
	for _, test := range []struct {
		args []string
		env  map[string]string
		want connect.Target
		ok   bool
	}{
		{nil, nil, connect.Target{Socket: place.SystemSocket}, true},
		{nil, map[string]string{"PALYRA_SOCKET": "/a"}, connect.Target{Socket: "/a"}, true},
		{nil, map[string]string{"XDG_RUNTIME_DIR": dir}, connect.Target{Socket: own, Own: true}, true},
		{[]string{"--socket", "/b"}, map[string]string{"PALYRA_SOCKET": "/a"}, connect.Target{Socket: "/b"}, true},
		{[]string{"--url", "http://h", "--token-file", token}, nil, connect.Target{URL: "http://h", Token: "palyra_x"}, true},
		{[]string{"--url", "http://h"}, nil, connect.Target{}, false},
		{[]string{"--device", "d"}, map[string]string{"PALYRA_SOCKET": "/a"}, connect.Target{Device: "d"}, true},
		{[]string{"--device", "d", "--url", "https://h"}, nil, connect.Target{Device: "d", URL: "https://h"}, true},
		{[]string{"--device", "d", "--socket", "/b"}, nil, connect.Target{}, false},
		{[]string{"--device", "d", "--token-file", token}, nil, connect.Target{}, false},
		{[]string{"--url", "http://h", "--token-file", open}, nil, connect.Target{}, false},
		{[]string{"--token-file", token}, nil, connect.Target{Socket: place.SystemSocket, Token: "palyra_x"}, true},
		{[]string{"--token-file", open}, nil, connect.Target{}, false},
		{[]string{"--url", "http://h", "--socket", "/b", "--token-file", token}, nil, connect.Target{}, false},
	} {
		inv, err := programs.Table(programs.Client).Parse(append([]string{"status"}, test.args...))
		if err != nil {
			t.Fatal(err)
		}
		var got connect.Target
		a := &app{getenv: func(k string) string { return test.env[k] }, dial: func(tt connect.Target) (hub.Hub, error) { got = tt; return &fake{}, nil }}
		if _, err := a.connect(inv); (err == nil) != test.ok || (test.ok && got != test.want) {
			t.Errorf("%q with %v: %+v, %v, want %+v", test.args, test.env, got, err, test.want)
		}
	}
}

func TestTapeAndTTL(t *testing.T) {
	f := &fake{events: []hub.Event{{Run: "run_1", Seq: 1, Kind: "run.pending", Data: json.RawMessage(`{"x":"\u001b"}`)}, {Run: "run_1", Seq: 2, Kind: "run.done", Data: json.RawMessage(`{}`)}}}
	status, out, _ := try(t, t.Context(), f, "runs", "tape", "run_1")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); status != 0 || len(lines) != 2 || !strings.Contains(lines[1], "run.done") {
		t.Errorf("status %d: %q", status, out)
	}
	status, out, _ = try(t, t.Context(), f, "runs", "tape", "--json", "run_1")
	if lines := strings.Split(strings.TrimSpace(out), "\n"); status != 0 || len(lines) != 2 || !json.Valid([]byte(lines[0])) || f.view != "" {
		t.Errorf("status %d, view %q: %q", status, f.view, out)
	}
	if status, _, _ = try(t, t.Context(), f, "runs", "tape", "--tools", "run_1"); status != 0 || f.view != hub.ViewTools {
		t.Errorf("--tools: status %d, view %q", status, f.view)
	}
	for in, ok := range map[string]bool{"30d": true, "12h": true, "401d": false, "0d": false, "-1h": false, "x": false, "1": false} {
		_, err := programs.Table(programs.Client).Parse([]string{"token", "create", "--scope", "s", "--ttl", in, "n"})
		if (err == nil) != ok {
			t.Errorf("--ttl %s: %v", in, err)
		}
	}
}

// TestSeveral: a request that several people must approve says who has, and one more yes
// makes it another than was shown.
func TestSeveral(t *testing.T) {
	ap := hub.Approval{ID: "apr_1", State: hub.ApprovalPending, Version: 1, Text: "card"}
	d := &desk{queue: []hub.Approval{ap}}
	if err := d.still(&ap); err != nil {
		t.Error(err)
	}
	now := ap
	now.Yes = []string{"uid:1", "uid:2\x1b"}
	if text := cardText(&now, nil, nil); !strings.Contains(text, `of uid:1, uid:2\x1b  another person must, too`) {
		t.Errorf("shown as %q", text)
	}
	d.queue[0] = now
	if err := d.still(&ap); !errors.Is(err, errChange) {
		t.Errorf("after another's yes: %v", err)
	}
	for _, other := range []hub.Approval{{ID: "apr_1", Version: 2}, {ID: "apr_1", Version: 1, Capsule: canon.Sum(nil)}} {
		d.queue[0] = other
		if err := d.still(&ap); !errors.Is(err, errChange) {
			t.Errorf("%+v: %v", other, err)
		}
	}
	d.queue = nil
	if err := d.still(&ap); !errors.Is(err, errGone) {
		t.Errorf("when it is gone: %v", err)
	}
}
