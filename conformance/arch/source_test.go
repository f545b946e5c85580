package arch

import (
	"bytes"
	"go/ast"
	"go/build/constraint"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// TestPackageComment wants exactly one file per package to explain it.
func TestPackageComment(t *testing.T) {
	docs := make(map[string][]string)
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		if docs[f.dir] == nil {
			docs[f.dir] = []string{}
		}
		if f.ast.Doc == nil {
			continue
		}
		docs[f.dir] = append(docs[f.dir], f.path)
		text, name := f.ast.Doc.Text(), f.ast.Name.Name
		want := "Package " + name + " "
		if name == "main" {
			want = "Command " + path.Base(f.dir) + " "
		}
		if !strings.HasPrefix(strings.ReplaceAll(text, "\n", " "), want) {
			t.Errorf("%s: package comment begins %q, want %q", f.path, firstWords(text), want)
		}
	}
	for dir, in := range docs {
		if len(in) != 1 {
			t.Errorf("%s: package comment in %d files %v, want one", dir, len(in), in)
		}
	}
}

func firstWords(s string) string {
	w := strings.Fields(s)
	return strings.Join(w[:min(3, len(w))], " ")
}

// TestPackageNames refuses names that say nothing.
func TestPackageNames(t *testing.T) {
	for _, f := range tree(t) {
		switch n := strings.TrimSuffix(f.ast.Name.Name, "_test"); n {
		case "util", "utils", "common", "types", "helpers", "manager", "impl", "misc", "base":
			t.Errorf("%s: package name %q is no noun with a contract", f.path, n)
		}
	}
}

var odd = regexp.MustCompile(`(?m)^//go:(linkname|cgo_\w+)\b`)

// TestUnsafe keeps unsafe, cgo, linkname and assembly in their home.
func TestUnsafe(t *testing.T) {
	for _, f := range tree(t) {
		for _, p := range imports(t, f) {
			switch {
			case p == "C":
				t.Errorf("%s uses cgo", f.path)
			case p == "unsafe" && !(slices.Contains(unsafeHomes, f.dir) && (f.test || strings.Contains(path.Base(f.path), "_unsafe"))):
				t.Errorf("%s imports unsafe; only *_unsafe*.go in %v may", f.path, unsafeHomes)
			}
		}
		if m := odd.Find(f.src); m != nil {
			t.Errorf("%s has %s", f.path, m)
		}
	}
	for _, p := range names(t) {
		switch path.Ext(p) {
		case ".s", ".S", ".c", ".h", ".syso":
			if !slices.Contains(unsafeHomes, path.Dir(p)) && !strings.Contains(p, "/testdata/") {
				t.Errorf("%s: machine code outside %v", p, unsafeHomes)
			}
		}
	}
}

// TestNoHiddenState refuses init functions and package variables that can only
// be there to be assigned later.
func TestNoHiddenState(t *testing.T) {
	for _, f := range tree(t) {
		for _, d := range f.ast.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv == nil && d.Name.Name == "init" {
					t.Errorf("%s: init function", f.at(d))
				}
			case *ast.GenDecl:
				if d.Tok != token.VAR || f.test {
					continue
				}
				embed := d.Doc != nil && strings.Contains(docSource(d.Doc), "//go:embed")
				for _, s := range d.Specs {
					v := s.(*ast.ValueSpec)
					embed := embed || v.Doc != nil && strings.Contains(docSource(v.Doc), "//go:embed")
					if len(v.Values) == 0 && !embed {
						t.Errorf("%s: package variable %s without a value is state", f.at(v), v.Names[0].Name)
					}
				}
			}
		}
	}
}

func docSource(g *ast.CommentGroup) string {
	var b strings.Builder
	for _, c := range g.List {
		b.WriteString(c.Text + "\n")
	}
	return b.String()
}

// TestFileLength: a long file is split by subject.
func TestFileLength(t *testing.T) {
	for _, f := range tree(t) {
		if n := bytes.Count(f.src, []byte("\n")); n > 800 {
			t.Errorf("%s has %d lines, limit 800", f.path, n)
		}
	}
}

var platforms = map[string]bool{"linux": true, "darwin": true, "windows": true, "unix": true,
	"amd64": true, "arm64": true, "race": true}

// TestBuildTags allows platforms only: a tag may remove, never weaken.
func TestBuildTags(t *testing.T) {
	for _, f := range tree(t) {
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				if !constraint.IsGoBuild(c.Text) {
					continue
				}
				x, err := constraint.Parse(c.Text)
				if err != nil {
					t.Errorf("%s: %v", f.at(c), err)
					continue
				}
				x.Eval(func(tag string) bool {
					if !platforms[tag] && oddTags[tag] == "" {
						t.Errorf("%s: build tag %q is no platform", f.at(c), tag)
					}
					return true
				})
			}
		}
	}
}

// called returns "pkg.Func" or ".Method" for a call, "" for others.
func called(c *ast.CallExpr) string {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); ok {
		return x.Name + "." + s.Sel.Name
	}
	return "." + s.Sel.Name
}

// text returns the string that the n-th argument begins with, as far as it is
// written in the source.
func text(c *ast.CallExpr, n int) (string, bool) {
	if n >= len(c.Args) {
		return "", false
	}
	e := c.Args[n]
	for {
		b, ok := e.(*ast.BinaryExpr)
		if !ok || b.Op != token.ADD {
			break
		}
		e = b.X
	}
	l, ok := e.(*ast.BasicLit)
	if !ok || l.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(l.Value)
	return s, err == nil
}

var emotion = regexp.MustCompile(`^(failed|unable|could not|couldn't|cannot|can't|error)\b`)

// TestErrorTexts wants an error to name the thing and the operation.
func TestErrorTexts(t *testing.T) {
	for _, f := range tree(t) {
		if f.test {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if name := called(c); name != "errors.New" && name != "fmt.Errorf" {
				return true
			}
			s, ok := text(c, 0)
			switch {
			case !ok:
			case emotion.MatchString(strings.ToLower(s)):
				t.Errorf("%s: error text %q names an emotion, not the operation", f.at(c), s)
			case strings.HasSuffix(s, ".") || strings.HasSuffix(s, "\n"):
				t.Errorf("%s: error text %q ends in punctuation", f.at(c), s)
			}
			return true
		})
	}
}

// TestNoSleep wants tests to wait for something instead of for long enough.
func TestNoSleep(t *testing.T) {
	for _, f := range tree(t) {
		if !f.test || sleepers[f.path] != "" {
			continue
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			if c, ok := n.(*ast.CallExpr); ok && called(c) == "time.Sleep" {
				t.Errorf("%s: time.Sleep in a test", f.at(c))
			}
			return true
		})
	}
}

// TestSkips wants every skip to begin with a reason on the list.
func TestSkips(t *testing.T) {
	for _, f := range tree(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			s, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || !isTB(s.X) {
				return true
			}
			switch s.Sel.Name {
			case "SkipNow":
				t.Errorf("%s: SkipNow gives no reason", f.at(c))
			case "Skip", "Skipf":
				if why, ok := text(c, 0); !ok || !reasonListed(why) {
					t.Errorf("%s: skip reason %q is not on the list in conformance/arch", f.at(c), why)
				}
			}
			return true
		})
	}
}

// TestSampled: make exhaustive finds the tests that have more to try by their calls of
// internal/sample, line by line. A call elsewhere would run whole nowhere.
func TestSampled(t *testing.T) {
	n := 0
	for _, f := range tree(t) {
		if slices.Contains(imports(t, f), "palyra/internal/built") && !f.test {
			t.Errorf("%s imports internal/built and is no test", f.path)
		}
		if !slices.Contains(imports(t, f), "palyra/internal/sample") {
			continue
		}
		if !f.test {
			t.Errorf("%s imports internal/sample and is no test", f.path)
		}
		for _, d := range f.ast.Decls {
			fn, _ := d.(*ast.FuncDecl)
			ast.Inspect(d, func(x ast.Node) bool {
				s, ok := x.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				if p, ok := s.X.(*ast.Ident); !ok || p.Name != "sample" {
					return true
				}
				n++
				if fn == nil || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Test") {
					t.Errorf("%s: sample.%s is used outside of a Test function", f.at(s), s.Sel.Name)
				}
				return true
			})
		}
	}
	if n == 0 {
		t.Error("no test takes a sample")
	}
}

// isTB guesses whether e is a testing.TB by the names that we give them.
func isTB(e ast.Expr) bool {
	x, ok := e.(*ast.Ident)
	return ok && (x.Name == "t" || x.Name == "tb" || x.Name == "b" || x.Name == "f")
}

func reasonListed(why string) bool {
	return slices.ContainsFunc(skipReasons, func(r string) bool { return strings.HasPrefix(why, r) })
}

// TestFuzzSeeds wants every fuzz target to have inputs to start from.
func TestFuzzSeeds(t *testing.T) {
	for _, f := range tree(t) {
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || !f.test || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			dir := filepath.Join(root, f.dir, "testdata", "fuzz", fn.Name.Name)
			if es, err := os.ReadDir(dir); err == nil && len(es) > 0 {
				continue
			}
			var seeded bool
			ast.Inspect(fn, func(n ast.Node) bool {
				c, ok := n.(*ast.CallExpr)
				if ok && (strings.HasSuffix(called(c), ".Add") || seedHelper(c)) {
					seeded = true
				}
				return true
			})
			if !seeded {
				t.Errorf("%s: fuzz target %s has no seeds", f.at(fn), fn.Name.Name)
			}
		}
	}
}

// seedHelper reports whether a call is to a function named for seeding.
func seedHelper(c *ast.CallExpr) bool {
	x, ok := c.Fun.(*ast.Ident)
	return ok && strings.Contains(strings.ToLower(x.Name), "seed")
}
