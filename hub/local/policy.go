package local

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"palyra/authz/policy"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/kernel"
)

// policyOperations returns the operations of policies.
func (h *Hub) policyOperations() []hub.Entry {
	return []hub.Entry{
		hub.ExplainPolicy.By(h.explainPolicy),
		hub.GetPolicy.By(h.getPolicy),
		hub.ListPolicySets.By(h.listPolicySets),
		hub.GetPolicySet.By(h.getPolicySet),
		hub.Reload.By(h.reload),
		hub.TestPolicy.By(h.testPolicy),
		hub.DiffPolicy.By(h.diffPolicy),
	}
}

func (h *Hub) explainPolicy(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Explanation, error) {
	if err := h.needTool(c, n.Tool); err != nil {
		return hub.Explanation{}, err
	}
	who, err := h.caller(c)
	if err != nil {
		return hub.Explanation{}, err
	}
	ctx, done, err := h.explaining(ctx, c)
	if err != nil {
		return hub.Explanation{}, err
	}
	defer done()
	who.Layer = func(_ context.Context, workspace string, staged bool) (string, error) {
		if !staged && !n.Staged {
			return "", nil
		}
		return layerName(n.Session, workspace), nil
	}
	x, _, err := h.k.Explain(ctx, who, proposal(n.Tool, n.Input, n.Session, ""), nil)
	if err != nil {
		return hub.Explanation{}, err
	}
	d := x.Decision
	v := hub.Explanation{
		Effect: d.Effect.String(), Reason: d.Reason, DecisionID: hex.EncodeToString(d.ID[:]), Policies: some(d.Policies),
		PolicySet: d.PolicySet, Capsule: d.Capsule, Errors: d.Errors, Fix: x.Fix, Kind: string(x.Kind), Family: x.Family,
		Traces: []hub.PolicyTrace{},
	}
	for _, t := range x.Traces {
		trace := hub.PolicyTrace{Policy: hub.Policy(t.Info), Matched: t.Matched, Conditions: []hub.PolicyCondition{}}
		for _, c := range t.Conditions {
			trace.Conditions = append(trace.Conditions, hub.PolicyCondition(c))
		}
		v.Traces = append(v.Traces, trace)
	}
	return v, nil
}

// explaining stands in line for a place to explain a decision, and returns a ctx that ends
// with the caller or a stop. The asking caller pays for it: a requester whose call is
// denied doesn't.
func (h *Hub) explaining(ctx context.Context, c hub.Caller) (context.Context, func(), error) {
	ctx, over := h.works.begin(ctx, c)
	place, err := h.pools.explain.Wait(ctx, h.payer(c), 1)
	if err != nil {
		over()
		return nil, nil, err
	}
	return ctx, func() {
		place.Release()
		over()
	}, nil
}

// proposal returns a call as the kernel takes it.
func proposal(tool string, input json.RawMessage, session, run string) kernel.Proposal {
	if len(input) == 0 {
		input = json.RawMessage("{}")
	}
	return kernel.Proposal{Tool: tool, Input: input, SessionID: session, RunID: run}
}

func some(ss []string) []string {
	if ss == nil {
		return []string{}
	}
	return ss
}

func (h *Hub) getPolicy(_ context.Context, c hub.Caller, _ hub.None) (hub.PolicyInfo, error) {
	return h.policyInfo(), nil
}

func (h *Hub) policyInfo() hub.PolicyInfo {
	set := h.k.PolicySet()
	v := hub.PolicyInfo{Digest: set.Digest().String(), Source: h.cfg.PolicyDir, Policies: []hub.Policy{}}
	for _, p := range set.Policies() {
		v.Policies = append(v.Policies, hub.Policy(p))
	}
	return v
}

func (h *Hub) reload(ctx context.Context, c hub.Caller, _ hub.None) (hub.PolicyInfo, error) {
	if err := h.room(c); err != nil {
		return hub.PolicyInfo{}, err
	}
	old := h.k.PolicySet().Digest()
	if err := h.k.Reload(); err != nil {
		return hub.PolicyInfo{}, err
	}
	v := h.policyInfo()
	grants := h.PoliciesChanged()
	_, err := h.record(context.WithoutCancel(ctx), c, "policy.reload", v.Digest, map[string]string{"was": old.String(), "grants": strconv.Itoa(grants)})
	return v, err
}

func (h *Hub) testPolicy(ctx context.Context, c hub.Caller, r hub.PolicyTestRequest) (hub.PolicyReport, error) {
	ctx, done, err := h.policyWork(ctx, c, testTime)
	if err != nil {
		return hub.PolicyReport{}, err
	}
	defer done()
	v := hub.PolicyReport{Failures: []hub.PolicyFailure{}}
	set := h.k.PolicySet()
	if r.Candidate != nil {
		set, err = load(ctx, r.Candidate)
		switch {
		case ctx.Err() != nil && err != nil:
			return hub.PolicyReport{}, err
		case err != nil: // a test that fails refuses the set, too
			v.Failures = append(v.Failures, hub.PolicyFailure{Text: err.Error()})
			return v, nil
		}
		v.Digest, v.Tests = set.Digest().String(), set.Tests()
		return v, nil
	}
	v.Digest = set.Digest().String()
	results, err := set.RunTestsContext(ctx)
	if err != nil {
		return hub.PolicyReport{}, err
	}
	failed := 0
	for _, t := range results {
		v.Tests++
		if t.Passed {
			continue
		}
		if failed++; failed <= maxFailures {
			v.Failures = append(v.Failures, hub.PolicyFailure{Test: t.File + ": " + t.Name, Text: "got " + t.Got + ", want " + t.Want})
		}
	}
	if failed > maxFailures {
		v.Failures = append(v.Failures, hub.PolicyFailure{Text: fmt.Sprintf("and %d more", failed-maxFailures)})
	}
	return v, nil
}

// The bounds of work with policies. Sets are checked one at a time: checking one may take a
// whole processor and hundreds of megabytes.
const (
	testTime    = 10 * time.Second // of a check, with the tests
	diffTime    = 30 * time.Second // of a comparison, with the calls that are decided again
	maxFailures = 100              // that a report names
)

// policyWork stands in line for a place to work with policies and returns a ctx
// that ends with the caller, a stop, or after most.
func (h *Hub) policyWork(ctx context.Context, c hub.Caller, most time.Duration) (context.Context, func(), error) {
	ctx, over := h.works.begin(ctx, c)
	place, err := h.pools.policy.Wait(ctx, h.payer(c), 1)
	if err != nil {
		over()
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, most, fault.New(fault.Unavailable, "budget", "check policies",
		fmt.Errorf("it takes more than %v", most)).WithHint("make the policies, the tests or the number of calls smaller, or use palyra policy on a copy of them"))
	return ctx, func() {
		cancel()
		place.Release()
		over()
	}, nil
}

func (h *Hub) diffPolicy(ctx context.Context, c hub.Caller, q hub.PolicyDiffQuery) (hub.PolicyDiff, error) {
	ctx, done, err := h.policyWork(ctx, c, diffTime)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	defer done()
	now := h.k.PolicySet()
	set, err := h.candidate(ctx, c, now, &q)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	if q.Last == 0 {
		q.Last = 100
	}
	release, err := h.reads(ctx, c, scanBytes)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	defer release()
	s, err := h.k.JournalStatus(ctx)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	r, err := kernel.Replay(ctx, h.k.JournalEntries, s.Size, q.Last, now, set)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	v := hub.PolicyDiff{From: now.Digest().String(), To: set.Digest().String(), Replayed: r.Decided, Skipped: r.Skipped, Same: r.Same, Changed: []hub.PolicyChange{}}
	for _, x := range r.Changed {
		p := &x.Statement.Predicate
		change := hub.PolicyChange{DecisionID: x.ID(), CallID: p.CallID, LogIndex: x.Index, Time: p.Time, Principal: p.Principal,
			Tool: p.Tool, Argv: p.Capsule.Argv, Run: p.RunID, Before: verdict(x.Before), After: verdict(x.After)}
		if !h.sees(c, ownerOf(p.Principal)) {
			change = hub.PolicyChange{LogIndex: x.Index, Time: p.Time, Argv: []string{}, Before: change.Before, After: change.After, Reduced: true}
		}
		v.Changed = append(v.Changed, change)
	}
	return v, nil
}

// candidate returns the set that exactly one of a query's members names.
func (h *Hub) candidate(ctx context.Context, c hub.Caller, now *policy.Set, q *hub.PolicyDiffQuery) (*policy.Set, error) {
	given := 0
	for _, has := range []bool{len(q.Candidate.Files) > 0, q.Diff != "", q.Fix != ""} {
		if has {
			given++
		}
	}
	switch {
	case given != 1:
		return nil, fault.New(fault.Usage, "invalid_input", "compare policies", errors.New("want one of candidate, diff and fix"))
	case q.Diff != "":
		return now.PatchContext(ctx, []byte(q.Diff))
	case q.Fix == "":
		set, err := load(ctx, &q.Candidate)
		if err == nil && now.Floored() { // as it would be in force here
			set, err = set.WithFloor()
		}
		return set, err
	}
	d, err := h.decision(ctx, c, q.Fix)
	if err != nil {
		return nil, err
	}
	fix, err := d.Fix(h.decider(&d))
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(fix, "--- ") {
		return nil, fault.New(fault.NotFound, "not_found", "compare policies", fmt.Errorf("decision %s offers no change that can be applied", d.ID()))
	}
	return now.PatchContext(ctx, []byte(fix))
}

func verdict(d policy.Decision) hub.Verdict {
	return hub.Verdict{Effect: d.Effect.String(), Reason: d.Reason, Policies: some(d.Policies)}
}

// load checks a candidate like a policy directory.
func load(ctx context.Context, c *hub.PolicySet) (*policy.Set, error) {
	return policy.LoadFSContext(ctx, files(c.Files))
}

// files is a folder of texts, as fs.FS has it.
type files map[string]string

var _ fs.ReadDirFS = files(nil)

// Open implements fs.FS.
func (f files) Open(name string) (fs.File, error) {
	if name == "." {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid} // ReadDir lists it
	}
	text, ok := f[name]
	if !ok || !fs.ValidPath(name) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	}
	return &file{strings.NewReader(text), info{name, int64(len(text))}}, nil
}

// ReadDir implements fs.ReadDirFS.
func (f files) ReadDir(name string) ([]fs.DirEntry, error) {
	if name != "." {
		return nil, &fs.PathError{Op: "readdir", Path: name, Err: fs.ErrNotExist}
	}
	var out []fs.DirEntry
	for _, n := range slices.Sorted(maps.Keys(f)) {
		if n != path.Base(n) || !fs.ValidPath(n) {
			return nil, &fs.PathError{Op: "readdir", Path: n, Err: fs.ErrInvalid}
		}
		out = append(out, fs.FileInfoToDirEntry(info{n, int64(len(f[n]))}))
	}
	return out, nil
}

type file struct {
	io.Reader
	info info
}

func (f *file) Stat() (fs.FileInfo, error) { return f.info, nil }
func (f *file) Close() error               { return nil }

type info struct {
	name string
	size int64
}

func (i info) Name() string       { return i.name }
func (i info) Size() int64        { return i.size }
func (i info) Mode() fs.FileMode  { return 0o444 }
func (i info) ModTime() time.Time { return time.Time{} }
func (i info) IsDir() bool        { return false }
func (i info) Sys() any           { return nil }
