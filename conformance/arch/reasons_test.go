package arch

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// A reasonUse is a string in the sources that is a reason code.
type reasonUse struct {
	at, code string
	family   bool // the code ends in what is put behind it
}

var codeShape = regexp.MustCompile(`^[a-z][a-z0-9_]*$`)

// isReason reports whether a name says that it holds a reason code.
func isReason(name string) bool {
	return name == "reason" || name == "Reason" ||
		strings.HasPrefix(name, "reason") && name != "reasons" || strings.HasPrefix(name, "Reason") && name != "Reasons" && name != "ReasonHint"
}

// A taker is a parameter that becomes the reason of an error, behind a prefix.
type taker struct {
	arg    int
	prefix string
}

// takersOf are the functions of a package that take a reason code: those with a
// parameter of that name, and those that put a parameter behind a prefix.
func takersOf(files []*file) map[string]taker {
	out := make(map[string]taker)
	look := func(name string, t *ast.FuncType, body ast.Node) {
		i := 0
		for _, f := range t.Params.List {
			for _, p := range f.Names {
				if p.Name == "reason" {
					out[name] = taker{arg: i}
				}
				if body != nil {
					ast.Inspect(body, func(n ast.Node) bool {
						c, ok := n.(*ast.CallExpr)
						if !ok || called(c) != "fault.New" || len(c.Args) < 2 {
							return true
						}
						sum, ok := c.Args[1].(*ast.BinaryExpr)
						if ok && nameOf(sum.Y) == p.Name {
							if prefix, ok := text(c, 1); ok {
								out[name] = taker{i, prefix}
							}
						}
						return true
					})
				}
				i++
			}
		}
	}
	for _, f := range files {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				if n.Body != nil {
					look(n.Name.Name, n.Type, n.Body)
				}
			case *ast.AssignStmt:
				for i, r := range n.Rhs {
					if l, ok := r.(*ast.FuncLit); ok && i < len(n.Lhs) {
						look(nameOf(n.Lhs[i]), l.Type, l.Body)
					}
				}
			}
			return true
		})
	}
	return out
}

// nameOf is the last name of an identifier, a selector or what a call calls.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.CallExpr:
		return nameOf(e.Fun)
	}
	return ""
}

// reasonsIn returns the reason codes in the sources of a package.
func reasonsIn(files []*file) (out []reasonUse) {
	takers := takersOf(files)
	for _, f := range files {
		if f.test {
			continue
		}
		take := func(e ast.Expr, prefix string) {
			sum, family := e.(*ast.BinaryExpr)
			if family {
				if e = sum.X; sum.Op != token.ADD {
					return
				}
			}
			l, ok := e.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING {
				return
			}
			if s, err := strconv.Unquote(l.Value); err == nil && codeShape.MatchString(s) {
				out = append(out, reasonUse{f.at(e), prefix + s, family})
			}
		}
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				name := nameOf(n)
				if called(n) == "fault.New" {
					take(n.Args[1], "")
				} else if t, ok := takers[name]; ok && t.arg < len(n.Args) {
					take(n.Args[t.arg], t.prefix)
				}
			case *ast.KeyValueExpr:
				if isReason(nameOf(n.Key)) {
					take(n.Value, "")
				}
			case *ast.AssignStmt:
				for i, l := range n.Lhs {
					if isReason(nameOf(l)) && i < len(n.Rhs) {
						take(n.Rhs[i], "")
					}
				}
			case *ast.ValueSpec:
				for i, id := range n.Names {
					if isReason(id.Name) && i < len(n.Values) {
						take(n.Values[i], "")
					}
				}
			case *ast.BinaryExpr:
				if n.Op == token.EQL || n.Op == token.NEQ {
					if isReason(nameOf(n.X)) || nameOf(n.X) == "ReasonOf" {
						take(n.Y, "")
					}
				}
			}
			return true
		})
	}
	return out
}

// noReasons are folders where a reason is another thing, or an example.
var noReasons = []string{"conformance", "bench", "transport/api/apitest", "internal/fault"}

// TestReasons holds the table of reason codes to the sources: each code in them
// stands in the table, and each row is some code's. A family's row names what it
// stands for.
func TestReasons(t *testing.T) {
	rows := make(map[string]string) // code → the row that has it
	for _, v := range fault.Reasons() {
		for _, r := range v.Reasons {
			codes := []string{r.Code}
			for _, n := range r.Names {
				codes = append(codes, r.Code+n)
			}
			for _, c := range codes {
				if rows[c] != "" {
					t.Errorf("the table has %q twice", c)
				}
				rows[c] = r.Code
			}
			if r.Says != "" && !strings.HasSuffix(r.Says, ".") || strings.ContainsAny(r.Do, "\n\x1b") {
				t.Errorf("%s: says %q, do %q", r.Code, r.Says, r.Do)
			}
		}
	}
	// A code is for a program that does something else for it, and there are not many such things.
	errs := 0
	for _, v := range fault.Reasons() {
		if !slices.Contains(ownLists, v.Name) {
			errs += len(v.Reasons)
		}
	}
	why, err := os.ReadFile(filepath.Join(root, "docs/RATIONALE.md"))
	if err != nil {
		t.Fatal(err)
	}
	if errs > 106 || !strings.Contains(string(why), fmt.Sprintf(" %d codes are of errors.", errs)) {
		t.Errorf("%d codes of errors: take one that exists, or say why and how many in docs/RATIONALE.md", errs)
	}
	packages := make(map[string][]*file)
	for _, f := range tree(t) {
		if !inAny(f.dir, noReasons) {
			packages[f.dir] = append(packages[f.dir], f)
		}
	}
	used := make(map[string]bool)
	for _, files := range packages {
		for _, u := range reasonsIn(files) {
			row, ok := rows[u.code]
			switch {
			case u.family && strings.HasSuffix(u.code, "_") && !ok: // what is behind it is looked at where it is given
				found := false
				for c := range rows {
					found = found || strings.HasPrefix(c, u.code)
				}
				ok = found
			case ok:
				used[u.code], used[row] = true, true
			}
			if !ok {
				t.Errorf("%s: reason %q is not in the table of internal/fault", u.at, u.code)
			}
		}
	}
	for c := range rows {
		if !used[c] && !slices.Contains(elsewhere, c) {
			t.Errorf("no code has the reason %q of the table", c)
		}
	}
}

// ownLists are the vocabularies whose codes aren't those of errors alone.
var ownLists = []string{"Findings about a receipt or a journal", "How policy decided", "How calls, approvals and runs end"}

// elsewhere are codes that no string in the sources gives as a reason: the answers
// of package approval, the limits of evidence, and what a word is put behind.
var elsewhere = []string{"denied", "expired", "withdrawn", "cpu", "memory", "disk", "uncounted"}

// TestReasonsPage prints the table into the page that shows it. Rows that say the same of
// errors of the same kinds are one; the vocabulary's usual kind stands above them.
func TestReasonsPage(t *testing.T) {
	const name = "docs/formats/reasons.md"
	doc, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, v := range fault.Reasons() {
		type row struct{ codes, kinds, says string }
		var rows []*row
		times, usual := make(map[string]int), ""
		for _, r := range v.Reasons {
			code := "`" + r.Code + "`"
			if r.Names != nil {
				code = "`" + r.Code + "NAME`, NAME one of `" + strings.Join(r.Names, "`, `") + "`"
			}
			var kinds []string
			for _, k := range r.Kinds {
				kinds = append(kinds, k.String())
			}
			is := row{code, strings.Join(kinds, ", "), r.Says}
			if times[is.kinds]++; times[is.kinds] > times[usual] {
				usual = is.kinds
			}
			if i := slices.IndexFunc(rows, func(o *row) bool { return o.kinds == is.kinds && o.says == is.says }); i >= 0 {
				rows[i].codes += ", " + code
			} else {
				rows = append(rows, &is)
			}
		}
		said := "Kind: " + usual + " unless named."
		switch {
		case times[usual] == len(v.Reasons):
			said = "Kind: " + usual + "."
		case usual == "":
			said = "No kind unless named."
		}
		fmt.Fprintf(&b, "## %s\n\n%s\n\n", v.Name, strings.TrimSpace(v.Says+" "+said))
		for _, r := range rows {
			if r.kinds != usual {
				r.codes += " (" + cmp.Or(r.kinds, "no kind") + ")"
			}
			b.WriteString("- " + strings.TrimSuffix(r.codes+": "+r.says, ": ") + "\n")
		}
		b.WriteString("\n")
	}
	golden(t, name, between(t, doc, "reasons", b.String()))
}
