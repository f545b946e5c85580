package policy

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/internal/fault"
)

// TestBundle: the answer follows from the questions, and the texts are policies.
func TestBundle(t *testing.T) {
	r := benchRequest()
	r.Context.Executable.Path = "/usr/bin/bash"
	b, err := Default().Bundle(r, "0123")
	if err != nil {
		t.Fatal(err)
	}
	if len(b.Questions) != 4 || b.Questions[0].Action.ID != interpreterRun || b.Questions[0].Resource.ID != "bash" || b.Questions[3].Allow ||
		b.Kind != Shell || b.Answer.Effect != Deny || !slices.Equal(b.Answer.Policies, []string{"interpreters_unless_permitted"}) ||
		!slices.Equal(b.Questions[3].Policies, b.Answer.Policies) || len(b.Questions[0].Entities) != 5 {
		t.Errorf("%+v", b)
	}
	var context struct{ Approved bool }
	if json.Unmarshal(b.Questions[3].Context, &context) != nil || !context.Approved {
		t.Errorf("context %s", b.Questions[3].Context)
	}
	var all strings.Builder
	for _, text := range b.Policies {
		all.WriteString(text + "\n")
	}
	again := mustCompile(t, all.String())
	if d := again.Decide(b.Request); len(again.rules) != len(Default().rules) || d.Effect != Deny || !slices.Equal(d.Policies, b.Answer.Policies) {
		t.Errorf("the texts decide %v", d)
	}
	if _, err := Default().Bundle(Request{}, ""); err == nil {
		t.Error("a request that is none has a bundle")
	}
}

// TestBundleImplied: the permit that a set lacks is among the texts of a decision that it made.
func TestBundleImplied(t *testing.T) {
	s := mustCompile(t, `@id("x") permit (principal, action == Palyra::Action::"tool.list", resource);`)
	r := useOf([]string{RoleOwner}, nil, access.RunStart)
	b, err := s.Bundle(r, "0123")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{impliedID}; !slices.Equal(b.Answer.Policies, want) || b.Policies[impliedID] == "" || b.Policies["x"] == "" {
		t.Errorf("answer %v, policies %q", b.Answer, b.Policies)
	}
	if b, err = s.Bundle(benchRequest(), "0123"); err != nil || len(b.Policies) != 1 {
		t.Errorf("%v, policies %q", err, b.Policies)
	}
	if _, err := compile([]file{{"a.cedar", kindPolicy, []byte(`@id("` + impliedID + `") forbid (principal, action, resource);`)}}); fault.ReasonOf(err) != "policy_invalid" || !strings.Contains(err.Error(), "@id is already") {
		t.Errorf("a policy with the permit's id: %v", err)
	}
}

// TestExposures: a call with secrets is permitted only if each of them is, for that tool, and the
// bundle has a question about each.
func TestExposures(t *testing.T) {
	s := mustCompile(t, `@id("run") permit (principal, action == Palyra::Action::"tool.execute", resource);
		@id("token") permit (principal, action == Palyra::Action::"vault.expose", resource == Palyra::Secret::"vault://global/token")
			when { context.tool == "process.run" };
		@id("key") permit (principal, action == Palyra::Action::"vault.expose", resource == Palyra::Secret::"vault://global/key") when { context.approved };
		@id("never") @untested("here") forbid (principal, action == Palyra::Action::"vault.expose", resource == Palyra::Secret::"vault://global/root");`)
	for _, c := range []struct {
		tool     string
		secrets  []string
		effect   Effect
		reason   string
		policies []string
		asked    int
	}{
		{"process.run", nil, Allow, ReasonPermitted, []string{"run"}, 1},
		{"process.run", []string{"vault://global/token"}, Allow, ReasonPermitted, []string{"run", "token"}, 2},
		{"fs.search", []string{"vault://global/token"}, Deny, ReasonNotPermitted, nil, 4},
		{"process.run", []string{"vault://global/key"}, NeedsApproval, ReasonApprovalRequired, []string{"key", "run"}, 4},
		{"process.run", []string{"vault://global/token", "vault://global/key"}, NeedsApproval, ReasonApprovalRequired, []string{"key", "run", "token"}, 6},
		{"process.run", []string{"vault://global/token", "vault://global/other"}, Deny, ReasonNotPermitted, nil, 6},
		{"process.run", []string{"vault://global/root", "vault://global/token"}, Deny, ReasonForbidden, []string{"never"}, 4},
	} {
		r := benchRequest()
		r.Resource, r.Context.Secrets = Tool(c.tool), c.secrets
		d := s.Decide(r)
		if d.Effect != c.effect || d.Reason != c.reason || !slices.Equal(d.Policies, c.policies) || !sameAnswer(d, oracle(s, r)) {
			t.Errorf("%s with %q: %v %s %q, want %v %s %q", c.tool, c.secrets, d.Effect, d.Reason, d.Policies, c.effect, c.reason, c.policies)
		}
		b, err := s.Bundle(r, "")
		if err != nil || len(b.Questions) != c.asked {
			t.Errorf("%s with %q: %d questions, want %d; %v", c.tool, c.secrets, len(b.Questions), c.asked, err)
		}
	}
	for _, action := range []string{vaultExpose, vaultUse, ToolList} {
		r := benchRequest()
		r.Action, r.Resource, r.Context.Secrets = action, Entity{Type: TypeSecret, ID: "vault://global/token"}, []string{"vault://global/token"}
		if action == ToolList {
			r.Resource.Type = TypeWorkspace
		}
		if d := s.Decide(r); d.Reason != ReasonBadRequest {
			t.Errorf("%s: %+v", action, d)
		}
	}
}

// TestUses: each use of a secret takes a permit of its own, which sees where the secret goes, and no
// other question sees that.
func TestUses(t *testing.T) {
	s := mustCompile(t, `@id("run") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.use.host == "" && context.use.methods.isEmpty() };
		@id("token") permit (principal, action == Palyra::Action::"vault.use", resource == Palyra::Secret::"vault://global/token")
			when { context.use.host == "a.example:443" && context.use.methods == ["GET"] && context.use.path == "/v1/" };
		@id("expose") permit (principal, action == Palyra::Action::"vault.expose", resource);
		@id("key") permit (principal, action == Palyra::Action::"vault.use", resource == Palyra::Secret::"vault://global/key") when { context.approved };
		@id("not_others") forbid (principal, action == Palyra::Action::"vault.use", resource) when { !context.secrets_of_others.isEmpty() };`)
	const token = "T=vault://global/token header:authorization GET a.example:443/v1/"
	for _, c := range []struct {
		uses     []string
		effect   Effect
		reason   string
		policies []string
		asked    int
	}{
		{nil, Allow, ReasonPermitted, []string{"run"}, 1},
		{[]string{token}, Allow, ReasonPermitted, []string{"run", "token"}, 2},
		{[]string{"T=vault://global/token header:authorization GET b.example:443/v1/"}, Deny, ReasonNotPermitted, nil, 4},
		{[]string{"T=vault://global/token header:authorization GET,POST a.example:443/v1/"}, Deny, ReasonNotPermitted, nil, 4},
		{[]string{"T=vault://global/token header:authorization GET a.example:443"}, Deny, ReasonNotPermitted, nil, 4},
		{[]string{"K=vault://global/key query:k a.example:443", token}, NeedsApproval, ReasonApprovalRequired, []string{"key", "run", "token"}, 5},
		{[]string{token, "U=vault://principal:mallory/x header:x GET a.example:443"}, Deny, ReasonForbidden, []string{"not_others"}, 4},
		{[]string{"T=vault://global/token header:authorization GET a.example"}, Deny, ReasonBadRequest, nil, -1},
	} {
		r := benchRequest()
		r.Context.EgressSecrets = c.uses
		d := s.Decide(r)
		if d.Effect != c.effect || d.Reason != c.reason || !slices.Equal(d.Policies, c.policies) {
			t.Errorf("%q: %v %s %q, want %v %s %q", c.uses, d.Effect, d.Reason, d.Policies, c.effect, c.reason, c.policies)
		}
		if c.asked < 0 {
			continue
		}
		if !sameAnswer(d, oracle(s, r)) {
			t.Errorf("%q: the oracle says otherwise", c.uses)
		}
		b, err := s.Bundle(r, "")
		if err != nil || len(b.Questions) != c.asked {
			t.Errorf("%q: %d questions, want %d; %v", c.uses, len(b.Questions), c.asked, err)
		}
	}
}

// TestBundleHostNetwork: a bundle of a call in the host's network that no permit names has the
// questions with approval, and none about secrets, as the decision asked them.
func TestBundleHostNetwork(t *testing.T) {
	s := mustCompile(t, `@id("all") permit (principal, action, resource);
		@id("no") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.approved };`)
	r := benchRequest()
	r.Context.Network, r.Context.Secrets = NetworkHost, []string{"vault://global/a"}
	b, err := s.Bundle(r, "")
	if err != nil {
		t.Fatal(err)
	}
	var asked []string
	for _, q := range b.Questions {
		asked = append(asked, fmt.Sprintf("%s %v", q.Action.ID, q.Allow))
	}
	if want := []string{"tool.execute true", "tool.execute false"}; !slices.Equal(asked, want) || b.Answer.Reason != ReasonForbidden || !slices.Equal(b.Answer.Policies, []string{"no"}) {
		t.Errorf("%q, want %q; %+v", asked, want, b.Answer)
	}
}

// TestForbiddenUses: a forbid of vault.use holds for its secret and host however the use is spelled,
// and sees its words as attributes. One of the use's text holds for that spelling alone.
func TestForbiddenUses(t *testing.T) {
	const all = `@id("run") permit (principal, action == Palyra::Action::"tool.execute", resource);
		@id("use") permit (principal, action == Palyra::Action::"vault.use", resource);`
	s := mustCompile(t, all+`
		@id("not_there") forbid (principal, action == Palyra::Action::"vault.use", resource == Palyra::Secret::"vault://global/npm") when { context.use.host == "evil.example:443" };
		@id("as_we_do") forbid (principal, action == Palyra::Action::"vault.use", resource == Palyra::Secret::"vault://global/git")
			unless { context.use.revoke && !context.use.keep && context.use.place == "header:authorization" };`)
	byText := mustCompile(t, all+`
		@id("text") forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.egress_secrets.contains("T=vault://global/npm header:authorization evil.example:443") };`)
	decide := func(s *Set, uses ...string) *Decision {
		slices.Sort(uses)
		r := reaching(true, "evil.example:443", "git.example:443", "good.example:443")
		r.Context.EgressSecrets = uses
		d := s.Decide(r)
		return &d
	}
	spellings, byTextDenied := 0, 0
	for _, name := range []string{"T", "U"} {
		for _, place := range []string{" header:authorization ", " header:x-token ", " query:key "} {
			for _, methods := range []string{"", "GET ", "GET,POST "} {
				for _, path := range []string{"", "/v1/"} {
					for _, form := range []string{"", " form:npm_"} {
						for _, words := range []string{"", " keep", " revoke", " keep revoke"} {
							spelled := func(ref, host string) string { return name + "=" + ref + place + methods + host + path + form + words }
							use := spelled("vault://global/npm", "evil.example:443")
							for _, uses := range [][]string{{use}, {use, "A=vault://global/key header:a good.example:443"}} {
								if d := decide(s, uses...); d.Effect != Deny || d.Reason != ReasonForbidden || !slices.Equal(d.Policies, []string{"not_there"}) {
									t.Errorf("%q: %v by %q", uses, d.Effect, d.Policies)
								}
							}
							for _, other := range []string{spelled("vault://global/npm", "good.example:443"), spelled("vault://global/npm2", "evil.example:443")} {
								if d := decide(s, other); d.Effect != Allow {
									t.Errorf("%q: %v by %q", other, d.Effect, d.Policies)
								}
							}
							want := Deny
							if place == " header:authorization " && words == " revoke" {
								want = Allow
							}
							if d := decide(s, spelled("vault://global/git", "git.example:443")); d.Effect != want || want == Deny && !slices.Equal(d.Policies, []string{"as_we_do"}) {
								t.Errorf("%q %q %q: %v by %q", place, form, words, d.Effect, d.Policies)
							}
							spellings++
							if decide(byText, use).Effect == Deny {
								byTextDenied++
							}
						}
					}
				}
			}
		}
	}
	if byTextDenied != 1 || spellings < 100 {
		t.Errorf("a forbid by text holds for %d of %d spellings", byTextDenied, spellings)
	}
}
