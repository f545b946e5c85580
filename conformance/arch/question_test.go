package arch

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// TestQuestionTable prints the members of a receipt's question into the document that
// shows them. The sentences are the fields' comments.
func TestQuestionTable(t *testing.T) {
	const name, source = "docs/formats/receipt.md", "crypt/receipt/statement.go"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, source), nil, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var fields *ast.FieldList
	ast.Inspect(f, func(n ast.Node) bool {
		if spec, ok := n.(*ast.TypeSpec); ok && spec.Name.Name == "Question" {
			fields = spec.Type.(*ast.StructType).Fields
		}
		return true
	})
	if fields == nil {
		t.Fatalf("%s has no Question", source)
	}
	var b strings.Builder
	for _, field := range fields.List {
		text := strings.Join(strings.Fields(field.Doc.Text()), " ")
		said, ok := strings.CutPrefix(text, field.Names[0].Name+" is ")
		if !ok {
			said, ok = strings.CutPrefix(text, field.Names[0].Name+" are ")
		}
		if !ok || !strings.HasSuffix(text, ".") {
			t.Errorf("%s: its comment is %q, want a sentence, %q", field.Names[0], text, field.Names[0].Name+" is …")
		}
		member, option, _ := strings.Cut(reflect.StructTag(strings.Trim(field.Tag.Value, "`")).Get("json"), ",")
		absent := ""
		if option != "" {
			absent = " (optional)"
		}
		fmt.Fprintf(&b, "- `%s`%s: %s\n", member, absent, said)
	}
	golden(t, name, between(t, doc, "question", b.String()))
}
