package arch

import (
	"bytes"
	"go/ast"
	"go/build/constraint"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"palyra/isolate/knob"
)

// knobHome is the only folder with code of the tag.
const knobHome = "isolate/knob"

// TestKnobsHaveOneHome keeps the tag that weakens in one file, and makes sure
// that what stands for it elsewhere does nothing.
func TestKnobsHaveOneHome(t *testing.T) {
	if knob.Build != "" {
		t.Fatalf("this is a build with %s", knob.Tag)
	}
	for _, f := range tree(t) {
		for _, g := range f.ast.Comments {
			for _, c := range g.List {
				if constraint.IsGoBuild(c.Text) && strings.Contains(c.Text, knob.Tag) && f.dir != knobHome {
					t.Errorf("%s: build tag %s outside %s", f.at(c), knob.Tag, knobHome)
				}
			}
		}
		if f.path != knobHome+"/knob_off.go" {
			continue
		}
		for _, d := range f.ast.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if ok && !identity(fn) {
				t.Errorf("%s: %s does something", f.at(fn), fn.Name.Name)
			}
		}
	}
	cmd := exec.Command("go", "list", "-f", "{{.GoFiles}}", Module+"/"+knobHome)
	cmd.Env = append(os.Environ(), "GOFLAGS=", "GOOS=linux", "GOARCH=amd64")
	out, err := cmd.CombinedOutput()
	if got, want := strings.TrimSpace(string(out)), "[knob.go knob_off.go]"; err != nil || got != want {
		t.Errorf("go list %s: %s, %v; want %s", knobHome, got, err, want)
	}
}

// identity reports whether a function returns its argument, or true.
func identity(fn *ast.FuncDecl) bool {
	if len(fn.Body.List) != 1 {
		return false
	}
	r, ok := fn.Body.List[0].(*ast.ReturnStmt)
	if !ok || len(r.Results) != 1 {
		return false
	}
	x, ok := r.Results[0].(*ast.Ident)
	if !ok {
		return false
	}
	p := fn.Type.Params.List
	if len(p) == 0 {
		return x.Name == "true"
	}
	return len(p) == 1 && len(p[0].Names) == 1 && p[0].Names[0].Name == x.Name
}

// TestKnobsAreNotShipped looks for the knobs' own texts in the built binaries, and
// asks make to build with the tag.
func TestKnobsAreNotShipped(t *testing.T) {
	for _, flags := range []string{"-tags=" + knob.Tag, "-trimpath -tags=x," + knob.Tag} {
		cmd := exec.Command("make", "-n", "build", "cross", "GOFLAGS="+flags)
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err == nil || !bytes.Contains(out, []byte(knob.Tag+" builds a sandbox with holes")) {
			t.Errorf("make build cross GOFLAGS=%q: %v, %.200s; want a refusal", flags, err, out)
		}
	}
	found, err := filepath.Glob(filepath.Join(root, "bin", "palyra*"))
	if err != nil || len(found) == 0 {
		t.Skip("needs the built binaries")
	}
	for _, path := range found {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"is turned off", "knob: through the execution", "receipts of it prove nothing"} {
			if bytes.Contains(b, []byte(text)) {
				t.Errorf("%s holds %q: it was built with %s", path, text, knob.Tag)
			}
		}
	}
}
