package canon

import (
	"slices"
	"sort"
	"strconv"
)

// print appends the canonical form of n.
func (n *node) print(b []byte) []byte {
	switch n.kind {
	case kindNull:
		return append(b, "null"...)
	case kindBool:
		return strconv.AppendBool(b, n.truth)
	case kindNumber:
		return appendNumber(b, n.num)
	case kindString:
		return appendString(b, n.text)
	case kindArray:
		b = append(b, '[')
		for i := range n.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = n.elems[i].print(b)
		}
		return append(b, ']')
	case kindObject:
		b = append(b, '{')
		for i := range n.elems {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(appendString(b, n.names[i]), ':')
			b = n.elems[i].print(b)
		}
		return append(b, '}')
	}
	panic("canon: internal error: node without a kind")
}

// appendNumber prints f as ECMAScript's Number::toString (ECMA-262 §6.1.6.1.20)
// does: shortest digits that read back as f, fixed notation from 1e-6 up to but
// not including 1e21, no sign on zero, no leading zero in the exponent.
func appendNumber(b []byte, f float64) []byte {
	if f == 0 {
		return append(b, '0')
	}
	if a := max(f, -f); 1e-6 <= a && a < 1e21 {
		return strconv.AppendFloat(b, f, 'f', -1, 64)
	}
	b = strconv.AppendFloat(b, f, 'e', -1, 64)
	// strconv writes at least two digits of exponent: 1e-07.
	if n := len(b); b[n-2] == '0' && (b[n-3] == '-' || b[n-3] == '+') {
		b[n-2] = b[n-1]
		b = b[:n-1]
	}
	return b
}

// appendString prints s as RFC 8785 §3.2.2.2 says: the short escapes where JSON
// has one, \u00xx in lower case for other control characters, all else as it is.
func appendString(b []byte, s string) []byte { return appendFrom(append(b, '"'), s, plain(s)) }

// appendFrom is appendString behind the opening quote, for who knows that the
// first n bytes of s are plain.
func appendFrom(b []byte, s string, n int) []byte {
	const hex = "0123456789abcdef"
	from := 0
	for i := n; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\b':
			b = append(b, `\b`...)
		case '\t':
			b = append(b, `\t`...)
		case '\n':
			b = append(b, `\n`...)
		case '\f':
			b = append(b, `\f`...)
		case '\r':
			b = append(b, `\r`...)
		default:
			b = append(b, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(b, s[from:]...), '"')
}

// byName sorts the members of an object.
type byName struct{ *node }

func (o byName) Len() int           { return len(o.names) }
func (o byName) Less(i, j int) bool { return compareUTF16(o.names[i], o.names[j]) < 0 }
func (o byName) Swap(i, j int) {
	o.names[i], o.names[j] = o.names[j], o.names[i]
	o.elems[i], o.elems[j] = o.elems[j], o.elems[i]
}

// sort orders the members and reports the name that occurs twice, if one does.
func (n *node) sort() (twice string, ok bool) {
	if !slices.IsSortedFunc(n.names, compareUTF16[string]) {
		sort.Sort(byName{n})
	}
	for i := 1; i < len(n.names); i++ {
		if n.names[i] == n.names[i-1] {
			return n.names[i], false
		}
	}
	return "", true
}

// compareUTF16 orders two valid UTF-8 texts by their UTF-16 code units. That is
// the order of code points, which is that of the bytes, except that code points
// beyond U+FFFF, whose first unit is a surrogate (U+D800 to U+DBFF), come before
// U+E000 to U+FFFF: lead bytes from 0xf0 come before 0xee and 0xef.
func compareUTF16[T ~string | ~[]byte](a, b T) int {
	for i := range min(len(a), len(b)) {
		x, y := a[i], b[i]
		if x == y {
			continue
		}
		if x >= 0xee && y >= 0xee && (x >= 0xf0) != (y >= 0xf0) {
			x, y = y, x
		}
		if x < y {
			return -1
		}
		return 1
	}
	return len(a) - len(b)
}
