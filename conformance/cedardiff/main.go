// Command cedardiff holds authz/policy to the official Cedar engine.
//
//	go run ./conformance/cedardiff
//
// It generates policy sets and requests, decides each request with policy.Set.Decide, and
// has conformance/cedar-js repeat the decision with npm's @cedar-policy/cedar-wasm: the
// Rust engine, given the policies as text, no index, and contexts and entities that the
// script makes itself from docs/formats/policy.md. Effect, reason, determining policies and
// the policies with errors must be the same, and the engine's own validator must accept
// each request. Everything follows from -seed. At the end it falsifies some answers, and
// the script must find each of them.
//
// Then it exports decisions as bundles (palyra policy export), some of them of calls read
// back from a journal, and conformance/cedar-js/bundle.mjs makes each again from the bundle
// alone; the script must find falsified ones, too. Answers to approvals and uses of
// permissions are among the requests, under policies about them.
//
// The two share some things, in which this finds no mistake: the text of the policies,
// the schema, the list of attributes with the place of each in a request (the values are
// read from there by the script itself), the table of tools, and policy.Classify, whose
// answer the script is told.
//
// It asks npm for the engine only if conformance/cedar-js has none yet. Without npm it
// skips the comparison by name, and with CI set that is a failure. Exit status 0 if all
// agree, 1 if one differs, 2 if it couldn't look.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"palyra/authz/policy"
	"palyra/internal/tools"
)

// batch is one line of what the script reads: a set and requests to it.
type batch struct {
	Policies map[string]string `json:"policies"` // text by id
	Asked    []asked           `json:"asked"`
}

// asked is a request and what the Set decided.
type asked struct {
	Request  policy.Request `json:"request"`
	Kind     policy.Kind    `json:"kind"`
	Family   string         `json:"family"`
	Effect   policy.Effect  `json:"effect"`
	Reason   string         `json:"reason"`
	Policies []string       `json:"policies"`
	Errors   []string       `json:"errors"` // ids
}

var errDiffer = errors.New("the engines differ")

func main() {
	js := flag.String("js", "conformance/cedar-js", "`FOLDER` of the official engine")
	seed := flag.Uint64("seed", 1, "of the generator")
	sets := flag.Int("sets", 150, "generated policy sets")
	perSet := flag.Int("requests", 240, "requests to each")
	turn := flag.Int("turn", -1, "of the sets repeat a third, which `N` chooses: all of them in three turns")
	flag.Parse()
	err := run(*js, *seed, *sets, *perSet, *turn)
	switch {
	case err == nil:
	case errors.Is(err, errDiffer):
		fmt.Fprintln(os.Stderr, "cedardiff:", err)
		os.Exit(1)
	case errors.Is(err, exec.ErrNotFound) && os.Getenv("CI") == "":
		fmt.Println("cedar-js: SKIPPED,", err)
	default:
		fmt.Fprintln(os.Stderr, "cedardiff:", err)
		os.Exit(2)
	}
}

func run(js string, seed uint64, sets, perSet, turn int) error {
	node, err := exec.LookPath("node")
	if err != nil {
		return err
	}
	if err := install(js); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "palyra-cedardiff-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	schema, err := fs.ReadFile(policy.DefaultFS(), "palyra.cedarschema")
	if err != nil {
		return err
	}
	g := &generator{rng: rand.New(rand.NewPCG(seed, 0))}
	batches := []batch{g.defaultSet(perSet)}
	for i := range sets {
		n := 1 + g.rng.IntN(20)
		if i == 0 {
			n = 500 // where the index has something to leave out
		}
		b, err := g.batch(n, perSet)
		if err != nil {
			return err
		}
		batches = append(batches, b)
	}
	if err := enough(batches); err != nil {
		return err
	}
	repeated := batches
	if turn >= 0 {
		repeated = nil
		for i := turn % 3; i < len(batches); i += 3 {
			repeated = append(repeated, batches[i])
		}
	}
	out, status, err := compare(node, js, dir, string(schema), repeated)
	if err != nil {
		return err
	}
	os.Stdout.WriteString(out)
	if status != 0 {
		return errDiffer
	}
	wrong := falsify(batches)
	want := fmt.Sprintf("%d requests, 0 agreed, %d differ\n", len(wrong.Asked), len(wrong.Asked))
	if out, status, err = compare(node, js, dir, string(schema), []batch{wrong}); err != nil {
		return err
	}
	if status != 1 || !strings.HasSuffix(out, want) {
		return fmt.Errorf("%w, or the script does not see that they do: of %d falsified answers it says %q", errDiffer, len(wrong.Asked), out)
	}
	return exported(node, js, dir, g)
}

// install asks npm for the packages of package-lock.json, without running scripts.
func install(js string) error {
	if _, err := os.Stat(filepath.Join(js, "node_modules", "@cedar-policy", "cedar-wasm")); err == nil {
		return nil
	}
	c := exec.Command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error")
	c.Dir = js
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("npm ci in %s: %w\n%s", js, err, out)
	}
	return nil
}

// enough refuses a run whose generator did not reach every kind of answer.
func enough(batches []batch) error {
	seen := make(map[string]int)
	for _, b := range batches {
		for _, a := range b.Asked {
			seen[a.Reason]++
			if a.Kind != policy.Other && a.Effect != policy.Deny {
				seen["interpreter_permitted"]++
			}
			if len(a.Policies) > 1 {
				seen["several policies"]++
			}
			if len(a.Errors) > 1 {
				seen["several errors"]++
			}
		}
	}
	for _, what := range []string{policy.ReasonPermitted, policy.ReasonApprovalRequired, policy.ReasonForbidden, policy.ReasonNotPermitted,
		policy.ReasonPolicyError, "interpreter_permitted", "several policies", "several errors"} {
		if seen[what] < 100 {
			return fmt.Errorf("the generator reached %q %d times", what, seen[what])
		}
	}
	return nil
}

// compare runs the script and returns what it printed and its exit status.
func compare(node, js, dir, schema string, batches []batch) (out string, status int, err error) {
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	if err := enc.Encode(map[string]any{"schema": schema, "attributes": policy.Attributes(), "groups": groups()}); err != nil {
		return "", 0, err
	}
	for _, x := range batches {
		if err := enc.Encode(x); err != nil {
			return "", 0, err
		}
	}
	file := filepath.Join(dir, "batches.jsonl")
	if err := os.WriteFile(file, b.Bytes(), 0o600); err != nil {
		return "", 0, err
	}
	c := exec.Command(node, "check.mjs", file)
	c.Dir = js
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err = c.Run()
	if c.ProcessState == nil {
		return "", 0, fmt.Errorf("run check.mjs: %w", err)
	}
	if status = c.ProcessState.ExitCode(); status > 1 || status < 0 {
		return "", status, fmt.Errorf("check.mjs: %w\n%s", err, stderr.String())
	}
	return stdout.String(), status, nil
}

// groups are the groups of the built-in tools, from the program's table and not from
// what policy makes of it.
func groups() map[string][]string {
	m := make(map[string][]string)
	for _, t := range tools.All() {
		group := "reads"
		switch {
		case t.Access.Writing():
			group = "writes"
		case t.Remembers:
			group = "memory"
		}
		m[group] = append(m[group], t.Name)
	}
	return m
}

// falsify returns requests with one thing wrong in each answer.
func falsify(batches []batch) batch {
	b := batches[0] // the default set
	wrong := batch{Policies: b.Policies}
	for i, a := range b.Asked[:min(100, len(b.Asked))] {
		switch i % 4 {
		case 0:
			a.Effect = (a.Effect + 1) % 3
		case 1:
			a.Policies = append(slices.Clone(a.Policies), "zzz")
		case 2:
			a.Errors = append(slices.Clone(a.Errors), "approved_programs")
		case 3:
			a.Reason += "x"
		}
		wrong.Asked = append(wrong.Asked, a)
	}
	return wrong
}
