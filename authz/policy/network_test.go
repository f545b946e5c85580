package policy

import (
	"slices"
	"strings"
	"testing"
)

// TestHostNetwork holds to it that only a permit that names the network lets a call into the host's.
func TestHostNetwork(t *testing.T) {
	const any = `@id("any") permit (principal, action, resource);`
	for _, c := range []struct {
		name, policies, network string
		want                    Effect
	}{
		{"all calls", any, NetworkHost, Deny},
		{"all calls", any, NetworkPreflight, Deny},
		{"all calls", any, NetworkLoopback, Allow},
		{"by name", any + `@id("h") permit (principal, action, resource) when { context.network == "host" };`, NetworkHost, Allow},
		{"the other", any + `@id("h") permit (principal, action, resource) when { context.network == "host" };`, NetworkPreflight, Deny},
		{"turned round", `@id("h") permit (principal, action, resource) when { "preflight" == context.network };`, NetworkPreflight, Allow},
		{"a list", `@id("h") permit (principal, action, resource) when { ["host", "preflight"].contains(context.network) };`, NetworkPreflight, Allow},
		{"named, for another", any + `@id("h") permit (principal, action, resource) when { context.network == "host" && context.argv0 == "other" };`, NetworkHost, Deny},
		{"all but", any + `@id("h") permit (principal, action, resource) when { context.network != "preflight" };`, NetworkHost, Deny},
		{"all but, turned round", any + `@id("h") permit (principal, action, resource) unless { context.network == "host" };`, NetworkPreflight, Deny},
		{"a forbid", any + `@id("h") @untested("") forbid (principal, action, resource) when { context.network == "host" };`, NetworkPreflight, Deny},
		{"asked", `@id("h") permit (principal, action, resource) when { context.network == "host" && context.approved };`, NetworkHost, NeedsApproval},
		{"asked of all", `@id("h") permit (principal, action, resource) when { context.approved };`, NetworkHost, Deny},
	} {
		s, err := compile([]file{{"a.cedar", kindPolicy, []byte(c.policies)}})
		if err != nil {
			t.Fatal(err)
		}
		r := Request{Principal: LocalUser("uid:1000"), Action: ToolExecute, Resource: Tool("process.run"),
			Context: Context{Executable: Executable{Path: "/usr/bin/id", System: true}, Argv0: "id", Tier: "c", Network: c.network, Stdin: "none"}}
		if c.network == NetworkPreflight {
			r.Context.EgressHosts = []string{"packages.example:443"}
		}
		d := s.Decide(r)
		if d.Effect != c.want || c.want == Deny && (d.Reason != ReasonNotPermitted && d.Reason != ReasonForbidden || slices.Contains(d.Policies, "any")) {
			t.Errorf("%s, %s: %s, %s by %v %v; want %s", c.name, c.network, d.Effect, d.Reason, d.Policies, d.Errors, c.want)
		}
	}
}

// TestHostNetworkShipped holds to it that no set that ships permits the host's network, whoever says yes.
func TestHostNetworkShipped(t *testing.T) {
	sets := map[string]*Set{"default": Default()}
	for _, name := range Presets() {
		texts, ok := PresetFiles(name)
		var files []file
		for at, text := range texts {
			if strings.HasSuffix(at, ".cedar") {
				files = append(files, file{at, kindPolicy, text})
			}
		}
		s, err := compile(files)
		if err != nil || !ok {
			t.Fatal(name, ok, err)
		}
		sets[name] = s
	}
	for name, s := range sets {
		for _, network := range []string{NetworkHost, NetworkPreflight} {
			r := Request{Principal: Entity{Type: TypeUser, ID: "uid:0", Roles: []string{"owner", "admin", "operator"}}, Action: ToolExecute, Resource: Tool("process.run"),
				Context: Context{Executable: Executable{Path: "/usr/bin/cat", System: true}, Argv0: "cat", Tier: "c", Network: network, Stdin: "none", Capabilities: []string{CapNetwork, CapProcessExec}}}
			if network == NetworkPreflight {
				r.Context.EgressHosts = []string{"packages.example:443"}
			}
			if d := s.Decide(r); d.Effect != Deny || len(d.Errors) > 0 {
				t.Errorf("%s: %s is %s by %v %v", name, network, d.Effect, d.Policies, d.Errors)
			}
		}
	}
}

// TestHostNetworkFloor holds to it that server profiles forbid what a permit names, with a certificate too.
func TestHostNetworkFloor(t *testing.T) {
	s, err := compile([]file{{"a.cedar", kindPolicy, []byte(`@id("h") permit (principal, action, resource) when { context.network == "host" };`)}})
	if err != nil {
		t.Fatal(err)
	}
	floored, err := s.WithFloor()
	if err != nil {
		t.Fatal(err)
	}
	r := Request{Principal: LocalUser("uid:1000"), Action: ToolExecute, Resource: Tool("process.run"),
		Context: Context{Executable: Executable{Path: "/usr/bin/id", System: true}, Argv0: "id", Tier: "c", Network: NetworkHost, Stdin: "none", Certificate: CertificateProven}}
	if d := s.Decide(r); d.Effect != Allow {
		t.Fatalf("without the floor: %s by %v %v", d.Effect, d.Policies, d.Errors)
	}
	if d := floored.Decide(r); d.Effect != Deny || !slices.Equal(d.Policies, []string{FloorNetwork}) {
		t.Errorf("with it: %s by %v %v; want a denial by %s", d.Effect, d.Policies, d.Errors, FloorNetwork)
	}
}
