package canon

import "unicode/utf8"

// canonical reports whether data is certainly one value in canonical form. It
// reads once and keeps nothing. Some that are canonical it does not know to be:
// names with escapes, numbers that are not short integers.
func canonical(data []byte, depth int) bool {
	s := scanner{in: data, depth: depth}
	return s.value() && s.at == len(data)
}

type scanner struct {
	in    []byte
	at    int
	depth int
}

func (s *scanner) take(c byte) bool {
	if s.at < len(s.in) && s.in[s.at] == c {
		s.at++
		return true
	}
	return false
}

func (s *scanner) word(w string) bool {
	if len(s.in)-s.at < len(w) || string(s.in[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

func (s *scanner) value() bool {
	if s.at >= len(s.in) {
		return false
	}
	switch s.in[s.at] {
	case '{':
		return s.object()
	case '[':
		return s.array()
	case '"':
		_, _, ok := s.str()
		return ok
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	return s.integer()
}

func (s *scanner) array() bool {
	if s.depth++; s.depth > maxDepth {
		return false
	}
	s.at++
	if !s.take(']') {
		for {
			if !s.value() {
				return false
			}
			if s.take(']') {
				break
			}
			if !s.take(',') {
				return false
			}
		}
	}
	s.depth--
	return true
}

// object wants names in strictly rising order, so that none is there twice.
func (s *scanner) object() bool {
	if s.depth++; s.depth > maxDepth {
		return false
	}
	s.at++
	if !s.take('}') {
		var last []byte
		for first := true; ; first = false {
			name, unescaped, ok := s.str()
			if !ok || !unescaped || !first && compareUTF16(last, name) >= 0 || !s.take(':') || !s.value() {
				return false
			}
			last = name
			if s.take('}') {
				break
			}
			if !s.take(',') {
				return false
			}
		}
	}
	s.depth--
	return true
}

// integer takes what every double holds and prints the same.
func (s *scanner) integer() bool {
	s.take('-')
	start := s.at
	for s.at < len(s.in) && '0' <= s.in[s.at] && s.in[s.at] <= '9' {
		s.at++
	}
	n := s.at - start
	if n == 0 || n > 15 {
		return false
	}
	if s.in[start] == '0' {
		return n == 1 && (start == 0 || s.in[start-1] != '-')
	}
	// What follows must not make a fraction or an exponent of it; whoever is next
	// refuses '.' and 'e'.
	return true
}

// str takes a string. unescaped says that there is no escape in it.
func (s *scanner) str() (text []byte, unescaped, ok bool) {
	if !s.take('"') {
		return nil, false, false
	}
	start, ascii := s.at, true
	unescaped = true
	for {
		s.at += plain(s.in[s.at:])
		if s.at >= len(s.in) {
			return nil, false, false
		}
		c := s.in[s.at]
		s.at++
		switch {
		case c == '"':
			text = s.in[start : s.at-1]
			return text, unescaped, ascii || utf8.Valid(text)
		case c < ' ':
			return nil, false, false
		case c == '\\':
			if unescaped = false; !s.escape() {
				return nil, false, false
			}
		default:
			ascii = false
		}
	}
}

// escape takes what stands behind a backslash, in the spelling of appendString.
func (s *scanner) escape() bool {
	if s.at >= len(s.in) {
		return false
	}
	c := s.in[s.at]
	s.at++
	switch c {
	case '"', '\\', 'b', 't', 'n', 'f', 'r':
		return true
	case 'u':
	default:
		return false
	}
	if !s.word("00") || len(s.in)-s.at < 2 {
		return false
	}
	high, low := s.in[s.at], s.in[s.at+1]
	s.at += 2
	if high == '1' {
		return '0' <= low && low <= '9' || 'a' <= low && low <= 'f'
	}
	// Of the first sixteen some have a short form.
	return high == '0' && ('0' <= low && low <= '7' || low == 'b' || low == 'e' || low == 'f')
}
