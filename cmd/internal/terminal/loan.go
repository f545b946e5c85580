package terminal

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"time"
)

// Loan is the terminal of a person lent to a program that has one of its own, from Take to Return.
// The program's output there passes through a [filter] unless the reader asked for all of it,
// and nothing else of Palyra writes to the terminal meanwhile: it's held, as by a question. If
// standard input is the same terminal, its keys are the program's, those for signals too, and no
// key that was typed before Take or is left at Return goes to anyone.
//
// Return gives the terminal back as it was, and so does [Loan.Rescue] before a process ends
// otherwise. A process that is killed can't.
type Loan struct {
	ctx   context.Context
	end   func()   // of ctx
	tty   *os.File // opened by us where that works, for deadlines
	raw   bool
	keys  bool // standard input is this terminal
	sizes chan [2]uint16
	done  chan struct{}         // closed by Return
	once  sync.Once             // of that
	saved atomic.Pointer[modes] // as they were; nil: they're no others now

	mu      sync.Mutex
	ready   sync.Cond // mu; state has changed
	state   loan      // guarded by mu
	hold    *hold     // guarded by mu; nil: there are no locks
	filter  filter    // guarded by mu
	signals chan os.Signal
	heeding sync.WaitGroup
}

type loan int

const (
	before   loan = iota
	taken         // the terminal is the program's
	away          // the process is in the background
	returned      // for good
)

// Lend prepares a loan of the terminal that w writes to; it's nil if w writes to none. in is the
// standard input, and raw as in Raw.
func Lend(ctx context.Context, in io.Reader, w io.Writer, raw bool) *Loan {
	g, ok := w.(*Writer)
	if !ok || g.dev == nil {
		return nil
	}
	out, ok := g.to.(*os.File)
	if !ok {
		return nil
	}
	l := &Loan{tty: out, raw: raw, sizes: make(chan [2]uint16, 1), done: make(chan struct{}), signals: make(chan os.Signal, 8)}
	l.ctx, l.end = context.WithCancel(ctx)
	l.ready.L = &l.mu
	if own, err := reopen(out); err != nil {
		return l
	} else if own.SetReadDeadline(time.Time{}) != nil {
		own.Close()
		return l
	} else {
		l.tty = own
	}
	f, ok := in.(*os.File)
	l.keys = ok && sameTerminal(f, out)
	return l
}

// Keys reports whether the keys of the terminal are the program's; then Loan is its input.
func (l *Loan) Keys() bool { return l.keys }

// Sizes returns the sizes that the terminal takes, rows and columns.
func (l *Loan) Sizes() <-chan [2]uint16 { return l.sizes }

// Take waits until no question is on the terminal and the process is in the foreground, and takes
// it.
func (l *Loan) Take() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state != before {
		return nil
	}
	signal.Notify(l.signals, screenSignals...)
	if err := l.enterLocked(); err != nil {
		signal.Stop(l.signals)
		return err
	}
	l.heeding.Go(l.heed)
	return nil
}

// enterLocked takes the terminal. It waits with mu held: nothing may be written or read meanwhile.
func (l *Loan) enterLocked() error {
	for l.keys && !foreground(l.tty) {
		if err := wait(l.ctx); err != nil {
			return err
		}
	}
	if l.hold == nil {
		h, err := take(l.ctx, l.tty)
		if errors.Is(err, errHeld) {
			return err
		}
		l.hold = h // nil where no one has locks, so no one asks there either
	}
	if l.keys {
		saved, err := modesOf(l.tty)
		if err == nil {
			discard(l.tty)
			l.saved.Store(&saved)
			err = setModes(l.tty, through(saved))
		}
		if err != nil {
			l.saved.Store(nil)
			l.releaseLocked()
			return err
		}
		_ = l.tty.SetReadDeadline(time.Time{})
	}
	l.state = taken
	l.ready.Broadcast()
	l.resized()
	return nil
}

// leaveLocked gives the terminal back.
func (l *Loan) leaveLocked(to loan) {
	if l.state == taken {
		if undo := l.filter.reset(); undo != "" && !l.raw {
			_ = l.tty.SetWriteDeadline(time.Now().Add(lastWrite))
			_, _ = io.WriteString(l.tty, undo) // a terminal that is gone can't be helped
			_ = l.tty.SetWriteDeadline(time.Time{})
		}
		if l.keys {
			_ = l.tty.SetReadDeadline(time.Unix(1, 0))
			discard(l.tty)
			l.giveBack()
		}
	}
	l.releaseLocked()
	l.state = to
	l.ready.Broadcast()
}

func (l *Loan) releaseLocked() {
	if l.hold != nil {
		l.hold.close()
		l.hold = nil
	}
}

// giveBack sets the modes that the terminal had.
func (l *Loan) giveBack() {
	if saved := l.saved.Swap(nil); saved != nil {
		_ = setModes(l.tty, *saved)
	}
}

// Return gives the terminal back for good, without waiting to have it. Nothing is read or written
// afterwards.
func (l *Loan) Return() {
	l.end()                                               // of a wait with mu held
	_ = l.tty.SetWriteDeadline(time.Now().Add(lastWrite)) // and of a write
	l.mu.Lock()
	if l.state != returned {
		l.leaveLocked(returned)
	}
	l.mu.Unlock()
	l.once.Do(func() {
		signal.Stop(l.signals)
		close(l.done)
	})
	l.heeding.Wait()
}

// Rescue gives the terminal's modes back in a process that is about to end, whatever its other
// goroutines do.
func (l *Loan) Rescue() {
	if !l.mu.TryLock() { // one of them may wait for the terminal for ever
		l.giveBack()
		return
	}
	defer l.mu.Unlock()
	if l.state != returned {
		l.leaveLocked(returned)
	}
}

// heed does what signals ask for, until Return.
func (l *Loan) heed() {
	for {
		select {
		case <-l.done:
			return
		case sig := <-l.signals:
			switch deed(sig) {
			case stops:
				l.again(true)
			case goesOn:
				l.again(false)
			case redraws:
				l.resized()
			}
		}
	}
}

// again takes the terminal again, after the process has gone on. stop has it stop first.
func (l *Loan) again(stop bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.state == returned {
		return
	}
	if stop {
		l.leaveLocked(away)
		halt()
	} else if l.state == taken { // it was stopped without a word, and a shell has set its own modes
		if !l.keys || foreground(l.tty) {
			if saved := l.saved.Load(); saved != nil {
				_ = setModes(l.tty, through(*saved))
			}
			return
		}
		l.state = away
		l.saved.Store(nil) // the shell's are in force
		l.releaseLocked()
	}
	if l.enterLocked() != nil {
		l.leaveLocked(returned)
	}
}

// resized tells the size, the last one only.
func (l *Loan) resized() {
	rows, columns := size(l.tty)
	now := [2]uint16{uint16(min(rows, 1<<12)), uint16(min(columns, 1<<12))}
	for {
		select {
		case l.sizes <- now:
			return
		default:
		}
		select {
		case <-l.sizes:
		default:
		}
	}
}

// Read returns keys. At the end of the loan it is io.EOF.
func (l *Loan) Read(b []byte) (int, error) {
	for {
		l.mu.Lock()
		for l.state != taken && l.state != returned {
			l.ready.Wait()
		}
		over := l.state == returned
		l.mu.Unlock()
		if over {
			return 0, io.EOF
		}
		n, err := l.tty.Read(b)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		return n, err
	}
}

// Write writes what the program wrote.
func (l *Loan) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.state != taken {
		if l.state == returned {
			return 0, os.ErrClosed
		}
		l.ready.Wait()
	}
	text := b
	if !l.raw {
		text = l.filter.pass(b)
	}
	if _, err := l.tty.Write(text); err != nil {
		return 0, err
	}
	return len(b), nil
}
