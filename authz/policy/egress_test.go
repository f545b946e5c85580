package policy

import (
	"bytes"
	"testing"
	"testing/fstest"
)

// TestHostsByName puts the clause of 35-reach's comment where the comment says: the named hosts
// come unasked, any other beside them asks, and a call with the capability alone still asks.
func TestHostsByName(t *testing.T) {
	files, _ := PresetFiles("coding")
	const file, behind = "35-reach.cedar", "context.capabilities.contains(\"network\") }\nunless { context.approved }"
	const clause = ` unless { !context.egress_hosts.isEmpty() && ["packages.example:443"].containsAll(context.egress_hosts) }`
	text := files[file]
	if !bytes.Contains(text, []byte("//  "+clause)) || bytes.Count(text, []byte(behind)) != 1 {
		t.Fatalf("%s has no such comment or policy:\n%s", file, text)
	}
	files[file] = bytes.Replace(text, []byte(behind), []byte(behind+clause), 1)
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: data, Mode: 0o644}
	}
	s, err := LoadFS(fsys)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		hosts []string
		want  Effect
	}{
		"the named one":      {[]string{"packages.example:443"}, Allow},
		"another beside it":  {[]string{"packages.example:443", "git.example:443"}, NeedsApproval},
		"another port":       {[]string{"packages.example:8443"}, NeedsApproval},
		"names below it":     {[]string{"*.packages.example:443"}, NeedsApproval},
		"the network, alone": {nil, NeedsApproval},
	} {
		r := Request{
			Principal: Entity{Type: "Palyra::User", ID: "alice", Roles: []string{RoleOperator}},
			Action:    ToolExecute, Resource: Tool("process.run"),
			Context: Context{Executable: Executable{Path: "/usr/bin/curl", System: true}, Tier: "c", Network: NetworkEgress,
				EgressHosts: tt.hosts, Capabilities: []string{CapProcessExec, CapNetwork}},
		}
		if got := s.Decide(r); got.Effect != tt.want {
			t.Errorf("%s: %v by %v, want %v", name, got.Effect, got.Policies, tt.want)
		}
	}
}
