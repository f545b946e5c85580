package serve

import (
	"os/exec"
	"syscall"
	"testing"
	"time"

	"palyra/isolate/internal/sys"
)

// TestKeepTime: a run ends at its deadline, whatever its supervisor is at. One that has ended
// before isn't late.
func TestKeepTime(t *testing.T) {
	for _, program := range []string{"sleep", "true"} {
		child := exec.Command(program, "60")
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		pidfd, err := sys.PidfdOpen(child.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		defer sys.Close(pidfd)
		r := &run{deadline: time.Now()}
		p := &process{run: r, call: r, pidfd: pidfd}
		if program == "true" {
			if _, err := sys.WaitPidfd(pidfd, -1); err != nil {
				t.Fatal(err)
			}
		}
		stop := p.keepTime(pidfd)
		_ = child.Wait()
		if stop(); r.late != (program == "sleep") {
			t.Errorf("%s: late %t", program, r.late)
		}
		if killed := child.ProcessState.Sys().(syscall.WaitStatus).Signaled(); killed != r.late {
			t.Errorf("%s: killed %t", program, killed)
		}
	}
}
