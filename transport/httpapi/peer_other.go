//go:build !linux

package httpapi

import (
	"errors"
	"net"
	"time"

	"palyra/internal/fault"
)

// peerCredentials is for Linux. Elsewhere the peer of a unix socket is unknown, so a client
// needs a token there too.
func peerCredentials(any) (uid uint32, pid int32, err error) {
	return 0, 0, fault.New(fault.Unsupported, "platform_unsupported", "read peer credentials", errors.New("this platform tells no peer credentials"))
}

// bound and unsent are for Linux, where memory is bounded.
func bound(net.Conn, time.Duration) {}

func unsent(*net.UnixConn) int { return 0 }

// listenUnix returns l: epoll is Linux's.
func listenUnix(l net.Listener, _ func(uid uint32) bool, _ time.Duration) (net.Listener, error) {
	return l, nil
}
