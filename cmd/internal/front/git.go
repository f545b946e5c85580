package front

import (
	"fmt"
	"strings"
)

// GitChanges is what a layer changes in a repository, as a terminal shows it.
type GitChanges struct {
	Refs    []GitRef
	Head    string // what is checked out, "" if that stays
	Index   bool   // it has other entries
	Objects int
	Bytes   int64
	Look    [][2]string // a file of a commit or of the index, and why it deserves a look
	Left    [][2]string // what stays in the layer, and why
}

// GitRef is a branch or tag.
type GitRef struct {
	Name, Kind, Old, New string
	Commits              int
	Subjects, Look       []string
}

// ShortID is an object id as people read it.
func ShortID(id string) string {
	if id == "" {
		return "none"
	}
	return id[:min(len(id), 12)]
}

// Text returns it as a table with lines below.
func (g *GitChanges) Text(width int) string {
	var b strings.Builder
	if len(g.Refs) > 0 {
		t := NewTable("REF", "CHANGE", "OLD", "NEW", "COMMITS", "LOOK").Keep(0)
		for _, r := range g.Refs {
			t.Row(r.Name, r.Kind, ShortID(r.Old), ShortID(r.New), fmt.Sprint(r.Commits), strings.Join(r.Look, ", "))
		}
		b.WriteString(t.Text(width))
	}
	line := func(format string, v ...any) { b.WriteString(OneLine(Escape(fmt.Sprintf(format, v...))) + "\n") }
	for _, r := range g.Refs {
		for i, s := range r.Subjects {
			if i == 0 {
				line("%s:", r.Name)
			}
			b.WriteString("  " + OneLine(Escape(s)) + "\n")
		}
		if more := r.Commits - len(r.Subjects); more > 0 {
			fmt.Fprintf(&b, "  and %d more\n", more)
		}
	}
	if g.Head != "" {
		line("HEAD: %s", g.Head)
	}
	if g.Index {
		line("index: has other entries")
	}
	if g.Objects > 0 {
		line("objects: %d, %d bytes packed", g.Objects, g.Bytes)
	}
	for _, l := range g.Look {
		line("look: %s: %s", l[0], l[1])
	}
	for _, l := range g.Left {
		line("left in the layer: %s: %s", l[0], l[1])
	}
	return b.String()
}
