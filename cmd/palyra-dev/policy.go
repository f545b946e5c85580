package main

import (
	"fmt"
	"strings"

	"palyra/authz/policy"
	"palyra/authz/policy/lint"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
)

// loadPolicy loads the directory that inv names, or the built-in set.
func loadPolicy(inv *command.Invocation) (*policy.Set, error) {
	if len(inv.Operands) == 0 {
		return policy.Default(), nil
	}
	return policy.Load(inv.Operands[0])
}

func policyLint(inv *command.Invocation) (*front.Report, error) {
	var findings []lint.Finding
	var err error
	if len(inv.Operands) == 0 {
		findings, err = lint.LintFS(policy.DefaultFS())
	} else {
		findings, err = lint.Lint(inv.Operands[0])
	}
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, f := range findings {
		where := f.File
		if f.Line > 0 {
			where = fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		if where != "" {
			where += ": "
		}
		if f.Policy != "" {
			where += f.Policy + ": "
		}
		fmt.Fprintf(&b, "%s\n", front.Escape(front.OneLine(where+f.Code+": "+f.Text)))
		if f.Clause != "" {
			fmt.Fprintf(&b, "    %s\n", front.Escape(front.OneLine(f.Clause)))
		}
	}
	fmt.Fprintf(&b, "%d findings\n", len(findings))
	r := &front.Report{Text: b.String(), Fields: front.Document{"findings": append([]lint.Finding{}, findings...)}}
	if len(findings) > 0 {
		r.Exit = front.Findings
	}
	return r, nil
}

func policyCoverage(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(inv)
	if err != nil {
		return nil, err
	}
	c, err := lint.Cover(set)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d tests: %d of %d policies match in one, %d of %d clauses are exercised\n", c.Tests, c.Matched, len(c.Policies), c.Exercised, c.Clauses)
	for _, p := range c.Policies {
		if p.Matched == 0 {
			fmt.Fprintf(&b, "  %s (%s:%d) matches in no test\n", front.Escape(p.ID), front.Escape(p.File), p.Line)
		}
		for _, x := range p.Clauses {
			if x.Exercised() {
				continue
			}
			said := "is never reached"
			switch {
			case x.True > 0:
				said = "always holds"
			case x.False > 0:
				said = "never holds"
			}
			fmt.Fprintf(&b, "  %s (%s:%d) %s %s: %s\n", front.Escape(p.ID), front.Escape(p.File), p.Line, x.Clause, front.Escape(front.OneLine(x.Text)), said)
		}
	}
	r := &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "coverage": c}}
	if c.Matched < len(c.Policies) || c.Exercised < c.Clauses {
		r.Exit = front.Findings
	}
	return r, nil
}

func policyMutate(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(inv)
	if err != nil {
		return nil, err
	}
	m, err := lint.Mutate(set)
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d mutants, %d tests: %d killed, %d survived, %d explained, %d equivalent, %d invalid\n", len(m.Mutants), m.Tests,
		m.Counts[lint.MutantKilled], m.Counts[lint.MutantSurvived], m.Counts[lint.MutantExplained], m.Counts[lint.MutantEquivalent], m.Counts[lint.MutantInvalid])
	for _, x := range m.Mutants {
		if x.State != lint.MutantSurvived && x.State != lint.MutantExplained {
			continue
		}
		fmt.Fprintf(&b, "  %s %s (%s:%d) %s: %s\n", x.State, front.Escape(x.ID), front.Escape(x.File), x.Line, front.Escape(x.Change), front.Escape(front.OneLine(x.Cedar)))
		if x.Note != "" {
			fmt.Fprintf(&b, "           %s\n", front.Escape(front.OneLine(x.Note)))
		}
	}
	for _, u := range m.Unproven {
		fmt.Fprintf(&b, "  explained, and does not survive: %s\n", front.Escape(front.OneLine(u)))
	}
	r := &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "mutation": m}}
	if m.Counts[lint.MutantSurvived]+len(m.Unproven) > 0 {
		r.Exit = front.Findings
	}
	return r, nil
}
