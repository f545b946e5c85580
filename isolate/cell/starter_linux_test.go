package cell_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"palyra/authz/grant"
	"palyra/internal/fault"
	"palyra/internal/sample"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/isolatetest"
	"palyra/isolate/probe"
	"palyra/isolate/tier"
)

func cellPath(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("PALYRA_TEST_CELL"); path != "" {
		return path
	}
	path, err := binary()
	if err != nil {
		t.Fatalf("build palyra-cell: %v", err)
	}
	return path
}

func starter(t testing.TB) *cell.Starter {
	t.Helper()
	s, err := cell.NewStarter(cellPath(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func through(t testing.TB, s *cell.Starter, tr tier.Tier) *cell.Client {
	t.Helper()
	c, err := cell.Start(t.Context(), cell.Config{Starter: s, Tier: tr, Key: testKey})
	if err != nil {
		t.Fatalf("start palyra-cell: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestContractStarter: a starter's palyra-cell is like any other.
func TestContractStarter(t *testing.T) {
	for i, tr := range []tier.Tier{tier.B, tier.C} { // which share it in a sample
		t.Run(tr.String(), func(t *testing.T) {
			s := starter(t)
			isolatetest.Run(t, isolatetest.Subject{Tier: tr, Every: sample.Of(2, 1), First: i, Skip: waits[1:], // the cgroups for limits are made by the starter
				New:   func(t testing.TB) isolate.Runner { return through(t, s, tr) },
				Grant: func(t testing.TB, s *isolate.Spec) grant.Grant { return mint(t, testKey, s) },
			})
		})
	}
}

func soon(t *testing.T, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(time.Minute):
		t.Fatalf("%s: still there", what)
	}
}

func TestStarterDeaths(t *testing.T) {
	s := starter(t)
	a, b := through(t, s, tier.C), through(t, s, tier.C)
	if err := a.TestOnlyKill(); err != nil {
		t.Fatal(err)
	}
	soon(t, "a palyra-cell that was killed", a.Died())
	select {
	case <-b.Died():
		t.Error("killing one palyra-cell ended the other")
	case <-s.Gone():
		t.Error("killing a palyra-cell ended its starter")
	default:
	}
	// The starter starts another after the first has died.
	c := through(t, s, tier.C)
	s.Close()
	soon(t, "palyra-cell without its starter", b.Died())
	soon(t, "palyra-cell without its starter", c.Died())
	if _, err := cell.Start(t.Context(), cell.Config{Starter: s, Tier: tier.C, Key: testKey}); fault.ReasonOf(err) != "helper_unusable" {
		t.Errorf("start without a starter: got %v", err)
	}
}

// TestStarterProbe: the starter's report is the host's, which this process could make too.
func TestStarterProbe(t *testing.T) {
	got, err := starter(t).Probe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want, err := probe.Run(t.Context(), cellPath(t))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Findings) == 0 || len(got.Findings) != len(want.Findings) || got.Kernel != want.Kernel {
		t.Fatalf("got %+v", got)
	}
	for i, f := range got.Findings {
		if f.Name != want.Findings[i].Name || f.Answer != want.Findings[i].Answer {
			t.Errorf("%s: %v through the starter, %v without", f.Name, f.Answer, want.Findings[i].Answer)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := starter(t).Probe(ctx); fault.KindOf(err) != fault.Canceled {
		t.Errorf("probe that was given up: %v", err)
	}
}

func TestStarterRefuses(t *testing.T) {
	if _, err := cell.NewStarter("/nonexistent/palyra-cell"); fault.ReasonOf(err) != "helper_unusable" {
		t.Errorf("missing binary: got %v", err)
	}
	if _, err := cell.DialStarter(filepath.Join(t.TempDir(), "none")); fault.ReasonOf(err) != "helper_unusable" {
		t.Errorf("no socket: got %v", err)
	}
	s, err := cell.NewStarter("/bin/true") // it ends at once
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	soon(t, "another program as starter", s.Gone())
	if _, err := cell.Start(t.Context(), cell.Config{Starter: s, Tier: tier.C, Key: testKey}); fault.ReasonOf(err) != "helper_unusable" {
		t.Errorf("got %v", err)
	}
}

// TestStarterService: a starter that is a service of its own, with a listening socket, serves
// one palyrad after another, and no other user.
func TestStarterService(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	cmd := exec.Command(cellPath(t), "starter")
	cmd.ExtraFiles = []*os.File{f}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	f.Close()
	defer cmd.Wait()
	defer cmd.Process.Kill()
	for range 2 {
		s, err := cell.DialStarter(path)
		if err != nil {
			t.Fatal(err)
		}
		c := through(t, s, tier.C)
		s.Close() // as if palyrad had died
		soon(t, "palyra-cell of a palyrad that is gone", c.Died())
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root") // to be another user
	}
	// The test's own directory and the one around it; the world may enter their parent.
	for _, p := range []string{dir, filepath.Dir(dir)} {
		if err := os.Chmod(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", os.Args[0])
	other.Env = append(os.Environ(), "PALYRA_TEST_STARTER="+path)
	if out, err := other.CombinedOutput(); err != nil {
		t.Errorf("another user: %v\n%s", err, out)
	}
}

// dialAsAnother is TestStarterService's other user: the test binary again, sent here by
// TestMain. It returns the exit status, 0 if the starter hung up.
func dialAsAnother(path string) int {
	s, err := cell.DialStarter(path)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	select {
	case <-s.Gone():
		return 0
	case <-time.After(time.Minute):
		fmt.Fprintln(os.Stderr, "the starter keeps the connection of another user")
		return 1
	}
}
