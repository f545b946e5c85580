package kernel

import (
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
)

// TestSignals: a secret in what a call that can reach hosts takes along is seen, wherever it stands,
// and none in what leads nowhere or has a name for it.
func TestSignals(t *testing.T) {
	h := openHouse(t, Config{
		Tools: table(func(tool string, in []byte) (*Expansion, error) {
			return &Expansion{Argv: []string{"/bin/cat"}, Stdin: in, EgressHosts: []string{"a.example"}}, nil
		}),
		Vault: vaultWith(t, map[string]string{"vault://global/a": "hunter22"}),
	})
	to := func(p Proposal) Proposal {
		p.Tool, p.EgressHosts = ToolRun, []string{"a.example"}
		return p
	}
	for name, c := range map[string]struct {
		p     Proposal
		stdin string
		want  bool
	}{
		"an argument":        {to(Proposal{Argv: []string{"/bin/echo", "https://x:hunter22@a.example/"}}), "", true},
		"an option's value":  {to(Proposal{Argv: []string{"/bin/echo", "--password", "hunter22"}}), "", true},
		"a variable":         {to(Proposal{Argv: []string{"/bin/echo"}, Env: []string{"API_KEY=a1b2c3d4e5f6g7"}}), "", true},
		"standard input":     {to(Proposal{Argv: []string{"/bin/cat"}, Stdin: StdinSealed}), "password: hunter22\n", true},
		"a tool's input":     {Proposal{Tool: "t", Input: []byte(`{"body":"{\"password\":\"hunter22\"}"}`)}, "", true},
		"nowhere":            {Proposal{Tool: ToolRun, Argv: []string{"/bin/echo", "--password", "hunter22"}}, "", false},
		"a name":             {to(Proposal{Argv: []string{"/bin/echo", "--password", "⟦secret:password#1⟧"}}), "", false},
		"a use of the vault": {Proposal{Tool: ToolRun, Argv: []string{"/bin/echo"}, EgressSecrets: []string{"TOKEN=vault://global/a header:authorization a.example"}}, "", false},
		"a turn of a model":  {Proposal{Tool: toolTurn, Input: []byte(`{"text":"password: hunter22"}`)}, "", false},
		"plain":              {to(Proposal{Argv: []string{"/bin/echo", "https://a.example/?page=2"}}), "", false},
	} {
		q, err := h.Question(t.Context(), Caller{Principal: policy.LocalUser("u")}, c.p, strings.NewReader(c.stdin))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := slices.Contains(q.Context.Signals, policy.SignalSecret); got != c.want {
			t.Errorf("%s: %v", name, q.Context.Signals)
		}
	}
}
