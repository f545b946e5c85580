package front

import (
	"fmt"
	"strings"
)

// Table is the output of list commands: headings, aligned columns, one line a row. It
// escapes everything. In a pipe it is as wide as needed; on a terminal it cuts the widest
// columns until a row fits.
type Table struct {
	heads []string
	rows  [][]string
	keep  map[int]bool // columns that are never cut
}

// NewTable returns a table with these headings.
func NewTable(heads ...string) *Table { return &Table{heads: heads, keep: map[int]bool{}} }

// Keep protects columns, by number, from being cut: half an id is useless.
func (t *Table) Keep(columns ...int) *Table {
	for _, c := range columns {
		t.keep[c] = true
	}
	return t
}

// Row adds a row. Nothing is printed as a dash, so that each column can be counted.
func (t *Table) Row(cells ...any) {
	row := make([]string, len(t.heads))
	for i := range row {
		if i < len(cells) {
			row[i] = line(fmt.Sprint(cells[i]))
		}
		if row[i] == "" {
			row[i] = "-"
		}
	}
	t.rows = append(t.rows, row)
}

// line makes one line of foreign text.
func line(s string) string {
	return strings.NewReplacer("\n", `\n`, "\t", `\t`).Replace(Escape(s))
}

const (
	gap   = 2 // columns between columns
	least = 8 // that a cut column keeps
)

// Text returns the table for an output of that width, 0 for one without an end.
func (t *Table) Text(width int) string {
	widths := make([]int, len(t.heads))
	for i, h := range t.heads {
		widths[i] = len(h)
		for _, r := range t.rows {
			widths[i] = max(widths[i], len(r[i])) // Escape leaves printable ASCII
		}
	}
	for width > 0 {
		total, widest := gap*(len(widths)-1), -1
		for i, w := range widths {
			total += w
			if !t.keep[i] && w > max(least, len(t.heads[i])) && (widest < 0 || w > widths[widest]) {
				widest = i
			}
		}
		if total <= width || widest < 0 {
			break
		}
		widths[widest]--
	}
	var b strings.Builder
	for _, r := range append([][]string{t.heads}, t.rows...) {
		var l strings.Builder
		for i, c := range r {
			if len(c) > widths[i] {
				c = c[:max(0, widths[i]-3)] + "..."
			}
			fmt.Fprintf(&l, "%-*s", widths[i]+gap, c)
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	return b.String()
}

// Principal returns a principal in the one spelling for people: as roles and tokens name
// them ("uid:1000"), without Cedar's type and quotes. It keeps the type of agents and
// devices, since their names may be a user's.
func Principal(s string) string {
	kind, name, ok := strings.Cut(s, `::"`)
	kind, typed := strings.CutPrefix(kind, "Palyra::")
	if name, ended := strings.CutSuffix(name, `"`); ok && typed && ended && !strings.ContainsAny(name, `"\`) {
		if kind == "User" {
			return name
		}
		return strings.ToLower(kind) + " " + name
	}
	return s
}
