package approval

import (
	"strconv"
	"strings"
)

// Escape makes foreign text safe and unambiguous on a terminal. The result
// holds printable ASCII only: control characters, ESC, line ends, bidirectional
// and zero-width characters, look-alike letters and bytes that are not UTF-8
// appear as \n, \x1b, \u202e, and a backslash or quote is itself escaped, so two
// different texts never look the same. The price is that é shows as \u00e9.
func Escape(s string) string {
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

// shown is Escape within quotes. It cuts nothing: a card that would be too long isn't shown
// at all, see MaxCard.
func shown(s string) string { return `"` + Escape(s) + `"` }

// bare is Escape for text that stands without quotes around it, such as a principal's: quotes in it
// stay as they are. A backslash is still escaped, so two texts still differ.
func bare(s string) string { return strings.ReplaceAll(Escape(s), `\"`, `"`) }

func shownAll(ss []string) string {
	var b strings.Builder
	for i, s := range ss {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(shown(s))
	}
	return b.String()
}

// EscapeText makes foreign text safe for a terminal and keeps its line breaks, tabs, quotes and
// backslashes: it's for lines that have quoted what is foreign in them.
func EscapeText(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		var b strings.Builder
		for _, r := range l {
			if r == '\\' || r == '"' || r == '\t' || (r >= ' ' && r <= '~') {
				b.WriteRune(r)
				continue
			}
			b.WriteString(Escape(string(r)))
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}
