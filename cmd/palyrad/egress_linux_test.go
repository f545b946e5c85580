package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/internal/built"
)

// withEgress gives a place a palyra-egress beside its palyrad.
func withEgress(t *testing.T, p *place) {
	t.Helper()
	bin := filepath.Join(p.dir, "bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		t.Fatal(err)
	}
	programs, err := filepath.Glob(filepath.Join(p.bin, "palyra*"))
	if err != nil || len(programs) < 5 {
		t.Fatalf("%q, %v", programs, err)
	}
	for _, from := range programs {
		if err := os.Link(from, filepath.Join(bin, filepath.Base(from))); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(bin, "palyra-egress")); err != nil {
		if err := built.Into(bin, "palyra-egress"); err != nil {
			t.Fatal(err)
		}
	}
	p.bin = bin
}

// egresses returns the processes that this place's palyra-egress runs in: that which keeps it, and
// the one that serves, of which an unprivileged user sees no more than whose child it is.
func (r *running) egresses() (keeps, serves []int) {
	for _, c := range r.children(r.cmd.Process.Pid) {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", c))
		if err == nil && string(line) == "palyra-egress\x00keep\x00" {
			keeps = append(keeps, c)
			serves = append(serves, r.children(c)...)
		}
	}
	return keeps, serves
}

// TestEgress: a call of palyrad's reaches the host that it names. A palyra-egress that is killed ends
// the calls that it leads, by name, and the next call has another; with palyrad it goes.
func TestEgress(t *testing.T) {
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	heard := make(chan string, 16)
	go func() {
		for {
			c, err := host.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				b := make([]byte, 6)
				io.ReadFull(c, b)
				heard <- string(b)
				io.Copy(c, c) // until the other side ends
			}()
		}
	}()
	policy := filepath.Join(t.TempDir(), "policy")
	if err := os.Mkdir(policy, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(policy, "all.cedar"), []byte("@id(\"all\") permit (principal, action, resource);\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := newPlace(t, fmt.Sprintf("[policy]\ndir = %q\n", policy))
	withEgress(t, p)
	r := p.start()
	// The address is this host's own, so it's reached through the proxy, and because a rule names it.
	at := host.Addr().String()
	input := func(rest string) string {
		script := fmt.Sprintf(`exec 3<>/dev/tcp/198.18.0.2/3128 && printf 'CONNECT %s HTTP/1.1\r\nHost: x\r\n\r\n' >&3 && head -n 2 <&3 && printf 'hello\n' >&3 && %s`, at, rest)
		b, err := json.Marshal(map[string]any{"argv": []string{"/bin/bash", "-c", script}, "egress_hosts": []string{at}})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	keeps, serves := r.egresses()
	if len(keeps) != 1 || len(serves) != 1 {
		t.Fatalf("%v keep and %v serve", keeps, serves)
	}
	if out, _ := r.ctl(0, "call", "process.run", input("true")); !strings.Contains(out, " 200 ") {
		t.Fatalf("the proxy said %q", out)
	}
	if got := <-heard; got != "hello\n" {
		t.Errorf("the host heard %q", got)
	}

	// Killed in the middle.
	cmd := exec.CommandContext(t.Context(), filepath.Join(r.bin, "palyra-ctl"), "call", "process.run", input("sleep 1000"), "--socket", r.sock)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case <-heard:
	case err := <-ended:
		t.Fatalf("ended before its host heard from it: %v, %s", err, &said)
	}
	if err := syscall.Kill(serves[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-ended
	if cmd.ProcessState.ExitCode() != 125 || !strings.Contains(said.String(), "egress_lost") {
		t.Errorf("status %d, %s", cmd.ProcessState.ExitCode(), &said)
	}
	if out, _ := r.ctl(0, "call", "process.run", input("true")); !strings.Contains(out, " 200 ") {
		t.Fatalf("after that the proxy said %q", out)
	}
	<-heard
	again, now := r.egresses()
	if len(again) != 1 || again[0] != keeps[0] {
		t.Errorf("%v keep, want %v", again, keeps)
	}
	r.signal(syscall.SIGTERM)
	if got := r.exit(); got != 0 {
		t.Errorf("palyrad ended with %d\n%s", got, r.log)
	}
	for _, pid := range append(again, now...) {
		if err := syscall.Kill(pid, 0); err != syscall.ESRCH {
			t.Errorf("palyrad left %d: %v", pid, err)
		}
	}
}

// TestNoEgress: where none is wanted none is started, and a call that names a host is refused.
func TestNoEgress(t *testing.T) {
	p := newPlace(t, "[egress]\nenabled = false\n")
	withEgress(t, p)
	r := p.start()
	if keeps, serves := r.egresses(); len(keeps)+len(serves) > 0 {
		t.Errorf("%v and %v run", keeps, serves)
	}
	_, stderr := r.ctl(125, "call", "process.run", `{"argv":["/usr/bin/id"],"egress_hosts":["a.example"]}`)
	if !strings.Contains(stderr, "egress_lost") {
		t.Errorf("said %s", stderr)
	}
	r.ctl(0, "call", "process.run", `{"argv":["/usr/bin/id"]}`)
}
