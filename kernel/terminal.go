package kernel

import (
	"errors"
	"io"
	"os"
	"sync"
	"time"

	"palyra/internal/fault"
	"palyra/isolate"
)

// terminal is our side of a call's terminal. All output is one stream, that of standard output.
type terminal struct {
	ours, theirs *os.File // of isolate.TerminalLine
	input        io.Reader
	sizes        <-chan [2]uint16

	gone   chan struct{} // closed by release: no process of the run is left
	last   bool          // the reader's: it has looked once more since
	over   chan struct{} // closed by close
	once   sync.Once
	master *os.File // guarded by streams.mu; nil until the runner has handed it over
	closed bool     // guarded by streams.mu
}

// typeEnd is the key for the end of input (VEOF, termios(3)), which programs seldom change.
const typeEnd = 4

// openTerminal makes streams that wait for a terminal. input is typed there, and then its end. The
// caller closes the result.
func openTerminal(output io.Writer, input io.Reader, sizes <-chan [2]uint16, limit int64) (*streams, error) {
	t := &terminal{input: input, sizes: sizes, gone: make(chan struct{}), over: make(chan struct{})}
	var err error
	if t.ours, t.theirs, err = isolate.TerminalLine(); err != nil {
		return nil, fault.New(fault.Unavailable, "resource_exhausted", "make a terminal", err)
	}
	s := &streams{tty: t, giveUp: make(chan struct{}), limit: limit}
	for i := range s.out {
		s.out[i] = newOutput(nil)
	}
	s.out[0].to = output
	return s, nil
}

// readTerminal reads the output until the run is over and no process has the terminal.
func (s *streams) readTerminal() {
	t, o := s.tty, s.out[0]
	master, err := isolate.TakeTerminal(t.ours)
	if err != nil {
		o.held = err != io.EOF
		return
	}
	s.mu.Lock()
	if t.closed {
		master.Close()
	}
	t.master, o.r = master, master
	if !o.until.IsZero() { // drain came before
		_ = master.SetReadDeadline(time.Unix(1, 0))
	}
	s.mu.Unlock()
	go t.typeAll(master) // ends with the terminal, or when a stuck reader lets it
	if t.sizes != nil {
		go t.resize(master)
	}
	s.read(o, s.out[1])
}

// typeAll types the input, and its end until the terminal is closed. In a line that isn't finished
// the first key for the end only hands the line over. A program that doesn't read is waited for,
// until the terminal is closed.
func (t *terminal) typeAll(master *os.File) {
	last := byte('\n')
	buf := make([]byte, 4<<10)
	for {
		n, err := t.input.Read(buf)
		if n > 0 {
			last = buf[n-1]
			if _, werr := master.Write(buf[:n]); werr != nil {
				return
			}
		}
		if err != nil {
			break
		}
	}
	end := []byte{typeEnd, typeEnd}
	if last == '\n' || last == '\r' || last == typeEnd {
		end = end[:1]
	}
	for wait := firstEnd; ; wait = min(2*wait, lastEnd) {
		if _, err := master.Write(end); err != nil {
			return
		}
		end = end[:1]
		select {
		case <-t.over:
			return
		case <-time.After(wait):
		}
	}
}

// The end of input is typed again after a while, less and less often: a program that reads on finds
// it again, as behind the end of a pipe, and one that has changed the terminal's modes meanwhile
// has lost the first (n_tty_set_termios).
const (
	firstEnd = 200 * time.Millisecond
	lastEnd  = 10 * time.Second
)

func (t *terminal) resize(master *os.File) {
	for {
		select {
		case size, open := <-t.sizes:
			if !open {
				return
			}
			_ = setSize(master, size) // of a terminal that is closing
		case <-t.over:
			return
		}
	}
}

// lookAgain is how often a terminal is looked at that no process has open.
const lookAgain = 20 * time.Millisecond

// goesOn reports whether to read on after an error. That no process has the terminal open isn't its
// end before the run's: a program can close it, and open it again.
func (t *terminal) goesOn(err error) bool {
	if !errors.Is(err, errEnded) || t.last {
		return false
	}
	wait := time.NewTimer(lookAgain)
	defer wait.Stop()
	select {
	case <-t.gone:
		t.last = true
	case <-wait.C:
	}
	return true
}

func (s *streams) closeTerminal() {
	t := s.tty
	t.once.Do(func() { close(t.over) })
	t.ours.Close()
	t.theirs.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.closed = true; t.master != nil {
		t.master.Close()
	}
}
