package canon

import (
	"bytes"
	"slices"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// arrange puts a JSON text that jsontext has written into canonical form, in
// place: it is valid, has no space, and its strings are spelled as RFC 8785
// spells them. The library's own Canonicalize takes 2.5 times as long, and rounds
// integers.
func arrange(text []byte) ([]byte, error) {
	a := arrangers.Get().(*arranger)
	a.text, a.at, a.members, a.spelled = text, 0, a.members[:0], false
	err := a.value(0)
	text, a.text = a.text, nil
	if cap(a.body) <= maxKept {
		arrangers.Put(a)
	}
	if err != nil {
		return nil, err
	}
	return text, nil
}

// arrangers keeps what arranging one text needs of memory for the next.
var arrangers = sync.Pool{New: func() any { return &arranger{members: make([]member, 0, 64)} }}

// maxKept is more than most texts are long.
const maxKept = 64 << 10

type arranger struct {
	text    []byte
	at      int
	members []member // of the objects that have begun
	body    []byte   // of an object while its members are put in order
	spelled bool     // the numbers from here on are spelled as they have to be
}

// member is where a member of an object stands in text, with its name first.
type member struct {
	from, colon, to int
	escaped         bool // there is an escape in the name
}

func (a *arranger) value(depth int) error {
	switch a.text[a.at] {
	case '{', '[':
		if depth >= maxDepth {
			return refusal("json_syntax", int64(a.at), "nesting beyond %d", maxDepth)
		}
		if a.text[a.at] == '{' {
			return a.object(depth + 1)
		}
		return a.array(depth + 1)
	case '"':
		a.at = a.end()
	case 't', 'n':
		a.at += len("true")
	case 'f':
		a.at += len("false")
	default:
		return a.number()
	}
	return nil
}

func (a *arranger) array(depth int) error {
	for a.at++; a.text[a.at] != ']'; {
		if err := a.value(depth); err != nil {
			return err
		}
		if a.text[a.at] == ',' {
			a.at++
		}
	}
	a.at++
	return nil
}

func (a *arranger) object(depth int) error {
	a.at++
	first, start, sorted := len(a.members), a.at, true
	for a.text[a.at] != '}' {
		m := member{from: a.at, colon: a.end()}
		m.escaped = bytes.IndexByte(a.text[m.from:m.colon], '\\') >= 0
		a.at = m.colon + 1
		if err := a.value(depth); err != nil {
			return err
		}
		m.to = a.at
		if n := len(a.members); n > first && a.compare(a.members[n-1], m) > 0 {
			sorted = false
		}
		a.members = append(a.members, m)
		if a.text[a.at] == ',' {
			a.at++
		}
	}
	if !sorted {
		a.sort(a.members[first:], start)
	}
	a.members = a.members[:first]
	a.at++
	return nil
}

// sort puts the members of an object, which begin at start and end here, in order.
func (a *arranger) sort(members []member, start int) {
	slices.SortFunc(members, a.compare)
	a.body = slices.Grow(a.body[:0], len(a.text)-start)
	for i, m := range members {
		if i > 0 {
			a.body = append(a.body, ',')
		}
		a.body = append(a.body, a.text[m.from:m.to]...)
	}
	copy(a.text[start:], a.body)
}

// end returns where the string that begins here ends.
func (a *arranger) end() int { return endOfString(a.text, a.at) }

func endOfString(text []byte, from int) int {
	for at := from + 1; ; {
		at += bytes.IndexByte(text[at:], '"') + 1
		escapes := 0
		for text[at-2-escapes] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return at
		}
	}
}

func (a *arranger) compare(x, y member) int { return compareUTF16(a.name(x), a.name(y)) }

func (a *arranger) name(m member) []byte {
	if m.escaped {
		name, _ := jsontext.AppendUnquote(nil, a.text[m.from:m.colon]) // it is valid
		return name
	}
	return a.text[m.from+1 : m.colon-1]
}

// number leaves a number behind that is spelled as ECMAScript's Number::toString does
// (ECMA-262 §6.1.6.1.20). At the first that isn't, all from there on are.
func (a *arranger) number() error {
	from := a.at
	a.at = endOfNumber(a.text, from)
	if a.spelled {
		return nil
	}
	num := a.text[from:a.at]
	if isPlain(num) {
		return nil
	}
	var few [32]byte
	spelled, err := spell(few[:0], num, from)
	if err != nil || bytes.Equal(spelled, num) {
		return err
	}
	return a.respell(from)
}

// respell spells the numbers from here on. Doing so one at a time would move the rest of the
// text for each of them.
func (a *arranger) respell(from int) error {
	rest := make([]byte, 0, len(a.text)-from)
	copied := from
	for at := from; at < len(a.text); {
		switch c := a.text[at]; {
		case c == '"':
			at = endOfString(a.text, at)
		case c == '-' || '0' <= c && c <= '9':
			end := endOfNumber(a.text, at)
			rest = append(rest, a.text[copied:at]...)
			var err error
			if rest, err = spell(rest, a.text[at:end], at); err != nil {
				return err
			}
			at, copied = end, end
		default:
			at++
		}
	}
	rest = append(rest, a.text[copied:]...)
	a.text, a.spelled = append(a.text[:from], rest...), true
	a.at = endOfNumber(a.text, from)
	return nil
}

// endOfNumber returns where the number that begins at from ends.
func endOfNumber(text []byte, from int) int {
	at := from
	for at < len(text) && text[at] != ',' && text[at] != ']' && text[at] != '}' {
		at++
	}
	return at
}

// isPlain reports whether num is an integer of up to fifteen digits without a sign, which has one
// spelling.
func isPlain(num []byte) bool {
	for _, c := range num {
		if c < '0' || c > '9' {
			return false
		}
	}
	return len(num) <= 15
}

// spell appends a number, which stands at offset at of the text.
func spell(b, num []byte, at int) ([]byte, error) {
	if isPlain(num) {
		return append(b, num...), nil
	}
	f, ok := double(num)
	if !ok {
		return nil, refusal("json_syntax", int64(at), "number that a double does not hold")
	}
	if f == 0 {
		f = 0 // of either sign
	}
	return jsontext.AppendFloat(b, f, 64), nil
}

// compareUTF16 orders two valid UTF-8 texts by their UTF-16 code units. That is
// the order of code points, which is that of the bytes, except that code points
// beyond U+FFFF, whose first unit is a surrogate (U+D800 to U+DBFF), come before
// U+E000 to U+FFFF: lead bytes from 0xf0 come before 0xee and 0xef.
func compareUTF16(a, b []byte) int {
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
