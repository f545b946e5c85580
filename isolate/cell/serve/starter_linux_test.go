package serve

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestAcceptGoesOn: a starter without descriptors serves the next palyrad as soon as it has one,
// and those that are connected all the time. It ends with its listener.
func TestAcceptGoesOn(t *testing.T) {
	dial := func(fd int, at syscall.Sockaddr) {
		t.Helper()
		if err := syscall.Connect(fd, at); err != nil {
			t.Fatal(err)
		}
	}
	open := func() int {
		t.Helper()
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { syscall.Close(fd) })
		return fd
	}
	fd, at := open(), &syscall.SockaddrUnix{Name: filepath.Join(t.TempDir(), "starter")}
	if err := syscall.Bind(fd, at); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 8); err != nil {
		t.Fatal(err)
	}
	dup, err := syscall.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	l, err := newSocket(dup, "listener")
	if err != nil {
		t.Fatal(err)
	}
	served, noted, ended := make(chan *socket), make(chan error, 8), make(chan error)
	go func() {
		ended <- acceptAll(l, func(c *socket) { served <- c }, func(err error) { noted <- err })
	}()
	first, second := open(), open()
	dial(first, at)
	a := <-served
	defer a.Close()

	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	none := old
	none.Cur = 0
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	give := func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(give)
	dial(second, at)
	select {
	case err := <-noted:
		if !errors.Is(err, syscall.EMFILE) {
			t.Errorf("without descriptors: %v", err)
		}
	case err := <-ended:
		t.Fatalf("without descriptors the starter ended: %v", err)
	}
	if _, err := syscall.Write(first, []byte("still")); err != nil {
		t.Error(err)
	}
	buf := make([]byte, 16)
	if n, _, _, err := a.receive(buf, nil); err != nil || string(buf[:n]) != "still" {
		t.Errorf("the connection from before: %q, %v", buf[:n], err)
	}
	give()
	select {
	case b := <-served:
		b.Close()
	case err := <-ended:
		t.Fatalf("with descriptors again: %v", err)
	}
	if len(noted) != 0 {
		t.Errorf("%d further notes of one row of errors", len(noted))
	}
	l.Close()
	if err := <-ended; !errors.Is(err, os.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
