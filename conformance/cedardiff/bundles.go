package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing/fstest"

	"palyra/authz/policy"
	"palyra/kernel"
)

// exported has bundles made again by the official engine: those of generated
// requests to the built-in set and to a generated one, and those of calls that
// went through a kernel and were read back from its journal. Then each is
// falsified, and the script must say so.
func exported(node, js, dir string, g *generator) error {
	var bundles []*policy.Bundle
	generated, err := g.batch(40, 0)
	if err != nil {
		return err
	}
	set, err := setOf(generated)
	if err != nil {
		return err
	}
	for i := range 200 {
		s := []*policy.Set{policy.Default(), set}[i%2]
		b, err := s.Bundle(g.request(), fmt.Sprintf("%032x", i))
		if err != nil {
			return err
		}
		bundles = append(bundles, b)
	}
	called, err := calls(filepath.Join(dir, "state"))
	if err != nil {
		return err
	}
	bundles = append(bundles, called...)
	out, status, err := again(node, js, dir, bundles)
	if err != nil {
		return err
	}
	fmt.Print(out)
	if status != 0 {
		return errDiffer
	}
	for i, b := range bundles {
		q := &b.Questions[len(b.Questions)-1]
		switch i % 4 {
		case 0:
			b.Answer.Effect = (b.Answer.Effect + 1) % 3
		case 1:
			q.Allow = !q.Allow
		case 2:
			q.Policies = append(q.Policies, "zzz")
		case 3:
			q.Principal.ID += "x"
			q.Entities[len(q.Entities)-2].UID.ID += "x"
		}
	}
	want := fmt.Sprintf("%d bundles, 0 agreed, %d differ\n", len(bundles), len(bundles))
	if out, status, err = again(node, js, dir, bundles); err != nil {
		return err
	}
	if status != 1 || !strings.HasSuffix(out, want) {
		return fmt.Errorf("%w, or the script does not see that they do: of %d falsified bundles it says %q", errDiffer, len(bundles), out)
	}
	return nil
}

// setOf is the set that a batch was made of.
func setOf(b batch) (*policy.Set, error) {
	var text strings.Builder
	for _, id := range slices.Sorted(maps.Keys(b.Policies)) {
		text.WriteString(b.Policies[id])
	}
	return policy.LoadFS(fstest.MapFS{"a.cedar": {Data: []byte(text.String())}})
}

// calls makes calls that end before anything runs, and exports their decisions
// as palyra policy export does.
func calls(state string) (out []*policy.Bundle, err error) {
	ctx := context.Background()
	k, err := kernel.Open(ctx, kernel.Config{StateDir: state})
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := k.Close(); err == nil {
			err = cerr
		}
	}()
	stray := policy.Entity{Type: policy.TypeAgent, ID: "stray\"\\"}
	for _, c := range []struct {
		who  policy.Entity
		argv []string
	}{
		{policy.LocalUser("u"), []string{"/bin/sh", "-c", "true"}}, {policy.LocalUser("u"), []string{"/usr/bin/env"}},
		{stray, []string{"/bin/true", "é"}}, {policy.Entity{Type: policy.TypeDevice, ID: "d", Roles: []string{policy.RoleOperator}}, []string{"/bin/true"}},
	} {
		o, err := k.CallAs(ctx, kernel.Caller{Principal: c.who, Device: "dev", Channel: "test"}, kernel.Proposal{Tool: kernel.ToolRun, Argv: c.argv, RunID: "r"}, kernel.IO{})
		if o == nil {
			return nil, err
		}
		s, err := k.JournalStatus(ctx)
		if err != nil {
			return nil, err
		}
		d, err := kernel.FindDecision(k.JournalEntries, s.Size, s.Size, fmt.Sprintf("%x", o.Decision.ID))
		if err != nil {
			return nil, err
		}
		b, err := kernel.Export(&d, k.PolicySet())
		if err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	other, err := policy.Default().Patch([]byte("--- /dev/null\n+++ b/x.cedar\n@@ -0,0 +1 @@\n+@id(\"x\") permit (principal == Palyra::User::\"x\", action, resource);\n"))
	if err != nil {
		return nil, err
	}
	s, err := k.JournalStatus(ctx)
	if err != nil {
		return nil, err
	}
	for d, err := range kernel.Decisions(k.JournalEntries, s.Size, s.Size) {
		if err != nil {
			return nil, err
		}
		if _, err := kernel.Export(&d, other); !errors.Is(err, kernel.ErrOtherSet) {
			return nil, fmt.Errorf("a decision was exported with policies that did not make it: %v", err)
		}
	}
	return out, nil
}

// again writes bundles to files and has the script look at them.
func again(node, js, dir string, bundles []*policy.Bundle) (out string, status int, err error) {
	args := []string{"bundle.mjs"}
	for i, b := range bundles {
		doc, err := json.Marshal(b)
		if err != nil {
			return "", 0, err
		}
		name := filepath.Join(dir, fmt.Sprintf("bundle-%03d.json", i))
		if err := os.WriteFile(name, doc, 0o600); err != nil {
			return "", 0, err
		}
		args = append(args, name)
	}
	c := exec.Command(node, args...)
	c.Dir = js
	var stderr strings.Builder
	c.Stderr = &stderr
	b, err := c.Output()
	if c.ProcessState == nil {
		return "", 0, fmt.Errorf("run bundle.mjs: %w", err)
	}
	if status = c.ProcessState.ExitCode(); status > 1 || status < 0 {
		return "", status, fmt.Errorf("bundle.mjs: %w\n%s", err, stderr.String())
	}
	return string(b), status, nil
}
