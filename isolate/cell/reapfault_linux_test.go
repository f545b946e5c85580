package cell

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/internal/sys"
	"palyra/isolate/native/cgroup"
)

// goneProcess is a run's process whose end can't be seen: somebody else has reaped it.
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

// Where the wait for a cell fails, its program has run as far as anybody knows,
// unless it was never let through the gate. The answer says so, also for a cell that
// waited for its call and of which something was known before.
func TestReapFails(t *testing.T) {
	early := errors.New("the child ended before the gate")
	for name, c := range map[string]struct {
		early   error
		form    bool
		leaf    *cgroup.Leaf
		outcome isolate.Outcome
	}{
		"cold":            {nil, false, nil, isolate.Unknown},
		"warm":            {nil, true, nil, isolate.Unknown},
		"with a cgroup":   {nil, false, new(cgroup.Leaf), isolate.Unknown}, // wait4 instead of waitid
		"before the gate": {early, false, nil, isolate.Failed},
	} {
		t.Run(name, func(t *testing.T) {
			fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			s := &server{conn: fds[1], forms: make(map[string]string)}
			ours := os.NewFile(uintptr(fds[0]), "palyra")
			defer ours.Close()
			defer sys.Close(fds[1])
			r := &run{s: s, id: 7, spec: new(isolate.Spec), leaf: c.leaf, deadline: time.Now().Add(time.Hour)}
			p := goneProcess(t, r)
			if c.form {
				r.form = s.formOf(&evidence.Evidence{Tier: "c"})
				r.tell(nil)
			}
			res, err := p.finish(c.early)
			if fault.ReasonOf(err) != "cell_reap" || res == nil || res.Outcome != c.outcome || (res.Evidence == nil) != (c.outcome == isolate.Unknown) {
				t.Fatalf("finish: %+v, %v", res, err)
			}
			(&worker{thread: thread{s: s}}).reply(r, res, err)

			client := &Client{conn: ours, buf: make([]byte, maxMessage), pending: map[uint64]*question{}}
			if client.raw, err = ours.SyscallConn(); err != nil {
				t.Fatal(err)
			}
			q := &question{turn: make(chan struct{}, 1)}
			client.pending[7] = q
			msg, err := client.await(q)
			if err != nil {
				t.Fatal(err)
			}
			got, err := q.parseReply(msg)
			if err != nil || got.Result == nil || got.Result.Outcome != c.outcome || got.Error == nil || got.Error.Reason != "cell_reap" || !strings.Contains(got.Error.Text, "wait") {
				t.Errorf("the client is told %+v, %+v, %v", got.Result, got.Error, err)
			}
		})
	}
}
