//go:build linux

package script

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/conformance/pty"
)

// person is a shell line on a terminal, whose standard streams are all that terminal.
type person struct {
	*pty.Terminal
	t   *testing.T
	ctx context.Context
	cmd *exec.Cmd
	dir string
}

// sitDown runs a line of shell in a folder with policies: all.cedar permits everything, and
// ask.cedar asks about everything.
func sitDown(t *testing.T, line string) *person {
	t.Helper()
	dir := t.TempDir()
	for name, text := range map[string]string{
		"all/all.cedar": `@id("all") permit (principal, action, resource);` + "\n",
		"ask/ask.cedar": `@id("asks") @reason("asks") permit (principal, action, resource) when { context.approved };` + "\n",
		"ws/in.txt":     "input\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", "exec <&2 >&2\n"+line)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.Dir = dir
	cmd.Env = []string{"PATH=" + tools + ":" + os.Getenv("PATH"), "HOME=" + dir, "TERM=xterm"}
	term, err := pty.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	return &person{term, t, ctx, cmd, dir}
}

func (p *person) sees(text string) string {
	p.t.Helper()
	got, err := p.Expect(p.ctx, text)
	if err != nil {
		p.t.Fatal(err)
	}
	return got
}

// awaits looks until it is so.
func (p *person) awaits(so func() bool) {
	p.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !so() {
		select {
		case <-tick.C:
		case <-p.ctx.Done():
			p.t.Fatalf("not so; shown %q", p.Shown())
		}
	}
}

func (p *person) types(keys string) {
	p.t.Helper()
	if err := p.Type(keys); err != nil {
		p.t.Fatal(err)
	}
}

// leaves waits for the end, and returns all that was shown.
func (p *person) leaves() string {
	p.t.Helper()
	if err := p.cmd.Wait(); err != nil {
		p.t.Errorf("%v; shown %q", err, p.Shown())
	}
	p.Close()
	return p.Shown()
}

const inCell = `palyra exec --state "$PWD/a" --policy all --tty `

// TestTerminalOfItsOwn: keys reach the program, the one for interrupt too, sizes as well, and the
// person's terminal is as before, however the call ends.
func TestTerminalOfItsOwn(t *testing.T) {
	t.Run("keys and size", func(t *testing.T) {
		p := sitDown(t, `before=$(stty -g); `+inCell+`-- bash -c 'trap "echo interrupted" INT; trap "stty size; exit 7" WINCH; tty; echo ready; while :; do read -t 0.1 x && echo "got $x"; done'
			echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same`)
		p.sees("/dev/pts/0\r\nready")
		p.types("one\r")
		p.sees("got one")
		p.types("\x03")
		p.sees("interrupted")
		if err := p.Resize(12, 34); err != nil {
			t.Fatal(err)
		}
		p.sees("12 34")
		p.sees("status 7")
		if shown := p.leaves(); strings.Contains(shown, "\r\r\n") {
			t.Errorf("line ends twice: %q", shown)
		}
	})
	for sig, status := range map[syscall.Signal]string{syscall.SIGTERM: "143", syscall.SIGINT: "130", syscall.SIGHUP: "129", syscall.SIGQUIT: "131", syscall.SIGKILL: "137"} {
		t.Run(sig.String(), func(t *testing.T) {
			p := sitDown(t, `before=$(stty -g); sh -c 'echo $$ >pid; exec `+inCell+`-- sh -c "$0"' 'printf "\033[?1049h\033[?25l\033[31mup"; read x; kill -KILL $$'
				echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same`)
			p.sees("\x1b[?1049h\x1b[?25l\x1b[31mup")
			if sig == syscall.SIGKILL { // of the program
				p.types("\r")
			} else if b, err := os.ReadFile(filepath.Join(p.dir, "pid")); err != nil {
				t.Fatal(err)
			} else if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
				t.Fatal(err)
			} else if err := syscall.Kill(pid, sig); err != nil {
				t.Fatal(err)
			}
			p.sees("\x1b[?1049l\x1b[?25h\x1b[m")
			p.sees("status " + status)
			p.sees("same")
			p.leaves()
		})
	}
	t.Run("stopped and continued", func(t *testing.T) {
		p := sitDown(t, `before=$(stty -g); set -m; `+inCell+`-- sh -c 'echo up; read x; echo "got $x"'
			[ "$before" = "$(stty -g)" ] && echo "given back"; fg; [ "$before" = "$(stty -g)" ] && echo same`)
		p.sees("up")
		lent, err := p.Modes()
		if err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command("sh", "-c", `kill -TSTP $(pgrep -x palyra -P "$0")`, strconv.Itoa(p.cmd.Process.Pid)).CombinedOutput(); err != nil {
			t.Fatalf("%v %s", err, out)
		}
		p.sees("given back")
		p.sees("palyra exec")  // fg
		p.awaits(func() bool { // what was typed before is no one's
			modes, err := p.Modes()
			return err == nil && modes == lent
		})
		p.types("on\r")
		p.sees("got on")
		p.sees("same")
		p.leaves()
	})
}

// TestTerminalInBackground: a call whose palyra is in the background, without the terminal, ends
// with its program.
func TestTerminalInBackground(t *testing.T) {
	p := sitDown(t, `before=$(stty -g); set -m; `+inCell+`-- sh -c 'echo up; sleep 1; exit 3'
		bg; wait %1; echo "status $?"; [ "$before" = "$(stty -g)" ] && echo same`)
	p.sees("up")
	if out, err := exec.Command("sh", "-c", `kill -TSTP $(pgrep -x palyra -P "$0")`, strconv.Itoa(p.cmd.Process.Pid)).CombinedOutput(); err != nil {
		t.Fatalf("%v %s", err, out)
	}
	p.sees("status 3")
	p.sees("same")
	p.leaves()
}

// TestTerminalFiltered: a program can't have the person's terminal answer, or change what is beyond
// its screen; with --raw it can.
func TestTerminalFiltered(t *testing.T) {
	const bad = `'\033]52;c;YQ==\007\033]0;title\007\033[6n\033[c\033[21t\033P$qm\033\\\033_x\033\\\033[31mred'`
	p := sitDown(t, `palyra exec --state "$PWD/a" --policy all -- true 2>first; `+inCell+`-- printf `+bad) // the first use has a note
	if shown := p.leaves(); shown != "\x1b[31mred\x1b[m" {
		t.Errorf("shown %q", shown)
	}
	p = sitDown(t, inCell+`--raw -- printf `+bad)
	if shown := p.leaves(); !strings.Contains(shown, "\x1b]52;c;YQ==\a") {
		t.Errorf("with --raw: %q", shown)
	}
	p = sitDown(t, inCell+`-- printf `+bad+` >out; od -c out`)
	if shown := p.leaves(); !strings.Contains(shown, "033   ]   5   2") {
		t.Errorf("a file gets %q", shown)
	}
}

// TestTerminalAndCard: keys typed at a card don't reach the program behind it, and no card comes
// to the terminal of a program until that has ended: its keys answer none.
func TestTerminalAndCard(t *testing.T) {
	p := sitDown(t, `(while [ ! -e go ]; do sleep 0.05; done; palyra exec --state "$PWD/b" --policy ask -- true; echo "second $?") &
		palyra exec --state "$PWD/a" --policy ask --tty -- sh -c 'echo up; read x; echo "got [$x]"'; echo "first $?"; wait`)
	card := p.sees("denies: ")
	if !strings.Contains(card, "terminal    of its own, 60 rows of 200 columns, xterm") {
		t.Errorf("the card says nothing of a terminal: %q", card)
	}
	code := digits.FindStringSubmatch(card)
	if code == nil {
		t.Fatalf("no digits in %q", card)
	}
	p.types(code[1] + "\nfor nobody\n")
	p.sees("up\r\n")
	if err := os.WriteFile(filepath.Join(p.dir, "go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	// The second call has come to its card when its journal is there, and soon asks.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun := (time.Time{}); begun.IsZero() || time.Since(begun) < 2*time.Second; <-tick.C {
		if _, err := os.Stat(filepath.Join(p.dir, "b", "journal")); err == nil && begun.IsZero() {
			begun = time.Now()
		}
	}
	if strings.Count(p.Shown(), "Approval needed") != 1 {
		t.Errorf("a card is on the program's terminal: %q", p.Shown())
	}
	p.types("for it\r")
	p.sees("got [for it]")
	p.sees("denies: ") // before or after the shell's line
	p.awaits(func() bool { return strings.Contains(p.Shown(), "first 0") })
	p.types("no\n")
	p.sees("second 126")
	p.leaves()
}

var digits = regexp.MustCompile(`Type (\d{4}) to`)
