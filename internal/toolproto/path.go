package toolproto

import (
	"errors"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Bounds of a path. They are Linux's, but for the number of elements.
const (
	maxPath     = 4095 // bytes; PATH_MAX with its NUL
	maxName     = 255  // bytes of one element; NAME_MAX
	maxElements = 64
)

const hexDigits = "0123456789abcdef"

// Escape spells a file name or path in printable text: see the package comment.
func Escape(name string) string {
	plain := true
	for i := 0; i < len(name) && plain; i++ {
		c := name[i]
		plain = c >= ' ' && c < 0x7f && c != '\\'
	}
	if plain {
		return name
	}
	var b strings.Builder
	for i := 0; i < len(name); {
		r, n := utf8.DecodeRuneInString(name[i:])
		if r != '\\' && (r != utf8.RuneError || n > 1) && unicode.IsPrint(r) {
			b.WriteString(name[i : i+n])
			i += n
			continue
		}
		for ; n > 0; n-- {
			b.WriteString(`\x`)
			b.WriteByte(hexDigits[name[i]>>4])
			b.WriteByte(hexDigits[name[i]&15])
			i++
		}
	}
	return b.String()
}

// Unescape is the inverse of Escape and refuses every other spelling.
func Unescape(s string) (string, error) {
	name := s
	if strings.IndexByte(s, '\\') >= 0 {
		b := make([]byte, 0, len(s))
		for i := 0; i < len(s); {
			if s[i] != '\\' {
				b = append(b, s[i])
				i++
				continue
			}
			if len(s) < i+4 || s[i+1] != 'x' {
				return "", errors.New(`a backslash that does not begin \xHH (a backslash itself is \x5c)`)
			}
			hi, lo := strings.IndexByte(hexDigits, s[i+2]), strings.IndexByte(hexDigits, s[i+3])
			if hi < 0 || lo < 0 {
				return "", errors.New(`\x needs two lower-case hexadecimal digits`)
			}
			b = append(b, byte(hi<<4|lo))
			i += 4
		}
		name = string(b)
	}
	if Escape(name) != s {
		return "", errors.New(`a byte that is not printable stands for itself, or one that is stands as \xHH`)
	}
	return name, nil
}

// ParsePath returns the path that s spells, relative to the workspace; "." is
// the workspace itself. Its errors have the reason path.
func ParsePath(s string) (string, error) {
	op := fmt.Sprintf("read path %q", clip(s))
	name, err := Unescape(s)
	if err == nil {
		err = CheckPath(name)
	}
	if err != nil {
		return "", usage("invalid_input", op, err)
	}
	return name, nil
}

// CheckPath wants a plain relative path as the file system has it, unescaped.
func CheckPath(name string) error {
	switch {
	case name == ".":
		return nil
	case name == "":
		return errors.New("is empty")
	case len(name) > maxPath:
		return fmt.Errorf("longer than %d bytes", maxPath)
	case strings.IndexByte(name, 0) >= 0:
		return errors.New("holds a NUL byte")
	case name[0] == '/':
		return errors.New("begins with a slash; name it relative to the workspace")
	}
	n := 0
	for e := range strings.SplitSeq(name, "/") {
		switch n++; {
		case e == "":
			return errors.New("an element is empty: a slash at the end, or two together")
		case e == "." || e == "..":
			return fmt.Errorf("element %q: spell the path plainly", e)
		case len(e) > maxName:
			return fmt.Errorf("an element is longer than %d bytes", maxName)
		case n > maxElements:
			return fmt.Errorf("more than %d elements", maxElements)
		}
	}
	return nil
}

// clip bounds a foreign name for a message.
func clip(s string) string {
	if len(s) > 128 {
		return s[:128] + "..."
	}
	return s
}
