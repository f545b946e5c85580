// Package manual prints a table of commands as manual pages and as completion
// scripts, for palyra man, palyra completion and palyrad man.
package manual

import (
	"fmt"
	"strings"

	"palyra/cmd/internal/command"
)

// Man returns the manual page of c in man(7)'s language, made from the table.
// Its name is PROGRAM-COMMAND in section 1.
func Man(t *command.Table, c *command.Command) string {
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

// ManOverview returns the page of the program itself, in a section: its purpose, its
// commands, and more, which is text in man(7)'s language.
func ManOverview(t *command.Table, section int, more string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s %d \"\" \"%s\" \"\"\n", roff(strings.ToUpper(t.Program)), section, roff(t.Program))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(t.Program), roff(t.Summary))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n\\fB%s\\fR \\fICOMMAND\\fR [\\fIFLAG\\fR]... [\\fIOPERAND\\fR]...\n", roff(t.Program))
	for _, g := range t.Sections() {
		fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(g.Title)))
		for _, c := range g.Commands {
			fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(c.Name), roff(c.Short))
		}
	}
	if len(t.Exits) > 0 {
		b.WriteString(".SH EXIT STATUS\nWhere the page of a command says nothing else:\n")
	}
	for _, e := range t.Exits {
		fmt.Fprintf(&b, ".TP\n\\fB%s\\fR\n%s\n", roff(e.Code), roff(e.Meaning))
	}
	return b.String() + more
}

// ManPage returns a page made of paragraphs under headings: a text in which a line
// that begins with "# " is a heading, and lines of four spaces stand as they are.
func ManPage(name string, section int, short, text string) string {
	var b strings.Builder
	fmt.Fprintf(&b, ".TH %s %d \"\" \"palyra\" \"\"\n.SH NAME\n%s \\- %s\n", roff(strings.ToUpper(name)), section, roff(name), roff(short))
	literal := false
	for line := range strings.SplitSeq(strings.TrimSpace(text), "\n") {
		code := strings.HasPrefix(line, "    ")
		if code != literal && (code || line != "") {
			b.WriteString(map[bool]string{true: ".nf\n", false: ".fi\n"}[code])
			literal = code
		}
		switch title, heading := strings.CutPrefix(line, "# "); {
		case heading:
			fmt.Fprintf(&b, ".SH %s\n", roff(strings.ToUpper(title)))
		case line == "" && !literal:
			b.WriteString(".PP\n")
		default:
			fmt.Fprintf(&b, "%s\n", roff(line))
		}
	}
	if literal {
		b.WriteString(".fi\n")
	}
	return b.String()
}

// ManName returns the file name of c's page.
func ManName(t *command.Table, c *command.Command) string {
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
