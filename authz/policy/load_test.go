package policy

import (
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"palyra/internal/fault"
)

const (
	permitAll = `@id("all") permit (principal, action, resource);` + "\n"
	header    = "// a comment\n\n"
)

// TestRefused is the table of directories that don't load, with the names that the error must
// have. TestAccepted holds the same checks to directories that must load.
func TestRefused(t *testing.T) {
	forbid := func(scope, rest string) string {
		return header + `@id("x") @untested forbid (` + scope + `) ` + rest + ";\n"
	}
	when := func(cond string) string {
		return forbid(`principal, action == Palyra::Action::"tool.execute", resource`, "when { "+cond+" }")
	}
	tests := []struct {
		name   string
		files  map[string]string
		reason string
		names  []string // must appear in the error
	}{
		{"syntax", map[string]string{"a.cedar": header + `@id("x") permit (principal, action resource);`}, "policy_invalid", []string{"a.cedar:3:", "syntax"}},
		{"string not closed", map[string]string{"a.cedar": permitAll + `@id("x) permit`}, "policy_invalid", []string{"a.cedar:2:"}},
		{"not UTF-8", map[string]string{"a.cedar": permitAll + "@id(\"\xff\") permit (principal, action, resource);"}, "policy_invalid", []string{"a.cedar:2:"}},
		{"NUL", map[string]string{"a.cedar": permitAll + "\x00"}, "policy_invalid", []string{"a.cedar:2:"}},
		{"template", map[string]string{"a.cedar": `@id("x") permit (principal == ?principal, action, resource);`}, "policy_invalid", []string{"a.cedar:1:"}},
		{"nested too deep", map[string]string{"a.cedar": permitAll + `@id("x") permit (principal, action, resource) when { ` + strings.Repeat("(", 5000) + "true" + strings.Repeat(")", 5000) + " };"}, "policy_invalid", []string{"a.cedar:2", "nested"}},
		{"no @id", map[string]string{"a.cedar": header + "permit (principal, action, resource);"}, "policy_invalid", []string{"a.cedar:3", "@id"}},
		{"empty @id", map[string]string{"a.cedar": `@id permit (principal, action, resource);`}, "policy_invalid", []string{"a.cedar:1"}},
		{"@id with a newline", map[string]string{"a.cedar": `@id("a\nb") permit (principal, action, resource);`}, "policy_invalid", []string{"a.cedar:1", `a\nb`}},
		{"duplicate @id", map[string]string{"a.cedar": permitAll, "b.cedar": header + permitAll}, "policy_invalid", []string{"b.cedar:3", `"all"`, "a.cedar:1"}},
		{"no policy", map[string]string{"a.cedar": "// nothing\n"}, "policy_invalid", []string{"no .cedar file"}},
		{"empty directory", nil, "policy_invalid", []string{"no .cedar file"}},
		{"policy of 65 KiB", map[string]string{"a.cedar": `@id("x") permit (principal, action, resource) when { "` + strings.Repeat("x", 65<<10) + `" == "" };`}, "too_large", []string{"a.cedar:1", "65536 bytes"}},
		{"file of 10 MB", map[string]string{"a.cedar": strings.Repeat(permitAll, 10<<20/len(permitAll))}, "too_large", []string{"a.cedar"}},
		{"typo in the file name", map[string]string{"a.cedar": permitAll, "deny.ceder": ""}, "policy_invalid", []string{"deny.ceder"}},
		{"hidden policy", map[string]string{"a.cedar": permitAll, ".b.cedar": ""}, "policy_invalid", []string{".b.cedar"}},
		{"subdirectory", map[string]string{"a.cedar": permitAll, "more/b.cedar": permitAll}, "policy_invalid", []string{"more"}},
		{"another schema", map[string]string{"a.cedar": permitAll, "palyra.cedarschema": Schema() + " "}, "policy_invalid", []string{"palyra.cedarschema"}},

		{"unknown action", map[string]string{"a.cedar": forbid(`principal, action == Palyra::Action::"tool.exceute", resource`, "")}, "policy_invalid", []string{"a.cedar:3", `"x"`, "tool.exceute"}},
		{"action without namespace", map[string]string{"a.cedar": forbid(`principal, action == Action::"tool.execute", resource`, "")}, "policy_invalid", []string{"a.cedar:3", "unrecognized action"}},
		{"unknown entity type", map[string]string{"a.cedar": forbid(`principal == Palyra::Usr::"alice", action, resource`, "")}, "policy_invalid", []string{"a.cedar:3", "Palyra::Usr"}},
		{"unknown type in condition", map[string]string{"a.cedar": when(`principal is Palyra::Usr`)}, "policy_never_matches", []string{"a.cedar:3", "Palyra::Usr"}},
		{"unknown attribute", map[string]string{"a.cedar": when(`context.exe == ""`)}, "policy_invalid", []string{"a.cedar:3", "exe"}},
		{"unknown nested attribute", map[string]string{"a.cedar": when(`context.executable.pth == ""`)}, "policy_invalid", []string{"pth"}},
		{"attribute of another action", map[string]string{"a.cedar": forbid("principal, action, resource", `when { context.tier == "c" }`)}, "policy_invalid", []string{"tier"}},
		{"wrong type", map[string]string{"a.cedar": when(`context.arg_count == "3"`)}, "policy_invalid", []string{"a.cedar:3"}},
		{"not a condition", map[string]string{"a.cedar": when(`context.arg_count`)}, "policy_invalid", []string{"Bool"}},
		{"action and resource do not meet", map[string]string{"a.cedar": forbid(`principal, action == Palyra::Action::"tool.execute", resource is Palyra::Secret`, "")}, "policy_invalid", []string{"applicable action"}},
		{"a role asks", map[string]string{"a.cedar": forbid(`principal is Palyra::Role, action, resource`, "")}, "policy_invalid", []string{"applicable action"}},

		{"false", map[string]string{"a.cedar": when(`false`)}, "policy_never_matches", []string{"a.cedar:3", `"x"`}},
		{"unless true", map[string]string{"a.cedar": forbid("principal, action, resource", `unless { true }`)}, "policy_never_matches", []string{"a.cedar:3"}},
		{"second clause is false", map[string]string{"a.cedar": forbid("principal, action, resource", `when { context.sensitive } when { 1 == 2 }`)}, "policy_never_matches", nil},
		{"type test that fails", map[string]string{"a.cedar": when(`resource is Palyra::Secret`)}, "policy_never_matches", nil},
		{"has of nothing", map[string]string{"a.cedar": when(`context has colour && context.sensitive`)}, "policy_never_matches", nil},
		{"impossible parent", map[string]string{"a.cedar": when(`resource in Palyra::Role::"owner"`)}, "policy_never_matches", nil},
		{"unknown group of tools", map[string]string{"a.cedar": forbid(`principal, action == Palyra::Action::"tool.execute", resource in Palyra::ToolGroup::"reds"`, "")}, "policy_never_matches", []string{"reds"}},
		{"a group for a tool", map[string]string{"a.cedar": forbid(`principal, action == Palyra::Action::"tool.execute", resource == Palyra::ToolGroup::"reads"`, "")}, "policy_invalid", []string{"a.cedar"}},
		{"unknown role", map[string]string{"a.cedar": forbid(`principal in Palyra::Role::"opertor", action, resource`, "")}, "policy_never_matches", []string{"opertor"}},
		{"unknown role in condition", map[string]string{"a.cedar": when(`principal in [Palyra::Role::"admin", Palyra::Role::"boss"]`)}, "policy_never_matches", []string{"boss"}},
		{"unknown family", map[string]string{"a.cedar": forbid(`principal, action == Palyra::Action::"interpreter.run", resource == Palyra::Executable::"python3"`, "")}, "policy_never_matches", []string{"python3"}},
		{"unknown kind", map[string]string{"a.cedar": when(`context.executable.kind == "shel"`)}, "policy_never_matches", []string{"shel"}},
		{"unknown kind, turned round", map[string]string{"a.cedar": when(`"shel" != context.executable.kind`)}, "policy_never_matches", []string{"shel"}},
		{"unknown kind in a set", map[string]string{"a.cedar": when(`["shell", "loder"].contains(context.executable.kind)`)}, "policy_never_matches", []string{"loder"}},
		{"unknown tier", map[string]string{"a.cedar": when(`context.tier == "C"`)}, "policy_never_matches", []string{`"C"`}},
		{"unknown capability", map[string]string{"a.cedar": when(`context.capabilities.contains("net")`)}, "policy_never_matches", []string{"net"}},
		{"unknown capability in a set", map[string]string{"a.cedar": when(`context.capabilities.containsAny(["network", "exec"])`)}, "policy_never_matches", []string{"exec"}},

		{"forbid without a test", map[string]string{"a.cedar": header + `@id("x") forbid (principal, action, resource);`}, "policy_untested", []string{"a.cedar:3", `"x"`}},
		{"failing test", map[string]string{"a.cedar": permitAll, "t.test.json": `{"version": 1, "tests": [{"name": "nobody may", "effect": "deny",
			"request": {"principal": {"type": "Palyra::User", "id": "u"}, "action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}}}]}`},
			"policy_test_failed", []string{"t.test.json", "nobody may", "got allow", "want deny"}},
		{"test of another reason", map[string]string{"a.cedar": permitAll, "t.test.json": `{"version": 1, "tests": [{"name": "n", "effect": "deny", "reason": "forbidden", "request": {}}]}`},
			"policy_test_failed", []string{"bad_request"}},
		{"test of other policies", map[string]string{"a.cedar": permitAll, "t.test.json": `{"version": 1, "tests": [{"name": "n", "effect": "allow", "policies": ["some"],
			"request": {"principal": {"type": "Palyra::User", "id": "u"}, "action": "tool.list", "resource": {"type": "Palyra::Workspace", "id": "w"}}}]}`},
			"policy_test_failed", []string{"[all]", "[some]"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			fsys := make(fstest.MapFS)
			for name, text := range test.files {
				fsys[name] = &fstest.MapFile{Data: []byte(text)}
			}
			start := time.Now()
			s, err := LoadFS(fsys)
			if err == nil || s != nil {
				t.Fatal("loaded")
			}
			if d := time.Since(start); d > 20*time.Second {
				t.Errorf("took %v", d)
			}
			if fault.KindOf(err) != fault.BadState || fault.ReasonOf(err) != test.reason {
				t.Errorf("got %v %s, want bad_state %s: %v", fault.KindOf(err), fault.ReasonOf(err), test.reason, err)
			}
			for _, name := range test.names {
				if !strings.Contains(err.Error(), name) {
					t.Errorf("error does not name %q: %v", name, err)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error has several lines: %q", err.Error())
			}
		})
	}
}

// TestAccepted holds the checks above to what must still load.
func TestAccepted(t *testing.T) {
	for name, text := range map[string]string{
		"every action":       `@id("x") permit (principal, action, resource) when { context.approved };`,
		"or with false":      `@id("x") permit (principal, action, resource) when { false || context.approved };`,
		"one env of many":    `@id("x") permit (principal, action, resource) when { principal is Palyra::Agent };`,
		"true":               `@id("x") permit (principal, action, resource) when { true } unless { false };`,
		"family":             `@id("x") permit (principal, action == Palyra::Action::"interpreter.run", resource == Palyra::Executable::"ld.so");`,
		"unknown script":     `@id("x") permit (principal, action == Palyra::Action::"interpreter.run", resource == Palyra::Executable::"#!frob");`,
		"brackets in text":   `@id("x") permit (principal, action, resource) when { context.session != "` + strings.Repeat("(", 100) + `\"{" };`,
		"brackets in remark": "// " + strings.Repeat("(", 100) + "\n" + `@id("x") permit (principal, action, resource);`,
		"escape hatch":       `@id("x") permit (principal, action, resource); @id("y") @untested("shown by hand") forbid (principal, action, resource) when { context.sensitive };`,
		"long list":          `@id("x") permit (principal, action == Palyra::Action::"tool.execute", resource) when { [` + strings.Repeat(`"program",`, 5000) + `"x"].contains(context.executable.name) };`,
	} {
		if _, err := LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(text)}}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
