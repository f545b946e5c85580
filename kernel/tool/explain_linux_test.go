package tool

import (
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"palyra/authz/policy"
	"palyra/internal/toolproto"
	"palyra/internal/tools"
	"palyra/kernel"
)

// TestExplain: how calls of tools would be decided by the built-in policies,
// with a reason for a person and, where it is denied, a policy that would help.
func TestExplain(t *testing.T) {
	bin, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	cfg := kernel.Config{Tools: New(Config{Program: filepath.Join(bin, "palyra-tool"), Fetch: filepath.Join(bin, "palyra-fetch"), Artifacts: store{}, Processes: processes{}, Memory: memories{}, Vault: noVault(),
		Workspaces: map[string]Workspace{"src": {Path: dir}, "ro": {Path: dir, ReadOnly: true}}})}
	stray := policy.Entity{Type: "Palyra::Agent", ID: "stray"}
	for name, in := range fine() {
		if row, _ := tools.Find(name); name == toolproto.ArtifactRead || row.Access.Layered() {
			continue // there is none
		}
		b, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		want, by := policy.Allow, []string{"read_only_tools"}
		switch name {
		case toolproto.WriteFile, toolproto.ApplyPatch:
			want, by = policy.NeedsApproval, []string{"approved_tools", "host_write_unless_approved", "sensitive_unless_approved"}
		case toolproto.Fetch:
			want, by = policy.NeedsApproval, []string{"approved_fetches", "network_unless_approved"}
		case toolproto.VaultGet, toolproto.VaultExport:
			want, by = policy.NeedsApproval, []string{"secrets_unless_approved"}
		case toolproto.VaultRemove, toolproto.VaultRotate, toolproto.VaultAddRecipient:
			want, by = policy.NeedsApproval, []string{"sensitive_unless_approved"}
		case toolproto.VaultList, toolproto.VaultSet, toolproto.VaultImport:
			by = []string{"vault_tools"}
		case toolproto.MemorySearch, toolproto.MemoryList, toolproto.MemoryRetain:
			by = []string{"own_memory"}
		case toolproto.MemoryForget: // by an agent
			want, by = policy.NeedsApproval, []string{"sensitive_unless_approved"}
		case kernel.ToolRun: // id, in a writable workspace
			want, by = policy.NeedsApproval, []string{"host_write_unless_approved"}
		}
		x, set, err := kernel.Explain(t.Context(), cfg, kernel.Proposal{Tool: name, Input: b}, nil)
		if err != nil || x.Decision.Effect != want || !slices.Equal(x.Decision.Policies, by) {
			t.Errorf("%s: %v by %v, %v; want %v by %v", name, x.Decision.Effect, x.Decision.Policies, err, want, by)
			continue
		}
		for _, id := range x.Decision.Policies {
			if info, ok := set.Policy(id); !ok || want == policy.NeedsApproval && info.Reason == "" {
				t.Errorf("%s: policy %s gives the approver no reason", name, id)
			}
		}
		c := cfg
		c.Principal = stray
		x, _, err = kernel.Explain(t.Context(), c, kernel.Proposal{Tool: name, Input: b}, nil)
		if err != nil || x.Decision.Effect != policy.Deny || !strings.Contains(x.Fix, name) {
			t.Errorf("%s by a stray agent: %v, fix %q, %v", name, x.Decision.Effect, x.Fix, err)
		}
	}
}

// BenchmarkCall is a whole call of a tool, receipt included.
func BenchmarkCall(b *testing.B) {
	w := newBench(b)
	put(b, w.dir+"/f", strings.Repeat("line\n", 1000), 0o644)
	for name, c := range map[string]struct {
		tool string
		in   obj
	}{
		"echo": {toolproto.Echo, obj{"text": "x"}},
		"read": {toolproto.ReadFile, obj{"workspace": "src", "path": "f"}},
		"true": {kernel.ToolRun, obj{"argv": []string{"/bin/true"}, "network": "void"}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if o, _, err := w.call(c.tool, c.in); err != nil || o.Exit != 0 {
					b.Fatal(o, err)
				}
			}
		})
	}
}
