package local

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// token mints a token for c and returns who it authenticates, as a surface would.
func (h *house) token(c hub.Caller, scopes ...string) (hub.Caller, string) {
	h.t.Helper()
	s, err := hub.CreateToken.Do(h.t.Context(), h, c, hub.NewToken{Name: "t", Scopes: scopes, TTL: time.Hour})
	if err != nil {
		h.t.Fatal(err)
	}
	got, err := h.Authenticate(h.t.Context(), hub.Credential{Token: s.Secret, Surface: "http"})
	if err != nil {
		h.t.Fatal(err)
	}
	return got, s.ID
}

// TestAnswersThatDoNotCount: from the requester through a second surface, from a token that
// was revoked, from a former admin, from a device of another principal; and after a cancel,
// after the end, and twice.
func TestAnswersThatDoNotCount(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 30 * time.Second })
	ctx := t.Context()
	alice, bob, carol := h.member(1001, access.Admin), h.member(1002, access.Admin), h.member(1003, access.Admin)
	ofAlice, _ := h.token(alice, "approval.read", "approval.resolve")
	ofBob, bobs := h.token(bob, "approval.read", "approval.resolve")
	weak, _ := h.token(bob, "approval.read")
	r := h.start(alice, writeFile("a", "x"))
	h.until(alice, r.ID, hub.EventRunWaitingApproval)
	id := h.question(h.owner).ID
	if _, err := hub.RevokeToken.Do(ctx, h, bob, hub.TokenChange{ID: bobs, Version: 0}); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.RemoveMember.Do(ctx, h, h.owner, hub.MemberRemoval{Principal: carol.User, Version: 0}); err != nil {
		t.Fatal(err)
	}
	claimed := ofAlice // a transport that mixes up the device
	claimed.Device = "device:bob"
	made := bob // a caller that was never authenticated: another's token
	made.Token = ofAlice.Token
	for name, c := range map[string]struct {
		who    hub.Caller
		reason string
	}{
		"requester, socket":     {alice, "self_approval"},
		"requester, token":      {ofAlice, "self_approval"},
		"requester, a device":   {claimed, "self_approval"},
		"revoked token":         {ofBob, "permission_denied"},
		"token without scope":   {weak, "permission_denied"},
		"removed member":        {carol, "permission_denied"},
		"token of another":      {made, "permission_denied"},
		"nobody":                {hub.Caller{}, "permission_denied"},
		"a stranger":            {h.peer(4711), "permission_denied"},
		"somebody made up":      {hub.Caller{User: "uid:0 ", Role: "owner"}, "permission_denied"},
		"an owner by role only": {hub.Caller{User: "uid:4712", Role: "owner", Scopes: []string{"approval.resolve"}}, "permission_denied"},
	} {
		if _, err := hub.ResolveApproval.Do(ctx, h, c.who, hub.Resolution{ID: id, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v (%s), want %s", name, err, fault.ReasonOf(err), c.reason)
		}
	}
	if a, err := hub.GetApproval.Do(ctx, h, h.owner, id); err != nil || a.State != hub.ApprovalPending || a.Version != 1 {
		t.Fatalf("they changed something: %+v, %v", a, err)
	}
	// The end: a cancel, then answers.
	if _, err := hub.CancelRun.Do(ctx, h, alice, r.ID); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: id, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != "version_conflict" {
			t.Errorf("after the cancel: %v", err)
		}
	}
	// Twice, and a yes after a no.
	for _, first := range []bool{true, false} {
		r := h.start(alice, writeFile("twice", "x"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		if _, err := hub.ResolveApproval.Do(ctx, h, bob, hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: first}}); err != nil {
			t.Fatal(err)
		}
		for _, yes := range []bool{true, false} {
			if _, err := hub.ResolveApproval.Do(ctx, h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: yes}}); fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("a second answer: %v", err)
			}
		}
		r = h.ended(alice, r.ID)
		if (r.State == hub.RunDone) != first {
			t.Errorf("answered %v, the run is %s", first, r.State)
		}
		if first {
			if err := os.Remove(filepath.Join(h.work(), "twice")); err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := os.Stat(filepath.Join(h.work(), "a")); err == nil {
		t.Error("it ran")
	}
}

// TestAnswerAfterItsTime: an answer comes after the request's time is over.
func TestAnswerAfterItsTime(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 50 * time.Millisecond })
	alice := h.member(1001, access.Operator)
	r := h.start(alice, writeFile("late", "x"))
	r = h.ended(alice, r.ID)
	id := r.Steps[0].Approval
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: id, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != "version_conflict" {
		t.Errorf("after its time: %v", err)
	}
	if a, err := hub.GetApproval.Do(t.Context(), h, h.owner, id); err != nil || a.State != hub.ApprovalExpired {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := os.Stat(filepath.Join(h.work(), "late")); err == nil || r.State != hub.RunFailed {
		t.Errorf("%s, %v", r.State, err)
	}
}

// TestNoMoreThanOneHas: whoever holds a little makes nothing that holds more.
func TestNoMoreThanOneHas(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	admin := h.member(1001, access.Admin)
	little, id := h.token(admin, "token.manage", "session.read", "run.start")
	for name, f := range map[string]func() error{
		"a scope more": func() error {
			_, err := hub.CreateToken.Do(ctx, h, little, hub.NewToken{Name: "x", Scopes: []string{"member.manage"}, TTL: time.Hour})
			return err
		},
		"for another": func() error {
			_, err := hub.CreateToken.Do(ctx, h, little, hub.NewToken{Name: "x", Principal: h.owner.User, Scopes: []string{"run.start"}, TTL: time.Hour})
			return err
		},
		"an owner": func() error {
			_, err := hub.PutMember.Do(ctx, h, admin, hub.MemberPut{Principal: "uid:7", MemberChange: hub.MemberChange{Role: "owner"}})
			return err
		},
		"a member": func() error {
			_, err := hub.PutMember.Do(ctx, h, little, hub.MemberPut{Principal: "uid:7", MemberChange: hub.MemberChange{Role: "operator"}})
			return err
		},
		"an approval": func() error {
			_, err := hub.ResolveApproval.Do(ctx, h, little, hub.Resolution{ID: "apr_" + digits32, Version: 0, Answer: hub.Answer{Approve: true}})
			return err
		},
		"other rules":   func() error { _, err := hub.Reload.Do(ctx, h, little, hub.None{}); return err },
		"the stop":      func() error { _, err := hub.Resume.Do(ctx, h, little, hub.None{}); return err },
		"a run of more": func() error { _, err := hub.RevokeGrant.Do(ctx, h, little, "grt_"+digits32); return err },
	} {
		if err := f(); fault.KindOf(err) != fault.Denied {
			t.Errorf("%s: %v", name, err)
		}
	}
	// Not by way of the token's own successor either.
	s, err := hub.RotateToken.Do(ctx, h, little, hub.Rotation{ID: id})
	if err != nil {
		t.Fatal(err)
	}
	next, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret})
	if err != nil || len(next.Scopes) != 3 {
		t.Errorf("the successor has %q, %v", next.Scopes, err)
	}
}

// TestPolicyEndsRuns: a policy that takes run.start away, here at a surface, lets the step
// that has begun end, and no other one begin: of a run at work, and of one in line.
func TestPolicyEndsRuns(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	if err := os.CopyFS(dir, policy.DefaultFS()); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.PolicyDir = dir })
	web, _ := h.token(h.owner, "run.start", "session.write")
	var runs [2]hub.Run
	var words [2]string
	for i, c := range []hub.Caller{web, h.owner} {
		words[i] = fmt.Sprintf("97.%d%d", i, os.Getpid())
		var err error
		if runs[i], err = hub.StartRun.Do(t.Context(), h, c, hub.NewRun{Session: h.session(c), Steps: []hub.Step{argv("sleep", words[i]), argv("true")}, KeepGoing: true}); err != nil {
			t.Fatal(err)
		}
		waitFor(t, func() bool { return len(withWord(words[i])) > 0 })
	}
	waits, err := hub.StartRun.Do(t.Context(), h, web, hub.NewRun{Session: runs[0].Session, Steps: []hub.Step{argv("true")}})
	if err != nil {
		t.Fatal(err)
	}
	text := `@id("no_runs") @untested("here") forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"run.start") when { context.channel == "http" };`
	if err := os.WriteFile(filepath.Join(dir, "50-local.cedar"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Reload.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
		t.Fatal(err)
	}
	for _, word := range words { // the programs end, and not by the hub
		for _, p := range withWord(word) {
			pid, err := strconv.Atoi(strings.Split(p, "/")[2])
			if err == nil {
				err = syscall.Kill(pid, syscall.SIGTERM)
			}
			if err != nil {
				t.Error(p, err)
			}
		}
	}
	if r := h.ended(h.owner, runs[0].ID); r.Steps[0].Outcome != "executed" || r.Steps[1].Outcome != "" || r.Steps[1].Reason != "forbidden" {
		t.Errorf("at work: %s, %s, %+v", r.State, r.Reason, r.Steps)
	}
	if r := h.ended(h.owner, waits.ID); r.State != hub.RunFailed || r.Reason != "forbidden" {
		t.Errorf("in line: %s, %s", r.State, r.Reason)
	}
	if r := h.ended(h.owner, runs[1].ID); r.Steps[1].Outcome != "executed" {
		t.Errorf("another surface's: %s, %s, %+v", r.State, r.Reason, r.Steps)
	}
}

const digits32 = "00000000000000000000000000000000"

// TestAuthorityEnds: whoever loses the right to begin runs loses those that were
// begun: the one that waits for a person, the one that runs, the one in line.
func TestAuthorityEnds(t *testing.T) {
	for name, c := range map[string]struct {
		token  bool
		lose   func(h *house, c hub.Caller, token string) error
		reason string
	}{
		"removed": {false, func(h *house, c hub.Caller, _ string) error {
			_, err := hub.RemoveMember.Do(h.t.Context(), h, h.owner, hub.MemberRemoval{Principal: c.User})
			return err
		}, "not_a_member"},
		"a token is revoked": {true, func(h *house, c hub.Caller, token string) error {
			_, err := hub.RevokeToken.Do(h.t.Context(), h, h.peer(1001), hub.TokenChange{ID: token, Version: 0})
			return err
		}, "token_revoked"},
		"a token is rotated, and its successor revoked": {true, func(h *house, c hub.Caller, token string) error {
			next, err := hub.RotateToken.Do(h.t.Context(), h, h.peer(1001), hub.Rotation{ID: token, RotationRequest: hub.RotationRequest{Overlap: time.Hour}})
			if err == nil {
				_, err = hub.RevokeToken.Do(h.t.Context(), h, h.peer(1001), hub.TokenChange{ID: next.ID, Version: 0})
			}
			return err
		}, "token_revoked"},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, func(c *Config, k *kernel.Config) { k.ApprovalTimeout = 30 * time.Second })
			alice := h.member(1001, access.Operator)
			token := ""
			if c.token {
				alice, token = h.token(alice, "run.start", "session.write")
			}
			asks := h.start(alice, writeFile("a", "x"), writeFile("b", "x"))
			h.until(h.owner, asks.ID, hub.EventRunWaitingApproval)
			q := h.question(h.owner)
			busy := h.start(alice, argv("sleep", "1000"), argv("true"))
			h.until(h.owner, busy.ID, hub.EventStepStarted)
			n := hub.NewRun{Session: busy.Session, Steps: []hub.Step{argv("true")}}
			waits, err := hub.StartRun.Do(t.Context(), h, alice, n)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.lose(h, alice, token); err != nil {
				t.Fatal(err)
			}
			for _, id := range []string{asks.ID, busy.ID, waits.ID} {
				// A step that was about to begin may see it first, and fails.
				if r := h.ended(h.owner, id); r.State == hub.RunDone || r.Reason != c.reason {
					t.Errorf("%s, %s", r.State, r.Reason)
				}
			}
			if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: 0, Answer: hub.Answer{Approve: true}}); fault.ReasonOf(err) != "version_conflict" {
				t.Errorf("a yes afterwards: %v", err)
			}
			if _, err := os.Stat(filepath.Join(h.work(), "a")); err == nil {
				t.Error("it ran")
			}
		})
	}
}

// TestRotatingEndsNoRun: neither a token that was rotated nor a new role that may
// begin runs ends what is under way.
func TestRotatingEndsNoRun(t *testing.T) {
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.ApprovalTimeout = 30 * time.Second })
	member := h.member(1001, access.Operator)
	alice, token := h.token(member, "run.start", "session.write")
	r := h.start(alice, writeFile("a", "x"))
	h.until(h.owner, r.ID, hub.EventRunWaitingApproval)
	if _, err := hub.RotateToken.Do(t.Context(), h, member, hub.Rotation{ID: token}); err != nil {
		t.Fatal(err)
	}
	if _, err := h.authority(alice); err != nil { // which the run asks for when anybody's rights change
		t.Errorf("the authority of a run whose token was rotated: %v", err)
	}
	members, err := hub.ListMembers.Do(t.Context(), h, h.owner, hub.None{})
	if err != nil {
		t.Fatal(err)
	}
	m := members.Items[slices.IndexFunc(members.Items, func(m hub.Member) bool { return m.Principal == member.User })]
	up := hub.MemberPut{Principal: m.Principal, Version: m.Version, MemberChange: hub.MemberChange{Role: "admin"}}
	if _, err := hub.PutMember.Do(t.Context(), h, h.owner, up); err != nil {
		t.Fatal(err)
	}
	q := h.question(h.owner)
	if _, err := hub.ResolveApproval.Do(t.Context(), h, h.owner, hub.Resolution{ID: q.ID, Version: q.Version, Answer: hub.Answer{Approve: true}}); err != nil {
		t.Fatal(err)
	}
	if r := h.ended(h.owner, r.ID); r.State != hub.RunDone {
		t.Errorf("%s, %s", r.State, r.Reason)
	}
}
