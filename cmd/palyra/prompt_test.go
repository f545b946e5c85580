package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"palyra/authz/approval"
	"palyra/internal/canon"
)

// person is both directions of a terminal: what is typed, and what was shown.
type person struct {
	io.Reader
	bytes.Buffer
}

func (p *person) Read(b []byte) (int, error) { return p.Reader.Read(b) }

func TestAskAcceptsOnlyTheCode(t *testing.T) {
	r := approval.Request{Capsule: canon.Sum([]byte("capsule")), Call: approval.Call{Argv: []string{"evil\x1b[2J\u202e", "a\nb"}}}
	code := r.Capsule.Hex()[:codeLength]
	other := canon.Sum([]byte("another capsule")).Hex()[:codeLength]
	for typed, want := range map[string]bool{
		code + "\n": true, " " + code + "\r\n": true, code + "\nrest": true,
		"": false, "\n": false, "y\n": false, "yes\n": false, code: false, other + "\n": false,
		code + code + "\n": false, code[:3] + "\n": false, "\n" + code + "\n": false,
		strings.Repeat(" ", maxAnswer) + code + "\n": false,
	} {
		p := &person{Reader: strings.NewReader(typed)}
		got, err := ask(p, r)
		if got != want || err != nil {
			t.Errorf("typed %q: %v, %v, want %v", typed, got, err, want)
		}
		if s := p.String(); strings.ContainsAny(s, "\x1b\u202e") || !strings.Contains(s, `a\nb`) {
			t.Errorf("foreign text is not escaped: %q", s)
		}
	}
	if got, err := ask(&person{Reader: strings.NewReader("0000\n")}, approval.Request{}); got || err == nil {
		t.Errorf("zero capsule: %v, %v", got, err)
	}
}

// TestAskLeavesWhatFollows: the line after the answer belongs to the next question.
func TestAskLeavesWhatFollows(t *testing.T) {
	r := approval.Request{Capsule: canon.Sum(nil)}
	typed := strings.NewReader("no\nnext\n")
	if ok, err := ask(&person{Reader: typed}, r); ok || err != nil {
		t.Fatal(ok, err)
	}
	if rest, _ := io.ReadAll(typed); string(rest) != "next\n" {
		t.Errorf("left %q", rest)
	}
}

func TestNoTerminalIsNoApproval(t *testing.T) {
	a := &ttyApprover{path: filepath.Join(t.TempDir(), "none"), name: func() string { return "x" }}
	rec := approval.Resolve(t.Context(), a, approval.Request{Capsule: canon.Sum(nil)})
	if rec.Approved() || rec.View().Answer != approval.Unreachable {
		t.Errorf("%+v", rec.View())
	}
	app, _, _ := newApp(t, map[string]string{"PALYRA_NO_INPUT": "1"})
	if app.approver() != nil {
		t.Error("PALYRA_NO_INPUT does not silence the prompt")
	}
}

// TestAskEndsWithTheCall: a canceled call does not wait for the person.
func TestAskEndsWithTheCall(t *testing.T) {
	if _, err := os.Stat("/dev/ptmx"); err != nil {
		t.Skip("needs linux")
	}
	// A pseudo-terminal's master with nobody at the other end blocks a reader.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &ttyApprover{path: "/dev/ptmx", name: func() string { return "x" }}
	if ans, err := a.Ask(ctx, approval.Request{Capsule: canon.Sum(nil)}); ans.Approved || err == nil {
		t.Errorf("%+v, %v", ans, err)
	}
}
