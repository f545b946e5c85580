package isolatetest

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	vocabulary "palyra/call"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// onTerminal runs c on a terminal of its own. typed is typed there when the program has shown
// prompt. What comes out is stdout.
func (c *call) onTerminal(prompt, typed string) (o outcome) {
	c.t.Helper()
	ours, theirs, err := isolate.TerminalLine()
	if err != nil {
		c.t.Fatal(err)
	}
	defer ours.Close()
	c.spec.TTY = &vocabulary.TTY{Rows: 33, Columns: 97, Term: "xterm"}
	c.spec.Env = append(c.spec.Env, "TERM=xterm")
	c.files.Terminal = theirs
	var end error
	var wg sync.WaitGroup
	over := make(chan struct{})
	wg.Go(func() {
		master, err := isolate.TakeTerminal(ours)
		if err != nil {
			end = err
			return
		}
		defer master.Close()
		buf := make([]byte, 4096)
		for typing, last := true, false; ; {
			n, err := master.Read(buf)
			o.stdout += string(buf[:n])
			if typing && strings.Contains(o.stdout, prompt) {
				typing = false
				if _, err := io.WriteString(master, typed); err != nil {
					end = err
					return
				}
			}
			if errors.Is(err, syscall.EIO) && !last { // nobody has it open, yet or for now; see kernel/terminal.go
				select {
				case <-over:
					last = true
				case <-time.After(time.Millisecond):
				}
				continue
			}
			if err != nil {
				end = err
				return
			}
		}
	})
	o.res, o.err = c.h.runner.Run(c.t.Context(), c.grant(), c.spec, c.files)
	theirs.Close()
	close(over)
	wg.Wait()
	if o.err == nil && !errors.Is(end, syscall.EIO) {
		c.t.Errorf("the output ended with %v, want EIO", end)
	}
	o.stdout = strings.ReplaceAll(o.stdout, "\r\n", "\n")
	return o
}

// byLine returns text with its lines sorted.
func byLine(text string) string {
	lines := strings.Split(text, "\n")
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

// testTerminal looks at a call's own terminal from inside.
func testTerminal(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C {
		if o := h.shell(t, "echo ran").onTerminal("", ""); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
			t.Errorf("a terminal at tier %v: %s, %v; want a refusal", h.sub.Tier, o, o.err)
		}
		return
	}
	bad := h.shell(t, "echo ran")
	bad.spec.TTY = &vocabulary.TTY{Rows: 24, Columns: 80, Term: "xterm"}
	if o := bad.run(); fault.ReasonOf(o.err) != "cell_protocol" || o.stdout != "" {
		t.Errorf("a terminal without a connection for it: %s, %v; want a refusal", o, o.err)
	}

	// The script: what it is, that the session has it, and that /dev/tty is the same.
	o := h.shell(t, `tty; stty size; test -t 0 && test -t 1 && test -t 2 && echo three
		echo through >/dev/tty; ls -1 /dev/pts; echo $TERM; ls -1A /dev`).onTerminal("", "")
	o.exited(t, 0)
	want := "/dev/pts/0\n33 97\nthree\nthrough\n0\nptmx\nxterm\nfd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"
	if e := o.res.Evidence; o.stdout != want || e.Terminal != (evidence.Terminal{Basis: evidence.Observed, Mode: evidence.TerminalOwn}) || e.Process.TTY == 0 || e.Cell.Mode != evidence.CellCold {
		t.Errorf("stdout %q, want %q; evidence %+v, tty_nr %d, cell %q", o.stdout, want, e.Terminal, e.Process.TTY, e.Cell.Mode)
	}

	// A line, and the end of input, each typed.
	o = h.shell(t, `echo name; read n; echo "hello $n"; cat; echo end`).onTerminal("name", "ada\nmore\n\x04")
	o.exited(t, 0)
	if want := "name\nada\nmore\nhello ada\nmore\nend\n"; byLine(o.stdout) != byLine(want) { // echo comes when it comes
		t.Errorf("stdout %q, want %q", o.stdout, want)
	}

	// The key for interrupt.
	if o = h.shell(t, `echo ready; exec sleep 1000`).onTerminal("ready", "\x03"); o.err != nil || o.res.Evidence.Exit.Signal != int(syscall.SIGINT) {
		t.Errorf("interrupted: %s, %v; want signal %d", o, o.err, syscall.SIGINT)
	}
	// The key for stop reaches the job in the foreground alone.
	o = h.program(t, "/bin/bash", "bash", "-c", `set -m; sh -c 'echo ready; exec sleep 1000'; echo "stopped $?"; kill -KILL %1`).onTerminal("ready", "\x1a")
	o.exited(t, 0)
	if want := "stopped " + strconv.Itoa(128+int(syscall.SIGTSTP)); !strings.Contains(o.stdout, want) {
		t.Errorf("a job in the foreground: %q, want %q", o.stdout, want)
	}

	// A process that keeps the terminal and ignores its end doesn't keep the call.
	o = h.shell(t, `(trap '' HUP; exec sleep 1000) & echo left`).onTerminal("", "")
	o.exited(t, 0)
	if !strings.HasSuffix(o.stdout, "left\n") {
		t.Errorf("with a process left behind: %q", o.stdout)
	}

	// All of a long output arrives before its end.
	o = h.shell(t, `stty -opost; i=0; while [ $i -lt 2000 ]; do printf '%0100d' $i; i=$((i+1)); done`).onTerminal("", "")
	o.exited(t, 0)
	if len(o.stdout) != 200_000 {
		t.Errorf("%d bytes of output, want 200000", len(o.stdout))
	}

	// The devpts holds as many as it may, the program's own included.
	o = h.program(t, "/bin/bash", "bash", "-c", `n=1; while exec {fd}<>/dev/ptmx; do n=$((n+1)); done 2>/dev/null; echo $n; [ $n -gt 100 ]`).onTerminal("", "")
	if lines := strings.Fields(o.stdout); o.err != nil || len(lines) == 0 || lines[len(lines)-1] != "8" {
		t.Errorf("terminals: %q, %v; want %d", o.stdout, o.err, isolate.MaxTerminals)
	}

	// A call without one has none, even after one that had: they share a template.
	plain := h.shell(t, `for f in /dev/tty /dev/ptmx /dev/pts/0; do (exec 3<$f) 2>/dev/null && echo opened $f; done; ls -1 /dev/pts; tty; true`)
	plain.files.Stdin, _ = os.Open(os.DevNull)
	if o := plain.run(); o.err != nil || o.stdout != "not a tty\n" || o.res.Evidence.Terminal.Basis != evidence.Absent {
		t.Errorf("without a terminal: %s, %v, stdout %q, evidence %+v", o, o.err, o.stdout, o.res.Evidence.Terminal)
	}
}
