package egress

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"palyra/conformance/world"
	"palyra/internal/built"
	"palyra/isolate/evidence"
)

// bin names built binaries for a run by a user who can't build them.
var bin = flag.String("bin", "", "directory with the binaries to test; default: build them")

// toolsVar is where the binaries are, for the tests that run in the world.
const toolsVar = "PALYRA_EGRESS_TOOLS"

var place world.Place

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(begin(m))
}

func begin(m *testing.M) int {
	if os.Getenv(toolsVar) != "" {
		return place.Main(m)
	}
	dir := *bin
	if dir == "" {
		var err error
		if dir, err = os.MkdirTemp("", "palyra-egress-*"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		os.Chmod(dir, 0o755)
		if err := built.Into(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	return place.Main(m, toolsVar+"="+dir)
}

// call is a call of palyra exec, and what it left.
type call struct {
	status         int
	stdout, stderr string
	egress         evidence.Egress // of the receipt
	outcome        string
	reason         string   // of the receipt's error
	hosts          []string // of the receipt's capsule
	network        string   // of the evidence
	executor       string   // of the evidence
}

// bench is where the calls of a test run.
type bench struct {
	t    *testing.T
	w    *world.World
	home string
	// socket is where a palyrad makes the calls, "" if palyra does, and serves its process id.
	socket string
	serves int
}

// in is b for a subtest.
func (b *bench) in(t *testing.T) *bench { return &bench{t, b.w, b.home, b.socket, b.serves} }

func begun(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, w: place.Here(t), home: t.TempDir()}
	b.write("policy/all.cedar", `@id("all") permit (principal, action, resource);`)
	return b
}

func (b *bench) write(name, text string) string {
	b.t.Helper()
	p := filepath.Join(b.home, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(p), 0o755), os.WriteFile(p, []byte(text), 0o644)); err != nil {
		b.t.Fatal(err)
	}
	return p
}

func (b *bench) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Dir = b.home
	c.Env = []string{"PATH=" + os.Getenv(toolsVar) + ":/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin", "HOME=" + b.home, "XDG_STATE_HOME=" + filepath.Join(b.home, "state"), "LC_ALL=C"}
	if b.socket != "" {
		c.Env = append(c.Env, "PALYRA_SOCKET="+b.socket)
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	return c
}

func palyra() string { return filepath.Join(os.Getenv(toolsVar), "palyra") }

// outside runs a program in the host's namespace: the control.
func (b *bench) outside(argv ...string) (string, error) {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), time.Minute)
	defer cancel()
	out, err := b.command(ctx, argv[0], argv[1:]...).CombinedOutput()
	return string(out), err
}

// exec runs a program in a cell that may reach hosts. More are further flags.
func (b *bench) exec(hosts []string, more []string, argv ...string) *call {
	b.t.Helper()
	return b.start(hosts, more, argv...).wait()
}

// running is a call that has begun.
type running struct {
	pid  int // of palyra
	wait func() *call
}

// start begins a call.
func (b *bench) start(hosts []string, more []string, argv ...string) running {
	b.t.Helper()
	receipt := filepath.Join(b.t.TempDir(), "receipt.json")
	args := []string{"exec", "--receipt", receipt}
	if b.socket == "" {
		args = append(args, "--no-daemon", "--policy", filepath.Join(b.home, "policy"))
	}
	args = append(args, more...)
	for _, h := range hosts {
		args = append(args, "--egress", h)
	}
	ctx, cancel := context.WithTimeout(b.t.Context(), 2*time.Minute)
	c := b.command(ctx, palyra(), append(append(args, "--"), argv...)...)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err := c.Start(); err != nil {
		cancel()
		b.t.Fatal(err)
	}
	return running{c.Process.Pid, func() *call {
		b.t.Helper()
		defer cancel()
		err := c.Wait()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			b.t.Fatal(err)
		}
		r := &call{status: c.ProcessState.ExitCode(), stdout: out.String(), stderr: errs.String()}
		if _, err := os.Stat(receipt); err == nil {
			b.read(receipt, r)
		}
		return r
	}}
}

// records is where palyra, or palyrad, keeps its journal and all else.
func (b *bench) records() string {
	if b.socket != "" {
		return filepath.Join(b.home, "daemon")
	}
	return filepath.Join(b.home, "state", "palyra")
}

// trust is where the keys are that sign b's receipts.
func (b *bench) trust() string { return filepath.Join(b.records(), "trust") }

// read verifies a receipt, and takes from it what the tests look at.
func (b *bench) read(receipt string, r *call) {
	b.t.Helper()
	if out, err := b.outside(palyra(), "attest", "verify", "--trust", b.trust(), receipt); err != nil {
		b.t.Errorf("attest verify: %v\n%s", err, out)
	}
	out, err := b.outside(palyra(), "attest", "show", "--json", receipt)
	if err != nil {
		b.t.Fatalf("attest show: %v\n%s", err, out)
	}
	var shown struct {
		Outcome   string `json:"outcome"`
		Statement struct {
			Predicate struct {
				Capsule struct {
					EgressHosts []string `json:"egress_hosts"`
				} `json:"capsule"`
				Error struct {
					Reason string `json:"reason"`
				} `json:"error"`
				Evidence struct {
					Egress   evidence.Egress  `json:"egress"`
					Network  evidence.Network `json:"network"`
					Executor string           `json:"executor"`
				} `json:"evidence"`
			} `json:"predicate"`
		} `json:"statement"`
	}
	if err := json.Unmarshal([]byte(out), &shown); err != nil {
		b.t.Fatal(err)
	}
	r.reason = shown.Statement.Predicate.Error.Reason
	r.outcome, r.hosts, r.egress = shown.Outcome, shown.Statement.Predicate.Capsule.EgressHosts, shown.Statement.Predicate.Evidence.Egress
	r.network, r.executor = shown.Statement.Predicate.Evidence.Network.Mode, shown.Statement.Predicate.Evidence.Executor
}

// String has all of it, for errors.
func (c *call) String() string {
	return fmt.Sprintf("status %d, %s\nstdout %q\nstderr %s\negress %+v", c.status, c.outcome, c.stdout, c.stderr, c.egress)
}

// denied reports whether the receipt has this denial.
func (c *call) denied(host string, port uint32, why string) bool {
	return slices.ContainsFunc(c.egress.Denied, func(d evidence.Denial) bool {
		return d.Host == host && d.Port == port && d.Why == why && d.Times > 0
	})
}

// kill kills the one process of this name that descends from another, with SIGKILL: the last of them,
// since palyrad's palyra-egress has one above it that starts it anew. It goes by the name, because
// palyra-egress lets no user see its exe.
func kill(t *testing.T, name string, of int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/status")
	if err != nil {
		t.Fatal(err)
	}
	parents, named := make(map[int]int), []int{}
	for _, p := range all {
		b, err := os.ReadFile(p)
		if err != nil {
			continue // it has ended
		}
		var pid, parent int
		fmt.Sscan(filepath.Base(filepath.Dir(p)), &pid)
		_, after, _ := bytes.Cut(b, []byte("\nPPid:"))
		fmt.Fscan(bytes.NewReader(after), &parent)
		if parents[pid] = parent; bytes.HasPrefix(b, []byte("Name:\t"+name+"\n")) {
			named = append(named, pid)
		}
	}
	killed := 0
	for _, pid := range named {
		p := parents[pid]
		for p > 1 && p != of {
			p = parents[p]
		}
		if p == of && !slices.ContainsFunc(named, func(other int) bool { return parents[other] == pid }) {
			killed++
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
				t.Errorf("kill %s: %v", name, err)
			}
		}
	}
	if killed != 1 {
		t.Errorf("%d has %d processes %s below it, want 1", of, killed, name)
	}
}
