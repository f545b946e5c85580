package kernel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/call/diagnosis"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/planted"
)

// call is a decided call on its way to its receipt. CallAs owns it.
type call struct {
	k        *Kernel
	who      *Caller
	watch    func(Event) // nil: no observer
	s        *sealed
	out      *Outcome
	began    time.Time // with monotonic reading
	session  string
	run      string
	signed   *receipt.Entry // the intent, when it is signed
	streams  *streams       // the pipes of the program's output, when they are made
	intent   *uint64
	decision receipt.Decision
	approval *receipt.Approval
	trip     *tripwire     // nil: the call uses no secrets
	look     *planted.Look // at the workspace, since the program started; nil if the call has none to write to
	kept     *keeping      // at what it leaves with placeholders; nil: the call has none, or nothing to write to
}

func newCall(k *Kernel, who *Caller, s *sealed, p *Proposal, watch func(Event)) *call {
	var id [16]byte
	rand.Read(id[:])
	return &call{
		k: k, who: who, watch: watch, s: s, began: time.Now(), session: p.SessionID, run: p.RunID,
		out: &Outcome{CallID: "call_" + hex.EncodeToString(id[:]), CapsuleDigest: s.id, Capsule: s.bytes, Delivered: true},
	}
}

// decided records policy's answer to q. A call that isn't allowed keeps q, so that its caller
// can ask the set for a fix.
func (c *call) decided(q policy.Request, d policy.Decision) {
	c.out.Decision = d
	if d.Effect != policy.Allow {
		asked := q // q itself would be allocated for every call
		c.out.Question = &asked
	}
	c.decision = receipt.Decision{ID: hex.EncodeToString(d.ID[:]), Effect: d.Effect.String(), Reason: d.Reason,
		Policies: d.Policies, Errors: d.Errors, PolicySet: d.PolicySet}
}

func (c *call) asked(v approval.View) {
	c.out.Approval = &v
	c.approval = &receipt.Approval{ID: v.ID, Answer: v.Answer, Approver: v.Approver, Surface: v.Surface, Scope: v.Scope,
		Requested: stamp(v.Requested), Answered: stamp(v.Answered), Capsule: v.Capsule, PolicySet: v.PolicySet,
		Grant: v.Grant, Pattern: v.Pattern, Approvers: v.Approvers, Signed: v.Signed}
}

// stamp is a time as receipts spell it.
func stamp(t time.Time) string { return t.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano) }

// predicate is the common part of intent and result. The result's time isn't before the
// intent's, even if the host's clock was set back.
func (c *call) predicate() receipt.Predicate {
	return receipt.Predicate{
		Version: receipt.PredicateVersion, CallID: c.out.CallID,
		Seq: c.k.state.journal.Size(), Time: stamp(clock.Since(c.began, time.Now())), BootID: c.k.state.boot,
		Tool: c.s.capsule.Tool, Principal: principal(c.who.Principal), SessionID: c.session, RunID: c.run,
		Capsule: summary(c.s), Question: whoAsks(c.who, c.s, c.k.certificate(c.s.capsule.TierFloor)), Decision: c.decision, Approval: c.approval,
	}
}

func summary(s *sealed) receipt.Capsule {
	c := s.capsule
	r := receipt.Capsule{
		Digest: s.id, Bytes: int64(len(s.bytes)), Argv: c.Argv, EnvNames: c.EnvNames(), Cwd: c.Cwd, TierFloor: c.TierFloor.String(),
		Executable: c.Executable, Stdin: c.Stdin, Limits: receipt.Limits(c.Limits), Loader: c.Loader,
		EgressHosts: c.EgressHosts, Network: c.Network, Capabilities: c.Capabilities, Sensitive: c.Sensitive,
		Mounts: c.Mounts, Caches: c.Caches, Secrets: slices.Clone(c.Secrets), Declared: c.Declared, TTY: c.TTY, Background: c.Background,
		EgressInspect: c.EgressInspect, EgressSecrets: c.EgressSecrets,
	}
	if len(c.Scripts) > 0 {
		r.Script = &c.Scripts[0].File
	}
	r.Operands = slices.Clone(c.Operands)
	for i := range s.copies {
		r.Operands[i].Pinned = capsule.PinnedSealed // a person was asked, so the program saw the copy
	}
	if w := c.Workspace; w != nil {
		r.Workspace = &receipt.Workspace{Source: w.Source, ReadOnly: w.ReadOnly, Staged: w.Staged, Layer: w.Layer, OwnPath: w.OwnPath}
	}
	return r
}

// intend logs that the call is about to happen. If it fails, nothing ran. A caller that gives
// up doesn't interrupt it: the call then ends with a record. It may call meanwhile, once,
// during the write.
func (c *call) intend(ctx context.Context, meanwhile func()) error {
	if c.signed == nil {
		if err := c.draft(); err != nil {
			return err
		}
	}
	// Before the intent, or another process could take that for a crash's leftover.
	if err := c.k.state.live.Mark(c.out.CallID); err != nil {
		return err
	}
	i, err := c.k.state.append(context.WithoutCancel(ctx), c.signed, true, nil, func(func() (journal.Proof, error)) { meanwhile() })
	if err != nil {
		return err
	}
	c.k.logged(c.who.Principal.ID, c.signed)
	c.intent, c.out.Intent = &i, &i
	return nil
}

// draft signs the intent, for intend to log. A call that needs no approval may draft early,
// while it waits for palyra-cell.
func (c *call) draft() (err error) {
	c.signed, err = receipt.SignEntry(c.k.state.att(), receipt.NewStatement(c.predicate(), canon.Digest{}, canon.Digest{}))
	return err
}

func (c *call) connect(spec *isolate.Spec, stdio IO) (err error) {
	if c.streams != nil || c.s.mcp != nil {
		return nil
	}
	if spec.TTY != nil {
		c.streams, err = openTerminal(stdio.Stdout, c.typed(spec, stdio.Stdin), stdio.Resize, spec.Limits.Output)
		return err
	}
	stdin := stdio.Stdin
	switch {
	case spec.Stdin != capsule.StdinStream:
		stdin = nil
	case stdin == nil:
		stdin = bytes.NewReader(nil)
	}
	c.streams, err = openStreams(stdio.Stdout, stdio.Stderr, stdin, spec.Limits.Output)
	return err
}

// typed is what is typed on the call's terminal.
func (c *call) typed(spec *isolate.Spec, stdin io.Reader) io.Reader {
	switch {
	case c.s.stdin != nil:
		return io.NewSectionReader(c.s.stdin.File, 0, c.s.stdin.Size)
	case spec.Stdin == capsule.StdinStream && stdin != nil:
		return stdin
	}
	return bytes.NewReader(nil)
}

// close closes everything that the call still has open. It may be called again.
func (c *call) close() {
	if c.streams != nil {
		c.streams.close()
	}
	c.s.close()
}

// over says that this call will get no further result. From here on any process may close its
// intent if that has none.
func (c *call) over() {
	if c.trip != nil {
		c.trip.marks.Wipe()
	}
	if c.signed != nil {
		c.k.state.live.Unmark(c.out.CallID)
	}
}

func (c *call) execute(ctx context.Context, l *lane, g grant.Grant, spec *isolate.Spec, stdio IO) (string, error) {
	if c.s.mcp != nil {
		return c.exchange(ctx, l, g, spec, stdio)
	}
	if err := c.connect(spec, stdio); err != nil {
		return receipt.Failed, err
	}
	streams := c.streams
	ctx, end := context.WithCancel(ctx)
	defer end()
	if err := c.setTripwire(ctx, end); err != nil {
		return receipt.Refused, err
	}
	streams.remove(c.k.values(&c.who.Principal), c.trip)
	deadline := time.Now().Add(spec.Limits.Wall)
	streams.start()
	files := c.s.files(nil, streams.out[0].w, streams.out[1].w)
	if streams.tty != nil {
		files.Terminal = streams.tty.theirs
	}
	if streams.stdin != nil {
		files.Stdin = streams.stdin.r
	}
	c.lookBefore()
	if c.k.cfg.Once {
		// There is nothing else to do until the program has ended; before, palyra and
		// palyra-cell need all processors of a small machine.
		c.k.dying.Go(prepare)
	}
	run, outlet, err := c.openEgress(ctx, spec, files)
	if err != nil {
		streams.release()
		streams.drain(deadline)
		return outcomeOf(nil, err)
	}
	res, err := l.runner.Run(run, g, spec, files)
	lost := outlet.end(ctx, res, c.k.values(&c.who.Principal), c.trip)
	c.s.closeSecrets()
	streams.release()
	output, delivered := streams.drain(deadline)
	if errors.Is(err, cell.ErrDied) {
		c.k.dismiss(l)
		// palyra-cell never took the call: see cell.Client.Run.
		if e, ok := errors.AsType[*fault.Error](err); ok && res == nil {
			err = e.WithHint("it did not run: propose the call again")
		}
		c.awaitCells(l, res)
	}
	c.out.Result, c.out.Delivered = res, delivered
	if res != nil && res.Evidence != nil {
		res.Evidence.Output = output
		c.s.program.hashed(res.Evidence)
	}
	if lost != nil && (res == nil || res.Outcome == isolate.Exited || outlet.cut) {
		if fault.KindOf(lost) == fault.Timeout {
			return receipt.TimedOut, lost
		}
		return receipt.Failed, lost
	}
	return outcomeOf(res, err)
}

// hashed adds to e how the program's files got their digests. That isn't part of the capsule:
// the same call has the same capsule, whether a file had to be read for it or not.
func (p *program) hashed(e *evidence.Evidence) {
	e.Executable.DigestBasis, e.Executable.DigestTime = digestBasis(p.exec.digest)
	e.Scripts = nil
	for i, s := range p.scripts {
		x := evidence.Executable{Basis: evidence.Reported, Path: s.Path, Digest: s.Digest, Pinned: s.Pinned}
		x.DigestBasis, x.DigestTime = digestBasis(p.read[i])
		e.Scripts = append(e.Scripts, x)
	}
}

func digestBasis(d digests.Digest) (basis, when string) {
	switch {
	case d.Cached && d.Verity:
		return evidence.DigestVerity, stamp(d.Hashed)
	case d.Cached:
		return evidence.DigestCached, stamp(d.Hashed)
	}
	return evidence.DigestHashed, stamp(d.Hashed)
}

// outcomeOf turns a runner's answer into an outcome. Executed takes an Exited without an error
// and with evidence; an outcome that says that nothing ran takes a runner that says so. Any
// other call may have run.
func outcomeOf(res *isolate.Result, err error) (string, error) {
	if res == nil {
		if err == nil {
			return mayHaveRun(fault.New(fault.Internal, "internal", "run", errors.New("the runner returned neither a result nor an error")))
		}
		switch fault.KindOf(err) {
		case fault.Refused, fault.Unsupported, fault.Denied, fault.NotApproved, fault.Usage, fault.Busy:
			return receipt.Refused, err
		case fault.Canceled:
			return receipt.Killed, err
		case fault.Timeout:
			return receipt.TimedOut, err
		}
		return receipt.Failed, err
	}
	switch res.Outcome {
	case isolate.Exited:
		if err != nil || res.Evidence == nil {
			return mayHaveRun(orElse(err, fault.New(fault.Internal, "internal", "run", errors.New("the runner returned no evidence"))))
		}
		return receipt.Executed, nil
	case isolate.TimedOut:
		return receipt.TimedOut, orElse(err, fault.New(fault.Timeout, "wall", "run", errors.New("the time limit passed")))
	case isolate.Killed:
		reason := "killed"
		if res.Evidence != nil && res.Evidence.Exit.LimitHit != "" {
			reason = res.Evidence.Exit.LimitHit
		}
		return receipt.Killed, orElse(err, fault.New(fault.Unavailable, reason, "run", limitError(reason)))
	case isolate.Refused:
		return receipt.Refused, orElse(err, fault.New(fault.Refused, "internal", "run", errors.New("refused")))
	case isolate.Failed:
		return receipt.Failed, orElse(err, fault.New(fault.Internal, "internal", "run", errors.New("the runner says only that it failed")))
	}
	return mayHaveRun(orElse(err, fault.New(fault.Internal, "internal", "run", fmt.Errorf("runner reported %q", string(res.Outcome)))))
}

// mayHaveRun is the outcome of a call whose end is unknown, with a hint.
func mayHaveRun(err error) (string, error) {
	if e, ok := errors.AsType[*fault.Error](err); ok && fault.HintOf(err) == "" {
		err = e.WithHint("it may have run, in part or to its end: look at what it changes before it is called again")
	}
	return receipt.OutcomeUnknown, err
}

func limitError(limit string) error {
	switch limit {
	case "canceled":
		return errors.New("it was canceled")
	case "killed":
		return errors.New("it was killed from outside")
	case "cpu":
		return errors.New("the signal for the cpu limit ended it")
	case "uncounted":
		return errors.New("it kept palyra from counting its memory or files")
	}
	return fmt.Errorf("the %s limit was reached", strings.ReplaceAll(limit, "_", " "))
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// end logs the result and makes the receipt, even if the caller has given up.
func (c *call) end(ctx context.Context, outcome string, cause error) (*Outcome, error) {
	ctx = context.WithoutCancel(ctx)
	c.out.Outcome, c.out.Exit = outcome, exitStatus(outcome, c.out.Result)
	c.out.Diagnosis = c.diagnose(outcome)
	p := c.predicate()
	p.Outcome, p.Intent, p.Planted = outcome, c.intent, c.out.Planted
	if cause != nil {
		c.out.Error = &Failure{Kind: fault.KindOf(cause).String(), Reason: reason(cause), Text: c.k.values(&c.who.Principal).String(cause.Error()), Hint: fault.HintOf(cause)}
		p.Error = &receipt.Error{Kind: c.out.Error.Kind, Reason: c.out.Error.Reason}
	}
	var stdout, stderr canon.Digest
	if r := c.out.Result; r != nil && r.Evidence != nil {
		e, err := canon.Marshal(r.Evidence)
		if err != nil {
			return c.out, fault.New(fault.Internal, "internal", "record result", err)
		}
		p.Evidence, stdout, stderr = e, r.Evidence.Output.StdoutDigest, r.Evidence.Output.StderrDigest
	}
	entry, err := c.k.state.sign(receipt.NewStatement(p, stdout, stderr))
	if less, ok := withoutList(p, err); ok {
		p = less
		entry, err = c.k.state.sign(receipt.NewStatement(p, stdout, stderr))
	}
	if less, ok := c.withoutHosts(p, err); ok {
		entry, err = c.k.state.sign(receipt.NewStatement(less, stdout, stderr))
	}
	if err != nil {
		return c.out, err
	}
	var bundle []byte // made during the write; the caller gets it only after
	index, err := c.k.state.append(ctx, entry, false, c.intent, func(prove func() (journal.Proof, error)) {
		if p, err := prove(); err == nil {
			bundle, _ = entry.Bundle(p, c.k.state.trust()) // tried again below, which reports the error
		}
		c.close()
	})
	if err != nil {
		return c.out, err
	}
	c.k.logged(c.who.Principal.ID, entry)
	c.out.LogIndex = index
	c.k.step("result")
	if bundle == nil {
		if bundle, err = c.k.state.receipt(ctx, index, entry); err != nil {
			return c.out, err
		}
	}
	c.out.Receipt = bundle
	c.k.step("receipt")
	c.observe(Event{Step: StepResult, Outcome: outcome, LogIndex: &index})
	return c.out, nil
}

// diagnose says why a program that ran may have failed. Only the caller is told: it's not part
// of the receipt, whose evidence has what it's made of.
func (c *call) diagnose(outcome string) *diagnosis.Diagnosis {
	if c.out.Result == nil || c.out.Result.Evidence == nil {
		return nil
	}
	e := c.out.Result.Evidence
	s := diagnosis.Seen{
		Outcome: outcome, Observed: e.Exit.Basis == evidence.Observed, Code: e.Exit.Code, Signal: e.Exit.Signal, LimitHit: e.Exit.LimitHit,
		Cut: e.Output.Cut, Limits: c.s.capsule.Limits, BuiltIn: c.s.capsule.Tool != ToolRun, InPlace: e.Tier == tier.B.String(),
		TTY: c.s.capsule.TTY != nil, Caches: c.s.capsule.Caches, Argv: c.s.capsule.Argv, Hosts: c.s.capsule.EgressHosts, Networks: c.s.networks,
	}
	if w := c.s.capsule.Workspace; w != nil {
		s.Workspace = w.Source
	}
	for _, d := range e.Egress.Denied {
		s.Denied = append(s.Denied, diagnosis.Denied{Host: d.Host, Port: d.Port, Why: d.Why, Limit: d.Limit})
	}
	if c.streams != nil {
		if s.Stderr = c.streams.out[1].tail; c.streams.tty != nil {
			s.Stderr = c.streams.out[0].tail
		}
	}
	return diagnosis.Of(s)
}

// reason returns the code of an error; there is always one.
func reason(err error) string {
	if r := fault.ReasonOf(err); r != "" {
		return r
	}
	return "internal"
}

const (
	exitTimedOut = 124
	exitRefused  = 125
	exitDenied   = 126
	exitSignal   = 128
)

// exitStatus is the status that stands for an outcome: the program's own, 128+n for signal n,
// 124 timed out, 126 denied or not approved, else 125.
func exitStatus(outcome string, r *isolate.Result) int {
	switch outcome {
	case receipt.Denied, receipt.NotApproved:
		return exitDenied
	case receipt.TimedOut:
		return exitTimedOut
	case receipt.Executed, receipt.Killed:
		if r == nil || r.Evidence == nil {
			return exitRefused
		}
		e := r.Evidence.Exit
		switch {
		case e.Signal > 0:
			return exitSignal + e.Signal
		case outcome == receipt.Executed && e.Code >= 0:
			return e.Code
		case outcome == receipt.Killed:
			return exitSignal + 9 // ended by us, whatever the program would have returned
		}
	}
	return exitRefused
}

func (s *state) sign(st receipt.Statement) (*receipt.Entry, error) {
	return receipt.SignEntry(s.att(), st)
}

// append logs a signed statement. opens says that it's an intent; closes is the intent that it
// answers. meanwhile is for journal.AppendMeanwhile, and may be nil. A statement that was signed
// before a rotation is signed again.
func (s *state) append(ctx context.Context, e *receipt.Entry, opens bool, closes *uint64, meanwhile func(func() (journal.Proof, error))) (uint64, error) {
	began := time.Now()
	pos, err := s.appendAsNow(ctx, e, opens, closes, meanwhile)
	for try := 0; errors.Is(err, receipt.ErrKeyOver) && try < maxRotations; try++ {
		k := s.held.Load()
		if e.SignedBy(k.ring.Attestation()) {
			if err := s.renew(ctx, k); err != nil {
				return 0, err
			}
		}
		if e.SignedBy(s.att()) {
			return 0, fault.New(fault.Integrity, "key_corrupt", "append to journal", errors.New("keys/att.key isn't the key that the journal has in force")).
				WithHint("restore keys/ from a backup that was made since the last rotation")
		}
		pos, err = s.appendAsNow(ctx, e, opens, closes, meanwhile)
	}
	if err == nil && s.observe != nil {
		s.observe(Event{Step: StepLogged, LogIndex: &pos.Index, Took: time.Since(began)})
	}
	return pos.Index, err
}

// appendAsNow signs e again if it was drafted before a rotation, and appends it.
func (s *state) appendAsNow(ctx context.Context, e *receipt.Entry, opens bool, closes *uint64, meanwhile func(func() (journal.Proof, error))) (pos journal.Position, err error) {
	if k := s.att(); !e.SignedBy(k) {
		if err := e.Sign(k); err != nil {
			return pos, err
		}
	}
	return s.appendOnce(ctx, e, opens, closes, meanwhile)
}

func (s *state) appendOnce(ctx context.Context, e *receipt.Entry, opens bool, closes *uint64, meanwhile func(func() (journal.Proof, error))) (journal.Position, error) {
	return s.journal.AppendMeanwhile(ctx, journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Opens: opens, Closes: closes}, meanwhile)
}

func (s *state) receipt(ctx context.Context, index uint64, e *receipt.Entry) ([]byte, error) {
	p, err := s.journal.Prove(ctx, index)
	if err != nil {
		return nil, err
	}
	var b []byte
	err = s.knowing(ctx, func(t *receipt.Trust) (err error) {
		b, err = e.Bundle(p, t)
		return err
	})
	return b, err
}

// logged returns the entry at an index, as it was signed.
func (s *state) logged(ctx context.Context, index uint64) (e *receipt.Entry, err error) {
	err = s.knowing(ctx, func(t *receipt.Trust) error {
		for rec, err := range s.journal.Entries(index, index+1) {
			if err == nil {
				e, err = t.Logged(&rec)
			}
			return err
		}
		_, err := s.journal.Content(index) // there is none
		return err
	})
	return e, err
}

// closeOrphans writes the result of every intent that has none and whose call isn't under way
// in any process: a crash came between the two, so the outcome is unknown.
func (s *state) closeOrphans(ctx context.Context) error {
	open := s.journal.OpenEntries()
	calls := make([]string, len(open))
	for n, i := range open {
		id, err := s.callOf(i)
		if err != nil {
			return err
		}
		calls[n] = id
	}
	if len(open) == 0 {
		return nil
	}
	// If a call ends meanwhile its result is in the journal, and append finds it there: an
	// intent is closed once.
	alive, err := s.live.Marked(calls)
	if err != nil {
		return err
	}
	for n, i := range open {
		if alive[calls[n]] {
			continue
		}
		if err := s.closeOrphan(ctx, i); err != nil && !errors.Is(err, journal.ErrNotOpen) {
			return err
		}
	}
	return nil
}

// callOf returns the call id of the intent at this index. It verifies nothing.
func (s *state) callOf(i uint64) (string, error) {
	content, err := s.journal.Content(i)
	if err != nil {
		return "", err
	}
	env, err := receipt.ParseEnvelope(content)
	if err != nil {
		return "", err
	}
	st, _, err := receipt.ParsePayload(env.Payload)
	if err != nil {
		return "", err
	}
	if st == nil {
		return "", fault.New(fault.Integrity, "receipt_statement", fmt.Sprintf("read intent %d", i), errors.New("it is no intent"))
	}
	return st.Predicate.CallID, nil
}

func (s *state) closeOrphan(ctx context.Context, i uint64) error {
	e, err := s.logged(ctx, i)
	if err != nil {
		return err
	}
	b, err := s.receipt(ctx, i, e)
	if err != nil {
		return err
	}
	v, err := receipt.Verify(b, s.trust())
	if err != nil {
		return err
	}
	st := v.Statement
	if !st.IsIntent() {
		return fault.New(fault.Integrity, "receipt_statement", fmt.Sprintf("close intent %d", i), errors.New("it is no intent"))
	}
	p := st.Predicate
	p.Outcome, p.Intent = receipt.OutcomeUnknown, &i
	p.Seq, p.Time, p.BootID = s.journal.Size(), stamp(time.Now()), s.boot
	p.Error = &receipt.Error{Kind: fault.Internal.String(), Reason: "crashed"}
	if e, err = s.sign(receipt.NewStatement(p, canon.Digest{}, canon.Digest{})); err != nil {
		return err
	}
	_, err = s.append(ctx, e, false, &i, nil)
	return err
}
