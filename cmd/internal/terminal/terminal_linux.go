package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// The lock of a terminal is two bytes of its device (fcntl_locking(2)). The asker
// locks the first, which keeps writers from beginning, and then the second, which
// writers share while they write. Neither starves the other.
//
// The locks are on our own open file description of the device, /dev/pts/N, and not on
// /dev/tty, which is one file for all terminals. A device that belongs to another user
// (after su) can't be opened; then the locks are the process's, on the descriptor that it
// was given.
const (
	asking  = 0
	writing = 1
)

// noctty keeps a terminal that is opened from becoming the controlling one.
const noctty = unix.O_NOCTTY

// locks are the two bytes of one terminal.
type locks struct {
	fd       int
	own      *os.File // nil: fd is not ours
	set, get int      // fcntl commands
}

func (l *locks) close() {
	if l.own != nil {
		l.own.Close() // and with the last description the locks
		return
	}
	for _, at := range []int64{asking, writing} {
		_ = l.fcntl(l.set, unix.F_UNLCK, at)
	}
}

func (l *locks) fcntl(cmd int, how int16, at int64) error {
	return unix.FcntlFlock(uintptr(l.fd), cmd, &unix.Flock_t{Type: how, Whence: io.SeekStart, Start: at, Len: 1})
}

// lock reports whether it has a byte now. Any failure but "another has it" is an error.
func (l *locks) lock(how int16, at int64) (bool, error) {
	err := l.fcntl(l.set, how, at)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) {
		return false, nil
	}
	return err == nil, err
}

// taken reports whether another has a byte.
func (l *locks) taken(at int64) bool {
	f := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: at, Len: 1}
	err := unix.FcntlFlock(uintptr(l.fd), l.get, &f)
	return err == nil && f.Type != unix.F_UNLCK
}

// locksOf returns the locks of the terminal of this number.
func locksOf(rdev uint64, paths ...string) (*locks, error) {
	for _, path := range paths {
		f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOCTTY|unix.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		if fd, ok := number(f, rdev); ok {
			return &locks{fd: fd, own: f, set: unix.F_OFD_SETLK, get: unix.F_OFD_GETLK}, nil
		}
		f.Close()
	}
	for fd := range 3 {
		var st unix.Stat_t
		if unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == rdev {
			return &locks{fd: fd, set: unix.F_SETLK, get: unix.F_GETLK}, nil
		}
	}
	return nil, fmt.Errorf("terminal %d:%d cannot be opened, so other output could not be kept from it", unix.Major(rdev), unix.Minor(rdev))
}

// devices returns the paths that may lead to the terminal of this number. Asker and writer take
// the first that does, or they wouldn't have the same lock.
func devices(rdev uint64) []string {
	minor := unix.Minor(rdev)
	return []string{fmt.Sprintf("/dev/pts/%d", minor), fmt.Sprintf("/dev/tty%d", minor), "/proc/self/fd/0", "/proc/self/fd/1", "/proc/self/fd/2", "/dev/console"}
}

// number returns f's descriptor if it is the device.
func number(f *os.File, rdev uint64) (fd int, ok bool) {
	control(f, func(n int) {
		var st unix.Stat_t
		fd, ok = n, unix.Fstat(n, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && uint64(st.Rdev) == rdev
	})
	return fd, ok
}

// control calls do with f's descriptor, and leaves it as it is: Fd would make it
// blocking.
func control(f *os.File, do func(fd int)) {
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(fd uintptr) { do(int(fd)) })
	}
}

// isTerminal reports whether f is one, and the number of its device: of /dev/tty
// that of the terminal behind it.
func isTerminal(f *os.File) (rdev uint64, ok bool) {
	control(f, func(fd int) {
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil {
			return
		}
		ok = true
		if n, err := unix.IoctlGetInt(fd, unix.TIOCGDEV); err == nil {
			rdev = uint64(uint32(n))
		}
	})
	return rdev, ok
}

// stream is a standard stream that is a terminal.
type stream struct {
	f    *os.File
	rdev uint64

	once  sync.Once
	locks *locks // nil: there are none to be had; set by once
}

func streamOf(f *os.File) *stream {
	if rdev, ok := isTerminal(f); ok {
		return &stream{f: f, rdev: rdev}
	}
	return nil
}

// enter waits until no question is on the terminal. The caller calls leave after
// a bounded piece of output.
func (s *stream) enter(ctx context.Context) (leave func(), err error) {
	s.once.Do(func() {
		// A stream that is /dev/tty isn't the device: find that as an asker does.
		control(s.f, func(fd int) {
			s.locks, _ = locksOf(s.rdev, append(devices(s.rdev), fmt.Sprintf("/proc/self/fd/%d", fd))...)
		})
	})
	l := s.locks
	if l == nil { // nor can one that asks have them
		return func() {}, nil
	}
	for {
		if !l.taken(asking) {
			got, err := l.lock(unix.F_RDLCK, writing)
			if errors.Is(err, syscall.EBADF) { // it may not be read
				got, err = l.lock(unix.F_WRLCK, writing)
			}
			if err != nil {
				return func() {}, nil // a terminal without locks: as above
			}
			leave := func() { _ = l.fcntl(l.set, unix.F_UNLCK, writing) }
			if got && !l.taken(asking) {
				return leave, nil
			}
			if got {
				leave()
			}
		}
		if err := wait(ctx); err != nil {
			return nil, err
		}
	}
}

// hold is a terminal held for a question.
type hold struct{ *locks }

// take holds the terminal. It is nil for a file that is none.
func take(ctx context.Context, tty *os.File) (*hold, error) {
	rdev, ok := isTerminal(tty)
	if !ok {
		return nil, nil
	}
	l, err := locksOf(rdev, devices(rdev)...)
	if err != nil {
		return nil, err
	}
	for _, at := range []int64{asking, writing} {
		for {
			got, err := l.lock(unix.F_WRLCK, at)
			if err == nil && !got {
				err = wait(ctx)
			}
			if err != nil {
				l.close()
				return nil, err
			}
			if got {
				break
			}
		}
	}
	return &hold{l}, nil
}

// size returns the size of the screen, or the usual one if the terminal doesn't say.
func size(tty *os.File) (rows, columns int) {
	control(tty, func(fd int) {
		if w, err := unix.IoctlGetWinsize(fd, unix.TIOCGWINSZ); err == nil {
			rows, columns = int(w.Row), int(w.Col)
		}
	})
	if rows == 0 || columns == 0 {
		return 24, 80
	}
	return rows, columns
}

// discard throws away text typed before the question.
func discard(tty *os.File) {
	control(tty, func(fd int) { _ = unix.IoctlSetInt(fd, unix.TCFLSH, unix.TCIFLUSH) })
}
