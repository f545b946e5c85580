package terminal

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// asScreen makes this test program open a Screen on the terminal that it names, and panic
// in another goroutine.
const asScreen = "PALYRA_TEST_SCREEN"

func beScreen(path string) {
	dev, err := Open(context.Background(), path)
	if err == nil {
		var s *Screen
		if s, err = dev.Screen(context.Background(), "xterm"); err == nil {
			go func() {
				defer s.Rescue()
				panic("on purpose")
			}()
			<-make(chan struct{})
		}
	}
	fmt.Println(err)
	os.Exit(1)
}

func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		"aq":                     "a q",
		"\x1b[A\x1bOB\x1b[5~j":   "up down pgup j",
		"\x1b":                   "esc",
		"\x1b\x1b[B":             "esc down",
		"\x1b[1;5C\x1b[200~x":    "x", // no key of ours, nor what they are made of
		"\x1b[<0;1;1Md":          "d",
		"\r\n\x7f\b\x15":         "enter enter erase erase clear",
		"\x00\x01\x9b\u202e\xff": "",
		"é漢":                     "é 漢",
		"\x1b[":                  "",
	} {
		keys, left := decode([]byte(in))
		var got []string
		for _, k := range keys {
			got = append(got, k.Name)
		}
		if strings.Join(got, " ") != want || left != 0 && in != "\x00\x01\x9b\u202e\xff" {
			t.Errorf("%q: %q, %d left, want %q", in, got, left, want)
		}
	}
	b := []byte("a\xe6\xbc")
	if keys, left := decode(b); len(keys) != 1 || left != 2 || string(b[:2]) != "\xe6\xbc" {
		t.Errorf("half a character: %v, %d left: %q", keys, left, b)
	}
}

// TestPanic: a panic in any goroutine of a Screen leaves the terminal as it was.
func TestPanic(t *testing.T) {
	s := newScreen(t)
	tty := s.open(t)
	before, err := modesOf(tty)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asScreen+"="+s.path)
	cmd.ExtraFiles = []*os.File{tty}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "on purpose") {
		t.Fatalf("%v: %s", err, out)
	}
	s.until(t, altOff)
	if after, err := modesOf(tty); err != nil || after != before {
		t.Errorf("modes are %+v, %v; were %+v", after, err, before)
	}
	if !strings.Contains(s.text(), altOn) {
		t.Errorf("there was no screen: %q", s.text())
	}
}

// TestDraw: rows draw nothing but themselves, within the screen.
func TestDraw(t *testing.T) {
	s := newScreen(t)
	s.resize(t, 8, 30)
	dev, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	sc, err := dev.Screen(t.Context(), "xterm")
	if err != nil {
		t.Fatal(err)
	}
	rows := []Row{{Text: "\x1b[2J\u202ehostile"}, {Text: strings.Repeat("x", 40), Mark: true}, {Text: "two\nlines"}}
	for range 20 {
		rows = append(rows, Row{Text: "more"})
	}
	if err := sc.Draw(rows, 1, true); err != nil {
		t.Fatal(err)
	}
	if err := sc.Close(); err != nil {
		t.Fatal(err)
	}
	s.until(t, altOff)
	got := s.text()
	if strings.Contains(got, "\x1b[2J") || !strings.Contains(got, `^[[2J\u202ehostile`) || strings.Contains(got, strings.Repeat("x", 30)) ||
		!strings.Contains(got, "two lines") || strings.Count(got, "more") != 5 {
		t.Errorf("shown %q", got)
	}
}
