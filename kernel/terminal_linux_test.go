package kernel

import (
	"bytes"
	"io"
	"os"
	"strings"
	"testing"

	vocabulary "palyra/call"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/isolate/tier"
)

func onTerminal(argv ...string) *Proposal {
	p := proposal(argv...)
	p.TTY = &vocabulary.TTY{Rows: 24, Columns: 80, Term: "xterm"}
	return p
}

func permissive(t *testing.T) *house {
	policies := t.TempDir()
	os.Chmod(policies, 0o755)
	put(t, policies+"/all.cedar", `@id("all") permit (principal, action, resource);`, 0o644)
	return openHouse(t, Config{PolicyDir: policies})
}

// TestTerminal: a call's terminal is one stream, digested and bounded like standard output; what
// is typed is the standard input of each mode, and the end of that is typed too.
func TestTerminal(t *testing.T) {
	h := permissive(t)
	for name, c := range map[string]struct {
		p       *Proposal
		mode    StdinMode
		in      io.Reader
		want    string
		outcome string
	}{
		"is one":      {p: onTerminal("tty"), want: "/dev/pts/0\r\n"},
		"its kind":    {p: onTerminal("printenv", "TERM"), want: "xterm\r\n"},
		"both":        {p: onTerminal("ls", "/none"), want: "ls: cannot access '/none': No such file or directory\r\n"},
		"reopened":    {p: onTerminal("bash", "-c", `exec 0<&- 1>&- 2>&-; sleep 0.3; echo late >/dev/pts/0; sleep 0.3; head -c 300000 /dev/zero | tr '\0' x >/dev/pts/0`), want: "late\r\n" + strings.Repeat("x", 300_000)},
		"empty":       {p: onTerminal("cat")},
		"sealed":      {p: onTerminal("cat"), mode: StdinSealed, in: strings.NewReader("a\n"), want: "a\r\na\r\n"},
		"unfinished":  {p: onTerminal("cat"), mode: StdinSealed, in: strings.NewReader("a"), want: "aa"},
		"a stream":    {p: onTerminal("cat"), mode: StdinStream, in: strings.NewReader("a\n"), want: "a\r\na\r\n"},
		"interrupted": {p: onTerminal("cat"), mode: StdinStream, in: io.MultiReader(strings.NewReader("\x03"), never{}), want: "^C"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			c.p.Stdin = c.mode
			o := h.call(c.p, IO{Stdin: c.in, Stdout: &out})
			got := strings.ReplaceAll(out.String(), "^D\b\b", "") // the echo of the end
			if got != c.want || o.Outcome != receipt.Executed {
				t.Errorf("%s, %q, want %q", o.Outcome, got, c.want)
			}
			e := o.Result.Evidence
			if e.Output.StdoutBytes != int64(out.Len()) || e.Output.StdoutDigest != canon.Sum(out.Bytes()) || e.Output.StderrBytes != 0 || e.Output.Basis != evidence.Observed || !o.Delivered {
				t.Errorf("output %+v of %d bytes, delivered %t", e.Output, out.Len(), o.Delivered)
			}
			v := h.verify(o)
			if p := v.Statement.Predicate; p.Capsule.TTY == nil || *p.Capsule.TTY != *c.p.TTY || !strings.Contains(string(p.Evidence), `"terminal":{"basis":"observed","mode":"own"}`) {
				t.Errorf("the receipt says %+v, %s", p.Capsule.TTY, p.Evidence)
			}
		})
	}
}

// never is input that doesn't come.
type never struct{}

func (never) Read([]byte) (int, error) { select {} }

// TestTerminalEnds: a program that never reads, one that writes for ever, and one whose reader is
// stuck all end at their time.
func TestTerminalEnds(t *testing.T) {
	h := permissive(t)
	t.Run("never reads", func(t *testing.T) {
		p := onTerminal("stty", "raw") // and ends with what was typed unread
		p.Stdin = StdinStream
		if o := h.call(p, IO{Stdin: endless{}}); o.Outcome != receipt.Executed {
			t.Errorf("%s %+v", o.Outcome, o.Error)
		}
		p = onTerminal("sleep", "1000")
		p.Stdin, p.Limits.Wall = StdinStream, 300e6
		if o := h.call(p, IO{Stdin: endless{}}); o.Outcome != receipt.TimedOut {
			t.Errorf("%s %+v", o.Outcome, o.Error)
		}
	})
	t.Run("writes for ever", func(t *testing.T) {
		var out bytes.Buffer
		p := onTerminal("yes")
		p.Limits.Wall, p.Limits.Output = 500e6, 1000
		o := h.call(p, IO{Stdout: &out})
		if e := o.Result.Evidence.Output; o.Outcome != receipt.TimedOut || out.Len() != 1000 || e.StdoutBytes != 1000 || e.Cut < 10000 || e.StdoutDigest != canon.Sum(out.Bytes()) {
			t.Errorf("%s, %d bytes, %+v", o.Outcome, out.Len(), e)
		}
	})
	t.Run("no one takes it", func(t *testing.T) {
		p := onTerminal("yes")
		p.Limits.Wall = 300e6
		if o := h.call(p, IO{Stdout: jammed{}}); o.Outcome != receipt.TimedOut || o.Delivered {
			t.Errorf("%s, delivered %t", o.Outcome, o.Delivered)
		}
	})
}

type endless struct{}

func (endless) Read(b []byte) (int, error) { return copy(b, "typed and typed"), nil }

type jammed struct{}

func (jammed) Write([]byte) (int, error) { select {} }

// TestTerminalResized: programs are told of a new size.
func TestTerminalResized(t *testing.T) {
	h := permissive(t)
	sizes, in := make(chan [2]uint16), make(chan struct{})
	var out bytes.Buffer
	p := onTerminal("bash", "-c", `trap 'stty size; exit' WINCH; stty size; echo ready; while :; do read -t 0.1 x; done`)
	p.Stdin = StdinStream
	first := writer(func(b []byte) {
		out.Write(b)
		if strings.Contains(out.String(), "ready") && in != nil {
			close(in)
			in = nil
		}
	})
	ready := in
	go func() { <-ready; sizes <- [2]uint16{10, 20}; close(sizes) }()
	if o := h.call(p, IO{Stdin: never{}, Stdout: first, Resize: sizes}); o.Outcome != receipt.Executed || out.String() != "24 80\r\nready\r\n10 20\r\n" {
		t.Errorf("%s %q", o.Outcome, out.String())
	}
}

type writer func([]byte)

func (w writer) Write(b []byte) (int, error) { w(b); return len(b), nil }

// TestTerminalRefused: what can't be has a name, before anything runs.
func TestTerminalRefused(t *testing.T) {
	h := permissive(t)
	for name, change := range map[string]func(p *Proposal){
		"tier b":     func(p *Proposal) { p.TierFloor = tier.B },
		"no rows":    func(p *Proposal) { p.TTY.Rows = 0 },
		"a vast one": func(p *Proposal) { p.TTY.Columns = 4097 },
		"no kind":    func(p *Proposal) { p.TTY.Term = "" },
		"a path":     func(p *Proposal) { p.TTY.Term = "../x" },
		"TERM twice": func(p *Proposal) { p.Env = []string{"TERM=vt100"} },
	} {
		p := onTerminal("tty")
		change(p)
		if o, err := h.Call(t.Context(), *p, IO{}); err == nil {
			t.Errorf("%s: %s", name, o.Outcome)
		} else if reason := fault.ReasonOf(err); reason != "invalid_input" {
			t.Errorf("%s: %v", name, err)
		}
	}
	p := onTerminal("tty")
	p.Network = isolate.NetworkVoid
	if o := h.call(p, IO{}); o.Outcome != receipt.Executed {
		t.Errorf("in the void network: %s %+v", o.Outcome, o.Error)
	}
}
