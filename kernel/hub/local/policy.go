package local

import (
	"context"
	"encoding/hex"
	"encoding/json"
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
	"palyra/internal/fault"
	"palyra/kernel"
	"palyra/kernel/hub"
	"palyra/kernel/store"
)

// PolicyExplain implements hub.Hub.
func (h *Hub) PolicyExplain(ctx context.Context, c hub.Caller, n hub.NewCall) (hub.Explanation, error) {
	if err := h.ask(c, "PolicyExplain"); err != nil {
		return hub.Explanation{}, err
	}
	who, err := h.caller(ctx, c)
	if err != nil {
		return hub.Explanation{}, err
	}
	x, _, err := h.k.Explain(ctx, who, proposal(n.Tool, n.Input, n.Session, ""), nil)
	if err != nil {
		return hub.Explanation{}, err
	}
	d := x.Decision
	v := hub.Explanation{
		Effect: d.Effect.String(), Reason: d.Reason, DecisionID: hex.EncodeToString(d.ID[:]), Policies: some(d.Policies),
		PolicySet: d.PolicySet.String(), Capsule: d.Capsule.String(), Errors: d.Errors, Fix: d.Fix, Kind: string(x.Kind), Family: x.Family,
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

// proposal is a call as the kernel takes it.
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

// PolicyInfo implements hub.Hub.
func (h *Hub) PolicyInfo(_ context.Context, c hub.Caller) (hub.PolicyInfo, error) {
	if err := h.ask(c, "PolicyInfo"); err != nil {
		return hub.PolicyInfo{}, err
	}
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

// Reload implements hub.Hub.
func (h *Hub) Reload(ctx context.Context, c hub.Caller) (hub.PolicyInfo, error) {
	if err := h.ask(c, "Reload"); err != nil {
		return hub.PolicyInfo{}, err
	}
	old := h.k.PolicySet().Digest()
	if err := h.k.Reload(); err != nil {
		return hub.PolicyInfo{}, err
	}
	v := h.policyInfo()
	grants := h.DropVoidGrants()
	_, err := h.record(context.WithoutCancel(ctx), c, "policy.reload", v.Digest, map[string]string{"was": old.String(), "grants": strconv.Itoa(grants)})
	return v, err
}

// PolicyTest implements hub.Hub.
func (h *Hub) PolicyTest(_ context.Context, c hub.Caller, candidate *hub.PolicySet) (hub.PolicyReport, error) {
	if err := h.ask(c, "PolicyTest"); err != nil {
		return hub.PolicyReport{}, err
	}
	v := hub.PolicyReport{Failures: []hub.PolicyFailure{}}
	set := h.k.PolicySet()
	if candidate != nil {
		var err error
		if set, err = load(candidate); err != nil { // a test that fails refuses the set, too
			v.Failures = append(v.Failures, hub.PolicyFailure{Text: err.Error()})
			return v, nil
		}
	}
	v.Digest = set.Digest().String()
	for _, t := range set.RunTests() {
		v.Tests++
		if !t.Passed {
			v.Failures = append(v.Failures, hub.PolicyFailure{Test: t.File + ": " + t.Name, Text: "got " + t.Got + ", want " + t.Want})
		}
	}
	return v, nil
}

// maxReplay bounds how many calls PolicyDiff decides again.
const maxReplay = 1000

// PolicyDiff implements hub.Hub. A call is decided again as it would be now:
// what its program and its files are by now is what both sets are asked about.
// Tools with an input alone can be; that is all that runs make.
func (h *Hub) PolicyDiff(ctx context.Context, c hub.Caller, q hub.PolicyDiffQuery) (hub.PolicyDiff, error) {
	if err := h.ask(c, "PolicyDiff"); err != nil {
		return hub.PolicyDiff{}, err
	}
	if q.Last < 0 || q.Last > maxReplay {
		return hub.PolicyDiff{}, fault.New(fault.Usage, "bad_limit", "compare policies", fmt.Errorf("between 1 and %d calls are decided again", maxReplay))
	}
	if q.Last == 0 {
		q.Last = 100
	}
	set, err := load(&q.Candidate)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	now := h.k.PolicySet()
	v := hub.PolicyDiff{From: now.Digest().String(), To: set.Digest().String(), Changed: []hub.PolicyChange{}}
	steps, err := h.recent(ctx, q.Last)
	if err != nil {
		return hub.PolicyDiff{}, err
	}
	for _, s := range steps {
		if err := ctx.Err(); err != nil {
			return v, fault.New(fault.Canceled, "canceled", "compare policies", err)
		}
		who, err := h.entity(ctx, s.principal)
		if err != nil { // no member any more: there is nothing to decide
			v.Skipped++
			continue
		}
		question, err := h.k.Question(ctx, kernel.Caller{Principal: who, Channel: s.channel}, proposal(s.Tool, s.Input, s.session, s.Run), nil)
		if err != nil {
			v.Skipped++
			continue
		}
		v.Replayed++
		before, after := now.Decide(question), set.Decide(question)
		if a, b := verdict(before), verdict(after); a.Effect != b.Effect || a.Reason != b.Reason || !slices.Equal(a.Policies, b.Policies) {
			v.Changed = append(v.Changed, hub.PolicyChange{Run: s.Run, Step: s.Index, CallID: s.CallID, Tool: s.Tool, Before: a, After: b})
		}
	}
	return v, nil
}

func verdict(d policy.Decision) hub.Verdict {
	return hub.Verdict{Effect: d.Effect.String(), Reason: d.Reason, Policies: some(d.Policies)}
}

// asked is a step of a run, with who made it.
type asked struct {
	store.Step
	principal, session, channel string
}

// recent returns the newest steps, at most n of them.
func (h *Hub) recent(ctx context.Context, n int) ([]asked, error) {
	return store.View(ctx, h.st, func(tx *store.Tx) (out []asked, err error) {
		for after := ""; len(out) < n; {
			runs, err := tx.Runs(store.RunFilter{}, store.Page{After: after, Limit: min(n, store.MaxPage)})
			if err != nil || len(runs) == 0 {
				return out, err
			}
			for _, r := range runs {
				steps, err := tx.Steps(r.ID)
				if err != nil {
					return nil, err
				}
				var plan struct {
					Surface string `json:"surface"`
				}
				if err := json.Unmarshal(r.Plan, &plan); err != nil {
					return nil, fault.New(fault.Integrity, "plan", "read plan of run "+r.ID, err)
				}
				for _, s := range steps {
					if len(out) < n {
						out = append(out, asked{s, r.Principal, r.Session, plan.Surface})
					}
				}
			}
			after = runs[len(runs)-1].ID
		}
		return out, nil
	})
}

// load checks a candidate as a policy directory is checked.
func load(c *hub.PolicySet) (*policy.Set, error) { return policy.LoadFS(files(c.Files)) }

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
