package serve

import (
	"errors"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/cell/wire"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native/cgroup"
)

// goneProcess is a run's process whose end can't be seen: another process has reaped it.
func goneProcess(t *testing.T, r *run) *process {
	t.Helper()
	cmd := exec.Command("/bin/true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pidfd, err := sys.PidfdOpen(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sys.Close(pidfd) })
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	return &process{run: r, call: r, pid: cmd.Process.Pid, pidfd: pidfd}
}

// TestReapFails: if the wait for a cell fails, its program may have run to its end, unless it
// never passed the gate. The answer says so.
func TestReapFails(t *testing.T) {
	early := errors.New("the child ended before the gate")
	for name, c := range map[string]struct {
		early   error
		leaf    *cgroup.Leaf
		outcome isolate.Outcome
	}{
		"alone":           {nil, nil, isolate.Unknown},
		"with a cgroup":   {nil, new(cgroup.Leaf), isolate.Unknown}, // wait4 instead of waitid
		"before the gate": {early, nil, isolate.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := &server{conn: fds[1]}
			defer sys.Close(fds[0])
			defer sys.Close(fds[1])
			r := &run{s: s, id: 7, spec: new(isolate.Spec), leaf: c.leaf, deadline: time.Now().Add(time.Hour)}
			p := goneProcess(t, r)
			res, err := p.finish(c.early)
			if fault.ReasonOf(err) != "cell_died" || res == nil || res.Outcome != c.outcome || (res.Evidence == nil) != (c.outcome == isolate.Unknown) {
				t.Fatalf("finish: %+v, %v", res, err)
			}
			(&worker{thread: thread{s: s}}).reply(r, res, err)

			var got wire.Reply
			b := make([]byte, wire.MaxMessage)
			if n, _, err := sys.ReceivePacket(fds[0], b, nil); err != nil || n == 0 || b[0] != wire.OpReply {
				t.Fatalf("an answer of %d bytes, of the kind %q: %v", n, b[0], err)
			} else if err := wire.Decode(b[1:n], &got); err != nil {
				t.Fatal(err)
			}
			if got.ID != 7 || got.Result == nil || got.Result.Outcome != c.outcome || got.Error == nil || got.Error.Reason != "cell_died" || !strings.Contains(got.Error.Text, "wait") {
				t.Errorf("the client is told %+v, %+v, %v", got.Result, got.Error, err)
			}
		})
	}
}
