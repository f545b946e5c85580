package local

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// TestFindFolders: a path of a client's chooses among the workspaces, and leads out of none.
func TestFindFolders(t *testing.T) {
	top := t.TempDir()
	for _, dir := range []string{"src/cmd/tool", "src/inner/deep", "other", "outside", "src/héllo"} {
		if err := os.MkdirAll(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range map[string]string{"src/out": "../outside", "src/abs": top + "/outside", "src/in": "cmd", "declared": "src", "src/up": "..", "src/loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(top, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(top, "src/file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(c *Config, _ *kernel.Config) {
		c.Workspaces = map[string]string{"src": top + "/declared", "inner": top + "/src/inner", "again": top + "/other", "other": top + "/other", "gone": top + "/gone"}
	})
	none := []string{}
	for path, want := range map[string]hub.Folder{
		"/src":            {Workspaces: []string{"src"}, Folder: "."},
		"/declared":       {Workspaces: []string{"src"}, Folder: "."},
		"/src/cmd/tool":   {Workspaces: []string{"src"}, Folder: "cmd/tool"},
		"/declared/cmd":   {Workspaces: []string{"src"}, Folder: "cmd"},
		"/src/in/tool":    {Workspaces: []string{"src"}, Folder: "in/tool"},
		"/src/inner":      {Workspaces: []string{"inner"}, Folder: "."},
		"/src/inner/deep": {Workspaces: []string{"inner"}, Folder: "deep"},
		"/other":          {Workspaces: []string{"again", "other"}, Folder: "."},
		"/src/out":        {Workspaces: none},
		"/src/abs":        {Workspaces: none},
		"/src/up":         {Workspaces: none},
		"/src/up/outside": {Workspaces: none},
		"/src/loop":       {Workspaces: none},
		"/src/file":       {Workspaces: none},
		"/src/missing":    {Workspaces: none},
		"/src/héllo":      {Workspaces: []string{"src"}, Folder: "héllo"},
		"/srcs":           {Workspaces: none},
		"/outside":        {Workspaces: none},
		"/gone":           {Workspaces: none},
		"":                {Workspaces: none},
		"/src/a%2e%2e":    {Workspaces: none},
		"/src/\xff":       {Workspaces: none},
		"/src/new\nline":  {Workspaces: none},
		"/src/nul\x00":    {Workspaces: none},
		"/src/" + strings.Repeat("x/", 3000) + "y": {Workspaces: none},
	} {
		p, err := hub.FindFolders.Do(t.Context(), h, h.owner, hub.FolderQuery{Paths: []string{top + path}})
		if err != nil || len(p.Items) != 1 || !reflect.DeepEqual(p.Items[0], want) {
			t.Errorf("%q: %+v, %v; want %+v", path, p.Items, err, want)
		}
	}
	for _, bad := range [][]string{{"src"}, {""}, {top + "/src/../outside"}, {top + "/src/"}, {top + "//src"}, strings.Split(strings.Repeat("/a ", hub.MaxFolders)+"/a", " ")} {
		if _, err := hub.FindFolders.Do(t.Context(), h, h.owner, hub.FolderQuery{Paths: bad}); fault.ReasonOf(err) != "invalid_input" {
			t.Errorf("%.60s: %v, want invalid_input", fmt.Sprint(bad), err)
		}
	}
}
