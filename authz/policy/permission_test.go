package policy

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/internal/fault"
)

func useOf(roles, scopes []string, p access.Permission) Request {
	return Request{Principal: Entity{Type: TypeUser, ID: "u", Roles: roles, Scopes: scopes}, Action: PermissionUse,
		Resource: Entity{Type: TypePermission, ID: string(p)}}
}

// TestPermissionsAreTheTable: for every role, with and without scopes, policy agrees with the
// table of authz/access on each permission, both with the built-in set and with a set that
// doesn't mention permissions.
func TestPermissionsAreTheTable(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	tools := mustCompile(t, `@id("tools") permit (principal, action == Palyra::Action::"tool.execute", resource);`)
	var names []string
	for _, p := range access.All().List() {
		names = append(names, string(p))
	}
	scopes := [][]string{nil, {}, names}
	for range 6 {
		rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		scopes = append(scopes, slices.Clone(names[:rng.IntN(len(names))]))
	}
	allowed, denied := 0, 0
	for _, role := range []string{"", RoleOperator, RoleAdmin, RoleOwner} {
		for _, scope := range scopes {
			has := access.Role(role).Permissions()
			if scope != nil {
				limit, err := access.ParseSet(scope)
				if err != nil {
					t.Fatal(err)
				}
				has &= limit
			}
			for _, p := range access.All().List() {
				var roles []string
				if role != "" {
					roles = []string{role}
				}
				want := Deny
				if has.Has(p) {
					want = Allow
					allowed++
				} else {
					denied++
				}
				for _, s := range []*Set{Default(), tools} {
					if d := s.Decide(useOf(roles, scope, p)); d.Effect != want || !slices.Equal(d.Policies, map[Effect][]string{Allow: {"holders_use_permissions"}}[want]) {
						t.Fatalf("%q with scopes %q, %s: %v %s %q, want %v", role, scope, p, d.Effect, d.Reason, d.Policies, want)
					}
				}
			}
		}
	}
	if allowed < 100 || denied < 100 {
		t.Errorf("%d allowed, %d denied", allowed, denied)
	}
}

// TestPermissionsInPolicies: policies take away by permission, channel and feature. They can
// name a credential's permissions in rules on other actions. A set that permits permission.use
// speaks for all of it.
func TestPermissionsInPolicies(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		r      Request
		change func(*Request)
		want   Effect
		by     []string
	}{
		"forbidden": {`@id("f") forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"token.manage");`,
			useOf([]string{RoleOwner}, nil, access.TokenManage), nil, Deny, []string{"f"}},
		"another is not": {`@id("f") forbid (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"token.manage");`,
			useOf([]string{RoleOwner}, nil, access.RunStart), nil, Allow, []string{"holders_use_permissions"}},
		"by channel": {`@id("f") forbid (principal, action, resource is Palyra::Permission) when { context.channel == "http" };`,
			useOf([]string{RoleOwner}, nil, access.RunStart), func(r *Request) { r.Context.ChannelID = "http" }, Deny, []string{"f"}},
		"by feature": {`@id("f") forbid (principal, action == Palyra::Action::"permission.use", resource) unless { context.features.contains("tokens") };`,
			useOf([]string{RoleOwner}, nil, access.RunStart), nil, Deny, []string{"f"}},
		"feature on": {`@id("f") forbid (principal, action == Palyra::Action::"permission.use", resource) unless { context.features.contains("tokens") };`,
			useOf([]string{RoleOwner}, nil, access.RunStart), func(r *Request) { r.Context.Features = access.Features{}.On() }, Allow, []string{"holders_use_permissions"}},
		"held, in a scope": {`@id("p") permit (principal in Palyra::Permission::"vault.manage", action == Palyra::Action::"vault.get", resource);`,
			Request{Principal: Entity{Type: TypeUser, ID: "u", Roles: []string{RoleAdmin}}, Action: VaultGet, Resource: Entity{Type: TypeSecret, ID: "s"}}, nil, Allow, []string{"p"}},
		"not held by this credential": {`@id("p") permit (principal in Palyra::Permission::"vault.manage", action == Palyra::Action::"vault.get", resource);`,
			Request{Principal: Entity{Type: TypeUser, ID: "u", Roles: []string{RoleAdmin}, Scopes: []string{"run.start"}}, Action: VaultGet, Resource: Entity{Type: TypeSecret, ID: "s"}},
			nil, Deny, nil},
		"not held by this role": {`@id("p") permit (principal, action == Palyra::Action::"vault.get", resource) when { principal in [Palyra::Permission::"vault.manage"] };`,
			Request{Principal: Entity{Type: TypeUser, ID: "u", Roles: []string{RoleOperator}}, Action: VaultGet, Resource: Entity{Type: TypeSecret, ID: "s"}}, nil, Deny, nil},
		"its own word": {`@id("p") permit (principal, action == Palyra::Action::"permission.use", resource == Palyra::Permission::"run.start") when { principal in resource };`,
			useOf([]string{RoleOwner}, nil, access.SessionRead), nil, Deny, nil},
		"no permission": {`@id("p") permit (principal, action, resource);`, useOf([]string{RoleOwner}, nil, "no.such"), nil, Deny, nil},
		"no scope":      {`@id("p") permit (principal, action, resource);`, useOf([]string{RoleOwner}, []string{"*"}, access.RunStart), nil, Deny, nil},
	} {
		t.Run(name, func(t *testing.T) {
			s := mustCompile(t, c.text)
			if err := s.validate(t.Context()); err != nil {
				t.Fatal(err)
			}
			if c.change != nil {
				c.change(&c.r)
			}
			d := s.Decide(c.r)
			if d.Effect != c.want || !slices.Equal(d.Policies, c.by) {
				t.Errorf("%v %s %q %q", d.Effect, d.Reason, d.Policies, d.Errors)
			}
			// The offered fix works.
			if d.Reason != ReasonForbidden {
				return
			}
			if fix := s.Fix(c.r); !strings.HasPrefix(fix, "--- ") || strings.Contains(fix, "permit") && !strings.Contains(c.text, "permit") {
				t.Errorf("the fix of a forbid is %s", fix)
			}
		})
	}
}

// TestPermissionsUnknown: a policy that can never match is refused.
func TestPermissionsUnknown(t *testing.T) {
	for _, text := range []string{
		`@id("p") permit (principal in Palyra::Permission::"vault", action, resource);`,
		`@id("p") permit (principal, action, resource == Palyra::Permission::"*");`,
		`@id("p") permit (principal, action == Palyra::Action::"permission.use", resource) when { context.features.contains("token") };`,
	} {
		if err := mustCompile(t, text).validate(t.Context()); fault.ReasonOf(err) != "policy_never_matches" {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func BenchmarkPermission(b *testing.B) {
	r := useOf([]string{RoleOperator}, nil, access.RunStart)
	r.Context.ChannelID, r.Context.Features = "http", access.Features{}.On()
	s := Default()
	b.ReportAllocs()
	for b.Loop() {
		if s.Decide(r).Effect != Allow {
			b.Fatal("denied")
		}
	}
}
