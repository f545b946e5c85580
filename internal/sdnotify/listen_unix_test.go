//go:build unix

package sdnotify

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
)

// asService makes the test binary the service that was given sockets.
const asService = "SDNOTIFY_AS_SERVICE"

func TestMain(m *testing.M) {
	if os.Getenv(asService) != "" {
		os.Exit(service())
	}
	os.Exit(m.Run())
}

// service accepts one connection on each socket it was given and says its name.
func service() int {
	ls, err := Listeners(func(name string) string {
		if name == "LISTEN_PID" {
			return strconv.Itoa(os.Getpid()) // systemd sets it after fork; os/exec cannot
		}
		return os.Getenv(name)
	}, os.Getpid())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 3
	}
	for _, l := range ls {
		if l.Netlink != nil {
			fmt.Print("netlink ", l.Name)
			l.Close()
			continue
		}
		c, err := l.Accept()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 4
		}
		fmt.Fprint(c, l.Name)
		c.Close()
		l.Close()
	}
	return 0
}

func TestListeners(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	u, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer tcp.Close()
	uf, err := u.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer uf.Close()
	tf, err := tcp.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer tf.Close()

	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asService+"=1", "LISTEN_FDS=2", "LISTEN_FDNAMES=api:http")
	cmd.ExtraFiles = []*os.File{uf, tf}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ network, addr, want string }{{"unix", path, "api"}, {"tcp", tcp.Addr().String(), "http"}} {
		c, err := net.Dial(tc.network, tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 16)
		n, err := c.Read(buf)
		c.Close()
		if err != nil || string(buf[:n]) != tc.want {
			t.Errorf("%s: got %q, %v, want %q", tc.network, buf[:n], err, tc.want)
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("the service removed the manager's socket: %v", err)
	}
}

// TestNotSockets: a descriptor that is no listening socket is an error.
func TestNotSockets(t *testing.T) {
	f, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asService+"=1", "LISTEN_FDS=1")
	cmd.ExtraFiles = []*os.File{f}
	err = cmd.Run()
	if cmd.ProcessState.ExitCode() != 3 {
		t.Errorf("a file as socket: %v", err)
	}
}
