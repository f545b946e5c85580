package mcp

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"palyra/hub"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/toolproto"
)

// What a connection holds.
const (
	maxSessions = 8  // of palyrad, and so calls at a time; if a workspace is staged these share one
	maxPending  = 64 // calls that were answered pending and not fetched yet
)

// lookAfter is how long a call may take before its tape is opened.
const lookAfter = 300 * time.Millisecond

// server is one connection.
type server struct {
	cfg   Config
	title string                                        // of its sessions
	tell  func()                                        // tells the client that the tools have changed; nil: it can't be told
	hold  func(bytes int64) (release func(), err error) // takes room for an answer; nil: there is always some
	roots *roots                                        // the client's
	ctx   context.Context                               // of all calls
	stop  context.CancelFunc
	work  sync.WaitGroup // the calls under way

	mu      sync.Mutex
	tools   *table
	places  chan struct{}  // one for each call that has a session; made with the first tools
	idle    []string       // sessions, last used last
	servers string         // the session of calls of servers' tools, unless all have one
	changed map[their]bool // tools that a call was refused for, as changed, under tools.revision
	pending []*call        // answered pending, oldest first
	ended   bool

	together bool            // all calls are made in one session; set with places
	opening  sync.Mutex      // held while that is made
	claimed  map[string]bool // runs there that a call is known to be
}

// call is one call, from its request to its answer's being fetched.
type call struct {
	wait   string // its id for call_wait
	tool   string // as the model names it
	input  json.RawMessage
	key    canon.Digest // of tool and arguments
	cancel context.CancelFunc
	apart  bool          // it's for a program in the background
	their  *their        // nil: the tool is palyrad's
	room   room          // for the answer
	done   chan struct{} // closed when answer is set
	answer Answer

	mu      sync.Mutex
	state   string        // guarded by mu; how it stands, for people and models
	asked   string        // guarded by mu; the request for approval that it waits for
	began   bool          // guarded by mu; it has one of server.places
	line    string        // guarded by mu; the last line that its program wrote, for people
	told    sync.Once     // closes tells
	tells   chan struct{} // closed when a request wants to be told of progress
	changed chan struct{} // guarded by mu; closed and replaced with state
}

// room is what a call's answer has of its principal's room, until the answer is fetched.
type room struct {
	mu    sync.Mutex
	held  []func() // guarded by mu; each gives a part back
	freed bool     // guarded by mu; no one will fetch the answer
}

func (r *room) add(release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.freed {
		release()
		return
	}
	r.held = append(r.held, release)
}

func (r *room) free() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, release := range r.held {
		release()
	}
	r.held, r.freed = nil, true
}

func newServer(ctx context.Context, cfg Config) *server {
	s := &server{cfg: cfg, title: "palyra mcp serve", claimed: map[string]bool{}, roots: newRoots()}
	if cfg.Resolve != nil {
		s.roots.resolve = cfg.Resolve
	}
	s.ctx, s.stop = context.WithCancel(ctx)
	return s
}

// close ends what the connection holds.
func (s *server) close() {
	s.mu.Lock()
	s.ended = true
	s.mu.Unlock()
	s.stop()
	s.work.Wait()
	s.mu.Lock()
	for _, c := range s.pending {
		c.room.free()
	}
	s.pending = nil
	s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanup)
	defer cancel()
	if s.servers != "" {
		s.idle = append(s.idle, s.servers)
	}
	for _, id := range s.idle {
		// A session that stays open is empty, and counts towards its principal's.
		_, _ = hub.EndSession.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.SessionChange{ID: id})
	}
}

// callTool answers a request. A request that is cancelled ends its call. at is where it works if it
// names no workspace.
func (s *server) callTool(ctx context.Context, r *sdk.CallToolRequest, at place) (*Answer, error) {
	name := r.Params.Name
	if name == toolWait && s.cfg.Server == "" {
		c, no := s.find(r.Params.Arguments)
		if no != nil {
			return no, nil
		}
		return s.attend(ctx, c, r)
	}
	t, err := s.known(ctx)
	if err == nil && t.tools[name].Name == "" {
		t, err = s.renew(ctx) // it may have come since
	}
	if err != nil {
		return failed(hub.NameCall(name, r.Params.Arguments), err), nil
	}
	tool, ok := t.tools[name]
	if !ok {
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInvalidParams, Message: fmt.Sprintf("unknown tool %.100q", name)}
	}
	input, err := s.input(t, name, at, r.Params.Arguments)
	if err != nil {
		return failed(hub.NameCall(name, r.Params.Arguments), err), nil
	}
	var to *their
	if at, ok := t.theirs[name]; ok {
		to = &at
	}
	c, err := s.start(name, tool.Name, input, to)
	if _, ours := errors.AsType[*fault.Error](err); ours {
		return failed(hub.NameCall(name, r.Params.Arguments), err), nil
	}
	if err != nil {
		return nil, err
	}
	return s.attend(ctx, c, r)
}

// find returns the pending call that the arguments of call_wait name.
func (s *server) find(arguments json.RawMessage) (*call, *Answer) {
	var in struct {
		ID string `json:"id"`
	}
	if len(arguments) == 0 || json.Unmarshal(arguments, &in) != nil {
		return nil, failed(toolWait, fault.New(fault.Usage, "invalid_input", "read arguments", errors.New("want an id")))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.pending {
		if c.wait == in.ID {
			return c, nil
		}
	}
	return nil, &Answer{Told: hub.Told{Outcome: hub.ToldError, Reason: "not_found", Bad: true,
		Message: "No call with this id waits here: it was fetched already, or belongs to another connection."}}
}

// start makes a call, or returns the pending one that is the same.
func (s *server) start(name, tool string, input json.RawMessage, to *their) (*call, error) {
	same, err := canon.Canonical(input)
	if err != nil {
		same = input // palyrad says what is wrong with it
	}
	key := canon.Sum(slices.Concat([]byte(name), []byte{0}, same))
	if c := s.again(key); c != nil {
		return c, nil
	}
	free := func() {}
	if s.hold != nil {
		release, err := s.hold(answerBytes)
		if err != nil {
			return nil, err
		}
		free = release
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.againLocked(key); c != nil {
		free()
		return c, nil
	}
	if s.ended {
		free()
		return nil, &jsonrpc.Error{Code: jsonrpc.CodeInternalError, Message: "the connection ends"}
	}
	ctx, cancel := context.WithCancel(s.ctx)
	c := &call{wait: "wait_" + rand.Text()[:16], tool: name, input: input, key: key, cancel: cancel, their: to,
		apart: tool == runTool && toolproto.Background(input),
		done:  make(chan struct{}), tells: make(chan struct{}),
		state: "waits for another call to end", changed: make(chan struct{})}
	c.room.add(free)
	select {
	case s.places <- struct{}{}:
		c.begin()
	default:
	}
	s.work.Go(func() {
		defer cancel()
		c.answer = *s.run(ctx, c, tool)
		c.answer.theirs = to != nil
		close(c.done)
	})
	return c, nil
}

// again returns the pending call with this key, nil if there is none.
func (s *server) again(key canon.Digest) *call {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.againLocked(key)
}

func (s *server) againLocked(key canon.Digest) *call {
	if i := slices.IndexFunc(s.pending, func(c *call) bool { return c.key == key }); i >= 0 {
		return s.pending[i]
	}
	return nil
}

// attend waits for a call on behalf of a request.
func (s *server) attend(ctx context.Context, c *call, r *sdk.CallToolRequest) (*Answer, error) {
	token := r.Params.GetProgressToken()
	var late, beat <-chan time.Time
	if token == nil || s.cfg.Patience > 0 {
		t := time.NewTimer(cmp.Or(s.cfg.Patience, patience))
		defer t.Stop()
		late = t.C
	}
	if token != nil {
		c.told.Do(func() { close(c.tells) })
		t := time.NewTicker(tick)
		defer t.Stop()
		beat = t.C
	}
	for n := 0; ; n++ {
		state, changed := c.stands()
		if token != nil && n > 0 {
			// A client that doesn't listen still gets the answer.
			_ = r.Session.NotifyProgress(ctx, &sdk.ProgressNotificationParams{ProgressToken: token, Progress: float64(n), Message: state})
		}
		select {
		case <-c.done:
			select {
			case <-goneOf(ctx):
				return s.putOff(c), nil
			default:
			}
			s.fetched(c)
			return &c.answer, nil
		case <-ctx.Done():
			c.cancel()
			<-c.done
			s.fetched(c)
			return nil, context.Cause(ctx)
		case <-late:
			return s.putOff(c), nil
		case <-goneOf(ctx):
			return s.putOff(c), nil
		case <-changed:
		case <-beat:
		}
	}
}

// stands returns how the call stands, and what is closed when that changes.
func (c *call) stands() (string, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.line != "" {
		return c.state + "; its last line: " + c.line, c.changed
	}
	return c.state, c.changed
}

// begin says that the call has a place.
func (c *call) begin() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.began = "is under way", true
}

// now says how the call stands, and wakes those who tell it on.
func (c *call) now(state, asked string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.state, c.asked = state, asked
	c.wakeLocked()
}

func (c *call) wakeLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// fetched forgets a pending call.
func (s *server) fetched(c *call) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = slices.DeleteFunc(s.pending, func(p *call) bool { return p == c })
	c.room.free()
}

// putOff answers a request whose call isn't done. One that didn't get a session is given up:
// nothing may queue up that no request stands for.
func (s *server) putOff(c *call) *Answer {
	c.mu.Lock()
	began, state, asked := c.began, c.state, c.asked
	c.mu.Unlock()
	if !began {
		c.cancel()
		<-c.done
		c.room.free()
		if c.answer.Outcome != hub.ToldCancelled {
			return &c.answer // it was done at this very moment
		}
		return &Answer{Told: hub.Told{Outcome: hub.ToldError, Reason: "too_many", Bad: true,
			Message: fmt.Sprintf("Not made: as many calls as may be (%d) are under way. Wait for one of them (%s), then make this one again.", cap(s.places), toolWait)}}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended { // no one comes to fetch it
		c.room.free()
	} else if !slices.Contains(s.pending, c) {
		if len(s.pending) >= maxPending {
			// No more than maxSessions are under way, so there is one that has ended.
			i := slices.IndexFunc(s.pending, func(c *call) bool { return c.answered() })
			s.pending[i].room.free()
			s.pending = slices.Delete(s.pending, i, i+1)
		}
		s.pending = append(s.pending, c)
	}
	how := fmt.Sprintf("make the same call again or call %s with this wait; neither makes a second call", toolWait)
	if s.cfg.Server != "" {
		how = "make the same call again; that makes no second call"
	}
	return &Answer{theirs: c.their != nil, Told: hub.Told{Outcome: outcomePending, Wait: c.wait, Approval: asked, Message: fmt.Sprintf("Not done yet: %s %s. To get the outcome, %s.", hub.NameCall(c.tool, c.input), state, how)}}
}

// holds says that calls are under way that were put off, or answers wait to be fetched.
func (s *server) holds() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.pending) > 0
}

func (c *call) answered() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// run makes the call in a session of its own time.
func (s *server) run(ctx context.Context, c *call, tool string) *Answer {
	about := hub.NameCall(c.tool, c.input)
	if !c.began { // written before this goroutine began, or here
		select {
		case s.places <- struct{}{}:
			c.begin()
		case <-ctx.Done():
			return cancelled(about)
		}
	}
	defer func() { <-s.places }()
	lost := ""
	for {
		session, used, err := s.session(ctx, c)
		if err != nil {
			return failed(about, err)
		}
		r, err := s.runIn(ctx, c, session, tool)
		switch {
		case err == nil:
			a := s.answerTo(ctx, c, r)
			if c.their != nil && fault.Code(a.Reason) == fault.ErrToolChanged {
				s.drop(*c.their)
			}
			if lost != "" && a.Changes != "" {
				a.Message += " " + lost
			}
			s.release(c, session)
			return a
		case used && errors.Is(err, fault.ErrNoSession):
			lost = anew // it was ended by others; nothing ran
			s.lose(session)
			continue
		case ctx.Err() != nil:
			if s.shares(c) || s.clear(session) {
				s.release(c, session)
			}
			return cancelled(about)
		default:
			s.release(c, session)
			return failed(about, err)
		}
	}
}

// shares says that a call is made in a session beside others. A server has its state for a session,
// and is started for each.
func (s *server) shares(c *call) bool { return s.together || c.their != nil }

// session returns an idle session, or a new one; those that calls share stay. used says that it was
// made earlier.
func (s *server) session(ctx context.Context, c *call) (id string, used bool, err error) {
	if s.shares(c) {
		s.opening.Lock()
		defer s.opening.Unlock()
	}
	s.mu.Lock()
	switch n := len(s.idle); {
	case s.shares(c) && !s.together:
		id = s.servers
	case n > 0:
		if id = s.idle[n-1]; !s.together {
			s.idle = s.idle[:n-1]
		}
	}
	s.mu.Unlock()
	if id != "" {
		return id, true, nil
	}
	n, err := hub.CreateSession.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.NewSession{Title: s.title})
	if err == nil && s.shares(c) {
		s.mu.Lock()
		if s.together {
			s.idle = append(s.idle, n.ID)
		} else {
			s.servers = n.ID
		}
		s.mu.Unlock()
	}
	return n.ID, false, err
}

func (s *server) release(c *call, session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.shares(c) {
		s.idle = append(s.idle, session)
	}
}

// lose forgets a session that has ended.
func (s *server) lose(session string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = slices.DeleteFunc(s.idle, func(id string) bool { return id == session })
	if s.servers == session {
		s.servers = ""
	}
}

// runIn makes the call and looks after a while how it stands.
func (s *server) runIn(ctx context.Context, c *call, session, tool string) (*hub.Run, error) {
	watch, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	watching.Go(func() { s.watch(watch, c, session, tool) })
	defer watching.Wait()
	defer stop()
	r, err := hub.Call.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.NewCall{Session: session, Tool: tool, Input: c.input, Staged: s.cfg.Staged, Parallel: s.shares(c)})
	if err == nil && len(r.Steps) == 0 { // palyrad had no room for them in its answer
		r, err = hub.GetRun.Do(ctx, s.cfg.Hub, hub.Caller{}, r.ID)
	}
	if err == nil && len(r.Steps) != 1 {
		err = fault.New(fault.Integrity, "bad_answer", "call", fmt.Errorf("a run of %d steps", len(r.Steps)))
	}
	return &r, err
}

// active are the states of a run that hasn't ended.
var active = []string{hub.RunPending, hub.RunAccepted, hub.RunInProgress, hub.RunWaitingApproval}

// runs returns the runs of a session that haven't ended, in the background or not. Of the others
// there is one at most, unless all calls share the session.
func (s *server) runs(ctx context.Context, session string, background bool) ([]hub.Run, error) {
	p, err := hub.ListRuns.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.RunQuery{Session: session, States: active})
	return slices.DeleteFunc(p.Items, func(r hub.Run) bool { return r.Background != background }), err
}

// watch follows the tape of a call that takes long. What it can't learn the request isn't
// told; the answer comes all the same.
func (s *server) watch(ctx context.Context, c *call, session, tool string) {
	t := time.NewTimer(lookAfter)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
		return
	}
	run := s.runOf(ctx, c, session, tool)
	if run == "" {
		return
	}
	defer s.unclaim(run)
	s.follow(ctx, c, run, "")
}

// follow tells how a call stands by the tape of a run: its own, or that of the start of the server
// that it waits for.
func (s *server) follow(ctx context.Context, c *call, run, starts string) {
	tape, err := hub.ReadTape.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.TapeQuery{Run: run})
	if err != nil {
		return
	}
	defer tape.Close()
	ctx, stop := context.WithCancel(ctx)
	var listening sync.WaitGroup
	defer listening.Wait()
	defer stop()
	waits, goes := "waits for a person's answer", "was answered by a person and goes on"
	if starts != "" {
		waits, goes = fmt.Sprintf("waits for the MCP server %q, whose start waits for a person's answer", starts), fmt.Sprintf("waits for the MCP server %q, whose start a person has answered", starts)
	}
	var started func() // ends the look at the start
	for {
		e, err := tape.Next(ctx)
		if err != nil {
			return
		}
		switch e.Kind {
		case hub.EventStepOutput:
			if starts == "" {
				listening.Go(func() { s.listen(ctx, c, run) })
			}
		case hub.EventServerStarting:
			var st hub.ServerStarting
			if starts == "" && json.Unmarshal(e.Data, &st) == nil && st.Run != "" {
				c.now(fmt.Sprintf("waits for the MCP server %q, which starts as %s", st.Server, st.Run), "")
				start, cancel := context.WithCancel(ctx)
				over := make(chan struct{})
				listening.Go(func() { defer close(over); s.follow(start, c, st.Run, st.Server) })
				started = func() { cancel(); <-over }
			}
		case hub.EventStepDecided:
			if started != nil {
				started()
				c.now("is under way", "")
			}
		case hub.EventApprovalRequested:
			var a hub.Approval
			if json.Unmarshal(e.Data, &a) == nil && a.ID != "" {
				c.now(fmt.Sprintf("%s (palyra approvals show %s, then approve or deny)", waits, a.ID), a.ID)
			}
		case hub.EventApprovalResolved:
			c.now(goes, "")
			if starts != "" {
				return
			}
		}
	}
}

// runOf returns the run that a call is, or "". Among several of a session it's one with the
// call's tool and input that no other call is.
func (s *server) runOf(ctx context.Context, c *call, session, tool string) string {
	runs, err := s.runs(ctx, session, c.apart)
	if err != nil {
		return ""
	}
	want, _ := canon.Canonical(c.input)
	for _, r := range runs {
		if !s.shares(c) && !c.apart {
			return r.ID
		}
		if r, err = hub.GetRun.Do(ctx, s.cfg.Hub, hub.Caller{}, r.ID); err != nil || len(r.Steps) != 1 || r.Steps[0].Tool != tool {
			continue
		}
		if got, err := canon.Canonical(r.Steps[0].Input); err == nil && bytes.Equal(got, want) && s.claim(r.ID) {
			return r.ID
		}
	}
	return ""
}

func (s *server) claim(run string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.claimed[run] {
		return false
	}
	s.claimed[run] = true
	return true
}

func (s *server) unclaim(run string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.claimed, run)
}

// clear ends what a cancelled call left in its session, and reports whether that can be used
// again. palyrad cancels the run of a caller that is gone by itself; this waits for it. What
// earlier calls started in the background goes on.
func (s *server) clear(session string) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), cleanup)
	defer cancel()
	runs, err := s.runs(ctx, session, false)
	for _, r := range runs {
		if err == nil {
			_, err = hub.CancelRun.Do(ctx, s.cfg.Hub, hub.Caller{}, r.ID)
		}
	}
	if err == nil {
		return true
	}
	_, _ = hub.EndSession.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.SessionChange{ID: session})
	return false
}

// listen puts down the last line that a call's program writes, for requests that are told of
// progress.
func (s *server) listen(ctx context.Context, c *call, run string) {
	select {
	case <-c.tells:
	case <-ctx.Done():
		return
	}
	out, err := hub.ReadOutput.Do(ctx, s.cfg.Hub, hub.Caller{}, hub.OutputQuery{Run: run})
	if err != nil {
		return
	}
	defer out.Close()
	wake := time.AfterFunc(lineEvery, c.wake)
	wake.Stop()
	defer wake.Stop()
	var ends [2][]byte // of the streams, not more than a line needs
	var last time.Time
	for {
		p, err := out.Next(ctx)
		if err != nil {
			return
		}
		end := &ends[0]
		if p.Stream == "stderr" {
			end = &ends[1]
		}
		if *end = append(*end, p.Bytes()...); len(*end) > maxQuoted {
			*end = append([]byte(nil), (*end)[len(*end)-maxQuoted:]...)
		}
		line := lastLine(*end)
		c.mu.Lock()
		changed := line != "" && line != c.line
		if changed {
			c.line = line
		}
		c.mu.Unlock()
		if now := time.Now(); changed && now.Sub(last) >= lineEvery {
			last = now
			c.wake()
		} else if changed {
			wake.Reset(lineEvery - now.Sub(last))
		}
	}
}

func (c *call) wake() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wakeLocked()
}
