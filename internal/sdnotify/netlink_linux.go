package sdnotify

import "syscall"

// isNetlink reports whether a descriptor is a socket of ListenNetlink=.
func isNetlink(fd int) bool {
	at, err := syscall.Getsockname(fd)
	_, ok := at.(*syscall.SockaddrNetlink)
	return err == nil && ok
}
