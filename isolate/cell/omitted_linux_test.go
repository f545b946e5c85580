package cell_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"palyra/call"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/evidence"
	"palyra/isolate/isolatetest"
	"palyra/isolate/knob"
	"palyra/isolate/tier"
)

// unseen are the steps that leave no trace in a process at the gate, or change nothing there,
// and why a call runs without them. A step is named by its beginning.
var unseen = []struct{ step, why string }{
	{"setgroups(", "palyra-cell has no other groups unless its user has, and then the gate sees them"},
	{"prlimit64(0, 0xc,", "the limit of message queues is the kernel's default, and is seen to be"},
	{"prlimit64(0, 0xd,", "so is that of niceness"},
	{"prlimit64(0, 0xe,", "so is that of real-time priority"},
	{"read(fd:gate,", "it goes on before its ids are mapped, or after; they are seen at the gate"},
	{"dup3(fd:std", "0, 1 and 2 are palyra-cell's own then, /dev/null and its log: the call's output is missing"},
	{"execveat(", "no program runs"},
	{"sethostname(", "a name; that the namespace is its own is seen"},
	{"close($", "a descriptor more until close_range, which is seen to have closed it"},
	{"close_range(0,", "the reaper runs no code but ours"},
	{"close_range(3, 3, 0)", "there is nothing at 3 unless palyra-cell has a hole in its numbers"},
	{"prctl(0x2f, 4", "the ambient set is empty before, and is seen to be"},
	{"prctl(1, 9", "the end of a PID namespace, and palyra at tier B, kill as well"},
	{"prctl(0x24, 1", "tier B: palyra-cell is a subreaper itself, and looks among its descendants"},
	{"rt_sigprocmask(", "what the program does with signals is its own business"},
	{"rt_sigaction(", "as the mask"},
	{"umask(", "a mode of the program's files, in its own places"},
	{"write(5, mark{G}", "it waits for an answer that nobody gives: at the deadline it ends"},
	{"read(6, answer", "the gate itself; that it is there is native's TestOrder"},
	{"setresuid(0x3e8", "as a user, the cell's user is palyra's own; as root the gate sees it"},
	{"setresgid(0x3e8", "as setresuid"},
	{"prctl(0x1c, 4", "it keeps the right to unshare, where users have none: there no program runs; unshare resets the securebits"},
	{"park()", "a cell that does not wait has its call in time, or ends before"},
	{"init()", "the reaper ends after its last step, and the program with it"},
}

func whyUnseen(t *testing.T, tr tier.Tier, s cell.PlanStep) string {
	for _, u := range unseen {
		if strings.HasPrefix(s.Call, u.step) {
			return u.why
		}
	}
	if tr == tier.C && strings.HasPrefix(s.Call, "setresgid(id:group") {
		return "a user namespace has a group, too, but nothing counts by it; the program's own is mapped later, and seen"
	}
	if strings.HasPrefix(s.Call, "prctl(4, 0") {
		open, err := os.ReadFile("/proc/sys/fs/suid_dumpable")
		switch {
		case err != nil:
			t.Fatal(err)
		case tr == tier.C:
			return "there is one after each change of user, and the first change is the only one of the host's ids: either is enough at the gate, and between them the fence keeps others' programs out"
		case strings.TrimSpace(string(open)) != "1":
			return "a change of user sets the flag to fs.suid_dumpable, which keeps the memory closed here; where it is 1 the gate sees that"
		}
	}
	if tr != tier.B {
		return ""
	}
	if s.Depth == 0 && strings.HasPrefix(s.Call, "seccomp(") {
		return "the reaper runs no code but ours"
	}
	if os.Getuid() != 0 && strings.HasPrefix(s.Call, "capset(") {
		return "the sets are empty before, and are seen to be"
	}
	if number, ok := strings.CutPrefix(s.Call, "prctl(0x18, "); ok {
		number, _, _ = strings.Cut(number, ",")
		n, err := strconv.ParseUint(number, 0, 6)
		p, err2 := evidence.ReadProcess("/proc", os.Getpid())
		if err != nil || err2 != nil {
			t.Fatal(s.Call, err, err2)
		}
		bounding, err := strconv.ParseUint(p.CapBnd, 16, 64)
		if err == nil && bounding&(1<<n) == 0 {
			return "a capability that we do not have either"
		}
	}
	return ""
}

// TestEachStepIsSeen leaves out each step of confinement in turn, in a palyra-cell built for
// that, and requires that no program runs: without the step the gate stays shut, or the child
// ends before. The test builds itself with the tag of such builds.
func TestEachStepIsSeen(t *testing.T) {
	if knob.Build == "" {
		dir := t.TempDir()
		for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
			if err := os.Chmod(d, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		test, helper := filepath.Join(dir, "test"), filepath.Join(dir, "palyra-cell")
		for _, args := range [][]string{{"test", "-c", "-vet=off", "-o", test, "palyra/isolate/cell"}, {"build", "-o", helper, "palyra/cmd/palyra-cell"}} {
			cmd := exec.Command("go", append(args[:1:1], append([]string{"-tags", knob.Tag}, args[1:]...)...)...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
		}
		cmd := exec.Command(test, "-test.run=^TestEachStepIsSeen$", "-test.v", "-test.timeout=5m", "-test.parallel=4", fmt.Sprintf("-test.short=%t", testing.Short()))
		cmd.Env = append(os.Environ(), "PALYRA_TEST_CELL="+helper)
		out, err := cmd.CombinedOutput()
		t.Logf("%s", out)
		if err != nil {
			t.Error(err)
		}
		return
	}
	for _, way := range []struct {
		name string
		way
	}{
		{"C", way{tier: tier.C}}, {"B", way{tier: tier.B}}, {"C roots", way{tier: tier.C, network: isolate.NetworkEgress, roots: true}},
		{"C warm", way{tier: tier.C, pool: cell.Pool{Cells: 1}}}, {"C loopback", way{tier: tier.C, network: isolate.NetworkLoopback}}, {"C terminal", way{tier: tier.C, tty: true}},
	}[:sample.Of(3, 6)] {
		t.Run(way.name, func(t *testing.T) { eachStep(t, way.way) })
	}
}

// way is a way to a cell.
type way struct {
	tier    tier.Tier
	pool    cell.Pool
	network string
	tty     bool
	roots   bool
}

func eachStep(t *testing.T, w way) {
	t.Parallel()
	// start starts a palyra-cell of another name, with which its knobs go.
	start := func(t *testing.T, knobs string) *cell.Client {
		original := os.Getenv("PALYRA_TEST_CELL")
		dir, err := os.MkdirTemp(filepath.Dir(original), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		path := filepath.Join(dir, "palyra-cell")
		if err := errors.Join(os.Chmod(dir, 0o755), os.Link(original, path), os.WriteFile(path+".knobs", []byte(knobs), 0o644)); err != nil {
			t.Fatal(err)
		}
		c, err := cell.Start(t.Context(), cell.Config{Path: path, Tier: w.tier, Key: testKey, Pool: w.pool})
		if err != nil {
			t.Fatalf("start palyra-cell: %v", err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	warm := w.pool.Cells > 0
	c := start(t, "")
	s, f := omitting(t, w)
	plan, err := c.Explain(t.Context(), s, f)
	if err != nil {
		t.Fatal(err)
	}
	if res, reason := attempt(t, c, w, time.Minute); res == nil || res.Outcome != isolate.Exited {
		t.Fatalf("with all steps: %+v, %s; the rest would prove nothing", res, reason)
	}
	steps := plan.Tape.Steps
	if warm {
		steps = plan.Warm.Steps
	}
	var mu sync.Mutex
	reasons := make(map[string]int)
	t.Cleanup(func() {
		for reason, n := range reasons {
			t.Logf("%d steps: %s", n, reason)
		}
	})
	for _, step := range steps {
		if warm && strings.HasPrefix(step.Call, "close_range(fd:after") {
			break // the call's own steps are those of a cold cell
		}
		if w.network == isolate.NetworkLoopback && !strings.Contains(step.Call, "$lo") {
			continue // so are these
		}
		if w.tty && !strings.HasPrefix(step.Call, "ioctl(0") && !strings.Contains(step.Call, `"/dev/pts"`) && !strings.Contains(step.Call, `"/dev/tty"`) {
			continue // and these
		}
		if w.roots && !strings.Contains(step.Call, "roots") && !strings.Contains(step.Call, "$bundle") {
			continue // and these
		}
		t.Run(strconv.Itoa(step.Number), func(t *testing.T) {
			t.Parallel() // some are seen only at a deadline
			res, reason := attempt(t, start(t, knob.Omit+strconv.Itoa(step.Number)), w, time.Second)
			ran := res != nil && (res.Outcome == isolate.Exited || res.Evidence != nil && res.Evidence.Exit.Code >= 0)
			why := whyUnseen(t, w.tier, step)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case reason == notWarm && step.Call != "park()": // whose cell ends before, or has its call in time
				t.Errorf("without step %d, %s, it %s", step.Number, step.Call, reason)
			case ran && why == "":
				t.Errorf("without step %d, %s, the program runs (%s)", step.Number, step.Call, res.Outcome)
			case ran:
				reasons["runs: "+why]++
			case reason == "":
				reasons["ended before it began: "+string(res.Outcome)]++
			default:
				reasons[reason]++
			}
		})
	}
}

// omitting is a call whose every control differs from palyra-cell's own.
func omitting(t *testing.T, w way) (*isolate.Spec, *isolate.Files) {
	t.Helper()
	s := benchSpec("/usr/bin/true", w.network)
	s.Tier, s.Argv = w.tier, []string{"true"}
	s.Limits.Wall = time.Second
	s.Limits.PIDs = 333
	exe, err := os.Open("/usr/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { exe.Close() })
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { null.Close() })
	f := &isolate.Files{Exec: exe, Stdout: null, Stderr: null}
	if w.tty {
		s.TTY = &call.TTY{Rows: 24, Columns: 80, Term: "xterm"}
		ours, theirs, err := isolate.TerminalLine()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ours.Close(); theirs.Close() })
		f.Stdout, f.Stderr, f.Terminal = nil, nil, theirs
	}
	if w.roots {
		b := isolatetest.StartBroker(t)
		t.Cleanup(func() { b.Close() })
		roots, err := isolatetest.NewAuthority(t, "packages.example").File()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { roots.Close() })
		s.Egress, f.Egress, f.Roots = &isolate.Egress{Sockets: 1, Roots: true}, b.Cell, roots
	}
	return s, f
}

// notWarm is the reason of attempt if the call needed a cold cell.
const notWarm = "ran in a cell that is not warm"

// attempt makes the call and returns its result, and the reason if it was refused.
func attempt(t *testing.T, c *cell.Client, w way, wall time.Duration) (*isolate.Result, string) {
	t.Helper()
	warm := w.pool.Cells > 0
	s, f := omitting(t, w)
	s.Limits.Wall = wall
	if warm {
		if _, err := c.Expect(t.Context(), s.Network, s.Limits); err != nil {
			return nil, fault.ReasonOf(err)
		}
	}
	res, err := c.Run(t.Context(), mint(t, testKey, s), s, f)
	if err != nil {
		return res, fault.ReasonOf(err)
	}
	if warm && res.Evidence != nil && res.Evidence.Cell.Mode != evidence.CellWarm {
		return nil, notWarm
	}
	return res, ""
}
