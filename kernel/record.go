package kernel

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/journal"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/clock"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/kernel/capsule"
	"palyra/kernel/internal/digests"
	"palyra/kernel/internal/planted"
)

// call is a decided call on its way to its receipt. It is owned by Call.
type call struct {
	k        *Kernel
	who      *Caller
	watch    func(Event) // nil: nobody
	s        *sealed
	out      *Outcome
	began    time.Time // with monotonic reading
	session  string
	run      string
	signed   *receipt.Entry // the intent, once it is signed
	streams  *streams       // what the program's output comes through, once made
	intent   *uint64
	decision receipt.Decision
	approval *receipt.Approval
	look     *planted.Look // at the workspace, since the program started; nil: it has none to write to
}

func newCall(k *Kernel, who *Caller, s *sealed, p *Proposal, watch func(Event)) *call {
	var id [16]byte
	rand.Read(id[:])
	return &call{
		k: k, who: who, watch: watch, s: s, began: time.Now(), session: p.SessionID, run: p.RunID,
		out: &Outcome{CallID: "call_" + hex.EncodeToString(id[:]), CapsuleDigest: s.id, Capsule: s.bytes, Delivered: true},
	}
}

// decided records policy's answer.
func (c *call) decided(d policy.Decision) {
	c.out.Decision = d
	c.decision = receipt.Decision{ID: hex.EncodeToString(d.ID[:]), Effect: d.Effect.String(), Reason: d.Reason,
		Policies: d.Policies, Errors: d.Errors, PolicySet: d.PolicySet, Fix: d.Fix}
}

// asked records that somebody was, or would have been, asked.
func (c *call) asked(v approval.View) {
	c.out.Approval = &v
	c.approval = &receipt.Approval{ID: v.ID, Answer: v.Answer, Approver: v.Approver, Surface: v.Surface, Scope: v.Scope,
		Requested: stamp(v.Requested), Answered: stamp(v.Answered), Capsule: v.Capsule, PolicySet: v.PolicySet,
		Grant: v.Grant, Pattern: v.Pattern, Approvers: v.Approvers}
}

// stamp is a time as receipts spell it.
func stamp(t time.Time) string { return t.UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano) }

// predicate is what intent and result have in common. The result's time is not
// before the intent's, whatever the host's clock was set to meanwhile.
func (c *call) predicate() receipt.Predicate {
	return receipt.Predicate{
		Version: receipt.PredicateVersion, CallID: c.out.CallID,
		Seq: c.k.state.journal.Size(), Time: stamp(clock.Since(c.began, time.Now())), BootID: c.k.state.boot,
		Tool: c.s.capsule.Tool, Principal: principal(c.who.Principal), SessionID: c.session, RunID: c.run,
		Capsule: summary(c.s), Question: whoAsks(c.who, c.s, c.k.certificate(c.s.capsule.TierFloor)), Decision: c.decision, Approval: c.approval,
	}
}

// summary is what a receipt says of the capsule: no values of the environment.
func summary(s *sealed) receipt.Capsule {
	c := s.capsule
	r := receipt.Capsule{
		Digest: s.id, Bytes: int64(len(s.bytes)), Argv: c.Argv, EnvNames: c.EnvNames(), Cwd: c.Cwd, TierFloor: c.TierFloor.String(),
		Executable: receiptFile(c.Executable), Stdin: receipt.Stdin{Mode: c.Stdin.Mode, Digest: c.Stdin.Digest, Size: c.Stdin.Size},
		EgressHosts: c.EgressHosts, Network: c.Network, Capabilities: c.Capabilities, Sensitive: c.Sensitive,
		Limits: receipt.Limits{WallNS: int64(c.Limits.Wall), CPUNS: int64(c.Limits.CPU), Memory: c.Limits.Memory, PIDs: c.Limits.PIDs,
			Output: c.Limits.Output, FileSize: c.Limits.FileSize, OpenFiles: c.Limits.OpenFiles, Disk: c.Limits.Disk, Inodes: c.Limits.Inodes},
	}
	if len(c.Scripts) > 0 {
		f := receiptFile(c.Scripts[0].File)
		r.Script = &f
	}
	if c.Loader != nil {
		f := receiptFile(*c.Loader)
		r.Loader = &f
	}
	for i, o := range c.Operands {
		f := receiptFile(o)
		if i < len(s.copies) {
			f.Pinned = capsule.PinnedSealed // it was asked about, so the program saw the copy
		}
		r.Operands = append(r.Operands, f)
	}
	if w := c.Workspace; w != nil {
		r.Workspace = &receipt.Workspace{Source: w.Source, ReadOnly: w.ReadOnly}
	}
	return r
}

func receiptFile(f capsule.File) receipt.File {
	return receipt.File{Path: f.Path, Digest: f.Digest, Size: f.Size, Pinned: f.Pinned}
}

// intend logs that the call is about to happen. Whatever fails here, nothing ran.
// A caller that gives up does not interrupt it: the run then ends with a record.
// meanwhile may be done, once, while the disk is at work.
func (c *call) intend(ctx context.Context, meanwhile func()) error {
	if c.signed == nil {
		if err := c.draft(); err != nil {
			return err
		}
	}
	// Before the intent, or another process could take it for one that a crash left.
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

// draft signs the intent, for intend to log. A call that nobody has to approve may
// be there early, while it waits for palyra-cell.
func (c *call) draft() (err error) {
	c.signed, err = receipt.SignEntry(c.k.state.ring.Attestation(), receipt.NewStatement(c.predicate(), canon.Digest{}, canon.Digest{}))
	return err
}

// connect makes what output comes through, unless it is there.
func (c *call) connect(spec *isolate.Spec, stdio IO) (err error) {
	if c.streams != nil {
		return nil
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

// close closes what the call still has open. It may be called again.
func (c *call) close() {
	if c.streams != nil {
		c.streams.close()
	}
	c.s.close()
}

// over says that no result of this call is to come any more. An intent that has none
// may be closed from here on by whoever looks.
func (c *call) over() {
	if c.signed != nil {
		c.k.state.live.Unmark(c.out.CallID)
	}
}

// execute runs the call and says how that ended.
func (c *call) execute(ctx context.Context, h *handing, spec *isolate.Spec, stdio IO) (string, error) {
	if err := c.connect(spec, stdio); err != nil {
		return receipt.Failed, err
	}
	streams := c.streams
	deadline := time.Now().Add(spec.Limits.Wall)
	streams.start()
	files := c.s.files(nil, streams.out[0].w, streams.out[1].w)
	if streams.stdin != nil {
		files.Stdin = streams.stdin.r
	}
	c.lookBefore()
	if c.k.cfg.Once {
		// Until the program has ended there is nothing else to do; before, palyra
		// and palyra-cell have all processors of a small machine to themselves.
		c.k.dying.Go(prepare)
	}
	res, err := h.lane.runner.Run(ctx, h.grant, spec, files)
	if res == nil && cellDied(err) {
		res, err = c.again(ctx, h, spec, files, deadline, err)
	}
	streams.release()
	output, delivered := streams.drain(deadline)
	if cellDied(err) {
		c.k.retire(h.lane)
	}
	c.out.Result, c.out.Delivered = res, delivered
	if res != nil && res.Evidence != nil {
		res.Evidence.Output = output
		c.s.program.hashed(res.Evidence)
	}
	return outcomeOf(res, err)
}

// hashed adds to e how the digests of the program's files were obtained. It is
// no part of the capsule: the same call has the same capsule, whether a file had
// to be read for it or not.
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

// outcomeOf turns what a runner returned into an outcome. Executed needs a
// runner that says so, without an error, and evidence; that nothing ran needs one
// that says so. What is neither may have run.
func outcomeOf(res *isolate.Result, err error) (string, error) {
	if res == nil {
		if err == nil {
			return mayHaveRun(fault.New(fault.Internal, "no_result", "run", nil))
		}
		switch fault.KindOf(err) {
		case fault.Refused, fault.Unsupported, fault.Denied, fault.NotApproved, fault.Usage:
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
			return mayHaveRun(orElse(err, fault.New(fault.Internal, "no_evidence", "run", nil)))
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
		return receipt.Refused, orElse(err, fault.New(fault.Refused, "refused", "run", nil))
	case isolate.Failed:
		return receipt.Failed, orElse(err, fault.New(fault.Internal, "failed", "run", nil))
	}
	return mayHaveRun(orElse(err, fault.New(fault.Internal, "no_outcome", "run", fmt.Errorf("runner reported %q", string(res.Outcome)))))
}

// mayHaveRun is the outcome of a call of which nobody knows, with what to do about it.
func mayHaveRun(err error) (string, error) {
	if e, ok := errors.AsType[*fault.Error](err); ok && fault.HintOf(err) == "" {
		err = e.WithHint("it may have run, in part or to its end: look at what it changes before it is called again")
	}
	return receipt.OutcomeUnknown, err
}

// limitError says which limit ended a run.
func limitError(limit string) error {
	switch limit {
	case "canceled":
		return errors.New("it was canceled")
	case "killed":
		return errors.New("it was killed from outside")
	}
	return fmt.Errorf("the %s limit was reached", strings.ReplaceAll(limit, "_", " "))
}

func orElse(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// end logs the result and makes the receipt. The caller may have given up; the
// record is made all the same.
func (c *call) end(ctx context.Context, outcome string, cause error) (*Outcome, error) {
	ctx = context.WithoutCancel(ctx)
	c.out.Outcome, c.out.Exit = outcome, exitStatus(outcome, c.out.Result)
	p := c.predicate()
	p.Outcome, p.Intent, p.Planted = outcome, c.intent, c.out.Planted
	if cause != nil {
		c.out.Error = &Failure{Kind: fault.KindOf(cause).String(), Reason: reason(cause), Text: cause.Error(), Hint: fault.HintOf(cause)}
		p.Error = &receipt.Error{Kind: c.out.Error.Kind, Reason: c.out.Error.Reason}
	}
	var stdout, stderr canon.Digest
	if r := c.out.Result; r != nil && r.Evidence != nil {
		e, err := canon.Marshal(r.Evidence)
		if err != nil {
			return c.out, fault.New(fault.Internal, "evidence", "record result", err)
		}
		p.Evidence, stdout, stderr = e, r.Evidence.Output.StdoutDigest, r.Evidence.Output.StderrDigest
	}
	entry, err := c.k.state.sign(receipt.NewStatement(p, stdout, stderr))
	if less, ok := withoutList(p, err); ok {
		entry, err = c.k.state.sign(receipt.NewStatement(less, stdout, stderr))
	}
	if err != nil {
		return c.out, err
	}
	var bundle []byte // made while the disk writes; nobody sees it before that is done
	index, err := c.k.state.append(ctx, entry, false, c.intent, func(prove func() (journal.Proof, error)) {
		if p, err := prove(); err == nil {
			bundle, _ = entry.Bundle(p, c.k.state.trust) // tried again below, which says why not
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
		if bundle, err = c.k.state.receipt(index, entry); err != nil {
			return c.out, err
		}
	}
	c.out.Receipt = bundle
	c.k.step("receipt")
	c.observe(Event{Step: StepResult, Outcome: outcome, LogIndex: &index})
	return c.out, nil
}

// reason is the code of an error; there is always one.
func reason(err error) string {
	if r := fault.ReasonOf(err); r != "" {
		return r
	}
	return "internal"
}

// The exit statuses of a call that did not end by itself.
const (
	exitTimedOut = 124
	exitRefused  = 125
	exitDenied   = 126
	exitSignal   = 128
)

// exitStatus is the status that stands for an outcome: the program's own, 128+n
// for signal n, 124 timed out, 126 denied or not approved, else 125.
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
			return exitSignal + 9 // ended by us, whatever the program would have said
		}
	}
	return exitRefused
}

func (s *state) sign(st receipt.Statement) (*receipt.Entry, error) {
	return receipt.SignEntry(s.ring.Attestation(), st)
}

// append logs a signed statement. opens says that it is an intent, closes which one
// it answers. meanwhile is for journal.AppendMeanwhile, and may be nil.
func (s *state) append(ctx context.Context, e *receipt.Entry, opens bool, closes *uint64, meanwhile func(func() (journal.Proof, error))) (uint64, error) {
	began := time.Now()
	pos, err := s.journal.AppendMeanwhile(ctx, journal.Entry{Leaf: e.Leaf(), Content: e.Content(), Opens: opens, Closes: closes}, meanwhile)
	if err == nil && s.observe != nil {
		s.observe(Event{Step: StepLogged, LogIndex: &pos.Index, Took: time.Since(began)})
	}
	return pos.Index, err
}

func (s *state) receipt(index uint64, e *receipt.Entry) ([]byte, error) {
	p, err := s.journal.Prove(index)
	if err != nil {
		return nil, err
	}
	return e.Bundle(p, s.trust)
}

// logged is the entry of the journal with this content.
func (s *state) logged(content []byte) (*receipt.Entry, error) {
	env, err := receipt.ParseEnvelope(content)
	if err != nil {
		return nil, err
	}
	return env.Entry(s.ring.Attestation())
}

// closeOrphans writes the result of every intent that has none and whose call is not
// under way, here or in another process: a crash came between the two, and what
// happened is not known.
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
	// A call that is over by now has its result in the journal, where it is found
	// before anything is written: an intent is closed once.
	alive, err := s.live.Marked(calls)
	if err != nil {
		return err
	}
	for n, i := range open {
		if alive[calls[n]] {
			continue
		}
		if err := s.closeOrphan(ctx, i); err != nil && fault.ReasonOf(err) != journal.ReasonNotOpen {
			return err
		}
	}
	return nil
}

// callOf reads the call id of the intent at this index, and verifies nothing.
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
		return "", fault.New(fault.Integrity, "orphan_not_intent", fmt.Sprintf("read intent %d", i), nil)
	}
	return st.Predicate.CallID, nil
}

// closeOrphan verifies the intent at this index and writes its result.
func (s *state) closeOrphan(ctx context.Context, i uint64) error {
	content, err := s.journal.Content(i)
	if err != nil {
		return err
	}
	e, err := s.logged(content)
	if err != nil {
		return err
	}
	b, err := s.receipt(i, e)
	if err != nil {
		return err
	}
	v, err := receipt.Verify(b, s.trust)
	if err != nil {
		return err
	}
	st := v.Statement
	if !st.IsIntent() {
		return fault.New(fault.Integrity, "orphan_not_intent", fmt.Sprintf("close intent %d", i), nil)
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
