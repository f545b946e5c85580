//go:build linux

package script

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/conformance/pty"
)

// office is a palyrad, those who ask it for calls, and the person who answers on a full
// screen.
type office struct {
	t      *testing.T
	ctx    context.Context
	dir    string
	socket string
	notify *net.UnixConn
	daemon *exec.Cmd
	log    bytes.Buffer // of the daemon; read after its end
}

func newOffice(t *testing.T, config string) *office {
	t.Helper()
	t.Parallel()
	dir, err := os.MkdirTemp("", "ow-") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	o := &office{t: t, ctx: ctx, dir: dir, socket: filepath.Join(dir, "s")}
	o.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "n"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		o.kill()
		o.notify.Close()
		os.RemoveAll(dir)
	})
	text := fmt.Sprintf("state.dir = %q\nlisten.socket = %q\nlisten.http = \"off\"\napprovals.allow_self = true\n%s", filepath.Join(dir, "state"), o.socket, config)
	if err := os.WriteFile(filepath.Join(dir, "palyrad.toml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	o.start()
	return o
}

// start starts palyrad and returns when it's ready.
func (o *office) start() {
	o.t.Helper()
	o.log.Reset()
	o.daemon = exec.Command(filepath.Join(tools, "palyrad"), "--config", filepath.Join(o.dir, "palyrad.toml"))
	o.daemon.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + o.dir, "NOTIFY_SOCKET=" + filepath.Join(o.dir, "n")}
	o.daemon.Stderr = &o.log
	if err := o.daemon.Start(); err != nil {
		o.t.Fatal(err)
	}
	o.notify.SetReadDeadline(time.Now().Add(time.Minute))
	for b := make([]byte, 4096); ; {
		n, err := o.notify.Read(b)
		if err != nil {
			o.kill()
			o.t.Fatalf("palyrad isn't ready: %v\n%s", err, o.log.String())
		}
		if bytes.Contains(b[:n], []byte("READY=1")) {
			return
		}
	}
}

func (o *office) kill() {
	if o.daemon != nil {
		o.daemon.Process.Kill()
		o.daemon.Wait() // killed
		o.daemon = nil
	}
}

// palyra prepares a command of palyra in the office.
func (o *office) palyra(args ...string) *exec.Cmd {
	cmd := exec.CommandContext(o.ctx, filepath.Join(tools, "palyra"), append(args, "--socket", o.socket)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + o.dir, "TERM=xterm"}
	cmd.Dir = o.dir
	return cmd
}

// answered is how a call ended.
type answered struct {
	err    error
	stdout string
	stderr string
}

// ask makes a call that waits for a person.
func (o *office) ask(input string) <-chan answered {
	cmd := o.palyra("call", "process.run", input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	done := make(chan answered, 1)
	if err := cmd.Start(); err != nil {
		o.t.Fatal(err)
	}
	go func() {
		err := cmd.Wait()
		done <- answered{err, stdout.String(), stderr.String()}
	}()
	return done
}

// ended waits for the end of a call.
func (o *office) ended(call <-chan answered) answered {
	o.t.Helper()
	select {
	case r := <-call:
		return r
	case <-o.ctx.Done():
		o.t.Fatal("the call doesn't end")
		return answered{}
	}
}

// sheet is the person's screen.
type sheet struct {
	*pty.Terminal
	o     *office
	cmd   *exec.Cmd
	out   bytes.Buffer
	modes string // of the terminal before
}

// watch opens the screen.
func (o *office) watch() *sheet {
	o.t.Helper()
	return o.on(o.palyra("approvals", "watch", "--answer"))
}

// on starts a command on a terminal, whose modes it notes.
func (o *office) on(cmd *exec.Cmd) *sheet {
	o.t.Helper()
	s := &sheet{o: o, cmd: cmd}
	cmd.Stdout = &s.out
	var err error
	if s.Terminal, err = pty.Start(cmd); err != nil {
		o.t.Fatal(err)
	}
	// The program may have begun, so these are those of another terminal, as new.
	fresh, err := pty.Start(exec.CommandContext(o.ctx, "true"))
	if err == nil {
		s.modes, err = fresh.Modes()
	}
	if err != nil {
		o.t.Fatal(err)
	}
	fresh.Hangup()
	return s
}

// sees waits for a text on the screen.
func (s *sheet) sees(text string) string {
	s.o.t.Helper()
	shown, err := s.Expect(s.o.ctx, text)
	if err != nil {
		s.o.t.Fatal(err)
	}
	return shown
}

// queue waits for the queue with a text in its first row. All of it is there then.
func (s *sheet) queue(head string) {
	s.o.t.Helper()
	s.sees("Palyra: " + head)
	s.sees("q end")
}

func (s *sheet) types(keys string) {
	s.o.t.Helper()
	if err := s.Type(keys); err != nil {
		s.o.t.Fatal(err)
	}
}

// digits waits for the question below the card and returns its digits.
func (s *sheet) digits() string {
	s.o.t.Helper()
	_, after, _ := strings.Cut(s.sees("leaves it waiting: "), "\nType ")
	if len(after) < 4 {
		s.o.t.Fatalf("no digits: %q", s.Shown())
	}
	return after[:4]
}

// end waits for the end of the program. The terminal is as it was.
func (s *sheet) end() {
	s.o.t.Helper()
	if err := s.cmd.Wait(); err != nil {
		s.o.t.Errorf("watch: %v; %q", err, s.Shown())
	}
	s.sameModes()
	s.Close() // all that was shown has come
	shown := s.Shown()
	if on, off := strings.Count(shown, "\x1b[?1049h"), strings.Count(shown, "\x1b[?1049l"); on == 0 || on != off {
		s.o.t.Errorf("to the other screen %d times, back %d times", on, off)
	}
	if strings.LastIndex(shown, "\x1b[?25h") < strings.LastIndex(shown, "\x1b[?25l") {
		s.o.t.Error("the cursor is hidden")
	}
}

func (s *sheet) sameModes() {
	s.o.t.Helper()
	if now, err := s.Modes(); err != nil || now != s.modes {
		s.o.t.Errorf("modes %s, %v; were %s", now, err, s.modes)
	}
}

// asks is a call that needs a person's yes.
const asks = `{"argv":["tee"],"stdin":"ran"}`

// TestWatchApprove: a person reads the card, says yes with the digits below it, and the
// call runs; digits that they don't show leave it waiting.
func TestWatchApprove(t *testing.T) {
	o := newOffice(t, "")
	s := o.watch()
	s.queue("0 wait")
	call := o.ask(asks)
	s.queue("1 waits")
	s.types("\r")
	s.sees("Approval needed")
	s.sees("space a yes d no q")
	s.types("a")
	s.sees("also for a time")
	s.types("o")
	code := s.digits()
	wrong := "0000"
	if code == wrong {
		wrong = "1111"
	}
	s.types(wrong + "\n")
	s.sees("the digits are not those that were shown")
	s.sees("q end")
	s.types("a")
	s.sees("also for a time")
	s.types("\r")
	s.types(s.digits() + "\n")
	s.sees(" approved")
	s.queue("0 wait")
	if r := o.ended(call); r.err != nil || r.stdout != "ran" {
		t.Errorf("%+v", r)
	}
	s.types("q")
	s.end()
}

// TestWatchScope: a yes for a time, with uses, goes through the flags of approvals approve.
func TestWatchScope(t *testing.T) {
	o := newOffice(t, "")
	call := o.ask(asks)
	s := o.watch()
	s.queue("1 waits")
	for _, step := range [][2]string{{"also for a time", "a"}, {"such as 10m: ", "t"}, {"no bound: ", "10h\x7fm\r"}, {"very one: ", "2\r"}} {
		s.types(step[1])
		s.sees(step[0])
	}
	s.types("\r")
	s.sees("Without being asked again, for 10m0s, at most 2 calls")
	s.types(s.digits() + "\n")
	s.sees(" approved")
	s.queue("0 wait")
	if r := o.ended(call); r.err != nil {
		t.Errorf("%+v", r)
	}
	if r := o.ended(o.ask(asks)); r.err != nil { // by the grant
		t.Errorf("%+v", r)
	}
	s.types("q")
	s.end()
}

// TestWatchDeny: the comment of a no reaches the caller.
func TestWatchDeny(t *testing.T) {
	o := newOffice(t, "")
	call := o.ask(asks)
	s := o.watch()
	s.queue("1 waits")
	s.types("d")
	s.sees("comment for the caller: ")
	s.types("\x1b") // back: nothing is answered
	s.queue("1 waits")
	s.types("d")
	s.sees("comment for the caller: ")
	s.types("ask  \x7fme tomorroz\x7fw\r")
	s.sees(" denied")
	s.queue("0 wait")
	if r := o.ended(call); r.err == nil || !strings.Contains(r.stderr, "ask me tomorrow") && !strings.Contains(r.stderr, "ask  me tomorrow") {
		t.Errorf("%+v", r)
	}
	s.types("q")
	s.end()
}

// TestWatchElsewhere: a request that is answered elsewhere goes from every view, and the
// digits of its card answer nothing.
func TestWatchElsewhere(t *testing.T) {
	o := newOffice(t, "")
	s := o.watch()
	s.queue("0 wait")
	for _, view := range []string{"\r", "d", "a", "a\r"} {
		call := o.ask(asks)
		s.queue("1 waits")
		for _, k := range view {
			s.types(string(k))
			switch {
			case view == "\r":
				s.sees("space a yes d no q")
			case k == 'd':
				s.sees("comment for the caller: ")
			case k == 'a':
				s.sees("also for a time")
			default:
				s.digits()
			}
		}
		list, err := o.palyra("approvals", "ls").Output()
		at := bytes.Index(list, []byte("apr_"))
		if err != nil || at < 0 {
			t.Fatalf("%v: %s", err, list)
		}
		apr := string(list[at : at+36])
		if out, err := o.palyra("approvals", "deny", "--comment", "elsewhere", apr).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		s.sees("Palyra: 0 wait")
		s.sees(apr[:12] + " denied by uid:")
		s.sees("elsewhere")
		s.sees("q end")
		o.ended(call)
	}
	s.types("q")
	s.end()
}

// TestWatchExpires: a request whose time is over goes from the screen, which says so.
func TestWatchExpires(t *testing.T) {
	o := newOffice(t, "approvals.timeout = \"4s\"\n")
	s := o.watch()
	s.queue("0 wait")
	call := o.ask(asks)
	s.queue("1 waits")
	s.types("\r")
	s.sees("space a yes d no q")
	s.sees("Palyra: 0 wait")
	s.sees(" expired")
	s.sees("q end")
	o.ended(call)
	s.types("q")
	s.end()
}

// TestWatchSizes: a screen that changes its size is drawn again, whatever is on it; one that
// is too small is refused by name, before and meanwhile.
func TestWatchSizes(t *testing.T) {
	o := newOffice(t, "")
	o.ask(asks)
	s := o.watch()
	s.queue("1 waits")
	size := func(rows, columns int) {
		t.Helper()
		if err := s.Resize(rows, columns); err != nil {
			t.Fatal(err)
		}
	}
	size(7, 80)
	s.sees("The screen is too small.")
	s.types("a\r")
	size(8, 30)
	s.sees("Palyra: 1 waits")
	s.sees("Enter card a yes d no q end")
	s.types("\r")
	s.sees("more: space a yes d no q")
	s.types("a")
	s.sees("t: also for a time")
	s.types("\r")
	s.sees("-- page 1 of ")
	size(60, 120)
	first := s.digits()
	size(60, 200)
	second := s.digits() // the card again, with digits of its own
	s.types(second + "\n")
	s.sees(" approved")
	s.queue("0 wait")
	if first == second {
		t.Logf("%s was drawn twice: one in 10,000", first)
	}
	s.types("q")
	s.end()

	small := exec.CommandContext(o.ctx, "/bin/sh", "-c", `stty rows 7 cols 80 </dev/tty; exec "$@"`, "sh", filepath.Join(tools, "palyra"), "approvals", "watch", "--answer", "--socket", o.socket)
	small.Env = []string{"PATH=/usr/bin:/bin", "HOME=" + o.dir, "TERM=xterm"}
	o.refused(small, "it has 7 rows of 80 columns, a question needs 8 of 30", 78)
}

// refused runs a command on a terminal, which it leaves alone.
func (o *office) refused(cmd *exec.Cmd, why string, status int) {
	o.t.Helper()
	term, err := pty.Start(cmd)
	if err != nil {
		o.t.Fatal(err)
	}
	err = cmd.Wait()
	term.Close()
	if shown := term.Shown(); code(err) != status || !strings.Contains(shown, why) || !strings.Contains(shown, "hint: ") || strings.Contains(shown, "\x1b") {
		o.t.Errorf("status %d, want %d with %q: %q", code(err), status, why, shown)
	}
}

// TestWatchRefused: a terminal that can't do it, and none at all, are refused by name, with
// what to do instead.
func TestWatchRefused(t *testing.T) {
	o := newOffice(t, "")
	for term, want := range map[string]string{"TERM=dumb": `TERM is "dumb"`, "TERM=": `TERM is ""`} {
		cmd := o.palyra("approvals", "watch", "--answer")
		cmd.Env = append(cmd.Env, term)
		o.refused(cmd, want, 2)
	}
	cmd := o.palyra("approvals", "watch", "--answer")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	out, err := cmd.CombinedOutput()
	if code(err) != 2 || !strings.Contains(string(out), "no controlling terminal") || !strings.Contains(string(out), "approvals watch --json") {
		t.Errorf("without a terminal: %v, %q", err, out)
	}
	o.refused(o.palyra("approvals", "watch", "--answer", "--json"), "exclude each other", 2)
}

// TestWatchTypeAhead: keys typed before a view was shown answer nothing.
func TestWatchTypeAhead(t *testing.T) {
	o := newOffice(t, "")
	call := o.ask(asks)
	s := o.watch()
	s.queue("1 waits")
	s.types("d\rd\rd\r") // one write: all but the first key come too early
	s.sees("comment for the caller: ")
	s.types("\x1b")
	s.queue("1 waits")
	s.types("a\r1234\n")
	s.sees("also for a time")
	s.types("\r")
	s.types(s.digits() + "\n")
	s.sees(" approved")
	s.queue("0 wait")
	if r := o.ended(call); r.err != nil {
		t.Errorf("%+v", r)
	}
	s.types("q")
	s.end()
}

// TestWatchHostile: text of the requester draws nothing, in any view.
func TestWatchHostile(t *testing.T) {
	o := newOffice(t, "")
	o.ask(`{"argv":["tee","\u001b[2J\u001b[HFORGED\u202e\u0007\u009b2J"]}`)
	s := o.watch()
	s.queue("1 waits")
	s.types("\r")
	s.sees("space a yes d no q")
	s.types("d")
	s.sees("comment for the caller: ")
	s.types("\x1b")
	s.queue("1 waits")
	s.types("a")
	s.sees("also for a time")
	s.types("\r")
	s.digits()
	s.types("\n")
	s.sees("the digits are not")
	s.sees("q end")
	s.types("q")
	s.end()
	shown := s.Shown()
	if strings.Contains(shown, "\x1b[2J") || strings.ContainsAny(shown, "\u202e\u009b\a") || strings.Count(shown, `\x1b[2J\x1b[HFORGED\u202e\a\u009b2J`) < 4 {
		t.Errorf("shown %q", shown)
	}
}

// TestWatchRestart: a palyrad that goes and comes back is named, and its requests are over.
func TestWatchRestart(t *testing.T) {
	o := newOffice(t, "")
	o.ask(asks)
	s := o.watch()
	s.queue("1 waits")
	o.kill()
	s.sees("NOT CONNECTED")
	s.sees("palyrad does not answer")
	o.start()
	s.sees("palyrad answers again")
	s.sees("the daemon restarted while it waited")
	call := o.ask(asks)
	s.queue("1 waits")
	s.types("d")
	s.sees("comment for the caller: ")
	s.types("\r")
	s.sees(" denied")
	s.queue("0 wait")
	o.ended(call)
	s.types("q")
	s.end()
}

// TestWatchEnds: every signal that ends it leaves the terminal as it was, from the queue and
// from the question for the digits.
func TestWatchEnds(t *testing.T) {
	o := newOffice(t, "")
	o.ask(asks)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT} {
		for _, asked := range []bool{false, true} {
			s := o.watch()
			s.queue("1 waits")
			if asked {
				s.types("a")
				s.sees("also for a time")
				s.types("\r")
				s.digits()
			}
			switch sig {
			case syscall.SIGINT:
				s.types("\x03")
			case syscall.SIGQUIT:
				s.types("\x1c")
			default:
				if err := s.cmd.Process.Signal(sig); err != nil {
					t.Fatal(err)
				}
			}
			s.end()
		}
	}
	s := o.watch()
	s.queue("1 waits")
	if err := s.Hangup(); err != nil {
		t.Fatal(err)
	}
	if err := s.cmd.Wait(); code(err) > 128 || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after the terminal is gone: %v", err)
	}
}

// TestWatchStops: ctrl-Z gives the terminal back and fg takes it again, from the queue and
// from the question for the digits; without a shell to go on it does nothing.
func TestWatchStops(t *testing.T) {
	o := newOffice(t, "")
	o.ask(asks)
	script := `set -m; "$@" </dev/tty; stty -a </dev/tty >"$HOME/modes"; printf STOPPED >/dev/tty; read go </dev/tty; fg >/dev/null`
	s := o.on(exec.CommandContext(o.ctx, "/bin/bash", "-c", script, "bash", filepath.Join(tools, "palyra"), "approvals", "watch", "--answer", "--socket", o.socket))
	s.queue("1 waits")
	s.types("\x1a")
	s.sees("\x1b[?1049l")
	s.sees("STOPPED") // nor did it hold the terminal
	s.sameModes()
	s.types("go\n")
	s.queue("1 waits") // as it goes on
	s.queue("1 waits") // as it is told so (SIGCONT): what was typed before is thrown away
	s.types("q")
	s.end()

	s = o.watch() // the leader of its session: an orphaned process group
	s.queue("1 waits")
	s.types("\x1a")
	s.queue("1 waits")
	s.types("a")
	s.sees("also for a time")
	s.types("\r")
	s.digits()
	s.types("\x1a")
	s.types(s.digits() + "\n")
	s.sees(" approved")
	s.queue("0 wait")
	s.types("q")
	s.end()
}
