package command

import (
	"fmt"
	"strings"
)

// Help returns the overview of all commands.
func (t *Table) Help() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s - %s\n\nUsage: %s COMMAND [FLAG]... [OPERAND]...\n", t.Program, t.Summary, t.Program)
	width := 0
	for _, l := range t.Begin {
		width = max(width, len(l.Line))
	}
	if len(t.Begin) > 0 {
		b.WriteString("\nBegin with:\n")
	}
	for _, l := range t.Begin {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, l.Line, l.Does)
	}
	width = 0
	for _, c := range t.Commands {
		width = max(width, len(c.Name))
	}
	for _, g := range t.Sections() {
		fmt.Fprintf(&b, "\n%s:\n", g.Title)
		for _, c := range g.Commands {
			fmt.Fprintf(&b, "  %-*s  %s\n", width, c.Name, c.Short)
		}
	}
	if len(t.Exits) > 0 {
		b.WriteString("\nExit status, where the help of a command says nothing else:\n")
	}
	for _, e := range t.Exits {
		fmt.Fprintf(&b, "  %-6s %s\n", e.Code, e.Meaning)
	}
	fmt.Fprintf(&b, "\n%s help COMMAND shows flags, exit statuses and examples of one.\n", t.Program)
	return b.String()
}

// Topic returns the help of what the words name: a command, or a list of all commands under a noun
// ("attest"). It is false if they name nothing.
func (t *Table) Topic(words []string) (string, bool) {
	name := strings.Join(words, " ")
	if name == "" {
		return t.Help(), true
	}
	if c := t.Find(name); c != nil {
		return t.Describe(c), true
	}
	width, under := 0, []*Command(nil)
	for i := range t.Commands {
		if c := &t.Commands[i]; strings.HasPrefix(c.Name, name+" ") {
			width, under = max(width, len(c.Name)), append(under, c)
		}
	}
	if len(under) == 0 {
		return "", false
	}
	var b strings.Builder
	fmt.Fprintf(&b, "Usage: %s %s COMMAND [FLAG]... [OPERAND]...\n\nCommands:\n", t.Program, name)
	for _, c := range under {
		fmt.Fprintf(&b, "  %-*s  %s\n", width, c.Name, c.Short)
	}
	b.WriteString("\nExamples:\n")
	for _, c := range under {
		if len(c.Examples) > 0 {
			fmt.Fprintf(&b, "  %s\n", c.Examples[0].Line)
		}
	}
	fmt.Fprintf(&b, "\n%s help %s COMMAND shows flags, exit statuses and examples of one.\n", t.Program, name)
	return b.String(), true
}

// Synopsis returns the usage line of c.
func (t *Table) Synopsis(c *Command) string {
	words := []string{t.Program, c.Name}
	for _, f := range c.Flags {
		w := "[--" + f.Name
		if f.Arg != "" {
			w += " " + f.Arg
		}
		w += "]"
		if f.Repeat {
			w += "..."
		}
		words = append(words, w)
	}
	if c.Operands != "" {
		words = append(words, c.Operands)
	}
	return wrap(words, "Usage: ", 78)
}

// Describe returns the whole help of c.
func (t *Table) Describe(c *Command) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s - %s\n\n%s\n", t.Program, c.Name, c.Short, t.Synopsis(c))
	if c.Long != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.Trim(c.Long, "\n"))
	}
	if len(c.Flags) > 0 {
		b.WriteString("\nFlags:\n")
	}
	for _, f := range c.Flags {
		left := strings.TrimRight("--"+f.Name+" "+f.Arg, " ")
		for i, line := range strings.Split(f.Help, "\n") {
			if i > 0 {
				left = ""
			}
			fmt.Fprintf(&b, "  %-22s %s\n", left, line)
		}
	}
	if len(c.Exits) > 0 {
		b.WriteString("\nExit status:\n")
	}
	for _, e := range c.Exits {
		fmt.Fprintf(&b, "  %-6s %s\n", e.Code, e.Meaning)
	}
	if len(c.Examples) > 0 {
		b.WriteString("\nExamples:\n")
	}
	for _, e := range c.Examples {
		fmt.Fprintf(&b, "  %s\n      %s\n", e.Line, e.Does)
	}
	return b.String()
}

// wrap joins words with spaces, breaking before column width; later lines are
// indented like the first word.
func wrap(words []string, prefix string, width int) string {
	line := prefix + words[0]
	var lines []string
	for _, w := range words[1:] {
		if len(line)+1+len(w) > width {
			lines = append(lines, line)
			line = strings.Repeat(" ", len(prefix)+2) + w
			continue
		}
		line += " " + w
	}
	return strings.Join(append(lines, line), "\n")
}
