package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"palyra/call/egress"
	"palyra/isolate/egress/client"
	"palyra/isolate/egress/inspect"
	"palyra/isolate/egress/sealed"
)

// build builds the program as it ships.
func build(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "palyra-egress") // a root's test folder is closed to nobody
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "palyra-egress")
	cmd := exec.Command("go", "build", "-o", path, ".")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// children returns the processes whose parent pid is, each with its command line.
func children(t *testing.T, pid int) map[int]string {
	t.Helper()
	out := map[int]string{}
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		rest := string(b[bytes.LastIndexByte(b, ')')+1:])
		if fields := strings.Fields(rest); len(fields) < 2 || fields[1] != strconv.Itoa(pid) || fields[0] == "Z" {
			continue
		}
		name := filepath.Base(filepath.Dir(f))
		n, err := strconv.Atoi(name)
		line, err2 := os.ReadFile("/proc/" + name + "/cmdline")
		if err == nil && err2 == nil {
			out[n] = strings.Trim(strings.ReplaceAll(string(line), "\x00", " "), " ")
		}
	}
	return out
}

// child returns the one child of pid with a command line.
func child(t *testing.T, pid int, line string) int {
	t.Helper()
	for n, l := range children(t, pid) {
		if l == line {
			return n
		}
	}
	t.Fatalf("no child %q of %d: %v", line, pid, children(t, pid))
	return 0
}

func use(b client.Broker) error {
	s, err := b.Open(context.Background(), &client.Order{Rules: []string{"a.example:443"}})
	if err == nil {
		_, err = s.Close()
	}
	return err
}

// TestConfined: the program serves, and is confined as it says: as the kernel tells of each thread.
func TestConfined(t *testing.T) {
	// A descriptor that palyra's parent left open for all.
	left, err := syscall.Open("/", syscall.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Close(left)
	p, err := client.Start(build(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := use(p); err != nil {
		t.Fatal(err)
	}
	pid := child(t, os.Getpid(), "palyra-egress")
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/status", pid))
	if err != nil || len(tasks) == 0 {
		t.Fatal(tasks, err)
	}
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534
	}
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue
		}
		for _, line := range []string{"\nNoNewPrivs:\t1\n", "\nSeccomp:\t2\n", "\nCapEff:\t0000000000000000\n", "\nCapPrm:\t0000000000000000\n", fmt.Sprintf("\nUid:\t%d\t%[1]d\t%[1]d\t%[1]d\n", uid)} {
			if !strings.Contains(string(b), line) {
				t.Errorf("%s lacks %q", f, line)
			}
		}
	}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		// Not dumpable: its descriptors are root's to look at.
		if os.Getuid() == 0 || !errors.Is(err, os.ErrPermission) {
			t.Error(err)
		}
		return
	}
	for _, fd := range fds {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", pid, fd.Name()))
		if err != nil {
			continue
		}
		n, _ := strconv.Atoi(fd.Name())
		known := strings.HasPrefix(to, "socket:") || strings.HasPrefix(to, "anon_inode:") || to == fmt.Sprintf("/proc/%d", pid)
		if n > 2 && !known {
			t.Errorf("descriptor %s is %s", fd.Name(), to)
		}
	}
}

// TestSecrets: the confined program makes an authority, opens values and locks them in memory, for as
// long as their call lasts.
func TestSecrets(t *testing.T) {
	p, err := client.Start(build(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	o := &client.Order{Rules: []string{"a.example:443"}, Inspect: []string{"GET a.example:443"}, Capsule: sha256.Sum256(nil),
		Uses: []client.Use{{Use: "T=vault://global/t header:authorization a.example:443", Placeholder: egress.NewPlaceholder("")}}}
	s, err := p.Open(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(s.Authority(), "-----BEGIN CERTIFICATE-----") {
		t.Errorf("authority %q", s.Authority())
	}
	box, err := sealed.Seal(s.Key(), o.Capsule, o.Uses[0], []byte("the value of a secret"))
	if err != nil {
		t.Fatal(err)
	}
	locked := func() string {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", child(t, os.Getpid(), "palyra-egress")))
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(b), "\nVmLck:")
		line, _, _ := strings.Cut(rest, "\n")
		return strings.TrimSpace(line)
	}
	if got := locked(); got != "0 kB" {
		t.Errorf("before: %s are locked", got)
	}
	if err := s.Give(t.Context(), [][]byte{box}); err != nil {
		t.Fatal(err)
	}
	if got := locked(); got == "0 kB" || got == "" {
		t.Errorf("with a value: %q are locked", got)
	}
	if _, err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if got := locked(); got != "0 kB" {
		t.Errorf("after: %s are locked", got)
	}
}

// TestRoots: certificates are read from the file that is named, and from no other.
func TestRoots(t *testing.T) {
	a, err := inspect.NewAuthority(egressRules(t, "a.example").All(), time.Now(), time.Now().Add(time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "roots.pem")
	if err := os.WriteFile(file, []byte(a.PEM()), 0o600); err != nil {
		t.Fatal(err)
	}
	one := x509.NewCertPool()
	one.AppendCertsFromPEM([]byte(a.PEM()))
	if got, err := readRoots(file); err != nil || !got.Equal(one) {
		t.Errorf("%v", err)
	}
	if got, err := readRoots(""); err != nil || got == nil || got.Equal(one) {
		t.Errorf("the host's: %v", err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{file, file + "x"} {
		if _, err := readRoots(f); err == nil {
			t.Errorf("%s: read", f)
		}
	}
}

func egressRules(t *testing.T, texts ...string) egress.Rules {
	t.Helper()
	rs, err := egress.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	return rs
}

// TestKeep: sessions are lost with a palyra-egress that is killed, and the next one opens in the one
// that is started anew. All end with palyra's connection.
func TestKeep(t *testing.T) {
	p, err := client.Keep(build(t))
	if err != nil {
		t.Fatal(err)
	}
	keeper := child(t, os.Getpid(), "palyra-egress keep")
	for range 2 {
		s, err := p.Open(context.Background(), new(client.Order))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(child(t, keeper, "palyra-egress"), syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		<-s.Done()
		if _, err := s.Close(); !errors.Is(err, client.ErrLost) {
			t.Errorf("after the kill: %v", err)
		}
	}
	if err := use(p); err != nil {
		t.Errorf("after two kills: %v", err)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if left := children(t, keeper); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

// TestKeeperKilled: no process starts palyra-egress again when its keeper is gone, and the error says
// what does.
func TestKeeperKilled(t *testing.T) {
	p, err := client.Keep(build(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := use(p); err != nil {
		t.Fatal(err)
	}
	keeper := child(t, os.Getpid(), "palyra-egress keep")
	if err := syscall.Kill(keeper, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	for len(children(t, os.Getpid())) > 0 { // until it is reaped
	}
	for range 100_000 { // the hint is the next step of what reaps it
		err := use(p)
		if !errors.Is(err, client.ErrLost) {
			t.Fatalf("got %v", err)
		}
		if strings.Contains(fmt.Sprintf("%+v", reflect.ValueOf(err).Elem()), "restart palyrad") { // its hint
			return
		}
	}
	t.Error("no error says that palyrad has to be restarted")
}

// TestKilled: without a keeper the end is an error by name.
func TestKilled(t *testing.T) {
	p, err := client.Start(build(t))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	s, err := p.Open(context.Background(), new(client.Order))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child(t, os.Getpid(), "palyra-egress"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-s.Done()
	if err := use(p); !errors.Is(err, client.ErrLost) {
		t.Errorf("got %v", err)
	}
}

// TestConnect: as a service it comes to palyrad's socket, and ends when palyrad does.
func TestConnect(t *testing.T) {
	path := build(t)
	at := &net.UnixAddr{Name: filepath.Join(filepath.Dir(path), "egress.sock"), Net: "unixpacket"}
	ul, err := net.ListenUnix("unixpacket", at)
	if err != nil {
		t.Fatal(err)
	}
	l := client.Listen(ul)
	cmd := exec.Command(path, "-connect", at.Name, "-nameserver", "127.0.0.1")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := use(l); err != nil {
		t.Errorf("%v: %s", err, stderr.Bytes())
	}
	l.Close()
	if err := cmd.Wait(); err != nil {
		t.Errorf("its end: %v: %s", err, stderr.Bytes())
	}
}

func TestUsage(t *testing.T) {
	path := build(t)
	for _, args := range [][]string{{}, {"-x"}, {"word"}, {"-nameserver", "a.example"}, {"-connect", "/nowhere/egress.sock"}} {
		cmd := exec.Command(path, args...)
		out, err := cmd.CombinedOutput()
		if cmd.ProcessState.ExitCode() != 2 || !bytes.HasPrefix(out, []byte("palyra-egress: ")) {
			t.Errorf("%v: %v, %s", args, err, out)
		}
	}
}

func TestResolverFiles(t *testing.T) {
	etc, run := t.TempDir(), t.TempDir()
	if err := os.WriteFile(filepath.Join(etc, "resolv.conf"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := resolverFiles(etc); !slices.Contains(got, etc) || len(got) != 4 {
		t.Errorf("a file: %v", got)
	}
	if err := errors.Join(os.Remove(filepath.Join(etc, "resolv.conf")), os.WriteFile(filepath.Join(run, "stub.conf"), nil, 0o600),
		os.Symlink(filepath.Join(run, "stub.conf"), filepath.Join(etc, "resolv.conf"))); err != nil {
		t.Fatal(err)
	}
	if got := resolverFiles(etc); !slices.Contains(got, run) || slices.Contains(got, etc) {
		t.Errorf("a link: %v", got)
	}
}
