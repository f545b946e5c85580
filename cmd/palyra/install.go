package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

const seeAlso = ".SH SEE ALSO\n\\fBpalyra\\-exec\\fR(1), \\fBpalyrad\\fR(8), \\fBpalyrad.toml\\fR(5)\n"

// completion prints a script for a shell.
func (a *app) completion(inv *command.Invocation) (*front.Report, error) {
	script, err := a.table.Complete(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: script, Fields: front.Document{"shell": inv.Operands[0], "script": script}}, nil
}

// man writes a manual page for each command, and one for all, into a directory.
func (a *app) man(inv *command.Invocation) (*front.Report, error) {
	dir := inv.Operands[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("make directory %q", dir), err)
	}
	pages := map[string]string{a.table.Program + ".1": a.table.ManOverview(1, seeAlso)}
	for i := range a.table.Commands {
		c := &a.table.Commands[i]
		pages[a.table.ManName(c)] = a.table.Man(c)
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(pages[name]), 0o644); err != nil {
			return nil, fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("write manual page %q", path), err)
		}
		files = append(files, path)
	}
	return &front.Report{Text: fmt.Sprintf("%d pages in %s\n", len(files), front.Escape(dir)), Fields: front.Document{"pages": files}}, nil
}
