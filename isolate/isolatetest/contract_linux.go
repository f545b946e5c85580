package isolatetest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"palyra/authz/grant"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// Subject is a runner under test.
type Subject struct {
	Tier  tier.Tier
	New   func(t testing.TB) isolate.Runner
	Grant func(t testing.TB, s *isolate.Spec) grant.Grant // valid for the runner that New returned last

	Network string // Spec.Network of every call
	// Warm says that a call of any limits in a private directory finds a cell that
	// was made ahead.
	Warm bool
	// Skip names the parts of the contract that don't depend on how this subject differs from
	// another one, which is put through all of it.
	Skip []string
	// Of more than one subject that differ little, each takes a share of the contract: of every
	// Every parts one, from First on, and all that is about networks. 0 is the whole.
	Every, First int
}

// networks are the parts that no subject leaves to another.
var networks = []string{"Network", "Egress", "HostNetwork"}

// Run runs the contract.
func Run(t *testing.T, sub Subject) {
	h := &harness{sub: sub, runner: sub.New(t)}
	for i, c := range []struct {
		name string
		test func(*testing.T, *harness)
	}{
		{"Grants", testGrants},
		{"Ends", testEnds},
		{"ArgvEnvCwd", testArgvEnvCwd},
		{"Streams", testStreams},
		{"Descriptors", testDescriptors},
		{"Script", testScript},
		{"Workspace", testWorkspace},
		{"Operands", testOperands},
		{"OperandsExchanged", testExchanged},
		{"WorkingDirectory", testWorkingDirectory},
		{"Staged", testStaged},
		{"OwnPath", testOwnPath},
		{"Mounts", testMounts},
		{"Caches", testCaches},
		{"Tmp", testTmp},
		{"Secrets", testSecrets},
		{"ProcessorTime", testProcessorTime},
		{"Limits", testLimits},
		{"Deadline", testDeadline},
		{"Cancel", testCancel},
		{"Orphans", testOrphans},
		{"ReaperAttacked", testReaperAttacked},
		{"NotAProgram", testNotAProgram},
		{"Evidence", testEvidence},
		{"Network", testNetwork},
		{"Egress", testEgress},
		{"HostNetwork", testHostNetwork},
		{"Roots", testRoots},
		{"Terminal", testTerminal},
		{"Concurrent", testConcurrent},
		{"StagedApart", testStagedApart},
		{"StagedTogether", testStagedTogether}, // last: it ends the runner's grants
	} {
		share := i%max(sub.Every, 1) == sub.First%max(sub.Every, 1) || slices.Contains(networks, c.name)
		if share && !slices.Contains(sub.Skip, c.name) {
			t.Run(c.name, func(t *testing.T) { c.test(t, h) })
		}
	}
}

func testGrants(t *testing.T, h *harness) {
	refused := func(name string, c *call, g grant.Grant, why error) {
		t.Helper()
		o := c.runWith(t.Context(), g)
		if fault.KindOf(o.err) != fault.Refused || fault.ReasonOf(o.err) != "grant_invalid" || !strings.Contains(o.err.Error(), why.Error()) || o.res != nil {
			t.Errorf("%s: got %v (%s), want refused with %v", name, o.err, o, why)
		}
		if o.stdout != "" {
			t.Errorf("%s: the program ran: %q", name, o.stdout)
		}
	}
	c := h.shell(t, "echo ran")
	refused("zero grant", c, grant.Grant{}, grant.ErrInvalid)
	g := c.grant()
	c.spec.Argv = []string{"sh", "-c", "echo other"}
	refused("changed argv", c, g, grant.ErrMismatch)
	c = h.shell(t, "echo ran")
	g = c.grant()
	c.spec.Limits.Memory++
	refused("changed limit", c, g, grant.ErrMismatch)
	c = h.shell(t, "echo ran")
	g = c.grant()
	o := c.runWith(t.Context(), g)
	o.exited(t, 0)
	refused("replayed", c, g, grant.ErrReplayed)
}

func testEnds(t *testing.T, h *harness) {
	for _, c := range []struct {
		script       string
		code, signal int
	}{
		{"exit 0", 0, 0},
		{"exit 7", 7, 0},
		{"exit 255", 255, 0},
		{"kill -TERM $$", -1, 15},
		{"kill -KILL $$", -1, 9},
		{"kill -SEGV $$", -1, 11},
		{"kill -ABRT $$", -1, 6},
	} {
		o := h.shell(t, c.script).run()
		if o.err != nil || o.res.Outcome != isolate.Exited || o.res.Evidence.Exit.Code != c.code || o.res.Evidence.Exit.Signal != c.signal {
			t.Errorf("%q: %s, error %v; want code %d signal %d", c.script, o, o.err, c.code, c.signal)
		}
	}
}

func testArgvEnvCwd(t *testing.T, h *harness) {
	args := []string{"sh", "-c", `printf '%s|' "$@"`, "zero", "", "a b", "*", "$HOME", "-n", "\x01", "ü"}
	o := h.program(t, "/bin/sh", args...).run()
	o.exited(t, 0)
	if want := strings.Join(args[4:], "|") + "|"; o.stdout != want {
		t.Errorf("argv arrived as %q, want %q", o.stdout, want)
	}
	t.Setenv("PALYRA_TEST_SECRET", "leaked")
	c := h.program(t, "/usr/bin/env", "env")
	c.spec.Env = []string{"A=1", "B=x y", "EMPTY="}
	o = c.run()
	o.exited(t, 0)
	if want := "A=1\nB=x y\nEMPTY=\n"; o.stdout != want {
		t.Errorf("environment %q, want %q", o.stdout, want)
	}
	if h.sub.Tier == tier.C {
		o = h.program(t, "/bin/pwd", "pwd").run()
		o.exited(t, 0)
		if o.stdout != "/workspace\n" {
			t.Errorf("cwd %q, want /workspace", o.stdout)
		}
	}
}

func testStreams(t *testing.T, h *harness) {
	in, err := os.CreateTemp(t.TempDir(), "stdin")
	if err != nil {
		t.Fatal(err)
	}
	text := bytes.Repeat([]byte("0123456789abcdef"), 1<<14)
	if _, err := in.Write(text); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	c := h.shell(t, "cat; echo err >&2")
	c.files.Stdin = in
	o := c.run()
	in.Close()
	o.exited(t, 0)
	if o.stdout != string(text) || o.stderr != "err\n" {
		t.Errorf("stdout has %d bytes, stderr %q; want %d bytes and %q", len(o.stdout), o.stderr, len(text), "err\n")
	}
	o = h.shell(t, "cat; echo $?").run()
	o.exited(t, 0)
	if o.stdout != "0\n" {
		t.Errorf("without stdin: %q, want an empty one", o.stdout)
	}
}

func testDescriptors(t *testing.T, h *harness) {
	leak, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer leak.Close()
	if _, _, e := syscall.Syscall(syscall.SYS_FCNTL, leak.Fd(), syscall.F_SETFD, 0); e != 0 {
		t.Fatal(e)
	}
	// Without /proc (tier B) the shell can still ask by duplicating.
	o := h.shell(t, `for i in 0 1 2 3 4 5 6 7 8 9; do if (eval "true <&$i") 2>/dev/null; then printf "$i "; fi; done`).run()
	o.exited(t, 0)
	if o.stdout != "0 1 2 " {
		t.Errorf("open descriptors %q, want %q", o.stdout, "0 1 2 ")
	}
}

func testScript(t *testing.T, h *harness) {
	script := []byte("echo script $1\n")
	f, err := os.CreateTemp(t.TempDir(), "script")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.Write(script); err != nil {
		t.Fatal(err)
	}
	if h.sub.Tier == tier.B {
		t.Skip("reason: tier-b-no-proc: /dev/fd leads into /proc, which tier B does not grant")
	}
	ro, err := sealed(script)
	if err != nil {
		t.Fatal(err)
	}
	defer ro.Close()
	c := h.program(t, "/bin/sh", "sh", "/dev/fd/3", "arg")
	c.spec.Script = &isolate.File{Path: "/workspace/x.sh", Digest: canon.Sum(script), Size: int64(len(script)), Pinned: "sealed"}
	c.files.Script = ro
	o := c.run()
	o.exited(t, 0)
	if o.stdout != "script arg\n" {
		t.Errorf("script printed %q", o.stdout)
	}
}

// workspaceFolder makes a folder for a workspace that may be written, and says whose.
func workspaceFolder(t *testing.T, h *harness) (dir string, uid, gid int) {
	t.Helper()
	dir = t.TempDir()
	uid, gid = os.Geteuid(), os.Getegid()
	if uid == 0 && h.sub.Tier == tier.B {
		uid, gid = 12345, 12345 // tier B cannot act as root for a root-owned directory
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Fatal(err)
		}
		for d := dir; d != "/"; d = filepath.Dir(d) {
			if fi, err := os.Stat(d); err == nil && fi.Mode()&0o001 == 0 {
				if err := os.Chmod(d, fi.Mode()|0o011); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	return dir, uid, gid
}

func testWorkspace(t *testing.T, h *harness) {
	dir, uid, gid := workspaceFolder(t, h)
	if err := os.WriteFile(filepath.Join(dir, "in"), []byte("input"), 0o644); err != nil {
		t.Fatal(err)
	}
	use := func(script string, ro bool) outcome {
		c := h.shell(t, script)
		defer c.workspace(dir, uid, gid).Close()
		c.spec.Workspace.ReadOnly = ro
		return c.run()
	}
	o := use("cat in && echo out > out && mkdir d && echo deep > d/f", false)
	o.exited(t, 0)
	if o.stdout != "input" {
		t.Errorf("read %q from the workspace, want %q", o.stdout, "input")
	}
	for _, name := range []string{"out", "d", "d/f"} {
		fi, err := os.Lstat(filepath.Join(dir, name))
		if err != nil {
			t.Errorf("the program wrote %s: %v", name, err)
			continue
		}
		st := fi.Sys().(*syscall.Stat_t)
		if int(st.Uid) != uid || int(st.Gid) != gid {
			t.Errorf("%s belongs to %d:%d, want the workspace's owner %d:%d", name, st.Uid, st.Gid, uid, gid)
		}
	}
	o = use("cat in; echo x > new", true)
	if o.err != nil || o.res.Evidence.Exit.Code == 0 || o.stdout != "input" {
		t.Errorf("read-only workspace: %s, %v, stdout %q; want a failed write after a read", o, o.err, o.stdout)
	}
	if _, err := os.Lstat(filepath.Join(dir, "new")); err == nil {
		t.Error("a read-only workspace was written to")
	}
}

// testProcessorTime has one program end by SIGXCPU, and one that ignores it a second later.
func testProcessorTime(t *testing.T, h *harness) {
	var busy sync.WaitGroup
	defer busy.Wait()
	for _, script := range []string{"while :; do :; done", "trap '' XCPU; while :; do :; done"} {
		c := h.shell(t, script)
		c.spec.Limits.CPU, c.spec.Limits.Wall = time.Second, 2*time.Minute // a busy machine shares its processors
		g := c.grant()
		busy.Go(func() {
			o := c.runWith(t.Context(), g)
			if o.err != nil || o.res.Outcome != isolate.Killed || o.res.Evidence.Exit.LimitHit != "cpu" {
				t.Errorf("%s: %s, %v; want killed by cpu", script, o, o.err)
			}
		})
	}
}

func testLimits(t *testing.T, h *harness) {
	c := h.shell(t, "head -c 2000000 /dev/zero > big; echo $?; ls -l big | cut -d' ' -f5")
	c.spec.Limits.FileSize = 1 << 20
	o := c.run()
	o.exited(t, 0)
	if !strings.HasSuffix(o.stdout, "\n1048576\n") || strings.HasPrefix(o.stdout, "0\n") {
		t.Errorf("file size limit: %q, want a failed head and 1048576 bytes", o.stdout)
	}
	for _, s := range []syscall.Signal{syscall.SIGXCPU, syscall.SIGXFSZ, syscall.SIGKILL} {
		o = h.shell(t, "kill -"+strconv.Itoa(int(s))+" $$").run()
		if o.err != nil || o.res.Outcome != isolate.Exited || o.res.Evidence.Exit.LimitHit != "" || o.res.Evidence.Exit.Signal != int(s) {
			t.Errorf("a program that sends itself signal %d: %s, %v; want executed, and no limit", s, o, o.err)
		}
	}
	// So many that those of the user's processes that end meanwhile leave no room for them.
	c = h.shell(t, `n=0; while [ $n -lt 600 ]; do sleep 5 & n=$((n+1)); done; echo all; kill $(jobs -p)`)
	c.spec.Limits.PIDs = 8
	o = c.run()
	if o.err != nil || strings.Contains(o.stdout, "all") {
		t.Errorf("pids limit of 8: %s, %v, stdout %q; want fork to fail", o, o.err, o.stdout)
	}
	c = h.shell(t, "ulimit -n; ulimit -c")
	c.spec.Limits.OpenFiles = 77
	o = c.run()
	o.exited(t, 0)
	if o.stdout != "77\n0\n" {
		t.Errorf("limits as the program sees them: %q, want 77 and 0", o.stdout)
	}
	c = h.shell(t, "x=$(head -c 200000000 /dev/zero | tr '\\0' x); echo ${#x}")
	c.spec.Limits.Memory = 64 << 20
	o = c.run()
	if o.err != nil || strings.Contains(o.stdout, "200000000") {
		t.Errorf("memory limit: %s, %v, stdout %.20q; want the allocation to fail", o, o.err, o.stdout)
	}
}

func testDeadline(t *testing.T, h *harness) {
	name := "palyra-test-" + strconv.Itoa(os.Getpid())
	c := h.shell(t, `trap "" TERM INT HUP; (setsid sh -c 'trap "" TERM; sleep 600 # `+name+`' &) ; while :; do sleep 1; done # `+name)
	c.spec.Limits.Wall = 500 * time.Millisecond
	start := time.Now()
	o := c.run()
	if o.err != nil || o.res.Outcome != isolate.TimedOut || o.res.Evidence.Exit.LimitHit != "wall" || !o.res.Evidence.Exit.TreeDead {
		t.Errorf("deadline: %s, %v; want timed out with a dead tree", o, o.err)
	}
	if d := time.Since(start); d > 15*time.Second {
		t.Errorf("deadline of 0.5 s took %v", d)
	}
	if alive := running(t, name); len(alive) > 0 {
		t.Errorf("processes outlived the deadline: %v", alive)
	}
}

func testCancel(t *testing.T, h *harness) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	c := h.shell(t, "echo started >&2; sleep 600")
	c.files.Stdin = nil
	done := make(chan outcome, 1)
	g := c.grant()
	go func() {
		c.files.Stdout, c.files.Stderr = w, w
		var o outcome
		o.res, o.err = c.start(ctx, g)
		w.Close()
		done <- o
	}()
	if _, err := r.Read(make([]byte, 16)); err != nil {
		t.Fatal(err)
	}
	cancel()
	o := <-done
	if o.err != nil || o.res.Outcome != isolate.Killed || o.res.Evidence.Exit.LimitHit != "canceled" {
		t.Errorf("cancel: %s, %v; want killed by cancel", o, o.err)
	}
}

func testOrphans(t *testing.T, h *harness) {
	name := "palyra-orphan-" + strconv.Itoa(os.Getpid())
	o := h.shell(t, `(setsid sh -c 'sleep 600 # `+name+`' >/dev/null 2>&1 &) ; exit 4`).run()
	o.exited(t, 4)
	if !o.res.Evidence.Exit.TreeDead {
		t.Error("tree not dead")
	}
	if alive := running(t, name); len(alive) > 0 {
		t.Errorf("a daemon outlived its call: %v", alive)
	}
}

// The program's parent is ours. At tier B the program may signal it, at tier C
// the kernel does not let it; either way nothing survives.
func testReaperAttacked(t *testing.T, h *harness) {
	for _, sig := range []string{"STOP", "KILL"} {
		name := "palyra-reaper-" + sig + strconv.Itoa(os.Getpid())
		start := time.Now()
		o := h.shell(t, `(setsid sh -c 'sleep 600; : `+name+`' >/dev/null 2>&1 &); kill -`+sig+` $PPID; sleep 0.1; exit 3`).run()
		if o.err != nil || o.res.Outcome == isolate.TimedOut || !o.res.Evidence.Exit.TreeDead {
			t.Errorf("%s: %s, %v; want an end and a dead tree", sig, o, o.err)
		}
		if h.sub.Tier == tier.C || sig == "STOP" {
			o.exited(t, 3)
		}
		if alive := running(t, name); len(alive) > 0 {
			t.Errorf("%s: a process outlived the call: %v", sig, alive)
		}
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("%s: took %v", sig, d)
		}
	}
}

func testNotAProgram(t *testing.T, h *harness) {
	b, err := sealed([]byte("this is no program"))
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if err := b.Chmod(0o755); err != nil {
		t.Fatal(err)
	}
	c := h.shell(t, "")
	c.files.Exec = b
	c.spec.Exec.Pinned = "sealed"
	o := c.run()
	if fault.KindOf(o.err) != fault.NotExec || !errors.Is(o.err, o.err) || o.res == nil || o.res.Outcome != isolate.Failed {
		t.Errorf("a text file: %s, %v; want failed, not executable", o, o.err)
	}
}

// overflowGID is how groups show that a user namespace doesn't map: fs.overflowgid.
const overflowGID = 65534

func testEvidence(t *testing.T, h *harness) {
	c := h.program(t, "/bin/true", "true")
	o := c.run()
	o.exited(t, 0)
	e := o.res.Evidence
	p := e.Process
	if e.Tier != h.sub.Tier.String() || p.NoNewPrivs != 1 || p.Seccomp != 2 || p.Filters < 1 || p.TTY != 0 {
		t.Errorf("evidence: tier %s, process %+v", e.Tier, p)
	}
	for name, v := range map[string]string{"inh": p.CapInh, "prm": p.CapPrm, "eff": p.CapEff, "amb": p.CapAmb} {
		if v == "" || strings.Trim(v, "0") != "" {
			t.Errorf("capabilities %s %q, want all zero", name, v)
		}
	}
	if os.Geteuid() == 0 && p.HostUID == 0 {
		t.Error("the program ran as the host's root")
	}
	if os.Geteuid() != 0 && (p.HostUID != uint32(os.Getuid()) || p.HostGID != uint32(os.Getgid())) {
		t.Errorf("evidence: user %d of group %d; outside it is %d of %d", p.HostUID, p.HostGID, os.Getuid(), os.Getgid())
	}
	groups, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range p.Groups {
		if g != overflowGID && !slices.Contains(groups, int(g)) {
			t.Errorf("evidence: supplementary group %d, which is none of %v", g, groups)
		}
	}
	if e.Landlock.ABI < 1 || e.Landlock.HandledFS == 0 || len(e.Landlock.Rules) == 0 {
		t.Errorf("landlock %+v", e.Landlock)
	}
	if e.Seccomp.Program.IsZero() || e.Seccomp.Instructions < 100 || e.Tape.Digest.IsZero() || e.Tape.Steps < 10 {
		t.Errorf("seccomp %+v, tape %+v", e.Seccomp, e.Tape)
	}
	if os.Geteuid() == 0 && e.Seccomp.Basis != evidence.Verified {
		t.Errorf("seccomp program is %s, want it read back from the kernel as root", e.Seccomp.Basis)
	}
	if e.Executable.Digest != c.spec.Exec.Digest || e.Executable.Basis == "" {
		t.Errorf("executable %+v", e.Executable)
	}
	var core syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_CORE, &core); err != nil {
		t.Fatal(err)
	}
	limits := map[string]int64{"nofile": c.spec.Limits.OpenFiles, "fsize": c.spec.Limits.FileSize, "core": 1, "data": c.spec.Limits.Memory}
	if core.Max == 0 {
		delete(limits, "core") // palyra-cell raises its own if it may, which depends on its capabilities
	}
	for name, want := range limits {
		if got, ok := e.Limits.Soft[name]; !ok || got != want {
			t.Errorf("limit %s read back as %d, want %d", name, got, want)
		}
	}
	if e.Usage.MaxRSS <= 0 || e.Usage.WallNS <= 0 || e.Host.Release == "" || e.Host.BootID == "" {
		t.Errorf("usage %+v, host %+v", e.Usage, e.Host)
	}
	mode := evidence.CellCold
	if h.sub.Warm {
		mode = evidence.CellWarm
	}
	if e.Cell.Mode != mode || e.Cell.Basis != evidence.Reported || h.sub.Warm != (e.Cell.ArmedNS > 0) {
		t.Errorf("evidence of the cell %+v, want %s", e.Cell, mode)
	}
	fresh := []string{"cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts"}
	if h.sub.Network == isolate.NetworkVoid || h.sub.Network == isolate.NetworkSession {
		fresh = slices.Delete(fresh, 3, 4)
	}
	if h.sub.Tier == tier.C {
		if !slices.Equal(e.Namespaces.Fresh, fresh) {
			t.Errorf("fresh namespaces %v, want %v", e.Namespaces.Fresh, fresh)
		}
		if strings.Trim(p.CapBnd, "0") != "" || p.CapBnd == "" {
			t.Errorf("bounding set %q, want empty", p.CapBnd)
		}
		if len(e.Mounts.Table) == 0 || e.Mounts.Digest.IsZero() {
			t.Error("no mount table")
		}
	}
	again := h.program(t, "/bin/true", "true").run()
	again.exited(t, 0)
	// At tier B the tape holds the user and how many processes the user has.
	if a := again.res.Evidence; h.sub.Tier == tier.C && a.Tape.Digest != e.Tape.Digest || a.Seccomp.Policy != e.Seccomp.Policy {
		t.Errorf("two equal calls have tapes %v and %v", e.Tape.Digest, a.Tape.Digest)
	}
}

func testConcurrent(t *testing.T, h *harness) {
	var wg sync.WaitGroup
	for i := range 8 {
		n := strconv.Itoa(i)
		c := h.shell(t, "echo "+n+" > mine; sleep 0.05; cat mine; exit "+n)
		g := c.grant()
		wg.Go(func() {
			o := c.runWith(t.Context(), g)
			if o.err != nil || o.res.Evidence.Exit.Code != i || o.stdout != n+"\n" {
				t.Errorf("call %d: %s, %v, stdout %q, stderr %q", i, o, o.err, o.stdout, o.stderr)
			}
		})
	}
	wg.Wait()
}
