package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/crypt/receipt"
	"palyra/hub"
	"palyra/hub/local"
	"palyra/hub/store"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/kernel"
)

// The tests of this file kill palyrad or palyra-cell at named steps while many
// clients make calls. The palyrad that stops at a step is this package as a test
// binary, built as palyrad is; the palyra-cell is the one that ships. The test
// holds the step until it has killed.
const asVictim = "PALYRA_TEST_PALYRAD" // JSON of []point, or asInquiry

// point is a moment: the nth time that a named step is reached.
type point struct {
	Step string
	Nth  int
}

// victims builds the test binary once as palyrad is built: without cgo, so that
// it confines itself. Without a go command the running one has to do.
var victims = sync.OnceValues(func() (string, error) {
	if os.Getenv("PALYRA_TEST_BIN") != "" {
		return os.Executable()
	}
	dir, err := binaries()
	if err != nil {
		return "", err
	}
	at := filepath.Join(dir, "palyrad.test")
	cmd := exec.Command("go", "test", "-c", "-vet=off", "-ldflags=-s -w", "-o", at, "palyra/cmd/palyrad")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%w\n%s", err, out)
	}
	return at, nil
})

// beVictim is palyrad. At each point, in their order, it writes the step's name
// to descriptor 3 and waits for a byte on descriptor 4.
func beVictim(spec string) int {
	if spec == asInquiry {
		return beInquiry()
	}
	var points []point
	if err := json.Unmarshal([]byte(spec), &points); err != nil {
		return 2
	}
	syscall.CloseOnExec(3)
	syscall.CloseOnExec(4)
	tell, wait := os.NewFile(3, "tell"), os.NewFile(4, "wait")
	var mu sync.Mutex
	seen := 0 // of the point that comes next; guarded by mu, as points is
	flush, _ := time.ParseDuration(os.Getenv("PALYRA_TEST_FLUSH"))
	p := &program{stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(),
		executable:    func() (string, error) { return filepath.Join(os.Getenv("PALYRA_TEST_BINS"), "palyrad"), nil },
		testOnlyFlush: flush,
		testOnlyStep: func(name string) {
			mu.Lock()
			if len(points) == 0 || points[0].Step != name {
				mu.Unlock()
				return
			}
			if seen++; seen < points[0].Nth {
				mu.Unlock()
				return
			}
			next := points[1:]
			points, seen = nil, 0 // no other goroutine meanwhile
			mu.Unlock()
			fmt.Fprintln(tell, name)
			wait.Read(make([]byte, 1))
			mu.Lock()
			points = next
			mu.Unlock()
		}}
	return p.run(context.Background(), os.Args[1:])
}

// victim starts such a palyrad and returns it with what it tells, and how to let
// it go on.
func (p *place) victim(points ...point) (r *running, at <-chan string, goOn func()) {
	p.t.Helper()
	exe, err := victims()
	if err != nil {
		p.t.Fatal(err)
	}
	spec, err := json.Marshal(points)
	if err != nil {
		p.t.Fatal(err)
	}
	tell, told, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	waits, wait, err := os.Pipe()
	if err != nil {
		p.t.Fatal(err)
	}
	cmd := exec.Command(exe, "--config", p.config)
	cmd.ExtraFiles = []*os.File{told, waits}
	r = p.launchAs(cmd, asVictim+"="+string(spec), "PALYRA_TEST_BINS="+p.bin, "PALYRA_TEST_FLUSH="+os.Getenv("PALYRA_TEST_FLUSH"))
	told.Close()
	waits.Close()
	p.t.Cleanup(func() { tell.Close(); wait.Close() })
	steps := make(chan string, len(points))
	go func() { // ends with the process
		defer close(steps)
		for {
			var name string
			if _, err := fmt.Fscanln(tell, &name); err != nil {
				return
			}
			steps <- name
		}
	}()
	r.await("READY=1")
	return r, steps, func() { wait.Write([]byte{1}) } // what is dead does not read it
}

// crowd is many clients that make calls with idempotency keys, and what they
// were told. A call without an answer is made again, with its key.
type crowd struct {
	p       *place
	clients []*client

	mu   sync.Mutex
	told map[string]hub.Run // by key: answered with 200; guarded by mu
}

type client struct {
	name string
	n    int // of the call under way
}

func newCrowd(p *place, n int) *crowd {
	c := &crowd{p: p, told: make(map[string]hub.Run)}
	for i := range n {
		c.clients = append(c.clients, &client{name: fmt.Sprintf("c%d", i)})
	}
	return c
}

// body is the call that a key stands for. One in four prints more than fits
// into an answer; the others append a line to a file of their own.
func body(key string, n int) string {
	if n%4 == 3 {
		// No two calls print the same.
		return fmt.Sprintf(`{"tool":"process.run","input":{"argv":["/usr/bin/seq","-f","%s-%%g","2000"]}}`, key)
	}
	return fmt.Sprintf(`{"tool":"fs.write_file","input":{"workspace":"w","path":%q,"mode":"append","content":"once\n"}}`, key)
}

// work lets every client make calls until it cannot reach palyrad or has made
// most; stop ends it between calls.
func (c *crowd) work(r *running, most int, stop <-chan struct{}) {
	var wg sync.WaitGroup
	for _, cl := range c.clients {
		wg.Go(func() {
			for range most {
				select {
				case <-stop:
					return
				default:
				}
				if !c.one(r, cl) {
					return
				}
			}
		})
	}
	wg.Wait()
}

// one makes the client's next call and reports whether it was answered.
func (c *crowd) one(r *running, cl *client) bool {
	key := fmt.Sprintf("%s-%d", cl.name, cl.n)
	req, err := http.NewRequest("POST", "http://localhost/api/v1/calls", strings.NewReader(body(key, cl.n)))
	if err != nil {
		panic(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := r.client().Do(req)
	if err != nil {
		return false
	}
	defer resp.Body.Close()
	var run hub.Run
	if resp.StatusCode != 200 || json.NewDecoder(resp.Body).Decode(&run) != nil {
		return false
	}
	c.mu.Lock()
	c.told[key] = run
	c.mu.Unlock()
	cl.n++
	return true
}

// check has what a palyrad left looked at by a process of its own, which is not
// slowed down by what looks at this one. all says that every client got answers.
func (c *crowd) check(all bool) {
	t := c.p.t
	t.Helper()
	exe, err := victims()
	if err != nil {
		t.Fatal(err)
	}
	in, err := json.Marshal(inquiry{c.p.dir, c.told})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asVictim+"="+asInquiry)
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v\n%s", err, out)
	}
	if all && len(c.told) == 0 {
		t.Error("no call was answered")
	}
}

const asInquiry = "inquiry"

// inquiry is what check asks.
type inquiry struct {
	Dir  string
	Told map[string]hub.Run
}

// beInquiry prints what is wrong, and nothing if nothing is.
func beInquiry() int {
	var q inquiry
	err := json.NewDecoder(os.Stdin).Decode(&q)
	if err == nil {
		err = q.look(context.Background())
	}
	if err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// look opens a state as the next palyrad does, and holds what the clients were
// told, store, journal and effects against each other.
func (q inquiry) look(ctx context.Context) error {
	state := filepath.Join(q.Dir, "state")
	k, err := kernel.Open(ctx, kernel.Config{StateDir: state})
	if err != nil {
		return err
	}
	defer k.Close()
	st, err := store.Open(filepath.Join(state, "store"), store.Options{})
	if err != nil {
		return err
	}
	defer st.Close()
	// Hold resolves, and begins nothing.
	h, err := local.Open(ctx, local.Config{Kernel: k, Store: st, Hold: true})
	if err != nil {
		return err
	}
	defer h.Close(ctx)
	if rep, err := k.Audit(); err != nil || len(rep.Orphans) > 0 {
		return fmt.Errorf("journal: %+v, %w", rep, err)
	}
	if err := st.Check(ctx); err != nil {
		return err
	}
	rep, err := st.CheckJournal(ctx, local.JournalResults(k))
	if err != nil || len(rep.Differences) > 0 || rep.Unsettled > 0 {
		return fmt.Errorf("store and journal: %+v, %w", rep, err)
	}
	_, err = store.View(ctx, st, func(tx *store.Tx) (any, error) {
		live, err := tx.Runs(store.RunFilter{States: []store.RunState{store.RunInProgress, store.RunWaitingApproval}}, store.Page{})
		if err != nil || len(live) > 0 {
			return nil, fmt.Errorf("%d runs are under way after the restart, %w", len(live), err)
		}
		return nil, errors.Join(q.acknowledged(tx), q.effected(tx))
	})
	return err
}

// run returns the run of a key, nil if there is none, and its step.
func (q inquiry) run(tx *store.Tx, key string) (*store.Run, *store.Step, error) {
	r, err := tx.RunByKey(fmt.Sprintf("uid:%d", os.Geteuid()), key)
	if fault.KindOf(err) == fault.NotFound {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	s, err := tx.Steps(r.ID)
	if err != nil || len(s) == 0 {
		return r, nil, err
	}
	return r, &s[0], nil
}

// acknowledged says that nothing is lost of what a client was told.
func (q inquiry) acknowledged(tx *store.Tx) error {
	for key, told := range q.Told {
		r, s, err := q.run(tx, key)
		if err != nil {
			return err
		}
		if r == nil || r.ID != told.ID || string(r.State) != told.State || s == nil || string(s.State) != told.Steps[0].State || s.Outcome != told.Steps[0].Outcome {
			return fmt.Errorf("%s was told as %+v and is %+v, %+v", key, told, r, s)
		}
		if n, err := q.effects(key); err != nil || told.State == hub.RunDone && told.Steps[0].Tool == "fs.write_file" && n != 1 {
			return fmt.Errorf("%s is done and had its effect %d times, %w", key, n, err)
		}
	}
	return nil
}

// effected says that nothing ran twice, and nothing unlogged.
func (q inquiry) effected(tx *store.Tx) error {
	files, err := os.ReadDir(filepath.Join(q.Dir, "work"))
	if err != nil {
		return err
	}
	for _, f := range files {
		key := f.Name()
		if strings.HasPrefix(key, ".palyra-") { // of a tool that was killed
			continue
		}
		if n, err := q.effects(key); err != nil || n != 1 {
			return fmt.Errorf("%s had its effect %d times, %w", key, n, err)
		}
		r, s, err := q.run(tx, key)
		if err != nil {
			return err
		}
		if r == nil || s == nil || s.State != store.StepDone || s.LogIndex == store.NotLogged || s.Outcome == receipt.Denied {
			return fmt.Errorf("%s had an effect, and its run is %+v, %+v", key, r, s)
		}
	}
	return nil
}

func (q inquiry) effects(key string) (int, error) {
	b, err := os.ReadFile(filepath.Join(q.Dir, "work", key))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return bytes.Count(b, []byte("once\n")), err
}

// newCrowdedPlace has a workspace, a policy that allows everything, and no bound
// on how often one asks.
func newCrowdedPlace(t *testing.T) *place {
	t.Helper()
	p := newPlace(t, "")
	policies := filepath.Join(p.dir, "policy")
	for _, d := range []string{policies, filepath.Join(p.dir, "work")} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(policies+"/all.cedar", []byte("@id(\"all\") permit (principal, action, resource);\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p.crowded("")
	return p
}

func (p *place) crowded(more string) {
	p.write(more + fmt.Sprintf("policy.dir = %q\nlimits.requests_per_second = 0\nworkspaces.w.path = %q\nworkspaces.w.read_only = false\n",
		filepath.Join(p.dir, "policy"), filepath.Join(p.dir, "work")))
}

// killPoints are where palyrad and palyra-cell are killed: every kind of step of
// a call that leaves something, in the order of a call. They are reached some
// times before, so that other calls are at every other step.
func killPoints() []point {
	var ps []point
	for _, s := range []string{"run:created", "run:begun", "run:step", "sealed", "decided", "granted", "append:begin", "append:written", "append:durable",
		"intent", "run_sent", "run_answered", "executed", "result", "receipt", "artifact_written", "artifact_renamed", "artifact_recorded",
		"run:called", "begun", "applied", "committed", "run:ended"} {
		nth := 5
		if strings.HasPrefix(s, "artifact") {
			nth = 2
		}
		ps = append(ps, point{s, nth})
	}
	return ps
}

// TestKillUnderLoad kills palyrad at every named step while 16 clients call, and
// each time starts it again.
func TestKillUnderLoad(t *testing.T) {
	p := newCrowdedPlace(t)
	c := newCrowd(p, 16)
	points := killPoints()
	var names []string
	for _, at := range points {
		names = append(names, at.Step)
	}
	for _, i := range sample.Steps(names) {
		at := points[i]
		r, steps, _ := p.victim(at)
		stop, over := make(chan struct{}), make(chan struct{})
		go func() {
			c.work(r, 1000, stop)
			close(over)
		}()
		select {
		case <-steps:
		case <-over:
			t.Fatalf("%s was not reached\n%s", at.Step, r.log)
		case <-time.After(patience):
			t.Fatalf("%s was not reached in time\n%s", at.Step, r.log)
		}
		r.signal(syscall.SIGKILL)
		r.exit()
		close(stop)
		<-over
		gone(t, p.bin, 0)
		c.check(false)
		if t.Failed() {
			t.Fatalf("after a kill at %s", at.Step)
		}
	}
	// The last one lives: every call gets its answer.
	r := p.start()
	c.work(r, 2, nil)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	c.check(true)
	t.Logf("%d calls were answered", len(c.told))
}

// TestCellKillUnderLoad kills palyra-cell at every named step of one palyrad.
func TestCellKillUnderLoad(t *testing.T) {
	p := newCrowdedPlace(t)
	c := newCrowd(p, 16)
	points := killPoints()
	r, steps, goOn := p.victim(points...)
	stop, over := make(chan struct{}), make(chan struct{})
	go func() {
		c.work(r, 1000, stop)
		close(over)
	}()
	for range points {
		select {
		case <-steps:
		case <-over:
			t.Fatalf("the clients came to an end\n%s", r.log)
		case <-time.After(patience):
			t.Fatalf("the next step was not reached in time\n%s", r.log)
		}
		for _, starter := range p.children(r.cmd.Process.Pid) {
			for _, pid := range p.children(starter) {
				syscall.Kill(pid, syscall.SIGKILL) // it may be gone
			}
		}
		goOn()
	}
	close(stop)
	<-over
	r.call(echo)
	r.signal(syscall.SIGTERM)
	if code := r.exit(); code != 0 {
		t.Errorf("status %d\n%s", code, r.log)
	}
	gone(t, p.bin, 0)
	c.check(true)
	t.Logf("%d calls were answered", len(c.told))
}
