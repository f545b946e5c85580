package canon

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"

	"palyra/internal/fault"
)

// The kinds of node, named by the byte that begins them.
const (
	kindNull   = 'n'
	kindBool   = 't'
	kindNumber = '0'
	kindString = '"'
	kindArray  = '['
	kindObject = '{'
)

// node is a JSON value. For an object, names[i] belongs to elems[i], sorted as
// RFC 8785 wants it.
type node struct {
	kind  byte
	at    int // offset in the input
	truth bool
	num   float64
	text  string
	names []string
	elems []node
}

// parser reads RFC 8259, minus what RFC 7493 (I-JSON) takes away: repeated
// names, lone surrogates, numbers that a double cannot hold.
type parser struct {
	in      []byte
	at      int
	depth   int
	lim     Limits
	printed bool // the input was printed by encoding/json
}

func refusal(reason string, at int64, format string, args ...any) error {
	return fault.New(fault.Usage, reason, fmt.Sprintf("decode JSON at byte %d", at), fmt.Errorf(format, args...))
}

func (p *parser) refuse(reason, format string, args ...any) error {
	return refusal(reason, int64(p.at), format, args...)
}

// document reads one value and nothing after it but white space.
func (p *parser) document() (*node, error) {
	if len(p.in) > p.lim.Bytes {
		return nil, fault.New(fault.Usage, "json_too_large", "decode JSON",
			fmt.Errorf("%d bytes, limit %d", len(p.in), p.lim.Bytes))
	}
	var n node
	if err := p.value(&n); err != nil {
		return nil, err
	}
	if p.space(); p.at != len(p.in) {
		return nil, p.refuse("json_trailing_data", "data after the value")
	}
	return &n, nil
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next skips white space and returns the byte there without taking it, 0 at the end.
func (p *parser) next() byte {
	if p.space(); p.at < len(p.in) {
		return p.in[p.at]
	}
	return 0
}

func (p *parser) value(n *node) error {
	c := p.next()
	n.at = p.at
	switch {
	case c == '{':
		return p.object(n)
	case c == '[':
		return p.array(n)
	case c == '"':
		n.kind = kindString
		return p.str(&n.text)
	case c == '-' || '0' <= c && c <= '9':
		n.kind = kindNumber
		return p.number(n)
	case c == 't':
		n.kind, n.truth = kindBool, true
		return p.word("true")
	case c == 'f':
		n.kind = kindBool
		return p.word("false")
	case c == 'n':
		n.kind = kindNull
		return p.word("null")
	}
	return p.refuse("json_syntax", "want a value")
}

func (p *parser) word(w string) error {
	if len(p.in)-p.at < len(w) || string(p.in[p.at:p.at+len(w)]) != w {
		return p.refuse("json_syntax", "want %s", w)
	}
	p.at += len(w)
	return nil
}

func (p *parser) enter() error {
	if p.depth++; p.depth > p.lim.Depth {
		return p.refuse("json_too_deep", "nesting beyond %d", p.lim.Depth)
	}
	p.at++
	return nil
}

func (p *parser) array(n *node) error {
	n.kind = kindArray
	if err := p.enter(); err != nil {
		return err
	}
	if p.next() != ']' {
		for {
			n.elems = append(n.elems, node{})
			if err := p.value(&n.elems[len(n.elems)-1]); err != nil {
				return err
			}
			if p.next() != ',' {
				break
			}
			p.at++
		}
		if p.next() != ']' {
			return p.refuse("json_syntax", "want , or ] in an array")
		}
	}
	p.at++
	p.depth--
	return nil
}

func (p *parser) object(n *node) error {
	n.kind = kindObject
	if err := p.enter(); err != nil {
		return err
	}
	if p.next() != '}' {
		for {
			if p.next() != '"' {
				return p.refuse("json_syntax", "want a member name")
			}
			var name string
			if err := p.str(&name); err != nil {
				return err
			}
			if p.next() != ':' {
				return p.refuse("json_syntax", "want : after a member name")
			}
			p.at++
			n.names, n.elems = append(n.names, name), append(n.elems, node{})
			if err := p.value(&n.elems[len(n.elems)-1]); err != nil {
				return err
			}
			if p.next() != ',' {
				break
			}
			p.at++
		}
		if p.next() != '}' {
			return p.refuse("json_syntax", "want , or } in an object")
		}
	}
	p.at++
	p.depth--
	if name, ok := n.sort(); !ok {
		return refusal("json_duplicate_member", int64(n.at), "member %q twice", name)
	}
	return nil
}

// number follows the grammar of RFC 8259 §6; strconv would take more ("0x1p4",
// "1_000", "Inf").
func (p *parser) number(n *node) error {
	start, whole := p.at, true
	digits := func() bool {
		from := p.at
		for p.at < len(p.in) && '0' <= p.in[p.at] && p.in[p.at] <= '9' {
			p.at++
		}
		return p.at > from
	}
	take := func(set string) bool {
		for i := range len(set) {
			if p.at < len(p.in) && p.in[p.at] == set[i] {
				p.at++
				return true
			}
		}
		return false
	}
	take("-")
	if !take("0") && !digits() {
		return p.refuse("json_syntax", "want a digit")
	}
	if take(".") {
		if whole = false; !digits() {
			return p.refuse("json_syntax", "want a digit")
		}
	}
	if take("eE") {
		whole = false
		take("+-")
		if !digits() {
			return p.refuse("json_syntax", "want a digit")
		}
	}
	text := string(p.in[start:p.at])
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) {
		return refusal("json_number", int64(start), "number beyond the range of a double")
	}
	// A double holds every integer below 2^53. From there on several integers
	// share one double; only the one that is spelled as the double prints passes.
	if whole && math.Abs(f) >= 1<<53 && text != strconv.FormatFloat(f, 'f', -1, 64) {
		return refusal("json_number", int64(start), "integer that a double does not hold")
	}
	n.num = f
	return nil
}

var errSurrogate = errors.New("lone surrogate")

// str reads the string that begins at p.at.
func (p *parser) str(out *string) error {
	p.at++
	start := p.at
	// Most strings hold nothing to unescape.
	for p.at < len(p.in) {
		c := p.in[p.at]
		if c == '\\' || c < ' ' {
			break
		}
		p.at++
		if c == '"' {
			b := p.in[start : p.at-1]
			if !utf8.Valid(b) {
				return refusal("json_utf8", int64(start), "string is not UTF-8")
			}
			*out = string(b)
			return nil
		}
	}
	buf := append([]byte(nil), p.in[start:p.at]...)
	for p.at < len(p.in) {
		c := p.in[p.at]
		switch {
		case c == '"':
			p.at++
			if !utf8.Valid(buf) {
				return refusal("json_utf8", int64(start), "string is not UTF-8")
			}
			*out = string(buf)
			return nil
		case c < ' ':
			return p.refuse("json_syntax", "control character in a string")
		case c != '\\':
			buf = append(buf, c)
			p.at++
		default:
			r, err := p.escape()
			if err != nil {
				return err
			}
			buf = utf8.AppendRune(buf, r)
		}
	}
	return p.refuse("json_syntax", "string without an end")
}

// escape reads one escape, or the two that make a surrogate pair.
func (p *parser) escape() (rune, error) {
	if p.at+1 >= len(p.in) {
		return 0, p.refuse("json_syntax", "escape without an end")
	}
	c := p.in[p.at+1]
	switch c {
	case '"', '\\', '/':
		p.at += 2
		return rune(c), nil
	case 'b', 'f', 'n', 'r', 't':
		p.at += 2
		return map[byte]rune{'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}[c], nil
	case 'u':
	default:
		return 0, p.refuse("json_syntax", "unknown escape")
	}
	r, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if p.printed && r == utf8.RuneError {
		return 0, p.refuse("json_utf8", "string is not UTF-8")
	}
	if !utf16.IsSurrogate(r) {
		return r, nil
	}
	if p.at+1 >= len(p.in) || p.in[p.at] != '\\' || p.in[p.at+1] != 'u' {
		return 0, p.refuse("json_utf8", "%w", errSurrogate)
	}
	low, err := p.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == utf8.RuneError {
		return 0, p.refuse("json_utf8", "%w", errSurrogate)
	}
	return r, nil
}

func (p *parser) hex4() (rune, error) {
	if p.at+6 > len(p.in) {
		return 0, p.refuse("json_syntax", "escape without an end")
	}
	var r rune
	for _, c := range p.in[p.at+2 : p.at+6] {
		switch {
		case '0' <= c && c <= '9':
			r = r<<4 | rune(c-'0')
		case 'a' <= c && c <= 'f':
			r = r<<4 | rune(c-'a'+10)
		case 'A' <= c && c <= 'F':
			r = r<<4 | rune(c-'A'+10)
		default:
			return 0, p.refuse("json_syntax", "want four hexadecimal digits")
		}
	}
	p.at += 6
	return r, nil
}
