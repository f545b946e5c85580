package cell_test

import (
	"bufio"
	"context"
	"os"
	"testing"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
	"palyra/isolate/tier"
)

// TestTurn: palyra-cell runs one call of tier B at a time. A call whose time passes while it
// waits never starts, and the running call goes on. A call that is cancelled while it waits
// ends at once.
func TestTurn(t *testing.T) {
	c := start(t, tier.B)
	s := benchSpec("/usr/bin/dash", "")
	s.Tier, s.Cwd, s.Argv = tier.B, "/", []string{"dash", "-c", "echo runs; read line"}
	s.Stdin = "stream"
	exe, err := os.Open("/usr/bin/dash")
	if err != nil {
		t.Fatal(err)
	}
	defer exe.Close()
	in, input, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	output, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer output.Close()
	first := make(chan error, 1)
	var res *isolate.Result
	go func() {
		var err error
		res, err = c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdin: in, Stdout: out, Stderr: out})
		out.Close()
		first <- err
	}()
	if _, err := bufio.NewReader(output).ReadString('\n'); err != nil {
		t.Fatal(err)
	}

	short := *s
	short.Limits.Wall, short.Argv, short.Stdin = 200*time.Millisecond, []string{"dash", "-c", "echo never"}, "none"
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if r, err := c.Run(t.Context(), mint(t, testKey, &short), &short, &isolate.Files{Exec: exe, Stdout: null, Stderr: null}); fault.ReasonOf(err) != "timeout" || fault.KindOf(err) != fault.Timeout || r != nil {
		t.Errorf("a call whose time passes while it waits: %+v, %v; want timeout", r, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r, err := c.Run(ctx, mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdin: in, Stdout: null, Stderr: null}); fault.KindOf(err) != fault.Canceled || r != nil {
		t.Errorf("a call that is given up while it waits: %+v, %v; want canceled", r, err)
	}
	input.Close()
	if err := <-first; err != nil || res.Outcome != isolate.Exited {
		t.Errorf("the call that it waited for: %+v, %v", res, err)
	}
	if r, err := c.Run(t.Context(), mint(t, testKey, s), s, &isolate.Files{Exec: exe, Stdout: null, Stderr: null}); err != nil || r.Outcome != isolate.Exited {
		t.Errorf("the next one: %+v, %v", r, err)
	}
}
