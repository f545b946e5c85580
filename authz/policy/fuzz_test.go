package policy

import (
	"encoding/json"
	"reflect"
	"testing"
	"testing/fstest"

	"palyra/internal/fault"
)

// FuzzLoad: any bytes as a policy file either load and decide, or give one classified error. A
// set that loads has one answer, whatever the file's name.
func FuzzLoad(f *testing.F) {
	files, err := readFS(DefaultFS())
	if err != nil {
		f.Fatal(err)
	}
	for _, file := range files {
		if file.kind == kindPolicy {
			f.Add(file.data)
		}
	}
	for _, s := range []string{
		permitAll, permitAll + permitAll, "", "@id", `@id("x")`, `permit(principal,action,resource);`,
		`@id("x") permit (principal, action, resource) when { context has approved && context.approved };`,
		`@id("x") @untested forbid (principal, action == Palyra::Action::"tool.execute", resource) when { context.limits.memory * 9223372036854775807 > 0 };`,
		`@id("x") permit (principal, action, resource) when { if context.approved then true else {"a": [1, ip("::1")]}.a.contains(2) };`,
		`@id("x") permit (principal is Palyra::User in Palyra::Role::"owner", action, resource) unless { principal.hasTag("x") };`,
		`@id("x") permit (principal, action, resource) when { ------1 == 1 };`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := LoadFS(fstest.MapFS{"a.cedar": {Data: data}})
		if err != nil {
			if fault.KindOf(err) != fault.BadState || fault.ReasonOf(err) == "" || s != nil {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		other, err := LoadFS(fstest.MapFS{"z.cedar": {Data: data}})
		if err != nil {
			t.Fatal(err)
		}
		r := benchRequest()
		for _, path := range []string{"/usr/bin/cat", "/usr/bin/python3"} {
			r.Context.Executable.Path = path
			a, b, want := s.Decide(r), other.Decide(r), oracle(s, r)
			if !sameAnswer(a, b) {
				t.Fatalf("%+v and %+v", a, b)
			}
			if !sameAnswer(a, want) {
				t.Fatalf("got %+v, want %+v", a, want)
			}
			s.Explain(r)
		}
	})
}

// FuzzParseRequest: a request that parses decides without panic and survives a round trip.
func FuzzParseRequest(f *testing.F) {
	text, err := json.Marshal(benchRequest())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"principal": {"type": "Palyra::User", "id": "u"}, "action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}, "context": {}}`))
	f.Add([]byte(`{"principal": {"type": "Palyra::Agent", "id": "\"\\\u0000\u202e", "roles": ["owner", "owner"]}, "action": "vault.get", "resource": {"type": "Palyra::Secret", "id": "*"}, "context": {}}`))
	f.Add([]byte(`{"action": "tool.execute", "action": "tool.list"}`))
	f.Add([]byte(`{"context": {"limits": {"memory": 9223372036854775807}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRequest(data)
		if err != nil {
			if fault.KindOf(err) != fault.Usage {
				t.Fatalf("unclassified: %v", err)
			}
			return
		}
		text, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		again, err := parseRequest(text)
		if err != nil {
			t.Fatalf("does not parse again: %v\n%s", err, text)
		}
		d := Default().Decide(r)
		if d.Reason == ReasonBadRequest || d.Reason == ReasonPolicyError {
			t.Fatalf("%s %q for a request that parsed", d.Reason, d.Errors)
		}
		if e := Default().Decide(again); e.Effect != d.Effect || !reflect.DeepEqual(e.Policies, d.Policies) {
			t.Fatalf("%v and %v", d, e)
		}
		if d.Effect != Allow {
			fix := Default().Fix(r)
			s := loadWith(t, Default(), fix)
			if got := s.Decide(r); got.Effect < d.Effect || got.Reason == ReasonPolicyError {
				t.Fatalf("with the fix: %v %s\n%s", got.Effect, got.Reason, fix)
			}
		}
	})
}
