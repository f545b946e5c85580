// Command vet type-checks every package of a module and its tests for a platform, and has go vet's
// analyzers look at them.
//
//	go run -C conformance/vet . [-C DIR] darwin/arm64
//
// It reads sources alone, and of what we import the declarations alone: 10 to 15 seconds of
// processor. go vet compiles all that we import first, for each platform, and analyzes it, in a
// process for each package: 75 to 105.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/tools/go/analysis/checker"
	"golang.org/x/tools/go/analysis/suite/vet"
	"golang.org/x/tools/go/packages"
)

func main() {
	dir := flag.String("C", ".", "the module's folder")
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "usage: vet [-C DIR] GOOS/GOARCH") }
	flag.Parse()
	if flag.NArg() != 1 || strings.Count(flag.Arg(0), "/") != 1 {
		flag.Usage()
		os.Exit(2)
	}
	if err := check(*dir, flag.Arg(0)); err != nil {
		fmt.Fprintf(os.Stderr, "vet: %s: %v\n", flag.Arg(0), err)
		os.Exit(1)
	}
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath        string
	Name              string
	Dir               string
	Standard          bool
	GoFiles           []string
	IgnoredGoFiles    []string
	IgnoredOtherFiles []string
	HFiles, SFiles    []string
	Imports           []string
	ImportMap         map[string]string // what a file's import means, where it isn't the package of that path
	ForTest           string
	Module            *struct {
		Path, GoVersion string
		Main            bool
	}
}

func (p *listed) ours() bool { return p.Module != nil && p.Module.Main }

// again reports whether p was listed before and is listed once more only since it imports a package
// that a test adds files to.
func (p *listed) again() bool {
	path, _, variant := strings.Cut(p.ImportPath, " ")
	return variant && path != p.ForTest && path != p.ForTest+"_test"
}

// analyzed reports whether an analyzer has to see the bodies of p's functions: ours, and those that
// decide what a caller of ours may do, by ending the goroutine or formatting as Printf does.
func (p *listed) analyzed() bool {
	return p.ours() || p.Standard && (p.ImportPath == "log" || p.ImportPath == "testing")
}

// check reads the packages in the order in which they need each other, and returns the errors
// of ours and what the analyzers have against them.
func check(dir, platform string) error {
	system, arch, _ := strings.Cut(platform, "/")
	list := exec.Command("go", "list", "-deps", "-test",
		"-json=ImportPath,Name,Dir,Standard,GoFiles,IgnoredGoFiles,IgnoredOtherFiles,HFiles,SFiles,Imports,ImportMap,ForTest,Module", "./...")
	list.Dir = dir
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	w := world{fset: token.NewFileSet(), sizes: types.SizesFor("gc", arch), known: map[string]*types.Package{"unsafe": types.Unsafe},
		files: make(map[string]*ast.File), said: make(map[string]bool), loaded: make(map[string]*packages.Package)}
	for dec := json.NewDecoder(out); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = w.add(p)
		}
		if err != nil {
			_ = list.Process.Kill()
			return errors.Join(err, list.Wait())
		}
	}
	if err := list.Wait(); err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	if len(w.roots) == 0 {
		return errors.New("no packages")
	}
	if len(w.errs) > 0 {
		return errors.Join(w.errs...)
	}
	return w.analyze()
}

// world is what has been checked.
type world struct {
	fset   *token.FileSet
	sizes  types.Sizes
	known  map[string]*types.Package    // by import path, as go list spells it
	files  map[string]*ast.File         // by path: variants of a package for tests have the same ones
	loaded map[string]*packages.Package // those that are analyzed, by import path, as go list spells it
	roots  []string                     // of loaded, ours, each once
	errs   []error                      // of our packages, each once
	said   map[string]bool              // errs, as text
}

func (w *world) add(p listed) error {
	if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the latter is the program that go test makes
		return nil
	}
	mode := parser.SkipObjectResolution
	if p.ours() {
		mode |= parser.ParseComments
	}
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		f := w.files[path]
		if f == nil {
			var err error
			if f, err = parser.ParseFile(w.fset, path, nil, mode); err != nil {
				return err
			}
			w.files[path] = f
		}
		files = append(files, f)
	}
	cfg := types.Config{
		Importer: importer(func(path string) (*types.Package, error) {
			if to, ok := p.ImportMap[path]; ok {
				path = to
			}
			if q := w.known[path]; q != nil {
				return q, nil
			}
			return nil, fmt.Errorf("not listed before %s: %s", p.ImportPath, path)
		}),
		Sizes:            w.sizes,
		IgnoreFuncBodies: !p.analyzed(),
		Error: func(err error) {
			if p.ours() && !w.said[err.Error()] {
				w.said[err.Error()] = true
				w.errs = append(w.errs, err)
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		cfg.GoVersion = "go" + p.Module.GoVersion
	}
	var info *types.Info
	if p.analyzed() {
		info = &types.Info{
			Types: make(map[ast.Expr]types.TypeAndValue), Instances: make(map[*ast.Ident]types.Instance),
			Defs: make(map[*ast.Ident]types.Object), Uses: make(map[*ast.Ident]types.Object),
			Implicits: make(map[ast.Node]types.Object), Selections: make(map[*ast.SelectorExpr]*types.Selection),
			Scopes: make(map[ast.Node]*types.Scope), FileVersions: make(map[*ast.File]string),
		}
	}
	q, err := cfg.Check(p.ImportPath, w.fset, files, info)
	if err != nil && !p.ours() {
		return err
	}
	w.known[p.ImportPath] = q
	if p.analyzed() {
		w.load(&p, q, files, info)
	}
	return nil
}

// load remembers what the analyzers need of p.
func (w *world) load(p *listed, q *types.Package, files []*ast.File, info *types.Info) {
	path, _, _ := strings.Cut(p.ImportPath, " ")
	loaded := &packages.Package{
		ID: p.ImportPath, PkgPath: path, Name: p.Name, Dir: p.Dir, Fset: w.fset, TypesSizes: w.sizes,
		Types: q, Syntax: files, TypesInfo: info, Imports: make(map[string]*packages.Package),
	}
	if p.Module != nil {
		loaded.Module = &packages.Module{Path: p.Module.Path, Main: p.Module.Main, GoVersion: p.Module.GoVersion}
	}
	for _, names := range [][]string{p.HFiles, p.SFiles} {
		for _, name := range names {
			loaded.OtherFiles = append(loaded.OtherFiles, filepath.Join(p.Dir, name))
		}
	}
	for _, names := range [][]string{p.IgnoredGoFiles, p.IgnoredOtherFiles} {
		for _, name := range names {
			loaded.IgnoredFiles = append(loaded.IgnoredFiles, filepath.Join(p.Dir, name))
		}
	}
	for _, path := range p.Imports {
		if q := w.loaded[path]; q != nil {
			loaded.Imports[path] = q
		}
	}
	w.loaded[p.ImportPath] = loaded
	if !p.ours() || p.again() {
		return
	}
	if p.ForTest != "" { // it has all that the package itself has
		w.roots = slices.DeleteFunc(w.roots, func(other string) bool { return other == path })
	}
	w.roots = append(w.roots, p.ImportPath)
}

// analyze returns what go vet's analyzers have against our packages.
func (w *world) analyze() error {
	var roots []*packages.Package
	for _, path := range w.roots {
		roots = append(roots, w.loaded[path])
	}
	graph, err := checker.Analyze(vet.Suite, roots, nil)
	if err != nil {
		return err
	}
	for act := range graph.All() {
		if act.Err != nil {
			w.errs = append(w.errs, fmt.Errorf("%v: %w", act, act.Err))
		}
		if !act.IsRoot {
			continue
		}
		for _, d := range act.Diagnostics {
			w.errs = append(w.errs, fmt.Errorf("%s: %s (%s)", w.fset.Position(d.Pos), d.Message, act.Analyzer.Name))
		}
	}
	return errors.Join(w.errs...)
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
