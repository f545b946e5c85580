package sdnotify

import (
	"os"
	"os/exec"
	"syscall"
	"testing"
)

// TestNetlink: a socket of ListenNetlink= is passed on as it is.
func TestNetlink(t *testing.T) {
	fd, err := syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, syscall.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "netlink")
	defer f.Close()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asService+"=1", "LISTEN_FDS=1", "LISTEN_FDNAMES=diag")
	cmd.ExtraFiles = []*os.File{f}
	out, err := cmd.Output()
	if err != nil || string(out) != "netlink diag" {
		t.Errorf("the service got %q, %v", out, err)
	}
}
