package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

const root = "../.."

// file is one parsed Go file of the main module.
type file struct {
	path string // slash-separated, from the root
	dir  string
	test bool
	src  []byte
	fset *token.FileSet
	ast  *ast.File
}

// at names a place in f for a message.
func (f *file) at(n ast.Node) string {
	return fmt.Sprintf("%s:%d", f.path, f.fset.Position(n.Pos()).Line)
}

// ignored are the folders that .gitignore keeps out of the repository.
func ignored(rel string) bool {
	switch rel {
	case ".git", "bin", "conformance/results", "bench/results":
		return true
	}
	return path.Base(rel) == "node_modules"
}

// listed is the tree's files, found without git so that the tests also run in an unpacked
// archive and as a user who doesn't own the clone.
var listed = sync.OnceValues(func() ([]string, error) {
	var out []string
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if d.IsDir() && ignored(rel) {
			return fs.SkipDir
		}
		if d.Type().IsRegular() && rel != ".git" { // a file in a linked worktree
			out = append(out, rel)
		}
		return nil
	})
	return out, err
})

// parsed is every Go file of the main module, whatever its platform.
var parsed = sync.OnceValues(func() ([]*file, error) {
	names, err := listed()
	if err != nil {
		return nil, err
	}
	var nested []string
	for _, p := range names {
		if path.Base(p) == "go.mod" && path.Dir(p) != "." {
			nested = append(nested, path.Dir(p))
		}
	}
	var out []*file
	for _, p := range names {
		if !strings.HasSuffix(p, ".go") || strings.Contains("/"+p, "/testdata/") || inAny(path.Dir(p), nested) {
			continue
		}
		src, err := os.ReadFile(filepath.Join(root, p))
		if err != nil {
			return nil, err
		}
		f := &file{path: p, dir: path.Dir(p), test: strings.HasSuffix(p, "_test.go"), src: src, fset: token.NewFileSet()}
		if f.ast, err = parser.ParseFile(f.fset, p, src, parser.ParseComments|parser.SkipObjectResolution); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
})

func tree(t testing.TB) []*file {
	t.Helper()
	fs, err := parsed()
	if err != nil {
		t.Fatal(err)
	}
	if len(fs) < 20 {
		t.Fatalf("found %d Go files below %s; looking in the wrong place", len(fs), root)
	}
	return fs
}

func names(t testing.TB) []string {
	t.Helper()
	ns, err := listed()
	if err != nil {
		t.Fatal(err)
	}
	return ns
}
