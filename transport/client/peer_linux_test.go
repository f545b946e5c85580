package client

import (
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"palyra/hub"
	"palyra/internal/fault"
)

// TestOwn: a client that wants its own palyrad sends nothing to a process of another user, though
// the socket's file is its own: whoever may write the folder put another there behind the look at
// it. Without Own the same process gets the token.
func TestOwn(t *testing.T) {
	if socket := os.Getenv("PALYRA_TEST_LISTEN"); socket != "" {
		listenAndTell(socket)
	}
	for _, c := range []struct {
		uid  uint32
		me   int
		want bool
	}{{0, 1000, true}, {1000, 1000, true}, {1001, 1000, false}, {65534, 0, false}} {
		if err := ours(c.uid, c.me); (err == nil) != c.want || err != nil && fault.ReasonOf(err) != "permission_denied" {
			t.Errorf("uid %d for uid %d: %v", c.uid, c.me, err)
		}
	}
	for _, test := range []struct {
		other bool // user listens, which takes root to try
		own   bool
		sent  bool
	}{{false, true, true}, {true, true, false}, {true, false, true}} {
		if test.other && os.Geteuid() != 0 {
			continue
		}
		dir, err := os.MkdirTemp("", "own")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(dir)
		if err := os.Chmod(dir, 0o777); err != nil { // the mistake that the file's owner alone doesn't show
			t.Fatal(err)
		}
		socket := filepath.Join(dir, "s")
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(exe) // of a folder that another user can't enter
		if err != nil {
			t.Fatal(err)
		}
		exe = filepath.Join(dir, "test")
		if err := os.WriteFile(exe, b, 0o755); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(exe, "-test.run=^TestOwn$")
		cmd.Env = append(os.Environ(), "PALYRA_TEST_LISTEN="+socket)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if test.other {
			cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65534, Gid: 65534}
		}
		cmd.Dir = dir
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 1)
		if _, err := io.ReadFull(out, line); err != nil { // it listens
			t.Fatal(err)
		}
		if err := os.Chown(socket, os.Geteuid(), os.Getegid()); err != nil && os.Geteuid() == 0 {
			t.Fatal(err)
		}
		c, err := New(Config{Socket: socket, Own: test.own, Token: "palyra_secret"})
		if err != nil {
			t.Fatal(err)
		}
		_, err = hub.GetStatus.Do(t.Context(), c, hub.Caller{}, hub.None{})
		c.Close()
		if refused := fault.ReasonOf(err) == "permission_denied"; err == nil || refused == test.sent {
			t.Errorf("%+v: %v", test, err)
		}
		got, err := io.ReadAll(out)
		if err := errors.Join(err, cmd.Wait()); err != nil {
			t.Fatal(err)
		}
		if sent := strings.Contains(string(got), "palyra_secret"); sent != test.sent {
			t.Errorf("%+v: it read %q", test, got)
		}
	}
}

// listenAndTell prints what the first connection to a socket sends, and ends.
func listenAndTell(socket string) {
	l, err := net.Listen("unix", socket)
	if err != nil {
		os.Exit(1)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	os.Chmod(socket, 0o777)
	os.Stdout.WriteString("l")
	c, err := l.Accept()
	if err != nil {
		os.Exit(1)
	}
	b := make([]byte, 4096)
	n, _ := c.Read(b)
	os.Stdout.Write(b[:n])
	os.Exit(0)
}
