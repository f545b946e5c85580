package arch

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the generated parts instead of comparing them")

// golden compares got with the file, or writes it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	p := filepath.Join(root, name)
	if *update {
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is stale: review, then go test ./conformance/arch -update\n%s", name, firstDiff(got, want))
	}
}

func firstDiff(got, want []byte) string {
	g, w := strings.Split(string(got), "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		gl, wl := at(g, i), at(w, i)
		if gl != wl {
			return fmt.Sprintf("line %d:\n  is   %q\n  want %q", i+1, wl, gl)
		}
	}
	return ""
}

func at(s []string, i int) string {
	if i < len(s) {
		return s[i]
	}
	return "<nothing>"
}

// between replaces what stands between the markers of a section.
func between(t *testing.T, doc []byte, section, body string) []byte {
	t.Helper()
	begin := fmt.Sprintf("<!-- generated: %s -->\n", section)
	end := "<!-- end -->\n"
	pre, rest, ok := bytes.Cut(doc, []byte(begin))
	if !ok {
		t.Fatalf("no marker %q", strings.TrimSpace(begin))
	}
	_, post, ok := bytes.Cut(rest, []byte(end))
	if !ok {
		t.Fatalf("marker %q has no end", strings.TrimSpace(begin))
	}
	return slices.Concat(pre, []byte(begin+body+end), post)
}

// TestLayerTable prints the import table into the document that shows it.
func TestLayerTable(t *testing.T) {
	const name = "docs/ARCHITECTURE.md"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	have := make(map[string]bool)
	for _, f := range tree(t) {
		have[roomOf(f.dir).Path] = true
	}
	var b strings.Builder
	b.WriteString("| room | holds | may import from |\n|---|---|---|\n")
	for _, r := range rooms {
		if !have[r.Path] {
			continue // a room appears when it has code to hold
		}
		may := strings.Join(r.May, ", ")
		for i := len(r.Only) - 1; i >= 0; i-- {
			may = strings.TrimSuffix(r.Only[i]+" itself, "+may, ", ")
		}
		if may == "" {
			may = "–"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", r.Path, r.Does, may)
	}
	doc = between(t, doc, "layers", b.String())

	b.Reset()
	b.WriteString("| module | home | what for |\n|---|---|---|\n")
	for _, h := range homes {
		dirs := strings.Join(h.Dirs, ", ")
		if h.TestOnly {
			dirs = "tests only"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", h.Module, dirs, h.Why)
	}
	golden(t, name, between(t, doc, "modules", b.String()))
}

// TestLinked holds what each binary links to a committed list: modules with
// versions, our own packages, and what in the standard library gives it reach.
func TestLinked(t *testing.T) {
	cmds, err := filepath.Glob(filepath.Join(root, "cmd/*/main.go"))
	if err != nil {
		t.Fatal(err)
	}
	if len(cmds) == 0 {
		t.Fatal("no commands found")
	}
	for _, main := range cmds {
		cmd := "cmd/" + filepath.Base(filepath.Dir(main))
		t.Run(cmd, func(t *testing.T) {
			mods, ours, std := linked(t, cmd)
			for _, bad := range forbidden[cmd] {
				if slices.Contains(std, bad) || slices.ContainsFunc(slices.Concat(mods, ours), func(p string) bool {
					p, _, _ = strings.Cut(p, "@")
					return below(p, bad) && !slices.Contains(despite[cmd], p)
				}) {
					t.Errorf("%s links %s", cmd, bad)
				}
			}
			var b strings.Builder
			fmt.Fprintf(&b, "# What %s links for linux, CGO_ENABLED=0. Rewritten by: go test ./conformance/arch -update\n", cmd)
			std = slices.DeleteFunc(std, func(p string) bool { return !slices.Contains(reach, p) })
			for _, s := range [][]string{mods, std, ours} {
				slices.Sort(s)
				b.WriteString("\n" + strings.Join(s, "\n") + "\n")
			}
			golden(t, "conformance/arch/testdata/"+filepath.Base(cmd)+".linked", []byte(b.String()))
		})
	}
}

func linked(t *testing.T, cmd string) (mods, ours, std []string) {
	t.Helper()
	c := exec.Command("go", "list", "-deps", "-f",
		"{{if .Standard}}std {{.ImportPath}}{{else if .Module.Main}}our {{.ImportPath}}{{else}}mod {{.Module.Path}}@{{.Module.Version}}{{end}}", "./"+cmd)
	c.Dir = root
	c.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64", "GOFLAGS=-buildvcs=false")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	if err != nil {
		t.Fatalf("go list -deps ./%s: %v\n%s", cmd, err, stderr.Bytes())
	}
	for line := range strings.Lines(string(out)) {
		kind, p, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "std":
			std = append(std, p)
		case "our":
			ours = append(ours, p)
		case "mod":
			if !slices.Contains(mods, p) {
				mods = append(mods, p)
			}
		}
	}
	return mods, ours, std
}
