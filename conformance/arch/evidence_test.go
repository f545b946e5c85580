package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/isolate/evidence"
)

// TestEvidenceTable prints the table of evidence's fields into the document that shows it,
// a line each, with the unit, and the basis if it isn't observed.
// The sentences are the fields' comments.
func TestEvidenceTable(t *testing.T) {
	const name = "docs/formats/receipt.md"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	says := fieldComments(t, "isolate/evidence/evidence.go")
	maps.Copy(says, fieldComments(t, "isolate/evidence/egress.go"))
	var b strings.Builder
	for _, f := range evidence.Fields() {
		_, field, _ := strings.Cut(f.Go, ".")
		text, ok := strings.CutPrefix(says[f.Go], field+" is ")
		if !ok {
			text, ok = strings.CutPrefix(says[f.Go], field+" are ")
		}
		if !ok || !strings.HasSuffix(text, ".") {
			t.Errorf("%s: its comment is %q, want a sentence, %q", f.Go, says[f.Go], field+" is …")
		}
		if f.Basis == "" {
			t.Errorf("%s has no basis: give the field, or its group's Basis, the tag basis", f.Go)
		}
		var of []string
		if f.Unit != "" && !strings.HasSuffix(f.Name, "_"+f.Unit) {
			of = append(of, f.Unit)
		}
		if f.Basis != "observed" {
			of = append(of, f.Basis)
		}
		name := "`" + f.Name + "`"
		if of != nil {
			name += " (" + strings.Join(of, "; ") + ")"
		}
		fmt.Fprintf(&b, "- %s: %s\n", name, strings.TrimPrefix(text, "the "))
	}
	golden(t, name, between(t, doc, "evidence", b.String()))
}

// fieldComments returns the comments above the fields of a file's structs, by "Type.Field".
func fieldComments(t *testing.T, file string) map[string]string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	out := make(map[string]string)
	ast.Inspect(f, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok {
			return true
		}
		if s, ok := spec.Type.(*ast.StructType); ok {
			for _, field := range s.Fields.List {
				for _, id := range field.Names {
					out[spec.Name.Name+"."+id.Name] = strings.Join(strings.Fields(field.Doc.Text()), " ")
				}
			}
		}
		return false
	})
	return out
}
