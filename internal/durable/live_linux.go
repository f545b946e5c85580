package durable

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"palyra/internal/fault"
)

// Of fcntl(2), since Linux 3.15; the same on all platforms.
const (
	getLock = 36 // F_OFD_GETLK
	setLock = 37 // F_OFD_SETLK
)

// byteOf returns the byte that stands for a key: 62 bits of its SHA-256, which in practice
// no two keys share.
func byteOf(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:]) >> 2)
}

// fcntl calls fcntl(2) for the byte of a key.
func (l *Live) fcntl(f *os.File, cmd int, how int16, key string) (*syscall.Flock_t, error) {
	fl := &syscall.Flock_t{Type: how, Start: byteOf(key), Len: 1}
	for {
		err := syscall.FcntlFlock(f.Fd(), cmd, fl)
		if err != syscall.EINTR {
			return fl, os.NewSyscallError("fcntl", err)
		}
	}
}

// Mark says that the work of this key goes on, until Unmark, Close, or the end of
// this process. A key that is marked elsewhere is fault.Busy.
func (l *Live) Mark(key string) error {
	_, err := l.fcntl(l.f, setLock, syscall.F_WRLCK, key)
	op := fmt.Sprintf("mark work in %q", l.path)
	if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
		return fault.New(fault.Busy, "locked", op, err)
	}
	return Fault(op, err)
}

// Unmark takes the mark of a key back.
func (l *Live) Unmark(key string) {
	// Only a lack of memory could prevent that, and then Close does it.
	_, _ = l.fcntl(l.f, setLock, syscall.F_UNLCK, key)
}

// Marked returns which of these keys are marked, by this process or another.
func (l *Live) Marked(keys []string) (map[string]bool, error) {
	// It needs a description of its own: the one that has the marks doesn't see them.
	g, err := OpenGate(l.path)
	if err != nil {
		return nil, err
	}
	defer g.Close()
	out := make(map[string]bool)
	for _, k := range keys {
		fl, err := l.fcntl(g.f, getLock, syscall.F_WRLCK, k)
		if err != nil {
			return nil, Fault(fmt.Sprintf("look for work in %q", l.path), err)
		}
		if fl.Type != syscall.F_UNLCK {
			out[k] = true
		}
	}
	return out, nil
}
