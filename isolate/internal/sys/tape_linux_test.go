package sys

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The assembly knows these numbers.
func TestLayout(t *testing.T) {
	var s rawStep
	var st rawStatus
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"step size", unsafe.Sizeof(s), 80},
		{"step args", unsafe.Offsetof(s.args), 8},
		{"step flags", unsafe.Offsetof(s.flags), 56},
		{"step out", unsafe.Offsetof(s.out), 64},
		{"step alt", unsafe.Offsetof(s.alt), 72},
		{"status errno", unsafe.Offsetof(st.errno), 8},
		{"status pid", unsafe.Offsetof(st.pid), 16},
		{"status done", unsafe.Offsetof(st.done), 24},
		{"status mode", unsafe.Offsetof(st.mode), 32},
		{"status wstatus", unsafe.Offsetof(st.wstatus), 40},
		{"status usage", unsafe.Offsetof(st.usage), 48},
		{"status wake", unsafe.Offsetof(st.wake), 192},
		{"status next", unsafe.Offsetof(st.next), 200},
		{"clone_args size", unsafe.Sizeof(cloneArgs{}), 88},
	} {
		if c.got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, c.got, c.want)
		}
	}
}

// child runs a tape on a locked thread and returns how it ended.
func child(t *testing.T, tape Tape, wait bool) (*Arena, unix.WaitStatus) {
	t.Helper()
	a, err := NewArena(tape, wait)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Free)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	pid, pidfd, err := a.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	defer Close(pidfd)
	ws, _, err := Reap(pid)
	if err != nil {
		t.Fatal(err)
	}
	return a, ws
}

func TestWalkStoresResultsAndUsesSlots(t *testing.T) {
	r, w, err := Pipe()
	if err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(uintptr(r), "r") // it alone closes r: a finalizer that does so again ends another test's file
	defer end.Close()
	tape := Tape{
		{Call: "dup3", Args: []Arg{FD("w", w), Int(200), Int(0)}, Out: "copy"},
		{Call: "write", Args: []Arg{Slot("copy"), Bytes("text", []byte("hello"), ""), Int(5)}},
		{Call: "close", Args: []Arg{Int(-1)}, MayFail: true},
		{Call: "write", Args: []Arg{Slot("copy"), Bytes("text", []byte(" world"), ""), Int(6)}},
		{Call: "close", Args: []Arg{Int(-1)}},
	}
	a, ws := child(t, tape, false)
	Close(w)
	got, err := io.ReadAll(end)
	if err != nil || string(got) != "hello world" {
		t.Errorf("read %q, %v; want %q", got, err, "hello world")
	}
	if !ws.Exited() || ws.ExitStatus() != 127 {
		t.Errorf("wait status %#x, want exit 127", ws)
	}
	serr := a.Failed()
	if serr == nil || serr.Step != "close" || !errors.Is(serr, syscall.EBADF) {
		t.Errorf("failed step %v, want close: EBADF", serr)
	}
}

// program is a tape that executes path with argv.
func program(t *testing.T, path string, argv ...string) Tape {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return Tape{{Call: "execveat", Args: []Arg{FD("exec", int(f.Fd())), Str(""), Strings("argv", argv), Strings("env", nil), Int(unix.AT_EMPTY_PATH), Secret("cookie", 7)}}}
}

func TestReaperReportsTheProgram(t *testing.T) {
	for _, c := range []struct {
		name   string
		script string
		want   int // exit status, or 128+signal
	}{
		{"exit", "exit 7", 7},
		{"signal", "kill -TERM $$", 128 + 15},
		{"orphan", "(sleep 0.05; exit 3) & exit 0", 0},
	} {
		for _, wait := range []bool{false, true} {
			tape := Tape{
				{Call: "clone", Args: []Arg{Int(unix.CLONE_VM | int(unix.SIGCHLD)), Int(0), Int(0), Int(0), Int(0)}, Out: PIDSlot, Child: program(t, "/bin/sh", "sh", "-c", c.script)},
				{Call: Init},
			}
			a, ws := child(t, tape, wait)
			if !ws.Exited() || ws.ExitStatus() != 0 {
				t.Errorf("%s: reaper's wait status %#x, want exit 0", c.name, ws)
			}
			got, ru, ok := a.Program()
			n := got.ExitStatus()
			if got.Signaled() {
				n = 128 + int(got.Signal())
			}
			if !ok || n != c.want {
				t.Errorf("%s: program ended %d (%v), want %d", c.name, n, ok, c.want)
			}
			if ru.Maxrss == 0 {
				t.Errorf("%s: no resource usage", c.name)
			}
		}
	}
}

func TestFailedExecIsNamed(t *testing.T) {
	tape := Tape{
		{Call: "clone", Args: []Arg{Int(unix.CLONE_VM | int(unix.SIGCHLD)), Int(0), Int(0), Int(0), Int(0)}, Out: PIDSlot, Child: program(t, "/etc/passwd", "x")},
		{Call: Init},
	}
	a, _ := child(t, tape, false)
	if serr := a.Failed(); serr == nil || serr.Step != "execveat" || !errors.Is(serr, syscall.EACCES) {
		t.Errorf("failed step %v, want execveat: EACCES", serr)
	}
}

func TestLinesHideSecretsAndNumbers(t *testing.T) {
	tape := Tape{{Call: "execveat", Args: []Arg{FD("exec", 93), Str(""), Strings("argv", []string{"top-secret-argument"}), Secret("cookie", 0xdeadbeef)}, Why: "x"}}
	got := strings.Join(tape.Lines(), "\n")
	want := `execveat(fd:exec, "", argv[1], secret:cookie)`
	if got != want {
		t.Errorf("lines %q, want %q", got, want)
	}
}

// Whichever step fails, its number is that of its line, in a tape and in what is
// brought later.
func TestFailedStepIsNumbered(t *testing.T) {
	call := func(n int) Step { return Step{Call: "dup3", Args: []Arg{Int(n), Int(0), Int(0)}} }
	split := func(child ...Step) Step { return Step{Call: "clone", Args: []Arg{Int(0)}, Child: child} }
	tape := Tape{call(10), split(call(11), split(call(12)), call(13), call(14)), call(15), split(call(16)), call(17), {Call: Init}}
	rest := Tape{call(18), split(call(19)), call(20)}
	check := func(what string, a *Arena, lines []string) {
		t.Helper()
		seen := 0
		for _, p := range a.parts {
			for i := range p.tape {
				a.status.where, a.status.errno = p.at+uintptr(i)*unsafe.Sizeof(rawStep{}), uintptr(syscall.EBADF)
				got := a.Failed()
				if got.Number < 1 || got.Number > len(lines) || strings.TrimLeft(lines[got.Number-1], " ") != got.Line {
					t.Errorf("%s: step %d is %s, not so in\n%s", what, got.Number, got.Line, strings.Join(lines, "\n"))
				}
				if want := fmt.Sprintf("step %d: %s: bad file descriptor", got.Number, p.tape[i].Call); got.Error() != want {
					t.Errorf("%s: the error is %q, want %q", what, got, want)
				}
				seen++
			}
		}
		if seen != len(lines) {
			t.Errorf("%s: %d steps, want one for each of %d lines", what, seen, len(lines))
		}
	}
	if got := tape.Steps(); got != len(tape.Lines()) {
		t.Errorf("%d steps, want one for each of %d lines", got, len(tape.Lines()))
	}
	a, err := NewArena(tape, false)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	check("a tape", a, tape.Lines())
	if _, err := a.Prepare(rest); err != nil {
		t.Fatal(err)
	}
	check("the rest of a tape", a, append(tape.Lines(), rest.Lines()...))
}

// A parked child sleeps until it is given the rest of its tape, however large
// that is, shares the descriptors that it was cloned with until then, and names
// the step of the rest that failed. One with a memory of its own must have room for
// the rest from the start.
func TestPark(t *testing.T) {
	for _, c := range []struct {
		size, room int
		apart      bool
	}{{size: 1}, {size: 100 << 10}, {size: 1, apart: true}, {size: 100 << 10, room: 101 << 10, apart: true}} {
		size, big := c.size, strings.Repeat("x", c.size)
		a, err := new(Memory).NewArena(Tape{{Call: "write", Args: []Arg{FD("none", -1), Bytes("b", []byte("x"), ""), Int(1)}, MayFail: true}, {Call: Park}}, false, c.room)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(a.Free)
		a.apart = c.apart
		runtime.LockOSThread()
		pid, pidfd, err := a.Start(unix.CLONE_FILES, -1)
		runtime.UnlockOSThread()
		if err != nil {
			t.Fatal(err)
		}
		defer Close(pidfd)
		// It was made before this pipe.
		r, w, err := Pipe()
		if err != nil {
			t.Fatal(err)
		}
		rf := os.NewFile(uintptr(r), "r")
		defer rf.Close()
		if ended, err := WaitPidfd(pidfd, 20); ended || err != nil {
			t.Fatalf("the parked child ended: %v", err)
		}
		done := make(chan []byte)
		go func() {
			b, _ := io.ReadAll(rf)
			done <- b
		}()
		if tooMuch := (Tape{{Call: "write", Args: []Arg{Int(0), Bytes("b", make([]byte, 200<<10), ""), Int(1)}}}); c.apart {
			if err := a.Resume(tooMuch); !errors.Is(err, errApart) {
				t.Errorf("more than there is room for: %v, want %v", err, errApart)
			}
		}
		err = a.Resume(Tape{
			{Call: "close_range", Args: []Arg{Int(w + 1), Int(^uint32(0)), Int(unix.CLOSE_RANGE_UNSHARE)}},
			{Call: "dup3", Args: []Arg{FD("w", w), Int(w + 1), Int(0)}},
			{Call: "write", Args: []Arg{Int(w + 1), Str(big), Int(size)}},
			{Call: "dup3", Args: []Arg{Int(-1), Int(0), Int(0)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		ws, _, err := Reap(pid)
		if err != nil || !ws.Exited() || ws.ExitStatus() != 127 {
			t.Errorf("wait status %#x, %v; want exit 127", ws, err)
		}
		Close(w) // nothing else holds the end: the child had its own table
		if got := <-done; string(got) != big {
			t.Errorf("%d bytes arrived, want %d", len(got), size)
		}
		if serr := a.Failed(); serr == nil || serr.Number != 6 || serr.Step != "dup3" || !errors.Is(serr, syscall.EBADF) {
			t.Errorf("failed step %v, want step 6: dup3: EBADF", serr)
		}
	}
}
