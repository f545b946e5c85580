package command

import (
	"fmt"
	"strings"
)

// Man returns the manual page of c in man(7)'s language, made from the table.
// Its name is PROGRAM-COMMAND in section 1.
func (t *Table) Man(c *Command) string {
	name := t.Program + "-" + strings.ReplaceAll(c.Name, " ", "-")
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s 1 \"\" \"%s\" \"User Commands\"\n", roff(strings.ToUpper(name)), roff(t.Program))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(name), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.nf\n%s\n.fi\n", roff(strings.TrimPrefix(t.Synopsis(c), "Usage: ")))
	if c.Long != "" {
		b.WriteString(".SH DESCRIPTION\n")
		for i, para := range strings.Split(strings.Trim(c.Long, "\n"), "\n\n") {
			if i > 0 {
				b.WriteString(".PP\n")
			}
			fmt.Fprintf(&b, "%s\n", roff(para))
		}
	}
	if len(c.Flags) > 0 {
		b.WriteString(".SH OPTIONS\n")
	}
	for _, f := range c.Flags {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR", roff("--"+f.Name))
		if f.Arg != "" {
			fmt.Fprintf(&b, " \\fI%s\\fR", roff(f.Arg))
		}
		fmt.Fprintf(&b, "\n%s\n", roff(f.Help))
	}
	if len(c.Exits) > 0 {
		b.WriteString(".SH EXIT STATUS\n")
	}
	for _, e := range c.Exits {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(e.Code), roff(e.Meaning))
	}
	if len(c.Examples) > 0 {
		b.WriteString(".SH EXAMPLES\n")
	}
	for _, e := range c.Examples {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(e.Line), roff(e.Does))
	}
	return b.String()
}

// ManName is the file name of c's page.
func (t *Table) ManName(c *Command) string {
	return t.Program + "-" + strings.ReplaceAll(c.Name, " ", "-") + ".1"
}

// roff escapes text: backslashes, dashes that must stay ASCII, and the dot or
// quote that would make a line a request.
func roff(s string) string {
	s = strings.NewReplacer(`\`, `\e`, "-", `\-`).Replace(s)
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, ".") || strings.HasPrefix(l, "'") {
			lines[i] = `\&` + l
		}
	}
	return strings.Join(lines, "\n")
}
