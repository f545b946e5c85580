package kernel

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"palyra/authz/approval"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// trials is the number of calls that TestApprovedIsWhatRan makes. PALYRA_TRIALS sets it; make
// conformance asks for 20,000. 100,000 take ten minutes of two cores.
func trials(t *testing.T) int {
	s := os.Getenv("PALYRA_TRIALS")
	if s == "" {
		return 250
	}
	n, err := strconv.Atoi(s)
	if err != nil || n <= 0 {
		t.Fatalf("PALYRA_TRIALS=%q", s)
	}
	return n
}

type pages struct {
	mu  sync.Mutex
	all map[string]*approval.Entry
	on  map[string]func(id string) // by call: told when its question is there
}

func (b *pages) Open(_ context.Context, e *approval.Entry) error {
	b.mu.Lock()
	c := *e
	b.all[e.ID] = &c
	tell := b.on[e.Run]
	b.mu.Unlock()
	go tell(e.ID)
	return nil
}

func (b *pages) Cover(context.Context, *approval.Entry, approval.Resolution) error {
	return errors.New("nothing was approved ahead")
}

func (b *pages) Resolve(_ context.Context, id string, version int64, r approval.Resolution) (*approval.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := b.all[id]
	if e.State != approval.Pending || e.Version != version {
		return nil, fault.New(fault.Busy, "version_conflict", "resolve", nil)
	}
	e.State, e.Approver, e.Answered = r.State, r.Approver, time.Now()
	e.Version++
	c := *e
	return &c, nil
}

func (b *pages) Entry(_ context.Context, id string) (*approval.Entry, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := *b.all[id]
	return &c, nil
}

func (b *pages) Pending(context.Context) ([]approval.Entry, error) { return nil, nil }

// trial is one call, the interference while it waits, and what ran.
type trial struct {
	t    *testing.T
	rng  *rand.Rand
	base string // belongs to this trial's worker: ws, other
	p    Proposal
	h    *approval.Hub

	card   approval.Request // as it was shown, copied
	yes    atomic.Bool      // a permitted approver said yes, and was told that it counts
	ran    atomic.Int32
	differ atomic.Pointer[string]
}

// Ask is the approver. It copies the card before any goroutine can change what it points to.
func (x *trial) Ask(ctx context.Context, q approval.Request) (approval.Answer, error) {
	x.card = q
	c := &x.card.Call
	c.Argv, c.EnvNames, c.Operands = slices.Clone(c.Argv), slices.Clone(c.EnvNames), slices.Clone(c.Operands)
	return x.h.For(approval.Subject{Run: x.base, Session: "ses", Requester: "uid:1000"}).Ask(ctx, q)
}

func (x *trial) meddle() {
	ws := filepath.Join(x.base, "ws")
	name := pickOne(x.rng, "run", "tool", "a.txt", "b.txt")
	path := filepath.Join(ws, name)
	other := fmt.Appendf(nil, "#!/usr/bin/tac\nevil %d\n", x.rng.Int())
	switch x.rng.IntN(12) {
	case 0: // in place
		os.WriteFile(path, other, 0o755)
	case 1: // by another file
		os.WriteFile(path+".new", other, 0o755)
		os.Rename(path+".new", path)
	case 2: // by a link
		os.Remove(path)
		os.Symlink(filepath.Join(x.base, "other", name), path)
	case 3:
		os.Remove(path)
	case 4: // the folder, by a link to another
		os.Rename(ws, ws+".was")
		os.Symlink(filepath.Join(x.base, "other"), ws)
	case 5: // the folder, by another
		os.Rename(ws, ws+".was")
		os.Rename(filepath.Join(x.base, "other"), ws)
	case 6: // the caller's copy of its proposal
		for i := range x.p.Argv[1:] {
			x.p.Argv[i+1] = "evil"
		}
	case 7:
		for i := range x.p.Env {
			x.p.Env[i] = "EVIL=1"
		}
	case 8:
		x.p.Argv[0] = "/usr/bin/tac"
	case 9:
		x.p.TierFloor, x.p.Network, x.p.Limits.Memory = tier.B, "", 1<<40
	case 10:
		os.Truncate(path, 3)
	default:
	}
}

func pickOne[T any](rng *rand.Rand, of ...T) T { return of[rng.IntN(len(of))] }

// answer sends the answers that come while the call waits, from one surface or several.
func (x *trial) answer(cancel context.CancelFunc, reload func(), id string) {
	for range 1 + x.rng.IntN(3) {
		x.meddle()
	}
	ctx := context.Background()
	say := func(who string, version int64, yes bool) {
		_, err := x.h.Resolve(ctx, id, version, approval.By{Principal: who, Surface: "test"}, approval.Reply{Approve: yes})
		switch {
		case err == nil && yes && who == "uid:1000":
			x.fail("the requester's own yes was taken")
		case err == nil && yes:
			x.yes.Store(true)
		}
	}
	what := x.rng.IntN(10)
	if what == 4 && x.rng.IntN(5) > 0 { // a reload takes long
		what = 5
	}
	switch what {
	case 0:
		say("uid:0", 0, false)
		say("uid:0", 0, true) // after a no
	case 1:
		say("uid:1000", 0, true)
		cancel()
		say("uid:0", 0, true) // perhaps after the cancel
	case 2:
		say("uid:0", 7, true) // another version
		say("uid:1000", 0, true)
		cancel()
	case 3:
		go say("uid:0", 0, true)
		go say("uid:1", 0, false)
	case 4:
		reload()
		say("uid:0", 0, true)
	default:
		say("uid:1000", 0, true)
		say("uid:0", 0, true)
		say("uid:1", 0, true)
	}
	x.meddle()
}

func (x *trial) fail(format string, a ...any) {
	s := fmt.Sprintf(format, a...)
	x.differ.CompareAndSwap(nil, &s)
}

// run is the runner: it reads what it would execute, and compares that with what the person was
// shown.
func (x *trial) run(s *isolate.Spec, f *isolate.Files) {
	x.ran.Add(1)
	c := &x.card.Call
	content := func(what string, file *os.File, want canon.Digest) {
		b, err := io.ReadAll(io.NewSectionReader(file, 0, 1<<30))
		if got := canon.Sum(b); err != nil || got != want {
			x.fail("%s is %s, shown was %s: %v", what, got, want, err)
		}
	}
	if s.Capsule != x.card.Capsule {
		x.fail("capsule %s, shown was %s", s.Capsule, x.card.Capsule)
	}
	content("the executable", f.Exec, c.Digest)
	argv := s.Argv
	if c.Script != "" {
		content("the script", f.Script, c.ScriptDigest)
		argv = append([]string{c.Argv[0]}, argv[len(argv)-len(c.Argv)+1:]...)
	}
	if !slices.Equal(argv, c.Argv) {
		x.fail("argv %q, shown was %q", s.Argv, c.Argv)
	}
	if len(f.Operands) != len(c.Operands) {
		x.fail("%d operands, shown were %d", len(f.Operands), len(c.Operands))
	} else {
		for i, o := range c.Operands {
			content("operand "+o.Path, f.Operands[i], o.Digest)
			if s.Operands[i].Path != o.Path {
				x.fail("operand %s, shown was %s", s.Operands[i].Path, o.Path)
			}
		}
	}
	env, err := canon.Marshal(s.Env)
	if err != nil || canon.Sum(env) != c.EnvDigest {
		x.fail("environment %q", s.Env)
	}
	if c.StdinDigest.IsZero() != (f.Stdin == nil) {
		x.fail("stdin %v, shown was %q", f.Stdin, c.Stdin)
	} else if f.Stdin != nil {
		content("stdin", f.Stdin, c.StdinDigest)
	}
	if s.Cwd != c.Cwd || s.Tier.String() != c.Tier || s.Limits != isolate.Limits(c.Bounds) || s.Network != "" && s.Network != c.Network {
		x.fail("cwd %s, tier %s, network %q, limits %+v; shown was %+v", s.Cwd, s.Tier, s.Network, s.Limits, c)
	}
	if s.Workspace == nil || s.Workspace.Source != c.Workspace || s.Workspace.ReadOnly != c.ReadOnly || len(c.EgressHosts) > 0 {
		x.fail("workspace %+v, shown was %q", s.Workspace, c.Workspace)
	}
	if !x.yes.Load() { // told after the call is woken, perhaps
		for end := time.Now().Add(20 * time.Second); !x.yes.Load() && time.Now().Before(end); {
			runtime.Gosched()
		}
		if !x.yes.Load() {
			x.fail("it ran and nobody's yes counted")
		}
	}
}

type runners struct{ by sync.Map } // capsule → *trial

func (r *runners) Run(_ context.Context, _ grant.Grant, s *isolate.Spec, f *isolate.Files) (*isolate.Result, error) {
	x, ok := r.by.Load(s.Capsule)
	if !ok {
		return nil, fault.New(fault.Internal, "unknown_capsule", "run", errors.New("nobody was asked about it"))
	}
	x.(*trial).run(s, f)
	return &isolate.Result{Outcome: isolate.Exited, Evidence: &evidence.Evidence{Tier: s.Tier.String()}}, nil
}
func (r *runners) Close() error          { return nil }
func (r *runners) Died() <-chan struct{} { return nil }

// The policies of the trials: everything needs a yes, interpreters are permitted.
const trialPolicies = `
@id("asked") permit (principal, action == Palyra::Action::"tool.execute", resource) when { context.approved };
@id("named") permit (principal, action == Palyra::Action::"interpreter.run", resource);
@id("number_%d") permit (principal, action == Palyra::Action::"tool.list", resource);
`

// TestApprovedIsWhatRan: while a call waits, script, executable, operands, workspace,
// arguments, environment, tier, limits and policy change, and answers come from the wrong
// people, twice, and together with the end. Either the call that was shown and approved ran, or
// nothing did.
func TestApprovedIsWhatRan(t *testing.T) {
	n := trials(t)
	root := t.TempDir()
	if shm, err := os.MkdirTemp("/dev/shm", "palyra-trials-"); err == nil {
		t.Cleanup(func() { os.RemoveAll(shm) })
		root = shm // every intent and result is flushed
	}
	policies := filepath.Join(root, "policies")
	os.Mkdir(policies, 0o755)
	var set atomic.Int64
	write := func() {
		put(t, filepath.Join(policies, ".new"), fmt.Sprintf(trialPolicies, set.Add(1)), 0o644)
		os.Rename(filepath.Join(policies, ".new"), filepath.Join(policies, "a.cedar"))
	}
	write()
	all := &runners{}
	book := &pages{all: make(map[string]*approval.Entry), on: make(map[string]func(string))}
	hub := approval.NewHub(book, approval.HubOptions{})
	k := openHouse(t, Config{StateDir: filepath.Join(root, "state"), PolicyDir: policies,
		testOnlyStart: func(context.Context, tier.Tier, grant.Key) (runner, error) { return all, nil }})
	var reloading sync.Mutex
	reload := func() {
		reloading.Lock()
		defer reloading.Unlock()
		write()
		if err := k.Reload(); err != nil && fault.ReasonOf(err) != "policy_invalid" {
			t.Error(err)
		}
	}
	var counts [5]atomic.Int64 // executed, not approved, refused, errors, others
	var wg sync.WaitGroup
	var next atomic.Int64
	for w := range runtime.GOMAXPROCS(0) * 2 {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(n) && !t.Failed(); i = next.Add(1) {
				base := filepath.Join(root, "w"+strconv.Itoa(w))
				x := &trial{t: t, rng: rand.New(rand.NewPCG(uint64(i), 77)), base: base, h: hub}
				counts[x.play(k, all, book, reload)].Add(1)
				if s := x.differ.Load(); s != nil {
					t.Errorf("trial %d: %s", i, *s)
				}
				os.RemoveAll(base)
			}
		})
	}
	wg.Wait()
	t.Logf("%d trials: %d executed as shown, %d not approved, %d refused, %d no call, %d others", n,
		counts[0].Load(), counts[1].Load(), counts[2].Load(), counts[3].Load(), counts[4].Load())
	if counts[0].Load() < int64(n)/10 || counts[1].Load() == 0 || counts[2].Load() == 0 || counts[4].Load() > 0 {
		t.Error("the trials do not cover what they should")
	}
	if r := k.audit(); uint64(r.Intents) < uint64(counts[0].Load()) || len(r.Orphans) > 0 {
		t.Errorf("audit: %d intents, %d orphans", r.Intents, len(r.Orphans))
	}
}

// play makes one call. It returns the index of its outcome in counts.
func (x *trial) play(k *house, all *runners, book *pages, reload func()) int {
	for _, d := range []string{"ws", "other"} {
		os.MkdirAll(filepath.Join(x.base, d), 0o755)
		for _, f := range []string{"run", "tool", "a.txt", "b.txt"} {
			put(x.t, filepath.Join(x.base, d, f), fmt.Sprintf("#!/usr/bin/cat\n%s %s %d\n", d, f, x.rng.Int()), 0o755)
		}
	}
	x.p = Proposal{Tool: ToolRun, Argv: []string{pickOne(x.rng, "./run", "/usr/bin/wc", "./tool"), "a.txt", pickOne(x.rng, "b.txt", "-x", "none"), strconv.Itoa(x.rng.Int())},
		Env: []string{"A=" + strconv.Itoa(x.rng.IntN(9))}, Workspace: filepath.Join(x.base, "ws"), WorkspaceReadOnly: x.rng.IntN(2) == 0,
		Network: pickOne(x.rng, isolate.NetworkFresh, isolate.NetworkVoid), Limits: isolate.Limits{Memory: 1 << (20 + x.rng.IntN(8))}}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan struct{})
	asked := false
	book.mu.Lock()
	book.on[x.base] = func(id string) { x.answer(cancel, reload, id); close(done) }
	book.mu.Unlock()
	who := Caller{Principal: policy.Entity{Type: policy.TypeUser, ID: "uid:1000", Roles: []string{policy.RoleOperator}}, Approver: x}
	o, err := k.CallAs(ctx, who, x.p, IO{Observe: func(e Event) {
		if e.Step == StepAsked {
			asked = true
			all.by.Store(e.Capsule, x)
		}
	}})
	if asked {
		<-done
	}
	if o == nil {
		if x.ran.Load() > 0 {
			x.fail("it ran, and there is no outcome: %v", err)
		}
		return 3
	}
	all.by.Delete(o.CapsuleDigest)
	switch ran := x.ran.Load(); {
	case (o.Outcome == receipt.Executed) != (ran == 1) || ran > 1:
		x.fail("outcome %s, ran %d times", o.Outcome, ran)
	case o.Outcome == receipt.Executed && (o.Approval == nil || o.Approval.Answer != approval.Approved || o.Approval.Capsule != o.CapsuleDigest || o.CapsuleDigest != x.card.Capsule):
		x.fail("the outcome names approval %+v", o.Approval)
	case o.Outcome == receipt.Executed && canon.Sum(o.Capsule) != x.card.Capsule:
		x.fail("the capsule in the outcome is not the one that was shown")
	}
	switch o.Outcome {
	case receipt.Executed:
		return 0
	case receipt.NotApproved:
		return 1
	case receipt.Refused:
		return 2
	}
	return 4
}
