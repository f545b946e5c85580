package kernel

import (
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
)

// TestSignals: a secret or hidden text in what a call that can reach hosts takes along is seen,
// wherever it stands, and none in what leads nowhere or has a name for it.
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
	hidden, secret := []string{policy.SignalHidden}, []string{policy.SignalSecret}
	for name, c := range map[string]struct {
		p     Proposal
		stdin string
		want  []string
	}{
		"an argument":        {to(Proposal{Argv: []string{"/bin/echo", "https://x:hunter22@a.example/"}}), "", secret},
		"an option's value":  {to(Proposal{Argv: []string{"/bin/echo", "--password", "hunter22"}}), "", secret},
		"a variable":         {to(Proposal{Argv: []string{"/bin/echo"}, Env: []string{"API_KEY=a1b2c3d4e5f6g7"}}), "", secret},
		"standard input":     {to(Proposal{Argv: []string{"/bin/cat"}, Stdin: StdinSealed}), "password: hunter22\n", secret},
		"a tool's input":     {Proposal{Tool: "t", Input: []byte(`{"body":"{\"password\":\"hunter22\"}"}`)}, "", secret},
		"nowhere":            {Proposal{Tool: ToolRun, Argv: []string{"/bin/echo", "--password", "hunter22"}}, "", nil},
		"a name":             {to(Proposal{Argv: []string{"/bin/echo", "--password", "⟦secret:password#1⟧"}}), "", nil},
		"a use of the vault": {Proposal{Tool: ToolRun, Argv: []string{"/bin/echo"}, EgressSecrets: []string{"TOKEN=vault://global/a header:authorization a.example"}}, "", nil},
		"a turn of a model":  {Proposal{Tool: toolTurn, Input: []byte(`{"text":"password: hunter22"}`)}, "", nil},
		"tags":               {to(Proposal{Argv: []string{"/bin/echo", "a\U000e0068\U000e0069"}}), "", hidden},
		"a turned variable":  {to(Proposal{Argv: []string{"/bin/echo"}, Env: []string{"A=a\u202eb"}}), "", hidden},
		"both, as input":     {to(Proposal{Argv: []string{"/bin/cat"}, Stdin: StdinSealed}), "password: hunter22\n\u200b\u200c\u200b\u200c", append(hidden, secret...)},
		"one without width":  {to(Proposal{Argv: []string{"/bin/echo", "a\u200bb"}}), "", nil},
		"hidden, nowhere":    {Proposal{Tool: ToolRun, Argv: []string{"/bin/echo", "a\u202eb"}}, "", nil},
		"plain":              {to(Proposal{Argv: []string{"/bin/echo", "https://a.example/?page=2"}}), "", nil},
	} {
		q, err := h.Question(t.Context(), Caller{Principal: policy.LocalUser("u")}, c.p, strings.NewReader(c.stdin))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !slices.Equal(q.Context.Signals, c.want) {
			t.Errorf("%s: %q", name, q.Context.Signals)
		}
	}
}
