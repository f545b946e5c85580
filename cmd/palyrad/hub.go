package main

import (
	"context"
	"encoding/json"
	"net"
	"net/netip"
	"net/url"
	"strconv"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/hub/agent"
	"palyra/hub/config"
	"palyra/hub/gateway"
	"palyra/hub/local"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/fault"
	builtin "palyra/internal/tools"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
	"palyra/kernel/tool"
)

// openHub opens the hub over kernel and store. It resolves the runs that an earlier process
// left, and starts accepted ones; in safe mode they wait.
func (d *daemon) openHub(ctx context.Context, cfg *config.Config, c *core, table *tool.Table, servers *gateway.Gateway, models *model.Models, remembers bool) (*local.Hub, error) {
	features, err := access.ParseFeatures(featuresOff(&cfg.Features))
	if err != nil {
		return nil, err
	}
	embeds := cfg.Memory.Embeddings
	if !remembers {
		embeds = "" // there is nothing to compare
	}
	return local.Open(ctx, local.Config{
		Kernel: c.kernel, Store: c.store, Hold: d.safe, Log: d.log, TestOnlyStep: d.testOnlyStep,
		Tools: func() []hub.Tool { return tools(table, remembers) }, Workspaces: paths(cfg), Gateway: servers, Models: models, Scan: agent.Scan{Plain: !cfg.Agent.Redact}, Instructions: cfg.Agent.Instructions,
		Agent: local.Agent{Tokens: cfg.Agent.Tokens, Cost: cfg.Agent.Cost, SessionTokens: cfg.Agent.SessionTokens, SessionCost: cfg.Agent.SessionCost,
			DayTokens: cfg.Agent.DayTokens, DayCost: cfg.Agent.DayCost},
		Bounds: session.Bounds{Active: int(cfg.Limits.Concurrency), Share: int(cfg.Limits.ConcurrencyEach),
			Queue: orNone(cfg.Limits.Queue), Each: orNone(cfg.Limits.QueueEach), Wide: int(cfg.Limits.RunsPerSession)},
		Budget: store.Budget{Calls: cfg.Budget.Calls, Wall: cfg.Budget.Wall.Std(), Bytes: int64(cfg.Budget.Bytes)},
		Background: run.Background{Places: run.NewBackground(int(cfg.Limits.Background), int(cfg.Limits.BackgroundEach)),
			Session: int(cfg.Limits.BackgroundSession), Wall: cfg.Budget.Background.Std()},
		Processes: c.processes,
		Memory:    store.MemoryBounds{Items: cfg.Memory.ItemsEach, Bytes: int64(cfg.Memory.BytesEach)}, Embeddings: embeds,
		Readers:   max(1, int(cfg.Limits.SSEReaders)),
		Sessions:  int(cfg.Limits.SessionsEach),
		Layers:    local.Layers{Each: int(cfg.Limits.LayersEach), BytesEach: int64(cfg.State.LayersEach)},
		AllowSelf: cfg.Approvals.AllowSelf, Notify: local.Notify{URL: cfg.Notify.URL, Secret: cfg.Notify.Secret, Network: cfg.Notify.Network},

		JournalEach: int64(cfg.Journal.QuotaEach), TokensEach: int(cfg.Access.TokensEach), TokenMaxAge: cfg.Access.TokenMaxAge.Std(),
		Features: features, Pairing: d.pairingAddress, Console: d.consoleURL,

		Version: version, Profile: cfg.Profile, PolicyDir: cfg.Policy.Dir,
		Pool: hub.Pool{Cells: int(cfg.Pool.Cells), Networks: int(cfg.Pool.Networks), MaxAge: cfg.Pool.MaxAge.Std()},
		Mode: d.mode, Confinement: d.confinement, Warnings: d.warnings, Settings: d.settings,
		Examine: func() []hub.Finding { return d.examine(c) },
		Probe:   func(ctx context.Context) (*probe.Report, error) { return d.starter.Probe(ctx) },
	})
}

// pairingAddress returns where devices pair, "" for nowhere, or not yet.
func (d *daemon) pairingAddress() string {
	if d.sockets == nil || d.sockets.pair == nil {
		return ""
	}
	return d.sockets.pairAt
}

// consoleURL returns where a browser finds the console, "" for nowhere, or not yet.
func (d *daemon) consoleURL() string {
	if !d.console.Load() || d.sockets == nil || d.sockets.http == nil || d.sockets.healthOnly {
		return ""
	}
	u := url.URL{Scheme: "http", Host: d.sockets.address()}
	if d.sockets.cert != nil {
		u.Scheme = "https"
		if hosts := d.sockets.hosts(); len(hosts) > 0 {
			u.Host = hosts[0]
			return u.String()
		}
	}
	if at, err := netip.ParseAddrPort(u.Host); err == nil && (at.Addr().IsLoopback() || at.Addr().IsUnspecified()) {
		u.Host = net.JoinHostPort("localhost", strconv.Itoa(int(at.Port()))) // browsers take keys and cookies for a name
	}
	return u.String()
}

// featuresOff returns the features that the configuration turns off.
func featuresOff(f *config.Features) (off []string) {
	for _, x := range [...]struct {
		name access.Feature
		on   bool
	}{{access.Tokens, f.Tokens}, {access.HTTPApprovals, f.HTTPApprovals}, {access.HTTPAdmin, f.HTTPAdmin},
		{access.StandingGrants, f.StandingGrants}, {access.PatternGrants, f.PatternGrants}, {access.MCP, f.MCP}, {access.Console, f.Console}, {access.OpenAI, f.OpenAI}} {
		if !x.on {
			off = append(off, string(x.name))
		}
	}
	return off
}

// places returns how many runs can be at work, the owner's and those in the background included.
func places(cfg *config.Config) int {
	n, b := int(cfg.Limits.Concurrency), int(cfg.Limits.Background)
	return n + session.Reserve(n) + b + session.Reserve(b)
}

// orNone is a bound of the configuration for session.Bounds, where 0 is the
// default and not none.
func orNone(n int64) int {
	if n == 0 {
		return -1
	}
	return int(n)
}

func (d *daemon) mode() string {
	switch {
	case d.draining.Load():
		return "draining"
	case d.safe:
		return "safe"
	}
	return "normal"
}

func (d *daemon) confinement() hub.Confinement {
	var out hub.Confinement
	if r := d.conf.Load(); r != nil {
		out.Enforced = r.Enforced
		for _, c := range r.Controls {
			out.Controls = append(out.Controls, hub.ConfinedControl(c))
		}
	}
	return out
}

// warnings are faults and weak settings, for status.
func (d *daemon) warnings() []string {
	out := []string{}
	if err := d.refuseCalls(); err != nil {
		out = append(out, err.Error())
	}
	if !d.confinement().Enforced {
		out = append(out, "palyrad does not confine itself: see confinement")
	}
	if err := d.core.kernel.Uncertified(tier.C); err != nil {
		out = append(out, "no call runs at tier C: the sandbox certificate: "+err.Error())
	}
	if s := d.waiting.Load(); s != nil {
		out = append(out, *s)
	}
	return out
}

func (d *daemon) settings() []hub.Setting {
	docs := make(map[string]string)
	for _, k := range config.Keys() {
		docs[k.Name] = k.Doc
	}
	var out []hub.Setting
	for _, v := range d.cfg.Load().Values() {
		source := v.Source
		if source == "env" {
			source = "environment"
		}
		out = append(out, hub.Setting{Key: v.Key, Value: v.Value, Source: source, Doc: docs[v.Key]})
	}
	return out
}

// tools lists those that agents are offered: the tools for memory only where a vault seals it.
func tools(t *tool.Table, remembers bool) []hub.Tool {
	var out []hub.Tool
	for _, i := range t.List() {
		if row, ok := builtin.Find(i.Name); ok && (row.Vault || row.Access.Layered() || row.Remembers && !remembers) {
			continue // the vault and layers have operations of their own
		}
		limits, err := json.Marshal(i.Limits)
		if err != nil {
			panic("palyrad: internal error: " + err.Error())
		}
		out = append(out, hub.Tool{Name: i.Name, Description: i.Description, InputSchema: i.InputSchema, Capabilities: i.Capabilities,
			Tier: i.Tier.String(), Sensitive: i.Sensitive, Limits: limits, Staged: i.Staged})
	}
	return out
}

// drain waits for the runs at work until ctx is done, and then ends them. It reports
// whether it had to.
func (c *core) drain(ctx context.Context) (cut bool) {
	if err := c.local.Close(ctx); err != nil {
		c.log.Warn("drain", "error", err.Error(), "reason", fault.ReasonOf(err))
	}
	return ctx.Err() != nil
}

// reload reads the policies again. Grants under other policies end.
func (c *core) reload() error {
	err := c.kernel.Reload()
	if err == nil {
		c.local.PoliciesChanged()
	}
	return err
}

// paths returns those of the workspaces.
func paths(cfg *config.Config) map[string]string {
	m := make(map[string]string)
	for name, w := range cfg.Workspaces {
		m[name] = w.Path
	}
	return m
}
