package cell

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"palyra/isolate/internal/sys"
)

// TestAwake finds a process ended exactly where it may be waited for without sleep:
// for the call of a waiting cell that is alone, on a host that is not crowded.
func TestAwake(t *testing.T) {
	c := exec.Command("/usr/bin/true")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	pidfd, err := sys.PidfdOpen(c.Process.Pid) // unreaped until Wait
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(pidfd)
	if err := sys.WaitExit(pidfd); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		name  string
		form  *cellForm
		calls int32
		until time.Duration
		want  bool
	}{
		{"a waiting cell's", &cellForm{}, 1, -time.Minute, true},
		{"one made for the call", nil, 1, -time.Minute, false},
		{"one of two", &cellForm{}, 2, -time.Minute, false},
		{"on a crowded host", &cellForm{}, 1, time.Hour, false},
	} {
		s := &server{}
		s.calls.Store(x.calls)
		s.crowded.Store(time.Now().Add(x.until).UnixNano())
		p := &process{call: &run{form: x.form}, run: &run{s: s}}
		if got, err := p.awake(pidfd); got != x.want || err != nil {
			t.Errorf("%s: found it ended: %v, %v; want %v", x.name, got, err, x.want)
		}
	}
	// One that has not ended is slept for, and who waited for a processor says so.
	self, err := sys.PidfdOpen(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	defer sys.Close(self)
	s := &server{}
	p := &process{call: &run{form: &cellForm{}}, run: &run{s: s}}
	if ended, err := p.awake(self); ended || err != nil {
		t.Errorf("this process has ended: %v, %v", ended, err)
	}
}
