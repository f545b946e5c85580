package terminal

import (
	"fmt"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// filter passes on what a program writes to a terminal of its own, for the terminal of a person:
// text, and the commands of ECMA-48 and xterm that move the cursor, color, erase, scroll and switch
// to the alternate screen. It drops all others, among them whatever the terminal would answer by
// typing (status, attributes, title), and what reaches beyond the screen: clipboard, title, window,
// printer, mouse, keyboard, and strings of any kind. It erases no lines that were scrolled away.
//
// Commands come out whole or not at all, however the writes cut them. reset undoes what lasts.
type filter struct {
	state  state
	tail   []byte // of an unfinished character
	params []byte // of a control sequence
	long   int    // bytes of a string

	modes   map[string]bool // private modes that differ from reset's
	touched bool            // colors or the like may be set
	charset bool
	margins bool
	insert  bool
	tabs    bool
	keypad  bool
	shape   bool // of the cursor
}

type state int

const (
	plainText   state = iota
	afterEscape       // ESC
	inCharset         // ESC (
	inOther           // ESC and another intermediate byte
	inControl         // ESC [
	inString          // OSC, DCS, SOS, PM, APC
	afterString       // ESC in one
)

// maxString bounds what a string without an end hides, in bytes.
const maxString = 64 << 10

// maxParams bounds a control sequence, in bytes.
const maxParams = 96

// replacement stands for a byte that is no text. It has one column, as terminals show it.
const replacement = "\ufffd"

// controls are the control characters that pass.
const controls = "\a\b\t\n\r\x0e\x0f"

// finals end the control sequences that pass without a private mark or intermediate bytes:
// cursor, erase, insert, delete, scroll, repeat, tabs, colors.
const finals = "@ABCDEFGHIJKLMPSTXZ`abdefgmrsuhl"

// privateModes are those that a program may set, and what they are without it: keys of the cursor,
// reverse screen, origin, wrapping, blinking, cursor, alternate screens, brackets around pastes.
var privateModes = map[string]bool{"1": false, "5": false, "6": false, "7": true, "12": false, "25": true,
	"47": false, "1047": false, "1048": false, "1049": false, "2004": false}

// usualTabs sets a tab in each eighth column, as many as there may be columns in a tab's reach.
var usualTabs = "\x1b7\r\x1b[3g" + strings.Repeat("\x1b[8C\x1bH", 64) + "\x1b8"

// pass returns what remains of b.
func (f *filter) pass(b []byte) []byte {
	b = append(f.tail, b...)
	f.tail = nil
	out := make([]byte, 0, len(b)+8)
	for i := 0; i < len(b); {
		c := b[i]
		if f.state == plainText && c >= utf8.RuneSelf {
			if !utf8.FullRune(b[i:]) {
				f.tail = slices.Clone(b[i:])
				return out
			}
			r, n := utf8.DecodeRune(b[i:])
			out = appendShown(out, r, n)
			i += n
			continue
		}
		i++
		switch f.state {
		case plainText:
			switch {
			case c == 0x1b:
				f.state = afterEscape
			case c >= ' ' && c != 0x7f:
				out = append(out, c)
			default:
				out = f.control(out, c)
			}
		case afterEscape:
			out = f.escape(out, c)
		case inCharset:
			if f.state = plainText; strings.IndexByte("0AB", c) >= 0 {
				out, f.charset = append(out, 0x1b, '(', c), true
			} else if c < ' ' || c >= 0x7f {
				i-- // no part of it
			}
		case inOther:
			if c < ' ' || c >= '0' {
				f.state = plainText
			}
		case inControl:
			switch {
			case c >= '@' && c < 0x7f:
				f.state = plainText
				out = append(out, f.sequence(c)...)
			case c >= ' ' && c < '@':
				f.params = append(f.params[:min(len(f.params), maxParams)], c)
			case c == 0x1b:
				f.state = afterEscape
			case c == 0x18 || c == 0x1a: // CAN, SUB
				f.state = plainText
			case c >= 0x7f:
				f.state = plainText
				i-- // it ends here
			default:
				out = f.control(out, c) // as terminals take it, in the middle
			}
		case inString:
			f.long++
			switch {
			case c == 0x1b:
				f.state = afterString
			case c == '\a', c == 0x18, c == 0x1a, f.long > maxString:
				f.state = plainText
			}
		case afterString:
			if f.state = plainText; c != '\\' {
				out = f.escape(out, c)
			}
		}
	}
	return out
}

// appendShown appends a character that a terminal shows. A character that it doesn't show has no
// column.
func appendShown(out []byte, r rune, n int) []byte {
	switch {
	case r == utf8.RuneError && n == 1:
		return append(out, replacement...)
	case shows(r):
		return utf8.AppendRune(out, r)
	case unicode.In(r, unicode.Cf, unicode.Cc, unicode.Other_Default_Ignorable_Code_Point, unicode.Variation_Selector):
		return out
	}
	return append(out, replacement...)
}

func (f *filter) control(out []byte, c byte) []byte {
	if strings.IndexByte(controls, c) < 0 {
		return out
	}
	f.charset = f.charset || c == 0x0e
	return append(out, c)
}

// escape takes the byte behind ESC.
func (f *filter) escape(out []byte, c byte) []byte {
	f.state = plainText
	switch {
	case c == '[':
		f.state, f.params = inControl, f.params[:0]
	case strings.IndexByte("]PX^_", c) >= 0:
		f.state, f.long = inString, 0
	case c == '(':
		f.state = inCharset
	case c >= ' ' && c < '0':
		f.state = inOther
	case c == 0x1b:
		f.state = afterEscape
	case strings.IndexByte("78DEMH=>", c) >= 0:
		if c == '=' || c == '>' {
			f.keypad = c == '='
		}
		f.tabs = f.tabs || c == 'H'
		return append(out, 0x1b, c)
	case c >= utf8.RuneSelf:
		return append(out, replacement...)
	}
	return out
}

// sequence returns a control sequence if it passes, or what of its modes does.
func (f *filter) sequence(final byte) string {
	p := string(f.params)
	if len(p) > maxParams {
		return ""
	}
	whole := "\x1b[" + p + string(final)
	switch {
	case p == " " || len(p) == 2 && p[1] == ' ' && p[0] >= '0' && p[0] <= '6':
		if final == 'q' { // the cursor's shape
			f.shape = true
			return whole
		}
		return ""
	case p == "!" && final == 'p': // soft reset
		return whole
	case strings.HasPrefix(p, "?") && (final == 'h' || final == 'l'):
		return f.private(strings.Split(p[1:], ";"), final)
	}
	params := strings.Split(strings.ReplaceAll(p, ":", ";"), ";") // empty ones count
	if strings.Trim(p, "0123456789;:") != "" || strings.IndexByte(finals, final) < 0 || len(params) > 32 ||
		slices.ContainsFunc(params, func(n string) bool { return len(n) > 4 }) {
		return ""
	}
	switch {
	case (final == 'h' || final == 'l') && p != "4", // insert mode alone
		(final == 's' || final == 'u') && p != "",
		final == 'T' && len(params) > 1, // it would follow the mouse
		final == 'J' && slices.ContainsFunc(params, func(n string) bool { return strings.TrimLeft(n, "0") == "3" }),
		final != 'm' && strings.Contains(p, ":"):
		return ""
	}
	f.touched = true
	f.insert = f.insert && final != 'l' || final == 'h'
	f.margins = f.margins || final == 'r'
	f.tabs = f.tabs || final == 'g'
	return whole
}

// private returns the modes of a list that may be set.
func (f *filter) private(list []string, final byte) string {
	var pass []string
	for _, m := range list {
		usual, ok := privateModes[m]
		if !ok {
			continue
		}
		if f.modes == nil {
			f.modes = make(map[string]bool)
		}
		if on := final == 'h'; on != usual {
			f.modes[m] = true
		} else {
			delete(f.modes, m)
		}
		pass = append(pass, m)
	}
	if len(pass) == 0 {
		return ""
	}
	return "\x1b[?" + strings.Join(pass, ";") + string(final)
}

// reset returns what makes the terminal usual again, "" if nothing was changed.
func (f *filter) reset() string {
	var b strings.Builder
	for _, m := range []string{"1049", "1047", "47", "1", "5", "6", "7", "12", "25", "2004"} {
		if f.modes[m] {
			fmt.Fprintf(&b, "\x1b[?%s%s", m, map[bool]string{true: "h", false: "l"}[privateModes[m]])
		}
	}
	if f.margins { // which moves the cursor home
		b.WriteString("\x1b7\x1b[r\x1b8")
	}
	if f.tabs {
		b.WriteString(usualTabs)
	}
	if f.insert {
		b.WriteString("\x1b[4l")
	}
	if f.keypad {
		b.WriteString("\x1b>")
	}
	if f.charset {
		b.WriteString("\x0f\x1b(B")
	}
	if f.touched {
		b.WriteString("\x1b[m")
	}
	if f.shape {
		b.WriteString("\x1b[0 q")
	}
	*f = filter{}
	return b.String()
}
