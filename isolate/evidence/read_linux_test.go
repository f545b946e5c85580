package evidence

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestRead reads this very process and compares with what the process knows of
// itself by other means.
func TestRead(t *testing.T) {
	var e Evidence
	if err := Read(&e, "/proc", os.Getpid()); err != nil {
		t.Fatal(err)
	}
	var rl syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &rl); err != nil {
		t.Fatal(err)
	}
	if int(e.Process.HostUID) != os.Getuid() || int(e.Process.HostGID) != os.Getgid() || len(e.Process.Descriptors) < 3 {
		t.Errorf("process: %+v", e.Process)
	}
	if e.Limits.Hard["nofile"] != int64(rl.Max) {
		t.Errorf("nofile: got %d, want %d", e.Limits.Hard["nofile"], rl.Max)
	}
	if e.Host.Release == "" || len(e.Host.BootID) != 36 || e.Host.Basis != Observed {
		t.Errorf("host: %+v", e.Host)
	}
	if len(e.Namespaces.Cell) < 7 || len(Fresh(e.Namespaces.Cell, e.Namespaces.Cell)) != 0 {
		t.Errorf("namespaces: %v", e.Namespaces.Cell)
	}
	if !slices.ContainsFunc(e.Mounts.Table, func(s string) bool { return strings.HasPrefix(s, "/proc ") }) {
		t.Errorf("no /proc in %q", e.Mounts.Table)
	}
}

// TestReadOther reads a child that differs in what can be changed without
// privilege: session, limits and descriptors.
func TestReadOther(t *testing.T) {
	cmd := exec.Command("sh", "-c", "ulimit -n 77; exec sleep 1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = nil
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	var p Process
	for range 10000 { // until the shell has executed sleep
		l, err := ReadLimits("/proc", cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		if p, err = ReadProcess("/proc", cmd.Process.Pid); err == nil && l.Soft["nofile"] == 77 && len(p.Descriptors) > 2 {
			break
		}
	}
	out.Close()
	want := []string{"0 /dev/null", "1 pipe", "2 /dev/null"}
	// Whoever runs the tests may have left more descriptors open than that.
	if p.Session != 1 || p.TTY != 0 || len(p.Descriptors) < 3 || !slices.Equal(p.Descriptors[:3], want) {
		t.Errorf("got %+v, want descriptors %q", p, want)
	}
	if _, err := ReadProcess("/proc", 1<<30); err == nil {
		t.Error("read a process that does not exist")
	}
	before := Evidence{Tier: "c"}
	if err := Read(&before, "/proc", 1<<30); err == nil || before.Namespaces.Cell != nil || before.Host.Basis != Absent {
		t.Errorf("a failed read left %+v", before)
	}
}
