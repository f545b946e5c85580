//go:build !linux

package kernel

import (
	"errors"
	"os"
	"time"
)

var errNothingYet = errors.New("nothing there yet")

// intake is our end of a pipe that a program writes to: no program is run here,
// but the gate is built and tested.
type intake struct{ r *os.File }

func newIntake() (intake, *os.File, error) {
	r, w, err := os.Pipe()
	return intake{r}, w, err
}

// ReadNow leaves it to Read.
func (*intake) ReadNow([]byte) (int, error) { return 0, errNothingYet }

func (*intake) wait() {}

func (i *intake) Read(b []byte) (int, error) { return i.r.Read(b) }

// SetReadDeadline bounds all waiting of Read where pipes have deadlines.
func (i *intake) SetReadDeadline(t time.Time) { _ = i.r.SetReadDeadline(t) }

func (i *intake) Close() { i.r.Close() }

func feedPipe() (r, w *os.File, err error) { return os.Pipe() }
