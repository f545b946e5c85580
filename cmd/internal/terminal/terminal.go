// Package terminal is how the commands of palyra and palyra-ctl write to a terminal, and
// ask on one.
//
//	stdout := terminal.Guard(ctx, os.Stdout) // all that the process writes there
//	dev, err := terminal.Open(ctx, "/dev/tty")
//	defer dev.Close()
//	answer, err := dev.Person("alice").Ask(ctx, request)
//
// # Contract
//
// Text that goes to a terminal through a [Writer] holds no control character but line ends
// and tabs, and nothing that reorders or hides text: such characters are spelled like "cat
// -v" spells them, or as \u and \x. Output to a file or pipe stays the same, byte for byte.
//
// While a [Device] is open, no other process of Palyra writes to the same terminal: each
// Writer waits. A device holds the terminal by a lock that the kernel takes back when the
// process dies, so no Writer waits for a dead one. A Writer whose ctx ends stops waiting,
// and fails. The wait is backpressure to the program that writes the output. Of two
// questions on one terminal the second waits for the first.
//
// A program with a terminal of its own gets the person's for a while, as a [Loan].
//
// # What it does not protect against
//
// Other programs that may write to the terminal, or type on it: no reader can tell them
// from the person. And a terminal that takes printable text for commands.
package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"palyra/authz/approval"
)

// errHeld is the error of a Writer whose time ended while the terminal was held.
var errHeld = errors.New("a question is on the terminal")

// poll is how often a waiter looks for the terminal. A person doesn't notice it, and a
// context can't end the kernel's own wait.
const poll = 20 * time.Millisecond

// piece is the size of one write, in bytes: a question waits for no more.
const piece = 32 << 10

// Writer writes to a standard stream. It is safe for concurrent use.
type Writer struct {
	ctx context.Context
	to  io.Writer
	raw bool
	dev *stream // nil: not a terminal, and everything goes through

	mu   sync.Mutex
	tail []byte // begins a character, or a line end, that has not ended; guarded by mu
}

// Guard returns the process's Writer to a standard stream. ctx ends the wait for a held
// terminal.
func Guard(ctx context.Context, f *os.File) *Writer {
	return &Writer{ctx: ctx, to: f, dev: streamOf(f)}
}

// Raw returns a writer to the same stream that escapes nothing. The reader of the terminal
// asked for that; it still waits for questions. Raw returns a w that is no Writer as it is.
func Raw(w io.Writer) io.Writer {
	if g, ok := w.(*Writer); ok {
		return &Writer{ctx: g.ctx, to: g.to, dev: g.dev, raw: true}
	}
	return w
}

// Columns returns the width of the terminal that w writes to; 0 if it writes to none.
func Columns(w io.Writer) int {
	if g, ok := w.(*Writer); ok {
		w = g.to
	}
	f, ok := w.(*os.File)
	if !ok || streamOf(f) == nil {
		return 0
	}
	_, n := size(f)
	return n
}

// Size returns the rows and columns of the first terminal among a Writer and a file, and the usual
// ones without any.
func Size(w io.Writer, r io.Reader) (rows, columns int) {
	files := make([]*os.File, 2)
	if g, ok := w.(*Writer); ok {
		files[0], _ = g.to.(*os.File)
	}
	files[1], _ = r.(*os.File)
	for _, f := range files {
		if f != nil && streamOf(f) != nil {
			if rows, columns = size(f); rows > 0 && columns > 0 {
				return rows, columns
			}
		}
	}
	return 24, 80
}

// Write implements io.Writer.
func (w *Writer) Write(b []byte) (int, error) {
	if w.dev == nil {
		return w.to.Write(b)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for done := 0; done < len(b); {
		part := b[done:min(done+piece, len(b))]
		text := part
		if !w.raw {
			text, w.tail = visible(append(w.tail, part...), false)
		}
		if err := w.put(text); err != nil {
			return done, err
		}
		done += len(part)
	}
	return len(b), nil
}

// Flush writes an unfinished character, of which bytes are missing.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	text, _ := visible(w.tail, true)
	w.tail = nil
	if len(text) == 0 {
		return nil
	}
	return w.put(text)
}

// put writes text as soon as no question is on the terminal.
func (w *Writer) put(text []byte) error {
	leave, err := w.dev.enter(w.ctx)
	if err != nil {
		return err
	}
	defer leave()
	_, err = w.to.Write(text)
	return err
}

// visible spells text so that it only adds lines to a terminal. It also returns the bytes
// of an incomplete character, unless the text ends there.
func visible(text []byte, end bool) (out, tail []byte) {
	out = make([]byte, 0, len(text)+len(text)/8)
	for i := 0; i < len(text); {
		r, n := utf8.DecodeRune(text[i:])
		rest := text[i:]
		switch {
		case !end && (!utf8.FullRune(rest) || r == '\r' && len(rest) == 1):
			return out, append([]byte(nil), rest...)
		case r == '\n' || r == '\t':
			out = append(out, byte(r))
		case r == '\r' && len(rest) > 1 && rest[1] == '\n': // a line end of other systems
		case r < ' ':
			out = append(out, '^', byte(r)+'@')
		case r == 0x7f:
			out = append(out, "^?"...)
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, text[i])
		case shows(r):
			out = append(out, rest[:n]...)
		default:
			out = fmt.Appendf(out, `\u%04x`, r)
		}
		i += n
	}
	return out, nil
}

// shows reports whether a terminal shows a character, where it stands.
func shows(r rune) bool {
	return unicode.IsPrint(r) && !unicode.In(r, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector)
}

// Device is the controlling terminal, held for a question.
type Device struct {
	tty  *os.File
	hold *hold // nil: it is no terminal
}

// Open opens a terminal and waits until no other process of Palyra uses it.
func Open(ctx context.Context, path string) (*Device, error) {
	tty, err := os.OpenFile(path, os.O_RDWR|noctty, 0)
	if err != nil {
		return nil, errors.New("no controlling terminal to ask on")
	}
	d := &Device{tty: tty}
	if d.hold, err = take(ctx, tty); err != nil {
		tty.Close()
		return nil, err
	}
	return d, nil
}

// Person returns the approver who sits at the terminal.
func (d *Device) Person(name string) *approval.Terminal {
	t := &approval.Terminal{In: d.tty, Out: d.tty, Name: name}
	if d.hold != nil {
		t.Size = func() (rows, columns int) { return size(d.tty) }
		t.Discard = func() { discard(d.tty) }
	}
	return t
}

// Size returns the rows and columns of the terminal now.
func (d *Device) Size() (rows, columns int) { return size(d.tty) }

// Close gives the terminal back.
func (d *Device) Close() error {
	if d.hold != nil {
		d.hold.close()
	}
	return d.tty.Close()
}

// wait returns after a while, or with errHeld at the end of ctx.
func wait(ctx context.Context) error {
	t := time.NewTimer(poll)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return errHeld
	case <-t.C:
		return nil
	}
}
