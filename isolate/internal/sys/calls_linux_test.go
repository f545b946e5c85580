package sys

import (
	"errors"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// What is opened after ReserveLow is above every number of a child's own.
func TestReserveLow(t *testing.T) {
	if err := ReserveLow(); err != nil {
		t.Fatal(err)
	}
	r, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(r)
	defer Close(w)
	if min(r, w) < LowFD {
		t.Errorf("a pipe has the descriptors %d and %d, want none below %d", r, w, LowFD)
	}
}

// Usage waits for the end of a child and leaves it to be reaped.
func TestUsage(t *testing.T) {
	a, err := NewArena(Tape{{Call: "close", Args: []Arg{Int(-1)}}}, false) // fails, and so ends
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, pidfd, err := a.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(pidfd)
	for range 2 {
		if _, _, err := Usage(pidfd); err != nil {
			t.Fatal(err)
		}
	}
	if ws, _, err := Reap(pid); err != nil || ws.ExitStatus() != 127 {
		t.Errorf("reaped %#x, %v; want status 127", uint32(ws), err)
	}
	if _, _, err := Usage(pidfd); !errors.Is(err, unix.ECHILD) {
		t.Errorf("usage of a child that was reaped: %v, want ECHILD", err)
	}
}

// A signal neither ends a wait before its time nor makes it longer.
func TestWaitSignalled(t *testing.T) {
	r, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer Close(r)
	defer Close(w)
	a, err := NewArena(Tape{{Call: "read", Args: []Arg{Int(r), Bytes("b", make([]byte, 1), ""), Int(1)}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, pidfd, err := a.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer Reap(pid)
	defer Close(pidfd)
	tid, done, over := unix.Gettid(), make(chan bool), make(chan bool)
	go func() {
		defer close(over)
		for n := 0; ; n++ {
			select {
			case <-done:
				return
			default:
				// What the scheduler sends; a stray one does nothing.
				unix.Tgkill(unix.Getpid(), tid, unix.SIGURG)
				runtime.Gosched()
			}
			if n == 1000 {
				KillPidfd(pidfd)
			}
		}
	}()
	if ended, err := WaitPidfd(pidfd, 60_000); !ended || err != nil {
		t.Errorf("waited for a child that was killed: %v, %v", ended, err)
	}
	if b, err := ReadMark(r, r, 1); b != 0 || err != nil {
		t.Errorf("waited for a pipe that nobody writes to: %d, %v", b, err)
	}
	close(done)
	<-over
}

// TestNice: a user's thread that is nicer than asked stays so.
func TestNice(t *testing.T) {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its nice value
		done <- errors.Join(Nice(19), Nice(10))
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
