package local

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/budget"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestAnswersAreCounted: an answer to a question reads the card only for the approver, after
// it counts, and with room for it. Without room the approver hears the rest.
func TestAnswersAreCounted(t *testing.T) {
	dir := t.TempDir()
	copyPolicies(t, dir)
	rule := `
@id("two_people")
forbid (principal, action == Palyra::Action::"approval.resolve", resource)
when { context.approvers < 2 };
`
	if err := os.WriteFile(filepath.Join(dir, "60-two.cedar"), []byte(rule), 0o644); err != nil {
		t.Fatal(err)
	}
	waive(t, dir)
	h := newHouse(t, func(c *Config, k *kernel.Config) { k.PolicyDir, c.PolicyDir = dir, dir })
	alice, bob, mallory := h.member(1001, access.Operator), h.member(1002, access.Admin), h.member(1003, access.Operator)
	large := []string{"touch"}
	for range 60 {
		large = append(large, strings.Repeat("\x01", 1000))
	}
	r := h.start(alice, step("process.run", obj{"argv": large, "workspace": "src"}))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	q := h.question(h.owner)
	if len(q.Text) < 200<<10 {
		t.Fatalf("a card of %d bytes", len(q.Text))
	}
	short := func(v *hub.Approval) bool { return v.Text == "" && len(v.Card.Argv) == 0 }

	// What is refused reads no card and takes no room.
	reads, proofs := h.pools.reads, h.pools.proofs
	full := func(name string) *budget.Pool {
		p := budget.New(budget.Limits{Name: name, Total: 1}) // and no line
		if _, err := p.Take(budget.Owner{Name: "another"}, 1); err != nil {
			t.Fatal(err)
		}
		return p
	}
	h.pools.reads, h.pools.proofs = full("reads"), full("proofs")
	const times = 10
	for _, c := range []hub.Caller{alice, bob, mallory, h.owner} {
		for _, wrong := range []struct {
			hub.Resolution
			reason string
		}{
			{hub.Resolution{ID: q.ID, Version: 9, Answer: hub.Answer{Approve: true}}, "version_conflict"},
			{hub.Resolution{ID: q.ID, Version: 9}, "version_conflict"},
			{hub.Resolution{ID: q.ID, Answer: hub.Answer{Capsule: "sha256:00"}}, "not_approved"},
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			for range times {
				if _, err := hub.ResolveApproval.Do(t.Context(), h, c, wrong.Resolution); fault.ReasonOf(err) != wrong.reason {
					t.Errorf("%s: %v, want %s", c.User, err, wrong.reason)
				}
			}
			runtime.ReadMemStats(&after)
			if n := (after.TotalAlloc - before.TotalAlloc) / times; n > uint64(len(q.Text)) {
				t.Errorf("%s: %d bytes to say %s", c.User, n, wrong.reason)
			}
		}
	}

	// What counts is answered, without room and without a processor.
	yes := hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true, Capsule: q.Capsule.String()}}
	for range 2 {
		v, err := hub.ResolveApproval.Do(t.Context(), h, bob, yes)
		if err != nil || !short(&v) || v.State != hub.ApprovalPending || !slices.Equal(v.Yes, []string{bob.User}) || v.Capsule != q.Capsule {
			t.Errorf("without room: %.500s, %v", fmt.Sprintf("%+v", v), err)
		}
		h.pools.reads = reads
	}
	h.pools.proofs = proofs

	// A repeated yes holds room until it is written, and many no more than there is.
	h.pools.reads = budget.New(budget.Limits{Name: "reads", Total: 3 * listBytes, Reserve: listBytes}) // and no line
	request, end := budget.Request(t.Context())
	cards := 0
	for range 10 {
		v, err := hub.ResolveApproval.Do(request, h, bob, yes)
		if err != nil || v.State != hub.ApprovalPending {
			t.Fatalf("%s, %v", v.State, err)
		}
		if !short(&v) {
			cards++
		}
	}
	if held := h.pools.reads.Held(); cards != 2 || held != 2*listBytes {
		t.Errorf("%d cards, for which %d bytes are held", cards, held)
	}
	// Not even then does an owner wait.
	v, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, yes)
	if err != nil || v.State != hub.ApprovalApproved || v.Text != q.Text || len(v.Card.Argv) != len(large) {
		t.Errorf("the owner's answer: %s, a card of %d bytes, %v", v.State, len(v.Text), err)
	}
	end()
	if held := h.pools.reads.Held(); held != 0 {
		t.Errorf("%d bytes afterwards", held)
	}
	h.until(alice, r.ID, "")
}
