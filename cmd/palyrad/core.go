package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"palyra/authz/policy"
	"palyra/cmd/internal/installed"
	"palyra/crypt/seal"
	"palyra/crypt/vault"
	"palyra/hub/config"
	"palyra/hub/gateway"
	"palyra/hub/local"
	"palyra/hub/memory"
	"palyra/hub/model"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
	"palyra/kernel"
	"palyra/kernel/tool"
	"palyra/transport/console"
	"palyra/transport/httpapi"
	"palyra/transport/httpapi/keystore"
	"palyra/transport/mcp"
	"palyra/transport/openai"
)

// core has the parts that palyrad serves: the gate, the working state, the hub over both,
// and the HTTP API over the hub.
type core struct {
	log      *slog.Logger
	kernel   *kernel.Kernel
	store    *store.Store
	local    *local.Hub
	hub      httpapi.Hub // local behind a guard
	api      *httpapi.Server
	health   *httpapi.Server
	toolPath string
	// fetchPath is beside it, "" if it can't be used.
	fetchPath string
	// processes are the runs of local in the background, for the table of tools.
	processes *local.Processes
	memory    *budget.Mark
	meter     meter
	owner     atomic.Pointer[func(principal string) bool] // nil until the hub is open

	closers []func() error
}

// openCore opens the core in its order: the kernel recovers the journal, the
// store its database, the hub the runs that a crash left.
func (d *daemon) openCore(ctx context.Context, cfg *config.Config) (_ *core, err error) {
	c := &core{log: d.log, processes: local.NewProcesses()}
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if cfg.Tools.Program != "" {
		c.toolPath, err = installed.Check(cfg.Tools.Program)
	} else {
		c.toolPath, err = d.helper("palyra-tool")
	}
	if err != nil {
		return nil, err
	}
	if c.fetchPath, err = installed.Check(filepath.Join(filepath.Dir(c.toolPath), "palyra-fetch")); err != nil {
		d.log.Warn("there is no http.fetch, no MCP server over HTTP, and no model is asked: their program can't be used", "error", err)
	}
	if c.store, err = store.Open(filepath.Join(cfg.State.Dir, "store"), store.Options{
		ArtifactQuota: int64(cfg.State.ArtifactQuota), ArtifactShare: c.share(cfg), TestOnlyStep: d.testOnlyStep}); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, c.store.Close)
	tc := toolConfig(cfg, c)
	opens, err := c.openVault(d, cfg)
	if err != nil {
		return nil, err
	}
	if opens != nil {
		tc.Vault = &tool.Vault{Scrub: d.secrets, Each: int(cfg.Limits.SecretsEach), Spare: vault.MaxSecrets / 8, Open: func(ctx context.Context) (*vault.Vault, error) { return opens(ctx, c.kernel.VaultLedger()) }}
	}
	remembers := memory.Config{Store: c.store, Bounds: store.MemoryBounds{Items: cfg.Memory.ItemsEach, Bytes: int64(cfg.Memory.BytesEach)}, Expire: cfg.Memory.Expire.Std(), Index: int64(cfg.Memory.Index),
		Record: func(ctx context.Context, a kernel.Act) (uint64, error) { return c.kernel.Record(ctx, a) }}
	if opens != nil {
		remembers.Key = func(ctx context.Context, create bool) (k *seal.Key, err error) {
			err = opens.use(ctx, c.kernel.VaultLedger(), func(v *vault.Vault) error {
				k, err = v.OwnKey(ctx, memory.OwnKey, create)
				return err
			})
			return k, err
		}
	}
	keeps := memory.New(remembers)
	c.closers = append(c.closers, keeps.Close)
	tc.Memory = keeps
	table := tool.New(tc)
	servers := gateway.New(gateway.Config{Store: c.store, Tools: table, Workspaces: tc.Workspaces, Fetch: c.fetchPath, Version: version})
	budgets := kernel.NewBudgets(int64(cfg.Limits.Sealed), int64(cfg.Limits.SealedEach))
	models, err := model.New(model.Config{Tools: servers, Models: cfg.Models, Default: cfg.Agent.Model, Fetch: c.fetchPath,
		Workspaces: slices.Sorted(maps.Keys(cfg.Workspaces)), Egress: d.egress != nil, Memory: budgets.Sealed})
	if err != nil {
		return nil, err
	}
	c.memory = budget.NewMark(limitHeap(budget.Memory()))
	kc := kernel.Config{
		StateDir: cfg.State.Dir, PolicyDir: cfg.Policy.Dir, Floor: cfg.WantsCertificate(), CellPath: d.cellPath, Starter: d.starter, Warm: tier.C,
		Pool:    cell.Pool{Cells: int(cfg.Pool.Cells), Networks: int(cfg.Pool.Networks), MaxAge: cfg.Pool.MaxAge.Std()},
		Budgets: budgets,
		Tools:   models, CacheQuota: int64(cfg.State.CachesEach), ApprovalTimeout: cfg.Approvals.Timeout.Std(), Observe: c.meter.observe, Scrub: d.secrets, TestOnlyStep: d.testOnlyStep,
	}
	if opens != nil {
		kc.Vault = opens.use
	}
	if d.egress != nil {
		kc.Egress = d.egress
	}
	if d.safe {
		// A policy that does not load may be why palyrad is here; no call is made anyway.
		kc.PolicyDir, kc.Pool = "", cell.Pool{}
	}
	if kc.Unlock, err = unlockOf(cfg.Keys.Identity, lookup(d.environ)); err != nil {
		return nil, err
	}
	if c.kernel, err = kernel.Open(ctx, kc); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, c.kernel.Close)
	if c.kernel.FirstPlain() && !cfg.Keys.Plain {
		d.log.Warn("the signing keys are plain files, which this first start accepts", "state", cfg.State.Dir, "hint", "palyra keys seal, or keys.plain = true")
	}
	if c.local, err = d.openHub(ctx, cfg, c, table, servers, models, opens != nil); err != nil {
		return nil, err
	}
	c.owner.Store(new(c.local.Owner))
	// This is for ends without a drain: after one it has nothing left to do.
	c.closers = append(c.closers, func() error {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		return c.local.Close(ctx)
	})
	c.hub = &guard{Hub: c.local, refuse: d.refuseCalls, whenSafe: d.whenSafe}
	return c, c.serveOver(d, cfg)
}

func toolConfig(cfg *config.Config, c *core) tool.Config {
	t := tool.Config{Program: c.toolPath, Fetch: c.fetchPath, Workspaces: make(map[string]tool.Workspace), Artifacts: shelf{c.store}, Processes: c.processes,
		State: cfg.State.Dir, ChangesBeside: true}
	for name, w := range cfg.Workspaces {
		t.Workspaces[name] = tool.Workspace{Path: w.Path, ReadOnly: w.ReadOnly, Staged: w.Staged, Network: w.Network, Declared: declared(w),
			Limits: isolate.Limits{Wall: w.Timeout.Std(), CPU: w.CPU.Std(), Memory: int64(w.Memory), PIDs: w.PIDs}}
	}
	return t
}

// declared returns what the operator declares for the calls in a workspace, nil for nothing.
func declared(w config.Workspace) *kernel.Declared {
	if !w.OwnPath && len(w.Mounts)+len(w.Caches)+len(w.Programs)+len(w.Env) == 0 {
		return nil
	}
	return &kernel.Declared{OwnPath: w.OwnPath, Mounts: w.Mounts, Caches: w.Caches, Programs: w.Programs, Env: w.Env}
}

// share returns how many bytes of artifacts a principal may hold: an owner may hold all.
func (c *core) share(cfg *config.Config) func(principal string) int64 {
	return func(principal string) int64 {
		if owner := c.owner.Load(); owner != nil && (*owner)(principal) {
			return int64(cfg.State.ArtifactQuota)
		}
		return int64(cfg.State.ArtifactEach)
	}
}

// shelf gives tools the content of the artifacts that the caller's own runs made.
type shelf struct{ store *store.Store }

// Open implements tool.Artifacts.
func (s shelf) Open(ctx context.Context, who policy.Entity, d canon.Digest) (io.ReadCloser, int64, error) {
	owns, err := store.View(ctx, s.store, func(tx *store.Tx) (bool, error) { return tx.OwnsArtifact(d, who.ID) })
	if err != nil {
		return nil, 0, err
	}
	if !owns {
		return nil, 0, fault.New(fault.NotFound, "not_found", "look up artifact", fmt.Errorf("%q does not exist", d.String()))
	}
	r, a, err := s.store.OpenArtifact(ctx, d)
	if err != nil {
		return nil, 0, err
	}
	return r, a.Size, nil
}

// serveOver makes the servers. A listener without authentication gets one that
// has nothing but health.
func (c *core) serveOver(d *daemon, cfg *config.Config) (err error) {
	rate := float64(cfg.Limits.RequestsPerSecond)
	if rate == 0 {
		rate = -1 // httpapi's word for no bound
	}
	hc := httpapi.Config{
		Hub: c.hub, Keys: keystore.New(c.store, c.local.MayAdd), Log: d.log, Ready: func(context.Context) error { return d.refuseCalls() }, Metrics: d.metrics, Check: c.local.MayFollow, Denied: c.local.Remember,
		Role: c.local.RoleOf, Memory: c.memory,
		Limits: httpapi.Limits{Body: int64(cfg.Limits.Body), Rate: rate, Streams: max(1, int(cfg.Limits.SSEReaders)),
			StreamsPerCaller: max(1, int(cfg.Limits.SSEReadersEach)), Drain: drainHTTP, Files: connectionFiles(cfg)},
	}
	if cfg.Features.MCP {
		hc.MCP = mcp.NewHandler(version)
	}
	if cfg.Features.OpenAI {
		hc.OpenAI = openai.NewHandler()
	}
	if cfg.Features.Console && cfg.Listen.HTTP != config.HTTPOff {
		if hc.Owners, err = httpapi.OpenOwners(d.netlink...); err != nil { // as under a unit with a network of its own, without palyrad-diag.socket
			d.log.Info("no console: it can't tell whose connections on loopback are", "error", err.Error())
		} else if hc.Console, err = console.New(console.Config{Door: c.local, Notifier: c.local}); err != nil {
			return err
		}
		d.console.Store(hc.Console != nil)
	}
	if c.api, err = httpapi.New(hc); err != nil {
		return err
	}
	hc.HealthOnly, hc.MCP, hc.OpenAI, hc.Console = true, nil, nil, nil
	c.health, err = httpapi.New(hc)
	return err
}

// connectionFiles returns how many descriptors connections may take: the process's limit
// without those of store, journal, cells and sealed operands.
func connectionFiles(cfg *config.Config) int {
	return max(minFiles, maxFiles()-ownFiles-callFiles*places(cfg)-int(kernel.OperandFiles(int64(maxFiles()))))
}

// The descriptors that this process needs for itself and for each call at work, and the
// least for connections.
const (
	ownFiles  = 128
	callFiles = 24
	minFiles  = 64
)

// drainHTTP bounds the end of requests after the calls that they waited for have ended.
const drainHTTP = 3 * time.Second

// metrics writes palyrad's own metrics.
func (d *daemon) metrics(w io.Writer) {
	gauge := func(name, help string, v any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s gauge\n%s %v\n", name, help, name, name, v)
	}
	gauge("palyra_safe_mode", "1 in safe mode.", bit(d.safe))
	gauge("palyra_draining", "1 while palyrad is about to end.", bit(d.draining.Load()))
	confined := d.conf.Load()
	gauge("palyra_confined", "1 if every control on palyrad itself is in force.", bit(confined != nil && confined.Enforced))
	if d.core != nil && d.core.local != nil {
		writePools(w, append(append(d.core.local.Pools(), d.core.api.Pools()...), d.secrets.Pool()))
	}
	if free, err := freeBytes(d.cfg.Load().State.Dir); err == nil {
		gauge("palyra_state_free_bytes", "Free space for journal and working state.", free)
	}
	if said, made := d.core.kernel.Certified(tier.C); !made.IsZero() {
		gauge("palyra_certificate_age_seconds", "Age of the sandbox certificate of this boot; missing if there is none.", int64(time.Since(made).Seconds()))
		gauge("palyra_certificate_proven", "1 if it proves every claim about tier C.", bit(said == policy.CertificateProven))
	}
	d.core.meter.write(w)
	if d.core.local != nil {
		writeTurns(w, slices.Collect(maps.Keys(d.cfg.Load().Models)), d.core.local.Turns())
	}
}

// writeTurns writes what turns of models took. Each declared model is there from the beginning.
func writeTurns(w io.Writer, declared []string, took map[string]store.Usage) {
	for _, name := range declared {
		took[name] = took[name].And(store.Usage{})
	}
	family := func(name, help string, of func(store.Usage) any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s counter\n", name, help, name)
		for _, model := range slices.Sorted(maps.Keys(took)) {
			fmt.Fprintf(w, "%s{model=%q} %v\n", name, model, of(took[model]))
		}
	}
	family("palyra_model_turns_total", "Turns of models that ended.", func(u store.Usage) any { return u.Turns })
	family("palyra_model_input_tokens_total", "Tokens of their questions.", func(u store.Usage) any { return u.Input })
	family("palyra_model_cached_tokens_total", "Of these, those that the provider had.", func(u store.Usage) any { return u.Cached })
	family("palyra_model_output_tokens_total", "Tokens of their answers.", func(u store.Usage) any { return u.Output })
	family("palyra_model_cost_total", "What they cost, in the unit of price_input.", func(u store.Usage) any { return float64(u.Cost) / 1e6 })
}

// writePools writes the amount of each counted resource that requests hold.
func writePools(w io.Writer, pools []budget.Account) {
	family := func(name, kind, help string, of func(budget.Account) any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
		for _, p := range pools {
			fmt.Fprintf(w, "%s{budget=%q} %v\n", name, p.Limits().Name, of(p))
		}
	}
	family("palyra_budget_held", "gauge", "What requests hold, in the budget's unit.", func(p budget.Account) any { return p.Held() })
	family("palyra_budget_limit", "gauge", "The most that they hold together.", func(p budget.Account) any { return p.Limits().Total })
	family("palyra_budget_limit_per_principal", "gauge", "The most that one principal holds.", func(p budget.Account) any { return p.Limits().Each })
	family("palyra_budget_refused_total", "counter", "Requests that were refused for want of it.", func(p budget.Account) any { return p.Refused() })
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// alive returns nil if kernel and store answer.
func (c *core) alive(ctx context.Context) error {
	answered := make(chan error, 1)
	// It outlives a ctx that ends earlier: the manager then kills the process.
	go func() {
		c.kernel.PolicySet()
		_, err := store.View(ctx, c.store, func(*store.Tx) (struct{}, error) { return struct{}{}, nil })
		answered <- err
	}()
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return fault.New(fault.Timeout, "timeout", "ask kernel and store for a sign of life", errors.New("they did not answer in time"))
	}
}

// policySet returns the digest of the set in force.
func (c *core) policySet() string { return c.kernel.PolicySet().Digest().String() }

// close closes everything open, the last first.
func (c *core) close() {
	for i := len(c.closers) - 1; i >= 0; i-- {
		if err := c.closers[i](); err != nil {
			c.log.Error("close", "error", err.Error(), "reason", fault.ReasonOf(err))
		}
	}
	c.closers = nil
}
