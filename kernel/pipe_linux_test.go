package kernel

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"time"
)

// TestPipe: the program's end is as a program expects it, ours does not block.
func TestPipe(t *testing.T) {
	for ours := range 2 {
		fds, err := pipe(ours)
		if err != nil {
			t.Fatal(err)
		}
		for i, n := range fds {
			defer syscall.Close(n)
			flags, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(n), syscall.F_GETFL, 0)
			fd, _, _ := syscall.Syscall(syscall.SYS_FCNTL, uintptr(n), syscall.F_GETFD, 0)
			if nonblock := flags&syscall.O_NONBLOCK != 0; nonblock != (i == ours) || int(flags&syscall.O_ACCMODE) != i || fd&syscall.FD_CLOEXEC == 0 {
				t.Errorf("pipe(%d): end %d: flags %#x, descriptor flags %#x", ours, i, flags, fd)
			}
		}
	}
	r, w, err := feedPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := w.SetDeadline(time.Now().Add(-time.Second)); err != nil {
		t.Error(err)
	}
}

// TestIntake reads first without waiting and then with a deadline.
func TestIntake(t *testing.T) {
	in, w, err := newIntake()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	b := make([]byte, 10)
	if n, err := in.ReadNow(b); n != 0 || err != errNothingYet {
		t.Errorf("empty: %d, %v", n, err)
	}
	io.WriteString(w, "hello")
	if n, err := in.ReadNow(b[:3]); string(b[:n]) != "hel" || err != nil {
		t.Errorf("got %q, %v", b[:n], err)
	}
	if n := in.Unread(); n != 2 {
		t.Errorf("%d bytes unread", n)
	}
	if err := errors.Join(in.poll(), in.poll()); err != nil {
		t.Fatal(err)
	}
	if err := in.Wait(func() bool { n, err := in.ReadNow(b); return string(b[:n]) == "lo" && err == nil }); err != nil || in.Unread() != 0 {
		t.Errorf("%v, %d bytes unread", err, in.Unread())
	}
	in.SetReadDeadline(time.Unix(1, 0))
	if err := in.Wait(func() bool { return false }); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("waited past the deadline: %v", err)
	}
	in.Close()
	if _, err := w.Write(b); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("write to a pipe without a reader: %v", err)
	}
	w.Close()
	if in, w, err = newIntake(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if n, err := in.ReadNow(b); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	in.Close()
	in.Close()
}
