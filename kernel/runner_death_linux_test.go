package kernel

import (
	"context"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

func (h *house) now(of tier.Tier) *lane {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.lanes[of]
}

// awaitDeath returns when the kernel knows that a lane's palyra-cell is gone.
func (h *house) awaitDeath(l *lane) {
	h.t.Helper()
	if l == nil {
		return // there was none
	}
	<-l.ready
	if l.err != nil {
		return
	}
	select {
	case <-l.runner.Died():
	case <-time.After(time.Minute):
		h.t.Fatal("palyra-cell does not die")
	}
}

// TestCellDies: palyra-cell is killed after the program had its effect. The call's outcome is
// unknown, and the next one runs.
func TestCellDies(t *testing.T) {
	for _, floor := range []tier.Tier{tier.B, tier.C} {
		t.Run(floor.String(), func(t *testing.T) {
			h := openHouse(t, Config{Approver: answer{yes: true}})
			ws := t.TempDir()
			if err := os.Chmod(ws, 0o777); err != nil {
				t.Fatal(err)
			}
			if os.Geteuid() == 0 { // tier B doesn't become root for a workspace
				if err := os.Chown(ws, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			p := proposal(unknown(t, "/bin/sh"), "-c", "echo x >>effect; echo done; sleep 600")
			p.Workspace, p.TierFloor = ws, floor
			o := h.call(p, IO{Stdout: writerFunc(func(b []byte) (int, error) {
				killCells(t)
				return len(b), nil
			})})
			if o.Outcome != receipt.OutcomeUnknown || o.Exit != exitRefused || o.Error.Reason != "cell_died" || !strings.Contains(o.Error.Hint, "may have run") {
				t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
			}
			if b, err := os.ReadFile(filepath.Join(ws, "effect")); string(b) != "x\n" {
				t.Errorf("the effect is %q, %v: the test would prove nothing", b, err)
			}
			// As recovery reports a palyra that died: an intent, and no evidence.
			st := h.verify(o).Statement
			if d := st.Predicate; d.Intent == nil || string(d.Evidence) != "null" || d.Error.Reason != "cell_died" || len(st.Subject) != 1 {
				t.Errorf("the statement is %+v", st)
			}
			p = proposal("true")
			p.TierFloor = floor
			if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
				t.Errorf("the next call: %s, %+v", o.Outcome, o.Error)
			}
			if r := h.audit(); r.Outcomes[receipt.OutcomeUnknown] != 1 || r.Outcomes[receipt.Executed] != 1 || len(r.Orphans) != 0 {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

// TestCellDiesIdle: a palyra-cell that dies between two calls costs neither of them.
func TestCellDiesIdle(t *testing.T) {
	h := openHouse(t, Config{})
	for range 3 {
		if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed {
			t.Fatalf("%s, %+v", o.Outcome, o.Error)
		}
		l := h.now(tier.C) // the default
		if n := killCells(t); n != 1 {
			t.Fatalf("%d palyra-cells", n)
		}
		h.awaitDeath(l)
	}
	if r := h.audit(); r.Outcomes[receipt.Executed] != 3 || r.Results != 3 {
		t.Errorf("audit: %+v", r)
	}
}

// TestCellDiesMeanwhile: palyra-cell dies while a person is asked. Nothing runs then, and the
// call can be made again.
func TestCellDiesMeanwhile(t *testing.T) {
	var h *house
	var asked int
	h = openHouse(t, Config{Approver: answer{yes: true, while: func(approval.Request) {
		if asked++; asked == 1 {
			l := h.now(tier.C)
			killCells(t)
			h.awaitDeath(l)
		}
	}}})
	p := proposal(unknown(t, "/bin/true"))
	if o := h.call(p, IO{}); o.Outcome != receipt.Refused || o.Error.Reason != "cell_died" || o.Intent != nil || o.Error.Hint == "" {
		t.Errorf("%s, %+v, intent %v", o.Outcome, o.Error, o.Intent)
	}
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Errorf("the next call: %s, %+v", o.Outcome, o.Error)
	}
	h.audit()
}

// late is a palyra-cell whose death is hidden from the kernel. If it's one of the dying ones,
// it dies before it's sent a call.
type late struct {
	*cell.Client
	dies bool
}

func (l *late) Died() <-chan struct{} { return nil }

func (l *late) Run(ctx context.Context, g grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	if l.dies {
		if err := l.TestOnlyKill(); err != nil {
			return nil, err
		}
		<-l.Client.Died()
	}
	return l.Client.Run(ctx, g, s, f)
}

// lateHouse is a kernel whose first palyra-cells die before they are sent a call. starts counts
// all of them.
func lateHouse(t *testing.T, starts *atomic.Int64, dying int64) *house {
	return openHouse(t, Config{Approver: answer{yes: true}, testOnlyStart: func(ctx context.Context, tr tier.Tier, key grant.Key) (runner, error) {
		c, err := cell.Start(ctx, cell.Config{Path: cellPath(t), Tier: tr, Key: key})
		return &late{c, starts.Add(1) <= dying}, err
	}})
}

// effect is a call that needs an approval and leaves a line in a file.
func effect(t *testing.T) (p *Proposal, file string) {
	ws := t.TempDir()
	if err := os.Chmod(ws, 0o777); err != nil {
		t.Fatal(err)
	}
	p = proposal(unknown(t, "/bin/sh"), "-c", "cat >>effect")
	p.Workspace, p.Stdin = ws, StdinStream
	return p, filepath.Join(ws, "effect")
}

// TestSendFails: a call that can't be sent to palyra-cell didn't run, says so, and can be
// proposed again. The next palyra-cell runs it, once, with all of its input.
func TestSendFails(t *testing.T) {
	var starts atomic.Int64
	h := lateHouse(t, &starts, 2)
	p, file := effect(t)
	for i := range int64(2) { // another palyra-cell each time
		o := h.call(p, IO{Stdin: strings.NewReader("x\n")})
		if o.Outcome != receipt.Failed || o.Exit != exitRefused || o.Error.Reason != "cell_died" || o.Intent == nil || o.Result != nil || !strings.Contains(o.Error.Hint, "propose the call again") {
			t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
		}
		if n := starts.Load(); n != i+1 {
			t.Errorf("%d palyra-cells for %d calls", n, i+1)
		}
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("it ran: %v", err)
	}
	if o := h.call(p, IO{Stdin: strings.NewReader("x\n")}); o.Outcome != receipt.Executed || o.Exit != 0 {
		t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
	}
	if b, err := os.ReadFile(file); string(b) != "x\n" || starts.Load() != 3 {
		t.Errorf("the effect is %q, %v, of %d palyra-cells", b, err, starts.Load())
	}
	if r := h.audit(); r.Outcomes[receipt.Failed] != 2 || r.Outcomes[receipt.Executed] != 1 || len(r.Orphans) != 0 {
		t.Errorf("audit: %+v", r)
	}
}

// stopCells stops every thread of the palyra-cells, so that they take no call.
func stopCells(t *testing.T) {
	t.Helper()
	pids := cells(t)
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
	}
	for end := time.Now().Add(time.Minute); ; {
		running := 0
		for _, pid := range pids {
			stats, _ := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/stat")
			for _, f := range stats {
				if b, err := os.ReadFile(f); err == nil && !strings.Contains(string(b), ") T ") {
					running++
				}
			}
		}
		if running == 0 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d threads do not stop", running)
		}
	}
}

// TestDiesUntaken: palyra-cell dies with the call in its queue. The kernel can tell that the
// call wasn't taken: it didn't run, and can be proposed again. TestCellDies has the other case.
func TestDiesUntaken(t *testing.T) {
	for _, floor := range []tier.Tier{tier.B, tier.C} {
		t.Run(floor.String(), func(t *testing.T) {
			var armed atomic.Bool
			h := openHouse(t, Config{Approver: answer{yes: true}, TestOnlyStep: func(step string) {
				switch {
				case step == "intent" && armed.Load():
					stopCells(t)
				case step == "run_sent" && armed.Swap(false):
					killCells(t)
				}
			}})
			p, file := effect(t)
			p.TierFloor = floor
			if os.Geteuid() == 0 { // tier B doesn't become root for a workspace
				if err := os.Chown(p.Workspace, 65534, 65534); err != nil {
					t.Fatal(err)
				}
			}
			for _, b := range []bool{false, true, false} {
				armed.Store(b)
				want := receipt.Executed
				if b {
					want = receipt.Failed
				}
				if o := h.call(p, IO{Stdin: strings.NewReader("x\n")}); o.Outcome != want || b && (o.Error.Reason != "cell_died" || !strings.Contains(o.Error.Hint, "propose the call again")) {
					t.Errorf("%s, exit %d, %+v", o.Outcome, o.Exit, o.Error)
				}
			}
			if b, err := os.ReadFile(file); string(b) != "x\nx\n" || armed.Load() {
				t.Errorf("the effects are %q, %v", b, err)
			}
			if r := h.audit(); r.Intents != 3 || r.Results != 3 || r.Outcomes[receipt.Executed] != 2 || r.Outcomes[receipt.Failed] != 1 {
				t.Errorf("audit: %+v", r)
			}
		})
	}
}

// mortal is a runner that dies on request, and records announced calls.
type mortal struct {
	fake
	born     time.Time
	died     chan struct{}
	expected chan expected
}

func (m *mortal) Died() <-chan struct{} { return m.died }

func (m *mortal) Expect(_ context.Context, network string, l isolate.Limits) (cell.Stats, error) {
	m.expected <- expected{network, l}
	return cell.Stats{}, nil
}

// TestRestart: a warm palyra-cell that dies is started again and gets the announcements. If it
// keeps dying, the waits grow.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		pass := func(d time.Duration) { <-time.After(d) } // of the bubble's time
		starts := make(chan *mortal, 100)
		kinds := make(chan expected, 100)
		var refuse atomic.Bool
		k := &Kernel{lanes: make(map[tier.Tier]*lane), cfg: Config{Warm: tier.C, testOnlyStart: func(context.Context, tier.Tier, grant.Key) (runner, error) {
			m := &mortal{born: time.Now(), died: make(chan struct{}), expected: kinds}
			starts <- m
			if refuse.Load() {
				return nil, fault.New(fault.Unavailable, "cell_start", "start palyra-cell", nil)
			}
			return m, nil
		}}}
		k.lane(tier.C)
		m := <-starts
		void := isolate.Limits{Wall: time.Minute}
		for _, e := range []expected{{"", isolate.Limits{}}, {"void", void}, {"", isolate.Limits{}}} {
			if err := k.Expect(t.Context(), e.network, e.limits); err != nil {
				t.Fatal(err)
			}
		}
		full, err := withDefaults(isolate.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		fullVoid, err := withDefaults(void)
		if err != nil {
			t.Fatal(err)
		}
		for range 3 {
			<-kinds
		}

		// It lived long: restart at once. It gets each kind once, the latest last.
		pass(steady)
		die := func() time.Duration {
			t.Helper()
			at := time.Now()
			close(m.died)
			m = <-starts
			return m.born.Sub(at)
		}
		if d := die(); d != 0 {
			t.Errorf("started after %v", d)
		}
		synctest.Wait()
		if got := []expected{<-kinds, <-kinds}; !reflect.DeepEqual(got, []expected{{"void", fullVoid}, {"", full}}) || len(kinds) != 0 {
			t.Errorf("expected %+v and %d more", got, len(kinds))
		}
		// It keeps dying: each wait is longer, up to a bound.
		for want := firstWait; want < 2*maxWait; want *= 2 {
			if d := die(); d != min(want, maxWait) {
				t.Errorf("started after %v, want %v", d, min(want, maxWait))
			}
			<-kinds
			<-kinds
		}
		// A call doesn't wait for that, and then nothing else is started.
		close(m.died)
		synctest.Wait()
		if l := k.lane(tier.C); l.wait(t.Context(), func() {}) != nil || l.over() {
			t.Error("a call found none")
		}
		m = <-starts
		pass(2 * maxWait)
		if len(starts) != 0 {
			t.Errorf("%d were started beside it", len(starts))
		}
		// One that can't be started is tried again, less and less often.
		refuse.Store(true)
		die()
		pass(time.Hour)
		if n := len(starts); n < 60 || n > 75 {
			t.Errorf("%d starts in an hour", n)
		}
		// Another tier's palyra-cell waits for the next call.
		refuse.Store(false)
		pass(2 * maxWait)
		for len(starts) > 0 {
			<-starts
		}
		k.lane(tier.B)
		b := <-starts
		close(b.died)
		pass(time.Hour)
		if len(starts) != 0 {
			t.Error("tier b was started without a call")
		}
		if k.lane(tier.B).over() {
			t.Error("a palyra-cell that died is used")
		}
		<-starts
		// None is started after closing.
		l := k.lane(tier.C)
		k.closeLanes()
		pass(time.Hour)
		if !closed(l.closed) || len(starts) != 0 {
			t.Error("started after the end")
		}
		k.dying.Wait()
	})
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// armed is a palyra-cell that reports when it has a cell for announced calls.
type armed struct {
	*cell.Client
	stats chan cell.Stats
}

func (a *armed) Expect(ctx context.Context, network string, l isolate.Limits) (cell.Stats, error) {
	st, err := a.Client.Expect(ctx, network, l)
	a.stats <- st
	return st, err
}

// TestCellsAgain: after palyra-cell's death, cells wait again without a call.
func TestCellsAgain(t *testing.T) {
	stats := make(chan cell.Stats, 100)
	h := openHouse(t, Config{Warm: tier.C, testOnlyStart: func(ctx context.Context, tr tier.Tier, key grant.Key) (runner, error) {
		c, err := cell.Start(ctx, cell.Config{Path: cellPath(t), Tier: tr, Key: key, Pool: cell.Pool{Cells: 1, MaxAge: time.Hour}})
		return &armed{c, stats}, err
	}})
	if err := h.Expect(t.Context(), "", isolate.Limits{}); err != nil {
		t.Fatal(err)
	}
	first := <-stats
	if n := killCells(t); n != 1 {
		t.Fatalf("%d palyra-cells", n)
	}
	select {
	case again := <-stats:
		if again.Waiting != first.Waiting {
			t.Errorf("%d cells wait, %d did", again.Waiting, first.Waiting)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing is expected of the next one")
	}
	if o := h.call(proposal("true"), IO{}); o.Outcome != receipt.Executed {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
}
