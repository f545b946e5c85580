package arch

import (
	"go/ast"
	"strings"
	"testing"
	"unicode/utf8"
)

// TestCommentWidth keeps comments of what ships at 100 columns, a tab counting as one. Addresses,
// tables, what is set apart by white space and directives may be longer, as may a comment behind
// code; tests and generated files aren't looked at.
func TestCommentWidth(t *testing.T) {
	looked := 0
	for _, f := range tree(t) {
		if f.test || ast.IsGenerated(f.ast) || strings.Contains("/"+f.path, "/testdata/") {
			continue
		}
		lines := strings.Split(string(f.src), "\n")
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				line := lines[f.fset.Position(c.Pos()).Line-1]
				text, ok := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
				if !ok || strings.HasPrefix(text, " ") {
					continue
				}
				looked++
				if n := utf8.RuneCountInString(line); n > 100 && strings.Contains(line[:100], " ") && !strings.Contains(text, "://") && !strings.Contains(text, " | ") {
					t.Errorf("%s: a comment of %d columns", f.at(c), n)
				}
			}
		}
	}
	if looked < 10000 {
		t.Errorf("looked at %d lines", looked)
	}
}
