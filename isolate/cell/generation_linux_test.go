package cell_test

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell"
	"palyra/isolate/tier"
)

// TestMountsOfAnotherTime: if the host mounts or unmounts in a call's way after palyra-cell has
// started, that palyra-cell takes no new calls; its running calls go on. The test runs in a
// mount namespace of its own, which stands for the host's.
func TestMountsOfAnotherTime(t *testing.T) {
	const inside = "PALYRA_TEST_MOUNTS"
	if os.Getenv(inside) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root to mount")
		}
		cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), inside+"=1", "PALYRA_TEST_CELL="+cellPath(t))
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir := t.TempDir()
	mount := func(at string) {
		t.Helper()
		if err := syscall.Mount("palyra-test", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Unmount(at, syscall.MNT_DETACH) })
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ws := filepath.Join(dir, "a b")
	for _, name := range []string{"a b/gone", "a b/late", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(ws, "late/in"), "underneath")
	mount(filepath.Join(ws, "gone"))
	write(filepath.Join(ws, "gone/in"), "volume")
	s := benchSpec("/usr/bin/dash", isolate.NetworkFresh)
	s.Workspace = &isolate.Mount{Source: ws}
	d, err := os.Open(ws)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	show := func(c *cell.Client) string {
		t.Helper()
		s.Argv = []string{"sh", "-c", "cat gone/in late/in 2>&1"}
		_, out := runIn(t, c, s, d)
		return out
	}

	c := start(t, tier.C)
	if out := show(c); out != "volumeunderneath" {
		t.Fatalf("before: %q", out)
	}
	mount(filepath.Join(dir, "other"))
	if out := show(c); out != "volumeunderneath" {
		t.Errorf("after something was mounted elsewhere: %q", out)
	}

	exe, err := os.Open(s.Exec.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	in, input, _ := os.Pipe()
	output, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	long := *s
	long.Argv, long.Stdin = []string{"sh", "-c", "echo runs; read line; echo end"}, "stream"
	done := make(chan error, 1)
	go func() {
		res, err := c.Run(t.Context(), mint(t, testKey, &long), &long, &isolate.Files{Exec: exe, Stdin: in, Stdout: out, Stderr: out, Workspace: d})
		out.Close()
		if err == nil && (res.Outcome != isolate.Exited || res.Evidence.Exit.Code != 0) {
			t.Errorf("the call that ran meanwhile: %+v", res)
		}
		done <- err
	}()
	lines := bufio.NewReader(output)
	if line, err := lines.ReadString('\n'); line != "runs\n" {
		t.Fatal(line, err)
	}
	if err := syscall.Unmount(filepath.Join(ws, "gone"), syscall.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	mount(filepath.Join(ws, "late"))
	write(filepath.Join(ws, "late/in"), "on top")
	<-time.After(50 * time.Millisecond) // meanwhile nothing else may take the news
	if c.Past(filepath.Join(dir, "nothing")) || !c.Past(ws) || !c.Past("") {
		t.Error("the mounts of the workspace have changed, and nothing else; then it is past for all")
	}
	for range 2 {
		res, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: out, Stderr: out, Workspace: d})
		if res != nil || fault.ReasonOf(err) != "cell_died" || !strings.Contains(err.Error(), "mount") {
			t.Errorf("in a palyra-cell with the old mounts: %+v, %v; want it not taken", res, err)
		}
	}
	ended := make(chan struct{})
	go func() { defer close(ended); c.Close() }()
	select {
	case <-ended:
		t.Error("it ended under the call that it had")
	case <-time.After(100 * time.Millisecond):
	}
	input.Close()
	if err := <-done; err != nil {
		t.Errorf("the call that ran meanwhile: %v", err)
	}
	if rest, _ := io.ReadAll(lines); string(rest) != "" && string(rest) != "end\n" {
		t.Errorf("it printed %q", rest)
	}
	<-ended
	if out := show(start(t, tier.C)); !strings.Contains(out, "No such file") || !strings.HasSuffix(out, "on top") {
		t.Errorf("in the next palyra-cell: %q", out)
	}
}
