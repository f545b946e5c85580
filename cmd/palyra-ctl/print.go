package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"palyra/cmd/internal/command"
	"palyra/cmd/internal/front"
	"palyra/cmd/internal/terminal"
	"palyra/hub"
	"palyra/internal/fault"
)

// lines are front.Lines, in the words of this package.
type lines struct{ *front.Lines }

func newLines() *lines { return &lines{front.NewLines()} }

func (l *lines) row(cells ...any) { l.Row(cells...) }

// table prints a table as wide as the output is, or whole with --wide.
func (a *app) table(inv *command.Invocation, t *front.Table) string { return t.Text(a.width(inv)) }

// width returns the width of the output, 0 if nothing should be cut.
func (a *app) width(inv *command.Invocation) int {
	if inv.Has("wide") || a.columns == nil {
		return 0
	}
	return a.columns(a.stdout)
}

// minShown is the shortest shown part of an id: its kind and eight digits.
const minShown = len("ses_") + 8

// ids shortens ids if the output is a terminal; every command takes the beginning of an id.
func (a *app) ids(inv *command.Invocation, n int, id func(int) string) func(string) string {
	if a.width(inv) == 0 {
		return func(s string) string { return s }
	}
	return short(n, id)
}

// short shortens ids to the part that tells them apart in a list.
func short(n int, id func(int) string) func(string) string {
	size := minShown
	for seen := map[string]bool{}; ; size++ {
		clear(seen)
		clash := false
		for i := range n {
			short := cut(id(i), size)
			clash = clash || seen[short] && len(id(i)) > size
			seen[short] = true
		}
		if !clash {
			return func(s string) string { return cut(s, size) }
		}
	}
}

func cut(s string, n int) string {
	if len(s) > n {
		return s[:n]
	}
	return s
}

// cell makes one line of foreign text.
func cell(s string) string { return front.Cell(s) }

// stamp returns a time for people, in UTC like the receipts.
func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.UTC().Format("2006-01-02 15:04:05")
}

func stampOf(t *time.Time) string {
	if t == nil {
		return "-"
	}
	return stamp(*t)
}

// dash is s, or a dash for nothing.
func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// page reads the flags of a list.
func page(inv *command.Invocation) hub.PageQuery {
	return hub.PageQuery{After: command.Value(inv, "after", ""), Limit: int(command.Value(inv, "limit", int64(0)))}
}

// more returns the line that says how to go on.
func more(next string) string {
	if next == "" {
		return ""
	}
	return "more: --after " + cell(next) + "\n"
}

// deliver copies what r gives to --out, or to standard output. A file is written
// whole or not at all.
func (a *app) deliver(inv *command.Invocation, write func(io.Writer) error) (string, error) {
	path := command.Value(inv, "out", "")
	if path == "" {
		stdout := a.stdout
		if inv.Has("raw") {
			stdout = terminal.Raw(stdout)
		}
		return "", write(front.Stdout(stdout))
	}
	return path, writeFile(path, write)
}

// writeFile makes path with the output of write, through a temporary file beside it. Only
// its owner may read it.
func writeFile(path string, write func(io.Writer) error) error {
	op := fmt.Sprintf("write %q", path)
	f, err := os.CreateTemp(filepath.Dir(path), ".palyra-*")
	if err != nil {
		return fault.New(fault.Usage, "bad_file", op, err)
	}
	defer os.Remove(f.Name())
	if err := write(f); err != nil {
		f.Close()
		return err
	}
	if err := f.Sync(); err != nil {
		f.Close()
		return fault.New(fault.Unavailable, "io_error", op, err)
	}
	if err := f.Close(); err != nil {
		return fault.New(fault.Unavailable, "io_error", op, err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fault.New(fault.Unavailable, "io_error", op, err)
	}
	return nil
}
