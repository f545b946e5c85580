package cell_test

import (
	"bufio"
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"palyra/authz"
	"palyra/authz/grant"
	"palyra/authz/policy"
	"palyra/internal/built"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/isolatetest"
	"palyra/isolate/tier"
)

// binary builds palyra-cell once for all tests of the package.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "palyra-cell-test-")
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "palyra-cell"), built.Into(dir, "palyra-cell")
})

func TestMain(m *testing.M) {
	if path := os.Getenv("PALYRA_TEST_STARTER"); path != "" {
		os.Exit(dialAsAnother(path))
	}
	code := m.Run()
	if os.Getenv("PALYRA_TEST_CELL") == "" {
		if path, err := binary(); err == nil {
			os.RemoveAll(filepath.Dir(path))
		}
	}
	os.Exit(code)
}

var testKey = grant.NewKey()

func start(t testing.TB, tr tier.Tier) *cell.Client {
	t.Helper()
	return startPool(t, tr, cell.Pool{})
}

func startPool(t testing.TB, tr tier.Tier, pool cell.Pool) *cell.Client {
	t.Helper()
	path := os.Getenv("PALYRA_TEST_CELL") // a prebuilt one, for hosts without a go command
	if path == "" {
		var err error
		if path, err = binary(); err != nil {
			t.Fatalf("build palyra-cell: %v", err)
		}
	}
	c, err := cell.Start(t.Context(), cell.Config{Path: path, Tier: tr, Key: testKey, Pool: pool})
	if err != nil {
		t.Fatalf("start palyra-cell: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func mint(t testing.TB, key grant.Key, s *isolate.Spec) grant.Grant {
	t.Helper()
	a := authz.New(permitAll(t), key)
	d := a.Decide(policy.Request{Principal: policy.LocalUser("test"), Action: policy.ToolExecute,
		Resource: policy.Tool("process.run"), Context: policy.Context{CapsuleDigest: s.Capsule}})
	digest, err := s.Digest()
	if err != nil {
		t.Fatal(err)
	}
	g, err := a.Grant(d, nil, s.Capsule, digest, time.Minute)
	if err != nil {
		t.Fatalf("grant: %v (%+v)", err, d.View())
	}
	return g
}

// waits are the parts of the contract that take most of its time. Networks have nothing to do with
// them, and starters with the first alone.
var waits = []string{"Limits", "ProcessorTime", "WorkingDirectory", "Staged", "StagedTogether"}

// contract runs the contract, or a share of it: one of every parts, from first on.
func contract(t *testing.T, tr tier.Tier, network string, every, first int, skip ...string) {
	var c *cell.Client
	isolatetest.Run(t, isolatetest.Subject{
		Tier: tr, Network: network, Skip: skip, Every: every, First: first,
		New: func(t testing.TB) isolate.Runner { c = start(t, tr); return c },
		Grant: func(t testing.TB, s *isolate.Spec) grant.Grant {
			return mint(t, testKey, s)
		},
	})
}

func TestContractTierB(t *testing.T) { contract(t, tier.B, isolate.NetworkFresh, 1, 0) }

func TestContractTierC(t *testing.T) { contract(t, tier.C, isolate.NetworkFresh, 1, 0) }

// What differs in the network alone shares the contract in a sample.
func TestContractVoid(t *testing.T) {
	contract(t, tier.C, isolate.NetworkVoid, sample.Of(4, 1), 0, waits...)
}

func TestContractLoopback(t *testing.T) {
	contract(t, tier.C, isolate.NetworkLoopback, sample.Of(4, 1), 1, waits...)
}

func TestContractSession(t *testing.T) {
	contract(t, tier.C, isolate.NetworkSession, sample.Of(4, 1), 2, waits...)
}

func TestContractEgress(t *testing.T) {
	contract(t, tier.C, isolate.NetworkEgress, sample.Of(4, 1), 3, waits...)
}

func permitAll(t testing.TB) *policy.Set {
	t.Helper()
	set, err := policy.LoadFS(fstest.MapFS{
		"all.cedar": {Data: []byte("@id(\"all\") permit (principal, action, resource);\n")},
	})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// TestDeathOfPalyraCell: when palyra-cell is killed, all that it ran dies and the caller learns
// of it.
func TestDeathOfPalyraCell(t *testing.T) {
	for _, tr := range []tier.Tier{tier.B, tier.C} {
		t.Run(tr.String(), func(t *testing.T) {
			c := start(t, tr)
			name := "palyra-death-" + tr.String() + strconv.Itoa(os.Getpid())
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			exe, err := os.Open("/bin/sh")
			if err != nil {
				t.Fatal(err)
			}
			defer exe.Close()
			s := &isolate.Spec{Version: 1, Capsule: canon.Sum([]byte(name)), Tier: tr, Cwd: "/workspace", Stdin: "none",
				Argv: []string{"sh", "-c", "(setsid sh -c 'pwd; sleep 600; : " + name + "' &); sleep 600; : " + name},
				Exec: isolate.File{Path: "/bin/sh", Pinned: "system"},
				Limits: isolate.Limits{Wall: time.Minute, CPU: time.Minute, Memory: 1 << 28, PIDs: 20, Output: 1 << 20, FileSize: 1 << 20,
					OpenFiles: 64, Disk: 1 << 20, Inodes: 100}}
			g := mint(t, testKey, s)
			done := make(chan error, 1)
			go func() {
				_, err := c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdout: w, Stderr: w})
				w.Close()
				done <- err
			}()
			cwd, err := bufio.NewReader(r).ReadString('\n')
			if err != nil {
				t.Fatal(err)
			}
			if n := len(running(t, name)); n < 2 {
				t.Fatalf("%d processes of the call are running, want two: the test would prove nothing", n)
			}
			if err := c.TestOnlyKill(); err != nil {
				t.Fatal(err)
			}
			if err := <-done; fault.ReasonOf(err) != "cell_died" {
				t.Errorf("the run ended with %v, want cell_died", err)
			}
			<-c.Died()
			if alive := running(t, name); len(alive) > 0 {
				t.Errorf("processes outlived palyra-cell: %v", alive)
			}
			if _, err := c.Run(context.Background(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: os.Stdout, Stderr: os.Stderr}); fault.ReasonOf(err) != "cell_died" {
				t.Errorf("a run after its death: %v, want cell_died", err)
			}
			if tr == tier.B {
				// The next palyra-cell removes the leftovers, by its end at the latest.
				if !strings.HasPrefix(cwd, "/tmp/palyra-b-cell-") {
					t.Errorf("it ran in %q, which is no private workspace: the test would prove nothing", cwd)
				}
				start(t, tr).Close()
				if _, err := os.Lstat(strings.TrimSpace(cwd)); !os.IsNotExist(err) {
					t.Errorf("the private workspace %q is left: %v", cwd, err)
				}
			}
		})
	}
}

// TestEndBesideAnother: when a palyra-cell of tier B has ended, its leftovers are looked for.
// Another palyra-cell's calls and waiting cells aren't among them.
func TestEndBesideAnother(t *testing.T) {
	c := startPool(t, tier.C, cell.Pool{Cells: 2})
	s := benchSpec("/usr/bin/cat", "")
	s.Argv, s.Stdin = []string{"cat"}, "stream"
	if _, err := c.Expect(t.Context(), "", s.Limits); err != nil {
		t.Fatal(err)
	}
	exe, err := os.Open("/usr/bin/cat")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	var in, out [2]*os.File // read, write
	for _, p := range []*[2]*os.File{&in, &out} {
		if p[0], p[1], err = os.Pipe(); err != nil {
			t.Fatal(err)
		}
		defer p[0].Close()
		defer p[1].Close()
	}
	g := mint(t, testKey, s)
	type end struct {
		*isolate.Result
		error
	}
	done := make(chan end, 1)
	go func() {
		res, err := c.Run(context.Background(), g, s, &isolate.Files{Exec: exe, Stdin: in[0], Stdout: out[1], Stderr: out[1]})
		done <- end{res, err}
	}()
	if _, err := in[1].WriteString("x"); err != nil {
		t.Fatal(err)
	}
	if _, err := out[0].Read(make([]byte, 1)); err != nil {
		t.Fatal(err) // it runs now
	}
	start(t, tier.B).Close()
	in[1].Close()
	if e := <-done; e.error != nil || e.Outcome != isolate.Exited || e.Evidence.Exit.Code != 0 {
		t.Errorf("a call of tier C beside the end of tier B: %+v, %v; want exit status 0", e.Result, e.error)
	}
}

// running returns the host's processes with text in their command line.
func running(t *testing.T, text string) (pids []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil && bytes.Contains(b, []byte(text)) {
			pids = append(pids, filepath.Dir(f))
		}
	}
	return pids
}

func TestStartRefuses(t *testing.T) {
	for _, c := range []struct {
		name, path, reason string
	}{
		{"missing", "/nonexistent/palyra-cell", "helper_unusable"},
		{"another program", "/bin/true", "cell_died"},
		{"not executable", "/etc/passwd", "cell_start"},
	} {
		_, err := cell.Start(t.Context(), cell.Config{Path: c.path, Tier: tier.C})
		if fault.KindOf(err) != fault.Refused || fault.ReasonOf(err) != c.reason {
			t.Errorf("%s: %v (%s), want refused with %s", c.name, err, fault.ReasonOf(err), c.reason)
		}
	}
	if _, err := cell.Start(t.Context(), cell.Config{Path: "/bin/true"}); fault.ReasonOf(err) != "tier_unavailable" {
		t.Errorf("no tier: %v, want tier_unavailable", err)
	}
}
