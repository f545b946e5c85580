package main

import (
	"bytes"
	"slices"
	"testing"

	"palyra/cmd/internal/programs"
	"palyra/hub"
	"palyra/internal/fault"
)

// Without a terminal, or where an answer from here wouldn't count, the request waits, and no one
// is asked for digits.
func TestAskHere(t *testing.T) {
	for name, tt := range map[string]struct {
		void, quiet string
		passkey     bool
		want        string
	}{
		"no terminal":   {"", "", false, "palyra: waits for approval: palyra approvals show apr_1\n"},
		"not to ask":    {"self_approval", "1", false, "palyra: waits for approval: palyra approvals show apr_1\n"},
		"a passkey's":   {"", "", true, "palyra: waits for approval in the console, with a passkey (palyra console open): palyra approvals show apr_1\n"},
		"another's yes": {"self_approval", "", false, "palyra: waits for approval by another person, since a yes of yours wouldn't count (self_approval): palyra approvals show apr_1\nhint: " + fault.Do("self_approval") + "\n"},
	} {
		t.Run(name, func(t *testing.T) {
			var said bytes.Buffer
			f := &fake{void: tt.void, passkey: tt.passkey, approvals: []hub.Approval{{ID: "apr_1", State: hub.ApprovalPending}}}
			a := &app{stderr: &said, terminal: t.TempDir() + "/none", getenv: func(name string) string {
				if name == "PALYRA_NO_INPUT" {
					return tt.quiet
				}
				return ""
			}}
			a.askHere(t.Context(), f, "apr_1", nil)
			if said.String() != tt.want {
				t.Errorf("said %q, want %q", said.String(), tt.want)
			}
			if f.answer != (hub.Answer{}) {
				t.Errorf("answered %+v", f.answer)
			}
		})
	}
}

// TestExecSecrets: palyrad gets the references, and finds them in its own vault.
func TestExecSecrets(t *testing.T) {
	inv, err := programs.Table(programs.Client).Parse([]string{"exec", "--secret", "a=vault://global/a", "--secret", "b=vault://skill:acme/b", "--", "cat", "/run/secrets/a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range inv.Command.Flags {
		if inv.Has(f.Name) && !slices.Contains(served, f.Name) {
			t.Errorf("--%s is refused", f.Name)
		}
	}
	got, err := (&app{}).execInput(t.Context(), inv, &fake{}, &hub.NewRun{})
	if want := `{"argv":["cat","/run/secrets/a"],"secrets":["a=vault://global/a","b=vault://skill:acme/b"]}`; err != nil || string(got) != want {
		t.Errorf("%s, %v", got, err)
	}
}

func TestExecExit(t *testing.T) {
	one := func(state string, s hub.StepResult) *hub.Run {
		return &hub.Run{State: state, Steps: []hub.StepResult{s}}
	}
	for name, tt := range map[string]struct {
		run  *hub.Run
		err  error
		want int
	}{
		"own":             {one(hub.RunDone, hub.StepResult{Outcome: "executed", Exit: 7}), nil, 7},
		"not found":       {one(hub.RunFailed, hub.StepResult{Reason: "program_not_found"}), nil, 127},
		"denied":          {one(hub.RunDone, hub.StepResult{Outcome: "denied"}), nil, 126},
		"not approved":    {one(hub.RunDone, hub.StepResult{Outcome: "not_approved"}), nil, 126},
		"timed out":       {one(hub.RunFailed, hub.StepResult{Outcome: "timed_out"}), nil, 124},
		"refused":         {one(hub.RunFailed, hub.StepResult{Outcome: "refused"}), nil, 125},
		"unknown":         {one(hub.RunFailed, hub.StepResult{Outcome: "outcome_unknown"}), nil, 125},
		"no palyrad":      {nil, fault.New(fault.Unavailable, "daemon_unreachable", "x", nil), 125},
		"not a member":    {nil, fault.New(fault.Denied, "not_a_member", "x", nil), 126},
		"lost on the way": {one(hub.RunDone, hub.StepResult{Outcome: "executed"}), fault.New(fault.Unavailable, "io_error", "x", nil), 125},
	} {
		if got := execExit(tt.run, tt.err); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}
