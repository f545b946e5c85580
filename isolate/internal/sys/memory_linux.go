package sys

import (
	"errors"
	"fmt"
	"math"
	"strconv"

	"golang.org/x/sys/unix"
)

// Dumpable returns the dumpable flag.
func Dumpable() (int, error) {
	v, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return 0, fmt.Errorf("prctl PR_GET_DUMPABLE: %w", err)
	}
	return v, nil
}

// UnshareIPC gives the calling thread an IPC namespace of its own.
func UnshareIPC() error {
	if err := unix.Unshare(unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("unshare IPC namespace: %w", err)
	}
	return nil
}

// leftPart is how many bytes of the kernel's memory a byte that a peer left may hold: a
// message of one takes 768.
const leftPart = 1024

// partlyRead is the most that the first message holds, of which a byte may be left.
const partlyRead = 40 << 10

// SocketSize is what a TCP or UDP socket takes, with its port's entry; slabinfo(5) of 6.18.
const SocketSize = 4 << 10

// Queued returns how many bytes of the kernel's memory take what was sent through a socket
// of the thread behind pidfd and not received yet, and the most that may take what its peer
// has left in it. That is charged to the peer's descriptor, and to none once it's closed.
// Of a socket of the Internet's families everything counts as sent, with the socket itself.
func Queued(pidfd, fd int) (sent, left int, err error) {
	err = asked(pidfd, fd, func(own int) error {
		inet, err := isInet(own)
		if err != nil {
			return err
		}
		if inet {
			sent, err = heldBy(own)
			sent += SocketSize
			return err
		}
		if sent, err = unix.IoctlGetInt(own, unix.TIOCOUTQ); err != nil { // SIOCOUTQ, unix(7)
			return fmt.Errorf("ioctl SIOCOUTQ: %w", err)
		}
		peer := []unix.PollFd{{Fd: int32(own)}}
		if _, err := unshaken(func() (int, error) { return unix.Poll(peer, 0) }); err != nil {
			return fmt.Errorf("poll: %w", err)
		}
		if peer[0].Revents&unix.POLLHUP == 0 {
			return nil
		}
		kind, err := unix.GetsockoptInt(own, unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil {
			return fmt.Errorf("getsockopt SO_TYPE: %w", err)
		}
		if left = math.MaxInt; kind != unix.SOCK_STREAM { // a message may have no bytes
			return nil
		}
		waits, err := unix.IoctlGetInt(own, unix.TIOCINQ) // SIOCINQ
		if err != nil {
			return fmt.Errorf("ioctl SIOCINQ: %w", err)
		}
		if left = 0; waits > 0 {
			left = waits*leftPart + partlyRead
		}
		return nil
	})
	return sent, left, err
}

// InetQueued is the same for a socket of the Internet's families, without the socket itself; 0
// for others.
func InetQueued(pidfd, fd int) (n int, err error) {
	err = asked(pidfd, fd, func(own int) error {
		inet, err := isInet(own)
		if err == nil && inet {
			n, err = heldBy(own)
		}
		return err
	})
	return n, err
}

func isInet(fd int) (bool, error) {
	family, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return false, fmt.Errorf("getsockopt SO_DOMAIN: %w", err)
	}
	return family == unix.AF_INET || family == unix.AF_INET6, nil
}

// maxRights is SCM_MAX_FD, the most descriptors of a message.
const maxRights = 253

// scmPidfd is SCM_PIDFD: a descriptor of the sender's process, which a message has for a reader
// with SO_PASSPIDFD.
const scmPidfd = 4

// Unread looks into the first message that waits at a unix socket of the thread behind pidfd, and
// leaves it there. It calls look with a path for each descriptor in it.
func Unread(pidfd, fd int, look func(path string)) error {
	return asked(pidfd, fd, func(own int) error {
		control := make([]byte, unix.CmsgSpace(4*maxRights)+256) // and credentials
		_, n, flags, _, err := unix.Recvmsg(own, make([]byte, 1), control, unix.MSG_PEEK|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
		if err != nil {
			return fmt.Errorf("recvmsg MSG_PEEK: %w", err)
		}
		messages, err := unix.ParseSocketControlMessage(control[:n])
		if err != nil {
			return fmt.Errorf("recvmsg MSG_PEEK: %w", err)
		}
		for i, m := range messages {
			if m.Header.Level != unix.SOL_SOCKET || m.Header.Type != unix.SCM_RIGHTS && m.Header.Type != scmPidfd {
				continue
			}
			messages[i].Header.Type = unix.SCM_RIGHTS
			fds, err := unix.ParseUnixRights(&messages[i])
			if err != nil {
				return fmt.Errorf("recvmsg MSG_PEEK: %w", err)
			}
			for _, fd := range fds {
				if m.Header.Type == unix.SCM_RIGHTS {
					look("/proc/self/fd/" + strconv.Itoa(fd))
				}
				unix.Close(fd)
			}
		}
		if flags&unix.MSG_CTRUNC != 0 {
			return errors.New("recvmsg MSG_PEEK: the message was cut")
		}
		return nil
	})
}

// Untold returns how many bytes a read of all events of an inotify instance of the
// thread behind pidfd would give.
func Untold(pidfd, fd int) (n int, err error) {
	err = asked(pidfd, fd, func(own int) error {
		if n, err = unix.IoctlGetInt(own, unix.TIOCINQ); err != nil { // FIONREAD
			return fmt.Errorf("ioctl FIONREAD: %w", err)
		}
		return nil
	})
	return n, err
}

// asked calls ask with a descriptor of another thread.
func asked(pidfd, fd int, ask func(own int) error) error {
	own, err := unix.PidfdGetfd(pidfd, fd, 0)
	if err != nil {
		return fmt.Errorf("pidfd_getfd: %w", err)
	}
	defer unix.Close(own)
	return ask(own)
}

// Major and Minor are the parts of a device number.
func Major(dev uint64) uint32 { return unix.Major(dev) }

// Minor is the lower part of a device number.
func Minor(dev uint64) uint32 { return unix.Minor(dev) }

// kcmpVM is KCMP_VM of kcmp(2).
const kcmpVM = 1

// SameMemory reports whether a process has our own memory: CLONE_VM. A kernel without
// kcmp(2) cannot tell.
func SameMemory(pid int) bool {
	r, _, e := unix.Syscall6(unix.SYS_KCMP, uintptr(unix.Getpid()), uintptr(pid), kcmpVM, 0, 0, 0)
	return e == 0 && r == 0
}
