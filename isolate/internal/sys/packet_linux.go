package sys

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// The calls below move messages over a SOCK_SEQPACKET socket that blocks. The
// thread sleeps in the kernel and is what the kernel wakes: nobody else has to
// run first, as somebody would who waits for many descriptors.

// SendPacket sends one message with descriptors. A peer that has gone is an error
// (EPIPE) and no signal.
func SendPacket(fd int, msg []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(fd, msg, oob, nil, unix.MSG_NOSIGNAL)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sendmsg: %w", err)
		}
		return nil
	}
}

// TrySendPacket sends one message with descriptors, or is an error (EAGAIN) where that would wait.
func TrySendPacket(fd int, msg []byte, fds []int) error {
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	for {
		_, err := unix.SendmsgN(fd, msg, oob, nil, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("sendmsg: %w", err)
		}
		return nil
	}
}

// RightsSpace is how much ReceivePacket needs for n descriptors.
func RightsSpace(n int) int { return unix.CmsgSpace(4 * n) }

// ReceivePacket receives one message into buf and its descriptors, closed on
// exec, through oob; n is 0 at the end. A message that does not fit is an error.
func ReceivePacket(fd int, buf, oob []byte) (n int, fds []int, err error) {
	for {
		var oobn, flags int
		n, oobn, flags, _, err = unix.Recvmsg(fd, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && oobn > 0 {
			fds, err = rights(oob[:oobn])
		}
		if err == nil && flags&(unix.MSG_TRUNC|unix.MSG_CTRUNC) != 0 {
			err = unix.EMSGSIZE
		}
		if err != nil {
			CloseAll(fds)
			return 0, nil, fmt.Errorf("recvmsg: %w", err)
		}
		return n, fds, nil
	}
}

// rights returns the descriptors of control messages.
func rights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

// Shutdown ends a connection in both directions and wakes whoever waits in it.
func Shutdown(fd int) { unix.Shutdown(fd, unix.SHUT_RDWR) }

// SetBlocking makes the description behind fd block.
func SetBlocking(fd int) error {
	if err := unix.SetNonblock(fd, false); err != nil {
		return fmt.Errorf("fcntl F_SETFL: %w", err)
	}
	return nil
}

// CloseAll closes raw descriptors; a negative one is nothing.
func CloseAll(fds []int) {
	for _, fd := range fds {
		Close(fd)
	}
}

// Borrow duplicates fd to a high number as a file of its own.
func Borrow(fd int, name string) (*os.File, error) {
	n, err := DupHigh(fd)
	if err != nil {
		return nil, err
	}
	return file(n, name), nil
}

// OpenNull opens /dev/null for reading.
func OpenNull() (int, error) { return openAt(AtCWD, os.DevNull, unix.O_RDONLY) }

// ReadAll reads all of a file of at most limit bytes, from its beginning.
func ReadAll(fd, limit int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("fstat: %w", err)
	}
	if st.Size > int64(limit) {
		return nil, fmt.Errorf("read %d bytes, at most %d: %w", st.Size, limit, unix.EFBIG)
	}
	b := make([]byte, st.Size)
	for n := 0; n < len(b); {
		m, err := unix.Pread(fd, b[n:], int64(n))
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err == nil && m == 0 {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return nil, fmt.Errorf("pread: %w", err)
		}
		n += m
	}
	return b, nil
}
