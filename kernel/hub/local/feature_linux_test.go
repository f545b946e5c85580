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
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/hub"
)

// TestFeatures: what is off is refused to the owner too, where it is meant and
// nowhere else, and everything else goes on.
func TestFeatures(t *testing.T) {
	session := hub.Answer{Approve: true, Scope: "session"}
	pattern := hub.Answer{Approve: true, Scope: "session", Pattern: &hub.Pattern{Within: []int{2}, Content: true}}
	resolve := func(a hub.Answer) func(h *house, c hub.Caller, q hub.Approval) error {
		return func(h *house, c hub.Caller, q hub.Approval) error {
			_, err := h.ResolveApproval(h.t.Context(), c, q.ID, 0, a)
			return err
		}
	}
	mint := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := h.CreateToken(h.t.Context(), c, hub.NewToken{Name: "t", Scopes: []string{"session.read"}, TTL: time.Hour})
		return err
	}
	members := func(h *house, c hub.Caller, _ hub.Approval) error { _, err := h.Members(h.t.Context(), c); return err }
	reload := func(h *house, c hub.Caller, _ hub.Approval) error { _, err := h.Reload(h.t.Context(), c); return err }
	list := func(h *house, c hub.Caller, _ hub.Approval) error {
		_, err := h.Sessions(h.t.Context(), c, hub.SessionQuery{})
		return err
	}
	type try struct {
		name, surface string
		do            func(h *house, c hub.Caller, q hub.Approval) error
		refused       bool
	}
	for off, tries := range map[access.Feature][]try{ // what is not refused answers the question, and stands last
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
			if why, err := h.PolicyWhy(t.Context(), h.owner, d.DecisionID); err != nil || why.Reason != "feature_off" {
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
		j, err := h.JournalStatus(t.Context(), h.owner)
		if err != nil {
			t.Fatal(err)
		}
		h.stop()
		h.reopen(c.change)
		p, err := h.JournalEntries(t.Context(), h.owner, j.Size, 0)
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
		if s, err := h.Status(t.Context(), h.owner); err != nil || !slices.Equal(s.FeaturesOff, h.cfg.Features.Off()) {
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
		return h.CreateToken(ctx, c, hub.NewToken{Name: "t", Scopes: []string{"token.manage", "session.read"}, TTL: time.Hour})
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
		d.Permission != "token.manage" || !strings.Contains(d.Fix, "+unless") {
		t.Fatalf("%v, %+v", err, d)
	}
	if why, err := h.PolicyWhy(ctx, h.owner, d.DecisionID); err != nil || why.Fix != d.Fix {
		t.Errorf("%+v, %v", why, err)
	}
	if _, err := h.Sessions(ctx, web, hub.SessionQuery{}); err != nil {
		t.Errorf("another permission: %v", err)
	}
	if _, err := h.Backup(ctx, h.owner, hub.BackupRequest{}, nil); fault.ReasonOf(err) != "forbidden" {
		t.Errorf("by feature: %v", err)
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
		s, err := h.CreateToken(ctx, h.owner, hub.NewToken{Name: "t", Scopes: append([]string{"approval.resolve", "approval.read"}, c.scopes...), TTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		by, err := h.Authenticate(ctx, hub.Credential{Token: s.Secret, Surface: "http"})
		if err != nil {
			t.Fatal(err)
		}
		r := h.start(alice, writeFile("a.txt", "1"))
		h.until(alice, r.ID, hub.EventRunWaitingApproval)
		_, err = h.ResolveApproval(ctx, by, h.question(by).ID, 0, yes)
		d := hub.DenialOf(err)
		if c.by == nil && err != nil || c.by != nil && (d == nil || !slices.Equal(d.Policies, c.by)) {
			t.Errorf("with %q: %v, %+v", c.scopes, err, d)
		}
		if _, err := h.CancelRun(ctx, alice, r.ID); err != nil {
			t.Fatal(err)
		}
	}
}
