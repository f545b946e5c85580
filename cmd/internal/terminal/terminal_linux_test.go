package terminal

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"palyra/authz/approval"
	"palyra/internal/canon"
	"palyra/internal/fault"
)

// asHolder makes this test program hold the terminal that it names until it is killed.
const asHolder = "PALYRA_TEST_HOLD"

// asWriter makes it write to its controlling terminal, by this path, for a short time.
const asWriter = "PALYRA_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(asHolder); path != "" {
		dev, err := Open(context.Background(), path)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("held")
		_, _ = io.Copy(io.Discard, os.Stdin) // until it is killed
		_ = dev.Close()
		os.Exit(0)
	}
	if path := os.Getenv(asScreen); path != "" {
		beScreen(path)
	}
	if path := os.Getenv(asWriter); path != "" {
		ctx, cancel := context.WithTimeout(context.Background(), 10*poll)
		defer cancel()
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err == nil {
			_, err = io.WriteString(Raw(Guard(ctx, f)), "\x1b[2Jforged\n")
		}
		fmt.Print(err)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// screen is a pseudo-terminal and what it was shown.
type screen struct {
	path   string
	master *os.File

	mu    sync.Mutex
	shown bytes.Buffer // guarded by mu
}

func newScreen(t *testing.T) *screen {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	var n int
	control(master, func(fd int) {
		if err = unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(fd, unix.TIOCGPTN)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	s := &screen{path: fmt.Sprintf("/dev/pts/%d", n), master: master}
	keep := s.open(t) // so that the master reads on
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := master.Read(b)
			s.mu.Lock()
			s.shown.Write(b[:n])
			s.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() { keep.Close(); master.Close() })
	return s
}

func (s *screen) open(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile(s.path, os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (s *screen) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.ReplaceAll(s.shown.String(), "\r\n", "\n")
}

// until waits for a text.
func (s *screen) until(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	end := time.After(time.Minute)
	for !strings.Contains(s.text(), want) {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("no %q in %q", want, s.text())
		}
	}
}

func TestVisible(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\n":            "plain\ttext\n",
		"é 漢 😀\n":                  "é 漢 😀\n",
		"\x1b[2J\x1b[H":            "^[[2J^[[H",
		"\x1b]0;title\a":           "^[]0;title^G",
		"a\r\nb":                   "a\nb",
		"100%\rforged":             "100%^Mforged",
		"ab\b\bxy\x7f\x00":         "ab^H^Hxy^?^@",
		"\u009b2J\u0085\u2028":     `\u009b2J\u0085\u2028`,
		"\x9b2J":                   `\x9b2J`,
		"\u202eabc\u200b\u2066":    `\u202eabc\u200b\u2066`,
		"\ufe0f\u034f\u3164\u00ad": `\ufe0f\u034f\u3164\u00ad`,
		"\xe2\x80":                 `\xe2\x80`,
	} {
		for cut := range len(in) + 1 { // however it comes
			out, tail := visible([]byte(in[:cut]), false)
			rest, tail := visible(append(tail, in[cut:]...), true)
			if got := string(out) + string(rest); got != want || len(tail) > 0 {
				t.Errorf("%q, cut at %d: %q, want %q", in, cut, got, want)
			}
		}
	}
}

func FuzzVisible(f *testing.F) {
	f.Add([]byte("a\x1b[2J\u202e\r\n\xe2\x80"))
	f.Fuzz(func(t *testing.T, b []byte) {
		out, tail := visible(b, true)
		for _, r := range string(out) {
			if r != '\n' && r != '\t' && !shows(r) {
				t.Fatalf("%q gives %q", b, out)
			}
		}
		if len(tail) > 0 {
			t.Fatalf("%q leaves %q", b, tail)
		}
	})
}

// TestGuard: on a terminal what draws is text, unless it is asked for; a pipe gets
// every byte.
func TestGuard(t *testing.T) {
	const evil = "\x1b[2J\x1b[H Approval needed\n"
	s := newScreen(t)
	w := Guard(t.Context(), s.open(t))
	if n, err := io.WriteString(w, evil); n != len(evil) || err != nil {
		t.Fatal(n, err)
	}
	s.until(t, "^[[2J^[[H Approval needed\n")
	if _, err := io.WriteString(w, "half \xe2\x80"); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	s.until(t, `half \xe2\x80`)
	if strings.Contains(s.text(), "\x1b") {
		t.Errorf("shown %q", s.text())
	}
	if _, err := io.WriteString(Raw(w), evil); err != nil {
		t.Fatal(err)
	}
	s.until(t, evil)

	r, pipe, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := io.WriteString(Guard(t.Context(), pipe), evil+"\xff\x00"); err != nil {
		t.Fatal(err)
	}
	pipe.Close()
	if got, err := io.ReadAll(r); string(got) != evil+"\xff\x00" || err != nil {
		t.Errorf("the pipe got %q, %v", got, err)
	}
}

// TestHeld: while a question is on the terminal nothing else of ours is, raw or
// not; a writer whose time ends stops waiting; and output goes on afterwards.
func TestHeld(t *testing.T) {
	s := newScreen(t)
	dev, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dev.tty.WriteString("the card\n"); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the card\n")
	for _, raw := range []bool{false, true} {
		ctx, cancel := context.WithTimeout(t.Context(), 3*poll)
		var w io.Writer = Guard(ctx, s.open(t))
		if raw {
			w = Raw(w)
		}
		if _, err := io.WriteString(w, "\x1b[2Jforged"); !errors.Is(err, errHeld) {
			t.Errorf("raw %v: %v", raw, err)
		}
		cancel()
	}
	second, end := context.WithTimeout(t.Context(), 3*poll) // nor a second question
	defer end()
	if d, err := Open(second, s.path); err == nil {
		d.Close()
		t.Error("two questions are on one terminal")
	}
	done := make(chan error, 1)
	go func() {
		_, err := io.WriteString(Guard(t.Context(), s.open(t)), "after it\n")
		done <- err
	}()
	select {
	case err := <-done:
		t.Fatalf("written meanwhile: %v, %q", err, s.text())
	case <-time.After(5 * poll):
	}
	if got := s.text(); got != "the card\n" {
		t.Errorf("shown %q", got)
	}
	if err := errors.Join(dev.Close(), <-done); err != nil {
		t.Fatal(err)
	}
	s.until(t, "the card\nafter it\n")
}

// TestHeldByAnyName: who writes to /dev/tty, and has no other descriptor of the
// terminal, waits for the question as others do.
func TestHeldByAnyName(t *testing.T) {
	s := newScreen(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	write := func() string {
		cmd := exec.Command(exe)
		cmd.Env = append(os.Environ(), asWriter+"=/dev/tty")
		cmd.ExtraFiles = []*os.File{s.open(t)}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 3}
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	dev, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	if got := write(); got != errHeld.Error() || s.text() != "" {
		t.Errorf("during the question: %s, shown %q", got, s.text())
	}
	if err := dev.Close(); err != nil {
		t.Fatal(err)
	}
	if got := write(); got != "<nil>" {
		t.Errorf("after it: %s", got)
	}
	s.until(t, "forged\n")
}

// TestHolderDies: nothing waits for a dead process.
func TestHolderDies(t *testing.T) {
	s := newScreen(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(exe)
	cmd.Env = append(os.Environ(), asHolder+"="+s.path)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 4)
	if _, err := io.ReadFull(out, b); err != nil || string(b) != "held" {
		t.Fatalf("%q, %v", b, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 3*poll)
	defer cancel()
	if _, err := io.WriteString(Guard(ctx, s.open(t)), "x"); !errors.Is(err, errHeld) {
		t.Errorf("while it lives: %v", err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	if _, err := io.WriteString(Guard(t.Context(), s.open(t)), "free\n"); err != nil {
		t.Error(err)
	}
	s.until(t, "free\n")
}

// TestChattyWriter: output without end keeps no question away.
func TestChattyWriter(t *testing.T) {
	s := newScreen(t)
	ctx, cancel := context.WithCancel(t.Context())
	var writers sync.WaitGroup
	for range 2 {
		w := Guard(ctx, s.open(t))
		writers.Go(func() {
			for ctx.Err() == nil {
				_, _ = w.Write(bytes.Repeat([]byte("y\n"), 4096)) // ends with ctx
			}
		})
	}
	asked, end := context.WithTimeout(t.Context(), time.Minute)
	defer end()
	dev, err := Open(asked, s.path)
	if err != nil {
		t.Error(err)
	} else {
		dev.Close()
	}
	cancel()
	writers.Wait()
}

// resize makes the screen another size, of which the kernel tells its programs: SIGWINCH.
func (s *screen) resize(t *testing.T, rows, columns uint16) {
	t.Helper()
	control(s.master, func(fd int) {
		if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: columns}); err != nil {
			t.Error(err)
		}
	})
}

// TestShrinks: the right digits are no answer on a screen that became too small for what
// they answer.
func TestShrinks(t *testing.T) {
	s := newScreen(t)
	s.resize(t, 40, 100)
	dev, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	type result struct {
		approval.Answer
		err error
	}
	got := make(chan result, 1)
	go func() {
		a, err := dev.Person("alice").Ask(t.Context(), approval.Request{Capsule: canon.Sum(nil), Call: approval.Call{Argv: []string{"true"}}})
		got <- result{a, err}
	}()
	s.until(t, "and denies: ")
	s.resize(t, 5, 20)
	_, code, _ := strings.Cut(s.text(), "\nType ")
	if _, err := s.master.WriteString(code[:4] + "\n"); err != nil {
		t.Fatal(err)
	}
	if r := <-got; r.Approved || fault.ReasonOf(r.err) != "no_approver" || !strings.Contains(r.err.Error(), "5 rows of 20 columns") || fault.HintOf(r.err) == "" {
		t.Errorf("%+v, %v", r.Answer, r.err)
	}
}

// TestPerson: the question itself goes through, on a screen that says its size.
func TestPerson(t *testing.T) {
	s := newScreen(t)
	s.resize(t, 10, 60)
	dev, err := Open(t.Context(), s.path)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	p := dev.Person("alice")
	if rows, columns := p.Size(); rows != 10 || columns != 60 {
		t.Errorf("%d rows of %d", rows, columns)
	}
	// Text typed before the question is no answer to it.
	if _, err := s.master.WriteString("no\n"); err != nil {
		t.Fatal(err)
	}
	s.until(t, "no\n")
	got := make(chan approval.Answer, 1)
	go func() {
		a, err := p.Ask(t.Context(), approval.Request{Capsule: canon.Sum(nil), Call: approval.Call{Argv: []string{"true"}}})
		if err != nil {
			t.Error(err)
		}
		got <- a
	}()
	for page := 1; ; page++ {
		s.until(t, "denies -- ")
		pages := strings.Count(s.text(), "denies -- ")
		if pages < page {
			break
		}
		if _, err := s.master.WriteString("\n"); err != nil {
			t.Fatal(err)
		}
		next := fmt.Sprintf("-- page %d of", page+1)
		tick := time.NewTicker(time.Millisecond)
		for !strings.Contains(s.text(), next) && !strings.Contains(s.text(), "\nType ") {
			<-tick.C
		}
		tick.Stop()
		if strings.Contains(s.text(), "\nType ") {
			break
		}
	}
	s.until(t, "and denies: ")
	_, code, _ := strings.Cut(s.text(), "\nType ")
	if _, err := s.master.WriteString(code[:4] + "\n"); err != nil {
		t.Fatal(err)
	}
	if a := <-got; !a.Approved {
		t.Errorf("%+v; shown %q", a, s.text())
	}
}
