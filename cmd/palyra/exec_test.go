package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/authz/approval"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
	"palyra/kernel"
)

func TestExecStatus(t *testing.T) {
	open := t.Context()
	interrupted, cancel := context.WithCancelCause(t.Context())
	cancel(signalError{syscall.SIGINT})
	gone, cancel := context.WithCancelCause(t.Context())
	cancel(signalError{syscall.SIGPIPE})
	done := func(outcome string, exit int) *kernel.Outcome {
		return &kernel.Outcome{Outcome: outcome, Exit: exit, Delivered: true}
	}
	refused := func(kind string) *kernel.Outcome {
		return &kernel.Outcome{Outcome: receipt.Refused, Exit: 125, Delivered: true, Error: &kernel.Failure{Kind: kind}}
	}
	lost := done(receipt.Executed, 0)
	lost.Delivered = false
	for name, tt := range map[string]struct {
		ctx  context.Context
		out  *kernel.Outcome
		err  error
		want int
	}{
		"own":                    {open, done(receipt.Executed, 7), nil, 7},
		"signal":                 {open, done(receipt.Executed, 139), nil, 139},
		"denied":                 {open, done(receipt.Denied, 126), nil, 126},
		"timed out":              {open, done(receipt.TimedOut, 124), nil, 124},
		"not recorded":           {open, done(receipt.Executed, 0), errors.New("disk"), 125},
		"output lost":            {open, lost, nil, 125},
		"not found":              {open, nil, fault.New(fault.NotFound, "program_not_found", "x", kernel.ErrNoProgram), 127},
		"no policy":              {open, nil, fault.New(fault.NotFound, "bad_file", "x", nil), 125},
		"unclassified":           {open, nil, errors.New("x"), 125},
		"interrupted":            {interrupted, done(receipt.Killed, 137), nil, 130},
		"interrupted at prompt":  {interrupted, done(receipt.NotApproved, 126), nil, 130},
		"unknown":                {open, done(receipt.OutcomeUnknown, 125), nil, 125},
		"interrupted, unknown":   {interrupted, done(receipt.OutcomeUnknown, 125), nil, 130},
		"interrupted before":     {interrupted, nil, fault.New(fault.Canceled, "canceled", "x", nil), 130},
		"interrupted, refused":   {interrupted, refused("canceled"), nil, 130},
		"refused meanwhile":      {interrupted, refused("unavailable"), nil, 125},
		"interrupted too late":   {interrupted, done(receipt.Executed, 3), nil, 3},
		"denied while signalled": {interrupted, done(receipt.Denied, 126), nil, 126},
		"reader left":            {gone, lost, nil, 141},
	} {
		if got := execStatus(tt.ctx, tt.out, tt.err); got != tt.want {
			t.Errorf("%s: %d, want %d", name, got, tt.want)
		}
	}
}

func TestToldSaysNothingOfSuccess(t *testing.T) {
	out := &kernel.Outcome{Outcome: receipt.Executed, Delivered: true, Result: &isolate.Result{Evidence: &evidence.Evidence{}}}
	if got := told(out, policy.Default(), "", ""); got != "" {
		t.Errorf("%q", got)
	}
	out.Error = &kernel.Failure{Kind: "refused", Reason: "changed", Text: "x"}
	if got := told(out, policy.Default(), "", ""); !strings.Contains(got, "hint: ") {
		t.Errorf("an error without a hint of its own: %q", got)
	}
	out.Error = nil
	out.Result.Evidence.Output.Cut = 5
	if got := told(out, policy.Default(), "", ""); !strings.Contains(got, "5 bytes were dropped") {
		t.Errorf("%q", got)
	}
}

func TestToldEscapes(t *testing.T) {
	out := &kernel.Outcome{Outcome: receipt.Denied, Delivered: true,
		Decision: policy.Decision{Reason: "x\x1b[2J", Policies: []string{"p\u202e"}, Errors: []string{"e\x07"}}}
	got := told(out, policy.Default(), "permit \x1b[0m;\n// second", "")
	if strings.ContainsAny(got, "\x1b\u202e\x07") || !strings.Contains(got, "\n    // second\n") {
		t.Errorf("%q", got)
	}
	out = &kernel.Outcome{Outcome: receipt.NotApproved, Delivered: true, Approval: &approval.View{Answer: approval.Unreachable, Detail: "no terminal\x1b"}}
	if got := told(out, policy.Default(), "", ""); strings.Contains(got, "\x1b") || !strings.Contains(got, "hint: ") {
		t.Errorf("%q", got)
	}
}

// TestExecDocument: the capsule holds values of the environment and
// must not be in the document; bytes that are not text come as base64.
func TestExecDocument(t *testing.T) {
	out := &kernel.Outcome{Outcome: receipt.Executed, Delivered: true, Capsule: []byte(`{"env":["TOKEN=hunter2"]}`), Receipt: []byte(`{"a":1}`)}
	var held [2]bytes.Buffer
	held[0].WriteString("\xff\x00")
	held[1].WriteString("text\n")
	var b bytes.Buffer
	if err := execDocument(out, nil, 0, &held, "").Write(&b, "exec"); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(b.String(), "hunter2") {
		t.Error("the document holds the environment's values")
	}
	var got struct {
		Schema  string
		Status  int
		Stdout  struct{ Encoding, Data string }
		Stderr  struct{ Encoding, Data string }
		Receipt map[string]int
	}
	if err := json.Unmarshal(b.Bytes(), &got); err != nil {
		t.Fatal(err)
	}
	if got.Schema != "palyra.exec/v1" || got.Stdout.Encoding != "base64" || got.Stdout.Data != "/wA=" || got.Stderr.Data != "text\n" || got.Receipt["a"] != 1 {
		t.Errorf("%+v", got)
	}
}

func TestStdinMode(t *testing.T) {
	open := func(path string) *os.File {
		t.Helper()
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	small := filepath.Join(t.TempDir(), "small")
	if err := os.WriteFile(small, []byte("abc"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		in   io.Reader
		want kernel.StdinMode
		size int
	}{
		"small":     {strings.NewReader("abc"), kernel.StdinSealed, 3},
		"file":      {open(small), kernel.StdinSealed, 3},
		"null":      {open(os.DevNull), kernel.StdinSealed, 0},
		"the limit": {strings.NewReader(strings.Repeat("x", sealedStdin)), kernel.StdinSealed, sealedStdin},
		"above":     {strings.NewReader(strings.Repeat("x", sealedStdin+5)), kernel.StdinStream, sealedStdin + 5},
	} {
		mode, r, err := stdinMode(tt.in)
		if err != nil || mode != tt.want {
			t.Errorf("%s: mode %q, %v, want %q", name, mode, err, tt.want)
			continue
		}
		if b, err := io.ReadAll(r); err != nil || len(b) != tt.size {
			t.Errorf("%s: %d bytes, %v, want %d", name, len(b), err, tt.size)
		}
	}
	if mode, _, err := stdinMode(open("/dev/zero")); mode != kernel.StdinStream || err != nil {
		t.Errorf("a device: %q, %v: it must not be read to its end", mode, err)
	}
}

type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Err: syscall.EPIPE}
}

func TestPipeWriter(t *testing.T) {
	calls := 0
	w := &pipeWriter{w: brokenPipe{}, broken: func() { calls++ }}
	for range 3 {
		if _, err := w.Write([]byte("x")); !errors.Is(err, syscall.EPIPE) {
			t.Errorf("%v", err)
		}
	}
	if calls != 1 {
		t.Errorf("told %d times, want 1", calls)
	}
}
