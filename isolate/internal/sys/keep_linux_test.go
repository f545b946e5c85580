package sys

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// What only this process writes to is in a child with a memory of its own, unless
// it is kept; the child works all the same.
func TestKeepMemory(t *testing.T) {
	secret, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(secret)
	copy(secret, "secret")
	at := uint64(uintptr(unsafe.Pointer(&secret[0])))
	// seen says whether a child has the page.
	seen := func() bool {
		t.Helper()
		a, err := NewArena(Tape{{Call: Park}}, false)
		if err != nil {
			t.Fatal(err)
		}
		defer a.Free()
		a.apart = true
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		pid, pidfd, err := a.Start(0, -1)
		if err != nil {
			t.Fatal(err)
		}
		defer Close(pidfd)
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
		if err != nil || !strings.Contains(string(maps), "r-xp") {
			t.Errorf("maps of the child: %v, %q", err, maps)
		}
		if err := a.Resume(Tape{{Call: "close", Args: []Arg{Int(-7)}}}); err != nil {
			t.Error(err)
		}
		if ws, _, err := Reap(pid); err != nil || ws.ExitStatus() != 127 || a.Failed() == nil || a.Failed().Step != "close" {
			t.Errorf("reaped %#x, %v, %v; want a child that its close ended", uint32(ws), err, a.Failed())
		}
		for line := range strings.Lines(string(maps)) {
			var from, to uint64
			if _, err := fmt.Sscanf(line, "%x-%x ", &from, &to); err != nil {
				t.Fatal(err)
			}
			if from <= at && at < to {
				return true
			}
		}
		return false
	}
	if !seen() {
		t.Error("what was not kept is not in the child: the test proves nothing")
	}
	if err := KeepMemory(); err != nil {
		t.Fatal(err)
	}
	libc, err := sequenced()
	if err != nil {
		t.Fatal(err)
	}
	// The race detector brings a C library: then it stays in the child, which lives.
	if seen() != libc {
		t.Errorf("with a C library %v: what was kept is in the child: %v", libc, !libc)
	}
}
