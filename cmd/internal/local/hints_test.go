package local

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/cmd/internal/command"
)

// advised returns the texts of a file that tell a user what to type: hints, fixes of denials
// and the table of reasons.
func advised(f *ast.File) (out []string) {
	collect := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
				if s, err := strconv.Unquote(l.Value); err == nil {
					out = append(out, s)
				}
			}
			return true
		})
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if s, ok := n.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "WithHint" {
				for _, a := range n.Args {
					collect(a)
				}
			}
		case *ast.KeyValueExpr:
			if k, ok := n.Key.(*ast.Ident); ok && (k.Name == "Fix" || k.Name == "Do") {
				collect(n.Value)
			}
		}
		return true
	})
	return out
}

// typed is a command in a text: its words, and its flags.
var typed = regexp.MustCompile(`\bpalyra ([a-z]+(?: [a-z]+)?)((?: (?:--[a-z-]+|[A-Z%][A-Za-z%]*))*)`)

// unknown returns the commands and flags of a text that t doesn't have.
func unknown(t *command.Table, text string) (out []string) {
	for _, m := range typed.FindAllStringSubmatch(text, -1) {
		first, _, _ := strings.Cut(m[1], " ")
		c := t.Find(m[1])
		if c == nil {
			c = t.Find(first)
		}
		switch {
		case c != nil:
			for _, w := range strings.Fields(m[2]) {
				if name, ok := strings.CutPrefix(w, "--"); ok && !slices.ContainsFunc(c.Flags, func(f command.Flag) bool { return f.Name == name }) {
					out = append(out, m[0])
				}
			}
		case first == "help" || prose[m[1]]:
		default:
			out = append(out, m[0])
		}
	}
	return out
}

// prose are sentences about palyra.
var prose = map[string]bool{"as a": true, "policy on": true}

// TestAdvice: every command and flag that a hint or a fix names is one of palyra's.
func TestAdvice(t *testing.T) {
	table := Table()
	for text, want := range map[string]int{"palyra stop --resume": 1, "palyra resume": 0, "see palyra nothing": 1, "palyra journal show INDEX --json": 0, "palyra journal grow": 1} {
		if got := unknown(table, text); len(got) != want {
			t.Errorf("%q: unknown %q, want %d", text, got, want)
		}
	}
	found := 0
	root := filepath.Join("..", "..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && (d.Name() == "testdata" || d.Name() == "conformance" || strings.HasPrefix(d.Name(), ".") && path != root) {
			return fs.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, text := range advised(f) {
			found += len(typed.FindAllString(text, -1))
			for _, u := range unknown(table, text) {
				t.Errorf("%s: no such command or flag: %q", path, u)
			}
		}
		return nil
	})
	if err != nil || found < 50 {
		t.Errorf("%d commands found, %v", found, err)
	}
}
