// Package kernel is the gate: the one path on which a tool call is decided,
// approved, run and recorded. This file is the one to read first.
//
//	propose → seal → decide → approve → grant → intent → execute → result → receipt
//
// Each step is finished, and where it leaves something on disk durable, before
// the next begins. [Kernel.Call] is the order; one file per step holds the rest:
//
//	proposal.go   what may be asked for, and what is refused without looking
//	tools.go      what a tool and its input become
//	seal.go       everything named is opened once, hashed and pinned (program.go,
//	              loader.go, workspace.go, environ.go); the capsule is its name from here on
//	question.go   the capsule as policy and approver see it
//	runner.go     palyra-cell, started once and used for many calls (again.go: one
//	              that was gone before it took a call)
//	output.go     what comes out of the program, counted and bounded
//	planted.go    what it left in its workspace
//	record.go     the statements that are signed and logged, and recovery
//	state.go      the state directory
//	observe.go    what an observer of a call is told
//	reload.go     other policies, while calls run
//	ledger.go     administrative acts, and the journal for readers
//
// # Contract
//
// Call returns an Outcome with a receipt for every call that was decided:
// executed, denied, not approved, refused, failed, timed out or killed, and
// outcome_unknown if palyra-cell died after the call was handed to it. It
// returns an error and no Outcome for what never came to a decision (a malformed
// proposal, a program that is not there), and an error beside the Outcome for
// what could not be recorded. Nothing runs unless its intent is on disk. An
// intent whose result never came is closed as outcome_unknown by the next Open or
// CloseOrphans of any process: see below.
//
// Several processes may have one state directory open, each with a Kernel, and make
// calls at the same time. A call is marked in the file "live" from before its intent
// until after its result, with a lock that the operating system takes back when the
// process dies: an intent without a result and without the mark is an orphan.
//
// A Proposal serialises and carries no authority. Who asks is said by whoever
// opens the Kernel, never by the proposal.
//
// # What it does not protect against
//
// The user who owns the state directory, and root: they hold the keys. A program
// that is allowed to run and does what its arguments say. See
// docs/THREAT_MODEL.md.
package kernel

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"palyra/authz"
	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// Config says how to open a Kernel.
type Config struct {
	// StateDir is an absolute path. It is created 0700 with its keys on first
	// use, and refused if anybody else owns it or may look into it.
	StateDir string
	// PolicyDir holds Cedar files. Default: the built-in set.
	PolicyDir string
	// Floor adds policy.FloorCertificate to them: no call runs at a tier that the
	// sandbox certificate of this boot does not prove.
	Floor bool
	// CellPath is the palyra-cell binary. Without it every allowed call is refused.
	CellPath string
	// Starter starts it, for a process that has given up the right to start
	// anything. Default: this process does.
	Starter *cell.Starter
	// Warm is the tier whose palyra-cell Open starts in the background, so that
	// the first call need not wait for it. Default: none.
	Warm tier.Tier
	// Once says that there will be one call, or few, and never two at a time: each
	// palyra-cell is ended when it has run one, while the result is recorded.
	Once bool
	// Pool is what each palyra-cell makes ahead of calls. Default: nothing.
	Pool cell.Pool
	// Tools is the table of tools. Default: process.run with its own argv.
	Tools Tools
	// Approver is asked about the sensitive calls of Call. Default: nobody, which
	// denies them.
	Approver approval.Approver
	// ApprovalTimeout bounds the wait for an answer. Default: approval.DefaultTimeout.
	ApprovalTimeout time.Duration
	// Principal is who makes the calls of Call, as its surface authenticated it.
	// Default: the user that this process runs as, by number.
	Principal policy.Entity

	// Observe, if not nil, is told of each step of every call as it is done, and of
	// each entry of the journal (observe.go). A slow one delays them.
	Observe func(Event)
	// Budgets are the accounts that calls are on before they are decided. Default:
	// those of a process that makes its own user's calls.
	Budgets *Budgets

	// JournalWaited, if not nil, is told for each entry of the journal how long it
	// waited for the group that it is written in; see journal.Options.
	JournalWaited func(time.Duration)

	// TestOnlyStep is called at each named step, so that a test can kill the
	// process there: "sealing", "sealed", "decided", "approved", "granted", "intent",
	// "executed", "result" and "receipt", "loaded" in a Reload, and the steps of
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

	calls sync.WaitGroup // one for each call
	dying sync.WaitGroup // one for each lane, for each that was dismissed, and for a prepare

	mu     sync.Mutex
	set    *policy.Set         // guarded by mu; swapped, never mutated
	closed bool                // guarded by mu
	lanes  map[tier.Tier]*lane // guarded by mu; nil once closed
	keep   keep                // guarded by mu; see runner.go
}

// Outcome is what became of a decided call. It serialises.
type Outcome struct {
	CallID   string          `json:"call_id"`
	Outcome  string          `json:"outcome"` // one of receipt's outcomes
	Exit     int             `json:"exit"`    // the exit status that stands for it; see exitStatus
	Error    *Failure        `json:"error"`   // why it did not run or did not end by itself; null if it did
	Decision policy.Decision `json:"decision"`
	Approval *approval.View  `json:"approval"` // null: nobody was asked
	Result   *isolate.Result `json:"result"`   // null: nothing ran; without evidence: that is not known

	// Planted is what lies in wait in the workspace afterwards; null: there was none to write to.
	Planted *receipt.Planted `json:"planted"`

	// Delivered says that the caller's writers took all output that was kept.
	Delivered bool `json:"delivered"`

	CapsuleDigest canon.Digest `json:"capsule_digest"`
	Capsule       []byte       `json:"capsule"`   // canonical JSON; holds the values of the environment
	Receipt       []byte       `json:"receipt"`   // Sigstore bundle, JSON; nil if it could not be recorded
	LogIndex      uint64       `json:"log_index"` // of the result in the journal
	Intent        *uint64      `json:"intent"`    // of the intent; null: nothing was about to run
}

// Failure is an error in a form that serialises.
type Failure struct {
	Kind   string `json:"kind"`
	Reason string `json:"reason"`
	Text   string `json:"text"`
	Hint   string `json:"hint"`
}

// newKernel fills the defaults in.
func newKernel(cfg Config) *Kernel {
	k := &Kernel{cfg: cfg, step: cfg.TestOnlyStep}
	if k.step == nil {
		k.step = func(string) {}
	}
	if k.cfg.Principal.ID == "" {
		k.cfg.Principal = localUser()
	}
	if k.cfg.Budgets == nil {
		k.cfg.Budgets = ownBudgets()
	}
	return k
}

// Open opens the state directory, loads the policies, recovers the journal and
// closes the intents that a crash left open.
func Open(ctx context.Context, cfg Config) (_ *Kernel, err error) {
	k := newKernel(cfg)
	k.lanes = make(map[tier.Tier]*lane)
	if cfg.Warm != tier.None {
		k.lane(cfg.Warm)  // starts while the rest is opened: it takes longest,
		runtime.Gosched() // and so goes first
	}
	if k.set, err = loadSet(&cfg); err == nil {
		k.state, err = openState(ctx, cfg.StateDir, journal.Options{Waited: cfg.JournalWaited, TestOnlyStep: k.step})
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

// Caller is who makes a call, as its surface authenticated it. It is never
// filled from what the caller says about itself.
type Caller struct {
	Principal policy.Entity     // without one everything is denied
	Approver  approval.Approver // nil: nobody can be asked, which denies sensitive calls
	Reserve   bool              // may use what budgets keep for the installation's owner
	Device    string            // for policy: the device that asks, and
	Channel   string            // the surface that it came by; "" is unknown
}

// Call puts one proposal through the gate for the configured caller. A done ctx
// withdraws a question that waits and kills a program that runs; the receipt is
// written all the same.
func (k *Kernel) Call(ctx context.Context, p Proposal, stdio IO) (*Outcome, error) {
	return k.CallAs(ctx, Caller{Principal: k.cfg.Principal, Approver: k.cfg.Approver}, p, stdio)
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
	c.observe(Event{Step: StepSealed})

	// Decide. Whatever is not clearly a yes or a question is a no.
	lane := k.lane(s.capsule.TierFloor)
	set := k.PolicySet()
	auth := authz.New(set, lane.key)
	d := auth.Decide(k.question(&who, s, &p))
	c.decided(d.View())
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
			_ = c.draft() // intend tries again, and says why not
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

	// Approve. What the person is asked about is held until it runs.
	var rec *approval.Record
	if effect == policy.NeedsApproval {
		if err := k.holdOperands(ctx, &who, s); err != nil {
			return c.end(ctx, receipt.Refused, err)
		}
		q := c.card(set)
		c.observe(Event{Step: StepAsked, Question: &q})
		asked := time.Now()
		rec = approval.Resolve(ctx, who.Approver, q)
		c.asked(rec.View())
		k.step("approved")
		answer := rec.View()
		c.observe(Event{Step: StepAnswered, Approval: &answer, Took: time.Since(asked)})
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
		_ = c.connect(spec, stdio) // execute tries again, and says why not
	}); err != nil {
		return nil, err
	}
	k.step("intent")
	c.observe(Event{Step: StepIntent, LogIndex: c.intent})

	// A stop that came while the disk wrote finds nothing running.
	if ctx.Err() != nil {
		c.observe(Event{Step: StepExecuted})
		return c.end(ctx, receipt.Refused, fault.New(fault.Canceled, "canceled", "run", context.Cause(ctx)))
	}

	// Execute, unless what would be used as it is has changed since.
	if err := s.recheck(); err != nil {
		c.observe(Event{Step: StepExecuted})
		return c.end(ctx, receipt.Refused, err)
	}
	h := &handing{lane: lane, grant: g, set: set, decision: d}
	began := time.Now()
	outcome, err := c.execute(ctx, h, spec, stdio)
	k.step("executed")
	c.observe(Event{Step: StepExecuted, Took: time.Since(began)})
	if k.cfg.Once {
		k.dismiss(h.lane)
	}
	c.lookAfter(ctx) // what lies in wait in the workspace now

	// Result and receipt.
	return c.end(ctx, outcome, err)
}

// grantTTL is how long the runner may take to begin: a grant is made when
// everything is ready.
const grantTTL = time.Minute

// enter counts a call in, unless the Kernel is closed.
func (k *Kernel) enter() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.closed {
		return fault.New(fault.Unavailable, "kernel_closed", "call", nil)
	}
	k.calls.Add(1)
	return nil
}

// CloseOrphans closes the intents of calls that other processes have left since Open:
// of a palyra exec that was killed, say. A process that runs for long calls it now and
// then.
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

// Close waits for the calls to end, stops palyra-cell and closes the state
// directory.
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
