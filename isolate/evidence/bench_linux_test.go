package evidence

import (
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"
)

// confined starts a process with namespaces and descriptors like a cell's at
// its gate; end ends it.
func confined(b *testing.B) (pid, pidfd int, end func()) {
	b.Helper()
	cmd := exec.Command("/bin/cat")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL, PidFD: &pidfd,
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}}
	in, err := cmd.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	cmd.ExtraFiles = []*os.File{os.Stdin, os.Stdin, os.Stdin, os.Stdin}
	if err := cmd.Start(); err != nil {
		b.Skip("needs user namespaces: ", err)
	}
	return cmd.Process.Pid, pidfd, func() {
		in.Close()
		cmd.Wait()
		syscall.Close(pidfd)
	}
}

// BenchmarkRead reads processes that nobody has looked at before, as it is at
// the gate: of the time, half goes into /proc entries that did not exist. The
// metric is the median; what starts the processes is not in it.
func BenchmarkRead(b *testing.B) {
	r, err := NewReader("/proc")
	if err != nil {
		b.Fatal(err)
	}
	defer r.Close()
	read := map[string]func(e *Evidence, pid, pidfd int) error{
		"pidfd": r.Read,
		"proc":  func(e *Evidence, pid, _ int) error { return r.Read(e, pid, -1) },
		"once":  func(e *Evidence, pid, _ int) error { return readOnce(e, "/proc", pid) },
	}
	for _, name := range []string{"pidfd", "proc", "once"} {
		b.Run(name, func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				pid, pidfd, end := confined(b)
				var e Evidence
				start := time.Now()
				if err := read[name](&e, pid, pidfd); err != nil {
					b.Fatal(err)
				}
				took = append(took, time.Since(start))
				end()
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1e3, "p50-µs")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkParse(b *testing.B) {
	for _, c := range []struct {
		name  string
		parse func([]byte) error
		text  string
	}{
		{"status", func(t []byte) error { _, err := parseStatus(t); return err }, status},
		{"stat", func(t []byte) error { _, _, _, err := parseStat(t); return err }, "42 (true) S 1 42 42 0 -1 4194304 0"},
		{"limits", func(t []byte) error { _, err := parseLimits(t); return err }, limits},
		{"mounts", func(t []byte) error { _, err := parseMountinfo(t); return err }, mountTable},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			text := []byte(c.text)
			for b.Loop() {
				if err := c.parse(text); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
