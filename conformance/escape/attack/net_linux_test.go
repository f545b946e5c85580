package main

import (
	"io"
	"os"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A write that a signal interrupts while there is no room goes on until there is:
// with SO_SNDTIMEO the kernel says EINTR, even where the handler restarts calls.
func TestAgain(t *testing.T) {
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(p[0])
	far := os.NewFile(uintptr(p[1]), "far end")
	defer far.Close()
	for b := make([]byte, 4096); err == nil; {
		_, err = unix.SendmsgN(p[0], b, nil, nil, unix.MSG_DONTWAIT)
	}
	if err != unix.EAGAIN {
		t.Fatalf("fill: %v", err)
	}
	if err := unix.SetsockoptTimeval(p[0], unix.SOL_SOCKET, unix.SO_SNDTIMEO, &unix.Timeval{Sec: 60}); err != nil {
		t.Fatal(err)
	}
	var interrupted atomic.Int64
	thread, done := make(chan int), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with this
		thread <- unix.Gettid()
		done <- again(func() error {
			_, err := unix.Write(p[0], []byte{1})
			if err == unix.EINTR {
				interrupted.Add(1)
			}
			return err
		})
	}()
	tid := <-thread
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for interrupted.Load() < 3 {
		select {
		case err := <-done:
			t.Fatalf("ended with %v before there was room", err)
		case <-end:
			t.Fatal("no call was interrupted")
		case <-tick.C:
			if err := unix.Tgkill(os.Getpid(), tid, unix.SIGURG); err != nil {
				t.Fatal(err)
			}
		}
	}
	go io.Copy(io.Discard, far) // it ends with the far end
	if err := <-done; err != nil {
		t.Errorf("%v once there was room", err)
	}
}
