package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/local"
	"palyra/cmd/internal/manual"
	"palyra/internal/fault"
)

const seeAlso = ".SH SEE ALSO\n\\fBpalyra\\-exec\\fR(1), \\fBpalyrad\\fR(8), \\fBpalyrad.toml\\fR(5)\n"

// completion prints a script for a shell.
func completion(inv *command.Invocation) (*front.Report, error) {
	script, err := manual.Complete(local.Table(), inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: script, Fields: front.Document{"shell": inv.Operands[0], "script": script}}, nil
}

// man writes a manual page for each command, and one for all, into a directory.
func man(inv *command.Invocation) (*front.Report, error) {
	dir := inv.Operands[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("make directory %q", dir), err)
	}
	table := local.Table()
	pages := map[string]string{table.Program + ".1": manual.ManOverview(table, 1, seeAlso)}
	for i := range table.Commands {
		c := &table.Commands[i]
		pages[manual.ManName(table, c)] = manual.Man(table, c)
	}
	var files []string
	for _, name := range slices.Sorted(maps.Keys(pages)) {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(pages[name]), 0o644); err != nil {
			return nil, fault.New(fault.Unavailable, "io_error", fmt.Sprintf("write manual page %q", path), err)
		}
		files = append(files, path)
	}
	return &front.Report{Text: fmt.Sprintf("%d pages in %s\n", len(files), front.Escape(dir)), Fields: front.Document{"pages": files}}, nil
}
