// Command platforms type-checks every package of the module and its tests for a platform.
//
//	go run ./conformance/platforms darwin/arm64
//
// It reads sources alone, and of what we import the declarations alone: 6 seconds of processor. go
// vet compiles all that we import first, for each platform: 105.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 || strings.Count(os.Args[1], "/") != 1 {
		fmt.Fprintln(os.Stderr, "usage: platforms GOOS/GOARCH")
		os.Exit(2)
	}
	if err := check(os.Args[1]); err != nil {
		fmt.Fprintf(os.Stderr, "platforms: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// listed is a package as go list prints it.
type listed struct {
	ImportPath string
	Dir        string
	GoFiles    []string
	ImportMap  map[string]string // what a file's import means, where it isn't the package of that path
	ForTest    string
	Module     *struct {
		Main      bool
		GoVersion string
	}
}

// check reads the packages in the order in which they need each other, and returns the errors
// of ours.
func check(platform string) error {
	system, arch, _ := strings.Cut(platform, "/")
	list := exec.Command("go", "list", "-deps", "-test", "-json=ImportPath,Dir,GoFiles,ImportMap,ForTest,Module", "./...")
	list.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0")
	list.Stderr = os.Stderr
	out, err := list.StdoutPipe()
	if err != nil {
		return err
	}
	if err := list.Start(); err != nil {
		return err
	}
	w := world{fset: token.NewFileSet(), sizes: types.SizesFor("gc", arch), known: map[string]*types.Package{"unsafe": types.Unsafe}, files: make(map[string]*ast.File), said: make(map[string]bool)}
	seen := 0
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
		seen++
	}
	if err := list.Wait(); err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	if seen == 0 {
		return errors.New("no packages")
	}
	return errors.Join(w.errs...)
}

// world is what has been checked.
type world struct {
	fset  *token.FileSet
	sizes types.Sizes
	known map[string]*types.Package // by import path, as go list spells it
	files map[string]*ast.File      // by path: variants of a package for tests have the same ones
	errs  []error                   // of our packages, each once
	said  map[string]bool           // errs, as text
}

func (w *world) add(p listed) error {
	if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") { // the latter is the program that go test makes
		return nil
	}
	ours := p.Module != nil && p.Module.Main
	var files []*ast.File
	for _, name := range p.GoFiles {
		path := filepath.Join(p.Dir, name)
		f := w.files[path]
		if f == nil {
			var err error
			if f, err = parser.ParseFile(w.fset, path, nil, parser.SkipObjectResolution); err != nil {
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
		IgnoreFuncBodies: !ours || again(p),
		Error: func(err error) {
			if ours && !w.said[err.Error()] {
				w.said[err.Error()] = true
				w.errs = append(w.errs, err)
			}
		},
	}
	if p.Module != nil && p.Module.GoVersion != "" {
		cfg.GoVersion = "go" + p.Module.GoVersion
	}
	q, err := cfg.Check(p.ImportPath, w.fset, files, nil)
	if err != nil && !ours {
		return err
	}
	w.known[p.ImportPath] = q
	return nil
}

// again reports whether p was listed before and is listed once more only since it imports a package
// that a test adds files to.
func again(p listed) bool {
	path, _, variant := strings.Cut(p.ImportPath, " ")
	return variant && path != p.ForTest && path != p.ForTest+"_test"
}

type importer func(path string) (*types.Package, error)

func (f importer) Import(path string) (*types.Package, error) { return f(path) }
