// Package pty runs a program on a pseudo-terminal of its own, so that the demo
// and the tests can answer a prompt the way a person does: by typing.
//
// The program becomes the leader of a new session whose controlling terminal is
// the pseudo-terminal; its standard error is the terminal, standard input and
// output are whatever the caller set. That is what a person gets from
// "palyra exec ... >out": the prompt is on the terminal and nowhere else.
//
// It is for tests and the demo only; nothing that ships imports it.
package pty

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// ErrClosed is returned by Expect when the program has left the terminal and
// the text did not come.
var ErrClosed = errors.New("pty: terminal closed")

// Terminal is the person's side of a running program's terminal.
type Terminal struct {
	master *os.File
	done   chan struct{} // closed by collect when the program's side is gone

	mu      sync.Mutex
	out     bytes.Buffer  // guarded by mu: everything the program showed
	seen    int           // guarded by mu: bytes that Expect has passed
	changed chan struct{} // guarded by mu: closed and replaced when out grows
}

// Start starts cmd on a new terminal. The caller waits for cmd, then calls
// Close.
func Start(cmd *exec.Cmd) (*Terminal, error) {
	master, slave, err := open()
	if err != nil {
		return nil, err
	}
	defer slave.Close()
	cmd.Stderr = slave
	cmd.SysProcAttr = attr(2) // the child's descriptor of the terminal
	if err := cmd.Start(); err != nil {
		master.Close()
		return nil, fmt.Errorf("start on a terminal: %w", err)
	}
	t := &Terminal{master: master, done: make(chan struct{}), changed: make(chan struct{})}
	go t.collect()
	return t, nil
}

// collect copies what the program shows until its side is closed, which Linux
// reports as EIO.
func (t *Terminal) collect() {
	defer close(t.done)
	buf := make([]byte, 4096)
	for {
		n, err := t.master.Read(buf)
		t.mu.Lock()
		t.out.Write(buf[:n])
		close(t.changed)
		t.changed = make(chan struct{})
		t.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// Expect waits until the program shows text that no earlier Expect has passed
// and returns everything shown since then, text included.
func (t *Terminal) Expect(ctx context.Context, text string) (string, error) {
	for closed := false; ; {
		t.mu.Lock()
		rest := t.out.Bytes()[t.seen:]
		changed := t.changed
		if i := bytes.Index(rest, []byte(text)); i >= 0 {
			got := string(rest[:i+len(text)])
			t.seen += len(got)
			t.mu.Unlock()
			return got, nil
		}
		t.mu.Unlock()
		if closed {
			return "", fmt.Errorf("%w before %q; shown: %q", ErrClosed, text, t.Shown())
		}
		select {
		case <-changed:
		case <-t.done:
			closed = true
		case <-ctx.Done():
			return "", fmt.Errorf("wait for %q: %w; shown: %q", text, ctx.Err(), t.Shown())
		}
	}
}

// Type sends keystrokes. "\n" is the return key, "\x03" is ctrl-C.
func (t *Terminal) Type(keys string) error {
	_, err := io.WriteString(t.master, keys)
	return err
}

// Shown returns everything that the program has shown so far.
func (t *Terminal) Shown() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.String()
}

// Resize makes the screen another size and tells its programs: SIGWINCH.
func (t *Terminal) Resize(rows, columns int) error { return resize(t.master, rows, columns) }

// Modes returns the modes of the terminal (termios(3)), to be compared.
func (t *Terminal) Modes() (string, error) { return modes(t.master) }

// Close hangs the terminal up; what is left of the program's session gets
// SIGHUP. Call it after the program was waited for, to keep all of its output.
func (t *Terminal) Close() error {
	<-t.done // every writer is gone
	return t.master.Close()
}

// Hangup closes the person's side at once, whoever is still there.
func (t *Terminal) Hangup() error { return t.master.Close() }
