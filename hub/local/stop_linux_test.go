package local

import (
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestStopMeetsAnswer: an emergency stop and a yes for a session meet at each
// point at which they can. No grant stands after the stop.
func TestStopMeetsAnswer(t *testing.T) {
	yes := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	for _, at := range []string{"approval:answered", "stop:dropped"} {
		t.Run(at, func(t *testing.T) {
			var h *house
			var q hub.Approval
			var met error
			var armed atomic.Bool
			h = newHouse(t, func(c *Config, _ *kernel.Config) {
				c.TestOnlyStep = func(name string) {
					if name != at || !armed.CompareAndSwap(true, false) {
						return
					}
					if at == "stop:dropped" {
						_, met = hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: yes})
					} else {
						_, met = hub.Stop.Do(t.Context(), h, h.owner, hub.StopRequest{All: true})
					}
				}
			})
			alice := h.member(1001, access.Operator)
			r := h.start(alice, writeFile("a.txt", "1"))
			h.until(alice, r.ID, hub.EventRunWaitingApproval)
			q = h.question(h.owner)
			armed.Store(true)
			var err error
			if at == "stop:dropped" {
				_, err = hub.Stop.Do(t.Context(), h, h.owner, hub.StopRequest{All: true})
			} else {
				_, err = hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: yes})
			}
			if err != nil || met != nil || armed.Load() {
				t.Fatalf("%v, %v, met %v", err, met, !armed.Load())
			}
			if gs, err := hub.ListGrants.Do(t.Context(), h, h.owner, hub.None{}); err != nil || len(gs.Items) != 0 {
				t.Errorf("%+v, %v", gs, err)
			}
			if r := h.ended(alice, r.ID); r.State != hub.RunCancelled && r.State != hub.RunDone {
				t.Errorf("%s %s", r.State, r.Reason)
			}
			if asked, _ := h.asks(alice, r.Session, writeFile("b.txt", "2")); !asked {
				t.Error("after the stop the session's next call ran unasked")
			}
		})
	}
}

// TestStopBeyondPolicy: policies that forbid everything leave an owner at the socket the
// emergency stop, and no caller anything else.
func TestStopBeyondPolicy(t *testing.T) {
	dir := t.TempDir()
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, "10-test.cedar"), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const anything = `@id("anything_runs") @untested("here")
permit (principal, action == Palyra::Action::"tool.execute", resource);
`
	write(anything)
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.PolicyDir = dir })
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	s, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "t", Scopes: []string{"run.cancel"}, TTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	token := func(surface string) hub.Caller {
		c, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: surface})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	other := h.owner
	other.Surface = "http"
	r := h.start(h.owner, argv("/bin/sleep", "600"))
	h.until(h.owner, r.ID, hub.EventStepDecided)

	write(`@id("nobody_does_anything") @untested("here")
forbid (principal, action, resource);
`)
	if _, err := hub.Reload.Do(ctx, h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]hub.Caller{
		"an admin at the socket": admin, "the owner's token": token("http"), "the owner's token at the socket": token("unix"), "an owner elsewhere": other,
	} {
		if _, err := hub.Stop.Do(ctx, h, c, hub.StopRequest{All: true, DenyNew: true}); fault.ReasonOf(err) != "forbidden" {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := hub.CancelRun.Do(ctx, h, h.owner, r.ID); fault.ReasonOf(err) != "forbidden" {
		t.Errorf("the owner cancels: %v", err)
	}
	got, err := hub.Stop.Do(ctx, h, h.owner, hub.StopRequest{All: true, DenyNew: true})
	if err != nil || got.Cancelled != 1 || !got.DenyNew {
		t.Fatalf("%+v, %v", got, err)
	}
	if _, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); fault.ReasonOf(err) != "forbidden" {
		t.Errorf("the stop is lifted: %v", err)
	}
	// An owner who corrects the policies on the host, and tells the daemon, has it back.
	write(anything)
	if err := h.k.Reload(); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Resume.Do(ctx, h, h.owner, hub.None{}); err != nil {
		t.Error(err)
	}
	if r := h.ended(h.owner, r.ID); r.State != hub.RunCancelled || r.Reason != run.ReasonStopped {
		t.Errorf("%s %s", r.State, r.Reason)
	}
}
