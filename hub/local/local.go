// Package local is the hub of this process: [hub.Hub] over a kernel, a store,
// runs, and the registry of members and tokens.
//
//	h, err := local.Open(ctx, local.Config{Kernel: k, Store: st, Profile: "single-vm", …})
//	c, err := h.Authenticate(ctx, hub.Credential{PeerUID: &uid, Surface: "unix"})
//	run, err := hub.Call.Do(ctx, h, c, hub.NewCall{Tool: "palyra.echo", Input: input})
//
// # Contract
//
// Do checks the permission that the operation names before it does anything; a test tries
// each operation without it. Beyond that a principal's things are seen by that principal
// and by callers who manage members. permission.go says who else sees a request for
// approval, a standing grant and the policies behind a decision, and what the rest are
// told.
//
// Open resolves what an earlier process left (palyra/hub/run), and makes the daemon's own
// user and root owners if there is no member yet. If the store lacks a change of members or
// tokens that the journal has, Open returns fault.Integrity "rolled_back". An
// emergency stop with DenyNew outlives the process, even if the disk is full. The journal
// has an administrative act before the caller is told of it. A stop takes effect first, is
// logged then, and answers within seconds, whatever requests hold (brake.go).
//
// # What it does not protect against
//
// Code that can make Callers; see palyra/hub. And root: it is an owner only by default, and
// can be removed, but still reads the keys.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"palyra/authz/access"
	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/hub"
	"palyra/hub/agent"
	"palyra/hub/gateway"
	"palyra/hub/model"
	"palyra/hub/run"
	"palyra/hub/session"
	"palyra/hub/store"
	"palyra/internal/budget"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/isolate/probe"
	"palyra/kernel"
)

// Config says what to open a Hub over.
type Config struct {
	Kernel *kernel.Kernel
	Store  *store.Store
	// Tools lists the tools. Default: none.
	Tools func() []hub.Tool
	// Workspaces are the paths of the workspaces, by name. Default: none.
	Workspaces map[string]string
	// Gateway has the MCP servers. Default: there are none.
	Gateway *gateway.Gateway
	// Models are the language models that the kernel's table of tools has. Default: there are none.
	Models *model.Models
	// Scan says how what an agent's model is told is looked at first.
	Scan agent.Scan
	// Agent bounds turns of models: tokens, and cost in the unit of the models' prices. Default: no
	// bound.
	Agent Agent
	// Instructions has agents' runs begin by reading the instructions of their workspace.
	Instructions bool

	Bounds session.Bounds // on runs
	Budget store.Budget   // of runs; see run.Config
	// Background bounds runs in the background. Processes, if not nil, are those that the kernel's
	// table of tools has.
	Background run.Background
	Processes  *Processes
	Readers    int // of tapes; see run.Config
	// Sessions bounds the open sessions of one principal. Default 256.
	Sessions int
	// Layers bounds the layers of staged workspaces.
	Layers Layers
	// JournalEach bounds what one principal adds to journal and store in a day, in
	// bytes; owners are not bound. 0: no bound.
	JournalEach int64
	// TokensEach bounds the tokens of one principal, and TokenMaxAge the life of a new
	// one; see access.Config.
	TokensEach  int
	TokenMaxAge time.Duration
	// Hold says that the daemon is in safe mode: the hub takes no runs while this process
	// lives, and leaves accepted ones for the next process.
	Hold bool
	// Notify says where the hub tells that questions wait; see [Hub.Notify]. Default: nowhere.
	Notify Notify
	// AllowSelf lets the requester of a call approve it: one credential is then enough for
	// a sensitive call. Status warns of it.
	AllowSelf bool
	// Features are those that this installation has turned off, for all callers. The Open
	// that brings a change journals it.
	Features access.Features

	// Pairing says where palyrad listens for devices that pair, "" for nowhere. Default: nowhere.
	Pairing func() string
	// Console says where palyrad shows the console, "" for nowhere: "http://localhost:7142". Default:
	// nowhere.
	Console func() string

	// Memory is what bounds what one principal has remembered, for GetMemory.
	Memory store.MemoryBounds
	// Embeddings is the model of Models whose vectors memory compares by. Default: none.
	Embeddings string

	// For Status, Config and Doctor. Nil ones aren't reported.
	Version     string
	Profile     string
	PolicyDir   string // where the kernel's policies come from; "" is the built-in set
	Pool        hub.Pool
	Mode        func() string          // "normal", "safe", "draining"; default "normal"
	Confinement func() hub.Confinement // of this process, as it was observed
	Warnings    func() []string
	Settings    func() []hub.Setting
	// Probe finds out what the host can enforce. A confined daemon can't start the probe's
	// helper, so it hands on an earlier report.
	Probe func(ctx context.Context) (*probe.Report, error)

	// Examine examines everything else, for Doctor. Default: nothing.
	Examine func() []hub.Finding

	Log *slog.Logger // default: discarded
	// Clock is the host's. Tokens, standing grants and retention end by it. Default: the
	// store's.
	Clock *clock.Clock

	// TestOnlyStep is called at the named steps of run, approval and stop.
	TestOnlyStep func(name string)
}

// Hub is the hub of this process. It is safe for concurrent use.
type Hub struct {
	cfg     Config
	k       *kernel.Kernel
	st      *store.Store
	access  *access.Registry
	runs    *run.Engine
	agent   *agent.Agents // nil: there are no models
	started time.Time

	table hub.Table // immutable

	refused refusals
	noise   noise
	written *budget.Allowance // journal and store, by principal
	pools   *pools
	works   works
	decided *decidedIndex
	layers  *layers
	brake   *brake
	devices *devices
	offer   *offer

	pairings *pairings
	doors    doors
	notices  *notices
	passkeys *passkeys
	embedder embedder

	opened chan struct{} // closed by Open: runs that it starts again may begin others from then on

	retaining sync.Mutex // held through Retain
	archiving sync.Mutex // held through keepSet

	publishing chan struct{} // full through JournalCheckpoint, which may wait for another process
	published  time.Time     // when the journal's tiles were last written; guarded by publishing

	mu        sync.Mutex
	retention hub.Retention // guarded by mu
	notified  error         // why the last notification failed; guarded by mu
	noted     uint64        // changes of written that are in the store; guarded by mu
	// probed is the newest examination of the host, nil before the first; guarded by mu.
	probed   *probe.Report
	probedAt time.Time // guarded by mu
}

var _ hub.Hub = (*Hub)(nil)

// tokenKey is the file in the state directory that keys the hashes of tokens.
const tokenKey = "keys/access-token.key"

// Open opens the registry, resolves the leftovers of an earlier process, and starts the
// accepted runs.
func Open(ctx context.Context, cfg Config) (_ *Hub, err error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Sessions <= 0 {
		cfg.Sessions = 256
	}
	if cfg.Mode == nil {
		cfg.Mode = func() string { return "normal" }
	}
	if cfg.Pairing == nil {
		cfg.Pairing = func() string { return "" }
	}
	if cfg.Console == nil {
		cfg.Console = func() string { return "" }
	}
	if cfg.TestOnlyStep == nil {
		cfg.TestOnlyStep = func(string) {}
	}
	if cfg.Clock == nil {
		cfg.Clock = cfg.Store.Clock()
	}
	h := &Hub{cfg: cfg, k: cfg.Kernel, st: cfg.Store, started: time.Now().UTC(), pools: newPools(), opened: make(chan struct{}), decided: newDecidedIndex(), publishing: make(chan struct{}, 1),
		written: budget.NewAllowance(budget.Rate{Name: "journal", Each: cfg.JournalEach, Period: 24 * time.Hour})}
	h.layers, h.notices = newLayers(h), newNotices(h)
	h.devices, h.offer, h.passkeys = newDevices(), newOffer(), newPasskeys()
	if err := h.layers.load(ctx); err != nil {
		return nil, err
	}
	h.table = hub.NewTable(slices.Concat(h.runOperations(), h.layerOperations(), h.serverOperations(), h.instructionOperations(), h.approvalOperations(), h.policyOperations(), h.decisionOperations(),
		h.journalOperations(), h.adminOperations(), h.deviceOperations(), h.pairingOperations(), h.stopOperations(), h.keyOperations(), h.witnessOperations(), h.authorityOperations(), h.vaultOperations(), h.memoryOperations())...)
	if h.pairings, err = newPairings(h); err != nil {
		return nil, err
	}
	h.k.OnLogged(func(principal string, bytes int) {
		quota{h}.Spend(principal, int64(bytes))
		h.notices.note(hub.TopicJournal)
	})
	h.st.OnWritten(quota{h}.Spend)
	h.st.OnChanged(h.notices.changed)
	key, err := access.OpenKey(filepath.Join(cfg.Kernel.StateDir(), filepath.FromSlash(tokenKey)))
	if err != nil {
		return nil, err
	}
	floor, err := h.accessFloor(ctx)
	if err != nil {
		return nil, err
	}
	if h.access, err = access.Open(ctx, access.Config{Storage: cfg.Store.Access(), Key: key, Record: h.recordAccess, Floor: floor, Clock: cfg.Clock, Each: cfg.TokensEach, Longest: cfg.TokenMaxAge}); err != nil {
		return nil, err
	}
	if err := h.bootstrap(ctx); err != nil {
		return nil, err
	}
	if err := h.loadDevices(ctx); err != nil {
		return nil, err
	}
	inStore, err := h.readDeny(ctx)
	if err != nil {
		return nil, err
	}
	if h.brake, err = openBrake(cfg.Kernel.StateDir(), cfg.Log); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			h.brake.close()
		}
	}()
	denied := inStore || h.brake.denies()
	if cfg.Gateway != nil {
		cfg.Gateway.Begin(h.startServer, h.awaitServer)
	}
	h.runs, err = run.Open(ctx, run.Config{
		Store: cfg.Store, Gate: cfg.Kernel, WhoIs: h.authority, Quota: quota{h}, Layers: h.layers, Servers: attaching{h}, Agents: h.agents(), Meter: h.meter(), Spending: h.spending(), Over: h.over, HoldsSecret: h.holdsSecret, Memory: cfg.Kernel.Budgets().Sealed, Bounds: cfg.Bounds, Budget: cfg.Budget, Background: cfg.Background, Readers: cfg.Readers,
		Approvals: approval.HubOptions{AllowSelf: cfg.AllowSelf, Judge: h.judge, Record: h.recordApproval, Quota: h.MayAdd, Verify: h.verifyYes, Clock: cfg.Clock}, Hold: denied, Park: cfg.Hold, Log: cfg.Log, TestOnlyStep: cfg.TestOnlyStep,
	})
	if err != nil {
		return nil, err
	}
	if cfg.Processes != nil {
		cfg.Processes.use(h)
	}
	h.brake.row, h.brake.allow = h.writeDeny, func(on bool) { h.runs.DenyNew(!on) }
	h.brake.record = h.k.Record
	h.brake.start(inStore)
	h.archive()
	if err := h.noteFeatures(ctx); err != nil {
		return nil, errors.Join(err, h.runs.Close(ctx))
	}
	if err := h.noteJournal(ctx); err != nil {
		// The disk may be full: the next search then begins where this one did.
		h.cfg.Log.Warn("note the size of the journal", "error", err)
	}
	close(h.opened)
	return h, nil
}

// Close takes no new runs, waits for those at work until ctx is done, and ends
// them then. It closes neither kernel nor store.
func (h *Hub) Close(ctx context.Context) error {
	err := errors.Join(h.pairings.close(context.WithoutCancel(ctx)), h.runs.Close(ctx), h.Flush(context.WithoutCancel(ctx)))
	h.brake.close()
	return err
}

// Flush makes the last use of tokens and the progress of the journal durable, which need
// not be durable at once. It also forgets tokens that ended long ago. Call it now and then.
func (h *Hub) Flush(ctx context.Context) error {
	return errors.Join(h.access.Flush(ctx), h.access.Forget(ctx), h.flushDevices(ctx), h.noteJournal(ctx), h.pairings.sweep(ctx))
}

// bootstrap makes the user of this process, and root, the first owners.
func (h *Hub) bootstrap(ctx context.Context) error {
	if h.access.Generation() != 0 {
		return nil
	}
	self := self()
	if err := h.access.Bootstrap(ctx, self); err != nil {
		return err
	}
	if root := peer(0); root != self {
		_, err := h.access.SetMember(ctx, access.Holder{Principal: self}, root, access.Owner, 0)
		return err
	}
	return nil
}

// recordAccess puts a change of members or tokens into the journal.
func (h *Hub) recordAccess(ctx context.Context, c access.Change) (uint64, error) {
	detail := map[string]string{generation: strconv.FormatUint(c.Generation, 10)}
	for name, text := range c.Detail {
		detail[name] = text
	}
	return h.k.Record(ctx, kernel.Act{Act: c.Act, Principal: c.Actor, Subject: c.Subject, Detail: detail})
}

// self returns the principal of this process.
func self() string { return peer(uint32(os.Geteuid())) }

// peer returns the principal of a user of this machine.
func peer(uid uint32) string { return "uid:" + strconv.FormatUint(uint64(uid), 10) }

// Authenticate says who is calling, by a credential. It returns fault.Denied
// "unauthenticated" without a reason that would help to guess.
func (h *Hub) Authenticate(_ context.Context, c hub.Credential) (hub.Caller, error) {
	out := hub.Caller{Surface: c.Surface, Device: c.Device, Address: c.Address}
	switch {
	case c.PeerUID != nil && c.Token == "" && len(c.Chain) == 0:
		out.User = peer(*c.PeerUID)
	case len(c.Chain) != 0 && c.Token == "" && c.PeerUID == nil:
		if err := h.authenticateDevice(c.Chain, &out); err != nil {
			if before, ok := h.noise.take("", time.Now()); ok {
				h.cfg.Log.Info("certificate refused", "error", err, "surface", c.Surface, "address", c.Address, "left_out", before)
			}
			return hub.Caller{}, unauthenticated()
		}
	case c.Token != "" && c.PeerUID == nil && len(c.Chain) == 0:
		holder, err := h.access.Authenticate(c.Token)
		if err != nil { // don't tell the caller why it is no good
			if before, ok := h.noise.take("", time.Now()); ok {
				h.cfg.Log.Info("token refused", "reason", fault.ReasonOf(err), "surface", c.Surface, "address", c.Address, "left_out", before)
			}
			return hub.Caller{}, unauthenticated()
		}
		// A browser gives its cookie to each port of the host: what is in it is good for nothing but
		// the console, which looks at whose connection it is.
		if t, ok := h.access.TokenOf(holder.Token); !ok || (t.Name == hub.ConsoleToken) != (c.Surface == hub.SurfaceConsole) {
			return hub.Caller{}, unauthenticated()
		}
		out.User, out.Token, out.Scopes = holder.Principal, holder.Token, scopesOf(h.access.Permissions(holder))
		if c.Surface == surfaceUnix {
			out.Surface = surfaceToken
		}
	default:
		return hub.Caller{}, unauthenticated()
	}
	out.Role, out.Policies = string(h.access.Role(out.User)), h.k.PolicySet().Digest().String()
	out.ReadsPolicy = h.seesPolicy(out)
	return out, nil
}

// RoleOf returns the role of a user of this machine, "" for none. It waits for nothing: the
// server calls it for each connection to the socket.
func (h *Hub) RoleOf(uid uint32) string { return string(h.access.Role(peer(uid))) }

func unauthenticated() error {
	return fault.New(fault.Denied, "unauthenticated", "authenticate", nil).WithHint("a valid token is needed, or a connection through the unix socket")
}

// noise bounds the lines of the log that refused requests cause. Each member has its own
// bound, and all others share one, so that no member's lines are hidden by another's.
type noise struct {
	mu     sync.Mutex
	second int64          // guarded by mu
	lines  map[string]int // in that second, by source; guarded by mu
	left   map[string]int // left out since the last one; guarded by mu
}

// noiseLines bounds such lines of one source in a second.
const noiseLines = 5

// take reports whether there may be one more of a source now, and how many were left
// out before it.
func (n *noise) take(source string, now time.Time) (before int, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s := now.Unix(); s != n.second || n.lines == nil {
		n.second, n.lines = s, make(map[string]int)
	}
	if n.left == nil {
		n.left = make(map[string]int)
	}
	if n.lines[source]++; n.lines[source] > noiseLines {
		n.left[source]++
		return 0, false
	}
	before = n.left[source]
	delete(n.left, source)
	return before, true
}

// entity returns a user as policy sees them, with their present role.
func (h *Hub) entity(user string) (policy.Entity, error) {
	role := h.access.Role(user)
	if role == "" {
		return policy.Entity{}, fault.New(fault.Denied, "not_a_member", fmt.Sprintf("find role of %.80q", user), nil).
			WithHint("an owner can make it a member: palyra members set")
	}
	return policy.Entity{Type: policy.TypeUser, ID: user, Roles: []string{string(role)}}, nil
}

// authority returns a run's authority: that of the caller who began it, and of their token,
// as long as they may begin runs. Without a surface it's asked for a standing grant, which
// ends with its policies.
func (h *Hub) authority(c hub.Caller) (policy.Entity, error) {
	if c.User == daemonsOwn {
		return own(), nil
	}
	stands, err := h.access.Stands(holder(c), access.RunStart)
	if err != nil {
		return policy.Entity{}, err
	}
	if c.Surface != "" {
		use := h.useRequest(c, access.RunStart)
		if c.Token != "" { // which may have expired since
			use.Principal.Scopes = scopesOf(stands)
		}
		if d := h.k.PolicySet().Decide(use); d.Effect != policy.Allow {
			return policy.Entity{}, fault.New(fault.Denied, d.Reason, "check permission", fmt.Errorf("the policies %q take %s away", d.Policies, access.RunStart)).
				WithHint("an owner can change the policies")
		}
	}
	return h.entity(c.User)
}

// privileged reports whether a caller is an owner of the installation whom the kernel has
// named. Budgets have a reserve for them, and their stop is beyond policy.
func (h *Hub) privileged(c hub.Caller) bool {
	return c.Token == "" && c.Surface == surfaceUnix && h.access.Role(c.User) == access.Owner
}

// payer returns the owner of the budget for a request to the hub itself.
func (h *Hub) payer(c hub.Caller) budget.Owner {
	return budget.Owner{Name: c.User, Reserve: h.privileged(c)}
}

// Pools returns the budgets of kernel and hub, for metrics.
func (h *Hub) Pools() []budget.Account {
	return append(append(h.k.Budgets().Pools(), h.pools.all()...), h.runs.BackgroundPlaces(), h.notices.places)
}

// Turns returns what turns of models took that ended since the hub was opened, by model, for
// metrics.
func (h *Hub) Turns() map[string]store.Usage { return h.runs.Turns() }

// caller returns a Caller as the kernel knows it, for decisions without a call.
func (h *Hub) caller(c hub.Caller) (kernel.Caller, error) {
	e, err := h.entity(c.User)
	return kernel.Caller{Principal: e, Device: c.Device, Channel: c.Surface, Reserve: h.privileged(c)}, err
}

// denySetting is the setting in which an emergency stop outlives the process.
const denySetting = "hub.deny_new"

func (h *Hub) readDeny(ctx context.Context) (on bool, err error) {
	s, err := store.View(ctx, h.st, func(tx *store.Tx) (*store.Setting, error) { return tx.Setting(denySetting) })
	if fault.KindOf(err) == fault.NotFound {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if err := json.Unmarshal(s.Value, &on); err != nil {
		return false, fault.New(fault.Integrity, "store_corrupt", "read setting "+denySetting, err)
	}
	return on, nil
}

func (h *Hub) writeDeny(ctx context.Context, on bool) error {
	return h.st.Update(ctx, func(tx *store.Tx) error {
		s, err := tx.Setting(denySetting)
		if fault.KindOf(err) == fault.NotFound {
			s, err = &store.Setting{Key: denySetting}, nil
		}
		if err != nil {
			return err
		}
		s.Value = strconv.AppendBool(nil, on)
		return tx.PutSetting(s)
	})
}
