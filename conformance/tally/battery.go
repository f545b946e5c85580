package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

// results is the part of escape -out's file that tally reads.
type results struct {
	Run           int      `json:"run"`
	NotApplicable int      `json:"not_applicable"`
	Cases         []record `json:"cases"`
}

// record is a case of the results, or with a reason a row of expect.json, where
// "*" stands for any value and a case's number for all of its variants.
type record struct {
	Case    string `json:"case"`
	Tier    string `json:"tier"`
	User    string `json:"user"`
	Control string `json:"control"`
	Verdict string `json:"verdict"`
	Reason  string `json:"reason"`
}

// battery prints the cases that ran and the reasons why the rest proved nothing.
func battery(w io.Writer, resultsFile, expectFile string) (bool, error) {
	var res results
	var expect struct {
		Inconclusive []record `json:"inconclusive"`
	}
	if err := read(resultsFile, &res); err != nil {
		return false, err
	}
	if err := read(expectFile, &expect); err != nil {
		return false, err
	}
	reasons := make(map[string]int)
	for _, c := range res.Cases {
		if c.Verdict == "inconclusive" {
			reasons[why(&c, expect.Inconclusive)]++
		}
	}
	fmt.Fprintf(w, "%5d run\n%5d not applicable to the tier or mode\n", res.Run, res.NotApplicable)
	var lines []string
	for r, n := range reasons {
		lines = append(lines, fmt.Sprintf("%5d inconclusive: %s\n", n, r))
	}
	slices.SortFunc(lines, func(a, b string) int { return strings.Compare(a[5:], b[5:]) })
	fmt.Fprint(w, strings.Join(lines, ""))
	return res.Run > 0, nil
}

func why(c *record, known []record) string {
	for _, e := range known {
		if (e.Case == c.Case || strings.HasPrefix(c.Case, e.Case+"/")) &&
			matches(e.Tier, c.Tier) && matches(e.User, c.User) && matches(e.Control, c.Control) {
			return e.Reason
		}
	}
	return "no reason on the list"
}

func matches(pattern, s string) bool { return pattern == "*" || pattern == s }

func read(file string, v any) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("read %q: %w", file, err)
	}
	return nil
}
