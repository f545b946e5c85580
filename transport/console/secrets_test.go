package console

import (
	"slices"
	"testing"
)

// TestUsesIn: a statement's secrets, those that the program could read and those that were sent.
func TestUsesIn(t *testing.T) {
	for in, want := range map[string][]use{
		`{"predicate":{"capsule":{"argv":["x"]}}}`: nil,
		`not JSON`: nil,
		`{"predicate":{"capsule":{"secrets":[{"name":"t","ref":"vault://global/a","version":3}]}}}`:                             {{usedSecret{"vault://global/a", 3}, false}},
		`{"predicate":{"capsule":{"egress_secrets":[{"use":"T=vault://u/b header:authorization x.example:443","version":2}]}}}`: {{usedSecret{"vault://u/b", 2}, true}},
		`{"predicate":{"capsule":{"egress_secrets":[{"use":"T=vault://u/b header:authorization x.example:443","version":2},` +
			`{"use":"T=vault://u/b header:authorization y.example:443","version":2}]}}}`: {{usedSecret{"vault://u/b", 2}, true}},
	} {
		if got := usesIn([]byte(in)); !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", in, got, want)
		}
	}
}
