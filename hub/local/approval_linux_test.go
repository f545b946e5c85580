package local

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestApproval: a call that waits, and an answer from a second principal.
func TestApproval(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice, bob := h.member(1001, access.Admin), h.member(1002, access.Operator)
	write := step("fs.write_file", obj{"workspace": "src", "path": "a.txt", "mode": "create", "content": "hello"})
	r := h.start(alice, write)
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	if q.Requester != alice.User || q.Run != r.ID || q.Card.Workspace != h.work() || !strings.Contains(q.Text, "WRITABLE") || q.Card.Tool != "fs.write_file" {
		t.Errorf("%+v", q)
	}
	// Its session isn't idle: the end that is asked for only then changes nothing.
	if _, err := hub.EndSession.Do(ctx, h, alice, hub.SessionChange{ID: r.Session, Idle: true}); !errors.Is(err, fault.ErrLocked) {
		t.Errorf("end the session while a call waits in it: %v", err)
	}
	// The one who asked, through whichever surface; one whom policy does not let;
	// one for another version.
	other := alice
	other.Surface = "http"
	for _, test := range []struct {
		c       hub.Caller
		version int64
		reason  string
		layer   string
	}{
		{alice, 0, "self_approval", hub.LayerApproval},
		{other, q.Version, "self_approval", hub.LayerApproval},
		{bob, 0, "not_permitted", hub.LayerPolicy},
		{h.owner, 9, "version_conflict", ""},
	} {
		_, err := hub.ResolveApproval.Do(ctx, h, test.c, hub.Resolution{ID: q.ID, Version: test.version, Answer: hub.Answer{Approve: true}})
		d := hub.DenialOf(err)
		if err == nil || fault.ReasonOf(err) != test.reason || (d == nil) != (test.layer == "") || d != nil && d.Layer != test.layer {
			t.Errorf("%s: %v (%s), %+v", test.c.User, err, fault.ReasonOf(err), d)
		}
		if test.layer != hub.LayerPolicy {
			continue
		}
		if why, err := hub.GetDecision.Do(ctx, h, h.owner, d.DecisionID); err != nil || d.Fix != "" || !strings.Contains(why.Fix, `Palyra::Action::"approval.resolve"`) {
			t.Errorf("%s: %+v, %v", test.c.User, why, err)
		}
	}
	if _, err := os.Stat(filepath.Join(h.work(), "a.txt")); err == nil {
		t.Fatal("it ran without an answer")
	}
	a, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Comment: "fine"}})
	if err != nil || a.State != hub.ApprovalApproved || a.Approver != h.owner.User || a.Version <= q.Version {
		t.Fatalf("%+v, %v", a, err)
	}
	r = h.ended(alice, r.ID)
	b, err := os.ReadFile(filepath.Join(h.work(), "a.txt"))
	if r.State != hub.RunDone || err != nil || string(b) != "hello" {
		t.Errorf("%s %s, %q, %v", r.State, r.Reason, b, err)
	}
	if p := h.verify(r.Steps[0]).Statement.Predicate; p.Approval == nil || p.Approval.ID != q.ID || p.Approval.Approver != h.owner.User {
		t.Errorf("the receipt names approval %+v", p.Approval)
	}
	if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{}}); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("a second answer: %v", err)
	}
	// A no.
	r = h.start(alice, step("fs.write_file", obj{"workspace": "src", "path": "b.txt", "mode": "create", "content": "x"}))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: h.question(h.owner).ID, Version: 0, Answer: hub.Answer{Comment: "use the vendored copy"}}); err != nil {
		t.Error(err)
	}
	ev := h.until(alice, r.ID, hub.EventStepEnded)
	r = h.ended(alice, r.ID)
	d := r.Steps[0].Denial
	if r.State != hub.RunFailed || r.Reason != "denied" || d == nil || d.Layer != hub.LayerApproval {
		t.Fatalf("%s %s %+v", r.State, r.Reason, d)
	}
	// A no is an answer: the same call is not to be proposed again.
	if d.Comment != "use the vendored copy" || strings.Contains(d.Fix, "again") || !strings.Contains(d.Fix, "said no") || !strings.Contains(string(ev.Data), d.Comment) {
		t.Errorf("the caller is told %+v, on tape %s", d, ev.Data)
	}
	h.verify(r.Steps[0])
}

// TestApprovalRace: of many answers at once one counts.
func TestApprovalRace(t *testing.T) {
	h := newHouse(t, nil)
	alice := h.member(1001, access.Operator)
	var admins []hub.Caller
	for i := range 8 {
		admins = append(admins, h.member(uint32(2000+i), access.Admin))
	}
	for round := range 4 {
		path := fmt.Sprintf("f%d", round)
		r := h.start(alice, step("fs.write_file", obj{"workspace": "src", "path": path, "mode": "create", "content": "x"}))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		var wg sync.WaitGroup
		var mu sync.Mutex
		var won []hub.Approval
		for i, c := range admins {
			wg.Go(func() {
				a, err := hub.ResolveApproval.Do(t.Context(), h, c, hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: i%2 == 0}})
				if err == nil {
					mu.Lock()
					won = append(won, a)
					mu.Unlock()
				} else if r := fault.ReasonOf(err); r != "version_conflict" && r != "approval_expired" {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		r = h.ended(alice, r.ID)
		if len(won) != 1 {
			t.Fatalf("%d answers counted", len(won))
		}
		_, err := os.Stat(filepath.Join(h.work(), path))
		if yes := won[0].State == hub.ApprovalApproved; (r.State == hub.RunDone) != yes || (err == nil) != yes {
			t.Errorf("%s by %s, and the run is %s, the file %v", won[0].State, won[0].Approver, r.State, err)
		}
	}
}

// TestPolicyChangeVoidsApproval: a yes to what other policies asked runs nothing.
func TestPolicyChangeVoidsApproval(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	h := newHouse(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	alice := h.member(1001, access.Operator)
	r := h.start(alice, step("fs.write_file", obj{"workspace": "src", "path": "a", "mode": "create", "content": "x"}))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	was := h.policyInfo().Digest
	text := "\n@id(\"more\")\npermit (principal in Palyra::Role::\"owner\", action == Palyra::Action::\"tool.list\", resource);\n"
	if err := os.WriteFile(filepath.Join(dir, "90-more.cedar"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	v, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil || v.Digest == was {
		t.Fatalf("%s, %v", v.Digest, err)
	}
	q := h.question(h.owner)
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Fatal(err)
	}
	r = h.ended(alice, r.ID)
	a, err := store.View(t.Context(), h.st, func(tx *store.Tx) (*store.Approval, error) { return tx.Approval(q.ID) })
	if err != nil || a.State != store.ApprovalApproved || !a.Used.IsZero() {
		t.Errorf("%+v, %v", a, err)
	}
	if s := r.Steps[0]; r.State != hub.RunFailed || s.Reason != "policy_changed" || s.Denial == nil || s.Denial.Layer != hub.LayerPolicy {
		t.Errorf("%s %+v", r.State, s)
	}
	if _, err := os.Stat(filepath.Join(h.work(), "a")); err == nil {
		t.Error("it ran")
	}
	// A directory that is refused changes nothing.
	if err := os.WriteFile(filepath.Join(dir, "91-bad.cedar"), []byte("permit ("), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err == nil || h.policyInfo().Digest != v.Digest {
		t.Errorf("a bad directory: %v", err)
	}
}
