package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"palyra/kernel"
)

// beside is a call that runs beside the one of the command line.
type beside struct {
	cancel context.CancelFunc
	copied chan struct{} // closed when its output has ended
	ended  chan struct{} // closed when it has; then err says how
	err    error

	port, addr, pid string
}

// line is what an attack prints.
type line struct {
	Case    string `json:"case"`
	Outcome string `json:"outcome"`
	Detail  string `json:"detail,omitempty"`
}

// sit starts the call p and returns when it is ready.
func sit(k *kernel.Kernel, p kernel.Proposal) (*beside, error) {
	ctx, cancel := context.WithCancel(context.Background())
	b := &beside{cancel: cancel, copied: make(chan struct{}), ended: make(chan struct{})}
	r, w := io.Pipe()
	go func() {
		defer close(b.ended)
		out, err := k.Call(ctx, p, kernel.IO{Stdout: w, Stderr: os.Stderr})
		if err == nil {
			err = fmt.Errorf("it ended: %s", out.Outcome)
			if out.Error != nil {
				err = fmt.Errorf("%w: %s", err, out.Error.Text)
			}
		}
		b.err = err
		w.Close()
	}()
	ready := make(chan string, 1)
	go func() {
		defer close(b.copied)
		in := bufio.NewScanner(r)
		for in.Scan() {
			var l line
			if json.Unmarshal(in.Bytes(), &l) == nil && l.Outcome == "READY" {
				ready <- l.Detail
			}
			fmt.Printf("%s\n", in.Bytes())
		}
		if err := in.Err(); err != nil {
			fmt.Fprintln(os.Stderr, "the call beside it:", err)
		}
	}()
	select {
	case <-b.ended:
		cancel()
		return nil, fmt.Errorf("the call beside it: %w", b.err)
	case detail := <-ready:
		b.port, b.addr, _ = strings.Cut(detail, " ")
	}
	if b.pid = find(p.Argv); b.pid == "" {
		b.end()
		return nil, errors.New("the process of the call beside it can't be found")
	}
	return b, nil
}

// find returns the process on the host that has these arguments.
func find(argv []string) string {
	want := []byte(strings.Join(argv, "\x00") + "\x00")
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return ""
	}
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Equal(b, want) {
			return e.Name()
		}
	}
	return ""
}

// fill writes what is known of it into arguments.
func (b *beside) fill(argv []string) {
	known := strings.NewReplacer("@PORT@", b.port, "@ADDR@", b.addr, "@PID@", b.pid)
	for i := range argv {
		argv[i] = known.Replace(argv[i])
	}
}

// settle is how long it may take to die of what was done to it, or to say what it heard.
const settle = 200 * time.Millisecond

// end says whether it still runs, and ends it.
func (b *beside) end() {
	state := "ALIVE"
	select {
	case <-b.ended:
		state = "GONE"
	case <-time.After(settle):
	}
	b.cancel()
	<-b.ended
	<-b.copied
	text, err := json.Marshal(line{Case: "sit", Outcome: state})
	if err != nil {
		panic("warm: internal error: " + err.Error())
	}
	fmt.Printf("\n%s\n", text)
}
