package measure

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of text. Columns from Left on are numbers and aligned to the right.
type Table struct {
	Title string
	Head  []string
	Left  int // the number of columns with words
	Rows  [][]string
}

// Text prints t with aligned columns.
func (t Table) Text(w io.Writer) {
	width := make([]int, len(t.Head))
	for _, r := range append([][]string{t.Head}, t.Rows...) {
		for i, c := range r {
			width[i] = max(width[i], utf8.RuneCountInString(c))
		}
	}
	fmt.Fprintf(w, "\n%s\n", t.Title)
	for _, r := range append([][]string{t.Head}, t.Rows...) {
		var b strings.Builder
		for i, c := range r {
			pad := strings.Repeat(" ", width[i]-utf8.RuneCountInString(c))
			if i < t.Left {
				b.WriteString(c + pad + "  ")
			} else {
				b.WriteString(pad + c + "  ")
			}
		}
		fmt.Fprintln(w, strings.TrimRight(b.String(), " "))
	}
}

// Markdown prints t under a heading of the third level.
func (t Table) Markdown(w io.Writer) {
	fmt.Fprintf(w, "\n### %s\n\n| %s |\n|", t.Title, strings.Join(t.Head, " | "))
	for i := range t.Head {
		if i < t.Left {
			io.WriteString(w, "---|")
		} else {
			io.WriteString(w, "--:|")
		}
	}
	io.WriteString(w, "\n")
	for _, r := range t.Rows {
		fmt.Fprintf(w, "| %s |\n", strings.Join(r, " | "))
	}
}

// RecordTable returns records as a table.
func RecordTable(title string, rs []Record) Table {
	t := Table{Title: title, Left: 3, Head: []string{"program", "arrival", "path", "n", "p50 µs", "p99 µs", "× floor", "bwrap ÷ this"}}
	for _, x := range rs {
		bwrap := "–"
		if x.Bwrap > 0 {
			bwrap = fmt.Sprintf("%.2f", x.Bwrap)
		}
		t.Rows = append(t.Rows, []string{x.Program, x.Pattern, x.Path, fmt.Sprint(x.N), fmt.Sprintf("%.0f", x.P50),
			fmt.Sprintf("%.0f", x.P99), fmt.Sprintf("%.2f", x.Ratio), bwrap})
	}
	return t
}
