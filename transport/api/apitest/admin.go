package apitest

import (
	"context"
	"encoding/json"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/ident"
)

func (h *Hub) listTools(context.Context, hub.Caller, hub.ToolQuery) (hub.ToolList, error) {
	return hub.ToolList{Revision: "1", Items: []hub.Tool{{Name: ToolEcho, InputSchema: json.RawMessage(`{"type":"object"}`), Tier: "c", Limits: json.RawMessage(`{}`)}}}, nil
}

func (h *Hub) listModels(context.Context, hub.Caller, hub.None) (hub.Page[hub.Model], error) {
	return hub.Page[hub.Model]{Items: []hub.Model{{Name: "main", Provider: "scripted", Model: "main", Kind: hub.ModelTurns, Context: 128000, Default: true}}}, nil
}

func (h *Hub) getUsage(_ context.Context, c hub.Caller, q hub.UsageQuery) (hub.Usage, error) {
	took := hub.UsageCount{Turns: 2, AgentUsage: hub.AgentUsage{Input: 1200, Cached: 1000, Output: 80, Cost: 52000}}
	return hub.Usage{Principal: c.User, Session: q.Session, Total: took, Items: []hub.DayUsage{{Day: "2001-09-09", Model: "main", Took: took}},
		Budgets: []hub.UsageBudget{{Of: hub.UsageDay, Unit: hub.UsageTokens, Most: 10000, Used: 1280, Left: 8720}}}, nil
}

// findFolders knows one workspace, src at /src.
func (h *Hub) findFolders(_ context.Context, _ hub.Caller, q hub.FolderQuery) (hub.Page[hub.Folder], error) {
	p := hub.Page[hub.Folder]{Items: []hub.Folder{}}
	for _, path := range q.Paths {
		f := hub.Folder{Workspaces: []string{}}
		if rel, err := filepath.Rel("/src", path); err == nil && filepath.IsLocal(rel) {
			f = hub.Folder{Workspaces: []string{"src"}, Folder: rel}
		}
		p.Items = append(p.Items, f)
	}
	return p, nil
}

// Layer is the one layer that there is.
const Layer = "src-0123456789abcdef"

func noLayer(name string) error {
	if name == Layer {
		return nil
	}
	return fault.New(fault.NotFound, "not_found", "use layer", nil)
}

func (h *Hub) listLayers(_ context.Context, _ hub.Caller, q hub.LayerQuery) (hub.Page[hub.Layer], error) {
	return hub.Page[hub.Layer]{Items: []hub.Layer{{Layer: Layer, Session: q.Session, Principal: "uid:0", State: hub.LayerChanged, Workspace: "/srv/src", Bytes: 4096}}}, nil
}

func (h *Hub) getLayer(_ context.Context, _ hub.Caller, name string) (hub.LayerChanges, error) {
	return hub.LayerChanges{Layer: hub.Layer{Layer: name}, Version: 1, Changes: []hub.LayerChange{{Path: "a", Kind: "create", New: &hub.LayerNode{Type: "file", Mode: "0644"}}}}, noLayer(name)
}

func (h *Hub) getPatch(_ context.Context, _ hub.Caller, q hub.PatchQuery) (hub.LayerPatch, error) {
	return hub.LayerPatch{Layer: q.Layer, Patch: []byte("diff\xff\n"), LeftOut: []hub.LayerSkip{}, Stale: []string{}}, noLayer(q.Layer)
}

func (h *Hub) discardLayer(_ context.Context, _ hub.Caller, name string) (hub.None, error) {
	return hub.None{}, noLayer(name)
}

func (h *Hub) applyLayer(ctx context.Context, c hub.Caller, in hub.LayerList) (hub.Run, error) {
	if in.Digest == "" {
		return hub.Run{}, fault.New(fault.Usage, "invalid_input", "apply layer", nil)
	}
	return h.recoverLayer(ctx, c, in.Layer)
}

func (h *Hub) recoverLayer(_ context.Context, c hub.Caller, name string) (hub.Run, error) {
	return hub.Run{ID: ident.New(ident.Run), Principal: c.User, State: hub.RunPending, Created: time.Now()}, noLayer(name)
}

func (h *Hub) explainPolicy(_ context.Context, _ hub.Caller, n hub.NewCall) (hub.Explanation, error) {
	return hub.Explanation{Effect: "allow", Reason: n.Tool, Traces: []hub.PolicyTrace{{Policy: hub.Policy{ID: "p", Effect: "permit"}}}}, nil
}

func (h *Hub) testPolicy(_ context.Context, _ hub.Caller, r hub.PolicyTestRequest) (hub.PolicyReport, error) {
	n := 1
	if r.Candidate != nil {
		n += len(r.Candidate.Files)
	}
	return hub.PolicyReport{Tests: n}, nil
}

// getDecision knows the decision of ToolDeny.
func (h *Hub) getDecision(_ context.Context, _ hub.Caller, id string) (hub.DecisionReport, error) {
	if !strings.HasPrefix("00112233445566778899aabbccddeeff", id) {
		return hub.DecisionReport{}, fault.New(fault.NotFound, "not_found", "look up decision", nil)
	}
	return hub.DecisionReport{Denial: hub.Denial{DecisionID: "00112233445566778899aabbccddeeff", Layer: hub.LayerPolicy, Reason: "policy_denied",
		Policies: []string{"never"}, Fix: "permit it"}, Effect: "deny", Rules: []hub.Policy{{ID: "never", Effect: "forbid"}}}, nil
}

func (h *Hub) exportDecision(ctx context.Context, c hub.Caller, id string) ([]byte, error) {
	if _, err := h.getDecision(ctx, c, id); err != nil {
		return nil, err
	}
	return []byte(`{"version":1}`), nil
}

func (h *Hub) diffPolicy(_ context.Context, _ hub.Caller, q hub.PolicyDiffQuery) (hub.PolicyDiff, error) {
	return hub.PolicyDiff{Replayed: q.Last, Changed: []hub.PolicyChange{{Tool: ToolEcho}}}, nil
}

func (h *Hub) getPolicy(context.Context, hub.Caller, hub.None) (hub.PolicyInfo, error) {
	return hub.PolicyInfo{Policies: []hub.Policy{{ID: "p", Effect: "permit"}}}, nil
}

func (h *Hub) listPolicySets(context.Context, hub.Caller, hub.None) (hub.Page[hub.KeptPolicySet], error) {
	return hub.Page[hub.KeptPolicySet]{Items: []hub.KeptPolicySet{{Digest: "sha256:" + strings.Repeat("1", 64), InForce: true}}}, nil
}

func (h *Hub) getPolicySet(_ context.Context, _ hub.Caller, digest string) (hub.KeptPolicySet, error) {
	return hub.KeptPolicySet{Digest: digest, Files: map[string]string{"a.cedar": "permit(principal,action,resource);"}}, nil
}

func (h *Hub) reload(ctx context.Context, c hub.Caller, _ hub.None) (hub.PolicyInfo, error) {
	return hub.PolicyInfo{}, fault.New(fault.BadState, "config_invalid", "load configuration of \""+Secret+"\"", nil).WithHint("palyra-admin config validate")
}

func (h *Hub) getReceipt(_ context.Context, _ hub.Caller, index uint64) ([]byte, error) {
	if index > 0 {
		return nil, fault.New(fault.NotFound, "not_found", "read receipt", nil)
	}
	return []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`), nil
}

func (h *Hub) verifyReceipt(_ context.Context, _ hub.Caller, q hub.ReceiptCheck) (hub.ReceiptAccount, error) {
	return hub.ReceiptAccount{Origin: "test", Size: 1, Rows: []hub.ReceiptRow{{Part: "ending", Name: "bytes", Text: strconv.Itoa(len(q.Receipt))}}}, nil
}

func (h *Hub) getReach(_ context.Context, _ hub.Caller, q hub.ReachQuery) (hub.Reach, error) {
	return hub.Reach{Size: 1, Calls: 1, Sessions: []hub.SessionReach{{Session: q.Session, Networks: []string{}, May: []string{}, Connected: []hub.HostReached{}, Denied: []hub.HostDenied{}}}}, nil
}

func (h *Hub) verifyJournal(context.Context, hub.Caller, hub.None) (hub.JournalAudit, error) {
	return hub.JournalAudit{Origin: "test", Size: 1, Outcomes: map[string]int{}, Orphans: []uint64{}, Keys: []hub.JournalKey{}, LogKeys: []hub.JournalKey{}, Notes: []string{}}, nil
}

func (h *Hub) getJournal(context.Context, hub.Caller, hub.None) (hub.JournalStatus, error) {
	return hub.JournalStatus{Origin: "test", Size: 1}, nil
}

func (h *Hub) watchJournal(context.Context, hub.Caller, hub.JournalWatch) (hub.JournalView, error) {
	return hub.JournalView{Checkpoint: "test\n1\n", Hashes: [][]byte{}}, nil
}

func (h *Hub) cosignJournal(context.Context, hub.Caller, hub.Cosignature) (hub.None, error) {
	return hub.None{}, nil
}

func (h *Hub) listKeys(context.Context, hub.Caller, hub.None) (hub.Page[hub.Key], error) {
	return hub.Page[hub.Key]{Items: []hub.Key{{Signs: "statements", Hint: "h", File: "att-00.pub", State: "in_force"}}}, nil
}

func (h *Hub) rotateKey(ctx context.Context, c hub.Caller, r hub.KeyRotation) (hub.Page[hub.Key], error) {
	return h.listKeys(ctx, c, hub.None{})
}

func (h *Hub) listJournalEntries(_ context.Context, _ hub.Caller, q hub.JournalQuery) (hub.Page[hub.JournalEntry], error) {
	return hub.Page[hub.JournalEntry]{Items: []hub.JournalEntry{{Index: q.From, Type: "t", Statement: json.RawMessage("null")}}}, nil
}

func (h *Hub) proveJournalEntry(_ context.Context, _ hub.Caller, index uint64) (hub.JournalProof, error) {
	return hub.JournalProof{Index: index, Size: 1, Leaf: []byte{1}, Hashes: [][]byte{{2}}}, nil
}

func (h *Hub) proveJournalConsistency(_ context.Context, _ hub.Caller, q hub.JournalSince) (hub.JournalConsistency, error) {
	return hub.JournalConsistency{Old: q.Old, Size: 1}, nil
}

func (h *Hub) getCheckpoint(context.Context, hub.Caller, hub.None) ([]byte, error) {
	return []byte("test\n1\nroot\n\n— test sig\n"), nil
}

func (h *Hub) getTile(_ context.Context, _ hub.Caller, name string) ([]byte, error) {
	return []byte(name), nil
}

func (h *Hub) createToken(_ context.Context, c hub.Caller, n hub.NewToken) (hub.TokenSecret, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	t := &hub.Token{ID: ident.New(ident.Token), Name: n.Name, Principal: c.User, Scopes: n.Scopes, State: "active", Version: 1,
		Created: time.Now().UTC(), Expires: time.Now().UTC().Add(n.TTL)}
	h.tokens[t.ID] = t
	return hub.TokenSecret{Token: *t, Secret: "palyra_the_secret_text"}, nil
}

func (h *Hub) listTokens(context.Context, hub.Caller, hub.TokenQuery) (hub.Page[hub.Token], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p hub.Page[hub.Token]
	for _, t := range h.tokens {
		p.Items = append(p.Items, *t)
	}
	return p, nil
}

func (h *Hub) revokeToken(_ context.Context, _ hub.Caller, in hub.TokenChange) (hub.Token, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tokens[in.ID]
	switch {
	case t == nil:
		return hub.Token{}, fault.New(fault.NotFound, "not_found", "revoke token", nil)
	case in.Version != 0 && in.Version != t.Version:
		return hub.Token{}, conflict()
	}
	h.calls++
	t.State = "revoked"
	t.Version++
	return *t, nil
}

func (h *Hub) rotateToken(ctx context.Context, c hub.Caller, r hub.Rotation) (hub.TokenSecret, error) {
	old, err := h.revokeToken(ctx, c, hub.TokenChange{ID: r.ID, Version: r.Version})
	if err != nil {
		return hub.TokenSecret{}, err
	}
	return h.createToken(ctx, c, hub.NewToken{Name: old.Name, Scopes: old.Scopes, TTL: time.Hour})
}

func (h *Hub) listMembers(context.Context, hub.Caller, hub.None) (hub.Page[hub.Member], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p hub.Page[hub.Member]
	for _, m := range h.members {
		p.Items = append(p.Items, m)
	}
	return p, nil
}

func (h *Hub) putMember(_ context.Context, c hub.Caller, in hub.MemberPut) (hub.Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if in.Version != h.members[in.Principal].Version {
		return hub.Member{}, conflict()
	}
	h.calls++
	m := hub.Member{Principal: in.Principal, Role: in.Role, Version: in.Version + 1, Created: time.Now().UTC(), By: c.User}
	h.members[m.Principal] = m
	return m, nil
}

func (h *Hub) removeMember(_ context.Context, _ hub.Caller, in hub.MemberRemoval) (hub.None, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[in.Principal]; in.Version != 0 && m.Version != in.Version {
		return hub.None{}, conflict()
	}
	h.calls++
	delete(h.members, in.Principal)
	return hub.None{}, nil
}

func (h *Hub) getConfig(context.Context, hub.Caller, hub.None) (hub.Page[hub.Setting], error) {
	return hub.Page[hub.Setting]{Items: []hub.Setting{{Key: "profile", Value: "local", Source: "default"}}}, nil
}

func (h *Hub) getStatus(_ context.Context, c hub.Caller, _ hub.None) (hub.Status, error) {
	return hub.Status{Version: "test", Mode: "normal", Caller: c, StatusDetail: &hub.StatusDetail{Profile: "local"}}, nil
}

func (h *Hub) getDoctor(context.Context, hub.Caller, hub.None) (hub.Doctor, error) {
	return hub.Doctor{Healthy: true, Findings: []hub.Finding{{Name: "userns", Answer: "yes"}}}, nil
}

func (h *Hub) stop(_ context.Context, _ hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	return hub.Stopped{DenyNew: r.DenyNew}, nil
}

func (h *Hub) resume(context.Context, hub.Caller, hub.None) (hub.Stopped, error) {
	return hub.Stopped{}, nil
}

// Server is the one MCP server that there is.
const Server = "docs"

func aServer(name string) (hub.Server, error) {
	if name != Server {
		return hub.Server{}, fault.New(fault.NotFound, "not_found", "look up server", nil)
	}
	at := time.Unix(1e9, 0).UTC()
	t := []hub.ServerTool{{Name: "search", Pin: canon.Sum([]byte("{}")), Definition: []byte("{}")}}
	return hub.Server{Name: name, Spec: hub.ServerSpec{Argv: []string{"docs-server"}}, State: hub.ServerAccepted, AddedBy: "uid:0", Added: at, AcceptedBy: "uid:0", Accepted: &at,
		Version: 3, Tools: t, Listed: t, ListedDigest: canon.Sum(nil), ToolCount: 1}, nil
}

func (h *Hub) listServers(context.Context, hub.Caller, hub.None) (hub.Page[hub.Server], error) {
	s, err := aServer(Server)
	return hub.Page[hub.Server]{Items: []hub.Server{s}}, err
}

func (h *Hub) addServer(_ context.Context, c hub.Caller, n hub.NewServer) (hub.Server, error) {
	return hub.Server{Name: n.Name, Spec: n.Spec, State: hub.ServerNew, AddedBy: c.User, Version: 1}, nil
}

func (h *Hub) getServer(_ context.Context, _ hub.Caller, name string) (hub.Server, error) {
	return aServer(name)
}

func (h *Hub) inspectServer(_ context.Context, _ hub.Caller, name string) (hub.Server, error) {
	return aServer(name)
}

func (h *Hub) acceptServer(_ context.Context, _ hub.Caller, a hub.Acceptance) (hub.Server, error) {
	return aServer(a.Name)
}

func (h *Hub) removeServer(_ context.Context, _ hub.Caller, name string) (hub.None, error) {
	_, err := aServer(name)
	return hub.None{}, err
}

func (h *Hub) listInstructions(context.Context, hub.Caller, hub.None) (hub.Page[hub.Instructions], error) {
	i, _ := instructionsOf(Workspace)
	return hub.Page[hub.Instructions]{Items: []hub.Instructions{{Workspace: i.Workspace, Accepted: i.Accepted}}}, nil
}

func (h *Hub) inspectInstructions(_ context.Context, _ hub.Caller, workspace string) (hub.Instructions, error) {
	return instructionsOf(workspace)
}

func (h *Hub) acceptInstructions(_ context.Context, _ hub.Caller, a hub.InstructionsAcceptance) (hub.Instructions, error) {
	return instructionsOf(a.Workspace)
}

func (h *Hub) revokeInstructions(_ context.Context, _ hub.Caller, workspace string) (hub.None, error) {
	_, err := instructionsOf(workspace)
	return hub.None{}, err
}

// Workspace is the one whose instructions the hub has.
const Workspace = "src"

func instructionsOf(workspace string) (hub.Instructions, error) {
	if workspace != Workspace {
		return hub.Instructions{}, fault.New(fault.NotFound, "not_found", "find workspace", nil)
	}
	d := canon.Sum([]byte("Be brief.\n"))
	return hub.Instructions{Workspace: workspace, State: hub.InstructionsAccepted, File: "AGENTS.md", Digest: d, Text: "Be brief.\n",
		Accepted: &hub.Instructed{File: "AGENTS.md", Digest: d, By: "uid:0", Time: time.Now()}}, nil
}

func (h *Hub) listServerTools(_ context.Context, _ hub.Caller, name string) (hub.ServerTools, error) {
	s, err := aServer(name)
	return hub.ServerTools{Items: s.Tools}, err
}
