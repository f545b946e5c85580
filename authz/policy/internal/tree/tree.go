// Package tree reads the syntax trees of Cedar policies: what palyra/authz/policy
// and its analyses ask of one and cedar-go has no function for.
package tree

import (
	"strings"

	cedar "github.com/cedar-policy/cedar-go"
	publicast "github.com/cedar-policy/cedar-go/ast"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// MaxPath is the length of the longest path that Path spells, in names. No schema
// of ours has a longer one.
const MaxPath = 16

// Path spells an attribute access, "context.executable.kind", or is "".
func Path(n ast.IsNode) string { return pathWithin(n, MaxPath) }

func pathWithin(n ast.IsNode, most int) string {
	switch n := n.(type) {
	case ast.NodeTypeVariable:
		return string(n.Name)
	case ast.NodeTypeAccess:
		if most == 1 {
			return ""
		}
		if p := pathWithin(n.Arg, most-1); p != "" {
			return p + "." + string(n.Value)
		}
	}
	return ""
}

// Conjuncts are the parts of "a && b && c", in order.
func Conjuncts(n ast.IsNode) []ast.IsNode {
	if and, ok := n.(ast.NodeTypeAnd); ok {
		return append(Conjuncts(and.Left), Conjuncts(and.Right)...)
	}
	return []ast.IsNode{n}
}

// Text is n in Cedar, cut from a policy because cedar-go prints only those.
func Text(n ast.IsNode) string {
	p := ast.Permit().When(ast.NewNode(n))
	out := string(cedar.NewPolicyFromAST((*publicast.Policy)(p)).MarshalCedar())
	_, body, _ := strings.Cut(out, "when {")
	return strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(body), "};"))
}
