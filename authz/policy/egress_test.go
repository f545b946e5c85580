package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"palyra/call/egress"
	"palyra/internal/fault"
	"palyra/internal/sample"
)

func setOf(t *testing.T, preset string, more map[string]string) *Set {
	t.Helper()
	files, ok := PresetFiles(preset)
	if !ok {
		t.Fatalf("no preset %q", preset)
	}
	fsys := fstest.MapFS{}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: data, Mode: 0o644}
	}
	for name, text := range more {
		fsys[name] = &fstest.MapFile{Data: []byte(text), Mode: 0o644}
	}
	s, err := LoadFS(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reaching(network bool, hosts ...string) Request {
	r := Request{
		Principal: Entity{Type: "Palyra::User", ID: "alice", Roles: []string{RoleOperator}},
		Action:    ToolExecute, Resource: Tool("process.run"),
		Context: Context{Executable: Executable{Path: "/usr/bin/curl", System: true}, Tier: "c", EgressHosts: hosts, Capabilities: []string{CapProcessExec}},
	}
	if network {
		r.Context.Network, r.Context.Capabilities = NetworkEgress, append(r.Context.Capabilities, CapNetwork)
	}
	return r
}

// TestListedHosts: what a list of the directory has needs no question, anything beside it is as it
// was without the list.
func TestListedHosts(t *testing.T) {
	lists := map[string]string{"npm.hosts": "packages.example\n*.cdn.example # tarballs\n", "db.hosts": "10.1.0.0/16:5432\n"}
	for preset, otherwise := range map[string]Effect{"": NeedsApproval, "coding": NeedsApproval, "ci": Deny, "strict": Deny} {
		without, with := setOf(t, preset, nil), setOf(t, preset, lists)
		if without.Digest() == with.Digest() {
			t.Errorf("%s: lists are not in the digest", preset)
		}
		listed := Allow // by what the set says of a program
		if e := without.Decide(reaching(false)).Effect; e != Allow {
			listed = e
		}
		for _, tt := range []struct {
			name  string
			hosts []string
			want  Effect
		}{
			{"a listed one", []string{"packages.example:443"}, listed},
			{"of two lists", []string{"10.1.0.0/16:5432", "packages.example:443"}, listed},
			{"below a suffix", []string{"a.b.cdn.example:443"}, listed},
			{"the suffix itself", []string{"*.cdn.example:443"}, listed},
			{"its name", []string{"cdn.example:443"}, otherwise},
			{"another beside it", []string{"git.example:443", "packages.example:443"}, otherwise},
			{"another port", []string{"packages.example:8443"}, otherwise},
			{"names below it", []string{"*.packages.example:443"}, otherwise},
			{"a part of a network", []string{"10.1.2.0/24:5432"}, otherwise},
			{"no canonical host", []string{"PACKAGES.example:443."}, otherwise},
			{"the network, alone", nil, otherwise},
		} {
			if got := with.Decide(reaching(true, tt.hosts...)); got.Effect != tt.want {
				t.Errorf("%q, %s: %v by %v, want %v", preset, tt.name, got.Effect, got.Policies, tt.want)
			}
			if got := without.Decide(reaching(true, tt.hosts...)); got.Effect != otherwise {
				t.Errorf("%q without lists, %s: %v by %v, want %v", preset, tt.name, got.Effect, got.Policies, otherwise)
			}
		}
		restored, err := Restore(with.Texts(), "", with.Digest())
		if err != nil {
			t.Fatal(err)
		}
		if got := restored.Decide(reaching(true, "packages.example:443")).Effect; got != listed {
			t.Errorf("%q, restored: %v, want %v", preset, got, listed)
		}
		floored, err := with.WithFloor()
		if err != nil || len(floored.Hosts()) != 2 {
			t.Errorf("%q with the floor: %v, %v", preset, floored.Hosts(), err)
		}
	}
}

// TestRates: a rate doesn't hide a host from a policy that forbids it, and a list that bounds one
// covers no faster rule.
func TestRates(t *testing.T) {
	s := setOf(t, "", map[string]string{"60-hosts.cedar": `@id("no_evil") forbid (principal, action, resource) when { context has egress_hosts && context.egress_hosts.contains("evil.example:443") };
@id("no_unlisted") forbid (principal, action, resource) when { context has egress_unlisted && context.egress_unlisted.contains("packages.example:443") };`,
		"npm.hosts": "packages.example rate:10/s\n",
		"60-hosts.test.json": `{"version": 1, "hosts": {"npm": ["packages.example rate:10/s"]},
  "base": {"principal": {"type": "Palyra::User", "id": "alice", "roles": ["operator"]}, "action": "tool.execute", "resource": {"type": "Palyra::Tool", "id": "process.run"}, "context": {"executable": {"path": "/usr/bin/curl", "system": true}, "capabilities": ["process_exec", "network"], "network": "egress", "tier": "c"}},
  "tests": [{"name": "evil", "request": {"context": {"egress_hosts": ["evil.example:443 rate:1/s"]}}, "effect": "deny", "policies": ["no_evil"]},
    {"name": "faster than the list", "request": {"context": {"egress_hosts": ["packages.example:443"]}}, "effect": "deny", "policies": ["no_unlisted"]}]}`})
	for host, want := range map[string]bool{"evil.example:443": true, "evil.example:443 rate:1/s": true, "other.example:443 rate:1/s": false,
		"packages.example:443": true, "packages.example:443 rate:11/s": true, "packages.example:443 rate:10/s": false, "packages.example:443 rate:5/s": false, "evil.example:443 open:1 sent:1KiB": true,
		"packages.example:443 sent:1KiB": true, "packages.example:443 rate:10/s time:1m": false} {
		if got := s.Decide(reaching(true, host)); (got.Effect == Deny) != want {
			t.Errorf("%s: %v by %v, denied: want %v", host, got.Effect, got.Policies, want)
		}
	}
	if hosts, err := s.ExpandHosts([]string{"@npm"}); err != nil || !slices.Equal(hosts, []string{"packages.example:443 rate:10/s"}) {
		t.Errorf("%q, %v", hosts, err)
	}
	if got := bareHosts([]string{"a.example:443", "b.example:443 rate:1/s open:1 connections:1 sent:1 received:1 time:1s", "no rule"}); !slices.Equal(got, []string{"a.example:443", "b.example:443", "no rule"}) {
		t.Errorf("%q", got)
	}
}

// TestHostLists: the lists to begin with load beside any set, and lead to reserved names alone.
func TestHostLists(t *testing.T) {
	lists := HostLists()
	if got := slices.Sorted(maps.Keys(lists)); !slices.Equal(got, []string{"git.hosts", "go.hosts", "npm.hosts", "pip.hosts"}) {
		t.Errorf("%q", got)
	}
	more := map[string]string{}
	for name, text := range lists {
		more[name] = string(text)
	}
	for _, l := range setOf(t, "ci", more).Hosts() {
		if l.Version != 1 {
			t.Errorf("%s has version %d", l.Name, l.Version)
		}
		for _, r := range l.Rules {
			if name, _ := r.Name(); !strings.HasSuffix(name, ".example") {
				t.Errorf("%s has %s", l.Name, r)
			}
		}
	}
}

func TestExpandHosts(t *testing.T) {
	s := setOf(t, "coding", map[string]string{"npm.hosts": "packages.example\n*.CDN.example\n", "git.hosts": "git.example"})
	got, err := s.ExpandHosts([]string{"@npm", "db.example:5432", "@git"})
	if want := []string{"packages.example:443", "*.cdn.example:443", "db.example:5432", "git.example:443"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"@", "@NPM", "@npm.hosts", "@../npm", "@other"} {
		if got, err := s.ExpandHosts([]string{"a.example", bad}); fault.ReasonOf(err) != "invalid_input" || !strings.Contains(fault.HintOf(err), "@git, @npm") {
			t.Errorf("%s: %q, %v", bad, got, err)
		}
	}
	if _, err := setOf(t, "", nil).ExpandHosts([]string{"@npm"}); !strings.Contains(fault.HintOf(err), "none") {
		t.Errorf("without lists: %v", err)
	}
}

// TestHostsInBundle: another engine has what context.egress_unlisted follows from.
func TestHostsInBundle(t *testing.T) {
	s := setOf(t, "", map[string]string{"npm.hosts": "Packages.example\n"})
	b, err := s.Bundle(reaching(true, "git.example:443", "packages.example:443"), "")
	if err != nil {
		t.Fatal(err)
	}
	if want := map[string][]string{"npm": {"packages.example:443"}}; !maps.EqualFunc(b.Hosts, want, slices.Equal) {
		t.Errorf("hosts %v, want %v", b.Hosts, want)
	}
	var context struct {
		Unlisted []string `json:"egress_unlisted"`
	}
	if err := json.Unmarshal(b.Questions[0].Context, &context); err != nil || !slices.Equal(context.Unlisted, []string{"git.example:443"}) {
		t.Errorf("%v, %v", context, err)
	}
}

func TestBadLists(t *testing.T) {
	for _, tt := range []struct{ file, text, want string }{
		{"npm.hosts", "a.example\nhttps://b.example\n", "line 2"},
		{"npm.hosts", "# nothing\n", "no rule"},
		{"Npm.hosts", "a.example\n", "lower-case letters"},
		{"npm.host", "a.example\n", "list of hosts"},
	} {
		fsys := fstest.MapFS{"a.cedar": {Data: []byte(permitAll)}, tt.file: {Data: []byte(tt.text)}}
		if _, err := LoadFS(fsys); fault.ReasonOf(err) != "policy_invalid" || !strings.Contains(err.Error(), tt.file) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.file, err, tt.want)
		}
	}
}

// TestManyListed: what a question costs grows with its hosts and with the lists, and not with their
// product, which here is 4 * 10^9: whoever tests a candidate sends both, and an evaluation doesn't
// end in the middle.
func TestManyListed(t *testing.T) {
	const most = 40_000
	lists := sample.Of(10, 100)
	const digits = "abcdefghijklmnopqrstuvwxyz0123456789"
	set := fstest.MapFS{"a.cedar": {Data: []byte(`@id("p") permit(principal, action, resource) when { context has egress_unlisted && context.egress_unlisted.contains("z.z:443") };`)}}
	for n := range lists {
		var list strings.Builder
		for i := range egress.MaxListed {
			fmt.Fprintf(&list, "%c%c.b\n", digits[i%36], digits[i/36])
		}
		set[fmt.Sprintf("l%d.hosts", n)] = &fstest.MapFile{Data: []byte(list.String())}
	}
	s, err := LoadFS(set)
	if err != nil {
		t.Fatal(err)
	}
	hosts := slices.Repeat([]string{"z.z:443"}, most)
	if d := s.Decide(reaching(true, append(hosts, "aa.b:443")...)); d.Effect != Allow {
		t.Errorf("%+v", d)
	}
}
