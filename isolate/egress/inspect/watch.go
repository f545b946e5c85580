package inspect

import (
	"bytes"
	"encoding/base32"
	"strings"

	rule "palyra/call/egress"
	"palyra/internal/spelling"
)

// Watch finds placeholders in what a program sends. It's immutable; a nil Watch finds none.
type Watch struct{ table *spelling.Table }

// newWatch watches for the placeholders by their names, each by what was drawn for it: a program
// may leave its form away.
func newWatch(names, placeholders []string) *Watch {
	t := new(spelling.Table)
	for i, p := range placeholders {
		v, mask := []byte(p[len(p)-rule.Drawn:]), []byte(names[i])
		add := func(p []byte) { t.Add(p, mask, false) }
		for _, p := range spelling.Of(v) {
			add(p)
		}
		upper := bytes.ToUpper(v)
		for _, p := range spelling.Of(upper) {
			add(p)
		}
		inBase32(v, add)
		inBase32(upper, add)
	}
	return &Watch{t}
}

// inBase32 adds the characters of base 32 that v alone decides, wherever it stands in a text.
func inBase32(v []byte, add func([]byte)) {
	for _, e := range []*base32.Encoding{base32.StdEncoding, base32.HexEncoding} {
		for lead := range 5 {
			text := e.WithPadding(base32.NoPadding).EncodeToString(append(make([]byte, lead), v...))
			from, to := (lead*8+4)/5, (lead+len(v))*8/5
			add([]byte(text[from:to]))
			add([]byte(strings.ToLower(text[from:to])))
		}
	}
}

// In returns the name of a placeholder in b, "" if there is none.
func (w *Watch) In(b []byte) string {
	if w == nil {
		return ""
	}
	for i := w.table.Next(b, 0); i < len(b); i = w.table.Next(b, i+1) {
		if n, name, _ := w.table.At(b, i, true); n > 0 {
			return string(name)
		}
	}
	return ""
}

// InName returns the name of a placeholder in a name that was looked up, also one that is cut into
// labels.
func (w *Watch) InName(name string) string {
	if w == nil {
		return ""
	}
	var b []byte
	for _, c := range []byte(strings.ToLower(name)) {
		if 'a' <= c && c <= 'z' || '0' <= c && c <= '9' {
			b = append(b, c)
		}
	}
	if found := w.In([]byte(name)); found != "" { // base 64 has both cases, and characters left away here
		return found
	}
	return w.In(b)
}

// Stream returns a watch over text that comes in parts, for one goroutine; nil of a nil Watch.
func (w *Watch) Stream() *Stream {
	if w == nil {
		return nil
	}
	return &Stream{table: w.table}
}

// Stream finds placeholders whatever the borders of the parts. A nil Stream finds none.
type Stream struct {
	table *spelling.Table
	held  []byte // the end of what came, with which a placeholder may begin; some hundred bytes at most
}

// Next returns the name of a placeholder that is complete with b, "" if there is none.
func (s *Stream) Next(b []byte) string {
	if s == nil {
		return ""
	}
	// A placeholder that began before ends within the first bytes of b.
	for len(s.held) > 0 && len(b) > 0 {
		n := min(len(b), spelling.Sure)
		s.held = append(s.held, b[:n]...)
		name, rest := s.scan(s.held)
		if name != "" {
			return name
		}
		if n == len(b) {
			s.held = append(s.held[:0], rest...)
			return ""
		}
		if len(rest) <= n { // what waits began in b
			b = b[n-len(rest):]
			s.held = s.held[:0]
			break
		}
		s.held = append(s.held[:0], rest...)
		b = b[n:]
	}
	name, rest := s.scan(b)
	s.held = append(s.held[:0], rest...)
	return name
}

// scan returns the name of a placeholder in b, or the end of b with which one may begin.
func (s *Stream) scan(b []byte) (name string, rest []byte) {
	for i := s.table.Next(b, 0); i < len(b); i = s.table.Next(b, i+1) {
		switch n, name, more := s.table.At(b, i, false); {
		case n > 0:
			return string(name), nil
		case more:
			return "", b[i:]
		}
	}
	return "", nil
}
