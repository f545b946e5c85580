// Package kernel is the gate: the one path on which a tool call is decided, approved, run and
// recorded. Read this file first.
//
//	propose → seal → decide → approve → grant → intent → execute → result → receipt
//
// Each step is finished, and durable if it writes to disk, before the next begins.
// [Kernel.CallAs] is the order; one file per step holds the rest:
//
//	proposal.go   the bounds of a proposal, checked without touching a file
//	tools.go      the program that a tool and its input become
//	budgets.go    sealAside: tools.go and seal.go, within bounds
//	seal.go       everything named is opened once, hashed and pinned (program.go,
//	              loader.go, workspace.go, reach.go, environ.go); the capsule is its
//	              name from here on
//	question.go   the capsule for policy and approver
//	runner.go     palyra-cell, started once and used for many calls
//	output.go     the program's output, counted and bounded
//	secrets.go    secrets of the vault that the program can read
//	egress.go     hosts that the program can reach
//	uses.go       secrets that are put into its requests, and that it can't read
//	exchange.go   a call that asks a program which runs already, and starts none
//	planted.go    the program's leftovers in its workspace
//	record.go     the statements that are signed and logged, and recovery
//	state.go      the state directory
//	observe.go    events for observers of a call
//	reload.go     other policies, while calls run
//	expect.go     cells that are made ahead for announced calls
//	certificate.go this boot's sandbox certificate, for policy, and the error of a denied call
//	explain.go    how a proposal would be decided; plan.go adds how it would be confined
//	replay.go     recorded calls under other policies
//	ledger.go     administrative acts, and the journal for readers
//
// # Contract
//
// Call returns an Outcome with a receipt for a call that was decided: executed, denied, not
// approved, refused, failed, timed out or killed, and outcome_unknown if palyra-cell died after
// it got the call. It returns an error and no Outcome for a call that never came to a decision
// (a malformed proposal, a program that doesn't exist), or whose intent couldn't be recorded:
// neither ran. It returns an error beside the Outcome if the result couldn't be recorded.
// Nothing runs unless its intent is on disk. The next Open or CloseOrphans of any process closes
// an intent without a result as outcome_unknown, once its call is over.
//
// Several processes may open one state directory, each with a Kernel, and make calls at the
// same time. From before its intent until after its result, a call holds a mark in the file
// "live": a lock that the operating system releases when the process dies. An intent without a
// result and without a mark is an orphan.
//
// A Proposal serialises and carries no authority. The surface that makes the call names the
// caller, never the proposal.
//
// # What it does not protect against
//
// The user who owns the state directory, and root: they hold the keys. A program that is
// allowed to run and does what its arguments say. See docs/THREAT_MODEL.md.
package kernel

import (
	"context"
	"errors"
	"reflect"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"palyra/authz"
	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/policy"
	vocabulary "palyra/call"
	"palyra/call/diagnosis"
	"palyra/crypt/journal"
	"palyra/crypt/keyring"
	"palyra/crypt/receipt"
	"palyra/crypt/scrub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/egress/client"
	"palyra/isolate/tier"
)

// Config says how to open a Kernel.
type Config struct {
	// StateDir is an absolute path. The first use creates it 0700 with its keys. It's refused
	// if another user owns it or may look into it.
	StateDir string
	// Unlock opens sealed signing keys: when the directory is opened, and when keys are rotated
	// or sealed. Default: sealed keys are refused.
	Unlock keyring.Unlock
	// PolicyDir holds Cedar files. Default: the built-in set.
	PolicyDir string
	// Floor adds policy.FloorCertificate to them: no call runs at a tier that this boot's
	// sandbox certificate doesn't prove.
	Floor bool
	// CellPath is the palyra-cell binary. Without it every allowed call is refused.
	CellPath string
	// Starter starts palyra-cell for a process that has given up the right to. Default: this
	// process does.
	Starter *cell.Starter
	// Warm is the tier whose palyra-cell Open starts in the background, so that the first call
	// needn't wait for it. Default: none.
	Warm tier.Tier
	// Once announces a single call, or a few, never two at a time: each palyra-cell is ended
	// after one call, while the result is recorded.
	Once bool
	// Pool bounds the cells that each palyra-cell makes ahead of calls. Default: none.
	Pool cell.Pool
	// Tools is the table of tools. Default: process.run with its own argv.
	Tools Tools
	// Vault opens the vault of the state directory for calls that name secrets. Default: there is
	// none, and such calls are refused.
	Vault VaultUser
	// Scrub has the values of the secrets that were given out, by principal; the kernel adds those
	// that programs read. A principal's are removed from all output of its calls. Default: one for a
	// single principal.
	Scrub *scrub.Registry
	// Egress opens the way to hosts, for calls that name some. Default: there is none, and such
	// calls are refused.
	Egress client.Broker
	// Approver is asked about the sensitive calls of Call. Default: no approver, which denies
	// them.
	Approver approval.Approver
	// CacheQuota is the space, in bytes, of one principal's caches from which on its calls that
	// use caches are refused. Default: no bound.
	CacheQuota int64
	// ApprovalTimeout bounds the wait for an answer. Default: approval.DefaultTimeout.
	ApprovalTimeout time.Duration
	// Principal makes the calls of Call, as its surface authenticated it. Default: the user of
	// this process, by number.
	Principal policy.Entity

	// Observe, if not nil, gets each step of every call when it's done, and each entry of the
	// journal (observe.go). A slow observer delays them.
	Observe func(Event)
	// Budgets are charged for calls before they are decided. Default: those of a process that
	// makes its own user's calls.
	Budgets *Budgets

	// JournalWaited, if not nil, gets the time that each entry of the journal waited for its
	// group; see journal.Options.
	JournalWaited func(time.Duration)

	// TestOnlyStep is called at each named step, so that a test can kill the process there:
	// "sealing", "sealed", "decided", "approved", "granted", "intent", "executed", "result" and
	// "receipt", "begun" and "ended" of a tool's Effect, "loaded" in a Reload, and the steps of
	// journal and cell.
	TestOnlyStep func(name string)
	// testOnlyStart replaces palyra-cell.
	testOnlyStart func(ctx context.Context, t tier.Tier, key grant.Key) (runner, error)
}

// Kernel decides, runs and records calls. It is safe for concurrent use.
type Kernel struct {
	cfg   Config
	step  func(string)
	state *state

	certified certificates                                      // see certificate.go
	told      atomic.Pointer[func(principal string, bytes int)] // see OnLogged

	layers     layers     // of calls under way
	tripped    tripped    // see uses.go
	vaultRoots vaultRoots // see vault.go

	calls sync.WaitGroup // one for each call
	dying sync.WaitGroup // one for each lane, for each dismissed one, and for a prepare

	mu     sync.Mutex
	set    *policy.Set         // guarded by mu; swapped, never mutated
	closed bool                // guarded by mu
	lanes  map[tier.Tier]*lane // guarded by mu; nil once closed
	keep   keep                // guarded by mu; see runner.go
}

// Outcome is the end of a decided call. It serialises.
type Outcome struct {
	CallID   string          `json:"call_id"`
	Outcome  string          `json:"outcome"` // one of receipt's outcomes
	Exit     int             `json:"exit"`    // its exit status; see exitStatus
	Error    *Failure        `json:"error"`   // why it didn't run or didn't end by itself; null if it did
	Decision policy.Decision `json:"decision"`
	Approval *approval.View  `json:"approval"` // null: no person was asked
	// Question is policy's question, for policy.Set.Fix; nil if it allowed the call. It holds
	// values of the environment.
	Question *policy.Request `json:"-"`
	Result   *isolate.Result `json:"result"` // null: nothing ran; without evidence: that is unknown

	// Diagnosis says why the program may have failed, and what changes that; null if it didn't,
	// or if that can't be told.
	Diagnosis *diagnosis.Diagnosis `json:"diagnosis"`

	// Planted lists the traps in the workspace after the call; null if the call had none to
	// write to.
	Planted *receipt.Planted `json:"planted"`

	// Layer is the name of the layer with what the program wrote to a staged workspace; absent
	// if it wrote nothing.
	Layer string `json:"layer,omitempty"`

	// Delivered says that the caller's writers took all output that was kept.
	Delivered bool `json:"delivered"`

	CapsuleDigest canon.Digest `json:"capsule_digest"`
	Capsule       []byte       `json:"capsule"`   // canonical JSON; holds the values of the environment
	Receipt       []byte       `json:"receipt"`   // Sigstore bundle, JSON; nil if it could not be recorded
	LogIndex      uint64       `json:"log_index"` // of the result in the journal
	Intent        *uint64      `json:"intent"`    // of the intent; null: no call was about to run
}

// Failure is an error in a form that serialises.
type Failure struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	Hint   string `json:"hint"`
}

func newKernel(cfg Config) *Kernel {
	k := &Kernel{cfg: cfg, step: cfg.TestOnlyStep}
	if k.step == nil {
		k.step = func(string) {}
	}
	if k.cfg.Principal.ID == "" {
		k.cfg.Principal = localUser()
	}
	if k.cfg.Scrub == nil {
		k.cfg.Scrub = scrub.NewOwn()
	}
	if k.cfg.Budgets == nil {
		k.cfg.Budgets = ownBudgets()
	}
	return k
}

// Open opens the state directory, loads the policies, recovers the journal and closes the
// intents that a crash left open.
func Open(ctx context.Context, cfg Config) (_ *Kernel, err error) {
	k := newKernel(cfg)
	k.lanes = make(map[tier.Tier]*lane)
	if cfg.Warm != tier.None {
		k.lane(cfg.Warm)  // starts while the rest is opened: it takes longest,
		runtime.Gosched() // and so goes first
	}
	if k.set, err = loadSet(&cfg); err == nil {
		k.state, err = openState(ctx, cfg.StateDir, journal.Options{Waited: cfg.JournalWaited, TestOnlyStep: k.step}, keyring.Options{Unlock: cfg.Unlock, By: k.Self()})
	}
	if err != nil {
		k.closeLanes()
		return nil, err
	}
	k.state.observe = cfg.Observe
	if err := k.state.closeOrphans(ctx); err != nil {
		return nil, errors.Join(err, k.Close())
	}
	return k, nil
}

// Caller makes a call, as its surface authenticated it. It never comes from the caller's own
// words.
type Caller struct {
	Principal policy.Entity     // without one every call is denied
	Approver  approval.Approver // nil: sensitive calls are denied
	Reserve   bool              // may use the part of budgets that is reserved for the installation's owner
	// Still returns Principal as it is now, or why it may make no more calls. nil: neither
	// changes.
	Still func() (policy.Entity, error)
	// Layer returns the layer for a call of a tool in a workspace of the table, by the
	// workspace's name, or "" if what the call writes goes to the workspace itself. staged says
	// that the table wants a layer; without one the call gets its own. The call begins when
	// Layer returns. nil: the table alone decides.
	Layer func(ctx context.Context, workspace string, staged bool) (layer string, err error)
	// Read returns the label of what the call's session has read by now. It's asked before policy
	// is, and again before the program begins. It waits for nothing. nil: nothing is known to have
	// been read.
	Read func() vocabulary.Inputs
	// Exchange makes the calls of tools that ask a program which runs already. nil: they are
	// refused.
	Exchange Exchanger
	Device   string // for policy: the asking device, and
	Channel  string // the surface that it came by; "" is unknown

	inputs vocabulary.Inputs // of Read; set by read alone
}

// read takes the label of this moment.
func (c *Caller) read() {
	if c.Read != nil {
		c.inputs = c.Read()
	}
}

// still returns nil if the caller may still make calls, and policy would answer its present
// principal, and what its session has read by now, the same.
//
// A call that was decided under a smaller label may run if policy's answer to the larger one is the
// same. What came in since can't have chosen the call: its capsule was sealed before. But it can be
// in the workspace that the call reads, and then the question is policy's.
func (k *Kernel) still(who *Caller, s *sealed, p *Proposal, auth *authz.Authority, effect policy.Effect) error {
	now := *who
	now.read()
	if who.Still != nil {
		var err error
		if now.Principal, err = who.Still(); err != nil {
			return err
		}
	}
	changed := !reflect.DeepEqual(now.Principal, who.Principal)
	if !changed && len(now.inputs) == len(who.inputs) { // a label only grows
		return nil
	}
	if auth.Decide(k.question(&now, s, p)).View().Effect == effect {
		return nil
	}
	if !changed {
		return fault.New(fault.Refused, "policy_changed", "run",
			errors.New("the policies decide otherwise by what its session has read since")).WithHint("propose the call again")
	}
	return fault.New(fault.Denied, "permission_denied", "run",
		errors.New("the policies decide otherwise about who asked, whose role has changed since")).WithHint("propose the call again")
}

// Call puts one proposal through the gate for the configured caller. A done ctx withdraws a
// waiting question and kills a running program; the receipt is written all the same.
func (k *Kernel) Call(ctx context.Context, p Proposal, stdio IO) (*Outcome, error) {
	who := Caller{Principal: k.cfg.Principal}
	if k.cfg.Approver != nil {
		who.Approver = here{k, k.cfg.Principal, k.cfg.Approver}
	}
	return k.CallAs(ctx, who, p, stdio)
}

// CallAs is Call for a caller that a surface has authenticated.
func (k *Kernel) CallAs(ctx context.Context, who Caller, p Proposal, stdio IO) (*Outcome, error) {
	if err := k.enter(); err != nil {
		return nil, err
	}
	defer k.calls.Done()

	// Seal: from here on the call is the capsule, and no name is looked up again.
	s, made, err := k.sealAside(ctx, &who, p, stdio.Stdin)
	if err != nil {
		return nil, err
	}
	p = *made
	c := newCall(k, &who, s, &p, stdio.Observe)
	defer c.close()
	defer c.over()
	k.step("sealed")
	c.observe(Event{Step: StepSealed, Program: c.program(&p)})

	// Decide. An answer that isn't clearly a yes or a question is a no.
	lane := k.laneFor(s)
	set := k.PolicySet()
	who.read()
	auth := authz.New(set, lane.key)
	question := k.question(&who, s, &p)
	d := auth.Decide(question)
	c.decided(question, d.View())
	k.step("decided")
	decision := d.View()
	c.observe(Event{Step: StepDecided, Decision: &decision})
	effect := d.View().Effect
	if effect != policy.Allow && effect != policy.NeedsApproval {
		return c.end(ctx, receipt.Denied, k.denial(set, d.View(), s))
	}
	// Before a person is bothered: can it run at all?
	if err := lane.wait(ctx, func() {
		if effect == policy.Allow {
			_ = c.draft() // intend tries again, and reports the error
		}
		if !k.cfg.Once {
			prepare()
		}
	}); err != nil {
		if fault.KindOf(err) != fault.Canceled {
			k.retire(lane)
		}
		return c.end(ctx, receipt.Refused, err)
	}

	if err := k.canEgress(ctx, s); err != nil {
		return c.end(ctx, receipt.Refused, err)
	}

	// A staged workspace's layer is this call's until the call is over.
	if err := c.takeLayer(); err != nil {
		return c.end(ctx, receipt.Refused, err)
	}

	if err := c.takeCaches(); err != nil {
		return c.end(ctx, receipt.Refused, err)
	}

	// Approve. The files that the person is asked about are held until the call runs.
	var rec *approval.Record
	if effect == policy.NeedsApproval {
		if err := k.holdOperands(ctx, &who, s); err != nil {
			return c.end(ctx, receipt.Refused, err)
		}
		q := c.card(set)
		c.observe(Event{Step: StepAsked, Question: &q})
		start := time.Now()
		rec = approval.Resolve(ctx, who.Approver, q)
		c.asked(rec.View())
		k.step("approved")
		answer := rec.View()
		c.observe(Event{Step: StepAnswered, Approval: &answer, Took: time.Since(start)})
		if !rec.Approved() {
			return c.end(ctx, receipt.NotApproved, notApproved(&answer))
		}
		if k.PolicySet() != set {
			return c.end(ctx, receipt.Refused, fault.New(fault.Refused, "policy_changed", "ask for approval",
				errors.New("the policies that asked are no longer in force")).WithHint("propose the call again"))
		}
		if lane.over() {
			return c.end(ctx, receipt.Refused, fault.New(fault.Unavailable, "cell_died", "ask for approval",
				errors.New("palyra-cell died meanwhile, and a grant is for one alone")).WithHint("propose the call again"))
		}
	}

	// The answer may have taken long, and the caller may have lost a role or right meanwhile.
	if err := k.still(&who, s, &p, auth, effect); err != nil {
		return c.end(ctx, receipt.Refused, err)
	}

	// Grant: only authz can make one, and only for exactly this Spec.
	spec := s.spec()
	digest, err := spec.Digest()
	if err != nil {
		return c.end(ctx, receipt.Refused, err)
	}
	g, err := auth.Grant(d, rec, s.id, digest, grantTTL)
	if err != nil {
		return c.end(ctx, receipt.Refused, err)
	}
	k.step("granted")
	if ctx.Err() != nil {
		return c.end(ctx, receipt.Refused, fault.New(fault.Canceled, "canceled", "run", context.Cause(ctx)))
	}

	// Intent: on disk before anything happens.
	if err := c.intend(ctx, func() {
		_ = c.connect(spec, stdio) // execute tries again, and reports the error
	}); err != nil {
		return nil, err
	}
	k.step("intent")
	from := sourcesOf(s.capsule, s.mcp)
	c.observe(Event{Step: StepIntent, LogIndex: c.intent, Sources: &from})

	// A stop that came during the write finds nothing running.
	if ctx.Err() != nil {
		c.observe(Event{Step: StepExecuted})
		return c.end(ctx, receipt.Refused, fault.New(fault.Canceled, "canceled", "run", context.Cause(ctx)))
	}

	// Execute, unless a file that is used in place has changed since.
	if err := s.recheck(); err != nil {
		c.observe(Event{Step: StepExecuted})
		return c.end(ctx, receipt.Refused, err)
	}
	if err := c.openSecrets(ctx); err != nil {
		c.observe(Event{Step: StepExecuted})
		return c.end(ctx, receipt.Refused, err)
	}
	if s.effect != nil {
		if err := s.effect.Begin(ctx); err != nil {
			c.observe(Event{Step: StepExecuted})
			return c.end(ctx, receipt.Refused, err)
		}
		k.step("begun")
	}
	began := time.Now()
	outcome, err := c.execute(ctx, lane, g, spec, stdio)
	k.step("executed")
	if s.effect != nil && (outcome == receipt.Executed || outcome == receipt.Refused) {
		s.effect.End(outcome == receipt.Executed, exitStatus(outcome, c.out.Result))
		k.step("ended")
	}
	c.observe(Event{Step: StepExecuted, Took: time.Since(began)})
	if k.cfg.Once {
		k.dismiss(lane)
	}
	c.lookAfter(ctx) // lists traps in the workspace
	c.nameLayer()
	outcome, err = c.leaked(ctx, outcome, err)

	// Result and receipt.
	return c.end(ctx, outcome, err)
}

// grantTTL is the runner's time to begin. It's short because the grant is made when everything
// is ready.
const grantTTL = time.Minute

// enter counts a call in, unless the Kernel is closed.
func (k *Kernel) enter() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return fault.New(fault.Unavailable, "not_ready", "call", errors.New("the kernel is closed"))
	}
	k.calls.Add(1)
	return nil
}

// CloseOrphans closes the intents that other processes left since Open, such as a killed palyra
// exec. A long-running process calls it now and then.
func (k *Kernel) CloseOrphans(ctx context.Context) error {
	if err := k.enter(); err != nil {
		return err
	}
	defer k.calls.Done()
	if err := k.state.journal.Refresh(ctx); err != nil {
		return err
	}
	return k.state.closeOrphans(ctx)
}

// Close waits for the calls to end, stops palyra-cell and closes the state directory.
func (k *Kernel) Close() error {
	k.mu.Lock()
	again := k.closed
	k.closed = true
	k.mu.Unlock()
	if again {
		return nil
	}
	k.calls.Wait()
	k.dying.Go(k.closeLanes) // the end of its namespaces takes a while
	err := k.state.close()
	k.dying.Wait()
	return err
}
