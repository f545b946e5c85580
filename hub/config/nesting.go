package config

import "strings"

// maxNesting bounds brackets within brackets, and the parts of a dotted key. A configuration has
// three. The library's time and memory grow with the third power of either: 240 KiB of inline
// tables in one another took all of 23 GiB.
const maxNesting = 16

// tooDeep returns the line on which src is nested deeper, 0 if it is nowhere. It passes over
// strings and comments, and leaves it to the library to say what else is wrong.
func tooDeep(src string) int {
	line, depth, parts := 1, 0, 0
	for i := 0; i < len(src); i++ {
		switch c := src[i]; c {
		case '\n':
			line++
			parts = 0
		case '#':
			if n := strings.IndexByte(src[i:], '\n'); n >= 0 {
				i += n - 1
			} else {
				return 0
			}
		case '"', '\'':
			n := stringLen(src[i:])
			line += strings.Count(src[i:i+n], "\n")
			i += n - 1
		case '[', '{':
			depth++
			parts = 0
		case ']', '}':
			depth = max(depth-1, 0)
			parts = 0
		case '=', ',':
			parts = 0
		case '.':
			parts++
		}
		if depth > maxNesting || parts > maxNesting {
			return line
		}
	}
	return 0
}

// stringLen returns the length of the string that s begins with, quotes included; all of s if it
// doesn't end.
func stringLen(s string) int {
	quote, escapes := s[:1], s[0] == '"'
	if triple := strings.Repeat(quote, 3); strings.HasPrefix(s, triple) {
		quote = triple
	}
	for i := len(quote); i < len(s); i++ {
		switch {
		case escapes && s[i] == '\\':
			i++
		case strings.HasPrefix(s[i:], quote):
			return i + len(quote)
		case len(quote) == 1 && s[i] == '\n':
			return i
		}
	}
	return len(s)
}
