package run

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

func TestTable(t *testing.T) {
	states := []store.RunState{"", store.RunPending, store.RunAccepted, store.RunInProgress, store.RunWaitingApproval, store.RunDone, store.RunFailed, store.RunCancelled}
	allowed := map[string]bool{
		" pending": true, "pending accepted": true, "pending failed": true, "pending cancelled": true,
		"accepted in_progress": true, "accepted failed": true, "accepted cancelled": true,
		"in_progress waiting_approval": true, "in_progress done": true, "in_progress failed": true, "in_progress cancelled": true,
		"waiting_approval in_progress": true, "waiting_approval failed": true, "waiting_approval cancelled": true,
	}
	for _, from := range states {
		for _, to := range states {
			if got, want := slices.Contains(next[from], to), allowed[string(from)+" "+string(to)]; got != want {
				t.Errorf("%q to %q is allowed: %v, want %v", from, to, got, want)
			}
		}
	}
	if len(next) != len(states) {
		t.Errorf("the table has %d states", len(next))
	}
	h := open(t, nil)
	id := h.start(Request{Steps: steps("ok")})
	h.ended(id)
	// What the table does not have, nobody can do: neither in one step nor by a way.
	for _, from := range states {
		for _, to := range states {
			ok := allowed[string(from)+" "+string(to)] || from == "" && (to == store.RunAccepted || to == store.RunInProgress) ||
				from == store.RunPending && to == store.RunInProgress
			err := h.st.Update(t.Context(), func(tx *store.Tx) error {
				if err := move(tx, &store.Run{ID: id, State: from}, to, hub.RunChange{}); err != nil {
					return err
				}
				return errRollback
			})
			if (fault.ReasonOf(err) == "internal") == ok {
				t.Errorf("move %q to %q: %v", from, to, err)
			}
		}
	}
	all := []store.StepState{"", store.StepPending, store.StepRunning, store.StepDone, store.StepFailed, store.StepSkipped}
	for _, from := range all {
		for _, to := range all {
			want := from == "" && to == store.StepRunning || from == store.StepRunning && (to == store.StepDone || to == store.StepFailed)
			if err := moveStep(&store.Step{State: from}, to); (err == nil) != want {
				t.Errorf("step %q to %q: %v", from, to, err)
			}
		}
	}
}

var errRollback = errors.New("not to be kept")

func TestRun(t *testing.T) {
	for _, test := range []struct {
		name   string
		q      Request
		state  string
		reason string
		steps  string // states
	}{
		{"one", Request{Steps: steps("ok")}, hub.RunDone, "", "done"},
		{"three", Request{Steps: steps("ok", "ok", "ok")}, hub.RunDone, "", "done done done"},
		{"exit", Request{Steps: steps("ok", "exit", "ok")}, hub.RunFailed, "exit_status", "done done skipped"},
		{"denied", Request{Steps: steps("deny", "ok")}, hub.RunFailed, "default_deny", "done skipped"},
		{"unknown", Request{Steps: steps("unknown", "ok")}, hub.RunFailed, "not_found", "failed skipped"},
		{"keep going", Request{Steps: steps("exit", "ok"), KeepGoing: true}, hub.RunFailed, ReasonStepFailed, "done done"},
		{"calls", Request{Steps: steps("ok", "ok", "ok"), Budget: hub.Budget{Calls: 2}}, hub.RunFailed, ReasonCalls, "done done skipped"},
		{"calls that suffice", Request{Steps: steps("ok", "ok"), Budget: hub.Budget{Calls: 2}}, hub.RunDone, "", "done done"},
		{"bytes between", Request{Steps: steps(`print {"Bytes":95}`, "ok"), Budget: hub.Budget{Bytes: 100}}, hub.RunFailed, ReasonBytes, "done skipped"},
		{"bytes within", Request{Steps: steps(`print {"Bytes":200}`, "ok"), Budget: hub.Budget{Bytes: 100}}, hub.RunFailed, ReasonBytes, "done skipped"},
		{"wall", Request{Steps: steps("hold", "ok"), Budget: hub.Budget{Wall: time.Millisecond}}, hub.RunFailed, ReasonWall, "done skipped"},
		{"alone", Request{User: alice, Steps: steps("ok")}, hub.RunDone, "", "done"},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := open(t, nil)
			r := h.ended(h.start(test.q))
			var states []string
			for i, s := range r.Steps {
				states = append(states, s.State)
				if s.Index != i || s.Tool != test.q.Steps[i].Tool || (s.State == hub.StepDone) != (s.LogIndex != nil && s.CallID != "" && len(s.DecisionID) == 32) {
					t.Errorf("step %d: %+v", i, s)
				}
			}
			if r.State != test.state || r.Reason != test.reason || strings.Join(states, " ") != test.steps {
				t.Errorf("%s %q with %q", r.State, r.Reason, states)
			}
			if r.Use.Calls != int64(h.g.count()) || r.Started == nil || r.Ended == nil || r.Use.Wall <= 0 {
				t.Errorf("%d calls; %+v", h.g.count(), r)
			}
			s, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Session, error) { return tx.Session(r.Session) })
			if err != nil || (s.State == store.SessionEnded) != (test.q.User != "") {
				t.Errorf("session %+v, %v", s, err)
			}
			if active, queued := h.Counts(); active+queued != 0 {
				t.Errorf("%d active, %d queued", active, queued)
			}
		})
	}
}

func TestDenial(t *testing.T) {
	h := open(t, nil)
	r := h.ended(h.start(Request{Steps: steps("deny")}))
	d := r.Steps[0].Denial
	if d == nil || d.Layer != hub.LayerPolicy || d.Reason != "default_deny" || d.Fix != "" || len(d.DecisionID) != 32 || d.Policies[0] != "p" {
		t.Errorf("%+v", d)
	}
}

func TestOutput(t *testing.T) {
	h := open(t, nil)
	for _, n := range []int{0, 1, hub.MaxInline, hub.MaxInline + 1, 1 << 20} {
		r := h.ended(h.start(Request{Steps: steps(fmt.Sprintf(`print {"Bytes":%d}`, n))}))
		want := strings.Repeat("é", n/2) + strings.Repeat("x", n%2)
		o := r.Steps[0].Stdout
		if o.Size != int64(n) || o.Lost || !o.Artifact.IsZero() != (n > hub.MaxInline) || !strings.HasPrefix(want, o.Text) || n <= hub.MaxInline && o.Text != want {
			t.Errorf("%d bytes: %d in text, %+v", n, len(o.Text), o.Artifact)
		}
		if e := r.Steps[0].Stderr; string(e.Base64) != "done\xff" || e.Text != "" {
			t.Errorf("stderr: %+v", e)
		}
		if o.Artifact.IsZero() {
			continue
		}
		f, a, err := h.st.OpenArtifact(t.Context(), o.Artifact)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		f.Close()
		if err != nil || string(b) != want || a.MediaType != "text/plain; charset=utf-8" {
			t.Errorf("artifact of %d bytes, %s, %v", len(b), a.MediaType, err)
		}
	}
}

// TestOutputLost: where there is no space the call is not lost with its output.
func TestOutputLost(t *testing.T) {
	h := open(t, nil)
	if err := os.Chmod(filepath.Join(h.dir, "artifacts"), 0o500); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Chmod(filepath.Join(h.dir, "artifacts"), 0o700) })
	if os.Geteuid() == 0 {
		if err := os.Rename(filepath.Join(h.dir, "artifacts"), filepath.Join(h.dir, "away")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Rename(filepath.Join(h.dir, "away"), filepath.Join(h.dir, "artifacts")) })
	}
	id := h.start(Request{Steps: steps(`print {"Bytes":100000}`)})
	if err := h.Wait(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	r := h.read(id)
	if o := r.Steps[0].Stdout; !o.Lost || !o.Artifact.IsZero() || o.Size != 100000 || len(o.Text) == 0 || r.State != hub.RunDone {
		t.Errorf("%s: %d bytes kept of %d, lost %v", r.State, len(o.Text), o.Size, o.Lost)
	}
}

func TestRefusedRequests(t *testing.T) {
	h := open(t, nil)
	other, err := session.Create(t.Context(), h.st, "uid:1", "", 100)
	if err != nil {
		t.Fatal(err)
	}
	over, err := session.Create(t.Context(), h.st, alice, "", 100)
	if err == nil {
		_, err = session.End(t.Context(), h.st, over.ID, 0)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		q      Request
		kind   fault.Kind
		reason string
	}{
		{"nobody", Request{User: " ", Session: h.sess, Steps: steps("ok")}, fault.NotFound, "no_such_session"},
		{"no steps", Request{}, fault.Usage, "invalid_input: at least one step"},
		{"many steps", Request{Steps: steps(strings.Split(strings.Repeat("ok,", MaxSteps), ",")...)}, fault.Usage, "too_large: 257 steps"},
		{"no tool", Request{Steps: steps("")}, fault.Usage, "invalid_input: a tool is named"},
		{"odd tool", Request{Steps: steps("o\x1bk")}, fault.Usage, "invalid_input: a tool is named"},
		{"input", Request{Steps: steps("ok [1]")}, fault.Usage, "invalid_input: an input is one JSON object"},
		{"broken input", Request{Steps: steps("ok {")}, fault.Usage, "invalid_input: an input is one JSON object"},
		{"large input", Request{Steps: steps(`ok {"a":"` + strings.Repeat("x", MaxInput) + `"}`)}, fault.Usage, "invalid_input: an input is one JSON object"},
		{"key", Request{Key: "a b", Steps: steps("ok")}, fault.Usage, "invalid_input: a key is"},
		{"budget", Request{Budget: hub.Budget{Calls: -1}, Steps: steps("ok")}, fault.Usage, "invalid_input: a bound is negative"},
		{"another's session", Request{User: alice, Session: other.ID, Steps: steps("ok")}, fault.NotFound, "no_such_session"},
		{"no session", Request{User: alice, Session: ident.New(ident.Session), Steps: steps("ok")}, fault.NotFound, "no_such_session"},
		{"ended session", Request{User: alice, Session: over.ID, Steps: steps("ok")}, fault.Usage, "no_such_session"},
	} {
		reason, text, _ := strings.Cut(test.reason, ": ") // of one reason there are several
		if _, err := h.try(test.q); fault.KindOf(err) != test.kind || fault.ReasonOf(err) != reason || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
	if active, queued := h.Counts(); active+queued != 0 || h.g.count() != 0 {
		t.Errorf("%d active, %d queued, %d calls", active, queued, h.g.count())
	}
	h.DenyNew(true)
	if _, err := h.try(Request{Steps: steps("ok")}); fault.ReasonOf(err) != "stopped" || hub.DenialOf(err).Layer != hub.LayerStop {
		t.Errorf("stopped: %v", err)
	}
	h.DenyNew(false)
	h.ended(h.start(Request{Steps: steps("ok")}))
}
