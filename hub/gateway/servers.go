package gateway

import (
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"unicode/utf8"

	"palyra/authz/policy"
	"palyra/call/egress"
	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// MaxServers bounds the servers of an installation.
const MaxServers = 64

// The bounds of a ServerSpec.
const (
	maxName = 32
	maxSpec = 64 << 10 // bytes as JSON
	maxLife = 24 * 60 * 60 * 1000
)

// Row returns a new server's row, or why there can be no such server.
func (g *Gateway) Row(n hub.NewServer, by string) (*store.Server, error) {
	op := fmt.Sprintf("add server %.80q", n.Name)
	bad := func(format string, args ...any) error {
		return fault.New(fault.Usage, "invalid_input", op, fmt.Errorf(format, args...))
	}
	s := &n.Spec
	for _, text := range append(append([]string{}, s.Argv...), s.Env...) {
		if !utf8.ValidString(text) || strings.IndexByte(text, 0) >= 0 {
			return nil, bad("arguments and variables are UTF-8 without NUL")
		}
	}
	for _, e := range s.Env {
		if strings.IndexByte(e, '=') < 1 {
			return nil, bad("a variable is NAME=VALUE, not %.80q", e)
		}
	}
	for _, m := range s.Mounts {
		if !path.IsAbs(m) || path.Clean(m) != m {
			return nil, bad("a mount is an absolute path, not %.80q", m)
		}
	}
	if s.URL != "" || len(s.Headers) > 0 {
		if err := checkRemote(s, bad); err != nil {
			return nil, err
		}
	}
	switch {
	case len(n.Name) < 1 || len(n.Name) > maxName || strings.Trim(n.Name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || n.Name[0] == '-':
		return nil, bad("a name has 1 to %d of a-z, 0-9 and -, and doesn't begin with -", maxName)
	case s.URL == "" && (len(s.Argv) == 0 || s.Argv[0] == ""):
		return nil, bad("no program is named")
	case s.URL == "" && s.Workspace == "" && strings.Contains(s.Argv[0], "/") && s.Argv[0][0] != '/':
		return nil, bad("without a workspace the program is a name for the search path or an absolute path")
	case s.ReadOnly && s.Workspace == "":
		return nil, bad("read_only needs a workspace")
	case s.Network != "" && s.Network != policy.NetworkFresh && s.Network != policy.NetworkLoopback && s.Network != policy.NetworkVoid:
		return nil, bad("no network %.40q", s.Network)
	case len(s.EgressHosts)+len(s.EgressInspect)+len(s.EgressSecrets) > 0 && s.Network != "" && s.Network != policy.NetworkLoopback:
		return nil, bad("a server with egress_hosts has a network of its own, with 127.0.0.1 and ::1: leave network out")
	case s.Memory < 0 || s.PIDs < 0 || s.TimeoutMS < 0 || s.LifeMS < 0 || s.TimeoutMS > maxLife || s.LifeMS > maxLife:
		return nil, bad("a limit is out of bounds")
	}
	if err := spellHosts(s); err != nil {
		return nil, err
	}
	if _, ok := g.cfg.Workspaces[s.Workspace]; !ok && s.Workspace != "" {
		return nil, fault.New(fault.Usage, "not_found", op, errors.New("the operator declared none of this name"))
	}
	b, err := canon.Marshal(n.Spec)
	if err != nil {
		return nil, err
	}
	if len(b) > maxSpec {
		return nil, fault.New(fault.Usage, "too_large", op, fmt.Errorf("a description of %d bytes, limit %d", len(b), maxSpec))
	}
	return &store.Server{Name: n.Name, Spec: b, AddedBy: by}, nil
}

// spellHosts gives hosts, rules and uses their one spelling. A list of hosts keeps its name: what
// it has is looked up for each call.
func spellHosts(s *hub.ServerSpec) error {
	var hosts, lists []string
	for _, h := range s.EgressHosts {
		if name, list := strings.CutPrefix(h, "@"); list && egress.ListName(name) {
			lists = append(lists, h)
		} else {
			hosts = append(hosts, h)
		}
	}
	rules, err := egress.ParseRules(hosts)
	if err != nil {
		return err
	}
	inspect, err := egress.ParseInspects(s.EgressInspect)
	if err != nil {
		return err
	}
	uses, err := egress.ParseUses(s.EgressSecrets)
	if err != nil {
		return err
	}
	slices.Sort(lists)
	s.EgressHosts = append(slices.Compact(lists), rules.Strings()...)
	s.EgressInspect, s.EgressSecrets = egress.Strings(inspect), egress.Strings(uses)
	return nil
}

func spec(row *store.Server) (s hub.ServerSpec, err error) {
	return s, read(row.Spec, &s)
}

// read reads a column of a row.
func read(b []byte, v any) error {
	if err := json.Unmarshal(b, v); err != nil {
		return fault.New(fault.Integrity, "store_corrupt", "read server", err)
	}
	return nil
}

func toolsOf(b []byte) (list []hub.ServerTool, err error) {
	if len(b) == 0 {
		return nil, nil
	}
	return list, read(b, &list)
}

// Of returns a row as callers see it.
func Of(row *store.Server) (hub.Server, error) {
	v := hub.Server{Name: row.Name, State: hub.ServerNew, AddedBy: row.AddedBy, Added: row.Added, AcceptedBy: row.AcceptedBy, Version: row.Version}
	var err, err2, err3 error
	v.Spec, err = spec(row)
	v.Tools, err2 = toolsOf(row.Accepted)
	v.Listed, err3 = toolsOf(row.Listed)
	for _, list := range [][]hub.ServerTool{v.Tools, v.Listed} {
		for i := range list {
			list[i].LeftOut = leftOut(list[i].Definition)
		}
	}
	if err := errors.Join(err, err2, err3); err != nil {
		return v, err
	}
	if len(row.Listed) > 0 {
		v.ListedDigest = digestOf(row.Spec, v.Listed)
	}
	if row.AcceptedBy != "" {
		v.Accepted, v.State = &row.AcceptedAt, hub.ServerAccepted
		if v.ListedDigest != digestOf(row.Spec, v.Tools) {
			v.State = hub.ServerChanged
		}
	}
	v.ToolCount = len(v.Tools)
	return v, nil
}

// SetListed puts down the tools that a server listed.
func SetListed(row *store.Server, list []hub.ServerTool) (err error) {
	if list == nil {
		list = []hub.ServerTool{}
	}
	row.Listed, err = json.Marshal(list)
	return err
}
