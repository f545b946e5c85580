package policy

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// limits bound the JSON that this package reads.
var limits = canon.Limits{Bytes: maxFile, Depth: maxNesting}

// testFile is one *.test.json of a policy directory.
type testFile struct {
	name  string
	cases []testCase
}

// testCase is one policy test. Grammar and example: docs/formats/policy.md.
type testCase struct {
	Name     string          `json:"name"`
	Request  json.RawMessage `json:"request"`            // laid over the file's base
	Effect   string          `json:"effect"`             // "allow", "needs_approval" or "deny"
	Reason   string          `json:"reason,omitempty"`   // reason code, if it matters
	Policies []string        `json:"policies,omitempty"` // exactly the determining ids, if they matter

	request Request
	effect  Effect
}

func parseCases(f file) (testFile, error) {
	var doc struct {
		Version int             `json:"version"`
		Base    json.RawMessage `json:"base"`
		Tests   []testCase      `json:"tests"`
	}
	bad := func(what string, err error) (testFile, error) {
		return testFile{}, fault.New(fault.BadState, "policy_test_syntax", f.name+what, err)
	}
	if err := canon.Decode(f.data, &doc, limits); err != nil {
		return bad("", err)
	}
	if doc.Version != 1 {
		return bad("", fmt.Errorf("version %d: want 1", doc.Version))
	}
	seen := make(map[string]bool)
	for i := range doc.Tests {
		c := &doc.Tests[i]
		where := fmt.Sprintf(": test %d %q", i+1, c.Name)
		if c.Name == "" || seen[c.Name] {
			return bad(where, errors.New("name is missing or used twice"))
		}
		seen[c.Name] = true
		if len(c.Request) == 0 {
			return bad(where, errors.New("request is missing"))
		}
		for _, part := range []json.RawMessage{doc.Base, c.Request} {
			if len(part) == 0 {
				continue
			}
			if err := canon.Decode(part, &c.request, limits); err != nil {
				return bad(where, err)
			}
		}
		var err error
		if c.effect, err = ParseEffect(c.Effect); err != nil {
			return bad(where, err)
		}
		slices.Sort(c.Policies)
	}
	return testFile{f.name, doc.Tests}, nil
}

// ParseRequest reads a request as policy tests and palyra policy check spell it:
// strict JSON, field names as in the Go struct's tags.
func ParseRequest(data []byte) (Request, error) {
	var r Request
	if len(data) > maxFile {
		return r, fault.New(fault.Usage, "request_too_large", "parse policy request", fmt.Errorf("larger than %d bytes", maxFile))
	}
	if err := canon.Decode(data, &r, limits); err != nil {
		return Request{}, fault.New(fault.Usage, "request_syntax", "parse policy request", err)
	}
	if err := r.check(); err != nil {
		return Request{}, fault.New(fault.Usage, "request_invalid", "check policy request", err)
	}
	return r, nil
}

// TestResult is the outcome of one policy test.
type TestResult struct {
	File   string `json:"file"`
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Got    string `json:"got"`            // effect, reason and policies that Decide gave
	Want   string `json:"want,omitempty"` // what the test expects, where it failed
}

// RunTests runs the set's own tests, in file order.
func (s *Set) RunTests() []TestResult {
	out, _, err := s.directory().tests()
	if err != nil {
		panic("policy: internal error: " + err.Error()) // Load has run them
	}
	return out
}

// tests also says which forbids were seen to fire in a passing test.
func (s *Set) tests() ([]TestResult, map[string]bool, error) {
	var out []TestResult
	fired := make(map[string]bool)
	for _, f := range s.cases {
		parsed, err := parseCases(f)
		if err != nil {
			return nil, nil, err
		}
		for _, c := range parsed.cases {
			d := s.Decide(c.request)
			res := TestResult{File: f.name, Name: c.Name, Passed: c.matches(d), Got: summary(d.Effect, d.Reason, d.Policies, d.Errors)}
			if !res.Passed {
				res.Want = summary(c.effect, c.Reason, c.Policies, nil)
			} else if d.Effect != Allow {
				for _, id := range d.Policies {
					fired[id] = true
				}
			}
			out = append(out, res)
		}
	}
	return out, fired, nil
}

// matches compares what the test says with what was decided.
func (c *testCase) matches(d Decision) bool {
	return d.Effect == c.effect && (c.Reason == "" || d.Reason == c.Reason) &&
		(c.Policies == nil || slices.Equal(d.Policies, c.Policies))
}

func summary(e Effect, reason string, policies, errs []string) string {
	var b strings.Builder
	b.WriteString(e.String())
	if reason != "" {
		b.WriteString(" " + reason)
	}
	if policies != nil {
		fmt.Fprintf(&b, " by [%s]", strings.Join(policies, " "))
	}
	if len(errs) > 0 {
		fmt.Fprintf(&b, " errors %q", errs)
	}
	return b.String()
}

// runCases refuses the set if one of its tests fails, or if it has a forbid
// that no test shows firing.
func (s *Set) runCases() error {
	results, fired, err := s.tests()
	if err != nil {
		return err
	}
	for _, r := range results {
		if !r.Passed {
			return fault.New(fault.BadState, "policy_test_failed", fmt.Sprintf("%s: test %q", r.File, r.Name),
				fmt.Errorf("got %s, want %s", r.Got, r.Want))
		}
	}
	for _, r := range s.rules {
		if err := r.untested(fired); err != nil {
			return err
		}
	}
	return nil
}
