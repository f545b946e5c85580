package approval

import (
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"palyra/internal/canon"
)

func TestTerminalAnswer(t *testing.T) {
	for in, want := range map[string]bool{
		"yes\n":                             true,
		"yes\r\n":                           true,
		"yes\nno\n":                         true,
		"yes":                               false, // cut short by the end of input
		"":                                  false,
		"\n":                                false,
		"y\n":                               false,
		"Y\n":                               false,
		"Yes\n":                             false,
		"YES\n":                             false,
		" yes\n":                            false,
		"yes \n":                            false,
		"yes please\n":                      false,
		"no\nyes\n":                         false,
		"\x1b[Ayes\n":                       false,
		"yes\x00\n":                         false,
		strings.Repeat("x", 99) + "\nyes\n": false,
		"yes" + strings.Repeat("\r", 99) + "no\n": false,
	} {
		var out strings.Builder
		term := &Terminal{In: strings.NewReader(in), Out: &out, Name: "bob"}
		a, err := term.Ask(context.Background(), question())
		if err != nil || a.Approved != want || a.Approver != "bob" || a.Surface != "terminal" {
			t.Errorf("%q: got %+v, %v, want %v", in, a, err, want)
		}
		if !strings.Contains(out.String(), capsule.String()) {
			t.Errorf("%q: the capsule's digest was not shown", in)
		}
	}
}

func TestTerminalLeavesTheRest(t *testing.T) {
	in := strings.NewReader("yes\nprogram input")
	if _, err := (&Terminal{In: in, Out: io.Discard}).Ask(context.Background(), question()); err != nil {
		t.Fatal(err)
	}
	if rest, _ := io.ReadAll(in); string(rest) != "program input" {
		t.Errorf("left %q", rest)
	}
}

func TestTerminalErrors(t *testing.T) {
	broken := errors.New("broken")
	for name, term := range map[string]*Terminal{
		"read":   {In: iotest.ErrReader(broken), Out: io.Discard},
		"write":  {In: strings.NewReader("yes\n"), Out: brokenWriter{broken}},
		"no in":  {Out: io.Discard},
		"no out": {In: strings.NewReader("yes\n")},
	} {
		if a, err := term.Ask(context.Background(), question()); err == nil || a.Approved {
			t.Errorf("%s: %+v, %v", name, a, err)
		}
	}
}

type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) { return 0, w.err }

// The end of the time interrupts a pollable terminal and abandons any other.
func TestTerminalTimeout(t *testing.T) {
	pollable, pollableEnd, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer pollable.Close()
	defer pollableEnd.Close()
	plain, plainEnd := io.Pipe()
	defer plainEnd.Close()
	for name, in := range map[string]io.Reader{"pollable": pollable, "plain": plain} {
		t.Run(name, func(t *testing.T) {
			q := question()
			q.Timeout = 20 * time.Millisecond
			start := time.Now()
			r := Resolve(context.Background(), &Terminal{In: in, Out: io.Discard}, q)
			if r.View().Answer != Expired {
				t.Errorf("got %+v", r.View())
			}
			if d := time.Since(start); d > time.Minute {
				t.Errorf("took %v", d)
			}
		})
	}
	// A pollable terminal serves the next question.
	if _, err := pollableEnd.WriteString("yes\n"); err != nil {
		t.Fatal(err)
	}
	if r := Resolve(context.Background(), &Terminal{In: pollable, Out: io.Discard}, question()); !r.Approved() {
		t.Errorf("the question after a timeout: %+v", r.View())
	}
}

func TestCard(t *testing.T) {
	exe, script, operand := canon.Sum([]byte("exe")), canon.Sum([]byte("script")), canon.Sum([]byte("operand"))
	stdin := canon.Sum([]byte("stdin"))
	card := Card(Request{
		Decision: decision, Capsule: capsule, PolicySet: policySet, Principal: `Palyra::User::"alice"`, Tool: "process.run",
		Call: Call{
			Argv: []string{"/usr/bin/cc", "-o", "a b", "evil\nApproval needed"}, Executable: "/usr/bin/x86_64-linux-gnu-gcc-14", Digest: exe,
			Script: "/srv/tool", ScriptDigest: script, Operands: []Operand{{"/workspace/in.c", operand}}, EnvNames: []string{"LANG"}, EnvChanged: []string{"PATH=/workspace/bin\n"},
			Absent: []string{"/workspace/late"}, Libraries: []string{"/workspace/lib"},
			Cwd: "/workspace", Workspace: "/home/alice/src", EgressHosts: []string{"example.org"}, Capabilities: []string{"network", "process_exec"},
			Planted: []Planted{{".git/hooks/x\n", "hook", "git runs it"}},
			Stdin:   "sealed", StdinDigest: stdin, StdinSize: 3000, StdinHead: "rm -r\nApproval needed\x1b[2J", Tier: "c", Limits: "wall 30s",
		},
		Why: []Why{{"host_write_unless_approved", "the program can write", "30-sensitive.cedar:29"}, {"mine", "", "x.cedar:1"}},
	})
	for _, want := range []string{
		capsule.String(), policySet.String(), exe.String(), script.String(), operand.String(), // what is bound
		`"/usr/bin/cc" "-o" "a b" "evil\nApproval needed"`, `"/usr/bin/x86_64-linux-gnu-gcc-14"`, `"/srv/tool"`, `"/workspace/in.c"`, // what runs
		`"/workspace"`, `"/home/alice/src", WRITABLE`, `"example.org"`, "network, process_exec", `"LANG"`, "sealed", "wall 30s", // where, with what
		"3000 bytes, " + stdin.String(), `rm -r\nApproval needed\x1b[2J`, "[and 2975 more bytes NOT SHOWN]", // what it reads
		`set to      "PATH=/workspace/bin\n"`, `NOT THERE   "/workspace/late"`, `NOT HELD    libraries from "/workspace/lib"`, // what is loose
		`DANGER      ".git/hooks/x\n": git runs it (hook)`,
		"the program can write (policy host_write_unless_approved, 30-sensitive.cedar:29)", "gives no reason (policy mine", // why
	} {
		if !strings.Contains(card, want) {
			t.Errorf("card lacks %s\n%s", want, card)
		}
	}
	if strings.Count(card, "Approval needed\n") != 1 {
		t.Errorf("an argument forges a line:\n%s", card)
	}

	if card := Card(Request{Call: Call{Executable: "/x", Workspace: "/w", ReadOnly: true}}); !strings.Contains(card, `"/w", read-only`) {
		t.Error("a read-only workspace is not shown as one")
	}
}

// TestCardHidesNothing: whatever is the last of many is on the card too. One that
// nobody can be shown whole is not put to anybody.
func TestCardHidesNothing(t *testing.T) {
	last := "LAST ONE"
	for name, c := range map[string]Call{
		"argument":      {Argv: append(slicesOf(5000, "junk"), last)},
		"long argument": {Argv: []string{strings.Repeat("x", 100_000) + last}},
		"operand":       {Operands: append(make([]Operand, 100), Operand{Path: last})},
		"loose":         {Loose: append(slicesOf(100, "junk"), last)},
		"environment":   {EnvNames: append(slicesOf(5000, "JUNK"), last)},
		"egress":        {EgressHosts: append(slicesOf(5000, "junk"), last)},
		"variable":      {EnvChanged: append(slicesOf(5000, "junk"), last)},
		"absent":        {Absent: append(slicesOf(5000, "junk"), last)},
		"library":       {Libraries: append(slicesOf(5000, "junk"), last)},
		"capability":    {Capabilities: append(slicesOf(5000, "junk"), last)},
	} {
		if card := Card(Request{Call: c}); !strings.Contains(card, last) || strings.Contains(card, "NOT SHOWN") {
			t.Errorf("%s: the last is not on the card of %d bytes", name, len(card))
		}
	}
	q := question()
	q.Call.Argv = []string{"x", strings.Repeat("y", MaxCard)}
	asked := false
	r := Resolve(t.Context(), approverFunc(func(context.Context, Request) (Answer, error) {
		asked = true
		return Answer{Approved: true}, nil
	}), q)
	if v := r.View(); asked || r.Approved() || v.Answer != Unreachable || !strings.Contains(v.Detail, "propose less at a time") {
		t.Errorf("a card without end: asked %v, %+v", asked, v)
	}
}

func slicesOf(n int, s string) []string {
	out := make([]string, n)
	for i := range out {
		out[i] = s
	}
	return out
}
