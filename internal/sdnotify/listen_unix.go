//go:build unix

package sdnotify

import (
	"fmt"
	"net"
	"os"
	"syscall"
)

// Listeners returns the sockets that this process was given, none if it was
// given none. They are close-on-exec from here on. On an error none is open.
func Listeners(getenv func(string) string, pid int) ([]Listener, error) {
	list, err := names(getenv, pid)
	if err != nil {
		return nil, err
	}
	var out []Listener
	fail := func(err error) ([]Listener, error) {
		for _, l := range out {
			l.Close()
		}
		return nil, err
	}
	for i, name := range list {
		fd := firstFD + i
		syscall.CloseOnExec(fd)
		f := os.NewFile(uintptr(fd), name)
		if f == nil {
			return fail(fmt.Errorf("descriptor %d %q: is not open", fd, name))
		}
		if isNetlink(fd) {
			out = append(out, Listener{Name: name, Netlink: f})
			continue
		}
		l, err := net.FileListener(f) // a copy, which also is close-on-exec
		f.Close()
		if err != nil {
			return fail(fmt.Errorf("descriptor %d %q: %w", fd, name, err))
		}
		if u, ok := l.(*net.UnixListener); ok {
			u.SetUnlinkOnClose(false) // the manager made the socket and keeps it
		}
		out = append(out, Listener{Name: name, Listener: l})
	}
	return out, nil
}
