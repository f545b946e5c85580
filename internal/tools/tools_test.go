package tools

import (
	"slices"
	"testing"

	"palyra/internal/toolproto"
)

// TestRows: each tool has one row, and one that works in a workspace has an input
// that names it, as a schema needs it.
func TestRows(t *testing.T) {
	seen := make(map[string]bool)
	for _, tool := range All() {
		if seen[tool.Name] || tool.Description == "" {
			t.Errorf("%s: twice, or without a description", tool.Name)
		}
		seen[tool.Name] = true
		in := tool.Input()
		_, names := in.(interface{ InWorkspace() string })
		member := slices.ContainsFunc(toolproto.Members(in), func(m toolproto.Member) bool { return m.Name == "workspace" && m.Required })
		if has := tool.Access != None && !tool.Access.Layered(); names != has || member != has {
			t.Errorf("%s: access %d, InWorkspace %v, a member workspace %v", tool.Name, tool.Access, names, member)
		}
		if found, ok := Find(tool.Name); !ok || found.Name != tool.Name || found.Access != tool.Access {
			t.Errorf("%s is not found: %+v", tool.Name, found)
		}
	}
	if _, ok := Find("process.run"); ok {
		t.Error("process.run is no tool of palyra-tool")
	}
}
