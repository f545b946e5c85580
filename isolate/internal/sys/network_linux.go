package sys

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// threadNet names the network namespace of the calling thread. proc_pid_ns(5)
// and proc_thread-self(5).
const threadNet = "/proc/thread-self/ns/net"

// UnshareNetwork gives the calling thread, which must be locked and live as long
// as it clones, a new network namespace: a loopback interface that is down.
func UnshareNetwork() error {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("unshare: %w", err)
	}
	return nil
}

// Network opens the network namespace of the calling thread and returns its
// inode number, by which /proc/<pid>/ns names it.
func Network() (*os.File, uint64, error) {
	fd, err := unix.Open(threadNet, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("open %s: %w", threadNet, err)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return nil, 0, fmt.Errorf("fstat: %w", err)
	}
	return file(fd, "network"), st.Ino, nil
}

// EnterNetwork moves the calling thread, which must be locked, into a network
// namespace: setns(2).
func EnterNetwork(ns *os.File) error {
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("setns: %w", err)
	}
	return nil
}

// LeadsElsewhere reports whether whoever has a descriptor could connect, listen or send with it
// in the network namespace that it was made in: every socket but one end of a unix connection.
func LeadsElsewhere(fd int) (bool, error) {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if errors.Is(err, unix.ENOTSOCK) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("getsockopt SO_DOMAIN: %w", err)
	}
	kind, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TYPE)
	if err != nil {
		return false, fmt.Errorf("getsockopt SO_TYPE: %w", err)
	}
	_, err = unix.Getpeername(fd)
	return family != unix.AF_UNIX || kind == unix.SOCK_DGRAM || err != nil, nil
}

// InterfacesUp returns the interfaces of the calling thread's network namespace
// that are up: netdevice(7).
func InterfacesUp() (up []string, err error) {
	b, err := os.ReadFile("/proc/thread-self/net/dev")
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	// A socket of any family carries the question.
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	for line := range strings.Lines(string(b)) {
		name, _, ok := strings.Cut(line, ":")
		if !ok {
			continue // the two lines of the heading
		}
		name = strings.TrimSpace(name)
		r, err := unix.NewIfreq(name)
		if err != nil {
			return nil, fmt.Errorf("interface %q: %w", name, err)
		}
		if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
			return nil, fmt.Errorf("ioctl SIOCGIFFLAGS %q: %w", name, err)
		}
		if r.Uint16()&unix.IFF_UP != 0 {
			up = append(up, name)
		}
	}
	return up, nil
}

// LoopbackUp sets the loopback interface of the calling thread's network namespace up, with which
// the kernel gives it 127.0.0.1 and ::1: netdevice(7).
func LoopbackUp() error {
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("interface lo: %w", err)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	r.SetUint16(unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r); err != nil {
		return fmt.Errorf("ioctl SIOCSIFFLAGS lo: %w", err)
	}
	return nil
}

// SetVariable writes a variable of the kernel's below proc, "sys/net/ipv4/tcp_rmem", and returns
// what it then is. Those of the network are the calling thread's.
func SetVariable(proc *os.File, name, value string) (string, error) {
	fd, err := unix.Openat(int(proc.Fd()), name, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("openat %q: %w", name, err)
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return "", fmt.Errorf("write %q: %w", name, err)
	}
	b := make([]byte, 256)
	n, err := unix.Pread(fd, b, 0)
	if err != nil {
		return "", fmt.Errorf("pread %q: %w", name, err)
	}
	return string(b[:n]), nil
}
