package account

import (
	"strings"
	"testing"

	"palyra/crypt/receipt"
)

// TestPlantedIsShown: each file that was found, what was left out, and where nothing was looked at.
func TestPlantedIsShown(t *testing.T) {
	p := &receipt.Planted{Looked: 7, Incomplete: []receipt.Unlooked{{Why: "entries", Folders: 3}},
		Kinds: []receipt.KindCount{{Kind: "hook", Count: 5}, {Kind: "symlink", Count: 1}},
		Found: []receipt.Finding{
			{Path: `.git/hooks/a\x1b[2J`, Kind: "hook", Mode: "100755"},
			{Path: `.git/hooks/b`, Kind: "hook", Mode: "100755", Moved: true},
			// As a later version might have spelled it.
			{Path: "out\u202e", Kind: "symlink", Mode: "120777", Target: "/etc\u202e"},
		}}
	var r Rows
	plantedRows(&r, p)
	got := r.String()
	for _, want := range []string{`hook ".git/hooks/a\x1b[2J", mode 100755`, `hook ".git/hooks/b", mode 100755, moved here`, `mode 120777, to "/etc`, "hook: 3 more", "3 folders: entries", "does not stamp"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if strings.ContainsAny(got, "\x1b\u202e") {
		t.Errorf("shown raw: %q", got)
	}
	r = Rows{}
	plantedRows(&r, &receipt.Planted{Looked: 7})
	if got := r.String(); !strings.Contains(got, "nothing among 7 entries") {
		t.Errorf("of nothing: %q", got)
	}
}
