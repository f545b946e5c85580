package handover

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"syscall"
	"time"

	"palyra/isolate/internal/sys"
)

// Pair returns the two ends of a call's connection, closed on exec: Files.Egress of isolate, and
// palyra-egress's, which doesn't block.
func Pair() (cell, egress *os.File, err error) {
	egress, cell, err = sys.Pair("egress")
	return cell, egress, err
}

// Send sends the sockets, which stay the caller's. It never waits: on a fresh connection there is
// room for all of them, and on another it's an error.
func Send(conn *os.File, s *Sockets) error {
	files := s.files()
	h := head{tcp4: len(s.TCP4), tcp6: len(s.TCP6)}
	if _, err := parseHead(h.append(nil), nil, 0); err != nil || s.UDP == nil {
		return fmt.Errorf("send the sockets of a cell: %d over IPv4 and %d over IPv6: want 1 to %d and at most as many", len(s.TCP4), len(s.TCP6), MaxTCP)
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("send the sockets of a cell: %w", err)
	}
	for ; h.first < h.all(); h.first += maxFiles {
		var fds []int
		for _, f := range files[h.first : h.first+h.here()] {
			fds = append(fds, int(f.Fd()))
		}
		cerr := raw.Control(func(fd uintptr) { err = sys.TrySendPacket(int(fd), h.append(nil), fds) })
		runtime.KeepAlive(files)
		if err = errors.Join(cerr, err); err != nil {
			return fmt.Errorf("send the sockets of a cell: %w", err)
		}
	}
	return nil
}

// Receive takes the sockets of a call, which don't block then. conn mustn't block either, as
// [Pair]'s; it stays the caller's. Receive returns when ctx is done, or with io.EOF when the other
// end is closed: palyra-cell has given the call up, and palyra too. Everything else than what Send
// sends is an error: other descriptors than fresh sockets of the right kinds, sockets of different
// namespaces, and sockets of the receiver's own.
func Receive(ctx context.Context, conn *os.File) (_ *Sockets, err error) {
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, fmt.Errorf("receive the sockets of a cell: %w", err)
	}
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })()
	var fds []int
	defer func() {
		if err != nil {
			sys.CloseAll(fds)
			if ctx.Err() != nil {
				err = context.Cause(ctx)
			}
			err = fmt.Errorf("receive the sockets of a cell: %w", err)
		}
	}()
	var h *head
	for h == nil || len(fds) < h.all() {
		b, got, err := receive(conn)
		fds = append(fds, got...)
		if err != nil {
			return nil, err
		}
		next, err := parseHead(b, h, len(fds)-len(got))
		if err != nil {
			return nil, err
		}
		if len(got) != next.here() {
			return nil, fmt.Errorf("%w: %d descriptors, want %d", errMessage, len(got), next.here())
		}
		h = &next
	}
	if err := check(fds, h.tcp4); err != nil {
		return nil, err
	}
	for _, fd := range fds {
		if err := syscall.SetNonblock(fd, true); err != nil {
			return nil, fmt.Errorf("fcntl F_SETFL: %w", err)
		}
	}
	s := &Sockets{UDP: os.NewFile(uintptr(fds[0]), "egress-udp")}
	for i, fd := range fds[1:] {
		if i < h.tcp4 {
			s.TCP4 = append(s.TCP4, os.NewFile(uintptr(fd), "egress-tcp4"))
		} else {
			s.TCP6 = append(s.TCP6, os.NewFile(uintptr(fd), "egress-tcp6"))
		}
	}
	return s, nil
}

// receive waits for a message.
func receive(conn *os.File) (b []byte, fds []int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, nil, err
	}
	b = make([]byte, headSize)
	var n int
	cerr := raw.Read(func(fd uintptr) bool {
		n, fds, err = sys.ReceivePacket(int(fd), b, make([]byte, sys.RightsSpace(maxFiles)))
		return !errors.Is(err, syscall.EAGAIN)
	})
	switch {
	case cerr != nil:
		return nil, fds, cerr
	case err != nil:
		return nil, fds, err
	case n == 0:
		return nil, fds, io.EOF
	}
	return b[:n], fds, nil
}

// check compares sockets with what Send is given: one for UDP, tcp4 for TCP over IPv4, the rest
// over IPv6, each as it was made, of one network that isn't this process's.
func check(fds []int, tcp4 int) error {
	own, err := sys.NetworkCookie(-1)
	if err != nil {
		return err
	}
	var all uint64
	for i, fd := range fds {
		family, kind := syscall.AF_INET, syscall.SOCK_STREAM
		switch {
		case i == 0:
			kind = syscall.SOCK_DGRAM
		case i > tcp4:
			family = syscall.AF_INET6
		}
		if err := sys.CheckFresh(fd, family, kind); err != nil {
			return fmt.Errorf("socket %d: %w", i, err)
		}
		cookie, err := sys.NetworkCookie(fd)
		if err != nil {
			return fmt.Errorf("socket %d: %w", i, err)
		}
		if i == 0 {
			all = cookie
		}
		if cookie != all || cookie == own {
			return fmt.Errorf("socket %d: its network is another one than the cell's", i)
		}
	}
	return nil
}

// Ready tells palyra-cell that the program may start.
func Ready(conn *os.File) error { return answer(conn, ready) }

// Refuse tells palyra-cell that the program may not start: for a reason, which is a code.
func Refuse(conn *os.File, reason string) error {
	text, err := refusal(reason)
	if err != nil {
		return err
	}
	return answer(conn, text)
}

func answer(conn *os.File, text string) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("answer a cell: %w", err)
	}
	cerr := raw.Control(func(fd uintptr) { err = sys.TrySendPacket(int(fd), []byte(text), nil) })
	if err = errors.Join(cerr, err); err != nil {
		return fmt.Errorf("answer a cell: %w", err)
	}
	return nil
}
