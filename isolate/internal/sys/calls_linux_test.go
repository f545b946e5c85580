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
