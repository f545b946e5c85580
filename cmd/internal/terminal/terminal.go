// Package terminal is what the commands of palyra and palyra-ctl have in common
// where they meet a terminal: what they write to one, and how they ask on one.
//
//	stdout := terminal.Guard(ctx, os.Stdout) // all that the process writes there
//	dev, err := terminal.Open(ctx, "/dev/tty")
//	defer dev.Close()
//	answer, err := dev.Person("alice").Ask(ctx, request)
//
// # Contract
//
// Text that goes to a terminal through a [Writer] holds no control character but
// line ends and tabs, and nothing that reorders or hides text: such characters are
// spelled like "cat -v" spells them, or as \u and \x. Output to a file or pipe
// stays as it was, byte for byte.
//
// While a [Device] is open, no other process of Palyra writes to the same terminal:
// each Writer waits. A device holds the terminal by a lock that the kernel takes
// back when the process dies, so nothing waits for a dead one; a Writer whose ctx
// ends stops waiting, and fails. The wait is backpressure to the program whose
// output it is. Of two questions on one terminal the second waits for the first.
//
// # What it does not protect against
//
// Other programs that may write to the terminal, or type on it: they are the
// person, as far as anybody can tell. And a terminal that takes printable text
// for commands.
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

// poll is how often one who waits for the terminal looks. A person does not
// notice it, and the kernel's own wait cannot be ended by a context.
const poll = 20 * time.Millisecond

// piece is how much is written at once, in bytes: a question waits for no more.
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

// Guard returns what the process writes to a standard stream with. ctx ends the
// wait for a terminal that is held.
func Guard(ctx context.Context, f *os.File) *Writer {
	return &Writer{ctx: ctx, to: f, dev: streamOf(f)}
}

// Raw returns a writer to the same stream that escapes nothing. The reader of
// the terminal asked for that; it waits for questions all the same. A w that is no
// Writer is returned as it is.
func Raw(w io.Writer) io.Writer {
	if g, ok := w.(*Writer); ok {
		return &Writer{ctx: g.ctx, to: g.to, dev: g.dev, raw: true}
	}
	return w
}

// Columns is how wide the terminal is that w writes to; 0: it writes to none.
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

// Flush writes what a program left unfinished: a character of which bytes are missing.
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

// visible spells text so that it only adds lines to a terminal, and returns what
// is left of a character whose end is not there yet, unless it is the end.
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

// Open opens a terminal and waits until nothing else of Palyra uses it.
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

// Person returns who sits there.
func (d *Device) Person(name string) *approval.Terminal {
	t := &approval.Terminal{In: d.tty, Out: d.tty, Name: name}
	if d.hold != nil {
		t.Rows, t.Columns = size(d.tty)
		t.Discard = func() { discard(d.tty) }
	}
	return t
}

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
