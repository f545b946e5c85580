package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"palyra/internal/canon"
	"palyra/internal/fault"
)

// ErrTests marks the error of a directory that could be read and whose own tests fail.
var ErrTests = errors.New("the tests of the policies")

// limits bound the JSON that this package reads.
var limits = canon.Limits{Bytes: maxFile, Depth: maxNesting}

// testCase is one policy test. Grammar and example: docs/formats/policy.md.
type testCase struct {
	Name     string          `json:"name"`
	Request  json.RawMessage `json:"request"`            // laid over the file's base
	Effect   string          `json:"effect"`             // "allow", "needs_approval" or "deny"
	Reason   string          `json:"reason,omitempty"`   // reason code, if it matters
	Policies []string        `json:"policies,omitempty"` // exactly the determining ids, if they matter

	request Request
	effect  Effect
	bytes   int // of the request with its base
}

// maxMatched bounds the steps in which a test's request is matched with the patterns of like: each
// byte of a pattern may be compared with each of a text, and an evaluation doesn't end in the
// middle. It takes a processor some seconds.
const maxMatched = 1 << 32

// matched returns the most steps that matching patterns may take for each byte of a request.
func (s *Set) matched() (n int64) {
	for _, f := range s.texts {
		if bytes.Contains(f.data, []byte("like")) {
			n += int64(len(f.data))
		}
	}
	return n
}

// Matches reports whether matching a request of that many bytes with the patterns of like is
// bounded: an evaluation doesn't end in the middle, whatever becomes of its caller.
func (s *Set) Matches(bytes int) bool { return s.directory().matched()*int64(bytes) <= maxMatched }

// maxTested bounds the bytes of a directory's test requests, counting a file's base once per
// test. It's far above any real directory, and takes a processor some seconds.
const maxTested = 16 << 20

type tested int64

func (n *tested) add(f file, bytes int) error {
	if *n += tested(bytes); *n > maxTested {
		return fault.New(fault.BadState, "too_large", f.name, fmt.Errorf("the requests of the tests, each with the base of its file, have more than %d bytes", maxTested)).
			WithHint("put what few tests need into those tests, or split the file")
	}
	return nil
}

func eachCase(ctx context.Context, f file, spent *tested, do func(*testCase) error) error {
	var doc struct {
		Version int             `json:"version"`
		Base    json.RawMessage `json:"base"`
		Tests   []testCase      `json:"tests"`
		// Hosts are lists of hosts, by name, in place of the directory's.
		Hosts map[string][]string `json:"hosts"`
	}
	bad := func(what string, err error) error {
		return fault.New(fault.BadState, "policy_invalid", f.name+what, err)
	}
	if err := canon.Decode(f.data, &doc, limits); err != nil {
		return bad("", err)
	}
	if doc.Version != 1 {
		return bad("", fmt.Errorf("version %d: want 1", doc.Version))
	}
	var base Request
	if len(doc.Base) > 0 {
		if err := canon.Decode(doc.Base, &base, limits); err != nil {
			return bad(": base", err)
		}
	}
	var err error
	if base.hosts, err = listsOf(doc.Hosts); err != nil {
		return bad(": hosts", err)
	}
	seen := make(map[string]bool)
	for i := range doc.Tests {
		if err := left(ctx, "run policy tests"); err != nil {
			return err
		}
		c := &doc.Tests[i]
		where := fmt.Sprintf(": test %d %q", i+1, c.Name)
		if c.Name == "" || seen[c.Name] {
			return bad(where, errors.New("name is missing or used twice"))
		}
		seen[c.Name] = true
		if len(c.Request) == 0 {
			return bad(where, errors.New("request is missing"))
		}
		if err := spent.add(f, len(doc.Base)+len(c.Request)); err != nil {
			return err
		}
		c.request, c.bytes = base.clone(), len(doc.Base)+len(c.Request)
		err := canon.Decode(c.Request, &c.request, limits)
		if err != nil {
			return bad(where, err)
		}
		if c.effect, err = ParseEffect(c.Effect); err != nil {
			return bad(where, err)
		}
		slices.Sort(c.Policies)
		if err := do(c); err != nil {
			return err
		}
		*c = testCase{} // frees the memory: a test may be large
	}
	return nil
}

// clone returns a copy that shares no memory that a decoder would write to.
func (r *Request) clone() Request {
	c := *r
	for _, s := range []*[]string{&c.Principal.Roles, &c.Principal.Scopes, &c.Resource.Roles, &c.Resource.Scopes, &c.Context.Args, &c.Context.LineArgs,
		&c.Context.EgressHosts, &c.Context.EgressInspect, &c.Context.EgressSecrets, &c.Context.Capabilities, &c.Context.Mounts, &c.Context.Caches,
		&c.Context.Secrets, &c.Context.MCP.Arguments, &c.Context.Env, &c.Context.EnvNames, &c.Context.EnvCode, &c.Context.Unpinned, &c.Context.Inputs, &c.Context.Signals, &c.Context.Features} {
		*s = slices.Clone(*s)
	}
	return c
}

// left returns an error if ctx is done: its cause if that is a fault, because that says more.
func left(ctx context.Context, op string) error {
	if ctx.Err() == nil {
		return nil
	}
	cause := context.Cause(ctx)
	if fault.ReasonOf(cause) != "" {
		return cause
	}
	return fault.New(fault.Canceled, "canceled", op, cause)
}

// TestResult is the outcome of one policy test.
type TestResult struct {
	File   string `json:"file"`
	Name   string `json:"name"`
	Passed bool   `json:"passed"`
	Got    string `json:"got"`            // Decide's effect, reason and policies
	Want   string `json:"want,omitempty"` // of a failed test
}

// RunTests runs the set's own tests, in file order.
func (s *Set) RunTests() []TestResult {
	out, err := s.RunTestsContext(context.Background())
	if err != nil {
		panic("policy: internal error: " + err.Error()) // Load has run them
	}
	return out
}

// RunTestsContext is RunTests that returns an error when ctx is done.
func (s *Set) RunTestsContext(ctx context.Context) ([]TestResult, error) {
	out, _, err := s.directory().tests(ctx)
	return out, err
}

// Tests returns the number of tests that passed on loading. The built-in set isn't tested then.
func (s *Set) Tests() int { return s.directory().tested }

func (s *Set) tests(ctx context.Context) ([]TestResult, map[string]bool, error) {
	var out []TestResult
	fired := make(map[string]bool)
	var spent tested
	steps := s.matched()
	for _, f := range s.cases {
		err := eachCase(ctx, f, &spent, func(c *testCase) error {
			if steps*int64(c.bytes) > maxMatched {
				return fault.New(fault.BadState, "too_large", fmt.Sprintf("%s: test %q", f.name, c.Name),
					fmt.Errorf("%d bytes, for policies with patterns (like) of %d bytes", c.bytes, steps)).
					WithHint("make the texts in its request shorter, or put what has no patterns into another file")
			}
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
			return nil
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return out, fired, nil
}

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
	const most = 4 << 10 // bytes; there may be thousands
	if b.Len() > most {
		return strings.ToValidUTF8(b.String()[:most], "") + " …"
	}
	return b.String()
}

// runCases refuses the set if one of its tests fails, or if it has a forbid
// that no test shows firing.
func (s *Set) runCases(ctx context.Context) error {
	results, fired, err := s.tests(ctx)
	if err != nil {
		return err
	}
	s.tested = len(results)
	for _, r := range results {
		if !r.Passed {
			return fault.New(fault.BadState, "policy_test_failed", fmt.Sprintf("%s: test %q", r.File, r.Name),
				fault.Mark(fmt.Errorf("got %s, want %s", r.Got, r.Want), ErrTests))
		}
	}
	for _, r := range s.rules {
		if err := r.untested(fired); err != nil {
			return err
		}
	}
	return nil
}
