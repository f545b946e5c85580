package gateway

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"testing"

	"palyra/hub"
	"palyra/hub/run"
	"palyra/internal/fault"
	"palyra/kernel"
)

// starting is a server's start that a test holds.
type starting struct {
	*Gateway
	started chan string   // the input of its own call
	end     chan struct{} // closed when its run has ended
}

func newStarting(t *testing.T) *starting {
	s := &starting{New(Config{}), make(chan string, 1), make(chan struct{})}
	s.Begin(func(_ context.Context, _ run.Attaching, input []byte) (string, error) {
		s.started <- string(input)
		return "run_1", nil
	}, func(context.Context, string) (hub.StepResult, error) {
		<-s.end
		return hub.StepResult{}, nil
	})
	t.Cleanup(func() { close(s.end) })
	return s
}

type upped struct {
	s   *serving
	err error
}

// ask has a caller wait for the server, and returns when it does.
func (s *starting) ask(ctx context.Context) <-chan upped {
	waits, got := make(chan struct{}), make(chan upped, 1)
	go func() {
		up, err := s.up(ctx, run.Attaching{Caller: hub.Caller{User: "uid:1"}, Session: "ses_1", Pause: func() func() {
			close(waits)
			return func() {}
		}, Starting: func(server, run string) {
			if server != "slow" || run != "run_1" {
				panic(server + " starts as " + run)
			}
		}}, "slow")
		got <- upped{up, err}
	}()
	<-waits
	return got
}

// serve is the server's own call, from its intent on.
func (s *starting) serve(t *testing.T) {
	var in serveInput
	if err := json.Unmarshal([]byte(<-s.started), &in); err != nil {
		t.Fatal(err)
	}
	_, own, err := s.Attach(t.Context(), run.Attaching{Caller: hub.Caller{User: "uid:1"}, Tool: hub.ToolMCPServe, Input: fmt.Appendf(nil, `{"id":%q,"server":"slow"}`, in.ID)})
	if err != nil {
		t.Fatal(err)
	}
	index := uint64(7)
	own.Observe(kernel.Event{Step: kernel.StepIntent, LogIndex: &index})
	go func() {
		for lines := bufio.NewScanner(own.Stdin); lines.Scan(); {
			var m struct {
				ID     int64
				Method string
			}
			json.Unmarshal(lines.Bytes(), &m)
			switch m.Method {
			case "initialize":
				fmt.Fprintf(own.Stdout, `{"jsonrpc":"2.0","id":%d,"result":{"protocolVersion":"2025-06-18"}}`+"\n", m.ID)
			case "tools/list":
				fmt.Fprintf(own.Stdout, `{"jsonrpc":"2.0","id":%d,"result":{"tools":[]}}`+"\n", m.ID)
			}
		}
	}()
}

// TestFirstCallerLeaves: the caller for whom a server is started may give up; the start goes on for
// the others.
func TestFirstCallerLeaves(t *testing.T) {
	s := newStarting(t)
	ctx, cancel := context.WithCancel(t.Context())
	first := s.ask(ctx)
	second := s.ask(t.Context())
	cancel()
	if got := <-first; fault.KindOf(got.err) != fault.Canceled {
		t.Fatalf("the first caller: %v", got.err)
	}
	s.serve(t)
	got := <-second
	if got.err != nil {
		t.Fatalf("the second caller: %v", got.err)
	}
	got.s.fail(got.s.wrong("the test is over"))
}

// TestLastCallerLeaves: a start for which no one waits is ended, and the next caller begins anew.
func TestLastCallerLeaves(t *testing.T) {
	s := newStarting(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := s.ask(ctx), s.ask(ctx)
	held := s.running[place{"ses_1", "slow"}]
	cancel()
	for _, c := range []<-chan upped{first, second} {
		if got := <-c; fault.KindOf(got.err) != fault.Canceled {
			t.Fatal(got.err)
		}
	}
	<-held.gone
	if _, err := held.claim(t.Context()); fault.ReasonOf(err) != "server_died" {
		t.Errorf("its own call may begin: %v", err)
	}
	<-s.started
	third := s.ask(t.Context())
	s.serve(t)
	got := <-third
	if got.err != nil || got.s == held {
		t.Fatalf("the third caller: %v", got.err)
	}
	got.s.fail(got.s.wrong("the test is over"))
}
