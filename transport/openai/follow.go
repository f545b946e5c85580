package openai

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"sync"
	"time"

	"palyra/agentloop/turn"
	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// lookEvery is how often a caller is looked at who follows a run: one whose token has ended is told
// no more.
const lookEvery = 500 * time.Millisecond

// item is one thing that comes of a run. One member is set.
type item struct {
	began    *hub.StepStarted
	said     *turn.Event // a piece of the answer of the turn under way
	ended    *hub.StepResult
	asked    *hub.Approval
	answered *hub.ApprovalResolved
	beat     bool // nothing came for a while
}

// follow gives what comes of a run to on, in order, until the run has ended, the client has gone or
// on returns an error.
// All that a turn said comes before its end.
func (x *exchange) follow(run string, on func(*item) error) error {
	return x.followTo(run, 0, on)
}

// followTo is follow up to an event of the run's tape. 0: up to its end.
func (x *exchange) followTo(run string, last uint64, on func(*item) error) error {
	ctx, h := x.r.Context(), x.v.Hub
	tape, err := hub.ReadTape.Do(ctx, h, hub.Caller{}, hub.TapeQuery{Run: run})
	if err != nil {
		return err
	}
	defer tape.Close()
	ctx, stop := context.WithCancel(ctx)
	var work sync.WaitGroup
	defer work.Wait()
	defer stop()
	f := &follower{ctx: ctx, hub: h, run: run, last: last, tape: tape, items: make(chan *item), over: make(chan error, 1)}
	work.Go(func() { f.over <- f.read(&work) })
	t, look := time.NewTimer(x.h.beat), time.NewTicker(lookEvery)
	defer t.Stop()
	defer look.Stop()
	for {
		var it *item
		select {
		case it = <-f.items:
		case <-t.C:
			it = &item{beat: true}
		case <-look.C:
			if err := x.v.May(); err != nil {
				return err
			}
			continue
		case err := <-f.over:
			return err
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		t.Reset(x.h.beat)
		if err := on(it); err != nil {
			return err
		}
	}
}

// follower reads a tape, and what turns say beside it.
type follower struct {
	ctx   context.Context
	hub   hub.Hub
	run   string
	last  uint64 // the event to stop behind, 0: none
	tape  hub.Tape
	items chan *item // what is read; never closed
	over  chan error // of read
}

func (f *follower) give(it *item) error {
	select {
	case f.items <- it:
		return nil
	case <-f.ctx.Done():
		return context.Cause(f.ctx)
	}
}

// read gives what the tape has. It returns nil behind the last event, or the run's end.
func (f *follower) read(work *sync.WaitGroup) error {
	tools := make(map[int]string)
	var said *saying
	defer func() { said.stop() }()
	for {
		e, err := f.tape.Next(f.ctx)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		it := new(item)
		switch e.Kind {
		case hub.EventStepStarted:
			var s hub.StepStarted
			if err := json.Unmarshal(e.Data, &s); err != nil {
				return err
			}
			tools[s.Step], it.began = s.Tool, &s
		case hub.EventStepEnded:
			var s hub.StepResult
			if err := json.Unmarshal(e.Data, &s); err != nil {
				return err
			}
			s.Tool = tools[s.Index]
			if said != nil {
				if err := said.finish(&s); err != nil {
					return err
				}
				said = nil
			}
			delete(tools, s.Index)
			it.ended = &s
		case hub.EventApprovalRequested:
			it.asked = new(hub.Approval)
			if err := json.Unmarshal(e.Data, it.asked); err != nil {
				return err
			}
		case hub.EventApprovalResolved:
			it.answered = new(hub.ApprovalResolved)
			if err := json.Unmarshal(e.Data, it.answered); err != nil {
				return err
			}
		default:
			it = nil
		}
		if it != nil {
			if err := f.give(it); err != nil {
				return err
			}
			if it.began != nil && it.began.Tool == turn.Tool {
				said = f.listen(work, it.began.Step)
			}
		}
		if f.last > 0 && e.Seq >= f.last {
			return nil
		}
	}
}

// saying is a turn's answer while it comes.
type saying struct {
	f    *follower
	step int
	end  context.CancelFunc
	done chan struct{} // closed when nothing more is read

	mu   sync.Mutex
	more chan struct{} // closed and replaced when something was read; guarded by mu
	got  int64         // bytes that were read; guarded by mu
	line []byte        // that isn't whole; owned by the reader, then by finish
}

// listen begins to give what a turn says. Of one whose end is on record it's read there.
func (f *follower) listen(work *sync.WaitGroup, step int) *saying {
	ctx, end := context.WithCancel(f.ctx)
	s := &saying{f: f, step: step, end: end, done: make(chan struct{}), more: make(chan struct{})}
	if f.last > 0 {
		close(s.done)
		return s
	}
	work.Go(func() {
		defer close(s.done)
		_ = s.read(ctx, "") // finish reads what it missed
	})
	return s
}

// read reads the answer from where it stands.
func (s *saying) read(ctx context.Context, until string) error {
	out, err := hub.ReadOutput.Do(ctx, s.f.hub, hub.Caller{}, hub.OutputQuery{Run: s.f.run, Step: s.step, Stdout: uint64(s.bytes()), Until: until})
	if err != nil {
		return err // there may be no place for one more reader
	}
	defer out.Close()
	for {
		p, err := out.Next(ctx)
		if err != nil || p.Step != s.step {
			return err
		}
		if p.Stream != "stdout" || p.Lost != "" {
			continue
		}
		if err := s.take(p.Bytes()); err != nil {
			return err
		}
	}
}

func (s *saying) bytes() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got
}

// take gives the events of a piece.
func (s *saying) take(b []byte) error {
	s.line = append(s.line, b...)
	for {
		i := bytes.IndexByte(s.line, '\n')
		if i < 0 {
			break
		}
		ev := new(turn.Event)
		if err := canon.Decode(s.line[:i], ev, canon.Limits{Bytes: turn.MaxAnswer, Depth: 64}); err != nil {
			return err
		}
		s.line = s.line[i+1:]
		if err := s.f.give(&item{said: ev}); err != nil {
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.got += int64(len(b))
	close(s.more)
	s.more = make(chan struct{})
	return nil
}

// finish waits until all of an answer was given. What couldn't be read while it came is read now.
func (s *saying) finish(st *hub.StepResult) error {
	defer s.stop()
	for {
		s.mu.Lock()
		got, more := s.got, s.more
		s.mu.Unlock()
		if got >= st.Stdout.Size {
			return nil
		}
		select {
		case <-more:
			continue
		case <-s.done:
		}
		if got = s.bytes(); got >= st.Stdout.Size {
			return nil
		}
		if got == 0 && int64(len(st.Stdout.Text)) == st.Stdout.Size {
			return s.take([]byte(st.Stdout.Text))
		}
		err := s.read(s.f.ctx, hub.UntilNow)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		if s.bytes() == 0 {
			return fault.New(fault.NotFound, "not_found", "read response", errors.New(cmp.Or(st.Stdout.LostWhy, "its text isn't kept any more")))
		}
		return nil
	}
}

func (s *saying) stop() {
	if s != nil {
		s.end()
		<-s.done
	}
}
