package arch

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strconv"
	"strings"
	"testing"

	"palyra/internal/fault"
)

// written reports whether e is a text that isn't empty: a literal, or what is converted to one.
func written(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BasicLit:
		return e.Kind == token.STRING && len(e.Value) > 2
	case *ast.CallExpr:
		return nameOf(e.Fun) == "string"
	case *ast.ParenExpr:
		return written(e.X)
	}
	return false
}

// texts are the functions of strings and slices that compare a text with others.
var texts = []string{"strings.Contains", "strings.CutPrefix", "strings.CutSuffix", "strings.EqualFold", "strings.HasPrefix",
	"strings.HasSuffix", "strings.TrimPrefix", "strings.TrimSuffix", "slices.Contains", "slices.Index"}

// branches returns the places where f decides by the text of a reason code.
func branches(f *file) (at []string) {
	for _, d := range f.ast.Decls {
		at = append(at, branchesIn(f, d)...)
	}
	return at
}

func branchesIn(f *file, d ast.Decl) (at []string) {
	// A variable that holds what ReasonOf returned, whatever its name is.
	held := make(map[string]bool)
	ast.Inspect(d, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
			for i, r := range a.Rhs {
				if c, ok := r.(*ast.CallExpr); ok && nameOf(c) == "ReasonOf" {
					held[nameOf(a.Lhs[i])] = true
				}
			}
		}
		return true
	})
	// answered: an error's own; no constant is compared with it, either.
	answered := func(e ast.Expr) bool {
		switch e := e.(type) {
		case *ast.CallExpr:
			return nameOf(e) == "ReasonOf"
		case *ast.Ident:
			return held[e.Name]
		}
		return false
	}
	reason := func(e ast.Expr) bool {
		switch e.(type) {
		case *ast.Ident, *ast.SelectorExpr:
			return answered(e) || isReason(nameOf(e))
		}
		return answered(e)
	}
	by := func(x, y ast.Expr) bool {
		l, literal := y.(*ast.BasicLit)
		return reason(x) && written(y) || answered(x) && !(literal && len(l.Value) == 2)
	}
	ast.Inspect(d, func(n ast.Node) bool {
		found := false
		switch n := n.(type) {
		case *ast.BinaryExpr:
			found = (n.Op == token.EQL || n.Op == token.NEQ) && (by(n.X, n.Y) || by(n.Y, n.X))
		case *ast.SwitchStmt:
			for _, s := range n.Body.List {
				found = found || n.Tag != nil && slices.ContainsFunc(s.(*ast.CaseClause).List, func(e ast.Expr) bool { return by(n.Tag, e) })
			}
		case *ast.IndexExpr:
			found = reason(n.Index)
		case *ast.CallExpr:
			found = slices.Contains(texts, called(n)) && (reason(n.Args[0]) || strings.HasPrefix(called(n), "slices.") && reason(n.Args[1]))
		}
		if found {
			at = append(at, f.at(n))
		}
		return true
	})
	return at
}

// TestReasonsAreSentinels: our own code asks for a fault.Code with errors.Is, or compares one with
// what a record holds. A reason's text is for programs outside.
func TestReasonsAreSentinels(t *testing.T) {
	looked := 0
	for _, f := range tree(t) {
		if f.test || inAny(f.dir, append(noReasons, "isolate/isolatetest")) {
			continue
		}
		looked++
		for _, at := range branches(f) {
			t.Errorf("%s: branches on a reason's text; fault.Code has sentinels", at)
		}
	}
	if looked < 300 {
		t.Errorf("looked at %d files", looked)
	}
}

// TestBranches: the rule finds how our code branched on texts once, and lets pass what doesn't.
func TestBranches(t *testing.T) {
	for _, c := range []struct {
		code  string
		found bool
	}{
		{`if fault.ReasonOf(err) == "locked" {}`, true},
		{`if "locked" != fault.ReasonOf(err) {}`, true},
		{`if fault.ReasonOf(err) == reasonLocked {}`, true},
		{`if fault.ReasonOf(err) == string(fault.ErrLocked) {}`, true},
		{`if reason := fault.ReasonOf(err); reason == "session_ended" {}`, true},
		{`switch r := fault.ReasonOf(err); { case r == "draining": }`, true},
		{`switch fault.ReasonOf(err) { case "a", "b": }`, true},
		{`switch reason { case "overlay_unavailable": }`, true},
		{`switch a.Reason { case "connection_lost": }`, true},
		{`switch { case r.Reason == "policy_changed": }`, true},
		{`if s.Outcome == "" && r.Steps[0].Reason == "program_not_found" {}`, true},
		{`_ = kinds[s.Reason]`, true},
		{`_ = statuses[fault.ReasonOf(err)]`, true},
		{`if strings.HasPrefix(fault.ReasonOf(err), "gate_") {}`, true},
		{`if slices.Contains(retried, reason) {}`, true},

		{`if errors.Is(err, fault.ErrLocked) {}`, false},
		{`if fault.Code(r.Reason) == fault.ErrPolicyChanged {}`, false},
		{`switch fault.Code(reason) { case fault.ErrUnreachable: }`, false},
		{`_ = kinds[fault.Code(s.Reason)]`, false},
		{`if fault.ReasonOf(err) != "" {}`, false},
		{`if reason == "" {}`, false},
		{`if before.Reason != after.Reason {}`, false},
		{`if d.Reason == policy.ReasonForbidden {}`, false},
		{`fault.New(fault.Busy, fault.ReasonOf(err), op, err)`, false},
	} {
		fset := token.NewFileSet()
		a, err := parser.ParseFile(fset, "x.go", "package x\nfunc f() {\n"+c.code+"\n}", 0)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(branches(&file{path: "x.go", fset: fset, ast: a})); (got == 1) != c.found {
			t.Errorf("%s: found %d places", c.code, got)
		}
	}
}

// TestCodes: each fault.Code is one code of the table, and some code branches on it.
func TestCodes(t *testing.T) {
	rows, codes := make(map[string]bool), make(map[string]string) // by name
	for _, v := range fault.Reasons() {
		for _, r := range v.Reasons {
			rows[r.Code] = true
		}
	}
	used := make(map[string]bool)
	for _, f := range tree(t) {
		ast.Inspect(f.ast, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				if f.dir == "internal/fault" && n.Type != nil && nameOf(n.Type) == "Code" {
					code, err := strconv.Unquote(n.Values[0].(*ast.BasicLit).Value)
					if err != nil || !rows[code] {
						t.Errorf("%s: %q is no code of the table", f.at(n), code)
					}
					codes[n.Names[0].Name] = code
				}
			case *ast.SelectorExpr:
				if x, ok := n.X.(*ast.Ident); ok && !f.test && x.Name == "fault" {
					used[n.Sel.Name] = true
				}
			}
			return true
		})
	}
	if len(codes) < 20 {
		t.Errorf("found %d codes", len(codes))
	}
	for name, code := range codes {
		if !used[name] {
			t.Errorf("no code branches on %s, %q", name, code)
		}
	}
}
