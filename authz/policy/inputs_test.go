package policy

import (
	"reflect"

	"testing"
	"testing/fstest"
)

// TestModelAfterOutside: a permitted turn of a model is no question after the session has read from
// outside, and the same call of another tool is one.
func TestModelAfterOutside(t *testing.T) {
	for _, preset := range []string{"", "coding"} {
		files, _ := PresetFiles(preset)
		dir := fstest.MapFS{"90-turn.cedar": {Data: []byte(`@id("turn") permit (principal, action == Palyra::Action::"tool.execute", resource)
when { context.egress_hosts == ["model.example:443"] };`)}, "model.hosts": {Data: []byte("model.example\n")}}
		for name, data := range files {
			dir[name] = &fstest.MapFile{Data: data}
		}
		s, err := LoadFS(dir)
		if err != nil {
			t.Fatal(err)
		}
		for tool, after := range map[string]Effect{"model.turn": Allow, "http.fetch": NeedsApproval} {
			r := Request{Principal: Entity{Type: TypeUser, ID: "u", Roles: []string{RoleOperator}}, Action: ToolExecute, Resource: Tool(tool),
				Context: Context{Executable: Executable{Path: "/usr/lib/palyra/palyra-fetch", System: true}, EgressHosts: []string{"model.example:443"}, Capabilities: []string{CapNetwork}, Tier: "c"}}
			if d := s.Decide(r); d.Effect != Allow {
				t.Errorf("%q, %s, nothing read: %v %v", preset, tool, d.Effect, d.Policies)
			}
			r.Context.Inputs = []string{"model", "web"}
			if d := s.Decide(r); d.Effect != after {
				t.Errorf("%q, %s, from outside: %v %v, want %v", preset, tool, d.Effect, d.Policies, after)
			}
		}
	}
}

// TestCloneSharesNothing: tests of a file don't write into the lists of its base.
func TestCloneSharesNothing(t *testing.T) {
	var lists func(v reflect.Value, path string, do func(string, reflect.Value))
	lists = func(v reflect.Value, path string, do func(string, reflect.Value)) {
		switch {
		case v.Kind() == reflect.Struct:
			for i := range v.NumField() {
				lists(v.Field(i), path+"."+v.Type().Field(i).Name, do)
			}
		case v.Type() == reflect.TypeFor[[]string]() && v.CanSet():
			do(path, v)
		}
	}
	var r Request
	lists(reflect.ValueOf(&r).Elem(), "", func(_ string, v reflect.Value) { v.Set(reflect.ValueOf([]string{"base"})) })
	c := r.clone()
	lists(reflect.ValueOf(&c).Elem(), "", func(_ string, v reflect.Value) { v.Index(0).SetString("test") })
	n := 0
	lists(reflect.ValueOf(&r).Elem(), "", func(path string, v reflect.Value) {
		if n++; v.Index(0).String() != "base" {
			t.Errorf("%s is shared", path)
		}
	})
	if n < 15 {
		t.Errorf("%d lists", n)
	}
}
