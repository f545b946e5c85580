package sys

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// NetworkCookie returns the number of the network namespace that a socket was made in: no other has
// had or will have it until the host boots. For a negative fd it's the calling thread's. socket(7),
// SO_NETNS_COOKIE, 5.14.
func NetworkCookie(fd int) (uint64, error) {
	if fd < 0 {
		var err error
		if fd, err = unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return 0, fmt.Errorf("socket: %w", err)
		}
		defer unix.Close(fd)
	}
	n, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("getsockopt SO_NETNS_COOKIE: %w", err)
	}
	return n, nil
}

// CheckFresh returns an error unless fd is a TCP or UDP socket of a family and a kind that isn't
// bound, listens nowhere and is connected to nothing.
func CheckFresh(fd, family, kind int) error {
	protocol := unix.IPPROTO_TCP
	if kind == unix.SOCK_DGRAM {
		protocol = unix.IPPROTO_UDP
	}
	for _, o := range [...]struct {
		name      string
		opt, want int
	}{{"SO_DOMAIN", unix.SO_DOMAIN, family}, {"SO_TYPE", unix.SO_TYPE, kind}, {"SO_PROTOCOL", unix.SO_PROTOCOL, protocol}, {"SO_ACCEPTCONN", unix.SO_ACCEPTCONN, 0}} {
		got, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, o.opt)
		if err != nil {
			return fmt.Errorf("getsockopt %s: %w", o.name, err)
		}
		if got != o.want {
			return fmt.Errorf("its %s is %d, want %d", o.name, got, o.want)
		}
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return fmt.Errorf("getsockname: %w", err)
	}
	free := false
	switch a := name.(type) {
	case *unix.SockaddrInet4:
		free = a.Port == 0 && a.Addr == [4]byte{}
	case *unix.SockaddrInet6:
		free = a.Port == 0 && a.Addr == [16]byte{}
	}
	if _, err := unix.Getpeername(fd); !free || !errors.Is(err, unix.ENOTCONN) {
		return errors.New("it's bound or connected")
	}
	return nil
}
