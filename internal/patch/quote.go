package patch

import (
	"errors"
	"strings"
)

// errQuote says that a name is not spelled as git spells it.
var errQuote = errors.New("a name is not quoted as git quotes it")

// readName reads the name in a --- or +++ line or in a rename: plain up to a tab,
// or quoted.
func readName(s string) (string, error) {
	if strings.HasPrefix(s, `"`) {
		name, rest, err := unquote(s)
		if err == nil && rest != "" && rest[0] != '\t' {
			err = errQuote
		}
		return name, err
	}
	name, _, _ := strings.Cut(s, "\t")
	if name == "" {
		return "", errors.New("a name is missing")
	}
	for i := range len(name) {
		if name[i] < ' ' || name[i] == 0x7f {
			return "", errors.New("a name holds a control character (a carriage return?) and is not quoted")
		}
	}
	return name, nil
}

// gitNames reads the two names of git's first line, which stand there without
// anything between them but a space: either is quoted, or both are the same but
// for the prefix, or, for a rename, what follows has to confirm them.
func gitNames(s string) (old, neu string, err error) {
	bad := errors.New("want two names that begin with a/ and b/")
	switch {
	case strings.HasPrefix(s, `"`):
		var rest string
		if old, rest, err = unquote(s); err != nil {
			return "", "", err
		}
		rest, ok := strings.CutPrefix(rest, " ")
		if !ok {
			return "", "", bad
		}
		neu, err = readName(rest)
	case strings.HasSuffix(s, `"`):
		i := strings.Index(s, ` "`)
		if i < 0 {
			return "", "", bad
		}
		old = s[:i]
		neu, err = readName(s[i+1:])
	default:
		// The name is the same on both sides if the line is "a/X b/X".
		if n := (len(s) - 5) / 2; len(s)%2 == 1 && n > 0 && s[2:2+n] == s[len(s)-n:] && s[2+n:5+n] == " b/" {
			old, neu = s[:2+n], s[3+n:]
			break
		}
		// A rename. If there are several places to part the names, git's own
		// reader takes the lines that follow; so do we, by refusing what they do not say.
		i := strings.LastIndex(s, " b/")
		if i < 0 {
			return "", "", bad
		}
		old, neu = s[:i], s[i+1:]
	}
	if err == nil && !(strings.HasPrefix(old, "a/") && strings.HasPrefix(neu, "b/") && len(old) > 2 && len(neu) > 2) {
		err = bad
	}
	return old, neu, err
}

// unquote reads a name as git quotes it (quote.c, quote_c_style) and returns
// what follows it.
func unquote(s string) (name, rest string, err error) {
	var b []byte
	for i := 1; i < len(s); i++ {
		c := s[i]
		switch {
		case c == '"':
			if len(b) == 0 {
				return "", "", errQuote
			}
			return string(b), s[i+1:], nil
		case c < ' ' || c == 0x7f:
			return "", "", errQuote
		case c != '\\':
			b = append(b, c)
			continue
		}
		if i++; i == len(s) {
			break
		}
		if at := strings.IndexByte(`abtnvfr"\`, s[i]); at >= 0 {
			b = append(b, "\a\b\t\n\v\f\r\"\\"[at])
			continue
		}
		if i+2 >= len(s) {
			break
		}
		n := 0
		for _, d := range []byte(s[i : i+3]) {
			if d < '0' || d > '7' {
				return "", "", errQuote
			}
			n = n*8 + int(d-'0')
		}
		if n > 255 {
			return "", "", errQuote
		}
		b = append(b, byte(n))
		i += 2
	}
	return "", "", errQuote
}
