package main

import (
	"fmt"
	"strings"

	"palyra/authz/policy"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// What judges a policy directory without a call: lint, coverage, mutate.

// exitFindings is that of every command that can find something.
var exitFindings = command.Exit{Code: "3", Meaning: "there are findings"}

var policyLintCommand = command.Command{
	Name: "policy lint", Operands: "[DIR]", Max: 1,
	Short: "find policies that cannot mean what they say",
	Long: `
Lists all that is wrong or odd in DIR (default: the built-in set): what a load
would refuse, policies that can never match, clauses that always or never hold,
policies that another one shadows or overrules, and permits without a test.
What it says is so; it may miss what hides in arithmetic.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, exitNoDir, exitUsage, exitFindings, exitState},
	Examples: []command.Example{{Line: "palyra policy lint ./policy", Does: "one line per finding: file, line, policy, what is wrong"}},
}

var policyCoverageCommand = command.Command{
	Name: "policy coverage", Operands: "[DIR]", Max: 1,
	Short: "say which policies and clauses the policy tests exercise",
	Long: `
Runs the tests of DIR (default: the built-in set) and counts, for each clause,
how often it held and how often it did not. A clause is exercised if both were
seen.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, exitNoDir, exitUsage, {Code: "3", Meaning: "a policy or a clause is not exercised"}, exitState},
	Examples: []command.Example{{Line: "palyra policy coverage ./policy", Does: "counts, then what no test exercises"}},
}

var policyMutateCommand = command.Command{
	Name: "policy mutate", Operands: "[DIR]", Max: 1,
	Short: "weaken one clause at a time and say what no test notices",
	Long: `
Drops or widens one part of one policy of DIR (default: the built-in set) and
runs the policy tests, for each part. What all tests pass without can get lost
unnoticed. @survivor("CHANGE: why") on a policy explains what no test can show.`,
	Flags:    []command.Flag{flagJSON},
	Exits:    []command.Exit{exitOK, exitNoDir, exitUsage, {Code: "3", Meaning: "a mutant survives, or an explained one does not"}, exitState},
	Examples: []command.Example{{Line: "palyra policy mutate ./policy", Does: "counts, then each survivor"}},
}

func (a *app) policyLint(inv *command.Invocation) (*front.Report, error) {
	var findings []policy.Finding
	var err error
	if dir := operand(inv); dir == "" {
		findings, err = policy.LintFS(policy.DefaultFS())
	} else {
		findings, err = policy.Lint(dir)
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
		fmt.Fprintf(&b, "%s\n", front.Escape(oneLine(where+f.Code+": "+f.Text)))
		if f.Clause != "" {
			fmt.Fprintf(&b, "    %s\n", front.Escape(oneLine(f.Clause)))
		}
	}
	fmt.Fprintf(&b, "%d findings\n", len(findings))
	r := &front.Report{Text: b.String(), Fields: front.Document{"findings": append([]policy.Finding{}, findings...)}}
	if len(findings) > 0 {
		r.Exit = front.Findings
	}
	return r, nil
}

// oneLine keeps what a file says from looking like another finding.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

func (a *app) policyCoverage(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(operand(inv))
	if err != nil {
		return nil, err
	}
	c, err := set.Coverage()
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
			fmt.Fprintf(&b, "  %s (%s:%d) %s %s: %s\n", front.Escape(p.ID), front.Escape(p.File), p.Line, x.Clause, front.Escape(oneLine(x.Text)), said)
		}
	}
	r := &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "coverage": c}}
	if c.Matched < len(c.Policies) || c.Exercised < c.Clauses {
		r.Exit = front.Findings
	}
	return r, nil
}

func (a *app) policyMutate(inv *command.Invocation) (*front.Report, error) {
	set, err := loadPolicy(operand(inv))
	if err != nil {
		return nil, err
	}
	m, err := set.Mutate()
	if err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d mutants, %d tests: %d killed, %d survived, %d explained, %d equivalent, %d invalid\n", len(m.Mutants), m.Tests,
		m.Counts[policy.MutantKilled], m.Counts[policy.MutantSurvived], m.Counts[policy.MutantExplained], m.Counts[policy.MutantEquivalent], m.Counts[policy.MutantInvalid])
	for _, x := range m.Mutants {
		if x.State != policy.MutantSurvived && x.State != policy.MutantExplained {
			continue
		}
		fmt.Fprintf(&b, "  %s %s (%s:%d) %s: %s\n", x.State, front.Escape(x.ID), front.Escape(x.File), x.Line, front.Escape(x.Change), front.Escape(oneLine(x.Cedar)))
		if x.Note != "" {
			fmt.Fprintf(&b, "           %s\n", front.Escape(oneLine(x.Note)))
		}
	}
	for _, u := range m.Unproven {
		fmt.Fprintf(&b, "  explained, and does not survive: %s\n", front.Escape(oneLine(u)))
	}
	r := &front.Report{Text: b.String(), Fields: front.Document{"policy_set": set.Digest(), "mutation": m}}
	if m.Counts[policy.MutantSurvived]+len(m.Unproven) > 0 {
		r.Exit = front.Findings
	}
	return r, nil
}

// decided is the exit status that stands for an effect.
func decided(e policy.Effect) int {
	switch e {
	case policy.Allow:
		return 0
	case policy.NeedsApproval:
		return front.Exit(fault.New(fault.NotApproved, "", "", nil))
	}
	return front.Exit(fault.New(fault.Denied, "", "", nil))
}
