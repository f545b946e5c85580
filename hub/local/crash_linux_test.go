package local

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"palyra/hub"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/kernel"
)

// The crash tests run the test binary as a daemon that is killed with SIGKILL at one named
// step of hub, run, approval, store or kernel. Everything that it acknowledged must be
// there afterwards, every run must have an end, no step may have been made twice, and the
// oracles must find nothing.
const asVictim = "PALYRA_TEST_HUB_VICTIM" // JSON of victim

type victim struct {
	Base, Bins string
	Step       string // "" counts the steps instead
	Nth        int    // which occurrence of Step kills
	Word       string // an argument that marks the processes
}

// beVictim makes calls, asks for approval, cancels and stops. It prints what it
// was told: "run <id>" for a run that was acknowledged, "end <id> <state>" for
// one whose end was, "did <word>" for an effect.
func beVictim(spec string) int {
	var v victim
	if err := json.Unmarshal([]byte(spec), &v); err != nil {
		return 2
	}
	var mu sync.Mutex
	seen := make(map[string]int) // guarded by mu
	reached := func(name string) {
		mu.Lock()
		defer mu.Unlock()
		seen[name]++
		if v.Step == "" {
			fmt.Printf("step %s %d\n", name, seen[name])
		}
		if name == v.Step && seen[name] == v.Nth {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal arrives
		}
	}
	if err := v.live(reached); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

func (v victim) live(reached func(string)) error {
	ctx := context.Background()
	h, err := open(ctx, v.Base, v.Bins, func(c *Config, k *kernel.Config) {
		c.AllowSelf, c.TestOnlyStep, k.TestOnlyStep = true, reached, reached
	})
	if err != nil {
		return err
	}
	uid := uint32(os.Geteuid())
	me, err := h.Authenticate(ctx, hub.Credential{PeerUID: &uid, Surface: "unix"})
	if err != nil {
		return err
	}
	until := func(run, kind string) error {
		tape, err := hub.ReadTape.Do(ctx, h, me, hub.TapeQuery{Run: run})
		if err != nil {
			return err
		}
		defer tape.Close()
		for {
			ev, err := tape.Next(ctx)
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if ev.Kind == kind {
				return nil
			}
			if s, ok := strings.CutPrefix(ev.Kind, "run."); ok && store.RunState(s).Terminal() {
				fmt.Printf("end %s %s\n", run, s)
			}
		}
	}
	start := func(session string, steps ...hub.Step) (string, error) {
		r, err := hub.StartRun.Do(ctx, h, me, hub.NewRun{Session: session, Steps: steps})
		fmt.Printf("run %s\n", r.ID)
		return r.ID, err
	}
	session, err := hub.CreateSession.Do(ctx, h, me, hub.NewSession{})
	if err != nil {
		return err
	}
	s := argv("/bin/true")
	r, err := hub.Call.Do(ctx, h, me, hub.NewCall{Tool: s.Tool, Input: s.Input})
	if err != nil {
		return err
	}
	fmt.Printf("end %s %s\n", r.ID, r.State)

	// Two steps with an effect that a person allows; a second effect would show.
	run, err := start(session.ID, argv("/bin/true"), appendTo("one"))
	if err != nil {
		return err
	}
	if err := until(run, hub.EventRunWaitingApproval); err != nil {
		return err
	}
	p, err := hub.ListApprovals.Do(ctx, h, me, hub.ApprovalQuery{State: hub.ApprovalPending})
	if err != nil {
		return err
	}
	if _, err := hub.ResolveApproval.Do(ctx, h, me, hub.Resolution{ID: p.Items[0].ID, Version: p.Items[0].Version, Answer: hub.Answer{Approve: true}}); err != nil {
		return err
	}
	if err := until(run, ""); err != nil {
		return err
	}
	fmt.Println("did one")

	// One that is cancelled, and one behind it.
	long, err := start(session.ID, argv("/bin/sleep", v.Word))
	if err != nil {
		return err
	}
	behind, err := start(session.ID, argv("/usr/bin/seq", "5000"))
	if err != nil {
		return err
	}
	if err := until(long, hub.EventStepDecided); err != nil {
		return err
	}
	if _, err := hub.CancelRun.Do(ctx, h, me, long); err != nil {
		return err
	}
	if err := until(behind, ""); err != nil {
		return err
	}
	// And the end of everything.
	if long, err = start(session.ID, argv("/bin/sleep", v.Word)); err != nil {
		return err
	}
	if err := until(long, hub.EventStepStarted); err != nil {
		return err
	}
	if _, err := hub.Stop.Do(ctx, h, me, hub.StopRequest{All: true, DenyNew: true}); err != nil {
		return err
	}
	fmt.Println("did stop")
	if _, err := hub.Resume.Do(ctx, h, me, hub.None{}); err != nil {
		return err
	}
	fmt.Println("did resume")
	return errors.Join(h.Close(ctx), h.st.Close(), h.k.Close())
}

func appendTo(word string) hub.Step {
	return step("fs.write_file", obj{"workspace": "src", "path": "effects", "mode": "append", "content": word + "\n"})
}

// told is what a victim printed.
type told struct {
	steps, runs, did []string
	ends             map[string]string
	killed           bool
}

func (v victim) run(t *testing.T) told {
	t.Helper()
	spec, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self)
	c.Env = append(os.Environ(), asVictim+"="+string(spec))
	var stderr bytes.Buffer
	c.Stderr = &stderr
	out, err := c.Output()
	got := told{ends: make(map[string]string)}
	st, ok := c.ProcessState.Sys().(syscall.WaitStatus)
	got.killed = ok && st.Signaled() && st.Signal() == syscall.SIGKILL
	if err != nil && !got.killed {
		t.Fatalf("victim at %q: %v\n%s", v.Step, err, stderr.Bytes())
	}
	sc := bufio.NewScanner(bytes.NewReader(out))
	for sc.Scan() {
		f := strings.Fields(sc.Text())
		switch {
		case len(f) == 3 && f[0] == "step":
			got.steps = append(got.steps, f[1]+" "+f[2])
		case len(f) == 3 && f[0] == "end":
			got.ends[f[1]] = f[2]
		case len(f) == 2 && f[0] == "run":
			got.runs = append(got.runs, f[1])
		case len(f) == 2 && f[0] == "did":
			got.did = append(got.did, f[1])
		}
	}
	return got
}

// asShips is set for the process that makes the crashes.
const asShips = "PALYRA_TEST_HUB_CRASH"

// TestCrash lives one life to its end, looked at by the race detector if there is one. The
// lives that are killed, and the next daemon's recovery of them, run in a test binary of
// this package that is built as palyrad is: there are a hundred, and a killed process
// reports no race. Without a go command the running binary has to do.
func TestCrash(t *testing.T) {
	base := t.TempDir()
	v := victim{Bins: bin(t)}
	at := func(name string) victim {
		v := v
		v.Base, v.Word = filepath.Join(base, name), fmt.Sprintf("900%s.%d", strings.TrimLeft(name, "abcdefghijklmnopqrstuvwxyz"), os.Getpid())
		if err := os.MkdirAll(filepath.Join(v.Base, "work"), 0o755); err != nil {
			t.Fatal(err)
		}
		return v
	}
	whole := at("count0")
	all := whole.run(t)
	if len(all.runs) != 4 || !slices.Equal(all.did, []string{"one", "stop", "resume"}) {
		t.Fatalf("without a crash: %+v", all)
	}
	whole.recovered(t, all)
	if os.Getenv(asShips) != "" || os.Getenv("PALYRA_TEST_BIN") != "" {
		crashes(t, all, at, sample.Of(2, 1), sample.Of(1, 3))
		return
	}
	exe := filepath.Join(v.Bins, "local.test")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", exe, "palyra/hub/local")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	c := exec.CommandContext(t.Context(), exe, "-test.run", "^TestCrash$", "-test.v", fmt.Sprintf("-test.short=%t", testing.Short()), "-test.timeout", "5m", "-test.parallel", "4")
	c.Env = append(os.Environ(), asShips+"=1", "PALYRA_TEST_BIN="+v.Bins)
	out, err := c.CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte("--- PASS: TestCrash (")) {
		t.Fatalf("%v\n%s", err, out)
	}
	_, said, _ := bytes.Cut(out, []byte("victims: "))
	said, _, _ = bytes.Cut(said, []byte("\n"))
	t.Logf("victims: %s", said)
}

// crashes lives few lives for one of every so many kinds of steps that all came to, killed there,
// and looks at what each left.
func crashes(t *testing.T, all told, at func(name string) victim, every, few int) {
	last := make(map[string]int)
	for _, s := range all.steps {
		name, n, _ := strings.Cut(s, " ")
		fmt.Sscan(n, new(int))
		last[name]++
	}
	for _, want := range []string{"run:created", "run:begun", "run:step", "run:called", "run:ended", "approval:asked", "approval:answered", "stop:cancelled", "stop:durable",
		"begun", "applied", "committed", "artifact_renamed", "sealed", "decided", "approved", "granted", "intent", "executed", "result"} {
		if last[want] == 0 {
			t.Errorf("step %q was never reached", want)
		}
	}
	n, killed := 0, new(atomic.Int32)
	t.Run("lives", func(t *testing.T) {
		for i, name := range slices.Sorted(maps.Keys(last)) {
			if i%every != 0 {
				continue
			}
			// The order of steps is the same in each life but for a few of the store.
			nths := slices.Compact([]int{1, max(1, last[name]/3), max(1, last[name]*2/3)})
			for k := range min(few, len(nths)) {
				nth := nths[(i+k)%len(nths)]
				n++
				v := at(fmt.Sprintf("v%d", n))
				v.Step, v.Nth = name, nth
				t.Run(strings.ReplaceAll(fmt.Sprintf("%s-%d", name, nth), "/", "-"), func(t *testing.T) {
					t.Parallel() // they wait for the disk
					got := v.run(t)
					if got.killed {
						killed.Add(1)
					}
					v.recovered(t, got)
				})
			}
		}
	})
	if int(killed.Load()) < n*9/10 {
		t.Errorf("only %d of %d victims were killed", killed.Load(), n)
	}
	t.Logf("victims: %d, %d of them killed", n, killed.Load())
}

// recovered opens what a victim left, as the next daemon would, and asks the oracles.
func (v victim) recovered(t *testing.T, got told) {
	t.Helper()
	for len(withWord(v.Word)) > 0 { // palyra-cell ends with its daemon, and they with it
		select {
		case <-t.Context().Done():
			t.Fatalf("survivors: %q", withWord(v.Word))
		case <-time.After(5 * time.Millisecond):
		}
	}
	h := &house{t: t, base: v.Base}
	h.reopen(nil)
	defer h.stop() // asks the oracles
	if s, err := hub.GetStatus.Do(t.Context(), h, h.owner, hub.None{}); err != nil || s.DenyNew != (slices.Contains(got.did, "stop") && !slices.Contains(got.did, "resume")) {
		// It was acting when it died.
		unknown := err == nil && (s.DenyNew || slices.Contains(got.did, "stop"))
		if !unknown {
			t.Errorf("deny_new %v after %q, %v", s.DenyNew, got.did, err)
		}
	}
	p, err := hub.ListRuns.Do(t.Context(), h, h.owner, hub.RunQuery{PageQuery: hub.PageQuery{Limit: 1000}})
	if err != nil {
		t.Fatal(err)
	}
	states := make(map[string]string)
	for _, r := range p.Items {
		done := h.ended(h.owner, r.ID)
		states[r.ID] = done.State
		calls := 0
		for _, s := range done.Steps {
			if s.State == hub.StepRunning || s.State == hub.StepPending {
				t.Errorf("step %d of %s run %s is %s", s.Index, done.State, r.ID, s.State)
			}
			if s.CallID != "" {
				calls++
			}
		}
		if done.State == hub.RunDone && calls != len(done.Steps) {
			t.Errorf("run %s is done with %d calls: %+v", r.ID, calls, done.Steps)
		}
	}
	for _, id := range got.runs {
		if states[id] == "" {
			t.Errorf("run %s was acknowledged and is gone", id)
		}
	}
	for id, state := range got.ends {
		if states[id] != state {
			t.Errorf("run %s ended as %s and is %s", id, state, states[id])
		}
	}
	b, err := os.ReadFile(filepath.Join(v.Base, "work", "effects"))
	if n := bytes.Count(b, []byte("one\n")); n > 1 || n == 0 && slices.Contains(got.did, "one") || err != nil && n > 0 {
		t.Errorf("the effect is there %d times", n)
	}
	q, err := hub.ListApprovals.Do(t.Context(), h, h.owner, hub.ApprovalQuery{State: hub.ApprovalPending})
	if err != nil || len(q.Items) > 0 {
		t.Errorf("%d questions are open, %v", len(q.Items), err)
	}
	// It works as if nothing had been.
	if h.brake.denies() {
		if _, err := hub.Resume.Do(t.Context(), h, h.owner, hub.None{}); err != nil {
			t.Error(err)
		}
	}
	if r := h.call(h.owner, argv("true")); r.State != hub.RunDone {
		t.Errorf("the next call: %s %s", r.State, r.Reason)
	}
	if _, err := hub.GetRun.Do(t.Context(), h, h.owner, "run_00000000000000000000000000000000"); fault.KindOf(err) != fault.NotFound {
		t.Error(err)
	}
}
