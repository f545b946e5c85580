package policy

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"palyra/call/egress"
	"palyra/internal/fault"
)

// hostsSuffix ends the names of lists of hosts in a policy directory.
const hostsSuffix = ".hosts"

// listMark begins the name of a list where a proposal names hosts: "@npm".
const listMark = "@"

// addHosts adds a list of hosts. Lists say who may be reached without saying by whom or how:
// policies do, by context.egress_unlisted.
func (s *Set) addHosts(f file) error {
	l, err := egress.ParseList(strings.TrimSuffix(f.name, hostsSuffix), string(f.data))
	if err != nil {
		return fault.New(fault.BadState, "policy_invalid", fmt.Sprintf("read list of hosts %q", f.name), err).
			WithHint("a rule a line, as palyra exec --egress takes it; # begins a comment")
	}
	s.hosts.Add(l) // files are sorted by name
	return nil
}

// hostsFor returns the lists that a request is decided by.
func (s *Set) hostsFor(r *Request) *egress.Lists {
	if r.hosts != nil {
		return r.hosts
	}
	return &s.hosts
}

// listsOf reads the lists of a policy test's file, nil if it has none.
func listsOf(hosts map[string][]string) (lists *egress.Lists, err error) {
	if len(hosts) > 0 {
		lists = new(egress.Lists)
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		l, err := egress.ParseList(name, strings.Join(hosts[name], "\n"))
		if err == nil && !egress.ListName(name) {
			err = errors.New("no name of a list")
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", name, err)
		}
		lists.Add(l)
	}
	return lists, nil
}

// Hosts returns the lists of hosts of the set, sorted by name. The caller must not change them.
func (s *Set) Hosts() []egress.List { return s.hosts.All() }

// ExpandHosts returns a proposal's hosts with the rules of a list in place of each "@NAME". A list
// that the set doesn't have is fault.Usage "invalid_input".
func (s *Set) ExpandHosts(hosts []string) ([]string, error) {
	if !slices.ContainsFunc(hosts, func(h string) bool { return strings.HasPrefix(h, listMark) }) {
		return hosts, nil
	}
	var out []string
	for _, h := range hosts {
		name, list := strings.CutPrefix(h, listMark)
		if !list {
			out = append(out, h)
			continue
		}
		i := slices.IndexFunc(s.hosts.All(), func(l egress.List) bool { return l.Name == name })
		if i < 0 {
			return nil, fault.New(fault.Usage, "invalid_input", fmt.Sprintf("list of hosts %.40q", name), errors.New("the policy directory has no such list")).
				WithHint(s.listNames())
		}
		for _, r := range s.hosts.All()[i].Rules {
			out = append(out, r.String())
		}
	}
	return out, nil
}

func (s *Set) listNames() string {
	if len(s.hosts.All()) == 0 {
		return "it has none: docs/EGRESS.md says how to make one"
	}
	var names []string
	for _, l := range s.hosts.All() {
		names = append(names, listMark+l.Name)
	}
	return "it has " + strings.Join(names, ", ")
}

// unlisted returns the hosts that no list covers, without their bounds.
func (g *given) unlisted() (out []string) {
	for _, h := range g.EgressHosts {
		r, err := egress.ParseRule(h)
		if err != nil || !g.hosts.Cover(r) {
			out = append(out, h)
		}
	}
	return bareHosts(out)
}

func (g *given) egressHosts() []string { return bareHosts(g.EgressHosts) }

// bareHosts returns hosts without their bounds: a policy that forbids a host would otherwise not
// see it behind one.
func bareHosts(hosts []string) []string {
	if !slices.ContainsFunc(hosts, func(h string) bool { return strings.Contains(h, " ") }) {
		return hosts
	}
	out := make([]string, len(hosts))
	for i, h := range hosts {
		out[i] = h
		if r, err := egress.ParseRule(h); err == nil {
			out[i] = r.Bare().String()
		}
	}
	return out
}
