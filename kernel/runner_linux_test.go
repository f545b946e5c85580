package kernel

import (
	"context"
	"os"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

func TestRefusedWithoutCell(t *testing.T) {
	var asked bool
	h := openHouse(t, Config{CellPath: "/nonexistent/palyra-cell", Approver: answer{yes: true, while: func(approval.Request) { asked = true }}})
	for _, p := range []*Proposal{proposal("true"), proposal(unknown(t, "/bin/true"))} {
		o := h.call(p, IO{})
		if o.Outcome != receipt.Refused || o.Exit != 125 || o.Error.Reason != "helper_unusable" || o.Error.Hint == "" {
			t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
		}
	}
	if asked {
		t.Error("a person was asked about a call that could not run")
	}
	if o := h.call(proposal("/bin/sh"), IO{}); o.Outcome != receipt.Denied {
		t.Errorf("a denial needs no cell: %s", o.Outcome)
	}
	if r := h.audit(); r.Intents != 0 {
		t.Errorf("audit: %+v", r)
	}
}

// fake is a runner that returns given results.
type fake struct {
	run func(*isolate.Spec, *isolate.Files) (*isolate.Result, error)
}

func (f *fake) Run(_ context.Context, _ grant.Grant, s *isolate.Spec, fs *isolate.Files) (*isolate.Result, error) {
	return f.run(s, fs)
}
func (f *fake) Close() error          { return nil }
func (f *fake) Died() <-chan struct{} { return nil }

func withFake(run func(*isolate.Spec, *isolate.Files) (*isolate.Result, error)) Config {
	return Config{testOnlyStart: func(context.Context, tier.Tier, grant.Key) (runner, error) { return &fake{run}, nil }}
}

// TestRunnerIsNotBelieved: no runner can get a receipt that says executed without evidence, or
// prevent one by failing.
func TestRunnerIsNotBelieved(t *testing.T) {
	some := &evidence.Evidence{Tier: "c", Exit: evidence.Exit{Code: 0}}
	for _, c := range []struct {
		name    string
		res     *isolate.Result
		err     error
		outcome string
		reason  string
	}{
		{"nothing", nil, nil, receipt.OutcomeUnknown, "internal: neither a result nor an error"},
		{"no evidence", &isolate.Result{Outcome: isolate.Exited}, nil, receipt.OutcomeUnknown, "internal: returned no evidence"},
		{"no outcome", &isolate.Result{Evidence: some}, nil, receipt.OutcomeUnknown, "internal: reported \"\""},
		{"made up", &isolate.Result{Outcome: "fine", Evidence: some}, nil, receipt.OutcomeUnknown, "internal: reported \"fine\""},
		{"outcome_unknown", &isolate.Result{Outcome: "outcome_unknown", Evidence: some}, nil, receipt.OutcomeUnknown, "internal: reported \"outcome_unknown\""},
		{"denied", &isolate.Result{Outcome: "denied", Evidence: some}, nil, receipt.OutcomeUnknown, "internal: reported \"denied\""},
		{"died", &isolate.Result{}, fault.New(fault.Internal, "x", "run", nil), receipt.OutcomeUnknown, "x"},
		{"failed", &isolate.Result{Outcome: isolate.Failed, Evidence: some}, nil, receipt.Failed, "internal: says only that it failed"},
		{"failed with error", &isolate.Result{Outcome: isolate.Failed, Evidence: some}, fault.New(fault.Internal, "x", "run", nil), receipt.Failed, "x"},
		{"exited with error", &isolate.Result{Outcome: isolate.Exited, Evidence: some}, fault.New(fault.Internal, "x", "run", nil), receipt.OutcomeUnknown, "x"},
		{"plain error", nil, os.ErrInvalid, receipt.Failed, "internal: invalid argument"},
		{"busy", nil, fault.New(fault.Busy, "locked", "mount the layer", nil), receipt.Refused, "locked"},
		{"refused", nil, fault.New(fault.Refused, "landlock_unavailable", "run", nil), receipt.Refused, "landlock_unavailable"},
		{"canceled", nil, fault.New(fault.Canceled, "canceled", "run", nil), receipt.Killed, "canceled"},
		{"fine", &isolate.Result{Outcome: isolate.Exited, Evidence: some}, nil, receipt.Executed, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := openHouse(t, withFake(func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) { return c.res, c.err }))
			o := h.call(proposal("true"), IO{})
			reason, text, _ := strings.Cut(c.reason, ": ")
			if o.Outcome != c.outcome || o.Error != nil && (o.Error.Reason != reason || !strings.Contains(o.Error.Text, text)) || (o.Exit == 0) != (c.outcome == receipt.Executed) {
				t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
			}
			if r := h.audit(); r.Intents != 1 || r.Results != 1 {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

// TestIntentBeforeEffect: when the runner starts, the intent is in the journal.
func TestIntentBeforeEffect(t *testing.T) {
	var h *house
	h = openHouse(t, withFake(func(s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
		if open := h.state.journal.OpenEntries(); len(open) != 1 || open[0] != 0 {
			t.Errorf("open entries at the start: %v", open)
		}
		return nil, nil
	}))
	h.call(proposal("true"), IO{})
	if open := h.state.journal.OpenEntries(); len(open) != 0 {
		t.Errorf("open entries afterwards: %v", open)
	}
}

// TestSystemFileChanged: a file of the system is used in place, so it's checked again right
// before use.
func TestSystemFileChanged(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir, err := os.MkdirTemp("/", "kernel-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	os.Chmod(dir, 0o755)
	tool := put(t, dir+"/tool", contentAt(t, "/bin/true"), 0o755)
	cfg := Config{Approver: answer{yes: true}}
	cfg.TestOnlyStep = func(step string) {
		if step == "intent" {
			put(t, tool, contentAt(t, "/bin/echo"), 0o755)
		}
	}
	h := openHouse(t, cfg)
	o := h.call(proposal(tool), IO{})
	if o.Outcome != receipt.Refused || o.Error.Reason != "changed" || o.Result != nil {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
	if r := h.audit(); r.Intents != 1 || r.Results != 1 || len(r.Orphans) != 0 {
		t.Errorf("audit: %+v", r)
	}
}

// TestOnce: a palyra-cell serves one call, and the next call has another.
func TestOnce(t *testing.T) {
	h := openHouse(t, Config{Warm: tier.C, Once: true})
	for range 2 {
		if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed || o.Exit != 0 {
			t.Fatalf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
		}
		h.mu.Lock()
		left := len(h.lanes)
		h.mu.Unlock()
		if left != 0 {
			t.Errorf("%d lanes are left after the call", left)
		}
	}
	// No record shows whether an intent was signed while the call waited or after it.
	if r := h.audit(); r.Intents != 2 || r.Outcomes[receipt.Executed] != 2 || len(r.Orphans) != 0 {
		t.Errorf("audit: %+v", r)
	}
}

// aged is a runner with outdated mounts.
type aged struct {
	fake
	of     string // the workspace
	closed chan struct{}
}

func (a *aged) Past(folders ...string) bool { a.of = strings.Join(folders, " "); return true }
func (a *aged) Close() error                { close(a.closed); return nil }

// TestPastRunner: a call doesn't go to a runner with outdated mounts.
func TestPastRunner(t *testing.T) {
	ran := func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		return &isolate.Result{Outcome: isolate.Exited, Evidence: new(evidence.Evidence)}, nil
	}
	old := &aged{fake: fake{func(*isolate.Spec, *isolate.Files) (*isolate.Result, error) {
		t.Error("the call ran with the mounts of another time")
		return nil, nil
	}}, closed: make(chan struct{})}
	starts := 0
	c := Config{testOnlyStart: func(context.Context, tier.Tier, grant.Key) (runner, error) {
		if starts++; starts == 1 {
			return old, nil
		}
		return &fake{ran}, nil
	}, Approver: answer{yes: true}}
	h := openHouse(t, c)
	<-h.lane(tier.C).ready
	p := proposal("true")
	p.Workspace = t.TempDir()
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed || old.of != p.Workspace {
		t.Errorf("%s, %+v; asked about %q, want %q", o.Outcome, o.Error, old.of, p.Workspace)
	}
	<-old.closed
}
