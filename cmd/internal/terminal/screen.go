package terminal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"palyra/authz/approval"
	"palyra/internal/fault"
)

// Screen is a Device as a whole, on the alternate screen of its terminal: rows replace what
// was shown, and keys are read one by one, without echo.
//
// Until Close the terminal is held, as by a question. Close gives the modes and the screen
// back as they were, and so does [Screen.Rescue] when a goroutine panics. The keys for
// interrupt, quit and stop stay signals: the caller handles the first by its ctx, the
// others come from [Screen.Signals].
//
// One goroutine owns a Screen. It lends it to another for the time of Ask.
type Screen struct {
	dev     *Device
	ctx     context.Context // of the whole screen: its end bounds every write
	stop    func() bool     // ends what waits for ctx
	saved   modes           // of the terminal, as it was
	on      atomic.Bool     // the terminal is ours
	last    string          // drawn, and still there
	signals chan os.Signal

	keys chan Key      // closed by no one; made anew by listen
	quit chan struct{} // closed by deaf
	done chan struct{} // closed by the reader of keys
}

// Key is one key. The zero Key is none.
type Key struct {
	// Name is "up", "down", "pgup", "pgdn", "home", "end", "enter", "erase", "clear" or "esc",
	// or the character of another key.
	Name string
	Err  error // the terminal is gone
}

// Row is one row of a Screen.
type Row struct {
	Text string
	Mark bool // in reverse video
}

// The commands of ECMA-48, and of xterm where it has none, that a Screen draws with.
const (
	altOn, altOff       = "\x1b[?1049h", "\x1b[?1049l"
	hide, show          = "\x1b[?25l", "\x1b[?25h"
	home, erase, below  = "\x1b[H", "\x1b[K", "\x1b[J"
	reverse, plainAgain = "\x1b[7m", "\x1b[m"
)

// Elsewhere is the hint where there is no full screen.
const Elsewhere = "palyra approvals watch --json, or palyra approvals ls and approve"

// lastWrite bounds what is written to a terminal that takes nothing, when all is over.
const lastWrite = time.Second

// Screen makes the device's terminal a Screen. term is the kind of terminal, as TERM says.
func (d *Device) Screen(ctx context.Context, term string) (*Screen, error) {
	elsewhere := func(err error) error {
		return fault.New(fault.Usage, "bad_command", "draw on terminal", err).WithHint(Elsewhere)
	}
	saved, err := modesOf(d.tty)
	switch {
	case fault.ReasonOf(err) != "":
		return nil, err
	case err != nil || d.hold == nil || d.tty.SetReadDeadline(time.Time{}) != nil:
		return nil, elsewhere(errors.New("it is no terminal"))
	case term == "" || term == "dumb":
		return nil, elsewhere(fmt.Errorf("TERM is %q: it has no full screen", term))
	}
	s := &Screen{dev: d, ctx: ctx, saved: saved, signals: make(chan os.Signal, 8)}
	s.stop = context.AfterFunc(ctx, func() { _ = d.tty.SetWriteDeadline(time.Now().Add(lastWrite)) })
	signal.Notify(s.signals, screenSignals...)
	if !foreground(d.tty) {
		s.leave() // others may have it meanwhile
	}
	if err := s.enter(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return s, nil
}

// Size returns the rows and columns of the screen now.
func (s *Screen) Size() (rows, columns int) { return s.dev.Size() }

// Signals returns the signals that concern the screen; [Screen.Heed] says what to do.
func (s *Screen) Signals() <-chan os.Signal { return s.signals }

// Keys returns the keys that are typed. The channel is another one after Flush, Ask and
// Heed.
func (s *Screen) Keys() <-chan Key { return s.keys }

// Draw replaces what is shown. Text that is no printable character is spelled as a Writer
// does, and cut at the last column. The cursor stands behind row cursor, or nowhere if that
// is negative. Of a fresh view the last row comes when all keys that were typed before have
// been thrown away.
func (s *Screen) Draw(rows []Row, cursor int, fresh bool) error {
	height, columns := s.Size()
	if len(rows) > height {
		rows = rows[:height]
	}
	var b strings.Builder
	b.WriteString(hide + home)
	at := 0   // the cursor's column
	last := 0 // where the last row begins
	for i, r := range rows {
		if i > 0 {
			b.WriteString("\r\n")
		}
		out, _ := visible([]byte(r.Text), true)
		text := fit(string(out), columns-1) // the last one would wrap
		if i == cursor {
			at = utf8.RuneCountInString(text) + 1
		}
		if r.Mark {
			text = reverse + text + plainAgain
		}
		if i == len(rows)-1 {
			last = b.Len()
		}
		b.WriteString(text + erase)
	}
	b.WriteString(below)
	if at > 0 {
		fmt.Fprintf(&b, "\x1b[%d;%dH"+show, cursor+1, at)
	}
	text := b.String()
	if text == s.last && !fresh {
		return nil
	}
	s.last = text
	if !fresh {
		return s.say(text)
	}
	if err := s.say(text[:last]); err != nil {
		return err
	}
	s.Flush()
	return s.say(text[last:])
}

// fit returns one line of a text.
func fit(text string, columns int) string {
	text = strings.NewReplacer("\n", " ", "\t", " ").Replace(text)
	n := 0
	for i := range text {
		if n == columns {
			return text[:i]
		}
		n++
	}
	return text
}

func (s *Screen) say(text string) error {
	if _, err := io.WriteString(s.dev.tty, text); err != nil {
		return fmt.Errorf("write to terminal: %w", err)
	}
	return nil
}

// Flush throws away every key that was typed until now.
func (s *Screen) Flush() {
	s.deaf()
	discard(s.dev.tty)
	s.listen()
}

// Ask lends the terminal to a question: an empty screen, lines and echo as they were. The
// keys that follow the answer are thrown away.
func (s *Screen) Ask(question func(*approval.Terminal) error) error {
	s.deaf()
	if err := setModes(s.dev.tty, s.saved); err != nil {
		return err
	}
	s.last = ""
	err := s.say(home + below + show)
	if err == nil {
		err = question(s.dev.Person(""))
	}
	err = errors.Join(err, setModes(s.dev.tty, single(s.saved)))
	s.Flush()
	return err
}

// Heed does what a signal asks for, but for the redrawing: the process stops, without the
// screen, and takes it again when it goes on. It reports whether the signal ends the
// process.
func (s *Screen) Heed(sig os.Signal) (end bool, err error) {
	s.last = ""
	switch deed(sig) {
	case ends:
		return true, nil
	case stops:
		s.leave()
		halt()
		return false, s.enter()
	case goesOn:
		return false, s.enter()
	}
	return false, nil
}

// The deeds of signals.
const (
	redraws = iota
	ends
	stops
	goesOn
)

// enter takes the screen. Without the lock, it waits for that first, and to be in the
// foreground.
func (s *Screen) enter() error {
	s.deaf()
	for s.dev.hold == nil {
		for !foreground(s.dev.tty) {
			if err := wait(s.ctx); err != nil {
				return err
			}
		}
		hold, err := take(s.ctx, s.dev.tty)
		if err != nil {
			return err
		}
		s.dev.hold = hold
	}
	if err := setModes(s.dev.tty, single(s.saved)); err != nil {
		return fmt.Errorf("set terminal modes: %w", err)
	}
	if !s.on.Swap(true) {
		if err := s.say(altOn); err != nil {
			return err
		}
	}
	s.Flush()
	return nil
}

// leave gives terminal and lock back.
func (s *Screen) leave() {
	s.deaf()
	s.restore()
	if s.dev.hold != nil {
		s.dev.hold.close()
		s.dev.hold = nil
	}
}

// restore gives the terminal back as it was. Keys typed for the screen are no input of the
// next program.
func (s *Screen) restore() {
	if !s.on.Swap(false) {
		return
	}
	// A terminal that is gone or takes nothing can't be helped.
	_ = s.dev.tty.SetWriteDeadline(time.Now().Add(lastWrite))
	_ = s.say(plainAgain + show + altOff)
	if s.ctx.Err() == nil {
		_ = s.dev.tty.SetWriteDeadline(time.Time{})
	}
	discard(s.dev.tty)
	_ = setModes(s.dev.tty, s.saved)
}

// Rescue is deferred by every goroutine that runs while a Screen is open: a panic is
// printed on the terminal as it was.
func (s *Screen) Rescue() {
	if r := recover(); r != nil {
		s.restore()
		panic(r)
	}
}

// Close gives the terminal back. The device stays open.
func (s *Screen) Close() error {
	signal.Stop(s.signals)
	s.stop()
	s.leave()
	return nil
}

// listen starts the reader of keys.
func (s *Screen) listen() {
	_ = s.dev.tty.SetReadDeadline(time.Time{}) // it can: Screen looked
	s.keys, s.quit, s.done = make(chan Key), make(chan struct{}), make(chan struct{})
	go s.read(s.keys, s.quit, s.done)
}

// deaf ends the reader of keys. The keys that it has read are lost.
func (s *Screen) deaf() {
	if s.quit == nil {
		return
	}
	close(s.quit)
	_ = s.dev.tty.SetReadDeadline(time.Unix(1, 0))
	<-s.done
	_ = s.dev.tty.SetReadDeadline(time.Time{})
	s.quit, s.keys = nil, nil
}

func (s *Screen) read(keys chan<- Key, quit <-chan struct{}, done chan<- struct{}) {
	defer close(done)
	defer s.Rescue()
	b := make([]byte, 256)
	for have := 0; ; {
		n, err := s.dev.tty.Read(b[have:])
		var typed []Key
		typed, have = decode(b[:have+n])
		if err != nil {
			typed = append(typed, Key{Err: fmt.Errorf("read from terminal: %w", err)})
		}
		for _, k := range typed {
			select {
			case keys <- k:
			case <-quit:
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// sequences are the keys that terminals spell with several bytes.
var sequences = map[string]string{
	"[A": "up", "OA": "up", "[B": "down", "OB": "down", "[5~": "pgup", "[6~": "pgdn",
	"[H": "home", "OH": "home", "[1~": "home", "[F": "end", "OF": "end", "[4~": "end",
}

// decode returns the keys that were typed, and how many bytes of an unfinished character it
// left at the beginning of b. An escape that nothing follows is the key of that name;
// sequences without a name are no key.
func decode(b []byte) (keys []Key, left int) {
	for i := 0; i < len(b); {
		c := b[i]
		rest := b[i+1:]
		switch {
		case c == 0x1b && len(rest) > 0 && (rest[0] == '[' || rest[0] == 'O'):
			n := 1
			for n < len(rest) && (rest[n] < '@' || rest[n] > '~') { // ECMA-48 5.4
				n++
			}
			n = min(n+1, len(rest))
			if name := sequences[string(rest[:n])]; name != "" {
				keys = append(keys, Key{Name: name})
			}
			i += 1 + n
			continue
		case c == 0x1b:
			keys = append(keys, Key{Name: "esc"})
		case c == '\r' || c == '\n':
			keys = append(keys, Key{Name: "enter"})
		case c == 0x7f || c == '\b':
			keys = append(keys, Key{Name: "erase"})
		case c == 0x15: // ^U
			keys = append(keys, Key{Name: "clear"})
		case c >= ' ':
			if !utf8.FullRune(b[i:]) {
				return keys, copy(b, b[i:])
			}
			r, n := utf8.DecodeRune(b[i:])
			if shows(r) && (r != utf8.RuneError || n > 1) {
				keys = append(keys, Key{Name: string(r)})
			}
			i += n
			continue
		}
		i++
	}
	return keys, 0
}
