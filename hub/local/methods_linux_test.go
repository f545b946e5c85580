package local

import (
	"os"
	"slices"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/kernel"
)

// TestServerMethods: resources and prompts of a server are asked for as its tools are called: as
// policy says, with method and parameters in context and receipt, and nothing else in the request.
func TestServerMethods(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a.cedar", []byte(`@id("rest") permit (principal in Palyra::Role::"operator", action, resource) unless { resource == Palyra::Tool::"mcp.call" };
		@id("calls") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"mcp.call")
			when { ["echo", "resources/list", "prompts/get"].contains(context.mcp.tool) || context.mcp.tool == "resources/read" && context.mcp.arguments.contains("uri=test://a") };
		@id("asks") permit (principal in Palyra::Role::"operator", action == Palyra::Action::"tool.execute", resource == Palyra::Tool::"mcp.call")
			when { context.mcp.tool == "prompts/list" && context.approved };`), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(c *Config, k *kernel.Config) { c.PolicyDir, k.PolicyDir = dir, dir })
	h.addServer("bad", hub.ServerSpec{Argv: []string{"method"}})
	if st := h.ask(h.owner, "", "bad", hub.MethodListResources, nil); st.Reason != "server_not_accepted" {
		t.Errorf("nobody has accepted it: %+v", st)
	}
	v := h.accept("bad")
	op := h.member(2001, access.Operator)
	session := h.session(op)
	st := h.ask(op, session, "bad", hub.MethodReadResource, obj{"uri": "test://a"})
	if st.Outcome != receipt.Executed || st.Stdout.Text != `{"result":{"contents":[{"text":"read test://a ","uri":"test://a"}]}}` {
		t.Fatalf("%+v", st)
	}
	p := h.statement(*st.LogIndex).Predicate
	if m := p.Question.MCP; m == nil || m.Server != "bad" || m.Tool != "resources/read" || strings.Join(m.Arguments, " ") != "uri=test://a" {
		t.Errorf("%+v", p.Question)
	}
	for _, c := range []struct {
		tool    string
		args    obj
		outcome string
		reason  string
		want    string
	}{
		{hub.MethodListResources, nil, receipt.Executed, "", `"uri":"test://a"`},
		{hub.MethodGetPrompt, obj{"name": "p", "arguments": obj{"a": "b"}}, receipt.Executed, "exit_status", `{"error":{"code":-32602,"message":"no prompt p"}}`},
		{hub.MethodReadResource, obj{"uri": "test://b"}, receipt.Denied, "not_permitted", ""},
		{hub.MethodListTemplates, nil, receipt.Denied, "not_permitted", ""},
		{hub.MethodReadResource, obj{"uri": "test://a", "_meta": obj{"progressToken": 1}}, "", "invalid_input", ""},
		{hub.MethodReadResource, obj{"uri": obj{"a": 1}}, "", "invalid_input", ""},
		{hub.MethodGetPrompt, obj{"name": "p", "arguments": "a"}, "", "invalid_input", ""},
		{"resources/subscribe", obj{"uri": "test://a"}, "", "not_found", ""},
		{"tools/list", nil, "", "not_found", ""},
	} {
		st := h.ask(op, session, "bad", c.tool, c.args)
		if st.Outcome != c.outcome || st.Reason != c.reason || !strings.Contains(st.Stdout.Text, c.want) {
			t.Errorf("%s %v: %+v", c.tool, c.args, st)
		}
	}
	// A tool of such a name is shown to no client, and no call of it is one of the tool.
	if i := slices.IndexFunc(v.Tools, func(t hub.ServerTool) bool { return t.Name == "resources/read" }); i < 0 || v.Tools[i].LeftOut == "" {
		t.Errorf("a tool with a method's name: %+v", v.Tools)
	}
	list, err := hub.ListServerTools.Do(t.Context(), h, op, "bad")
	if err != nil || strings.Join(list.Methods, " ") != hub.MethodListResources {
		t.Errorf("offered are %q, %v; a person is asked about prompts", list.Methods, err)
	}
}
