package config

import "strings"

// lines finds the line of each table and key of a TOML document that the
// library has accepted: it reads headers and the left sides of assignments, and
// skips strings and lists that go over several lines. It is for messages only; a
// key in an inline table has the line of the table.
func lines(src string) map[string]int {
	at := make(map[string]int)
	table := ""
	open := "" // the delimiter of a multi-line string we are in
	depth := 0 // of brackets in a value
	for i, line := range strings.Split(src, "\n") {
		rest := line
		if open == "" && depth == 0 {
			rest = strings.TrimSpace(rest)
			switch {
			case strings.HasPrefix(rest, "["):
				if name, _, ok := path(strings.TrimLeft(rest, "[")); ok {
					table = name
					note(at, table, i+1)
				}
				continue
			default:
				name, after, ok := path(rest)
				if !ok || !strings.HasPrefix(after, "=") {
					continue
				}
				if table != "" {
					name = table + "." + name
				}
				note(at, name, i+1)
				rest = after[1:]
			}
		}
		open, depth = skip(rest, open, depth)
	}
	return at
}

// note remembers a line for a key and for the tables around it.
func note(at map[string]int, key string, line int) {
	for key != "" {
		if at[key] == 0 {
			at[key] = line
		}
		key, _, _ = cutLast(key)
	}
}

// path reads a dotted key and returns it without quotes, and what follows.
func path(s string) (key, rest string, ok bool) {
	var parts []string
	for {
		s = strings.TrimLeft(s, " \t")
		var part string
		switch {
		case s == "":
			return "", "", false
		case s[0] == '"' || s[0] == '\'':
			end := strings.IndexByte(s[1:], s[0])
			if end < 0 {
				return "", "", false
			}
			part, s = s[1:1+end], s[2+end:]
		default:
			end := strings.IndexFunc(s, func(r rune) bool {
				return !(r == '-' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z')
			})
			if end == 0 {
				return "", "", false
			}
			if end < 0 {
				end = len(s)
			}
			part, s = s[:end], s[end:]
		}
		parts = append(parts, part)
		s = strings.TrimLeft(s, " \t")
		if !strings.HasPrefix(s, ".") {
			return strings.Join(parts, "."), s, true
		}
		s = s[1:]
	}
}

// skip walks over the part of a value on one line and returns what it is in at
// the end of it.
func skip(s, open string, depth int) (string, int) {
	for s != "" {
		if open != "" {
			if open == `"""` && s[0] == '\\' {
				s = s[min(2, len(s)):]
			} else if strings.HasPrefix(s, open) {
				s, open = s[len(open):], ""
			} else {
				s = s[1:]
			}
			continue
		}
		switch {
		case s[0] == '#':
			return open, depth
		case strings.HasPrefix(s, `"""`), strings.HasPrefix(s, "'''"):
			open, s = s[:3], s[3:]
		case s[0] == '"' || s[0] == '\'':
			s = afterString(s)
		case s[0] == '[' || s[0] == '{':
			depth, s = depth+1, s[1:]
		case s[0] == ']' || s[0] == '}':
			depth, s = max(0, depth-1), s[1:]
		default:
			s = s[1:]
		}
	}
	return open, depth
}

// afterString returns what follows the one-line string that s begins with.
func afterString(s string) string {
	for i := 1; i < len(s); i++ {
		switch {
		case s[i] == '\\' && s[0] == '"':
			i++
		case s[i] == s[0]:
			return s[i+1:]
		}
	}
	return ""
}
