package egress

import (
	"slices"
	"strings"
	"testing"

	"palyra/conformance/world"
	"palyra/internal/canon"
	"palyra/isolate/evidence"
)

// fetch gets a page of a host by HTTP, in bash: no client has to be there.
func fetch(host string) []string {
	return []string{"bash", "-c", `exec 3<>/dev/tcp/` + host + `/80 && printf 'GET / HTTP/1.0\r\nHost: x\r\n\r\n' >&3 && head -1 <&3`}
}

// TestHostNetwork: a call in the host's network reaches what the host reaches, if a permit names that,
// and its receipt doesn't call it a sandbox.
func TestHostNetwork(t *testing.T) {
	b := begun(t)
	b.w.Set("packages.example", world.Addrs(world.Web))
	flags := []string{"--network", "host"}
	if r := b.exec(nil, flags, fetch("packages.example")...); r.status == 0 || r.outcome != "denied" || r.stdout != "" {
		t.Fatalf("where all calls are permitted, and none by name: %s", r)
	}
	b.write("policy/host.cedar", `@id("host") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.network == "host" };`)
	r := b.exec(nil, flags, fetch("packages.example")...)
	if r.status != 0 || !strings.HasPrefix(r.stdout, "HTTP/1.") || r.network != evidence.NetworkHost || strings.Contains(r.executor, "sandbox") || len(r.egress.Connections)+len(r.egress.Checked) > 0 {
		t.Errorf("%s, network %q, executor %q", r, r.network, r.executor)
	}
	for name, more := range map[string][]string{
		"hosts":   {"--egress", "packages.example"},
		"inspect": {"--inspect", "packages.example"},
	} {
		if r := b.exec(nil, append(slices.Clone(flags), more...), "true"); r.status != 125 || !strings.Contains(r.stderr, "in the host's network nothing") {
			t.Errorf("%s: %s", name, r)
		}
	}
}

// TestPreflight: the call's names are looked up and judged before it begins, the receipt has what they led
// to, and the program is held to nothing but the ports.
func TestPreflight(t *testing.T) {
	b := begun(t)
	flags := []string{"--network", "preflight"}
	hosts := []string{"packages.example:80"}
	b.w.Set("packages.example", world.Addrs(world.Web))
	if r := b.exec(hosts, flags, fetch("packages.example")...); r.outcome != "denied" || r.stdout != "" {
		t.Fatalf("where all calls are permitted, and none by name: %s", r)
	}
	b.write("policy/preflight.cedar", `@id("preflight") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.network == "preflight" };`)

	for _, at := range [][]string{{world.Web}, {"192.31.196.150", "192.31.196.151"}} { // another world, another receipt
		b.w.Set("packages.example", world.Addrs(at...))
		r := b.exec(hosts, flags, fetch("packages.example")...)
		slices.Sort(at)
		for _, c := range r.egress.Checked {
			slices.Sort(c.Addresses)
		}
		got, err := canon.Marshal(r.egress.Checked)
		want, _ := canon.Marshal([]evidence.Checked{{Host: "packages.example", Addresses: at}})
		if r.status != 0 || err != nil || string(got) != string(want) || len(r.egress.Connections) > 0 || r.network != evidence.NetworkPreflight || strings.Contains(r.executor, "sandbox") {
			t.Errorf("%s, network %q, executor %q; checked %s, want %s", r, r.network, r.executor, got, want)
		}
	}
	// It says what it doesn't hold: another host at a port that is named.
	b.w.Set("other.example", world.Addrs("192.31.196.160"))
	if r := b.exec(hosts, flags, fetch("other.example")...); r.status != 0 || !strings.HasPrefix(r.stdout, "HTTP/1.") {
		t.Errorf("another host: %s; want it reached, as nothing holds the program to its hosts", r)
	}
	if r := b.exec([]string{"packages.example:443"}, flags, fetch("packages.example")...); r.status == 0 || !strings.Contains(r.stderr, "Permission denied") {
		t.Errorf("another port: %s; want EACCES by Landlock", r)
	}

	for name, lead := range map[string]struct {
		rules []string
		to    world.Name
		why   string
	}{
		"private":    {hosts, world.Addrs("10.1.2.3"), evidence.DenyForbidden},
		"one of two": {hosts, world.Addrs(world.Web, "127.0.0.1"), evidence.DenyForbidden},
		"a network":  {[]string{"packages.example:80", "10.1.0.0/16:80"}, world.Addrs("10.1.2.3"), ""},
		"no name":    {[]string{"nowhere.example:80", "packages.example:80"}, world.Addrs(world.Web), evidence.DenyNoName},
	} {
		b.w.Set("packages.example", lead.to)
		r := b.exec(lead.rules, flags, "sh", "-c", "echo began")
		if lead.why == "" {
			if r.status != 0 || r.stdout != "began\n" || len(r.egress.Checked) != 1 {
				t.Errorf("%s: %s; want it permitted, as its rules say", name, r)
			}
		} else if r.outcome != "refused" || r.reason != "egress_denied" || r.stdout != "" || !strings.Contains(r.stderr, lead.why) {
			t.Errorf("%s: %s, %s; want it refused for %s", name, r, r.reason, lead.why)
		}
	}
	if r := b.exec([]string{"*.cdn.example:80"}, flags, "true"); r.status != 125 || !strings.Contains(r.stderr, "single names are looked up") {
		t.Errorf("names below one: %s", r)
	}
	if r := b.exec(nil, flags, "true"); r.status != 125 || !strings.Contains(r.stderr, "none is named") {
		t.Errorf("no hosts: %s", r)
	}
}
