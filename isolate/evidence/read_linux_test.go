package evidence

import (
	"errors"
	"os"
	"os/exec"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"palyra/isolate/internal/sys"
)

// TestRead reads this very process and compares with what the process knows of
// itself by other means.
func TestRead(t *testing.T) {
	var e Evidence
	if err := readOnce(&e, "/proc", os.Getpid()); err != nil {
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
		l, err := one("/proc", cmd.Process.Pid, (*process).limits)
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
	if err := readOnce(&before, "/proc", 1<<30); err == nil || before.Namespaces.Cell != nil || before.Host.Basis != Absent {
		t.Errorf("a failed read left %+v", before)
	}
}

// TestWaysAgree reads one process in each way that there is and compares: by
// pidfd and by links, by the count of descriptors and by the directory.
func TestWaysAgree(t *testing.T) {
	var files []*os.File
	for range 40 { // more than are asked for by number
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		files = append(files, r)
	}
	for _, extra := range []int{0, 4, 40} {
		pidfd := -1
		cmd := exec.Command("/bin/cat")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd}
		cmd.ExtraFiles = files[:extra]
		in, err := cmd.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// Its answer says that it is in its loop and opens nothing any more.
		if _, err := in.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		r, err := NewReader("/proc")
		if err != nil {
			t.Fatal(err)
		}
		var links, ioctls Evidence
		if err := errors.Join(r.Read(&links, cmd.Process.Pid, -1), r.Read(&ioctls, cmd.Process.Pid, pidfd)); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(links, ioctls) {
			t.Errorf("by links %+v, by pidfd %+v", links, ioctls)
		}
		own, err := ReadNamespaces("/proc", os.Getpid())
		if err != nil || !reflect.DeepEqual(own, ioctls.Namespaces.Cell) {
			t.Errorf("namespaces of a child %v, ours %v, %v", ioctls.Namespaces.Cell, own, err)
		}
		listed, err := one("/proc", cmd.Process.Pid, (*process).numbers)
		if err != nil || len(listed) != len(links.Process.Descriptors) || len(listed) < 3+extra {
			t.Errorf("%d extra: %d descriptors listed, %d read, %v", extra, len(listed), len(links.Process.Descriptors), err)
		}
		for i, n := range listed {
			if !strings.HasPrefix(links.Process.Descriptors[i], strconv.Itoa(n)+" ") {
				t.Errorf("descriptor %d is read as %q", n, links.Process.Descriptors[i])
			}
		}
		r.Close()
		in.Close()
		cmd.Wait()
		syscall.Close(pidfd)
	}
}

// TestReaderAtOnce reads from many goroutines: buffers are not shared.
func TestReaderAtOnce(t *testing.T) {
	r, err := NewReader("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 20 {
				var e Evidence
				if err := r.Read(&e, os.Getpid(), -1); err != nil {
					t.Error(err)
				} else if int(e.Process.HostUID) != os.Getuid() || e.Host.BootID == "" || len(e.Limits.Soft) != 16 {
					t.Errorf("%+v", e)
				}
			}
		})
	}
	wg.Wait()
}

// What is forgotten is read again, and is the same.
func TestForget(t *testing.T) {
	r, err := NewReader("/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for range 3 {
		var e Evidence
		if err := r.Read(&e, os.Getpid(), -1); err != nil || int(e.Process.HostUID) != os.Getuid() || len(e.Mounts.Table) == 0 {
			t.Fatalf("%+v, %v", e, err)
		}
		if err := r.Forget(); err != nil && !errors.Is(err, syscall.EPERM) {
			t.Errorf("forget: %v", err)
		}
	}
}

// Limits are what they are now, also right after another process had the same text
// or somebody changed what an earlier reading gave them.
func TestLimitsAreRead(t *testing.T) {
	s := &scratch{buf: make([]byte, 16<<10)}
	proc, err := sys.OpenDirAt(sys.AtCWD, "/proc")
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(proc)
	read := func(pid int) Limits {
		t.Helper()
		p, err := s.open(proc, pid, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer p.close()
		l, err := p.limits()
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	want := read(os.Getpid())
	for range 3 {
		got := read(os.Getpid())
		if !reflect.DeepEqual(got, want) {
			t.Errorf("got %+v, want %+v", got, want)
		}
		got.Soft["nofile"], got.Hard["nofile"] = -7, -7 // its reader's alone
	}
	cmd := exec.Command("/bin/sh", "-c", "ulimit -n 17; echo set; read x")
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer in.Close()
	if _, err := out.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	if got := read(cmd.Process.Pid); got.Soft["nofile"] != 17 {
		t.Errorf("of the child: %+v, want 17 files", got)
	}
	if got := read(os.Getpid()); !reflect.DeepEqual(got, want) {
		t.Errorf("after the child: %+v, want %+v", got, want)
	}
	// A record is read whole, however small the buffer is at first.
	for _, size := range []int{0, 1, 100, 4096} {
		buf := make([]byte, size)
		name := strconv.Itoa(os.Getpid()) + "/limits"
		got, err := sys.ReadRecordAt(proc, name, &buf)
		if err != nil {
			t.Fatal(err)
		}
		if l, err := parseLimits(got); err != nil || !reflect.DeepEqual(l.Soft, want.Soft) {
			t.Errorf("with %d bytes at first: %+v, %v", size, l, err)
		}
	}
}

// readOnce reads one process as Reader.Read does. proc is where a proc file system
// is mounted that shows pid.
func readOnce(e *Evidence, proc string, pid int) error {
	r, err := NewReader(proc)
	if err != nil {
		return err
	}
	defer r.Close()
	return r.Read(e, pid, -1)
}
