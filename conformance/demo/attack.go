package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"
)

// attempt is one thing that the hostile program tries.
type attempt struct {
	name    string
	what    string   // what fails
	mode    []string // arguments of hostile
	flags   []string // of palyra exec
	outcome string   // in the receipt
	// reached says from the host's side whether the attack got through since
	// the last call; nil where only the program itself can tell.
	reached func() bool
}

// attacked is step 4.
func attacked(ctx context.Context, d *demo) {
	secret := filepath.Join(d.dir, "secret.txt")
	if err := os.WriteFile(secret, []byte("the host's secret\n"), 0o600); err != nil {
		d.expect(false, "write the secret: %v", err)
		return
	}
	addr, visited, stop, err := listen()
	if err != nil {
		d.expect(false, "listen on loopback: %v", err)
		return
	}
	defer stop()
	for _, a := range []attempt{
		{name: "read", what: "reading a secret of the host", mode: []string{"read", secret}, outcome: "executed"},
		{name: "connect", what: "reaching the network", mode: []string{"connect", addr}, outcome: "executed", reached: visited},
		{name: "processes", what: "seeing processes of the host", mode: []string{"processes", filepath.Base(d.dir)}, outcome: "executed"},
		{name: "fork", what: "having more processes than allowed", mode: []string{"fork", "200"}, flags: []string{"--pids", "64"}, outcome: "executed"},
		{name: "allocate", what: "having more memory than allowed", mode: []string{"allocate", "402653184"}, flags: []string{"--memory", "128M"}, outcome: ""},
	} {
		d.attack(ctx, a)
	}
	d.outlive(ctx)
}

// attack runs one attempt outside, where it must work, and inside, where it
// must not.
func (d *demo) attack(ctx context.Context, a attempt) {
	out := d.run(ctx, "control: outside $", d.dir, append([]string{d.hostile}, a.mode...)...)
	d.show(out.stdout + out.stderr)
	worked := out.status == 0
	if a.reached != nil {
		worked = a.reached() && worked
	}
	d.expect(worked, "outside, %s works", a.what)

	flags := append([]string{"--policy", d.policy}, a.flags...)
	in := d.call(ctx, a.name, a.outcome, append(append(flags, "--", d.hostile), a.mode...)...)
	d.show(lastLines(in.stdout+in.stderr, 3))
	// The program must have run and been stopped: a refusal by palyra itself
	// (125 to 127) would show nothing about the sandbox.
	ran := in.status == 1 || in.status == 2 || in.status > 128
	got := a.reached != nil && a.reached()
	d.expect(ran && !got && !strings.Contains(in.stdout, "the host's secret"), "inside, %s fails (status %d)", a.what, in.status)
}

// outlive starts a program that ignores SIGTERM and leaves a grandchild in a
// session of its own. Outside, killing the program leaves the others running.
func (d *demo) outlive(ctx context.Context) {
	const what = "outliving the deadline"
	mark := "outlive-" + filepath.Base(d.dir)
	argv := []string{d.hostile, "outlive", mark}
	fmt.Fprintf(d.out, "     control: outside $ timeout -k 0 1 %s\n", d.spell(argv))
	cmd := d.command(ctx, d.dir, argv...)
	var out waitFor
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		d.expect(false, "start the control: %v", err)
		return
	}
	out.wait(ctx, "waiting")
	cmd.Process.Kill() // what a deadline that knows only its child does
	cmd.Process.Wait()
	left := marked(mark)
	for more := left; len(more) > 0; more = marked(mark) { // one may have begun after the look
		kill(more)
	}
	d.expect(len(left) > 0, "outside, %s works (%d processes were left)", what, len(left))

	began := time.Now()
	in := d.call(ctx, "outlive", "timed_out", "--policy", d.policy, "--timeout", "1s", "--", d.hostile, "outlive", mark)
	d.show(in.stdout + in.stderr)
	left = marked(mark)
	kill(left)
	d.expect(in.status == 124 && len(left) == 0, "inside, %s fails (status %d after %.1f s, %d processes left)",
		what, in.status, time.Since(began).Seconds(), len(left))
}

// listen opens a listener on the host's loopback and returns a function that says whether
// there was a connection since it was last asked.
func listen() (addr string, visited func() bool, stop func(), err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, nil, err
	}
	var n atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			// Counted when bytes arrive, before the visitor can have ended.
			n.Add(1)
			c.Close()
		}
	}()
	visited = func() bool {
		// One visit of our own, last in the queue: when it is counted, so is
		// everybody before it.
		before := n.Load()
		if c, err := net.Dial("tcp", l.Addr().String()); err == nil {
			c.Read(make([]byte, 1)) // until the listener closes it
			c.Close()
		}
		got := n.Swap(0)
		return before > 0 || got > 1
	}
	return l.Addr().String(), visited, func() { l.Close(); <-done }, nil
}

// marked finds processes with mark in their command line, as the host sees them.
func marked(mark string) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		line, err := os.ReadFile(filepath.Join(dir, "cmdline"))
		if err != nil || !bytes.Contains(line, []byte("\x00"+mark+"\x00")) {
			continue
		}
		// A killed process that wasn't reaped yet has an empty command line, so this one
		// lives.
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

func kill(pids []int) {
	for _, pid := range pids {
		if p, err := os.FindProcess(pid); err == nil {
			p.Kill()
		}
	}
}

func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\n"), "\n")
	if len(lines) > n {
		lines = append([]string{"..."}, lines[len(lines)-n:]...)
	}
	return strings.Join(lines, "\n")
}
