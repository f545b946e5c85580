package isolatetest

import (
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	vocabulary "palyra/call"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

// onTerminal runs c on a terminal of its own. The dialog is pairs: when the program has shown the
// first, the second is typed. What comes out is stdout.
func (c *call) onTerminal(dialog ...string) (o outcome) {
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
	wg.Go(func() {
		master, err := isolate.TakeTerminal(ours)
		if err != nil {
			end = err
			return
		}
		defer master.Close()
		buf := make([]byte, 4096)
		for {
			n, err := master.Read(buf)
			o.stdout += string(buf[:n])
			if len(dialog) > 0 && strings.Contains(o.stdout, dialog[0]) {
				if _, err := io.WriteString(master, dialog[1]); err != nil {
					end = err
					return
				}
				dialog = dialog[2:]
			}
			if err != nil {
				end = err
				return
			}
		}
	})
	o.res, o.err = c.start(c.t.Context(), c.grant())
	theirs.Close()
	wg.Wait()
	if o.err == nil && !errors.Is(end, syscall.EIO) {
		c.t.Errorf("the output ended with %v, want EIO", end)
	}
	o.stdout = strings.ReplaceAll(o.stdout, "\r\n", "\n")
	return o
}

// testTerminal looks at a call's own terminal from inside.
func testTerminal(t *testing.T, h *harness) {
	if h.sub.Tier != tier.C {
		if o := h.shell(t, "echo ran").onTerminal(); fault.ReasonOf(o.err) != "invalid_input" || o.stdout != "" {
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
		echo through >/dev/tty; ls -1 /dev/pts; echo $TERM; ls -1A /dev`).onTerminal()
	o.exited(t, 0)
	want := "/dev/pts/0\n33 97\nthree\nthrough\n0\nptmx\nxterm\nfd\nfull\nnull\nptmx\npts\nrandom\nshm\nstderr\nstdin\nstdout\ntty\nurandom\nzero\n"
	if e := o.res.Evidence; o.stdout != want || e.Terminal != (evidence.Terminal{Basis: evidence.Observed, Mode: evidence.TerminalOwn}) || e.Process.TTY == 0 || e.Cell.Mode != evidence.CellCold {
		t.Errorf("stdout %q, want %q; evidence %+v, tty_nr %d, cell %q", o.stdout, want, e.Terminal, e.Process.TTY, e.Cell.Mode)
	}

	// A line, and the end of input, each typed when a line is whole: an echo comes at once, also
	// between a line's text and its end.
	o = h.shell(t, `echo name; read n; echo "hello $n"; cat; echo end`).onTerminal("name\r\n", "ada\n", "hello ada\r\n", "more\n\x04")
	o.exited(t, 0)
	if want := "name\nada\nhello ada\nmore\nmore\nend\n"; o.stdout != want {
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
	o = h.shell(t, `(trap '' HUP; exec sleep 1000) & echo left`).onTerminal()
	o.exited(t, 0)
	if !strings.HasSuffix(o.stdout, "left\n") {
		t.Errorf("with a process left behind: %q", o.stdout)
	}

	// All of a long output arrives before its end.
	o = h.shell(t, `stty -opost; i=0; while [ $i -lt 2000 ]; do printf '%0100d' $i; i=$((i+1)); done`).onTerminal()
	o.exited(t, 0)
	if len(o.stdout) != 200_000 {
		t.Errorf("%d bytes of output, want 200000", len(o.stdout))
	}

	// The devpts holds as many as it may, the program's own included.
	o = h.program(t, "/bin/bash", "bash", "-c", `n=1; while exec {fd}<>/dev/ptmx; do n=$((n+1)); done 2>/dev/null; echo $n; [ $n -gt 100 ]`).onTerminal()
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
