package kernel

import (
	"os"
	"syscall"
	"testing"
	"time"
)

// TestPipe: the program's end is as a program expects it; ours doesn't block and has deadlines.
func TestPipe(t *testing.T) {
	for ours := range 2 {
		r, w, err := pipe(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		ends := []*os.File{r, w}
		for i, f := range ends {
			c, err := f.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var flags, fd uintptr
			c.Control(func(n uintptr) {
				flags, _, _ = syscall.Syscall(syscall.SYS_FCNTL, n, syscall.F_GETFL, 0)
				fd, _, _ = syscall.Syscall(syscall.SYS_FCNTL, n, syscall.F_GETFD, 0)
			})
			if nonblock := flags&syscall.O_NONBLOCK != 0; nonblock != (i == ours) || int(flags&syscall.O_ACCMODE) != i || fd&syscall.FD_CLOEXEC == 0 {
				t.Errorf("pipe(%d): end %d: flags %#x, descriptor flags %#x", ours, i, flags, fd)
			}
		}
		if err := ends[ours].SetDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Error(err)
		}
		if err := ends[1-ours].SetDeadline(time.Now()); err == nil {
			t.Errorf("pipe(%d): the program's end is registered with the poller", ours)
		}
	}
}
