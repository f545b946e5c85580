package arch

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/internal/canon"
)

// TestPicturesAreNew: docs/console/SOURCES, which make pictures writes beside the pictures of the
// console's pages, has the digests of the templates, styles and scripts that there are.
func TestPicturesAreNew(t *testing.T) {
	const hint = "the pictures in docs/console are older than the pages: make pictures"
	var want []string
	for _, pattern := range []string{"pages/*", "assets/*.css", "assets/*.js"} {
		files, err := filepath.Glob(filepath.Join(root, "transport/console", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v", pattern, err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			name, err := filepath.Rel(root, f)
			if err != nil {
				t.Fatal(err)
			}
			want = append(want, strings.TrimPrefix(canon.Sum(b).String(), "sha256:")+"  "+filepath.ToSlash(name))
		}
	}
	have, err := os.ReadFile(filepath.Join(root, "docs/console/SOURCES"))
	if err != nil {
		t.Fatalf("%v: %s", err, hint)
	}
	lines := strings.Split(strings.TrimSpace(string(have)), "\n")
	for _, l := range want {
		if !slices.Contains(lines, l) {
			t.Errorf("%s has changed: %s", l[strings.LastIndexByte(l, ' ')+1:], hint)
		}
	}
	if len(lines) != len(want) {
		t.Errorf("%d files in SOURCES, %d in transport/console: %s", len(lines), len(want), hint)
	}
}
