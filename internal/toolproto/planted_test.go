package toolproto

import "testing"

// TestPlantedHead: git takes no folder without a HEAD for a repository, and each write of a tool
// has one path.
func TestPlantedHead(t *testing.T) {
	for name, want := range map[string]string{"HEAD": PlaceGit, "lib/head": PlaceGit, "HEAD.md": "", "lib/HEAD/x": ""} {
		if f, ok := Planted(name); ok != (want != "") || f.Kind != want {
			t.Errorf("%s: %q, want %q", name, f.Kind, want)
		}
	}
}
