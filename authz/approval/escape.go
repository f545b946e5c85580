package approval

import (
	"fmt"
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

// maxShown bounds what one value may take of the screen.
const maxShown = 4096

// shown is Escape within quotes and bounded; what is cut is said, because the
// digest covers it too.
func shown(s string) string {
	if len(s) <= maxShown {
		return `"` + Escape(s) + `"`
	}
	return fmt.Sprintf(`"%s" [and %d bytes NOT SHOWN]`, Escape(s[:maxShown]), len(s)-maxShown)
}

func shownAll(ss []string) string {
	var b strings.Builder
	for i, s := range ss {
		if b.Len() > 4*maxShown {
			fmt.Fprintf(&b, " [and %d more NOT SHOWN]", len(ss)-i)
			break
		}
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(shown(s))
	}
	return b.String()
}
