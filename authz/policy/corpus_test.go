//go:build !race

package policy

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cedar "github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/x/exp/ast"
)

// corpusCase is a file of the Cedar project's corpus, which its own engine, in Rust, has
// answered.
type corpusCase struct {
	Policies string
	Entities string
	Requests []struct {
		Principal, Action, Resource cedar.EntityUID
		Context                     cedar.Record
		Decision                    cedar.Decision
		Reason, Errors              []cedar.PolicyID
	}
}

// TestCorpus puts the requests of cedar-go's corpus through the code around Cedar: the loading
// of files, which gives each policy an id and refuses those that are too deep or too large, and
// our list of rules in place of a policy set. If no entity of the request has ancestors, which
// is the case that the index handles, it tests the index and the rules without action scope
// too. Decision, reasons and errors must be the corpus's.
//
// It doesn't test Palyra's schema, because the corpus has its own. It doesn't run with the race
// detector: unpacking alone would take six times as long as the whole test, and nothing here is
// concurrent. make cedar runs it.
func TestCorpus(t *testing.T) {
	files := corpusFiles(t)
	var names []string
	for name := range files {
		if strings.HasSuffix(name, ".json") && !strings.HasSuffix(name, ".entities.json") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	n := new(corpusCount)
	for _, name := range names {
		n.cases++
		n.run(t, files, name)
	}
	t.Logf("%d files, %d requests (%d allowed, %d with errors) answered as the corpus says, %d of them through the index; "+
		"%d files refused for a limit of ours, %d for their entities", n.cases, n.requests, n.allowed, n.failing, n.indexed, n.limits, n.entities)
	if n.requests < 60_000 || n.indexed < 10_000 || n.allowed == 0 || n.failing == 0 || n.limits+n.entities > n.cases/10 {
		t.Errorf("the corpus is not what it was: %+v", *n)
	}
}

func corpusFiles(t *testing.T) map[string][]byte {
	t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/cedar-policy/cedar-go").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	f, err := os.Open(filepath.Join(strings.TrimSpace(string(dir)), "corpus-tests.tar.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string][]byte)
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if err == io.EOF {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			if files[path.Clean(h.Name)], err = io.ReadAll(r); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// corpusCount counts the corpus's cases by their treatment.
type corpusCount struct{ cases, requests, allowed, failing, indexed, limits, entities int }

func (n *corpusCount) run(t *testing.T, files map[string][]byte, name string) {
	t.Helper()
	var c corpusCase
	if err := json.Unmarshal(files[name], &c); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	var entities cedar.EntityMap
	if err := json.Unmarshal(files[c.Entities], &entities); err != nil {
		n.entities++ // values that only the schema explains
		return
	}
	text, err := withIDs(files[c.Policies])
	if err != nil {
		t.Fatalf("%s: %v", c.Policies, err)
	}
	s, err := compile([]file{{name: "corpus.cedar", kind: kindPolicy, data: text}})
	if err != nil {
		if strings.Contains(err.Error(), "nested deeper") || strings.Contains(err.Error(), "a policy of more than") || strings.Contains(err.Error(), "no .cedar file with a policy") {
			n.limits++
			return
		}
		t.Errorf("%s: %v", c.Policies, err)
		return
	}
	for i, r := range c.Requests {
		n.requests++
		req := cedar.Request{Principal: r.Principal, Action: r.Action, Resource: r.Resource, Context: r.Context}
		e := blankEvaluation()
		e.set = s
		for _, rule := range s.rules {
			whole := *rule
			whole.tail, whole.quick = func() *cedar.Policy { return whole.policy }, func() *cedar.Policy { return nil }
			e.rules = append(e.rules, &whole)
		}
		judge := func(how string) {
			t.Helper()
			decision, diag := cedar.Authorize(e, entities, req)
			var reasons, errs []cedar.PolicyID
			for _, d := range diag.Reasons {
				reasons = append(reasons, d.PolicyID)
			}
			for _, d := range diag.Errors {
				errs = append(errs, d.PolicyID)
			}
			if decision != r.Decision || !sameIDs(reasons, r.Reason) || !sameIDs(errs, r.Errors) {
				t.Errorf("%s, request %d, %s: %v %v %v, want %v %v %v", name, i, how, decision, reasons, errs, r.Decision, r.Reason, r.Errors)
			}
		}
		judge("all rules")
		if r.Decision == cedar.Allow {
			n.allowed++
		}
		if len(r.Errors) > 0 {
			n.failing++
		}
		if plainRequest(s, entities, req) {
			n.indexed++
			e.rules = s.index.candidates(nil, req.Principal, req.Resource, 0, 0, req.Action.ID)
			judge("rules that the index finds")
		}
	}
}

// withIDs writes @id("policyN") before each policy, the corpus's name for it.
func withIDs(text []byte) ([]byte, error) {
	list, err := cedar.NewPolicyListFromBytes("corpus", text)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	at := 0
	for i, p := range list {
		off := p.Position().Offset
		out.Write(text[at:off])
		fmt.Fprintf(&out, "@id(\"policy%d\")\n", i)
		at = off
	}
	out.Write(text[at:])
	return out.Bytes(), nil
}

// plainRequest reports whether no entity of a request has ancestors, and every action in a
// scope is of Palyra's one action type.
func plainRequest(s *Set, entities cedar.EntityMap, r cedar.Request) bool {
	for _, uid := range []cedar.EntityUID{r.Principal, r.Action, r.Resource} {
		if uid.ID == "" { // Decide refuses such a request
			return false
		}
		if e, ok := entities[uid]; ok && e.Parents.Len() > 0 {
			return false
		}
	}
	for _, rule := range s.rules {
		var uids []cedar.EntityUID
		switch a := rule.ast.Action.(type) {
		case ast.ScopeTypeEq:
			uids = append(uids, a.Entity)
		case ast.ScopeTypeIn:
			uids = append(uids, a.Entity)
		case ast.ScopeTypeInSet:
			uids = a.Entities
		}
		for _, uid := range uids {
			if uid.Type != r.Action.Type {
				return false
			}
		}
	}
	return true
}

func sameIDs(a, b []cedar.PolicyID) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}
