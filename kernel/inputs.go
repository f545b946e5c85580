package kernel

import (
	vocabulary "palyra/call"
	"palyra/crypt/receipt"
	"palyra/isolate"
	"palyra/kernel/capsule"
)

// Sources are where a call's output can have come from beside its own input and the system's
// files: its cell had nothing else.
type Sources struct {
	Hosts  bool // of some network
	Server bool // a program that ran already, and isn't ours
	Files  bool // of this host: its workspace, mounts or caches
}

func sourcesOf(c *capsule.Capsule, mcp *vocabulary.MCP) Sources {
	return Sources{
		Hosts:  len(c.EgressHosts)+len(c.EgressInspect)+len(c.EgressSecrets) > 0 || isolate.AllowsHostNetwork(c.Network),
		Server: mcp != nil,
		Files:  c.Workspace != nil || len(c.Mounts)+len(c.Caches) > 0,
	}
}

// SourcesOf returns the sources of the call of a statement. One that doesn't say all of them had
// all.
func SourcesOf(p *receipt.Predicate) Sources {
	if p.Question == nil {
		return Sources{Hosts: true, Server: true, Files: true}
	}
	s := p.Capsule
	c := capsule.Capsule{EgressHosts: s.EgressHosts, EgressInspect: s.EgressInspect, EgressSecrets: s.EgressSecrets, Network: s.Network,
		Mounts: s.Mounts, Caches: s.Caches}
	if s.Workspace != nil {
		c.Workspace = new(capsule.Workspace)
	}
	return sourcesOf(&c, p.Question.MCP)
}
