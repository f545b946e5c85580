package kernel

import (
	"bytes"
	"context"
	"errors"
	"os"
	"palyra/authz/grant"
	"reflect"
	"strings"
	"testing"

	"palyra/authz"
	"palyra/authz/policy"
	"palyra/crypt/receipt"
	"palyra/internal/canon"
	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/evidence"
)

// running is a program that runs already, for a test.
type running func(ctx context.Context, program canon.Digest, q Question) ([]byte, bool, error)

func (f running) Exchange(ctx context.Context, program canon.Digest, q Question, _ int64) ([]byte, bool, evidence.Exchange, error) {
	b, failed, err := f(ctx, program, q)
	return b, failed, evidence.Exchange{CallID: "call_of_the_server", Intent: 7}, err
}

// TestExchange: a call that asks a running program is decided by server, tool and arguments,
// starts nothing, and leaves a receipt that says so.
func TestExchange(t *testing.T) {
	dir := t.TempDir()
	os.Chmod(dir, 0o755)
	put(t, dir+"/mcp.cedar", `@id("files") permit (principal, action, resource == Palyra::Tool::"m")
		when { context.mcp.server == "files" && context.mcp.tool == "read" && context.mcp.arguments.contains("path=a") };
		@id("dry") permit (principal, action, resource == Palyra::Tool::"m") when { context.mcp.tool == "write" && context.mcp.arguments.contains("write=false") };
		@id("serve") permit (principal, action, resource == Palyra::Tool::"s");`+"\n", 0o644)
	work := t.TempDir()
	tools := table(func(tool string, in []byte) (*Expansion, error) {
		x := &Expansion{Argv: []string{"/bin/cat", "a"}, LeaveOperands: true, Workspace: work, WorkspaceReadOnly: true}
		if tool == "s" {
			x.Streams = true
			return x, nil
		}
		x.Exchanges, x.Stdin, x.Limits = true, in, isolate.Limits{Output: 8}
		return x, nil
	})
	h := openHouse(t, Config{PolicyDir: dir, Tools: tools})
	input := func(tool, args string) []byte {
		return []byte(`{"arguments":` + args + `,"pin":"` + canon.Sum([]byte("pin")).String() + `","server":"files","tool":"` + tool + `"}`)
	}
	call := func(x Exchanger, in []byte) (*Outcome, string) {
		t.Helper()
		var out bytes.Buffer
		o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u"), Exchange: x}, Proposal{Tool: "m", Input: in}, IO{Stdout: &out})
		if err != nil {
			t.Fatal(err)
		}
		h.verify(o)
		return o, out.String()
	}

	// The program's own call: its input is a stream, and an observer learns which program it is.
	var program canon.Digest
	var out bytes.Buffer
	o, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u")}, Proposal{Tool: "s", Input: []byte("{}")}, IO{Stdin: strings.NewReader("streamed"), Stdout: &out,
		Observe: func(e Event) {
			if e.Step == StepSealed {
				program = e.Program
			}
		}})
	if err != nil || o.Outcome != receipt.Executed || program.IsZero() {
		t.Fatalf("%+v, %v, program %v", o, err, program)
	}

	var got Question
	x := running(func(_ context.Context, p canon.Digest, q Question) ([]byte, bool, error) {
		if got = q; p != program {
			t.Errorf("the exchange is with program %v, its own call had %v", p, program)
		}
		return []byte("longer than 8"), false, nil
	})
	o, text := call(x, input("read", `{"path":"a"}`))
	if o.Outcome != receipt.Executed || o.Exit != 0 || text != "longer t" || o.Result.Evidence.Output.Cut != 5 {
		t.Fatalf("%s, %+v, %q", o.Outcome, o.Error, text)
	}
	e := o.Result.Evidence
	if want := (evidence.Exchange{Basis: evidence.Reported, Server: "files", Tool: "read", Pin: canon.Sum([]byte("pin")), CallID: "call_of_the_server", Intent: 7}); e.Exchange != want || e.Executor != evidence.ExecutorExchange {
		t.Errorf("%+v", e.Exchange)
	}
	if e.Tier != "" || e.Process.Basis != evidence.Absent || e.Namespaces.Basis != evidence.Absent || e.Executable.Basis != evidence.Absent {
		t.Error("evidence of a program that was not started")
	}
	p := h.verify(o).Statement.Predicate
	if p.Question == nil || p.Question.MCP == nil || !reflect.DeepEqual(p.Question.MCP.Arguments, []string{"path=a"}) || string(got.Arguments) != `{"path":"a"}` {
		t.Errorf("%+v, asked %+v", p.Question, got)
	}

	if o, _ := call(x, input("write", `{"write":false}`)); o.Outcome != receipt.Executed {
		t.Errorf("%s, %+v", o.Outcome, o.Error)
	}
	// A text isn't the value that it spells: to many servers it's true.
	for _, in := range [][]byte{input("write", `{"path":"a"}`), input("read", `{"path":"b"}`), input("read", `{"path=a":""}`), input("write", `{"write":"false"}`)} {
		if o, _ := call(x, in); o.Outcome != receipt.Denied {
			t.Errorf("%s: %s", in, o.Outcome)
		}
	}
	good := input("read", `{"path":"a"}`)
	if o, _ := call(nil, good); o.Outcome != receipt.Refused || o.Error.Reason != "server_died" {
		t.Errorf("without a server: %s, %+v", o.Outcome, o.Error)
	}
	for _, c := range []struct {
		err     error
		failed  bool
		outcome string
		exit    int
	}{
		{fault.New(fault.Refused, "server_died", "t", errors.New("e")), false, receipt.Refused, 125},
		{fault.New(fault.Timeout, "timeout", "t", errors.New("e")), false, receipt.TimedOut, 124},
		{fault.New(fault.Unavailable, "connection_lost", "t", errors.New("e")), false, receipt.OutcomeUnknown, 125},
		{fault.New(fault.Canceled, "canceled", "t", errors.New("e")), false, receipt.OutcomeUnknown, 125},
		{nil, true, receipt.Executed, 1},
	} {
		o, _ := call(running(func(context.Context, canon.Digest, Question) ([]byte, bool, error) { return nil, c.failed, c.err }), good)
		if o.Outcome != c.outcome || o.Exit != c.exit {
			t.Errorf("%v: %s, exit %d; want %s, %d", c.err, o.Outcome, o.Exit, c.outcome, c.exit)
		}
	}
	for _, in := range []string{`{}`, `[]`, `{"server":"s"}`, string(input("read", `[]`)), string(input("read", `null`)), strings.Replace(string(good), `"tool"`, `"toll"`, 1)} {
		if _, err := h.CallAs(t.Context(), Caller{Principal: policy.LocalUser("u"), Exchange: x}, Proposal{Tool: "m", Input: []byte(in)}, IO{}); fault.KindOf(err) != fault.Usage {
			t.Errorf("%s: %v", in, err)
		}
	}
}

// TestExchangeGrant: a grant lets one exchange happen, once, and no program of another capsule.
func TestExchangeGrant(t *testing.T) {
	h := openHouse(t, Config{PolicyDir: allowTools(t), Tools: table(func(string, []byte) (*Expansion, error) {
		return &Expansion{Argv: []string{"/bin/cat"}, Exchanges: true, Stdin: []byte(`{"arguments":{},"pin":"` + canon.Sum(nil).String() + `","server":"s","tool":"t"}`)}, nil
	})})
	who := Caller{Principal: policy.LocalUser("u")}
	asked := 0
	who.Exchange = running(func(context.Context, canon.Digest, Question) ([]byte, bool, error) { asked++; return nil, false, nil })
	p := Proposal{Tool: "test.echo", Input: []byte("{}")}
	s, made, err := h.sealAside(t.Context(), &who, p, nil)
	if err != nil {
		t.Fatal(err)
	}
	c := newCall(h.Kernel, &who, s, made, nil)
	defer c.close()
	l := h.laneFor(s)
	spec := s.spec()
	digest, _ := spec.Digest()
	auth := authz.New(h.PolicySet(), l.key)
	d := auth.Decide(h.question(&who, s, made))
	g, err := auth.Grant(d, nil, s.id, digest, grantTTL)
	if err != nil {
		t.Fatal(err)
	}
	other := *spec
	other.Cwd = "/else"
	if outcome, err := c.execute(t.Context(), l, g, &other, IO{}); outcome != receipt.Refused || fault.ReasonOf(err) != "grant_invalid" || !errors.Is(err, grant.ErrMismatch) {
		t.Errorf("another spec: %s, %v", outcome, err)
	}
	if outcome, err := c.execute(t.Context(), l, g, spec, IO{}); outcome != receipt.Executed {
		t.Errorf("%s, %v", outcome, err)
	}
	if outcome, err := c.execute(t.Context(), l, g, spec, IO{}); outcome != receipt.Refused || fault.ReasonOf(err) != "grant_invalid" || !errors.Is(err, grant.ErrReplayed) || asked != 1 {
		t.Errorf("again: %s, %v, asked %d times", outcome, err, asked)
	}
}
