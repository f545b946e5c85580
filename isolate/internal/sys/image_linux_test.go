package sys

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"
)

// imageTape executes a program with argv and env of the copy, on its descriptor,
// after steps with pointers of every sort: a slot, a structure with an address in
// it and a child's tape.
func imageTape(argv, env int) Tape {
	return Tape{
		{Call: "write", Args: []Arg{FD("out", 0), Bytes("hello", []byte("reaper\n"), ""), Int(7)}, Out: "n"},
		{Call: "clone", Args: []Arg{Int(cloneVMFlag | unix.SIGCHLD), Int(0), Int(0), Int(0), Int(0)}, Out: PIDSlot, Child: Tape{
			{Call: "dup3", Args: []Arg{FD("out", 0), Int(1), Int(0)}},
			{Call: "write", Args: []Arg{FD("out", 0), Bytes("hello", []byte("child!\n"), ""), Slot("n")}},
			{Call: "execveat", Args: []Arg{FD("program", 0), Str(""), Strings("argv", make([]string, argv)), Strings("env", make([]string, env)), Int(unix.AT_EMPTY_PATH), Int(0)}},
		}},
		{Call: Init},
	}
}

const cloneVMFlag = unix.CLONE_VM

// Copies of one image, alive at the same time, do what tapes of their own would do.
func TestImage(t *testing.T) {
	program, err := os.Open("/usr/bin/env")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	im, err := NewImage(imageTape(1, 2), false)
	if err != nil {
		t.Fatal(err)
	}
	if want := imageTape(1, 2).Digest(); im.Digest != want || im.Steps != imageTape(1, 2).Steps() {
		t.Errorf("digest %v of %d steps, want %v", im.Digest, im.Steps, want)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var m Memory
	for round := range 3 { // the second round has the memory of the first
		var arenas []*Arena
		for _, env := range [][]string{{"A=1", "B=2"}, {"LONGER=" + string(bytes.Repeat([]byte("x"), 20<<10)), "C=3"}} {
			r, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			out := make(chan []byte, 1)
			go func() {
				defer r.Close()
				var b bytes.Buffer
				b.ReadFrom(r)
				out <- b.Bytes()
			}()
			a, err := m.Copy(im, []FDValue{{"out", int(w.Fd())}, {"program", int(program.Fd())}}, []StringsValue{{"argv", []string{"env"}}, {"env", env}}, 0)
			if err != nil {
				t.Fatal(err)
			}
			arenas = append(arenas, a)
			pid, pidfd, err := a.Start(0, -1)
			w.Close()
			if err != nil {
				t.Fatal(err)
			}
			if _, _, err := Reap(pid); err != nil {
				t.Fatal(err)
			}
			Close(pidfd)
			want := "reaper\nchild!\n" + env[0] + "\n" + env[1] + "\n"
			if got := string(<-out); got != want {
				t.Errorf("round %d: it wrote %d bytes, want %d: %.80q", round, len(got), len(want), got)
			}
			if ws, _, ok := a.Program(); !ok || ws.ExitStatus() != 0 {
				t.Errorf("round %d: %v, %#x", round, ok, uint32(ws))
			}
		}
		for _, a := range arenas {
			a.Free()
		}
	}
}

// A copy whose tape fails says at which step, as an arena of its own does.
func TestImageFails(t *testing.T) {
	im, err := NewImage(Tape{{Call: "close", Args: []Arg{FD("none", 0)}}}, false)
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	a, err := new(Memory).Copy(im, []FDValue{{"none", -1}}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Free()
	pid, pidfd, err := a.Start(0, -1)
	if err != nil {
		t.Fatal(err)
	}
	Close(pidfd)
	if _, _, err := Reap(pid); err != nil {
		t.Fatal(err)
	}
	if e := a.Failed(); e == nil || e.Line != "close(fd:none)" || !errors.Is(e, unix.EBADF) {
		t.Errorf("it failed with %v, want close(fd:none) and EBADF", e)
	}
}

// What a copy is not given is not what the image was made with.
func TestImageIncomplete(t *testing.T) {
	im, err := NewImage(imageTape(0, 0), false)
	if err != nil {
		t.Fatal(err)
	}
	var m Memory
	all := []FDValue{{"out", 1}, {"program", 1}}
	lists := []StringsValue{{"argv", nil}, {"env", nil}}
	for name, c := range map[string]struct {
		fds   []FDValue
		lists []StringsValue
	}{"no descriptor": {all[:1], lists}, "no list": {all, lists[:1]}, "nothing": {nil, nil}, "one twice": {append(all, all[0]), lists}} {
		if a, err := m.Copy(im, c.fds, c.lists, 0); err == nil {
			a.Free()
			t.Errorf("%s: no error", name)
		}
	}
	a, err := m.Copy(im, all, lists, 0)
	if err != nil {
		t.Fatal(err)
	}
	a.Free()
}
