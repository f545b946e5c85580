package local

import (
	"encoding/json"
	"strings"
	"testing"

	"palyra/authz/access"
	"palyra/hub"
	"palyra/internal/toolproto"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

// TestTerminal: a call of process.run with a terminal has one of its own, on which its standard input
// is typed, and its output is live, in the background too.
func TestTerminal(t *testing.T) {
	h := backgroundHouse(t, nil)
	c := h.member(1001, access.Operator)
	s := h.session(c)
	in, err := json.Marshal(obj{"argv": []string{"/bin/sh", "-c", `test -t 0 && test -t 1 && test -t 2 && tty && stty size && echo "$TERM" && read -r x && echo "got $x" >&2 && cat`},
		"stdin": "hello\nlast", "tty": true})
	if err != nil {
		t.Fatal(err)
	}
	step := h.in(c, s, kernel.ToolRun, string(in), false)
	text := strings.ReplaceAll(step.Stdout.Text, "\r\n", "\n")
	for _, want := range []string{"/dev/pts/0\n", "24 80\n", "xterm-256color\n", "got hello\n", "last"} { // what is typed shows up between any two
		if !strings.Contains(text, want) {
			t.Errorf("the terminal showed %q, without %q", text, want)
		}
	}
	p := h.verify(step).Statement.Predicate
	var e evidence.Evidence
	if err := json.Unmarshal(p.Evidence, &e); err != nil {
		t.Fatal(err)
	}
	if p.Capsule.TTY == nil || e.Terminal.Mode != evidence.TerminalOwn || step.Stderr.Text != "" {
		t.Errorf("capsule %+v, terminal %q, stderr %q", p.Capsule.TTY, e.Terminal.Mode, step.Stderr.Text)
	}
	id := h.background(c, s, background(obj{"tty": true}, "/bin/sh", "-c", "tty; sleep 600"))
	h.until(c, id, hub.EventStepOutput)
	if got := toolIn[toolproto.ProcessOutputResult](h, c, s, toolproto.ProcessOutput, obj{"id": id}).Stdout.Content.Text; !strings.HasPrefix(got, "/dev/pts/0") {
		t.Errorf("in the background: %q", got)
	}
	toolIn[toolproto.Process](h, c, s, toolproto.ProcessStop, obj{"id": id})
	h.ended(c, id)
}
