package main

import (
	"fmt"
	"os"
	"path/filepath"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/internal/fault"
)

// completion prints a script for a shell.
func (a *app) completion(inv *command.Invocation) (*front.Report, error) {
	script, err := a.table.Complete(inv.Operands[0])
	if err != nil {
		return nil, err
	}
	return &front.Report{Text: script, Fields: front.Document{"shell": inv.Operands[0], "script": script}}, nil
}

// man writes a manual page for each command into a directory.
func (a *app) man(inv *command.Invocation) (*front.Report, error) {
	dir := inv.Operands[0]
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("make directory %q", dir), err)
	}
	var files []string
	for i := range a.table.Commands {
		c := &a.table.Commands[i]
		path := filepath.Join(dir, a.table.ManName(c))
		if err := os.WriteFile(path, []byte(a.table.Man(c)), 0o644); err != nil {
			return nil, fault.New(fault.Unavailable, "write_failed", fmt.Sprintf("write manual page %q", path), err)
		}
		files = append(files, path)
	}
	return &front.Report{Text: fmt.Sprintf("%d pages in %s\n", len(files), front.Escape(dir)), Fields: front.Document{"pages": files}}, nil
}
