package front

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Lines builds text for people: rows of columns, everything escaped.
type Lines struct {
	b  strings.Builder
	tw *tabwriter.Writer
}

// NewLines returns no lines yet.
func NewLines() *Lines {
	l := &Lines{}
	l.tw = tabwriter.NewWriter(&l.b, 0, 0, 2, ' ', 0)
	return l
}

// Row adds one row; a cell has no line breaks.
func (l *Lines) Row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			io.WriteString(l.tw, "\t")
		}
		io.WriteString(l.tw, Cell(fmt.Sprint(c)))
	}
	io.WriteString(l.tw, "\n")
}

// String is all rows, without spaces at the ends of lines.
func (l *Lines) String() string {
	l.tw.Flush()
	out := strings.Split(l.b.String(), "\n")
	for i := range out {
		out[i] = strings.TrimRight(out[i], " ")
	}
	return strings.Join(out, "\n")
}

// Cell makes one line of foreign text.
func Cell(s string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Escape(s))
}
