package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"palyra/agentloop/turn"
	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// exitUnanswered is the status of an agent's run that ended without an answer.
const exitUnanswered = 1

// agentRun has a model work on a prompt, and prints what it says and calls as that comes.
func (a *app) agentRun(ctx context.Context, inv *command.Invocation) (*result, error) {
	n := newAgent(inv)
	var err error
	n.IdempotencyKey = command.Value(inv, "key", "")
	if n.Agent.Prompt, err = a.prompt(inv.Operands[0]); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if n.Session, err = a.agentSession(ctx, inv, h); err != nil {
		return nil, err
	}
	r, err := a.askModel(ctx, inv, h, n)
	if err != nil {
		return nil, err
	}
	a.goOn(inv, r)
	return a.answered(inv, r), nil
}

// agentChat reads prompts, a line each, and has a model answer one after the other.
func (a *app) agentChat(ctx context.Context, inv *command.Invocation) (*result, error) {
	n := newAgent(inv)
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	if err := hasModel(ctx, h, n.Agent.Model); err != nil {
		return nil, err
	}
	if n.Session, err = a.agentSession(ctx, inv, h); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(a.stdin)
	lines.Buffer(nil, hub.MaxPrompt)
	for {
		a.invite("> ")
		if !lines.Scan() {
			a.invite("\n")
			break
		}
		if n.Agent.Prompt = strings.TrimSpace(lines.Text()); n.Agent.Prompt == "" {
			continue
		}
		r, err := a.askModel(ctx, inv, h, n)
		if err != nil {
			return nil, err
		}
		a.unanswered(r)
		a.took(r)
	}
	if err := lines.Err(); err != nil {
		return nil, fault.New(fault.Usage, "too_large", "read prompt", fmt.Errorf("a line of more than %d bytes: %w", hub.MaxPrompt, err))
	}
	fmt.Fprintf(a.stderr, "palyra: palyra agent chat --session %s goes on with this\n", cell(n.Session))
	return &result{streamed: true}, nil
}

// invite asks for a line where a person sees it.
func (a *app) invite(text string) {
	if terminal.Columns(a.stderr) > 0 {
		fmt.Fprint(a.stderr, text)
	}
}

// agentAttach follows the run of an agent to its end.
func (a *app) agentAttach(ctx context.Context, inv *command.Invocation) (*result, error) {
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	r, err := hub.GetRun.Do(ctx, h, hub.Caller{}, inv.Operands[0])
	if err != nil {
		return nil, err
	}
	if r.Agent == nil {
		return nil, fault.New(fault.Usage, "invalid_input", "attach to run "+r.ID, errors.New("no agent chooses its steps")).
			WithHint("palyra runs output --follow " + r.ID + " prints what they write")
	}
	if err := a.watchAgent(ctx, h, r.ID, !inv.Has("json")); err != nil {
		return nil, err
	}
	if r, err = hub.GetRun.Do(ctx, h, hub.Caller{}, r.ID); err != nil {
		return nil, err
	}
	return a.answered(inv, &r), nil
}

// agentTell says something to an agent at work.
func (a *app) agentTell(ctx context.Context, inv *command.Invocation) (*result, error) {
	in := hub.RunInput{Run: inv.Operands[0], Said: hub.AgentWord{Mode: hub.InputSteer}}
	switch now, after := inv.Has("now"), inv.Has("after"); {
	case now && after:
		return nil, fault.New(fault.Usage, "bad_command", "agent tell", errors.New("--now and --after exclude each other"))
	case now:
		in.Said.Mode = hub.InputInterrupt
	case after:
		in.Said.Mode = hub.InputFollowUp
	}
	var err error
	if in.Said.Text, err = a.prompt(inv.Operands[1]); err != nil {
		return nil, err
	}
	h, err := a.connect(inv)
	if err != nil {
		return nil, err
	}
	taken, err := hub.SendInput.Do(ctx, h, hub.Caller{}, in)
	if err != nil {
		return nil, err
	}
	return text(front.Document{"seq": taken.Seq}, ""), nil
}

func newAgent(inv *command.Invocation) hub.NewRun {
	return hub.NewRun{Staged: inv.Has("staged"), Agent: &hub.Agent{Model: command.Value(inv, "model", ""), Turns: int(command.Value(inv, "turns", int64(0))), Workspace: command.Value(inv, "workspace", "")},
		Budget: hub.Budget{Calls: command.Value(inv, "max-calls", int64(0)), Wall: command.Value(inv, "max-wall", time.Duration(0))}}
}

// prompt is an operand, or standard input where that is "-".
func (a *app) prompt(operand string) (string, error) {
	if operand != "-" {
		return operand, nil
	}
	b, err := io.ReadAll(io.LimitReader(a.stdin, hub.MaxPrompt+1))
	if err != nil {
		return "", fault.New(fault.Usage, "invalid_input", "read prompt", err)
	}
	return string(b), nil
}

// agentSession is the session of --session, or a new one, which stays open: the next prompt goes
// on there.
func (a *app) agentSession(ctx context.Context, inv *command.Invocation, h hub.Hub) (string, error) {
	if id := command.Value(inv, "session", ""); id != "" {
		_, err := hub.GetSession.Do(ctx, h, hub.Caller{}, id)
		return id, err
	}
	s, err := hub.CreateSession.Do(ctx, h, hub.Caller{}, hub.NewSession{Title: "palyra agent"})
	return s.ID, err
}

// hasModel returns an error for a model that palyrad doesn't have, before a prompt is read for it.
func hasModel(ctx context.Context, h hub.Hub, name string) error {
	p, err := hub.ListModels.Do(ctx, h, hub.Caller{}, hub.None{})
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(p.Items, func(m hub.Model) bool { return m.Name == name || name == "" && m.Default }) {
		return fault.New(fault.Usage, "not_found", fmt.Sprintf("ask model %.80q", name), errors.New("palyrad has none of this name")).WithHint(fault.Lists("model"))
	}
	return nil
}

// askModel begins a run and follows it to its end. An interrupt cancels it.
func (a *app) askModel(ctx context.Context, inv *command.Invocation, h hub.Hub, n hub.NewRun) (*hub.Run, error) {
	made, err := hub.StartRun.Do(ctx, h, hub.Caller{}, n)
	if err != nil {
		return nil, err
	}
	if !inv.Has("json") {
		fmt.Fprintf(a.stderr, "palyra: palyra agent tell %s … says more meanwhile\n", cell(made.ID))
	}
	if err := a.watchAgent(ctx, h, made.ID, !inv.Has("json")); err != nil {
		if unanswered(err) {
			return nil, fault.New(fault.Unavailable, fault.ReasonOf(err), "follow run "+made.ID, err).
				WithHint("it goes on when palyrad does: palyra agent attach " + made.ID)
		}
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
		defer cancel()
		if _, cerr := hub.CancelRun.Do(end, h, hub.Caller{}, made.ID); cerr != nil || ctx.Err() == nil {
			return nil, errors.Join(err, cerr)
		}
	}
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
	defer cancel()
	made, err = hub.GetRun.Do(end, h, hub.Caller{}, made.ID)
	return &made, err
}

// answered is the result of a run: its text was printed as it came.
func (a *app) answered(inv *command.Invocation, r *hub.Run) *result {
	res := text(front.Document{"run": r}, "")
	if !inv.Has("json") {
		a.unanswered(r)
		a.took(r)
	}
	if r.State != hub.RunDone {
		res.Exit = exitUnanswered
	}
	return res
}

// took says what a run's turns took, as the provider counts it.
func (a *app) took(r *hub.Run) {
	if r.Answer == nil || r.Answer.Usage == (hub.AgentUsage{}) {
		return
	}
	u := r.Answer.Usage
	cost := ""
	if u.Cost > 0 {
		cost = fmt.Sprintf(", cost %.4g", float64(u.Cost)/1e6)
	}
	fmt.Fprintf(a.stderr, "palyra: %s, %d tokens asked (%d of them from the cache), %d answered%s\n", turns(int64(r.Answer.Turns)), u.Input, u.Cached, u.Output, cost)
}

// unanswered says why a run has no answer.
func (a *app) unanswered(r *hub.Run) {
	if r.State == hub.RunDone {
		return
	}
	why := ""
	if r.Answer != nil {
		why = ": " + r.Answer.Error
	}
	fmt.Fprintf(a.stderr, "palyra: the run %s: %s%s\n", cell(r.State), cell(r.Reason), front.Escape(why))
	if d := fault.Do(r.Reason); d != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", d)
	}
}

// goOn says how to go on with a session that was made for the run, and with what it wrote.
func (a *app) goOn(inv *command.Invocation, r *hub.Run) {
	if inv.Has("json") {
		return
	}
	layer := ""
	for i := range r.Steps {
		if r.Steps[i].Layer != "" {
			layer = r.Steps[i].Layer
		}
	}
	if layer != "" {
		fmt.Fprintf(a.stderr, "palyra: what was written is in layer %[1]s, not on the host: palyra changes diff %[1]s\n", cell(layer))
	}
	if command.Value(inv, "session", "") == "" {
		fmt.Fprintf(a.stderr, "palyra: palyra agent run --session %s … goes on with this\n", cell(r.Session))
	}
}

// watchAgent follows the run of an agent to its end. If show is true it prints the model's words to
// standard output as they come, and its calls and what became of them to standard error.
func (a *app) watchAgent(ctx context.Context, h hub.Hub, run string, show bool) error {
	t, err := hub.ReadTape.Do(ctx, h, hub.Caller{}, hub.TapeQuery{Run: run})
	if err != nil {
		return err
	}
	defer t.Close()
	ctx, stop := context.WithCancel(ctx)
	var asking sync.WaitGroup
	defer asking.Wait()
	defer stop()
	var asked question
	defer asked.end()
	tools := make(map[int]string)
	var said *saying
	defer func() { said.close() }()
	for {
		e, err := t.Next(ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !show && e.Kind != hub.EventApprovalRequested {
			continue
		}
		switch e.Kind {
		case hub.EventStepStarted:
			var s hub.StepStarted
			if json.Unmarshal(e.Data, &s) == nil {
				if tools[s.Step] = s.Tool; s.Tool == turn.Tool {
					said = a.listen(ctx, h, run, s.Step)
				}
			}
		case hub.EventStepEnded:
			var s hub.StepResult
			if json.Unmarshal(e.Data, &s) != nil {
				continue
			}
			if tools[s.Index] == turn.Tool {
				if err := said.end(s.Stdout.Size); err != nil {
					return err
				}
				said = nil
			}
			a.ended(tools[s.Index], &s)
		case hub.EventApprovalResolved:
			asked.end()
		case hub.EventApprovalRequested:
			var ap hub.Approval
			if json.Unmarshal(e.Data, &ap) == nil && ap.ID != "" {
				asked.end()
				ctx := asked.begin(ctx)
				asking.Go(func() { a.askHere(ctx, h, ap.ID, nil) })
			}
		}
	}
}

// ended says what became of a step.
func (a *app) ended(tool string, s *hub.StepResult) {
	switch {
	case tool == turn.Tool && s.Outcome == "executed":
		return
	case s.Denial != nil:
		fmt.Fprintf(a.stderr, "palyra: %s: %s by %s: %s\n", cell(tool), cell(cmp.Or(s.Outcome, notCalled)), cell(s.Denial.Layer), cell(s.Denial.Reason))
		if s.Denial.DecisionID != "" {
			fmt.Fprintf(a.stderr, "hint: palyra policy why %s\n", cell(s.Denial.DecisionID))
		}
		return
	case s.Outcome == "":
		fmt.Fprintf(a.stderr, "palyra: %s: %s: %s\n", cell(tool), notCalled, front.Escape(cmp.Or(s.Error, s.Reason)))
		if h := cmp.Or(s.Hint, fault.Do(s.Reason)); h != "" {
			fmt.Fprintf(a.stderr, "hint: %s\n", front.Escape(h))
		}
		return
	}
	receipt := ""
	if s.LogIndex != nil {
		receipt = fmt.Sprintf(", receipt %d", *s.LogIndex)
	}
	why := ""
	if s.Error != "" {
		why = ": " + front.Escape(s.Error)
	}
	fmt.Fprintf(a.stderr, "palyra: %s: %s, exit %d%s%s\n", cell(tool), cell(s.Outcome), s.Exit, receipt, why)
}

// saying prints a turn's answer while it comes.
type saying struct {
	stop context.CancelFunc
	done chan struct{} // closed when nothing more is read

	mu   sync.Mutex
	more chan struct{} // closed and replaced when something was read; guarded by mu
	got  int64         // bytes that were read; guarded by mu
	err  error         // of standard output; guarded by mu
}

// listen begins to print what a model answers in a step.
func (a *app) listen(ctx context.Context, h hub.Hub, run string, step int) *saying {
	ctx, stop := context.WithCancel(ctx)
	s := &saying{stop: stop, done: make(chan struct{}), more: make(chan struct{})}
	go func() {
		defer close(s.done)
		out, err := hub.ReadOutput.Do(ctx, h, hub.Caller{}, hub.OutputQuery{Run: run, Step: step})
		if err != nil {
			return // there may be no place for one more reader: runs output has it later
		}
		defer out.Close()
		var line []byte
		middle := false // of a line of the model's
		for {
			p, err := out.Next(ctx)
			if err != nil || p.Step != step {
				return
			}
			if p.Stream != "stdout" {
				continue
			}
			b := p.Bytes()
			line = append(line, b...)
			for {
				i := bytes.IndexByte(line, '\n')
				if i < 0 {
					break
				}
				var ev turn.Event
				if canon.Decode(line[:i], &ev, canon.Limits{Bytes: turn.MaxAnswer, Depth: 64}) == nil && err == nil {
					middle, err = a.say(&ev, middle)
				}
				line = line[i+1:]
			}
			s.mu.Lock()
			s.got += int64(len(b))
			s.err = err
			close(s.more)
			s.more = make(chan struct{})
			s.mu.Unlock()
		}
	}()
	return s
}

// say prints an event of an answer.
func (a *app) say(ev *turn.Event, middle bool) (bool, error) {
	out := front.Stdout(a.stdout)
	newline := func() error {
		if !middle {
			return nil
		}
		middle = false
		_, err := io.WriteString(out, "\n")
		return err
	}
	switch {
	case ev.Text != "":
		middle = !strings.HasSuffix(ev.Text, "\n")
		_, err := io.WriteString(out, ev.Text)
		return middle, err
	case ev.Call != nil:
		err := newline()
		what := hub.NameCall(ev.Call.Name, []byte(ev.Call.Arguments))
		if short, cut := strings.CutSuffix(what, "…"); cut {
			what = short + " ..."
		}
		fmt.Fprintf(a.stderr, "palyra: %s\n", front.Escape(what))
		return middle, err
	case ev.Error != nil:
		err := newline()
		fmt.Fprintf(a.stderr, "palyra: the model's provider: %s\n", front.Escape(ev.Error.Error()))
		return middle, err
	case ev.End != "":
		return middle, newline()
	}
	return middle, nil
}

// end waits until all of an answer was printed.
func (s *saying) end(size int64) error {
	if s == nil {
		return nil
	}
	defer s.close()
	for {
		s.mu.Lock()
		got, more, err := s.got, s.more, s.err
		s.mu.Unlock()
		if got >= size || err != nil {
			return err
		}
		select {
		case <-more:
		case <-s.done:
			return nil
		}
	}
}

func (s *saying) close() {
	if s == nil {
		return
	}
	s.stop()
	<-s.done
}
