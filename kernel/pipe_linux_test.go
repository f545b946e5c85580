package kernel

import (
	"errors"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestPipe: the program's end is as a program expects it, ours can be waited for
// with a deadline.
func TestPipe(t *testing.T) {
	for ours := range 2 {
		r, w, err := pipe(ours)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		defer w.Close()
		for i, f := range []*os.File{r, w} {
			raw, err := f.SyscallConn()
			if err != nil {
				t.Fatal(err)
			}
			var flags, fd uintptr
			raw.Control(func(n uintptr) {
				flags, _, _ = syscall.Syscall(syscall.SYS_FCNTL, n, syscall.F_GETFL, 0)
				fd, _, _ = syscall.Syscall(syscall.SYS_FCNTL, n, syscall.F_GETFD, 0)
			})
			if nonblock := flags&syscall.O_NONBLOCK != 0; nonblock != (i == ours) || fd&syscall.FD_CLOEXEC == 0 {
				t.Errorf("pipe(%d): end %d: flags %#x, descriptor flags %#x", ours, i, flags, fd)
			}
		}
		end := []*os.File{r, w}[ours]
		if err := end.SetDeadline(time.Now().Add(-time.Second)); err != nil {
			t.Errorf("pipe(%d): %v", ours, err)
		}
	}
	r, w, err := pipe(0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	r.SetReadDeadline(time.Unix(1, 0))
	if _, err := r.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read past the deadline: %v", err)
	}
}
