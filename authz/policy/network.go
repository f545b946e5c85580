package policy

import (
	"slices"

	"github.com/cedar-policy/cedar-go/x/exp/ast"

	"palyra/authz/policy/internal/tree"
)

// namedNetworks returns those of the networks NetworkHost and NetworkPreflight that a policy names:
// it compares context.network with one (context.network == "host"), or looks it up in a list that
// has it (["host", "preflight"].contains(context.network)).
func namedNetworks(p *ast.Policy) (out []string) {
	note := func(a, b ast.IsNode) {
		if tree.Path(b) != "context.network" {
			a, b = b, a
		}
		if tree.Path(b) != "context.network" {
			return
		}
		for _, n := range stringLiterals(a) {
			if n == NetworkHost || n == NetworkPreflight {
				out = append(out, n)
			}
		}
	}
	for _, c := range p.Conditions {
		if c.Condition != ast.ConditionWhen {
			continue
		}
		ast.Inspect(ast.NewNode(c.Body), func(n ast.IsNode) bool {
			switch n := n.(type) {
			case ast.NodeTypeEquals:
				note(n.Left, n.Right)
			case ast.NodeTypeContains:
				note(n.Left, n.Right)
			}
			return true
		})
	}
	slices.Sort(out)
	return slices.Compact(out)
}
