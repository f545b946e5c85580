package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/manual"
	"palyra/hub/config"
	"palyra/internal/fault"
)

// pages returns the manual pages for administrators, by their place in a folder such as
// /usr/share/man.
func pages(t *command.Table) map[string]string {
	serve := t.Find("serve")
	more := ".SH DESCRIPTION\n" + behind(manual.Man(t, serve), ".SH DESCRIPTION\n") +
		".SH SEE ALSO\n\\fBpalyrad.toml\\fR(5), \\fBpalyra\\fR(1), \\fBpalyra\\-cell\\fR(8)\n"
	return map[string]string{
		"man8/palyrad.8":      manual.ManOverview(t, 8, more),
		"man8/palyra-cell.8":  manual.ManPage("palyra-cell", 8, "the process that starts and confines programs for palyra", cellText),
		"man5/palyrad.toml.5": manual.ManPage("palyrad.toml", 5, "configuration of palyrad", tomlText()),
	}
}

// behind returns the text behind a mark in a page.
func behind(page, mark string) string {
	_, rest, _ := strings.Cut(page, mark)
	return rest
}

const cellText = `
# Description
palyra-cell builds the namespaces, mounts, limits and filters of a call, starts its program there and
reports what it observed. palyra exec starts one for itself; palyrad starts one, or is given the socket of
palyra-cell.service (cell.starter). It is not called by people: it speaks over a socket that it is handed, and runs
nothing without a grant. It holds no signing key and opens no connection.

# See also
palyra(1), palyrad(8)
`

// tomlText returns the reference of the configuration, from its struct.
func tomlText() string {
	var b strings.Builder
	b.WriteString("# Description\nTOML 1.0, read whole and checked before anything starts. A key that does not exist is an error.\n" +
		"A variable PALYRA_SECTION_KEY stands in place of section.key. Durations are \"90s\", \"5m\"; sizes are bytes or \"16MiB\"; modes are octal text.\n" +
		"Which profile refuses what is said at each key.\n\n# Keys\n")
	for _, k := range config.Keys() {
		text, err := config.Explain(k.Name)
		if err != nil {
			continue // it is one of the keys
		}
		for line := range strings.Lines(text) {
			b.WriteString("    " + line)
		}
		b.WriteString("\n")
	}
	b.WriteString("# Files\n/etc/palyra/palyrad.toml\n\n# See also\npalyrad(8), palyra-config-explain(1), palyra-config-validate(1)\n")
	return b.String()
}

// man writes the pages below a folder such as /usr/share/man.
func (p *program) man(t *command.Table, inv *command.Invocation) error {
	all := pages(t)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		page := all[name]
		path := filepath.Join(inv.Operands[0], name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		if err == nil {
			err = os.WriteFile(path, []byte(page), 0o644)
		}
		if err != nil {
			return fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write manual page %q", path), err)
		}
		fmt.Fprintln(p.stdout, front.Escape(path))
	}
	return nil
}
