package apitest

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"palyra/internal/fault"
	"palyra/internal/ident"
	"palyra/kernel/hub"
)

// Tools implements hub.Hub.
func (h *Hub) Tools(context.Context, hub.Caller) ([]hub.Tool, error) {
	return []hub.Tool{{Name: ToolEcho, InputSchema: json.RawMessage(`{"type":"object"}`), Tier: "c", Limits: json.RawMessage(`{}`)}}, nil
}

// PolicyExplain implements hub.Hub.
func (h *Hub) PolicyExplain(_ context.Context, _ hub.Caller, n hub.NewCall) (hub.Explanation, error) {
	return hub.Explanation{Effect: "allow", Reason: n.Tool, Traces: []hub.PolicyTrace{{Policy: hub.Policy{ID: "p", Effect: "permit"}}}}, nil
}

// PolicyTest implements hub.Hub.
func (h *Hub) PolicyTest(_ context.Context, _ hub.Caller, candidate *hub.PolicySet) (hub.PolicyReport, error) {
	n := 1
	if candidate != nil {
		n += len(candidate.Files)
	}
	return hub.PolicyReport{Tests: n}, nil
}

// PolicyWhy implements hub.Hub. It knows the decision of ToolDeny.
func (h *Hub) PolicyWhy(_ context.Context, _ hub.Caller, id string) (hub.DecisionReport, error) {
	if !strings.HasPrefix("00112233445566778899aabbccddeeff", id) {
		return hub.DecisionReport{}, fault.New(fault.NotFound, "no_such_decision", "look up decision", nil)
	}
	return hub.DecisionReport{Denial: hub.Denial{DecisionID: "00112233445566778899aabbccddeeff", Layer: hub.LayerPolicy, Reason: "policy_denied",
		Policies: []string{"never"}, Fix: "permit it"}, Effect: "deny", Rules: []hub.Policy{{ID: "never", Effect: "forbid"}}}, nil
}

// PolicyExport implements hub.Hub.
func (h *Hub) PolicyExport(ctx context.Context, c hub.Caller, id string) ([]byte, error) {
	if _, err := h.PolicyWhy(ctx, c, id); err != nil {
		return nil, err
	}
	return []byte(`{"version":1}`), nil
}

// PolicyDiff implements hub.Hub.
func (h *Hub) PolicyDiff(_ context.Context, _ hub.Caller, q hub.PolicyDiffQuery) (hub.PolicyDiff, error) {
	return hub.PolicyDiff{Replayed: q.Last, Changed: []hub.PolicyChange{{Tool: ToolEcho}}}, nil
}

// PolicyInfo implements hub.Hub.
func (h *Hub) PolicyInfo(context.Context, hub.Caller) (hub.PolicyInfo, error) {
	return hub.PolicyInfo{Policies: []hub.Policy{{ID: "p", Effect: "permit"}}}, nil
}

// Reload implements hub.Hub.
func (h *Hub) Reload(ctx context.Context, c hub.Caller) (hub.PolicyInfo, error) {
	return hub.PolicyInfo{}, fault.New(fault.BadState, "policy_invalid", "load policies in \""+Secret+"\"", nil).WithHint("palyra policy check")
}

// Receipt implements hub.Hub.
func (h *Hub) Receipt(_ context.Context, _ hub.Caller, index uint64) ([]byte, error) {
	if index > 0 {
		return nil, fault.New(fault.NotFound, "no_such_entry", "read receipt", nil)
	}
	return []byte(`{"mediaType":"application/vnd.dev.sigstore.bundle.v0.3+json"}`), nil
}

// JournalStatus implements hub.Hub.
func (h *Hub) JournalStatus(context.Context, hub.Caller) (hub.JournalStatus, error) {
	return hub.JournalStatus{Origin: "test", Size: 1}, nil
}

// JournalEntries implements hub.Hub.
func (h *Hub) JournalEntries(_ context.Context, _ hub.Caller, from uint64, limit int) (hub.Page[hub.JournalEntry], error) {
	return hub.Page[hub.JournalEntry]{Items: []hub.JournalEntry{{Index: from, Type: "t", Statement: json.RawMessage("null")}}}, nil
}

// JournalProof implements hub.Hub.
func (h *Hub) JournalProof(_ context.Context, _ hub.Caller, index uint64) (hub.JournalProof, error) {
	return hub.JournalProof{Index: index, Size: 1, Leaf: []byte{1}, Hashes: [][]byte{{2}}}, nil
}

// JournalConsistency implements hub.Hub.
func (h *Hub) JournalConsistency(_ context.Context, _ hub.Caller, old uint64) (hub.JournalConsistency, error) {
	return hub.JournalConsistency{Old: old, Size: 1}, nil
}

// JournalCheckpoint implements hub.Hub.
func (h *Hub) JournalCheckpoint(context.Context, hub.Caller) ([]byte, error) {
	return []byte("test\n1\nroot\n\n— test sig\n"), nil
}

// JournalTile implements hub.Hub.
func (h *Hub) JournalTile(_ context.Context, _ hub.Caller, name string) ([]byte, error) {
	return []byte(name), nil
}

// CreateToken implements hub.Hub.
func (h *Hub) CreateToken(_ context.Context, c hub.Caller, n hub.NewToken) (hub.TokenSecret, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls++
	t := &hub.Token{ID: ident.New(ident.Token), Name: n.Name, Principal: c.User, Scopes: n.Scopes, State: "active", Version: 1,
		Created: time.Now().UTC(), Expires: time.Now().UTC().Add(n.TTL)}
	h.tokens[t.ID] = t
	return hub.TokenSecret{Token: *t, Secret: "palyra_the_secret_text"}, nil
}

// Tokens implements hub.Hub.
func (h *Hub) Tokens(context.Context, hub.Caller, hub.TokenQuery) (hub.Page[hub.Token], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p hub.Page[hub.Token]
	for _, t := range h.tokens {
		p.Items = append(p.Items, *t)
	}
	return p, nil
}

// RevokeToken implements hub.Hub.
func (h *Hub) RevokeToken(_ context.Context, _ hub.Caller, id string, version int64) (hub.Token, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.tokens[id]
	switch {
	case t == nil:
		return hub.Token{}, fault.New(fault.NotFound, "no_such_token", "revoke token", nil)
	case version != 0 && version != t.Version:
		return hub.Token{}, conflict()
	}
	h.calls++
	t.State = "revoked"
	t.Version++
	return *t, nil
}

// RotateToken implements hub.Hub.
func (h *Hub) RotateToken(ctx context.Context, c hub.Caller, id string, r hub.Rotation) (hub.TokenSecret, error) {
	old, err := h.RevokeToken(ctx, c, id, r.Version)
	if err != nil {
		return hub.TokenSecret{}, err
	}
	return h.CreateToken(ctx, c, hub.NewToken{Name: old.Name, Scopes: old.Scopes, TTL: time.Hour})
}

// Members implements hub.Hub.
func (h *Hub) Members(context.Context, hub.Caller) (hub.Page[hub.Member], error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	var p hub.Page[hub.Member]
	for _, m := range h.members {
		p.Items = append(p.Items, m)
	}
	return p, nil
}

// PutMember implements hub.Hub.
func (h *Hub) PutMember(_ context.Context, c hub.Caller, m hub.Member) (hub.Member, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m.Version != h.members[m.Principal].Version {
		return hub.Member{}, conflict()
	}
	h.calls++
	m.Version++
	m.Created, m.By = time.Now().UTC(), c.User
	h.members[m.Principal] = m
	return m, nil
}

// RemoveMember implements hub.Hub.
func (h *Hub) RemoveMember(_ context.Context, _ hub.Caller, principal string, version int64) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if m := h.members[principal]; version != 0 && m.Version != version {
		return conflict()
	}
	h.calls++
	delete(h.members, principal)
	return nil
}

// Config implements hub.Hub.
func (h *Hub) Config(context.Context, hub.Caller) ([]hub.Setting, error) {
	return []hub.Setting{{Key: "profile", Value: "local", Source: "default"}}, nil
}

// Status implements hub.Hub.
func (h *Hub) Status(_ context.Context, c hub.Caller) (hub.Status, error) {
	return hub.Status{Version: "test", Mode: "normal", Caller: c, StatusDetail: &hub.StatusDetail{Profile: "local"}}, nil
}

// Doctor implements hub.Hub.
func (h *Hub) Doctor(context.Context, hub.Caller) (hub.Doctor, error) {
	return hub.Doctor{Healthy: true, Findings: []hub.Finding{{Name: "userns", Answer: "yes"}}}, nil
}

// Stop implements hub.Hub.
func (h *Hub) Stop(_ context.Context, _ hub.Caller, r hub.StopRequest) (hub.Stopped, error) {
	return hub.Stopped{DenyNew: r.DenyNew}, nil
}

// Resume implements hub.Hub.
func (h *Hub) Resume(context.Context, hub.Caller) (hub.Stopped, error) { return hub.Stopped{}, nil }
