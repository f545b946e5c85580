package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/receiptfile"
	"palyra/hub"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// maxInput bounds a tool's input, as palyrad does.
const maxInput = 8 << 20

// cleanup bounds the work after an interrupt: cancelling a run takes 100 ms.
const cleanup = 10 * time.Second

// The statuses for the outcomes of a call, which are those of palyra exec.
const (
	exitTimedOut = 124
	exitRefused  = 125
	exitDenied   = 126
	exitKilled   = 128 + 9
)

// call makes a run of one step and follows its tape, so that a person sees the reason of a
// wait, and its output, if the program takes long. An interrupt cancels it.
func (a *app) call(ctx context.Context, inv *command.Invocation) (*result, error) {
	step := hub.Step{Tool: inv.Operands[0]}
	var err error
	if step.Input, err = a.input(inv); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	kept, err := receiptfile.Open(command.Value(inv, "receipt", ""))
	if err != nil {
		return nil, err
	}
	defer kept.Close()
	if step.Tool == "process.run" && toolproto.Background(step.Input) {
		return a.callBackground(ctx, inv, h, step, kept)
	}
	p := a.printer(inv)
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE) // a reader that leaves is an error of a write, and ends the call
	session := command.Value(inv, "session", "")
	key := command.Value(inv, "key", "")
	if session == "" && key != "" {
		// A key names a call for good, a session of its own would end with this
		// process: the daemon keeps the two together.
		r, err := hub.Call.Do(ctx, h, hub.Caller{}, hub.NewCall{Tool: step.Tool, Input: step.Input, Staged: inv.Has("staged"), Parallel: inv.Has("parallel"), IdempotencyKey: key, Budget: callBudget(inv)})
		if err != nil {
			return nil, err
		}
		return a.called(ctx, h, &r, p, kept)
	}
	r, over, err := a.makes(ctx, h, hub.NewRun{Session: session, Steps: []hub.Step{step}, Staged: inv.Has("staged"), Parallel: inv.Has("parallel"), IdempotencyKey: key, Budget: callBudget(inv)}, p, nil)
	defer over()
	if err != nil {
		return nil, err
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	return a.called(end, h, r, p, kept)
}

// makes makes a run, in a session of its own if none is named, and follows it to its end. over ends
// that session, and the run's artifacts go with it: the caller has read them by then.
func (a *app) makes(ctx context.Context, h hub.Hub, n hub.NewRun, p *printer, ask asker) (r *hub.Run, over func(), err error) {
	gone := false
	over = func() {}
	if n.Session == "" {
		s, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, hub.NewSession{Title: "palyra call"})
		if err != nil {
			return nil, over, err
		}
		n.Session = s.ID
		over = func() {
			if gone {
				return
			}
			end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
			defer cancel()
			// An open, empty session does no harm.
			_, _ = hub.EndSession.Do(end, h, hub.Caller{}, hub.SessionChange{ID: s.ID, Version: 0})
		}
	}
	made, err := hub.StartRun.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, over, err
	}
	r, gone, err = a.ends(ctx, h, made.ID, p, ask)
	return r, over, err
}

// ends follows a run to its end, and cancels it if ctx ends first. gone: palyrad doesn't answer any
// more.
func (a *app) ends(ctx context.Context, h hub.Hub, id string, p *printer, ask asker) (r *hub.Run, gone bool, err error) {
	if err := a.follow(ctx, h, id, p, ask); err != nil {
		if unanswered(err) {
			return nil, true, fault.New(fault.Unavailable, fault.ReasonOf(err), "follow run "+id, err).
				WithHint("it may have run: palyra runs show " + id + " says what became of it, once palyrad answers")
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if _, cerr := hub.CancelRun.Do(end, h, hub.Caller{}, id); cerr != nil {
			return nil, false, errors.Join(err, cerr)
		}
		if ctx.Err() == nil {
			return nil, false, err
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	made, err := hub.GetRun.Do(end, h, hub.Caller{}, id)
	if err != nil {
		return nil, false, err
	}
	return &made, false, nil
}

// callBackground starts a program and doesn't wait for its end. One that has ended already, or that
// didn't start, is printed as any call.
func (a *app) callBackground(ctx context.Context, inv *command.Invocation, h hub.Hub, step hub.Step, kept *receiptfile.File) (*result, error) {
	session := command.Value(inv, "session", "")
	if session == "" {
		return nil, fault.New(fault.Usage, "invalid_input", "call", errors.New("a program in the background ends with its session, and this call has none of its own")).
			WithHint("palyra sessions new prints one for --session")
	}
	r, err := hub.Call.Do(ctx, h, hub.Caller{}, hub.NewCall{Session: session, Tool: step.Tool, Input: step.Input, Staged: inv.Has("staged"), Parallel: inv.Has("parallel"),
		IdempotencyKey: command.Value(inv, "key", ""), Budget: callBudget(inv)})
	if err != nil {
		return nil, err
	}
	if len(r.Steps) != 1 || r.Steps[0].State != hub.StepRunning {
		return a.called(ctx, h, &r, a.printer(inv), kept)
	}
	return text(front.Document{"run": r}, "%s\n", cell(r.ID)), nil
}

func callBudget(inv *command.Invocation) hub.Budget {
	return hub.Budget{Wall: command.Value(inv, "max-wall", time.Duration(0))}
}

// input returns the second operand, or standard input where that is "-".
func (a *app) input(inv *command.Invocation) (json.RawMessage, error) {
	if len(inv.Operands) < 2 {
		return nil, nil
	}
	b := []byte(inv.Operands[1])
	if inv.Operands[1] == "-" {
		var err error
		if b, err = io.ReadAll(io.LimitReader(a.stdin, maxInput+1)); err != nil {
			return nil, fault.New(fault.Usage, "invalid_input", "read the tool's input", err)
		}
	}
	switch {
	case len(b) > maxInput:
		return nil, fault.New(fault.Usage, "too_large", "read the tool's input", fmt.Errorf("more than %d bytes", maxInput))
	case !json.Valid(b):
		return nil, fault.New(fault.Usage, "invalid_input", "read the tool's input", errors.New("not JSON")).WithHint(`want an object, such as '{"text":"hello"}'`)
	}
	return b, nil
}

// asker asks a person about a request that waits. It ends with ctx, when the request waits no more.
type asker func(ctx context.Context, id string)

// question is the one that a person is asked, if any.
type question struct{ cancel context.CancelFunc }

func (q *question) begin(ctx context.Context) context.Context {
	q.end()
	ctx, q.cancel = context.WithCancel(ctx)
	return ctx
}

func (q *question) end() {
	if q.cancel != nil {
		q.cancel()
	}
}

// follow prints the reason of a run's wait on standard error, or hands it to ask, and the run's
// output with p, until it has ended. called prints what is missing then.
func (a *app) follow(ctx context.Context, h hub.Hub, run string, p *printer, ask asker) error {
	t, err := hub.ReadTape.Do(ctx, h, hub.Caller{}, hub.TapeQuery{Run: run})
	if err != nil {
		return err
	}
	defer t.Close()
	wanted, gone := context.WithCancelCause(ctx) // by the reader of what the tool writes
	defer gone(nil)
	live, stop := context.WithCancel(ctx)
	var printing sync.WaitGroup
	defer printing.Wait()
	defer stop()
	var asked question
	defer asked.end()
	for {
		e, err := t.Next(wanted)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil && wanted.Err() != nil && ctx.Err() == nil:
			return context.Cause(wanted)
		case err != nil:
			return err
		}
		if e.Kind == hub.EventStepOutput && p != nil {
			printing.Go(func() {
				// palyrad may have no place for one more reader: then the output comes at the end.
				if err := p.follow(live, h, hub.OutputQuery{Run: run}); errors.Is(err, fault.ErrIO) {
					gone(err)
				}
			})
		}
		if e.Kind == hub.EventApprovalResolved {
			asked.end()
		}
		if e.Kind != hub.EventApprovalRequested {
			continue
		}
		var ap hub.Approval
		switch {
		case json.Unmarshal(e.Data, &ap) != nil || ap.ID == "":
		case ask == nil:
			fmt.Fprintf(a.stderr, "palyra: waits for approval: palyra approvals show %s\n", cell(ap.ID))
		default:
			ctx := asked.begin(live)
			printing.Go(func() { ask(ctx, ap.ID) })
		}
	}
}

// called prints the outcome of a call.
func (a *app) called(ctx context.Context, h hub.Hub, r *hub.Run, p *printer, kept *receiptfile.File) (*result, error) {
	if len(r.Steps) == 0 { // palyrad had no room for them in its answer
		whole, err := hub.GetRun.Do(ctx, h, hub.Caller{}, r.ID)
		if err != nil {
			return nil, err
		}
		r = &whole
	}
	if len(r.Steps) != 1 {
		return nil, fault.New(fault.Internal, "internal", "call", fmt.Errorf("a run of %d steps", len(r.Steps)))
	}
	s := &r.Steps[0]
	if kept != nil && s.LogIndex != nil {
		b, err := hub.GetReceipt.Do(ctx, h, hub.Caller{}, *s.LogIndex)
		if err != nil {
			return nil, err
		}
		if err := kept.Keep(b, *s.LogIndex, 0o600); err != nil {
			return nil, err
		}
	}
	offer(ctx, h, s)
	res := text(front.Document{"run": r}, "")
	res.Exit = callExit(r, s)
	if p == nil {
		return res, nil
	}
	for i, o := range []hub.Output{s.Stdout, s.Stderr} {
		if err := p.rest(ctx, h, r.ID, i, o); err != nil {
			return res, err
		}
	}
	a.explain(r, s)
	return res, nil
}

// offer asks what would have to change for a call that policy denied, since the denial
// itself doesn't say. It doesn't ask for a caller who was told no policy set: they may not
// read policy, and would only be refused once more. Without an answer the hint to ask
// remains.
func offer(ctx context.Context, h hub.Hub, s *hub.StepResult) {
	d := s.Denial
	if d == nil || d.Layer != hub.LayerPolicy || d.PolicySet.IsZero() || d.Fix != "" {
		return
	}
	if why, err := hub.GetDecision.Do(ctx, h, hub.Caller{}, d.DecisionID); err == nil {
		d.Fix = why.Fix
	}
}

// notCalled stands for the outcome of a step that has none.
const notCalled = "not called"

// explain says on standard error why a call did not end by itself.
func (a *app) explain(r *hub.Run, s *hub.StepResult) {
	l := newLines()
	switch {
	case s.Denial != nil:
		l.row("palyra: "+cmp.Or(s.Outcome, notCalled)+": "+dash(s.Denial.Reason), "by "+s.Denial.Layer, fmt.Sprint(s.Denial.Policies))
		io.WriteString(a.stderr, l.String())
		if s.Denial.Layer == hub.LayerPolicy {
			io.WriteString(a.stderr, fixText(s.Denial.Fix, s.Denial.DecisionID))
		} else if s.Denial.Fix != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", front.Escape(strings.TrimRight(s.Denial.Fix, "\n")))
		}
		if s.Denial.Comment != "" {
			fmt.Fprintf(a.stderr, "palyra: the person says: %s\n", cell(s.Denial.Comment))
		}
		if s.Denial.DecisionID != "" {
			fmt.Fprintf(a.stderr, "hint: palyra policy why %s says who decided it, and what would have to change\n", cell(s.Denial.DecisionID))
		}
		return
	case s.Outcome != "executed":
		why := cmp.Or(s.Error, s.Reason, "no reason is known")
		if !strings.Contains(why, s.Reason) {
			why += " (" + s.Reason + ")"
		}
		l.row("palyra: " + cmp.Or(s.Outcome, notCalled) + ": " + why)
		if r.Reason != "" {
			l.row("palyra: the run " + r.State + ": " + r.Reason)
		}
		l.row("hint: " + cmp.Or(s.Hint, fault.Do(s.Reason), "palyra runs show "+r.ID+" has all that is known"))
	}
	if s.Diagnosis != nil {
		l.row("palyra: note: " + s.Diagnosis.ForCall())
	}
	if s.Layer != "" {
		l.row(fmt.Sprintf("palyra: nothing of the workspace changed; what was written is in layer %[1]s: palyra changes diff %[1]s", s.Layer))
	}
	io.WriteString(a.stderr, l.String())
}

// callExit returns the status for an outcome.
func callExit(r *hub.Run, s *hub.StepResult) int {
	switch s.Outcome {
	case "executed":
		return s.Exit
	case "denied", "not_approved":
		return exitDenied
	case "timed_out":
		return exitTimedOut
	case "killed":
		return exitKilled
	}
	if r.State == hub.RunCancelled {
		return front.Exit(fault.New(fault.Canceled, "canceled", "", nil))
	}
	return exitRefused
}

// unanswered reports whether palyrad didn't answer, or not to the end.
func unanswered(err error) bool {
	return errors.Is(err, fault.ErrUnreachable) || errors.Is(err, fault.ErrConnectionLost)
}
