package policy

import "bytes"

// shape is the text of a policy without annotations and without literals that don't matter to
// types: ids of entities in the scope, except actions, and strings and numbers that a name is
// compared with. The validator judges types alone, so it need see only one policy of each
// shape; a large set has few. checkLiterals checks the values of each policy. Other literals
// stay: one may be the name of an attribute, or be compared with another literal, which the
// validator evaluates to true or false.
func shape(text []byte) string {
	text = text[pastAnnotations(text):]
	b := make([]byte, 0, len(text))
	var last [3]byte // bytes that aren't white space, newest first
	put := func(c byte) {
		b = append(b, c)
		last = [3]byte{c, last[0], last[1]}
	}
	scope, name := true, 0 // name: the offset in b of the path before ::
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			end := i + 1
			for end < len(text) && text[end] != '"' {
				if text[end] == '\\' {
					end++
				}
				end++
			}
			end = min(end+1, len(text))
			entity := scope && last[0] == ':' && last[1] == ':' && !bytes.HasSuffix(bytes.TrimRight(b[name:], ": "), []byte("Action"))
			b = append(b, '"')
			if !entity && !compared(last) {
				b = append(b, text[i+1:max(i+1, end-1)]...)
			}
			put('"')
			i = end - 1
		case c == '/' && i+1 < len(text) && text[i+1] == '/':
			for i+1 < len(text) && text[i+1] != '\n' {
				i++
			}
		case isDigit(c) && compared(last):
			for i+1 < len(text) && isDigit(text[i+1]) {
				i++
			}
			put('0')
		case c == ' ' || c == '\t' || c == '\r' || c == '\n':
			if n := len(b); n > 0 && b[n-1] != ' ' {
				b = append(b, ' ')
			}
		default:
			scope = scope && c != '{'
			if c != ':' && !wordByte(c) {
				name = len(b) + 1
			}
			put(c)
		}
	}
	return string(b)
}

// compared reports whether the last bytes are a name and a comparison operator.
func compared(last [3]byte) bool {
	left := byte(0)
	switch {
	case last[0] == '=' && (last[1] == '=' || last[1] == '!' || last[1] == '<' || last[1] == '>'):
		left = last[2]
	case last[0] == '<' || last[0] == '>':
		left = last[1]
	}
	return wordByte(left) && !isDigit(left)
}

func pastAnnotations(text []byte) int {
	i := 0
	for i < len(text) {
		switch c := text[i]; {
		case c == '@':
			for i++; i < len(text) && wordByte(text[i]); i++ {
			}
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
			i++
		case c == '/':
			for i < len(text) && text[i] != '\n' {
				i++
			}
		case wordByte(c):
			return i
		default:
			i++
		}
	}
	return min(i, len(text))
}

func wordByte(c byte) bool {
	return c == '_' || isDigit(c) || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}
