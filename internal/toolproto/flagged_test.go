package toolproto

import (
	"slices"
	"testing"
)

// TestFlagged: the words that a person reads before a write are those that its
// result and its receipt use afterwards.
func TestFlagged(t *testing.T) {
	in := &WriteFileInput{Workspace: "src", Path: ".git/hooks/pre-commit", Mode: "create"}
	argv := append([]string{"/palyra-tool", WriteFile}, in.Brief()...)
	want, _ := Planted(".git/hooks/pre-commit")
	if got := Flagged(WriteFile, argv); !slices.Equal(got, []Flag{want}) || got[0].Why == "" {
		t.Errorf("%q of %q, want %q", got, argv, want)
	}
	mcp, _ := Planted(".mcp.json")
	argv = []string{"/palyra-tool", ApplyPatch, "modify=main.go", "rename=a -> b", "to=.git/hooks/pre-commit", "permissions=0755", "flag=hook", "create=.mcp.json", "flag=agent",
		"modify=run", "permissions=0755", "flag=executable",
		`create=.vscode/\x1b.json`, "flag=editor", "delete=.envrc", "dry_run"}
	editor, _ := Planted(".vscode/\x1b.json")
	if got := Flagged(ApplyPatch, argv); !slices.Equal(got, []Flag{want, mcp, {Path: "run", Kind: "executable", Why: "it can be run as a program"}, editor}) {
		t.Errorf("%q", got)
	}
	if got := Flagged("process.run", []string{"echo", "path=.git/hooks/x", "flag=hook"}); got != nil {
		t.Errorf("of a program: %q", got)
	}
}
