package local

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"palyra/authz/access"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestFeatures: what is off is refused to the owner too, where it is meant and
// nowhere else, and everything else goes on.
func TestFeatures(t *testing.T) {
	session := hub.Answer{Approve: true, Scope: "session"}
	pattern := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	resolve := func(a hub.Answer) func(h *house, c hub.Caller, q hub.Approval) error {
		return func(h *house, c hub.Caller, q hub.Approval) error {
			_, err := hub.ResolveApproval.Do(h.t.Context(), h, c, hub.Resolution{ID: q.ID, Version: 0, Answer: a})
			return err
		}
	}
	mint := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := hub.CreateToken.Do(h.t.Context(), h, c, hub.NewToken{Name: "t", Scopes: []string{"session.read"}, TTL: time.Hour})
		return err
	}
	members := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := hub.ListMembers.Do(h.t.Context(), h, c, hub.None{})
		return err
	}
	reload := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := hub.Reload.Do(h.t.Context(), h, c, hub.None{})
		return err
	}
	list := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := hub.ListSessions.Do(h.t.Context(), h, c, hub.SessionQuery{})
		return err
	}
	type try struct {
		name, surface string
		do            func(h *house, c hub.Caller, q hub.Approval) error
		refused       bool
	}
	for off, tries := range map[access.Feature][]try{
		// A try that isn't refused answers the question, so it stands last.
		access.Tokens: {{"mint", "unix", mint, true}, {"members", "http", members, false}},
		access.HTTPApprovals: {{"yes by http", "http", resolve(hub.Answer{Approve: true}), true}, {"no by http", "http", resolve(hub.Answer{}), true},
			{"yes by socket", "unix", resolve(hub.Answer{Approve: true}), false}},
		access.HTTPAdmin: {{"members by http", "http", members, true}, {"reload by http", "http", reload, true}, {"lists by http", "http", list, false},
			{"members by socket", "unix", members, false}, {"mint", "http", mint, false}},
		access.StandingGrants: {{"a session", "unix", resolve(session), true}, {"once", "unix", resolve(hub.Answer{Approve: true}), false}},
		access.PatternGrants:  {{"a pattern", "unix", resolve(pattern), true}, {"a session of one capsule", "unix", resolve(session), false}},
	} {
		h := newHouse(t, func(x *Config, _ *kernel.Config) {
			var err error
			if x.Features, err = access.ParseFeatures([]string{string(off)}); err != nil {
				t.Fatal(err)
			}
		})
		alice := h.member(1001, access.Operator)
		r := h.start(alice, writeFile("a.txt", "1"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		q := h.question(h.owner)
		for _, c := range tries {
			by := h.owner
			by.Surface = c.surface
			err := c.do(h, by, q)
			if !c.refused {
				if err != nil {
					t.Errorf("%s off, %s: %v", off, c.name, err)
				}
				continue
			}
			d := hub.DenialOf(err)
			if fault.ReasonOf(err) != "feature_off" || fault.KindOf(err) != fault.Denied || d == nil || d.Layer != hub.LayerAccess ||
				!slices.Equal(d.Policies, []string{"feature:" + string(off)}) {
				t.Fatalf("%s off, %s: %v, %+v", off, c.name, err, d)
			}
			if why, err := hub.GetDecision.Do(t.Context(), h, h.owner, d.DecisionID); err != nil || why.Reason != "feature_off" {
				t.Errorf("%+v, %v", why, err)
			}
			if now := h.question(h.owner); now.State != hub.ApprovalPending {
				t.Errorf("the question is %s", now.State)
			}
		}
		h.stop()
	}
}

// TestFeaturesAreJournaled: each change has one entry, and status says what is off.
func TestFeaturesAreJournaled(t *testing.T) {
	set := func(off ...string) func(*Config, *kernel.Config) {
		return func(c *Config, _ *kernel.Config) {
			var err error
			if c.Features, err = access.ParseFeatures(off); err != nil {
				t.Fatal(err)
			}
		}
	}
	h := newHouse(t, nil)
	for _, c := range []struct {
		change func(*Config, *kernel.Config)
		want   []string
	}{
		{set("tokens", "pattern_grants"), []string{"tokens pattern_grants|"}},
		{set("tokens", "pattern_grants"), nil},
		{set("tokens"), []string{"tokens|tokens pattern_grants"}},
		{set(), []string{"|tokens"}},
		{set(), nil},
	} {
		j, err := hub.GetJournal.Do(t.Context(), h, h.owner, hub.None{})
		if err != nil {
			t.Fatal(err)
		}
		h.stop()
		h.reopen(c.change)
		p, err := hub.ListJournalEntries.Do(t.Context(), h, h.owner, hub.JournalQuery{From: j.Size, Limit: 0})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range p.Items {
			var st struct {
				Predicate struct {
					Detail map[string]string `json:"detail"`
				} `json:"predicate"`
			}
			if err := json.Unmarshal(e.Statement, &st); err != nil {
				t.Fatal(err)
			}
			if e.Act == "features.set" {
				got = append(got, st.Predicate.Detail["off"]+"|"+st.Predicate.Detail["was_off"])
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("the journal has %q, want %q", got, c.want)
		}
		if s, err := hub.GetStatus.Do(t.Context(), h, h.owner, hub.None{}); err != nil || !slices.Equal(s.FeaturesOff, h.cfg.Features.Off()) {
			t.Errorf("%q, %v", s.FeaturesOff, err)
		}
	}
}

// TestPermissionByPolicy: a policy takes a permission away from its holder, on
// one surface; who is told what is the same as for any other denial.
func TestPermissionByPolicy(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	if err := os.CopyFS(dir, policy.DefaultFS()); err != nil {
		t.Fatal(err)
	}
	text := `@id("tokens_from_the_socket") @reason("tokens are minted at the machine") @untested("here")
forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"token.manage") when { context.channel == "http" };
@id("no_patterns_no_backups") @untested("here")
forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"backup.manage") unless { context.features.contains("pattern_grants") };
`
	if err := os.WriteFile(filepath.Join(dir, "50-local.cedar"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(c *Config, k *kernel.Config) {
		k.PolicyDir = dir
		c.Features, _ = access.ParseFeatures([]string{"pattern_grants"})
	})
	ctx := t.Context()
	mint := func(c hub.Caller) (hub.TokenSecret, error) {
		return hub.CreateToken.Do(ctx, h, c, hub.NewToken{Name: "t", Scopes: []string{"token.manage", "session.read"}, TTL: time.Hour})
	}
	s, err := mint(h.owner)
	if err != nil {
		t.Fatal(err)
	}
	web, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: "http"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = mint(web)
	d := hub.DenialOf(err)
	if fault.ReasonOf(err) != "forbidden" || d == nil || d.Layer != hub.LayerPolicy || !slices.Equal(d.Policies, []string{"tokens_from_the_socket"}) ||
		d.Permission != "token.manage" || d.Fix != "" {
		t.Fatalf("%v, %+v", err, d)
	}
	if why, err := hub.GetDecision.Do(ctx, h, h.owner, d.DecisionID); err != nil || !strings.Contains(why.Fix, "+unless") || len(why.Rules) != 1 {
		t.Errorf("%+v, %v", why, err)
	}
	if _, err := hub.ListSessions.Do(ctx, h, web, hub.SessionQuery{}); err != nil {
		t.Errorf("another permission: %v", err)
	}
	if _, err := hub.Backup.Do(ctx, h, h.owner, hub.BackupTo{BackupRequest: hub.BackupRequest{}, W: nil}); fault.ReasonOf(err) != "forbidden" {
		t.Errorf("by feature: %v", err)
	}
}

// TestSeesAllEndsWithThePermission: an admin whose member.manage a feature or a policy
// takes away at a surface sees there, cancels and ends what is theirs, and nothing of
// others; the policies behind a decision are told to who may use policy.read.
func TestSeesAllEndsWithThePermission(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	if err := os.CopyFS(dir, policy.DefaultFS()); err != nil {
		t.Fatal(err)
	}
	text := `@id("by_socket") @untested("here")
forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"member.manage") when { context.channel == "http" };
@id("policy_by_socket") @untested("here")
forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"policy.read") when { context.channel == "http" };
`
	if err := os.WriteFile(filepath.Join(dir, "50-local.cedar"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Config, *kernel.Config){
		"feature": func(c *Config, _ *kernel.Config) { c.Features, _ = access.ParseFeatures([]string{"http_admin"}) },
		"policy":  func(_ *Config, k *kernel.Config) { k.PolicyDir = dir },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, change)
			ctx := t.Context()
			alice, admin := h.member(1001, access.Operator), h.member(1003, access.Admin)
			web, _ := h.token(admin, "session.read", "session.write", "run.cancel", "approval.read", "approval.resolve", "journal.read", "policy.read", "member.manage", "token.manage")
			_, hers := h.token(alice, "session.read")
			r := h.start(alice, writeFile("a.txt", "1"))
			h.until(alice, r.ID, hub.EventRunWaitingApproval)
			q := h.question(h.owner)
			for what, do := range map[string]func(c hub.Caller) error{
				"run":    func(c hub.Caller) error { _, err := hub.GetRun.Do(ctx, h, c, r.ID); return err },
				"tape":   func(c hub.Caller) error { _, err := hub.ReadTape.Do(ctx, h, c, hub.TapeQuery{Run: r.ID}); return err },
				"cancel": func(c hub.Caller) error { _, err := hub.CancelRun.Do(ctx, h, c, r.ID); return err },
				"session": func(c hub.Caller) error {
					_, err := hub.EndSession.Do(ctx, h, c, hub.SessionChange{ID: r.Session})
					return err
				},
				"token": func(c hub.Caller) error {
					_, err := hub.RevokeToken.Do(ctx, h, c, hub.TokenChange{ID: hers})
					return err
				},
			} {
				if err := do(web); fault.KindOf(err) != fault.NotFound {
					t.Errorf("%s: %v", what, err)
				}
			}
			if p, err := hub.ListTokens.Do(ctx, h, web, hub.TokenQuery{}); err != nil || slices.ContainsFunc(p.Items, func(t hub.Token) bool { return t.ID == hers }) {
				t.Errorf("tokens: %+v, %v", p, err)
			}
			if p, err := hub.ListRuns.Do(ctx, h, web, hub.RunQuery{}); err != nil || len(p.Items) != 0 {
				t.Errorf("runs: %+v, %v", p, err)
			}
			if now := h.question(h.owner); now.ID != q.ID || now.State != hub.ApprovalPending {
				t.Errorf("the question is %s", now.State)
			}
			if got := web.ReadsPolicy; got != (name == "feature") {
				t.Errorf("is told of policy: %v", got)
			}
			if _, err := hub.CancelRun.Do(ctx, h, admin, r.ID); err != nil {
				t.Errorf("at the socket: %v", err)
			}
		})
	}
}

// TestReadersOfOtherPolicies: who follows a tape opens it again when the policies
// have changed, and is told then what they may be told now.
func TestReadersOfOtherPolicies(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "policy")
	if err := os.CopyFS(dir, policy.DefaultFS()); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(_ *Config, k *kernel.Config) { k.PolicyDir = dir })
	c := h.peer(uint32(os.Geteuid()))
	if err := h.MayFollow(c); err != nil || !c.ReadsPolicy {
		t.Fatalf("%+v, %v", c, err)
	}
	text := `@id("new") @untested("here") forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"policy.read");`
	if err := os.WriteFile(filepath.Join(dir, "50-local.cedar"), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := hub.Reload.Do(t.Context(), h, c, hub.None{}); err != nil {
		t.Fatal(err)
	}
	if err := h.MayFollow(c); fault.ReasonOf(err) != "policy_changed" {
		t.Errorf("goes on under other policies: %v", err)
	}
	if c = h.peer(uint32(os.Geteuid())); c.ReadsPolicy || h.MayFollow(c) != nil {
		t.Errorf("%+v, %v", c, h.MayFollow(c))
	}
}

// TestToolNeedsPermission: a token without artifact.read does not get an artifact by
// the tool of that name either, nor learns by a question about it.
func TestToolNeedsPermission(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	weak, _ := h.token(h.owner, "run.start", "session.write", "policy.read")
	good, _ := h.token(h.owner, "run.start", "session.write", "artifact.read")
	n := hub.NewCall{Tool: "artifact.read", Input: []byte(`{"digest":"sha256:` + strings.Repeat("0", 64) + `"}`)}
	run := hub.NewRun{Session: h.session(h.owner), Steps: []hub.Step{argv("true"), {Tool: n.Tool, Input: n.Input}}}
	for what, do := range map[string]func(c hub.Caller) error{
		"call":    func(c hub.Caller) error { _, err := hub.Call.Do(ctx, h, c, n); return err },
		"run":     func(c hub.Caller) error { _, err := hub.StartRun.Do(ctx, h, c, run); return err },
		"explain": func(c hub.Caller) error { _, err := hub.ExplainPolicy.Do(ctx, h, c, n); return err },
	} {
		err := do(weak)
		if d := hub.DenialOf(err); fault.KindOf(err) != fault.Denied || d == nil || d.Permission != "artifact.read" {
			t.Errorf("%s: %v", what, err)
		}
		if what == "explain" {
			continue
		}
		if err := do(good); fault.KindOf(err) == fault.Denied {
			t.Errorf("%s with it: %v", what, err)
		}
	}
}

// TestTokenSaysYes: what a yes takes is asked of the token that it came with, not
// of the owner whose it is.
func TestTokenSaysYes(t *testing.T) {
	h := newHouse(t, nil)
	ctx := t.Context()
	alice := h.member(1001, access.Operator)
	yes := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	for _, c := range []struct {
		scopes []string
		by     []string // policies that refuse
	}{
		{nil, []string{"sensitive_patterns_by_owner", "standing_writes_by_workspace"}},
		{[]string{"workspace.manage"}, []string{"sensitive_patterns_by_owner"}},
		{[]string{"trust.operate"}, []string{"standing_writes_by_workspace"}},
		{[]string{"trust.operate", "workspace.manage"}, nil},
	} {
		s, err := hub.CreateToken.Do(ctx, h, h.owner, hub.NewToken{Name: "t", Scopes: append([]string{"approval.resolve", "approval.read"}, c.scopes...), TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		by, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: "http"})
		if err != nil {
			t.Fatal(err)
		}
		r := h.start(alice, writeFile("a.txt", "1"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		_, err = hub.ResolveApproval.Do(ctx, h, by, hub.Resolution{ID: h.question(by).ID, Version: 0, Answer: yes})
		d := hub.DenialOf(err)
		if c.by == nil && err != nil || c.by != nil && (d == nil || !slices.Equal(d.Policies, c.by)) {
			t.Errorf("with %q: %v, %+v", c.scopes, err, d)
		}
		if _, err := hub.CancelRun.Do(ctx, h, alice, r.ID); err != nil {
			t.Fatal(err)
		}
	}
}
