//go:build !linux

package kernel

import (
	"errors"
	"os"
	"sync"
	"time"
)

var errNothingYet = errors.New("nothing there yet")

// intake is our end of a pipe that a program writes to: no program is run here,
// but the gate is built and tested. What nobody waits for is not read.
type intake struct {
	r *os.File

	mu    sync.Mutex
	ahead []byte // guarded by mu: read, for ReadNow
	err   error  // likewise: how reading ended
}

func newIntake() (*intake, *os.File, error) {
	r, w, err := os.Pipe()
	return &intake{r: r}, w, err
}

func (i *intake) ReadNow(b []byte) (int, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	n := copy(b, i.ahead)
	i.ahead = i.ahead[n:]
	switch {
	case n > 0:
		return n, nil
	case i.err != nil:
		return 0, i.err
	}
	return 0, errNothingYet
}

func (i *intake) Unread() int64 {
	i.mu.Lock()
	defer i.mu.Unlock()
	return int64(len(i.ahead))
}

func (i *intake) poll() error { return nil }

func (i *intake) Wait(try func() bool) error {
	for !try() {
		b := make([]byte, chunk)
		n, err := i.r.Read(b)
		i.mu.Lock()
		i.ahead, i.err = b[:n], err
		i.mu.Unlock()
	}
	return nil
}

// SetReadDeadline bounds all waiting of Read where pipes have deadlines.
func (i *intake) SetReadDeadline(t time.Time) { _ = i.r.SetReadDeadline(t) }

func (i *intake) Close() { i.r.Close() }

func feedPipe() (r, w *os.File, err error) { return os.Pipe() }
